//! The findings of an audit, most severe first, grouped by rule; those that say the same of many queues or devices as one line.
//!
//! ```text
//! interrupt 45 (eth0-0), 46 (eth0-1), ... 68 (eth0-23)
//!    -> 24 queues of eth0 (interrupts 45-68) on node 1, device on node 0
//! 0000:20:00.0 (nvme), 0000:21:00.0 (nvme), ... with one message
//!    -> 0000:20:00.0 (nvme), 0000:21:00.0 (nvme) and 4 more
//! ```

use std::collections::BTreeMap;

use nearfar_change::{Change, DistanceChange};
use nearfar_machine::{Distance, Interrupt, Irq, Machine, NodeId, NodeSet, PciAddress};
use nearfar_placement::audit::{Audit, Finding, Severity, State};
use nearfar_placement::locality::Localities;

use crate::amount::{count, or, ranges};
use crate::checkup::plan_command;
use crate::document::{Document, Text};
use crate::plan;
use crate::style::Role::{self, Dim, Heading, Local, Middling};
use crate::topo::marks::{names, served};

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
        let (severity, rule) = (finding.severity, finding.rule);
        let mut known = groups.iter_mut();
        match known.find(|it| (it.severity, it.rule) == (severity, rule)) {
            Some(group) => group.findings.push(finding),
            None => groups.push(Group {
                severity,
                rule,
                findings: vec![finding],
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.severity));
    groups
}

/// `1 critical, 3 warnings, 2 notices`, or that there are none and of how many rules.
pub(crate) fn counts(audit: &Audit) -> String {
    match audit.findings.is_empty() {
        true => format!("none; {}", rules(audit)),
        false => found(audit),
    }
}

/// How a check of Nagios ends; the number is its exit code (Monitoring Plugins Development Guidelines, "Plugin Return Codes").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckStatus {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    /// What was asked could not be judged.
    Unknown = 3,
}

impl std::fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        })
    }
}

/// The findings in a line with performance data, the rules of those from `threshold` on by name:
/// `1 warning, 1 notice; interrupt-far (1); 22 rules: ... | critical=0 warning=1 notice=1 fact=0 rules_not_checked=4`.
pub fn check(audit: &Audit, threshold: Severity) -> (CheckStatus, String) {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in audit.findings.iter().filter(|it| it.severity >= threshold) {
        *named.entry(finding.rule).or_default() += 1;
    }
    let is_critical = of_severity(audit, Severity::Critical) > 0;
    let [checked, not_checked] = [
        audit.number(State::Found) + audit.number(State::NothingFound),
        audit.number(State::NotChecked),
    ];
    let status = match named.is_empty() {
        false if is_critical => CheckStatus::Critical,
        false => CheckStatus::Warning,
        true if checked == 0 && not_checked > 0 => CheckStatus::Unknown,
        true => CheckStatus::Ok,
    };
    let named = named
        .iter()
        .map(|(rule, number)| format!("{rule} ({number})"));
    let named: Vec<String> = named.collect();
    let mut line = match audit.findings.is_empty() {
        true => "no findings".to_owned(),
        false => found(audit),
    };
    if !named.is_empty() {
        line += &format!("; {}", named.join(", "));
    }
    line += &format!("; {} |", rules(audit));
    for severity in SEVERITIES {
        line += &format!(" {severity}={}", of_severity(audit, severity));
    }
    line += &format!(" rules_not_checked={not_checked}");
    (status, line)
}

const SEVERITIES: [Severity; 4] = [
    Severity::Critical,
    Severity::Warning,
    Severity::Notice,
    Severity::Fact,
];

fn of_severity(audit: &Audit, severity: Severity) -> usize {
    let findings = audit.findings.iter();
    findings.filter(|it| it.severity == severity).count()
}

/// `1 critical, 3 warnings, 2 notices`, or `none`.
fn found(audit: &Audit) -> String {
    let parts = SEVERITIES
        .into_iter()
        .filter_map(|severity| match of_severity(audit, severity) {
            0 => None,
            found => Some(number(severity, found)),
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
    let [found, nothing] = [State::Found, State::NothingFound].map(|it| audit.number(it));
    let all = count(audit.rules.len(), "rule");
    let mut text = format!("{all}: {found} with findings, {nothing} without");
    for (state, what) in [
        (State::NotChecked, "not checked"),
        (State::NotApplicable, "not applicable"),
    ] {
        if let number @ 1.. = audit.number(state) {
            text += &format!(", {number} {what}");
        }
    }
    match audit.number_in_part() {
        0 => text,
        number => text + &format!("; {number} checked in part"),
    }
}

/// `3 warnings`, `2 critical`.
pub(crate) fn number(severity: Severity, number: usize) -> String {
    match severity {
        Severity::Critical => format!("{number} critical"),
        _ => count(number, &severity.to_string()),
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
    let (rule, explanation) = (group.rule, explanation(group.rule));
    let text = Heading.text(format!("{rule}  {number}  {explanation}"));
    out.gap();
    out.indented(0, title, text);
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
    out.more(
        group.findings.len(),
        shown.sum(),
        " of this rule; --all has them",
    );
}

/// The findings that say the same: what they are about, one of them, what would fix it.
fn line(fold: &Fold<'_>, has_evidence: bool, out: &mut Document) {
    let (first, others) = (fold.findings[0], fold.findings.len() - 1);
    match fold.is_one_message() {
        true => out.paragraph(format!("{}: {}", fold.line, first.message)),
        false => {
            out.paragraph(format!("{}.", fold.line));
            let text = format!("{}: {}", first.subject, first.message);
            detail("first", text, out);
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
    let distance = plan::distance(finding.cost);
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
        let text = format!("{} = {}", fix.subject(), plan::value(fix));
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
        let rules = reasons.entry(&not_checked.reason).or_default();
        rules.push(not_checked.rule);
    }
    reasons
}

/// One line, and the findings it stands for.
pub(crate) struct Fold<'a> {
    pub(crate) line: String,
    pub(crate) cost: Option<DistanceChange>,
    pub(crate) findings: Vec<&'a Finding>,
}

impl Fold<'_> {
    /// Whether one message says it all.
    pub(crate) fn is_one_message(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.all(|it| it.message == self.findings[0].message)
    }
}

/// What folding has to look up, once for all rules.
pub(crate) struct Folder<'a> {
    machine: &'a Machine,
    localities: Localities<'a>,
    names: BTreeMap<PciAddress, String>,
    interrupts: BTreeMap<Irq, &'a Interrupt>,
}

/// What the findings of a line have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    Interrupts {
        device: PciAddress,
        nodes: Vec<NodeId>,
    },
    Transmit {
        interface: String,
    },
    Receive {
        interface: String,
    },
    /// The same words.
    Message(&'a str),
}

/// Most subjects of one message that a line names.
const MAX_SUBJECTS: usize = 2;

impl<'a> Folder<'a> {
    pub(crate) fn of(machine: &'a Machine) -> Self {
        let interrupts = machine.interrupts.get().into_iter().flatten();
        let interrupts = interrupts.map(|interrupt| (interrupt.irq, interrupt));
        let (localities, names) = (Localities::new(machine), names(machine));
        Self {
            machine,
            localities,
            names,
            interrupts: interrupts.collect(),
        }
    }

    /// The findings of a rule by what they have in common, in the order in which each line's first one comes.
    pub(crate) fn fold(&self, findings: &[&'a Finding]) -> Vec<Fold<'a>> {
        let figure = |distance: Option<Distance>| distance.map_or(0, |distance| distance.0);
        let mut places: BTreeMap<_, usize> = BTreeMap::new();
        let mut folds: Vec<(Key<'a>, Fold<'a>)> = Vec::new();
        for &finding in findings {
            let cost = finding.cost;
            let cost = cost.map(|cost| (figure(cost.now), figure(cost.after)));
            let place = *places.entry((self.key(finding), cost)).or_insert_with(|| {
                let fold = Fold {
                    line: String::new(),
                    cost: finding.cost,
                    findings: Vec::new(),
                };
                folds.push((self.key(finding), fold));
                folds.len() - 1
            });
            folds[place].1.findings.push(finding);
        }
        let named = folds.into_iter().map(|(key, fold)| Fold {
            line: self.line(&key, &fold.findings),
            ..fold
        });
        named.collect()
    }

    fn key(&self, finding: &'a Finding) -> Key<'a> {
        let key = match &finding.fix {
            Some(Change::Xps { interface, .. }) => Some(Key::Transmit {
                interface: interface.clone(),
            }),
            Some(Change::Rps { interface, .. }) => Some(Key::Receive {
                interface: interface.clone(),
            }),
            _ => interrupt(finding).and_then(|irq| self.interrupt_key(irq)),
        };
        key.unwrap_or(Key::Message(&finding.message))
    }

    fn interrupt_key(&self, irq: Irq) -> Option<Key<'a>> {
        let served = served(self.machine, &self.localities, self.interrupts.get(&irq)?)?;
        Some(Key::Interrupts {
            device: served.device,
            nodes: served.nodes.iter().collect(),
        })
    }

    fn line(&self, key: &Key<'_>, findings: &[&Finding]) -> String {
        let numbers = ranges(findings.iter().filter_map(|finding| queue_number(finding)));
        let all = |noun: &str| count(findings.len(), noun);
        match key {
            // A finding's own text names its subject better.
            _ if findings.len() == 1 => findings[0].subject.clone(),
            Key::Interrupts { device, nodes } => {
                let name = or(self.names.get(device), &device.to_string());
                let what = match findings.iter().all(|finding| self.is_of_queue(finding)) {
                    true => format!("{} of {name} (interrupts {numbers})", all("queue")),
                    false => format!("{} of {name} ({numbers})", all("interrupt")),
                };
                what + &self.nodes(*device, nodes)
            }
            Key::Transmit { interface } => {
                format!("{} of {interface} ({numbers})", all("transmit queue"))
            }
            Key::Receive { interface } => {
                format!("{} of {interface} ({numbers})", all("receive queue"))
            }
            Key::Message(_) => {
                let subjects = findings.iter().take(MAX_SUBJECTS);
                let subjects: Vec<&str> = subjects.map(|it| it.subject.as_str()).collect();
                match findings.len() - subjects.len() {
                    0 => subjects.join(" and "),
                    more => format!("{} and {more} more", subjects.join(", ")),
                }
            }
        }
    }

    fn is_of_queue(&self, finding: &Finding) -> bool {
        let interrupt = queue_number(finding).and_then(|irq| self.interrupts.get(&Irq(irq)));
        interrupt.is_some_and(|interrupt| interrupt.queue.is_some())
    }

    /// The nodes that serve a device's interrupts, and its own.
    fn nodes(&self, device: PciAddress, nodes: &[NodeId]) -> String {
        let served = match nodes {
            [] => String::new(),
            [node] => format!(" on node {node}"),
            many => format!(" on nodes {}", many.iter().copied().collect::<NodeSet>()),
        };
        let own = self.localities.of(device).node;
        served + &or(own.map(|node| format!(", device on node {node}")), "")
    }
}

/// The number of the interrupt or queue that a finding is about.
fn queue_number(finding: &Finding) -> Option<u32> {
    match &finding.fix {
        Some(Change::Xps { queue, .. } | Change::Rps { queue, .. }) => Some(*queue),
        _ => interrupt(finding).map(|irq| irq.0),
    }
}

/// The interrupt that a finding is about: of its fix, or the one in "interrupt 42 (nvme0q3)".
fn interrupt(finding: &Finding) -> Option<Irq> {
    if let Some(Change::InterruptAffinity { irq, .. }) = &finding.fix {
        return Some(*irq);
    }
    let number = finding.subject.strip_prefix("interrupt ")?;
    number.split(' ').next()?.parse().ok().map(Irq)
}
