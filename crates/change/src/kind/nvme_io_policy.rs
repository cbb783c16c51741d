use std::io;

use nearfar_machine::Machine;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Owner, Planned, word};
use crate::export::Writing;
use crate::kind::{ChangeError, Kind};
use crate::owner::Seen;
use crate::system::{System, first_line};

/// `/sys/class/nvme-subsystem/NAME/iopolicy`, a word.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeIoPolicy {
    /// The kernel's name of the subsystem.
    pub subsystem: String,
}

impl Kind for NvmeIoPolicy {
    fn at(path: &[&str]) -> Option<Self> {
        let ["sys", "class", "nvme-subsystem", subsystem, _] = path else {
            return None;
        };
        let subsystem = (*subsystem).to_owned();
        Some(Self { subsystem })
    }

    fn path(&self) -> String {
        format!("/sys/class/nvme-subsystem/{}/iopolicy", self.subsystem)
    }

    fn check(&self) -> Result<(), ChangeError> {
        let name = &self.subsystem;
        let number = name.strip_prefix("nvme-subsys").unwrap_or_default();
        let is_good =
            (1..=10).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        ChangeError::unless(is_good, || {
            format!("{name:.64?} is not an NVMe subsystem such as nvme-subsys0")
        })
    }

    fn check_value(&self, _: &Planned, value: &str) -> Result<(), ChangeError> {
        word(value, "I/O policy", b"-")
    }

    fn subject(&self, _: &Change) -> String {
        format!("{} iopolicy", self.subsystem)
    }

    fn before(&self, machine: &Machine) -> Option<String> {
        let subsystem = machine.nvme_subsystem(&self.subsystem)?;
        Some(subsystem.iopolicy.get()?.as_str().to_owned())
    }

    fn owner(&self, machine: &Machine) -> Option<Owner> {
        let nqn = machine.nvme_subsystem(&self.subsystem)?.nqn.clone();
        Some(Owner {
            nqn,
            ..Owner::default()
        })
    }

    fn observe(&self, system: &dyn System, _: &Owner, _: bool) -> Seen {
        let directory = format!("/sys/class/nvme-subsystem/{}", self.subsystem);
        let nqn = first_line(system, &format!("{directory}/subsysnqn"));
        Seen::of(Owner {
            nqn,
            ..Owner::default()
        })
    }

    fn is_identified(&self, expected: &Owner, seen: &Owner) -> bool {
        expected.nqn.is_some() && seen.nqn.is_some()
    }

    fn gone(&self) -> &'static str {
        "there is no such subsystem, or native multipath is off"
    }

    fn refused(&self, error: &io::Error) -> &'static str {
        match error.raw_os_error() {
            Some(libc::EINVAL) => " (this kernel knows no such policy)",
            _ => "",
        }
    }

    fn udev(&self, writing: &Writing<'_>) -> String {
        let value = &writing.value;
        // The number of a subsystem is given out in the order in which disks answer; its NQN is its own.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b".:_-".contains(&b);
        let nqn = writing.owner().nqn;
        let nqn = nqn.filter(|nqn| !nqn.is_empty() && nqn.bytes().all(plain));
        let which = nqn.map_or_else(
            || format!("KERNEL==\"{}\"", self.subsystem),
            |nqn| format!("ATTR{{subsysnqn}}==\"{nqn}\""),
        );
        format!(
            "ACTION==\"add|change\", SUBSYSTEM==\"nvme-subsystem\", {which}, ATTR{{iopolicy}}=\"{value}\"\n"
        )
    }
}
