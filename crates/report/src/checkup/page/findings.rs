//! Findings on the page: grouped by rule, folded where there are many.

use maud::{Markup, html};
use nearfar_machine::Machine;
use nearfar_placement::audit::{self, Audit, Finding, Severity};

use crate::amount::count;
use crate::audit::{Group, groups, reasons};
use crate::change;
use crate::topo;
use crate::wrapping::clean;

/// Most findings of one rule on the page.
const MOST_OF_A_RULE: usize = 100;
/// A rule with more findings than this is folded.
const MOST_OPEN: usize = 3;

/// The section on findings.
pub(super) fn section(audit: &Audit) -> Markup {
    let groups = groups(audit);
    html! {
        section {
            h2 { "What is far" }
            @if groups.is_empty() {
                p.note { "No findings. " (count(audit.checked.len(), "rule")) " checked, " (audit.not_checked.len()) " not (see below)." }
            }
            @for group in &groups { (rule(group)) }
        }
    }
}

fn rule(group: &Group<'_>) -> Markup {
    let number = group.findings.len();
    let grave = group.severity > Severity::Fact;
    let title = audit::rule(group.rule).map_or(group.rule, |rule| rule.title);
    let docs = group.findings.first().map_or("", |finding| finding.docs.as_str());
    html! {
        details class={ "rule " (group.severity) } open[number <= MOST_OPEN && grave] {
            summary {
                span class={ "badge " (group.severity) } { (group.severity) }
                " " b { (title) } " " code.id { (group.rule) }
                " " span.number { (count(number, "finding")) }
                @if number == 1 { " " span.first { (clean(&group.findings[0].subject)) } }
            }
            @for finding in group.findings.iter().take(MOST_OF_A_RULE) { (one(finding)) }
            @if number > MOST_OF_A_RULE {
                p.more { "and " (number - MOST_OF_A_RULE) " more of this rule; " code { "nearfar audit --format json" } " has all of them" }
            }
            p.docs {
                @if let Some(rule) = audit::rule(group.rule) { (rule.explanation) " " }
                code { (clean(docs)) }
            }
        }
    }
}

fn one(finding: &Finding) -> Markup {
    let distance = change::distance(finding.cost);
    html! {
        article {
            h3 {
                (clean(&finding.subject))
                @if !distance.is_empty() { " " span.distance { "distance " (distance.replace("->", "→")) } }
            }
            p { (clean(&finding.message)) }
            @if !finding.evidence.is_empty() {
                ul.evidence {
                    @for evidence in &finding.evidence {
                        li { code { (clean(&evidence.file)) } " = " code.value { (clean(&evidence.value)) } }
                    }
                }
            }
            @if let Some(mend) = &finding.mend {
                p.mend { span { "mend" } " " (clean(&change::subject(mend))) " = " code.value { (clean(&change::value(mend))) } }
                @if let Some(caution) = change::caution(mend) { p.caution { (caution) } }
            }
            @if let Some(advice) = &finding.advice { p.advice { (clean(advice)) } }
        }
    }
}

/// The section on what was not checked and what is not known.
pub(super) fn not_checked(audit: &Audit, machine: &Machine) -> Markup {
    let (rules, parts) = (reasons(audit), topo::unknown::reasons(machine));
    html! {
        @if !rules.is_empty() || !parts.is_empty() {
            section {
                h2 { "Not checked, not known" }
                dl.facts {
                    @for (because, rules) in &rules {
                        dt { @for rule in rules { code { (clean(rule)) } " " } }
                        dd { "not checked, because " (clean(because)) }
                    }
                    @for (because, parts) in &parts {
                        dt { (parts.join(", ")) }
                        dd { "not known: " (clean(because)) }
                    }
                }
            }
        }
    }
}
