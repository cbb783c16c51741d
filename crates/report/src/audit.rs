//! The findings of an audit, most severe first, grouped by rule.

use std::collections::BTreeMap;

use nearfar_machine::Machine;
use nearfar_placement::audit::{Audit, Finding, Severity, State};

use crate::amount::count;
use crate::change;
use crate::checkup::plan_command;
use crate::document::{Document, Text};
use crate::fold::{Fold, Folder};
use crate::style::Role::{self, Dim, Heading, Local, Middling};

/// Most lines of one rule.
const MAX_LINES: usize = 12;
/// Lines of a rule with more of them than this have no evidence.
const MAX_WITH_EVIDENCE: usize = 2;

/// Findings by severity and rule, each with evidence, what it costs and what would fix it; then what was not
/// checked, and why. Findings that say the same of many queues or devices are one line, unless all are wanted.
/// `source`: the arguments that choose the machine and its devices, for commands.
pub fn document(machine: &Machine, audit: &Audit, is_all: bool, source: &str) -> Document {
    let mut out = Document::titled("Findings", found(audit));
    out.remark(rules(audit));
    let folder = (!is_all).then(|| Folder::of(machine));
    for group in &groups(audit) {
        rule(group, folder.as_ref(), &mut out);
        if group.findings.iter().any(|finding| finding.fix.is_some())
            && let Some(command) = plan_command(machine, audit, Some(group.rule), source)
        {
            out.labelled_command("plan", command);
        }
    }
    not_checked(audit, &mut out);
    out
}

/// Findings of one rule and severity.
pub(crate) struct Group<'a> {
    pub(crate) severity: Severity,
    pub(crate) rule: &'a str,
    pub(crate) findings: Vec<&'a Finding>,
}

/// Findings grouped: most severe first, rules in the order in which the audit has them.
pub(crate) fn groups(audit: &Audit) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for finding in &audit.findings {
        match groups
            .iter_mut()
            .find(|group| (group.severity, group.rule) == (finding.severity, finding.rule))
        {
            Some(group) => group.findings.push(finding),
            None => groups.push(Group {
                severity: finding.severity,
                rule: finding.rule,
                findings: vec![finding],
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.severity));
    groups
}

/// `1 critical, 3 warnings, 2 notices`, or that there are none and of how many rules.
pub(crate) fn counts(audit: &Audit) -> String {
    if audit.findings.is_empty() {
        format!("none; {}", rules(audit))
    } else {
        found(audit)
    }
}

/// `1 critical, 3 warnings, 2 notices`, or `none`.
fn found(audit: &Audit) -> String {
    let all = [
        Severity::Critical,
        Severity::Warning,
        Severity::Notice,
        Severity::Fact,
    ];
    let parts = all.into_iter().filter_map(|severity| {
        let findings = audit.findings.iter();
        match findings
            .filter(|finding| finding.severity == severity)
            .count()
        {
            0 => None,
            found => Some(number(severity, found)),
        }
    });
    let parts: Vec<String> = parts.collect();
    match parts.is_empty() {
        true => "none".to_owned(),
        false => parts.join(", "),
    }
}

/// `18 rules: 6 with findings, 8 without, 4 not checked; 2 checked in part`; the figures before the semicolon add up to the
/// number of rules.
pub(crate) fn rules(audit: &Audit) -> String {
    let (found, nothing) = (
        audit.number(State::Found),
        audit.number(State::NothingFound),
    );
    let mut text = format!(
        "{}: {found} with findings, {nothing} without",
        count(audit.rules.len(), "rule")
    );
    for (state, what) in [
        (State::NotChecked, "not checked"),
        (State::NotApplicable, "not applicable"),
    ] {
        match audit.number(state) {
            0 => {}
            number => text.push_str(&format!(", {number} {what}")),
        }
    }
    match audit.number_in_part() {
        0 => text,
        number => text + &format!("; {number} checked in part"),
    }
}

/// `3 warnings`, `2 critical`.
pub(crate) fn number(severity: Severity, number: usize) -> String {
    if severity == Severity::Critical {
        format!("{number} critical")
    } else {
        count(number, &severity.to_string())
    }
}

/// The colour for a severity.
pub(crate) fn role(severity: Severity) -> Role {
    match severity {
        Severity::Critical => Role::Critical,
        Severity::Warning => Role::Warning,
        Severity::Notice => Role::Notice,
        Severity::Fact => Role::Dim,
    }
}

/// The command that says what a rule checks.
pub(crate) fn explanation(rule: &str) -> String {
    format!("nearfar audit --explain {rule}")
}

fn rule(group: &Group<'_>, folder: Option<&Folder<'_>>, out: &mut Document) {
    let number = count(group.findings.len(), "finding");
    let title = role(group.severity).text(format!("{}  ", group.severity));
    out.gap();
    out.indented(
        0,
        title,
        Heading.text(format!(
            "{}  {number}  {}",
            group.rule,
            explanation(group.rule)
        )),
    );
    let Some(folder) = folder else {
        for finding in &group.findings {
            out.paragraph(format!("{}: {}", finding.subject, finding.message));
            evidence(finding, out);
            distance(finding, out);
            fix(finding, 0, out);
            advice(finding, out);
        }
        return;
    };
    let folds = folder.fold(&group.findings);
    let has_evidence = folds.len() <= MAX_WITH_EVIDENCE;
    let mut advised = None;
    for fold in folds.iter().take(MAX_LINES) {
        line(fold, has_evidence, out);
        let first = fold.findings[0];
        // The same advice once.
        if first.advice != advised {
            advice(first, out);
            advised.clone_from(&first.advice);
        }
    }
    let shown = folds.iter().take(MAX_LINES).map(|fold| fold.findings.len());
    let hidden = group.findings.len() - shown.sum::<usize>();
    out.more(hidden, " of this rule; --all has them");
}

/// The findings that say the same: what they are about, one of them, what would fix it.
fn line(fold: &Fold<'_>, has_evidence: bool, out: &mut Document) {
    let (first, others) = (fold.findings[0], fold.findings.len() - 1);
    match fold.is_one_message() {
        true => out.paragraph(format!("{}: {}", fold.line, first.message)),
        false => {
            out.paragraph(format!("{}.", fold.line));
            detail(
                "first",
                format!("{}: {}", first.subject, first.message),
                out,
            );
        }
    }
    if has_evidence {
        evidence(first, out);
    }
    distance(first, out);
    fix(first, others, out);
}

fn detail(label: &str, text: impl Into<Text>, out: &mut Document) {
    out.indented(6, Dim.text(format!("{label:<10}")), text);
}

fn evidence(finding: &Finding, out: &mut Document) {
    for evidence in &finding.evidence {
        let text = format!("{} = {}", evidence.file, evidence.value);
        detail("evidence", Dim.text(text), out);
    }
}

fn distance(finding: &Finding, out: &mut Document) {
    let distance = change::distance(finding.cost);
    if !distance.is_empty() {
        detail("distance", Middling.text(distance), out);
    }
}

/// The fix of a finding, and how many others have one like it.
fn fix(finding: &Finding, others: usize, out: &mut Document) {
    if let Some(fix) = &finding.fix {
        let more = match others {
            0 => String::new(),
            _ => format!(", and {others} more"),
        };
        let text = format!("{} = {}", fix.subject(), change::value(fix));
        detail("fix", Local.text(text).then(Dim, more), out);
    }
    let remedy = finding.remedy.as_ref();
    if let Some(estimate) = remedy.and_then(|remedy| remedy.estimate.as_ref()) {
        detail("estimate", estimate.to_string(), out);
    }
}

fn advice(finding: &Finding, out: &mut Document) {
    if let Some(advice) = &finding.advice {
        detail("advice", advice, out);
    }
}

fn not_checked(audit: &Audit, out: &mut Document) {
    if audit.not_checked.is_empty() {
        return;
    }
    out.heading("Not checked", "");
    for (reason, rules) in reasons(audit) {
        out.remark(format!("{}: {reason}", rules.join(", ")));
    }
}

/// Rules that were not checked, by the reason.
pub(crate) fn reasons(audit: &Audit) -> BTreeMap<&str, Vec<&str>> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for not_checked in &audit.not_checked {
        reasons
            .entry(&not_checked.reason)
            .or_default()
            .push(not_checked.rule);
    }
    reasons
}
