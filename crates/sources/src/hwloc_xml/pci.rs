//! PCI devices in hwloc's XML: which there are, near which CPUs, and what Linux and libraries call them.

use std::collections::BTreeMap;

use nearfar_machine::{
    CpuId, Disk, HostBridge, Known, Machine, NodeId, OsDevice, OsDeviceKind, PciAddress, PciDevice,
    RootBus,
};

use super::build::ancestors;
use super::elements::{Document, Object, set_of};
use crate::value::ValueError;
use crate::warnings::Warnings;

/// Our fact on a PCI device: the node the kernel gives it, or -1.
pub(super) const KERNEL_NODE: &str = "KernelNode";
/// Our fact on a PCI device: its driver.
pub(super) const DRIVER: &str = "KernelDriver";

pub(super) fn read(document: &Document, machine: &mut Machine, warnings: &mut Warnings) {
    let objects = &document.objects;
    let mut devices: BTreeMap<PciAddress, PciDevice> = BTreeMap::new();
    let mut bridges: BTreeMap<RootBus, HostBridge> = BTreeMap::new();
    for (at, object) in objects.iter().enumerate() {
        if let Some(root) = root_bus(object) {
            let firmware = Known::no("hwloc XML does not say where the firmware has a host bridge");
            bridges.insert(root, HostBridge { root, firmware });
        }
        if !is_device(object) {
            continue;
        }
        match device(objects, at, machine) {
            Ok(device) => {
                let address = device.address;
                if devices.insert(address, device).is_some() {
                    warnings.note(format!(
                        "PCI device {address} is there twice; the last one was taken"
                    ));
                }
            }
            Err(problem) => warnings.note(format!("a PCI device was left out: {problem}")),
        }
    }
    if devices.is_empty() && bridges.is_empty() {
        machine.pci = Known::no("the XML has no PCI devices; lstopo --whole-io writes them");
        return;
    }
    for (at, object) in objects.iter().enumerate() {
        let above = ancestors(objects, at).map(|at| &objects[at].pci_busid);
        let function = above.filter_map(|busid| busid.parse().ok()).next();
        if object.kind == "OSDev"
            && !object.name.is_empty()
            && let Some(device) = function.filter(|function| devices.contains_key(function))
        {
            name(object, device, document.version, machine);
        }
    }
    machine.disks.sort_by(|a, b| a.name.cmp(&b.name));
    machine.os_devices.sort_by(|a, b| a.name.cmp(&b.name));
    machine.pci = Known::Yes(devices.into_values().collect());
    machine.host_bridges = Known::Yes(bridges.into_values().collect());
}

fn is_device(object: &Object) -> bool {
    object.kind == "PCIDev" || (object.kind == "Bridge" && object.bridge_type.starts_with("1-"))
}

/// The root bus below a host bridge: `bridge_type="0-1"`, `bridge_pci="0000:[20-3f]"`.
fn root_bus(object: &Object) -> Option<RootBus> {
    let host = object.kind == "Bridge" && object.bridge_type.starts_with("0-");
    let (domain, buses) = object.bridge_pci.split_once(":[").filter(|_| host)?;
    let (first, _) = buses.split_once('-')?;
    format!("{domain}:{first}").parse().ok()
}

fn device(objects: &[Object], at: usize, machine: &Machine) -> Result<PciDevice, ValueError> {
    let object = &objects[at];
    let address: PciAddress = object.pci_busid.parse()?;
    let (class, vendor, device) = pci_type(&object.pci_type).ok_or_else(|| {
        ValueError::malformed(&object.pci_type, "a pci_type like \"0200 [8086:10c9]\"")
    })?;
    let above = || ancestors(objects, at).map(|at| &objects[at]);
    // Without a host bridge above it, which lstopo can leave out, only the device's own bus is known.
    let root = above().find_map(root_bus).unwrap_or(RootBus {
        domain: address.domain,
        bus: address.bus,
    });
    let info = |name: &str| {
        object
            .infos
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    };
    let words: Vec<_> = [info("PCIVendor"), info("PCIDevice")]
        .into_iter()
        .flatten()
        .collect();
    Ok(PciDevice {
        address,
        vendor,
        device,
        class,
        class_name: None,
        name: (!words.is_empty()).then(|| words.join(" ")),
        driver: info(DRIVER),
        parent: above()
            .take_while(|object| object.kind == "Bridge")
            .find_map(|above| above.pci_busid.parse().ok()),
        root,
        node: node(info(KERNEL_NODE).as_deref(), above(), machine),
    })
}

/// Adds the name of an OS device to the machine. Version 3 has a bit for each kind, and a device several.
fn name(object: &Object, device: PciAddress, version: u32, machine: &mut Machine) {
    const BITS: &[(u64, OsDeviceKind)] = &[
        (1 << 5, OsDeviceKind::OpenFabrics),
        (1 << 4, OsDeviceKind::Network),
        (1 << 2, OsDeviceKind::Gpu),
        (1 << 3, OsDeviceKind::CoProcessor),
        (1 << 6, OsDeviceKind::Dma),
        (1 << 1, OsDeviceKind::Memory),
    ];
    let name = object.name.clone();
    let is_memory = name.starts_with("dax") || object.subtype == "CXLMem";
    let kind = match (version, object.osdev_type) {
        (_, None) => None,
        (3.., Some(bits)) => BITS
            .iter()
            .find(|(bit, _)| bits & bit != 0)
            .map(|(_, kind)| *kind),
        (_, Some(0)) => is_memory.then_some(OsDeviceKind::Memory),
        (_, Some(1)) => Some(OsDeviceKind::Gpu),
        (_, Some(2)) => Some(OsDeviceKind::Network),
        (_, Some(3)) => Some(OsDeviceKind::OpenFabrics),
        (_, Some(4)) => Some(OsDeviceKind::Dma),
        (_, Some(5)) => Some(OsDeviceKind::CoProcessor),
        (_, Some(_)) => None,
    };
    match kind {
        Some(kind) => machine.os_devices.push(OsDevice { name, kind, device }),
        None if object.osdev_type.is_some_and(|kind| kind <= 1) => {
            machine.disks.push(Disk { name, device });
        }
        None => {}
    }
}

/// `0108 [8086:0a54] [8086:4702] 00`, in version 3 with the programming interface after it.
fn pci_type(text: &str) -> Option<(u32, u16, u16)> {
    let mut words = text.split_ascii_whitespace();
    let class = u32::from_str_radix(words.next()?, 16)
        .ok()
        .filter(|&class| class <= 0xffff)?;
    let (vendor, device) = words
        .next()?
        .strip_prefix('[')?
        .strip_suffix(']')?
        .split_once(':')?;
    let interface = words
        .nth(2)
        .and_then(|word| u8::from_str_radix(word, 16).ok())
        .unwrap_or(0);
    let number = |text: &str| u16::from_str_radix(text, 16).ok();
    Some((
        class << 8 | u32::from(interface),
        number(vendor)?,
        number(device)?,
    ))
}

fn node<'a>(
    ours: Option<&str>,
    mut above: impl Iterator<Item = &'a Object>,
    machine: &Machine,
) -> Known<Option<NodeId>> {
    match ours {
        Some("-1") => return Known::Yes(None),
        Some(number) => {
            if let Some(node) = number
                .parse()
                .ok()
                .map(NodeId)
                .filter(|&node| machine.node(node).is_some())
            {
                return Known::Yes(Some(node));
            }
        }
        None => {}
    }
    // hwloc hangs a device below the CPUs it is near, and below the machine where it does not know better.
    let near = above.find(|object| !matches!(object.kind.as_str(), "Bridge" | "PCIDev"));
    let near = near
        .filter(|near| near.kind != "Machine")
        .and_then(|near| set_of::<CpuId>(&near.cpuset))
        .unwrap_or_default();
    let mut nodes = machine
        .nodes
        .iter()
        .filter(|node| !near.is_empty() && near.is_subset(node.known_cpus()));
    match (nodes.next(), nodes.next()) {
        (Some(node), None) if machine.nodes.len() > 1 => Known::Yes(Some(node.id)),
        _ => Known::no(
            "hwloc XML only says near which CPUs a device is, and this one is near several nodes or all",
        ),
    }
}
