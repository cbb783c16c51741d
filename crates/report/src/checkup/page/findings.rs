//! Findings on the page: by rule, those that say the same of many queues as one line to unfold.

use nearfar_machine::Machine;
use nearfar_placement::audit::{self, Audit, Finding, Severity};

use super::Checkup;
use crate::amount::count;
use crate::audit::{Group, explanation, groups, reasons, rules};
use crate::change;
use crate::checkup::next::{on_this_machine, plan_command};
use crate::document::{Block, Document, Heading, Text};
use crate::fold::{Fold, Folder};
use crate::style::Role;
use crate::topo;

/// Most lines of one rule on the page.
const MAX_LINES: usize = 100;
/// Most findings below one line.
const MAX_OF_A_LINE: usize = 100;
/// Lines of a rule with more findings than this are folded.
const MAX_OPEN: usize = 3;

/// The section on findings.
pub(super) fn section(checkup: &Checkup, out: &mut Document) {
    let audit = &checkup.audit;
    let (groups, folder) = (groups(audit), Folder::of(&checkup.machine));
    out.section("findings", format!("Findings ({})", audit.findings.len()));
    if groups.is_empty() {
        out.boxed(format!("No findings. {}.", rules(audit)));
    }
    for group in &groups {
        out.card(group.severity.to_string(), rule(checkup, group, &folder));
    }
}

fn rule(checkup: &Checkup, group: &Group<'_>, folder: &Folder<'_>) -> Document {
    let number = group.findings.len();
    let rule = audit::rule(group.rule);
    let title = Text::from(rule.map_or(group.rule, |rule| rule.title)).then(Role::Plain, " ");
    let mut out = Document::new();
    out.push(Block::Heading(Heading {
        badge: Some((group.severity.to_string(), group.severity.to_string())),
        remark: count(number, "finding").into(),
        ..Heading::new(3, title.then(Role::Code, group.rule))
    }));
    let is_open = number <= MAX_OPEN && group.severity > Severity::Fact;
    let folds = folder.fold(&group.findings);
    for fold in folds.iter().take(MAX_LINES) {
        out.details(line(fold), is_open, below(checkup, fold));
    }
    if folds.len() > MAX_LINES {
        let left_out = folds.iter().skip(MAX_LINES);
        let left_out = left_out.map(|fold| fold.findings.len()).sum();
        more(checkup, left_out, &mut out);
    }
    let rule_text = rule.map_or("", |rule| rule.explanation);
    let text = Text::new(Role::Dim, format!("{rule_text} "));
    out.paragraph(text.then(Role::Code, explanation(group.rule)));
    let (machine, audit, source) = (&checkup.machine, &checkup.audit, &checkup.made.source);
    if group.findings.iter().any(|finding| finding.fix.is_some())
        && let Some(command) = plan_command(machine, audit, Some(group.rule), source)
    {
        out.remark("The changes:");
        out.command(command);
    }
    out
}

/// The line of findings that say the same.
fn line(fold: &Fold<'_>) -> Text {
    let line = Text::new(Role::Heading, &fold.line);
    match change::distance(fold.cost).replace("->", "→").as_str() {
        "" => line,
        distance => line
            .then(Role::Plain, " ")
            .then(Role::Dim, format!("distance {distance}")),
    }
}

/// The findings below a line.
fn below(checkup: &Checkup, fold: &Fold<'_>) -> Document {
    let mut out = Document::new();
    let number = fold.findings.len();
    for finding in fold.findings.iter().take(MAX_OF_A_LINE) {
        if number > 1 {
            out.subheading(4, &finding.subject);
        }
        one(finding, &mut out);
    }
    if number > MAX_OF_A_LINE {
        more(checkup, number - MAX_OF_A_LINE, &mut out);
    }
    out
}

fn more(checkup: &Checkup, number: usize, out: &mut Document) {
    let text = Text::new(Role::Dim, format!("and {number} more; "));
    let audit = on_this_machine(checkup, "nearfar audit --format json");
    let text = text.then(Role::Code, audit);
    out.paragraph(text.then(Role::Dim, " has all of them"));
}

fn one(finding: &Finding, out: &mut Document) {
    out.paragraph(&finding.message);
    let evidence = finding.evidence.iter();
    out.facts(evidence.map(|it| {
        (
            Text::new(Role::Code, &it.file),
            Text::new(Role::Value, &it.value),
        )
    }));
    if let Some(fix) = &finding.fix {
        let text = Text::from(format!("{} = ", fix.subject()));
        let text = text.then(Role::Value, change::value(fix));
        out.labelled(Text::new(Role::Heading, "fix: "), text);
        if let Some(caution) = fix.caution() {
            out.paragraph(Text::new(Role::Warning, caution));
        }
    }
    if let Some(advice) = &finding.advice {
        out.remark(advice);
    }
}

/// The section on what was not checked and what is unknown.
pub(super) fn not_checked(audit: &Audit, machine: &Machine, out: &mut Document) {
    let (rules, parts) = (reasons(audit), topo::unknown::reasons(machine));
    if rules.is_empty() && parts.is_empty() {
        return;
    }
    out.section("unknown", "Not checked, unknown");
    let rules = rules.iter().map(|(reason, rules)| {
        let names = rules.iter().fold(Text::default(), |text, rule| {
            text.then(Role::Code, rule).then(Role::Plain, " ")
        });
        (names, format!("not checked: {reason}"))
    });
    let parts = parts
        .iter()
        .map(|(reason, parts)| (parts.join(", ").into(), format!("unknown: {reason}")));
    out.facts(rules.chain(parts));
}
