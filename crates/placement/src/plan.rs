//! From findings to a plan: which changes are made, in which order, and what is left alone.
//!
//! ```text
//! devices' nodes ─► interrupts ─► XPS ─► RPS ─► NVMe policies ─► sysctls
//!  what they say      these           these
//!  decides where ─►   decide ─►       follow
//! ```
//!
//! Five things are planned only when asked for by name: overriding a device's node (it taints the kernel), an NVMe
//! policy (a trade-off that wants measuring), sysctls (they hold for the whole system), and moving the memory of a process
//! or a control group (it slows the processes down meanwhile). Until then they are listed as left alone.

use std::collections::{BTreeSet, HashSet};

use nearfar_change::{
    Change, LeftAlone, MoveEstimate, NearestCpus, NodeCpus, PLAN_FORMAT, Plan, Planned, Setting,
};
use nearfar_machine::{
    IoPolicy, Known, Machine, NOT_ASKED_FOR, NodeId, NvmeSubsystem, PciAddress, alternatives,
};

use crate::audit::{Audit, Finding, State, rule};
use crate::near;
use crate::tasks::{Action, Remedy};

const NVME: &str = "nvme-far-path";
const MANAGED: &str = "managed-interrupt";
const WRITER: &str = "competing-writer";
const FAR: &str = "task-memory-far";

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlanOptions {
    /// Also override the node of devices the kernel has none for.
    pub device_node_override: bool,
    /// Only what these rules found; all of them when `None`. Naming a rule also allows the changes that are otherwise
    /// left alone because they hold for the whole system.
    pub rules: Option<Vec<String>>,
    /// Only changes that belong to these PCI devices; all of them when `None`.
    pub devices: Option<Vec<PciAddress>>,
    pub not_devices: Vec<PciAddress>,
    /// The I/O policy to give to each NVMe subsystem that the audit has a finding for.
    pub iopolicy: Option<IoPolicy>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanOptionsError {
    #[error(transparent)]
    Rule(#[from] UnknownRule),
    #[error("there is no PCI device {address} in this machine; {}", alternatives(&address.to_string(), .known))]
    Device {
        address: PciAddress,
        known: Vec<String>,
    },
    #[error("PCI device {address} cannot be found: which devices there are is unknown: {reason}")]
    DevicesNotKnown { address: PciAddress, reason: String },
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", crate::audit::unknown_rule(.0))]
pub struct UnknownRule(pub String);

/// Whether every rule exists; the machine need not be known.
///
/// # Errors
/// Names the first that does not, and those there are.
pub fn check_rules<'a>(ids: impl IntoIterator<Item = &'a String>) -> Result<(), UnknownRule> {
    match ids.into_iter().find(|id| rule(id).is_none()) {
        Some(unknown) => Err(UnknownRule(unknown.clone())),
        None => Ok(()),
    }
}

impl PlanOptions {
    /// Whether every rule and device that the options name exists: in [`plan`] an unknown one selects nothing.
    ///
    /// # Errors
    /// Names the first that does not, and those there are.
    pub fn check(&self, machine: &Machine) -> Result<(), PlanOptionsError> {
        check_rules(self.rules.iter().flatten())?;
        let unknown = |address: &&PciAddress| machine.pci_device(**address).is_none();
        match (
            self.devices
                .iter()
                .flatten()
                .chain(&self.not_devices)
                .find(unknown),
            &machine.pci,
        ) {
            (None, _) => Ok(()),
            (Some(&address), Known::Yes(devices)) => {
                let known = devices
                    .iter()
                    .map(|device| device.address.to_string())
                    .collect();
                Err(PlanOptionsError::Device { address, known })
            }
            (Some(&address), Known::No { unknown_reason }) => {
                Err(PlanOptionsError::DevicesNotKnown {
                    address,
                    reason: unknown_reason.to_string(),
                })
            }
        }
    }

    fn names_rule(&self, id: &str) -> bool {
        self.rules.iter().flatten().any(|named| named == id)
    }

    fn wants_rule(&self, id: &str) -> bool {
        self.rules.is_none() || self.names_rule(id)
    }
}

/// The typed changes that fix what an audit of this machine found.
pub fn plan(machine: &Machine, audit: &Audit, options: &PlanOptions) -> Plan {
    let mut draft = Draft {
        machine,
        options,
        planned: Vec::new(),
        left_alone: Vec::new(),
        seen: HashSet::new(),
        unmoved: unmoved(audit, options),
    };
    for finding in audit
        .findings
        .iter()
        .filter(|finding| takes(machine, options, finding))
    {
        draft.take(finding);
    }
    // In the order of kinds: what later ones are judged by comes first.
    draft
        .planned
        .sort_by_cached_key(|it| Setting::of(&it.change));
    let lacks_input = |rule: &'static str| {
        let mut reasons = audit.not_checked.iter();
        options.wants_rule(rule) && reasons.any(|it| it.rule == rule && it.reason != NOT_ASKED_FOR)
    };
    let rules = audit.rules.iter();
    let not_checked = rules.filter(|it| it.state == State::NotChecked && lacks_input(it.rule));
    Plan {
        left_alone: draft.left_alone,
        not_checked: not_checked.map(|it| it.rule.to_owned()).collect(),
        ..of_changes(machine, draft.planned)
    }
}

/// A plan of changes that were asked for, for this machine.
pub fn of_changes(machine: &Machine, changes: Vec<Planned>) -> Plan {
    Plan {
        plan_format: PLAN_FORMAT,
        host: machine.origin.host.clone(),
        boot: machine.origin.boot.clone(),
        nodes: nodes(machine),
        nearest: nearest(machine, &changes),
        changes,
        left_alone: Vec::new(),
        not_checked: Vec::new(),
    }
}

struct Draft<'a> {
    machine: &'a Machine,
    options: &'a PlanOptions,
    planned: Vec<Planned>,
    left_alone: Vec<LeftAlone>,
    seen: HashSet<Setting>,
    unmoved: HashSet<PciAddress>,
}

/// Devices with interrupts that should move and that the options leave where they are.
fn unmoved(audit: &Audit, options: &PlanOptions) -> HashSet<PciAddress> {
    let moves = |finding: &&Finding| matches!(finding.fix, Some(Change::InterruptAffinity { .. }));
    let left = audit
        .findings
        .iter()
        .filter(moves)
        .filter(|finding| !options.wants_rule(finding.rule));
    left.filter_map(|finding| finding.device).collect()
}

impl Draft<'_> {
    fn take(&mut self, finding: &Finding) {
        match &finding.fix {
            Some(Change::DeviceNode { .. }) if !self.options.device_node_override => self.leave(
                finding,
                "overriding a device's node taints the kernel and stops the device for a moment: only with --override-device-node",
            ),
            // XPS was judged against the interrupts as they would be.
            Some(Change::Xps { .. }) if finding.device.is_some_and(|device| self.unmoved.contains(&device)) => self
                .leave(
                    finding,
                    "it follows interrupts that this plan leaves where they are far: take the interrupt rules in, too",
                ),
            Some(change) => match Setting::of(change).only_by_rule() {
                Some(reason) if !self.options.names_rule(finding.rule) => {
                    let reason = format!("{reason}: only with --rule {}", finding.rule);
                    self.leave(finding, &reason);
                }
                _ => self.plan(finding, change.clone()),
            },
            // What to do instead, or why nothing.
            None if finding.rule == FAR => {
                let reason = finding.advice.as_deref().unwrap_or("no remedy is known");
                self.leave(finding, reason);
            }
            None if finding.rule == NVME => self.policy(finding),
            None if finding.rule == MANAGED => self.leave(finding, "the kernel alone places managed interrupts"),
            None if finding.rule == WRITER => {
                let reason = finding.advice.as_deref().unwrap_or("it writes the same settings");
                self.leave(finding, reason);
            }
            None => {}
        }
    }

    fn leave(&mut self, finding: &Finding, reason: &str) {
        self.left_alone.push(LeftAlone {
            subject: finding.subject.clone(),
            rule: finding.rule.to_owned(),
            reason: reason.to_owned(),
        });
    }

    fn plan(&mut self, finding: &Finding, change: Change) {
        // Two rules may want the same file; the more severe one came first.
        let setting = Setting::of(&change);
        if !self.seen.insert(setting.clone()) {
            return;
        }
        self.planned.push(Planned {
            before: setting.before(self.machine),
            owner: setting.owner(self.machine),
            change,
            rule: finding.rule.to_owned(),
            reason: reason_of(finding),
            distance: finding.cost,
            estimate: estimate(finding).cloned(),
        });
    }

    /// A policy is changed to the one asked for and never to one nearfar prefers.
    fn policy(&mut self, finding: &Finding) {
        let Some(wanted) = &self.options.iopolicy else {
            return self.leave(
                finding,
                "which policy is faster depends on the load: only with --iopolicy",
            );
        };
        let Some(subsystem) = subsystem_of(self.machine, finding) else {
            return;
        };
        if subsystem.iopolicy.get() != Some(wanted) {
            let change = Change::NvmeIoPolicy {
                subsystem: subsystem.name.clone(),
                policy: wanted.clone(),
            };
            // The distances of the finding are those of its own policy, not of the one asked for.
            self.plan(
                &Finding {
                    cost: None,
                    ..finding.clone()
                },
                change,
            );
        }
    }
}

/// The CPUs of each online node that has some.
fn nodes(machine: &Machine) -> Vec<NodeCpus> {
    let all = machine.online_nodes().map(|node| NodeCpus {
        node: node.id,
        cpus: machine
            .cpus
            .iter()
            .filter(|cpu| cpu.is_online() && cpu.node == Some(node.id))
            .map(|cpu| cpu.id)
            .collect(),
    });
    all.filter(|node| !node.cpus.is_empty()).collect()
}

/// For each node that an interrupt is brought near to: all usable CPUs, nearest first.
fn nearest(machine: &Machine, planned: &[Planned]) -> Vec<NearestCpus> {
    let near = |planned: &Planned| match planned.change {
        Change::InterruptAffinity { near, .. } => near,
        _ => None,
    };
    let nodes: BTreeSet<NodeId> = planned.iter().filter_map(near).collect();
    let usable = machine.cpu_states.housekeeping();
    let list = |node| {
        let rings = near::rings(machine, Some(node), &usable);
        NearestCpus {
            node,
            cpus: rings.iter().flat_map(|ring| ring.cpus.iter()).collect(),
        }
    };
    nodes.into_iter().map(list).collect()
}

/// Whether the options take a finding up.
pub(crate) fn takes(machine: &Machine, options: &PlanOptions, finding: &Finding) -> bool {
    let about = devices(machine, finding);
    let listed = |list: &[PciAddress]| about.iter().any(|device| list.contains(device));
    // Another writer concerns whatever the plan is about.
    let chosen = options
        .devices
        .as_deref()
        .is_none_or(|only| listed(only) || finding.rule == WRITER);
    options.wants_rule(finding.rule) && chosen && !listed(&options.not_devices)
}

/// The part of an audit that the options name: their rules, and what is found about their devices.
pub fn narrow(machine: &Machine, mut audit: Audit, options: &PlanOptions) -> Audit {
    audit
        .findings
        .retain(|finding| takes(machine, options, finding));
    audit.not_checked.retain(|not| options.wants_rule(not.rule));
    audit.checked.retain(|rule| options.wants_rule(rule));
    audit.rules.retain(|state| options.wants_rule(state.rule));
    for state in &mut audit.rules {
        let of_rule = audit.findings.iter().filter(|it| it.rule == state.rule);
        state.findings = of_rule.count();
        if state.state == State::Found && state.findings == 0 {
            state.state = State::NothingFound;
        }
    }
    audit
}

/// The PCI functions a finding is about: one, or every controller of a subsystem.
fn devices(machine: &Machine, finding: &Finding) -> Vec<PciAddress> {
    let controllers = || {
        subsystem_of(machine, finding)
            .into_iter()
            .flat_map(|subsystem| &subsystem.controllers)
    };
    match finding.rule {
        NVME => controllers()
            .filter_map(|controller| controller.device)
            .collect(),
        _ => finding.device.into_iter().collect(),
    }
}

/// The NVMe subsystem a finding is about: the one in "nvme-subsys0 (nvme0n1)".
fn subsystem_of<'a>(machine: &'a Machine, finding: &Finding) -> Option<&'a NvmeSubsystem> {
    machine.nvme_subsystem(finding.subject.split(' ').next()?)
}

/// What a plan needs in addition to the findings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    Nothing,
    /// `device_node_override`
    DeviceNodeOverride,
    /// `iopolicy`: round-robin, to be compared.
    IoPolicy,
}

/// The least that has to be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The rule to name; `None` where all rules together give changes.
    pub rule: Option<String>,
    pub needs: Needs,
}

/// How to get changes for what a rule found, or any rule; `None` where nothing does. Some changes are planned only where their
/// rule is named.
pub fn proposal(machine: &Machine, audit: &Audit, rule: Option<&str>) -> Option<Proposal> {
    let options = PlanOptions {
        rules: rule.map(|rule| vec![rule.to_owned()]),
        ..PlanOptions::default()
    };
    let overriding = PlanOptions {
        device_node_override: true,
        ..options.clone()
    };
    let policy = PlanOptions {
        iopolicy: Some(IoPolicy::RoundRobin),
        ..options.clone()
    };
    let mut ways = [
        (Needs::Nothing, options),
        (Needs::DeviceNodeOverride, overriding),
        (Needs::IoPolicy, policy),
    ]
    .into_iter();
    let found = ways.find(|(_, options)| !plan(machine, audit, options).changes.is_empty());
    match (found, rule) {
        (Some((needs, _)), rule) => Some(Proposal {
            rule: rule.map(str::to_owned),
            needs,
        }),
        (None, None) => {
            let fixed = audit.findings.iter().filter(|it| it.fix.is_some());
            let mut rules = fixed.map(|finding| finding.rule);
            rules.find_map(|rule| proposal(machine, audit, Some(rule)))
        }
        (None, Some(_)) => None,
    }
}

pub(crate) fn estimate(finding: &Finding) -> Option<&MoveEstimate> {
    finding.remedy.as_ref()?.estimate.as_ref()
}

fn reason_of(finding: &Finding) -> String {
    let mut reason = format!("{}: {}", finding.subject, finding.message);
    if let Some(estimate) = estimate(finding) {
        reason.push_str(&format!(" {estimate}"));
    }
    // The plan moves the memory only, the task has to go first.
    let is_both = |remedy: &Remedy| remedy.action == Action::MoveBoth;
    if let (true, Some(advice)) = (
        finding.remedy.as_ref().is_some_and(is_both),
        &finding.advice,
    ) {
        reason.push_str(&format!(" {advice}"));
    }
    reason
}
