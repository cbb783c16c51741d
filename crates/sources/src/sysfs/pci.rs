//! PCI functions: what they are, what is above them, where the kernel says they are.
//!
//! ```text
//! sys/bus/pci/devices/0000:21:00.0 -> ../../../devices/pci0000:20/0000:20:00.0/0000:21:00.0
//!                                                      root bus   parent       itself
//! ```

use std::collections::BTreeMap;

use nearfar_machine::{CpuSet, Known, Node, NodeId, PciAddress, PciDevice, RootBus};

use crate::tree::{Directory, Parser, Reason, Tree};
use crate::{parallel, value};

/// Where the kernel lists all PCI functions.
pub(crate) const DEVICES: &str = "sys/bus/pci/devices";
/// More functions than the largest machines have; what lies beyond in a hostile tree is left out.
const MOST_DEVICES: usize = 65_536;
/// How deep the search for devices goes where `sys/bus` is missing: bridges nest, but not without end.
const DEEPEST: usize = 24;

/// Where a function is, by its path below `sys/devices`.
struct FoundFunction {
    address: PciAddress,
    parent: Option<PciAddress>,
    root: RootBus,
    path: String,
}

/// Reads all PCI functions, by address. `nodes` serve to derive a missing `numa_node` from `local_cpus`.
pub(crate) fn read(tree: &Tree, nodes: &[Node]) -> Known<Vec<PciDevice>> {
    let mut found = match tree.list(DEVICES) {
        Ok(names) => names
            .iter()
            .filter_map(|name| from_link(tree, name))
            .take(MOST_DEVICES)
            .collect(),
        Err(error) if error.reason == Reason::Absent => match search(tree) {
            Some(found) => found,
            None => return Known::no(error.to_string()),
        },
        Err(error) => return Known::no(error.to_string()),
    };
    found.sort_by_key(|device| device.address);
    found.dedup_by_key(|device| device.address);
    let by_cpus = NodesByCpus::of(nodes);
    Known::Yes(parallel::map(&found, |device| {
        read_one(tree, device, &by_cpus)
    }))
}

fn from_link(tree: &Tree, name: &str) -> Option<FoundFunction> {
    let path = format!("{DEVICES}/{name}");
    let address: PciAddress = match name.parse() {
        Ok(address) => address,
        Err(error) => {
            tree.note(&path, error.to_string());
            return None;
        }
    };
    let placed = tree.link(&path).ok();
    let placed = placed.and_then(|target| place(&target, address));
    let (parent, root) = placed.unwrap_or_else(|| {
        let message = "is no link into sys/devices: its own bus is taken for its root bus";
        tree.note(&path, message);
        (None, address.into())
    });
    Some(FoundFunction {
        address,
        parent,
        root,
        path,
    })
}

/// Parent and root bus by the path of a device. Behind an Intel VMD or a virtual switch a second root bus
/// hangs below a function of the first; the innermost counts.
fn place(path: &str, address: PciAddress) -> Option<(Option<PciAddress>, RootBus)> {
    let mut root = None;
    let mut parent = None;
    for part in path.split('/') {
        if let Some(bus) = root_bus(part) {
            root = Some(bus);
            parent = None;
        } else if let Ok(above) = part.parse::<PciAddress>()
            && above != address
        {
            parent = Some(above);
        }
    }
    Some((parent, root?))
}

/// `pci0000:20` names a root bus.
pub(crate) fn root_bus(name: &str) -> Option<RootBus> {
    name.strip_prefix("pci")?.parse().ok()
}

/// Finds functions by walking `sys/devices` where `sys/bus` was not gathered.
fn search(tree: &Tree) -> Option<Vec<FoundFunction>> {
    let mut found = Vec::new();
    let mut left: Vec<(String, usize)> = Vec::new();
    for name in tree.list("sys/devices").ok()? {
        if root_bus(&name).is_some() {
            left.push((format!("sys/devices/{name}"), 0));
        }
    }
    if left.is_empty() {
        return None;
    }
    while let Some((path, depth)) = left.pop() {
        for name in tree.list(&path).unwrap_or_default() {
            let below = format!("{path}/{name}");
            let address = name.parse::<PciAddress>().ok();
            let inside = address.is_some() || root_bus(&name).is_some();
            let is_full = depth >= DEEPEST || found.len() >= MOST_DEVICES;
            // The kernel's hierarchy is made of directories; a link in it could lead round in circles.
            if !inside || is_full || tree.link(&below).is_ok() {
                continue;
            }
            if let Some(address) = address
                && let Some((parent, root)) = place(&below, address)
            {
                found.push(FoundFunction {
                    address,
                    parent,
                    root,
                    path: below.clone(),
                });
            }
            left.push((below, depth + 1));
        }
    }
    Some(found)
}

fn read_one(tree: &Tree, found: &FoundFunction, by_cpus: &NodesByCpus) -> PciDevice {
    let address = found.address;
    let unknown = |because: String| PciDevice {
        parent: found.parent,
        ..PciDevice::unknown(address, found.root, because)
    };
    let directory = match tree.directory(&found.path) {
        Ok(directory) => directory,
        Err(error) => {
            let message = format!("listed as a PCI function, but {}", error.reason);
            tree.note(&found.path, message);
            return unknown(error.to_string());
        }
    };
    let uevent = directory
        .with_bytes("uevent", Uevent::parse)
        .unwrap_or_default();
    let (vendor, device, class) = uevent.identity.unwrap_or_else(|| identity(&directory));
    let by_cpus = || by_cpus.node_of(&directory);
    let node = directory.known_or("numa_node", value::node, by_cpus);
    tree.read_instead(
        format!("{DEVICES}/{address}/numa_node"),
        directory.below("numa_node"),
    );
    let driver = uevent
        .driver
        .or_else(|| directory.link_name("driver").ok())
        .filter(|name| !name.is_empty());
    PciDevice {
        vendor,
        device,
        class,
        driver,
        node,
        ..unknown(String::new())
    }
}

/// The kernel's udev data of a function (pci_uevent in drivers/pci/pci-driver.c): one file instead of four.
#[derive(Default)]
struct Uevent {
    identity: Option<(u16, u16, u32)>,
    driver: Option<String>,
}

impl Uevent {
    fn parse(bytes: &[u8]) -> Self {
        let (mut class, mut id, mut driver) = (None, None, None);
        for line in String::from_utf8_lossy(bytes).lines() {
            match line.split_once('=') {
                Some(("DRIVER", name)) => driver = Some(name.to_owned()),
                Some(("PCI_CLASS", number)) => class = value::hexadecimal32(number.as_bytes()).ok(),
                Some(("PCI_ID", ids)) => {
                    let part =
                        |text: &str| value::hexadecimal32(text.as_bytes()).ok()?.try_into().ok();
                    id = ids
                        .split_once(':')
                        .and_then(|(vendor, device)| Some((part(vendor)?, part(device)?)))
                }
                _ => {}
            }
        }
        let identity = id
            .zip(class)
            .map(|((vendor, device), class)| (vendor, device, class & 0xff_ffff));
        Self { identity, driver }
    }
}

/// Vendor, device and class: from their files, or from the configuration space where only that was gathered.
fn identity(directory: &Directory<'_>) -> (u16, u16, u32) {
    let number = |name| directory.noted(name, value::hexadecimal32);
    let parts = (number("vendor"), number("device"), number("class"));
    if let (Some(vendor), Some(device), Some(class)) = parts {
        return (vendor as u16, device as u16, class & 0xff_ffff);
    }
    // PCI Local Bus 3.0, 6.1: vendor at 0, device at 2, class code at 9 to 11, all little-endian.
    let config = directory.with_bytes("config", |bytes| bytes.first_chunk().copied());
    let Ok(Some([v0, v1, d0, d1, _, _, _, _, _, interface, subclass, base])) = config else {
        // Unknown, without a warning: gatherers leave these files out.
        return (0, 0, 0);
    };
    let class = u32::from_be_bytes([0, base, subclass, interface]);
    let (vendor, device) = ([v0, v1], [d0, d1]);
    (
        u16::from_le_bytes(vendor),
        u16::from_le_bytes(device),
        class,
    )
}

/// What follows from `local_cpus` if an old kernel or a gatherer left `numa_node` out: with a node the kernel
/// lists exactly that node's CPUs, without one it lists all. So the answer is certain only where the list is exactly
/// one node's and not the whole machine's.
struct NodesByCpus(BTreeMap<String, Option<NodeId>>);

impl NodesByCpus {
    fn of(nodes: &[Node]) -> Self {
        let mut by_cpus = BTreeMap::new();
        let with_cpus = |node: &&Node| node.online && node.has_cpus() == Some(true);
        for node in nodes.iter().filter(with_cpus) {
            // Fake nodes share their CPUs: then the list says nothing about which of them it is.
            by_cpus
                .entry(node.known_cpus().to_string())
                .and_modify(|known| *known = None)
                .or_insert(Some(node.id));
        }
        Self(by_cpus)
    }

    fn node_of(&self, directory: &Directory<'_>) -> Known<Option<NodeId>> {
        let absent = directory.unreadable("numa_node", Reason::Absent);
        let absent = Known::no(absent.to_string());
        if self.0.len() < 2 {
            return absent;
        }
        let candidates: [(&str, Parser<CpuSet>); 2] =
            [("local_cpulist", value::list), ("local_cpus", value::mask)];
        let local = directory.first_known("numa_node", &candidates);
        let node = local.get().and_then(|cpus| *self.0.get(&cpus.to_string())?);
        node.map_or(absent, |node| Known::Yes(Some(node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_udev_names_a_function() {
        let text = "DRIVER=nvme\nPCI_CLASS=10802\nPCI_ID=144D:A80A\nPCI_SUBSYS_ID=144D:A801\nPCI_SLOT_NAME=0000:01:00.0\n";
        let uevent = Uevent::parse(text.as_bytes());
        assert_eq!(uevent.identity, Some((0x144d, 0xa80a, 0x010802)));
        assert_eq!(uevent.driver.as_deref(), Some("nvme"));
        assert_eq!(
            Uevent::parse(b"PCI_ID=144D:A80A\n").identity,
            None,
            "without the class the files are read"
        );
        assert_eq!(
            Uevent::parse(b"PCI_ID=FFFFF:1\nPCI_CLASS=1\n=\n\xff").identity,
            None
        );
    }

    #[test]
    fn the_path_of_a_device_tells_parent_and_root_bus() {
        let place = |path: &str| {
            let address = path.rsplit('/').next().unwrap().parse().unwrap();
            let (parent, root) = place(path, address).unwrap();
            (parent.map(|parent| parent.to_string()), root.to_string())
        };
        assert_eq!(
            place("../../../devices/pci0000:20/0000:20:00.0/0000:21:00.0"),
            (Some("0000:20:00.0".to_owned()), "0000:20".to_owned())
        );
        assert_eq!(
            place("../../../devices/platform/40000000.pcie/pci0001:00/0001:00:00.0"),
            (None, "0001:00".to_owned())
        );
        let behind_vmd = place(
            "../../../devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0",
        );
        assert_eq!(
            behind_vmd,
            (Some("10000:e0:01.0".to_owned()), "10000:e0".to_owned())
        );
    }
}
