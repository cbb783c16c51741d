//! The factor `plan`: a cell is measured with the changes that `nearfar plan` has for a device, or without them.

use nearfar_change::{LeftAlone, Plan};
use nearfar_experiment::{Cell, Change};
use nearfar_machine::{Machine, PciAddress};
use nearfar_placement::audit::{self, AuditOptions};
use nearfar_placement::plan::{self, PlanOptions};
use serde::Serialize;

use crate::registry::Varied;

/// The factor's name.
pub(crate) const PLAN: &str = "plan";
/// The level without changes.
pub(crate) const BEFORE: &str = "before";
/// The level with them.
pub(crate) const AFTER: &str = "after";

/// The factor, for a declaration.
pub(crate) const FACTOR: Varied = Varied::new(PLAN, &[BEFORE, AFTER], &[BEFORE]);

/// The option whose value is [`PlannedChanges::new`]'s last one.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[group(skip)]
pub(crate) struct Parameters {
    /// plan=after also overrides the node of a device that the kernel puts on none; it taints the kernel
    #[arg(long)]
    pub(crate) override_device_node: bool,
}

/// What a placement plan changes for some devices.
#[derive(Clone, Debug)]
pub(crate) struct PlannedChanges {
    changes: Vec<Change>,
    left_alone: Vec<LeftAlone>,
}

impl PlannedChanges {
    /// The plan for these devices of a machine that was read with its devices and interrupts.
    pub(crate) fn new(machine: &Machine, devices: &[PciAddress], is_node_overridden: bool) -> Self {
        let audit = audit::audit(machine, &AuditOptions::default());
        let options = PlanOptions {
            device_node_override: is_node_overridden,
            devices: Some(devices.to_vec()),
            ..PlanOptions::default()
        };
        let Plan {
            changes,
            left_alone,
            ..
        } = plan::plan(machine, &audit, &options);
        Self {
            changes: changes.into_iter().map(|planned| planned.change).collect(),
            left_alone,
        }
    }

    /// The settings of a cell: the changes where its level is `after`, else none.
    pub(crate) fn settings(&self, cell: &Cell) -> Vec<Change> {
        match cell.text(PLAN) == AFTER {
            true => self.changes.clone(),
            false => Vec::new(),
        }
    }

    /// Whether the level `after` is as `before`.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// What the level `after` does not change, in sentences.
    pub(crate) fn notes(&self) -> Vec<String> {
        let left = self.left_alone.iter();
        let note =
            |it: &LeftAlone| format!("plan=after leaves {} alone: {}", it.subject, it.reason);
        left.map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gallery(name: &str) -> Machine {
        let want = nearfar_sources::Want::audit();
        let request = nearfar_sources::Request {
            sources: vec![name.to_owned()],
            ..nearfar_sources::Request::live(want)
        };
        nearfar_sources::read(&request).unwrap()
    }

    #[test]
    fn only_after_has_the_changes_of_the_plan() {
        let machine = gallery("x86-case1");
        let devices: Vec<PciAddress> = machine.functions_named("nvme-subsys0");
        assert!(!devices.is_empty(), "{:?}", machine.device_names());
        let planned = PlannedChanges::new(&machine, &devices, true);
        let cell = |level: &str| Cell::new().with(PLAN, level);
        assert!(planned.settings(&cell(BEFORE)).is_empty());
        let after = planned.settings(&cell(AFTER));
        assert!(
            after
                .iter()
                .any(|change| matches!(change, Change::DeviceNode { .. })),
            "{after:?}"
        );
        let without = PlannedChanges::new(&machine, &devices, false);
        assert!(without.is_empty() && without.settings(&cell(AFTER)).is_empty());
        assert!(
            without
                .notes()
                .iter()
                .any(|note| note.contains("taints the kernel"))
        );
    }
}
