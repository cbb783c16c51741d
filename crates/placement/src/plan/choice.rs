//! Which findings a plan takes up: by rule, and by the devices they are about.

use nearfar_machine::{Machine, NvmeSubsystem, PciAddress};

use super::{NVME, PlanOptions, WRITER};
use crate::audit::Finding;

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
    subsystem(machine, finding.subject.split(' ').next()?)
}

pub(super) fn subsystem<'a>(machine: &'a Machine, name: &str) -> Option<&'a NvmeSubsystem> {
    machine
        .nvme
        .get()?
        .iter()
        .find(|subsystem| subsystem.name == name)
}
