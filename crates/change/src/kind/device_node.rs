use std::io;

use nearfar_machine::{Machine, PciAddress};
use serde::{Deserialize, Serialize};

use crate::change::{Change, Owner, Planned, driver};
use crate::export::Writing;
use crate::kind::{ChangeError, Kind, Meaning};
use crate::owner::Seen;
use crate::system::System;

/// `/sys/bus/pci/devices/ADDRESS/numa_node`, a number, -1 for none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceNode {
    /// The PCI function.
    pub device: PciAddress,
}

impl Kind for DeviceNode {
    fn at(path: &[&str]) -> Option<Self> {
        let ["sys", "bus", "pci", "devices", device, _] = path else {
            return None;
        };
        let device = device.parse().ok()?;
        Some(Self { device })
    }

    fn path(&self) -> String {
        format!("/sys/bus/pci/devices/{}/numa_node", self.device)
    }

    fn check(&self) -> Result<(), ChangeError> {
        Ok(())
    }

    fn check_value(&self, planned: &Planned, _: &str) -> Result<(), ChangeError> {
        match &planned.change {
            Change::DeviceNode {
                rebind: Some(name), ..
            } => driver(name),
            _ => Ok(()),
        }
    }

    fn meaning(&self, text: &str) -> Option<Meaning> {
        text.parse().ok().map(Meaning::Number)
    }

    fn subject(&self, _: &Change) -> String {
        format!("{} numa_node", self.device)
    }

    fn caution(&self) -> Option<&'static str> {
        Some(
            "writing numa_node taints the kernel (TAINT_FIRMWARE_WORKAROUND), and the driver keeps the old node until \
             it is bound again",
        )
    }

    fn before(&self, machine: &Machine) -> Option<String> {
        let node = machine.pci_device(self.device)?.node.get()?;
        Some(node.map_or_else(|| "-1".to_owned(), |node| node.to_string()))
    }

    fn owner(&self, machine: &Machine) -> Option<Owner> {
        Some(Owner::of_function(machine, self.device))
    }

    fn observe(&self, _: &dyn System, _: &Owner, _: bool) -> Seen {
        Seen::of(Owner {
            device: Some(self.device),
            ..Owner::default()
        })
    }

    fn is_identified(&self, expected: &Owner, seen: &Owner) -> bool {
        expected.pci_id.is_some() && seen.pci_id.is_some()
    }

    fn gone(&self) -> &'static str {
        "there is no such device"
    }

    fn refused(&self, error: &io::Error) -> &'static str {
        match error.raw_os_error() {
            Some(libc::EINVAL) => " (the node is not online)",
            _ => "",
        }
    }

    fn note(&self, change: &Change, tree: bool) -> Option<String> {
        match change {
            Change::DeviceNode {
                rebind: Some(driver),
                ..
            } => tree
                .then(|| format!("driver {driver} was not bound again: this is a directory tree")),
            _ => Some(
                "the driver keeps the node it was bound with until it is bound again".to_owned(),
            ),
        }
    }

    fn udev(&self, writing: &Writing<'_>) -> String {
        let (device, value) = (self.device, &writing.value);
        format!(
            "ACTION==\"add\", SUBSYSTEM==\"pci\", KERNEL==\"{device}\", ATTR{{numa_node}}=\"{value}\"\n"
        )
    }
}
