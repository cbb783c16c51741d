//! Disks below PCI functions.
//!
//! ```text
//! sys/class/block/vda -> ../../devices/pci0000:00/0000:00:05.0/virtio2/block/vda      the last address on the way
//! sys/class/block/vda1 -> ../../devices/pci0000:00/0000:00:05.0/virtio2/block/vda/vda1     a partition: left out
//! sys/class/block/nvme0n1 -> ../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1     behind several: left out here
//! ```

use nearfar_machine::{Disk, PciAddress};

use crate::tree::Tree;

const CLASS: &str = "sys/class/block";
/// More disks than the largest machines have; what lies beyond in a hostile tree is left out.
const MOST_DISKS: usize = 65_536;

/// Reads all disks that a PCI function is above, by name.
pub(super) fn read(tree: &Tree) -> Vec<Disk> {
    let names = tree.list(CLASS).unwrap_or_default();
    let mut disks: Vec<Disk> = names
        .iter()
        .filter_map(|name| one(tree, name))
        .take(MOST_DISKS)
        .collect();
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    disks
}

fn one(tree: &Tree, name: &str) -> Option<Disk> {
    let target = tree.link(&format!("{CLASS}/{name}")).ok()?;
    let device = function_above(&target)?;
    // The kernel hides the single paths of native NVMe multipath from user space.
    (!is_nvme_path(name)).then(|| Disk {
        name: name.to_owned(),
        device,
    })
}

/// The last PCI address on the way to a disk; nothing for a partition, which is a directory below its disk.
fn function_above(target: &str) -> Option<PciAddress> {
    let parts: Vec<&str> = target.split('/').collect();
    let [above @ .., holder, _] = &parts[..] else {
        return None;
    };
    // A disk lies in `block/`, an NVMe namespace directly below its controller (`nvme/nvme0/nvme0n1`).
    let is_disk = *holder == "block" || above.last() == Some(&"nvme");
    // Full addresses only: parts such as `1:0:0:0` are SCSI's.
    let address = |part: &&str| part.parse::<PciAddress>().ok().filter(|_| part.len() >= 12);
    above.iter().rev().find_map(address).filter(|_| is_disk)
}

/// `nvme0c1n1`.
fn is_nvme_path(name: &str) -> bool {
    name.strip_prefix("nvme")
        .is_some_and(|rest| rest.contains('c'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_s_function_is_the_last_address_on_the_way() {
        let found = |target| function_above(target).map(|address| address.to_string());
        let of = |address: &str| Some(address.to_owned());
        assert_eq!(
            found("../../devices/pci0000:00/0000:00:05.0/virtio2/block/vda"),
            of("0000:00:05.0")
        );
        assert_eq!(
            found(
                "../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
            ),
            of("0000:01:00.0")
        );
        assert_eq!(
            found("../../devices/pci0000:20/0000:20:00.0/nvme/nvme3/nvme3n1"),
            of("0000:20:00.0")
        );
        for other in [
            "../../devices/pci0000:00/0000:00:05.0/virtio2/block/vda/vda1",
            "../../devices/pci0000:20/0000:20:00.0/nvme/nvme3/nvme3n1/nvme3n1p1",
            "../../devices/virtual/block/loop0",
            "../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
            "vda",
            "",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
        assert!(is_nvme_path("nvme0c1n1") && !is_nvme_path("nvme0n1") && !is_nvme_path("sdc"));
    }
}
