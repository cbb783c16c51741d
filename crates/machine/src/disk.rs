//! Block devices by the names that Linux gives them.

use serde::{Deserialize, Serialize};

use crate::NvmeController;
use crate::id::PciAddress;
use crate::machine::Machine;

/// A disk below a PCI function: `sda`, `vda`. Namespaces of NVMe subsystems have several paths and are listed
/// [there](crate::NvmeSubsystem).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Disk {
    /// The kernel's name, without `/dev/`.
    pub name: String,
    /// The innermost PCI function above it.
    pub device: PciAddress,
}

impl Machine {
    /// The names that Linux has for what a PCI function serves: disks, network interfaces, the namespaces of its
    /// NVMe controllers and [`OsDevice`](crate::OsDevice)s, each once and in order.
    pub fn names_on(&self, address: PciAddress) -> Vec<&str> {
        let disks = self
            .disks
            .iter()
            .filter(|disk| disk.device == address)
            .map(|disk| disk.name.as_str());
        let networks = self.networks.get().into_iter().flatten();
        let networks = networks
            .filter(|network| network.device == Some(address))
            .map(|network| network.name.as_str());
        let others = self.os_devices.iter().filter(|it| it.device == address);
        let others = others.map(|other| other.name.as_str());
        let mut names: Vec<&str> = disks.chain(networks).chain(others).collect();
        for subsystem in self.nvme.get().into_iter().flatten() {
            let own: Vec<_> = subsystem
                .controllers
                .iter()
                .filter(|controller| controller.device == Some(address))
                .collect();
            let serves = |path: &crate::NvmePath| {
                own.iter()
                    .any(|controller| controller.name == path.controller)
            };
            let served = subsystem
                .namespaces
                .iter()
                .filter(|namespace| namespace.paths.iter().any(serves));
            names.extend(served.map(|namespace| namespace.name.as_str()));
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The names that [`Machine::functions_named`] knows, besides addresses: each once and in order.
    pub fn device_names(&self) -> Vec<&str> {
        let disks = self.disks.iter().map(|disk| disk.name.as_str());
        let networks = self.networks.get().into_iter().flatten();
        let networks = networks
            .filter(|network| network.device.is_some())
            .map(|network| network.name.as_str());
        let others = self.os_devices.iter().map(|other| other.name.as_str());
        let mut names: Vec<&str> = disks.chain(networks).chain(others).collect();
        for subsystem in self.nvme.get().into_iter().flatten() {
            names.push(&subsystem.name);
            names.extend(
                subsystem
                    .controllers
                    .iter()
                    .map(|controller| controller.name.as_str()),
            );
            names.extend(
                subsystem
                    .namespaces
                    .iter()
                    .map(|namespace| namespace.name.as_str()),
            );
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The PCI functions that a name stands for: an address (`41:00.0`), a disk (`vda`, `/dev/sda`), a network interface,
    /// an [`OsDevice`](crate::OsDevice), an NVMe controller, namespace or subsystem. Empty where the machine has nothing of that name.
    pub fn functions_named(&self, name: &str) -> Vec<PciAddress> {
        if let Ok(address) = name.parse() {
            return self
                .pci_device(address)
                .map(|device| device.address)
                .into_iter()
                .collect();
        }
        let name = name.strip_prefix("/dev/").unwrap_or(name);
        let disks = self
            .disks
            .iter()
            .filter(|disk| disk.name == name)
            .map(|disk| disk.device);
        let networks = self.networks.get().into_iter().flatten();
        let networks = networks
            .filter(|network| network.name == name)
            .filter_map(|network| network.device);
        let others = self.os_devices.iter().filter(|other| other.name == name);
        let others = others.map(|other| other.device);
        let mut found: Vec<PciAddress> = disks.chain(networks).chain(others).collect();
        let controllers = self.controllers_named(name).into_iter();
        found.extend(controllers.filter_map(|controller| controller.device));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The NVMe controllers that a name stands for: one of them, a namespace that they serve, or their subsystem.
    pub fn controllers_named(&self, name: &str) -> Vec<&NvmeController> {
        let mut found = Vec::new();
        for subsystem in self.nvme.get().into_iter().flatten() {
            let namespace = subsystem
                .namespaces
                .iter()
                .find(|namespace| namespace.name == name);
            let serves = |controller: &&NvmeController| match namespace {
                Some(namespace) => namespace
                    .paths
                    .iter()
                    .any(|path| path.controller == controller.name),
                None => subsystem.name == name || controller.name == name,
            };
            found.extend(subsystem.controllers.iter().filter(serves));
        }
        found
    }
}
