//! Which findings a plan takes up: by rule, and by the devices they are about.

use nearfar_machine::{Machine, NvmeSubsystem, PciAddress};

use super::{NVME, PlanOptions, WRITER};
use crate::audit::{Audit, Finding, State};

/// Whether the options take a finding up.
pub(super) fn takes(machine: &Machine, options: &PlanOptions, finding: &Finding) -> bool {
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
pub(super) fn subsystem_of<'a>(
    machine: &'a Machine,
    finding: &Finding,
) -> Option<&'a NvmeSubsystem> {
    machine.nvme_subsystem(finding.subject.split(' ').next()?)
}
