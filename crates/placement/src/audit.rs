//! What is far on a machine, rule by rule.
//!
//! ```text
//! Machine ──► Site      what several rules need, made once: rings of CPUs, interrupts by device, where devices are
//!              │
//!              ├─ devices      no node, node not online, node that differs from the firmware's
//!              ├─ interrupts   far, sharing a CPU, on isolated CPUs, managed      assignment: which move where
//!              ├─ steering     XPS and RPS, judged against the interrupts as they will be
//!              ├─ nvme         policy and missing nodes
//!              ├─ tasks        memory elsewhere, cpusets, automatic NUMA balancing
//!              ├─ memory       nodes nearly full, huge pages elsewhere
//!              ├─ pairs        network cards of GPUs and disks
//!              └─ system       nodes, distances, other writers, contradictions in the input
//!
//! evidence                     where the source has a value that a rule names
//! ```
//!
//! Every rule looks at each thing once: the cost grows with the machine, not with its square. A rule whose
//! input is unknown says so in [`Audit::not_checked`] and is never silently content.

mod assignment;
mod devices;
mod evidence;
mod finding;
mod interrupts;
mod ledger;
mod memory;
mod nvme;
mod pairs;
mod rules;
mod site;
mod steering;
mod system;
mod task_memory;
mod tasks;

use nearfar_machine::Machine;
use serde::Serialize;

pub use finding::{Evidence, Finding, Severity};
pub use interrupts::{Serving, serving};
pub use rules::{RULES, Rule, rule, unknown_rule};

use ledger::Ledger;
use site::Site;
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
    memory::check(&site, &mut ledger);
    pairs::check(&site, &mut ledger);
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
