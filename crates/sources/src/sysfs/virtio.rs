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
