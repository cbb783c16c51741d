//! Cache lines that vCPUs of a guest have got from each other, as the lab's plugin counts them.
//!
//! Both readings of an interval are late by the time that an answer takes, so their difference is the count of an interval of that
//! length.

use nearfar_experiment::LabHost;
use nearfar_machine::Machine;
use serde::{Deserialize, Serialize};

/// Line transfers of all vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LineTransfers {
    /// From another vCPU of the node.
    pub(crate) same_node: u64,
    /// From a vCPU of another node.
    pub(crate) other_node: u64,
}

impl LineTransfers {
    /// The host that counts them; `None` on a machine that is not a guest with delays.
    pub(crate) fn host(machine: &Machine) -> Option<LabHost> {
        machine.origin.emulation.as_ref()?.delays()?;
        Some(LabHost::default())
    }

    /// Those since the guest started, or why there are none.
    pub(crate) fn so_far(host: &LabHost) -> Result<Self, String> {
        let answer = host.ask("counts").map_err(|error| error.to_string())?;
        serde_json::from_str(&answer).map_err(|error| format!("{answer}: {error}"))
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            same_node: self.same_node.saturating_sub(before.same_node),
            other_node: self.other_node.saturating_sub(before.other_node),
        }
    }

    pub(crate) fn all(&self) -> u64 {
        self.same_node + self.other_node
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{Origin, SourceKind};

    use super::*;

    #[test]
    fn an_interval_has_what_came_in_between() {
        let [before, after]: [LineTransfers; 2] = serde_json::from_str(
            r#"[{"same_node":5,"other_node":20},{"same_node":7,"other_node":30}]"#,
        )
        .unwrap();
        assert_eq!(after.since(&before).all(), 12);
    }

    #[test]
    fn a_machine_without_delays_has_no_host_to_ask() {
        let machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        assert!(LineTransfers::host(&machine).is_none());
    }
}
