use std::io;

use nearfar_machine::NodeSet;
use serde::{Deserialize, Serialize};

use super::{ChangeError, Kind, Meaning, check_group};
use crate::change::{Change, Owner, Planned};
use crate::cpuset_memory;
use crate::export::Writing;
use crate::outcome::Effective;
use crate::system::System;

/// `/sys/fs/cgroup/GROUP/cpuset.mems`, a node list; empty for the nodes of the group above.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpusetMemory {
    /// The control group.
    pub group: String,
}

impl Kind for CpusetMemory {
    fn at(path: &[&str]) -> Option<Self> {
        let ["sys", "fs", "cgroup", group @ .., "cpuset.mems"] = path else {
            return None;
        };
        let group = group.join("/");
        Some(Self { group })
    }

    fn path(&self) -> String {
        format!("/sys/fs/cgroup/{}/cpuset.mems", self.group)
    }

    fn check(&self) -> Result<(), ChangeError> {
        check_group(&self.group)
    }

    fn check_value(&self, _: &Planned, value: &str) -> Result<(), ChangeError> {
        ChangeError::unless(!value.is_empty(), || {
            let group = &self.group;
            format!("control group {group:.64?} would have no node to have memory on")
        })
    }

    fn meaning(&self, text: &str) -> Option<Meaning> {
        NodeSet::parse_list(text).ok().map(Meaning::Nodes)
    }

    fn shown(&self, text: &str) -> String {
        match text {
            "" => "not set".to_owned(),
            text => text.to_owned(),
        }
    }

    fn subject(&self, _: &Change) -> String {
        format!("memory nodes of {}", self.group)
    }

    fn caution(&self) -> Option<&'static str> {
        Some(
            "the kernel moves what the group's tasks have on other nodes, shared pages as well, before the write ends (Linux \
             5.15); rollback restores the nodes and moves nothing back: --memory does",
        )
    }

    fn only_by_rule(&self) -> Option<String> {
        Some("the kernel moves the memory of the group meanwhile".to_owned())
    }

    fn is_identified(&self, _: &Owner, _: &Owner) -> bool {
        true
    }

    fn gone(&self) -> &'static str {
        "there is no such control group, or it has no cpuset controller"
    }

    fn refused(&self, error: &io::Error) -> &'static str {
        match error.raw_os_error() {
            Some(libc::EINVAL) => {
                " (a node that there cannot be, or a group below uses nodes outside)"
            }
            _ => "",
        }
    }

    fn effective(&self, system: &dyn System, _: &str) -> Option<Effective> {
        Some(match cpuset_memory::effective(system, &self.group) {
            Ok(nodes) => Effective::Nodes {
                nodes: nodes.to_string(),
            },
            Err(error) => Effective::NotKnown {
                reason: error.to_string(),
            },
        })
    }

    // systemd keeps the value where it starts the unit again, and enables the cpuset controller for it.
    fn command(&self, writing: &Writing<'_>) -> Result<String, &'static str> {
        let value = &writing.value;
        Ok(match unit_of(&self.group) {
            Some(unit) => {
                format!("systemctl set-property --runtime '{unit}' AllowedMemoryNodes={value}")
            }
            None => format!("echo '{value}' > '{}'", writing.file),
        })
    }
}

/// The unit that a control group is of; none for the groups that the unit makes below its own.
fn unit_of(group: &str) -> Option<&str> {
    let name = group.rsplit('/').next()?;
    let is_unit = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"]
        .iter()
        .any(|kind| name.ends_with(kind));
    is_unit.then_some(name)
}
