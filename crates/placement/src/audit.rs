//! What is far on a machine, rule by rule.
//!
//! ```text
//! Machine ──► Site      what several rules need, made once: rings of CPUs, interrupts by device, where devices are; where the source
//!              │        has a value that a rule names
//!              │
//!              ├─ devices      no node, node not online, node that differs from the firmware's; network cards of GPUs
//!              ├─ interrupts   far, sharing a CPU, on isolated CPUs, managed; which move where
//!              ├─ steering     XPS and RPS, judged against the interrupts as they will be
//!              ├─ nvme         policy and missing nodes
//!              ├─ tasks        memory elsewhere, cpusets, automatic NUMA balancing
//!              ├─ task_devices  far from a GPU, RDMA or VFIO device
//!              ├─ memory       nodes nearly full, huge pages elsewhere
//!              └─ system       nodes, distances, other writers, contradictions in the input
//! ```
//!
//! Every rule looks at each thing once: the cost grows with the machine, not with its square. A rule whose
//! input is unknown says so in [`Audit::not_checked`] and is never silently content.

mod devices;
mod interrupts;
mod memory;
mod nvme;
mod rules;
mod site;
mod steering;
mod system;
mod task_devices;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};

use nearfar_change::{Change, DistanceChange};
use nearfar_machine::{Distance, Known, Machine, PciAddress};
use serde::Serialize;

use crate::tasks::Remedy;
use site::Site;

pub use interrupts::{Serving, serving};
pub use rules::{RULES, Rule, rule, unknown_rule};
pub use site::pasteable;

/// What counts and from which size on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditOptions {
    /// Isolated and tickless CPUs may serve interrupts like any other.
    pub isolated_too: bool,
    /// Tasks with less memory than this are not judged, in bytes.
    pub task_bytes: u64,
    /// From this much locked and pinned memory on NUMA balancing costs a task more than it gains, in bytes.
    pub pinned_bytes: u64,
    /// The arguments that choose the machine, as a shell takes them: for commands in advice.
    pub source: String,
}

impl Default for AuditOptions {
    /// 64 MiB a task, 1 GiB pinned.
    fn default() -> Self {
        Self {
            isolated_too: false,
            task_bytes: 64 << 20,
            pinned_bytes: 1 << 30,
            source: String::new(),
        }
    }
}

/// What an audit found, and what it could not look at.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Audit {
    /// Most severe first, then in the order of [`RULES`].
    pub findings: Vec<Finding>,
    /// Rules that lacked something, with the reason. A rule that is in `checked`, too, was checked in part.
    pub not_checked: Vec<NotChecked>,
    /// Rules that looked at something, in the order of [`RULES`].
    pub checked: Vec<&'static str>,
    /// The state of each rule, in the order of [`RULES`].
    pub rules: Vec<RuleState>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct RuleState {
    pub rule: &'static str,
    /// Each rule has one.
    pub state: State,
    /// Its findings; none unless the state is `found`.
    pub findings: usize,
    /// Whether something that it should have looked at is unknown, although the state says that it looked.
    pub in_part: bool,
}

/// The states of a rule. They exclude each other, so the rules in them add up to all rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Found,
    /// Checked, without findings.
    NothingFound,
    /// What it needs is unknown; the reasons are in [`Audit::not_checked`].
    NotChecked,
    /// The machine has nothing that it is about, such as a distance between nodes where there is one node.
    NotApplicable,
}

impl State {
    pub const ALL: [Self; 4] = [
        Self::Found,
        Self::NothingFound,
        Self::NotChecked,
        Self::NotApplicable,
    ];

    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::NothingFound => "nothing-found",
            Self::NotChecked => "not-checked",
            Self::NotApplicable => "not-applicable",
        }
    }
}

impl Audit {
    pub fn number(&self, state: State) -> usize {
        self.rules.iter().filter(|rule| rule.state == state).count()
    }

    /// How many were checked, but not everywhere.
    pub fn number_in_part(&self) -> usize {
        self.rules.iter().filter(|rule| rule.in_part).count()
    }
}

/// A rule that could not be checked, or not everywhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NotChecked {
    pub rule: &'static str,
    /// What was missing and why; reads well after "not checked: ".
    pub reason: String,
}

/// Checks every rule of [`RULES`].
pub fn audit(machine: &Machine, options: &AuditOptions) -> Audit {
    let site = Site::new(machine, options);
    let mut ledger = Ledger::default();
    devices::check(&site, &mut ledger);
    let after = interrupts::check(&site, &mut ledger);
    steering::check(&site, &after, &mut ledger);
    nvme::check(&site, &mut ledger);
    tasks::check(&site, options, &mut ledger);
    task_devices::check(&site, options, &mut ledger);
    memory::check(&site, &mut ledger);
    devices::check_pairs(&site, &mut ledger);
    system::check(&site, &mut ledger);
    // Without any node listed nothing is known; that the rules say themselves.
    if machine.online_nodes().count() == 1 {
        match site.other_nodes_unknown() {
            None => ledger.not_applicable(rules::AMONG_NODES),
            Some(reason) => {
                for rule in rules::AMONG_NODES {
                    // What a rule says itself is as much and shorter.
                    if !ledger.lacks(rule) {
                        ledger.skip(&[rule], &reason);
                    }
                }
            }
        }
    }
    ledger.close()
}

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, costs nothing by itself.
    Fact,
    /// May cost, depending on the load.
    Notice,
    /// Costs whenever the device or task is used.
    Warning,
    /// The configuration cannot work as meant.
    Critical,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Fact => "fact",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Evidence {
    /// The file that was read, or the source and what says it there.
    pub file: String,
    pub value: String,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    pub rule: &'static str,
    /// How much it matters here.
    pub severity: Severity,
    /// What it is about: "interrupt 42 (nvme0q3)".
    pub subject: String,
    /// What is wrong, in short sentences with the figures.
    pub message: String,
    pub evidence: Vec<Evidence>,
    /// The distance now and after the fix, where it is about one.
    pub cost: Option<DistanceChange>,
    /// The change that fixes it, where nearfar has one.
    pub fix: Option<Change>,
    /// What the operator can do, or must know first.
    pub advice: Option<String>,
    /// What is right for a task whose memory is far, where enough is known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
    /// The rule's explanation: "docs/audit.md#rule-id".
    pub docs: String,
    /// The PCI function it is about, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<PciAddress>,
}

impl Finding {
    /// A finding of a rule, with the rule's severity.
    pub(crate) fn new(
        rule: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            rule,
            severity: rules::rule(rule).map_or(Severity::Notice, |rule| rule.severity),
            subject: subject.into(),
            message: message.into(),
            evidence: Vec::new(),
            cost: None,
            fix: None,
            advice: None,
            remedy: None,
            docs: format!("docs/audit.md#{rule}"),
            device: None,
        }
    }

    fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    pub(crate) fn evidence(mut self, file: impl Into<String>, value: impl Into<String>) -> Self {
        let evidence = Evidence {
            file: file.into(),
            value: value.into(),
        };
        // A description says two things with one key.
        if !self.evidence.contains(&evidence) {
            self.evidence.push(evidence);
        }
        self
    }

    pub(crate) fn cost(mut self, now: Option<Distance>, after: Option<Distance>) -> Self {
        self.cost = Some(DistanceChange { now, after });
        self
    }

    pub(crate) fn fix(mut self, change: Change) -> Self {
        self.fix = Some(change);
        self
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    pub(crate) fn device(mut self, device: PciAddress) -> Self {
        self.device = Some(device);
        self
    }
}

/// Collects findings; the same reason for many things is one entry that counts them.
#[derive(Default)]
struct Ledger {
    findings: Vec<Finding>,
    checked: BTreeSet<&'static str>,
    not_applicable: BTreeSet<&'static str>,
    skipped: BTreeMap<(usize, String), Things>,
}

#[derive(Default)]
struct Things {
    /// The first with its own reason, which may have a number in it that the reason of all leaves open.
    first: Option<(String, String)>,
    more: usize,
}

impl Ledger {
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub fn checked(&mut self, rules: &[&'static str]) {
        self.checked.extend(rules);
    }

    /// The machine has nothing that these rules are about.
    pub fn not_applicable(&mut self, rules: &[&'static str]) {
        self.not_applicable.extend(rules);
    }

    /// These rules could not be checked at all.
    pub fn skip(&mut self, rules: &[&'static str], reason: &str) {
        for rule in rules {
            let key = (position(rule), reason.to_owned());
            self.skipped.entry(key).or_default();
        }
    }

    /// A rule could not be checked for one thing. Reasons that differ in the thing's number only are one.
    pub fn skip_thing(&mut self, rule: &'static str, thing: impl FnOnce() -> String, reason: &str) {
        let things = self
            .skipped
            .entry((position(rule), without_numbers(reason)))
            .or_default();
        match things.first {
            None => things.first = Some((thing(), reason.to_owned())),
            Some(_) => things.more += 1,
        }
    }

    /// What is known; else these rules could not be checked.
    pub fn known<'a, T>(&mut self, known: &'a Known<T>, rules: &[&'static str]) -> Option<&'a T> {
        if let Some(reason) = known.unknown_reason() {
            self.skip(rules, reason);
        }
        known.get()
    }

    /// The same for rules that need nothing else: they are checked where it is known.
    pub fn need<'a, T>(&mut self, known: &'a Known<T>, rules: &[&'static str]) -> Option<&'a T> {
        let value = self.known(known, rules)?;
        self.checked(rules);
        Some(value)
    }

    /// Whether a finding so far meets a condition.
    pub fn any(&self, condition: impl Fn(&Finding) -> bool) -> bool {
        self.findings.iter().any(condition)
    }

    pub fn close(mut self) -> Audit {
        self.findings
            .sort_by_key(|finding| (std::cmp::Reverse(finding.severity), position(finding.rule)));
        let rules: Vec<RuleState> = RULES.iter().map(|rule| self.state(rule.id)).collect();
        let applies = |rule: usize| {
            rules
                .get(rule)
                .is_some_and(|rule| rule.state != State::NotApplicable)
        };
        let skipped = self
            .skipped
            .into_iter()
            .filter(|((rule, _), _)| applies(*rule));
        let not_checked = skipped.map(|((rule, reason), things)| NotChecked {
            rule: RULES.get(rule).map_or("", |rule| rule.id),
            reason: match (things.first, things.more) {
                (None, _) => reason,
                (Some((first, reason)), 0) => format!("{first}: {reason}"),
                (Some((first, _)), more) => format!("{first} and {more} more: {reason}"),
            },
        });
        let not_checked = not_checked.collect();
        let checked = |rule: &&RuleState| matches!(rule.state, State::Found | State::NothingFound);
        let checked = rules.iter().filter(checked).map(|rule| rule.rule).collect();
        Audit {
            findings: self.findings,
            not_checked,
            checked,
            rules,
        }
    }

    /// Whether something that a rule should look at is unknown.
    pub fn lacks(&self, rule: &str) -> bool {
        self.skipped.keys().any(|&(of, _)| of == position(rule))
    }

    /// The state of a rule: findings come before missing input.
    fn state(&self, rule: &'static str) -> RuleState {
        let findings = self
            .findings
            .iter()
            .filter(|finding| finding.rule == rule)
            .count();
        let lacks = self.lacks(rule);
        let state = match self.checked.contains(rule) {
            _ if findings > 0 => State::Found,
            _ if self.not_applicable.contains(rule) => State::NotApplicable,
            true => State::NothingFound,
            false if lacks => State::NotChecked,
            false => State::NotApplicable,
        };
        let in_part = lacks && matches!(state, State::Found | State::NothingFound);
        RuleState {
            rule,
            state,
            findings,
            in_part,
        }
    }
}

fn position(rule: &str) -> usize {
    RULES
        .iter()
        .position(|other| other.id == rule)
        .unwrap_or(RULES.len())
}

/// The reason with what numbers one of many things in its paths left open: `/proc/4711/numa_maps: permission denied` is
/// `/proc/PID/numa_maps: permission denied`, and `/sys/class/net/eth0/queues/tx-3/xps_cpus` is `.../tx-N/xps_cpus`.
pub(crate) fn without_numbers(reason: &str) -> String {
    let words = reason.split(' ').map(|word| match word.starts_with('/') {
        true => open_path(word),
        false => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn open_path(path: &str) -> String {
    let (mut open, mut above) = (Vec::new(), "");
    for part in path.split('/') {
        let name = part.trim_end_matches(|c: char| c.is_ascii_digit());
        open.push(match (part.len() - name.len(), name) {
            (1.., "") if above == "proc" => "PID".to_owned(),
            // The names of queues, nodes and CPUs; "eth0" and "nvme0" are few, and name what is meant.
            (1.., "" | "tx-" | "rx-" | "node" | "cpu") => format!("{name}N"),
            _ if part.parse::<PciAddress>().is_ok() => "DEVICE".to_owned(),
            _ => part.to_owned(),
        });
        above = part;
    }
    open.join("/")
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn numbers_of_paths_are_left_open_and_others_stay() {
        for (reason, open) in [
            (
                "/proc/4711/numa_maps: permission denied",
                "/proc/PID/numa_maps: permission denied",
            ),
            (
                "/proc/irq/24/smp_affinity_list: gone",
                "/proc/irq/N/smp_affinity_list: gone",
            ),
            (
                "cannot read /sys/bus/pci/devices/0000:81:00.0/numa_node",
                "cannot read /sys/bus/pci/devices/DEVICE/numa_node",
            ),
            (
                "/sys/class/net/eth0/queues/tx-3/xps_cpus: EIO",
                "/sys/class/net/eth0/queues/tx-N/xps_cpus: EIO",
            ),
            (
                "no effective_affinity_list before Linux 4.13",
                "no effective_affinity_list before Linux 4.13",
            ),
        ] {
            assert_eq!(without_numbers(reason), open);
        }
    }
}
