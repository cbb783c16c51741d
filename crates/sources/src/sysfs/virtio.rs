//! Virtio devices: each is a thing of its own in sysfs, below the PCI function that carries it.
//!
//! ```text
//! sys/bus/virtio/devices/virtio0 -> ../../../devices/pci0000:20/0000:20:01.0/0000:22:00.0/virtio0
//! ```

use std::collections::BTreeMap;

use nearfar_machine::PciAddress;

use super::notes::Notes;
use crate::tree::Tree;

const DEVICES: &str = "sys/bus/virtio/devices";

/// What carries a virtio device, and what drives it.
pub(crate) struct VirtioDevice {
    /// The PCI function, where it is one; a virtio device may also hang from a memory-mapped or channel bus.
    pub(crate) parent: Option<PciAddress>,
    /// `virtio_net`, `virtio_blk`.
    pub(crate) driver: Option<String>,
}

/// All virtio devices, by name (`virtio0`).
pub(crate) fn read(tree: &Tree, notes: &Notes) -> BTreeMap<String, VirtioDevice> {
    let names = tree.list(DEVICES).unwrap_or_else(|error| {
        notes.unless_absent(error);
        Vec::new()
    });
    if names.is_empty() && !tree.is_live() {
        return below_classes(tree);
    }
    let read = |name: String| {
        let path = format!("{DEVICES}/{name}");
        let parent = tree
            .link(&path)
            .ok()
            .and_then(|target| PciAddress::innermost(&target));
        let driver = tree.link_name(&format!("{path}/driver")).ok();
        (name, VirtioDevice { parent, driver })
    };
    names.into_iter().map(read).collect()
}

/// Where `sys/bus` was not gathered: the devices on the way to interfaces and disks.
fn below_classes(tree: &Tree) -> BTreeMap<String, VirtioDevice> {
    let mut found = BTreeMap::new();
    for (class, driver) in [
        ("sys/class/net", "virtio_net"),
        ("sys/class/block", "virtio_blk"),
        ("sys/block", "virtio_blk"),
    ] {
        for name in tree.list(class).unwrap_or_default() {
            let Ok(target) = tree.link(&format!("{class}/{name}")) else {
                continue;
            };
            let number = |part: &&str| {
                part.strip_prefix("virtio")
                    .is_some_and(|it| it.parse::<u32>().is_ok())
            };
            // A disk of virtio-scsi is further below: `virtio2/host0/...`.
            let mut parts = target.split('/').skip_while(|part| !number(part));
            if let Some(device) = parts.next() {
                let is_direct = matches!(parts.next(), Some("net" | "block"));
                found.entry(device.to_owned()).or_insert(VirtioDevice {
                    parent: PciAddress::innermost(&target),
                    driver: Some(if is_direct { driver } else { "virtio_scsi" }.to_owned()),
                });
            }
        }
    }
    found
}
