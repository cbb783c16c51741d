//! Findings on the page: by rule, those that say the same of many queues as one line to unfold.

use maud::{Markup, html};
use nearfar_machine::Machine;
use nearfar_placement::audit::{self, Audit, Finding, Severity};

use super::{Checkup, next, titled};
use crate::amount::count;
use crate::audit::{Group, groups, reasons, rules};
use crate::change;
use crate::checkup::next::on_this_machine;
use crate::fold::{Fold, Folder};
use crate::topo;
use crate::wrapping::clean;

/// Most lines of one rule on the page.
const MOST_LINES: usize = 100;
/// Most findings below one line.
const MOST_OF_A_LINE: usize = 100;
/// Lines of a rule with more findings than this are folded.
const MOST_OPEN: usize = 3;

/// The section on findings.
pub(super) fn section(checkup: &Checkup) -> Markup {
    let audit = &checkup.audit;
    let (groups, folder) = (groups(audit), Folder::of(&checkup.machine));
    titled(
        "findings",
        "What is far",
        &html! {
            @if groups.is_empty() {
                p.note { "No findings. " (rules(audit)) "." }
            }
            @for group in &groups { (rule(checkup, group, &folder)) }
        },
    )
}

fn rule(checkup: &Checkup, group: &Group<'_>, folder: &Folder<'_>) -> Markup {
    let number = group.findings.len();
    let title = audit::rule(group.rule).map_or(group.rule, |rule| rule.title);
    let docs = group
        .findings
        .first()
        .map_or("", |finding| finding.docs.as_str());
    let open = number <= MOST_OPEN && group.severity > Severity::Fact;
    let folds = folder.fold(&group.findings);
    let fixable = group.findings.iter().any(|finding| finding.fix.is_some());
    html! {
        div class={ "rule " (group.severity) } {
            h3 {
                span class={ "badge " (group.severity) } { (group.severity) } " " (title) " "
                code.id { (group.rule) } " " span.number { (count(number, "finding")) }
            }
            @for fold in folds.iter().take(MOST_LINES) { (one_line(fold, open)) }
            @if folds.len() > MOST_LINES {
                @let more: usize = folds.iter().skip(MOST_LINES).map(|fold| fold.findings.len()).sum();
                p.more { "and " (more) " more of this rule; " code { "nearfar audit --format json" } " has all of them" }
            }
            p.docs {
                @if let Some(rule) = audit::rule(group.rule) { (rule.explanation) " " }
                code { (clean(docs)) }
            }
            @if fixable {
                div.docs { "The changes: " (next::command(&on_this_machine(checkup, &format!("nearfar plan --rule {}", group.rule)))) }
            }
        }
    }
}

/// A line that unfolds to its findings.
fn one_line(fold: &Fold<'_>, open: bool) -> Markup {
    let distance = change::distance(fold.cost);
    let number = fold.findings.len();
    html! {
        details open[open] {
            summary {
                b { (clean(&fold.line)) }
                @if !distance.is_empty() { " " span.distance { "distance " (distance.replace("->", "→")) } }
            }
            @for finding in fold.findings.iter().take(MOST_OF_A_LINE) { (one(finding, number > 1)) }
            @if number > MOST_OF_A_LINE {
                p.more { "and " (number - MOST_OF_A_LINE) " more; " code { "nearfar audit --format json" } " has all of them" }
            }
        }
    }
}

fn one(finding: &Finding, named: bool) -> Markup {
    html! {
        article {
            @if named { h4 { (clean(&finding.subject)) } }
            p { (clean(&finding.message)) }
            @if !finding.evidence.is_empty() {
                ul.evidence {
                    @for evidence in &finding.evidence {
                        li { code { (clean(&evidence.file)) } " = " code.value { (clean(&evidence.value)) } }
                    }
                }
            }
            @if let Some(fix) = &finding.fix {
                p.fix { span { "fix" } " " (clean(&change::subject(fix))) " = " code.value { (clean(&change::value(fix))) } }
                @if let Some(caution) = change::caution(fix) { p.caution { (caution) } }
            }
            @if let Some(advice) = &finding.advice { p.advice { (clean(advice)) } }
        }
    }
}

/// The section on what was not checked and what is not known.
pub(super) fn not_checked(audit: &Audit, machine: &Machine) -> Markup {
    let (rules, parts) = (reasons(audit), topo::unknown::reasons(machine));
    if rules.is_empty() && parts.is_empty() {
        return html! {};
    }
    titled(
        "unknown",
        "Not checked, unknown",
        &html! {
            dl.facts {
                @for (because, rules) in &rules {
                    dt { @for rule in rules { code { (clean(rule)) } " " } }
                    dd { "not checked: " (clean(because)) }
                }
                @for (because, parts) in &parts {
                    dt { (parts.join(", ")) }
                    dd { "unknown: " (clean(because)) }
                }
            }
        },
    )
}
