//! What hangs on PCI functions by class: network devices and the CPUs their queues are steered to, disks, GPUs, virtio devices.
//!
//! ```text
//! sys/class/net/eth1 -> ../../devices/pci0000:20/0000:20:01.0/0000:22:00.0/virtio0/net/eth1
//! sys/class/net/eth1/queues/tx-0/xps_cpus   01
//! sys/class/net/eth1/queues/rx-0/rps_cpus   00
//! sys/class/block/vda -> ../../devices/pci0000:00/0000:00:05.0/virtio2/block/vda      the last address on the way
//! sys/class/block/vda1 -> ../../devices/pci0000:00/0000:00:05.0/virtio2/block/vda/vda1     a partition: left out
//! sys/class/block/nvme0n1 -> ../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1     behind several: left out here
//! sys/class/drm/card1 -> ../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/drm/card1      a GPU
//! sys/class/drm/card1-DP-1 -> .../0000:81:00.0/drm/card1/card1-DP-1                       its connector: left out
//! proc/driver/nvidia/gpus/0000:81:00.0/information   Device Minor: 0                       a GPU: /dev/nvidia0
//! sys/bus/virtio/devices/virtio0 -> ../../../devices/pci0000:20/0000:20:01.0/0000:22:00.0/virtio0
//! ```

use std::collections::{BTreeMap, HashMap};

use nearfar_machine::{
    DeviceKind, Disk, Known, NetworkDevice, NodeId, OsDevice, OsDeviceKind, PciAddress, PciDevice,
    ReceiveQueue, TransmitQueue,
};

use crate::tree::{Directory, Tree};
use crate::{parallel, value};

const NETWORKS: &str = "sys/class/net";
/// Containers can have thousands of virtual devices; those are dropped before this counts.
const MOST_DEVICES: usize = 16_384;

/// Reads all network devices that have hardware, by name.
pub(crate) fn networks(tree: &Tree, pci: &[PciDevice]) -> Known<Vec<NetworkDevice>> {
    let names = match tree.list(NETWORKS) {
        Ok(names) => names,
        Err(error) => return Known::no(error.to_string()),
    };
    // `device` is missing for lo, bridges, bonds and tunnels, which are below sys/devices/virtual, and where it was not
    // gathered.
    let real = |name: &&String| {
        let path = format!("{NETWORKS}/{name}");
        let is_of_hardware = |target: String| PciAddress::innermost(&target).is_some();
        tree.exists(&format!("{path}/device")) || tree.link(&path).is_ok_and(is_of_hardware)
    };
    let real: Vec<&String> = names.iter().filter(real).take(MOST_DEVICES).collect();
    let mut networks = parallel::map(&real, |name| read_network(tree, pci, name));
    add_macs(tree, &mut networks);
    Known::Yes(networks)
}

/// Hardware addresses of the interfaces that share a function with others (ports of one card, representors of virtual
/// functions) or have none. The others need none, and a snapshot is better without.
fn add_macs(tree: &Tree, networks: &mut [NetworkDevice]) {
    let mut interfaces: HashMap<Option<PciAddress>, usize> = HashMap::new();
    for network in networks.iter() {
        *interfaces.entry(network.device).or_default() += 1;
    }
    let is_shared = |device: &Option<_>| device.is_none() || interfaces[device] > 1;
    for network in networks.iter_mut().filter(|it| is_shared(&it.device)) {
        network.mac = permanent_mac(tree, &network.name);
    }
}

/// The address that the hardware has: not one that was drawn, taken from a bond or set by hand (`addr_assign_type` other
/// than `NET_ADDR_PERM`).
fn permanent_mac(tree: &Tree, name: &str) -> Option<String> {
    let word = |file: &str| tree.value(&format!("{NETWORKS}/{name}/{file}"), value::word);
    let mac = word("address").filter(|mac| !mac.is_empty());
    mac.filter(|_| word("addr_assign_type").as_deref() == Some("0"))
}

fn read_network(tree: &Tree, pci: &[PciDevice], name: &str) -> NetworkDevice {
    let path = format!("{NETWORKS}/{name}");
    // The class entry is a link since Linux 2.6.25; before, only its `device` is.
    let below = format!("{path}/device");
    let node_of = |device| node(tree, pci, device, &below);
    let device = tree.function_behind(&[path.clone(), below.clone()]);
    let queues = tree.directory(&format!("{path}/queues")).ok();
    let (transmit, receive) = queues.as_ref().map(read_queues).unwrap_or_default();
    NetworkDevice {
        name: name.to_owned(),
        device,
        mac: None,
        node: node_of(device),
        transmit,
        receive,
    }
}

/// The queues by number. Cards of a large machine have thousands together, so their directories are not opened.
fn read_queues(queues: &Directory<'_>) -> (Vec<TransmitQueue>, Vec<ReceiveQueue>) {
    let (mut transmit, mut receive) = (Vec::new(), Vec::new());
    for queue in queues.names().unwrap_or_default() {
        let mask = |file: &str| queues.known(&format!("{queue}/{file}"), value::mask);
        if let Some(number) = numbered(&queue, "tx-") {
            // A device with one queue has the file, but reading it fails with ENOENT.
            transmit.push(TransmitQueue {
                queue: number,
                xps: mask("xps_cpus"),
            });
        } else if let Some(number) = numbered(&queue, "rx-") {
            receive.push(ReceiveQueue {
                queue: number,
                rps: mask("rps_cpus"),
            });
        }
    }
    transmit.sort_unstable_by_key(|queue| queue.queue);
    receive.sort_unstable_by_key(|queue| queue.queue);
    (transmit, receive)
}

fn numbered(queue: &str, prefix: &str) -> Option<u32> {
    queue.strip_prefix(prefix)?.parse().ok()
}

/// The node of a device: its PCI function's. A virtio device has no `numa_node` of its own, and one on another bus has
/// the one of `device`.
pub(super) fn node(
    tree: &Tree,
    pci: &[PciDevice],
    address: Option<PciAddress>,
    device: &str,
) -> Known<Option<NodeId>> {
    let function = address.and_then(|it| pci.binary_search_by_key(&it, |it| it.address).ok());
    if let Some(index) = function {
        return pci[index].node.clone();
    }
    let directory = Known::from_result(tree.directory(device));
    directory.and_then(|it| it.known("numa_node", value::node))
}

const CLASS: &str = "sys/class/block";
/// More disks than the largest machines have; what lies beyond in a hostile tree is left out.
const MOST_DISKS: usize = 65_536;

/// Reads all disks that a PCI function is above, by name.
pub(super) fn disks(tree: &Tree) -> Vec<Disk> {
    let names = tree.list(CLASS).unwrap_or_default();
    let disks = names.iter().filter_map(|name| one(tree, name));
    let mut disks: Vec<Disk> = disks.take(MOST_DISKS).collect();
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    disks
}

fn one(tree: &Tree, name: &str) -> Option<Disk> {
    let target = tree.link(&format!("{CLASS}/{name}")).ok()?;
    let device = function_above(&target, "block")?;
    // The kernel hides the single paths of native NVMe multipath from user space.
    (!is_nvme_path(name)).then(|| Disk {
        name: name.to_owned(),
        device,
    })
}

/// The last PCI address on the way to a device of a class; nothing for a part of one, such as a partition or a connector, which is a
/// directory below it.
fn function_above(target: &str, class: &str) -> Option<PciAddress> {
    let (directory, _) = target.rsplit_once('/')?;
    let (above, holder) = directory.rsplit_once('/')?;
    // A device lies in a directory with its class's name, an NVMe namespace directly below its controller (`nvme/nvme0/nvme0n1`).
    let is_namespace = class == "block" && above.rsplit('/').next() == Some("nvme");
    PciAddress::innermost(above).filter(|_| is_namespace || holder == class)
}

/// The names of devices that have no list of their own, such as GPUs, in order. The screen of a management controller is none.
pub(super) fn others(tree: &Tree, pci: &[PciDevice]) -> Vec<OsDevice> {
    let is_console = |address: PciAddress| {
        let found = pci.iter().find(|it| it.address == address);
        found.is_some_and(|it| it.is(&DeviceKind::CONSOLE))
    };
    let mut found = Vec::new();
    for kind in DeviceKind::ALL {
        let Some(named_as) = kind.named_as else {
            continue;
        };
        for class in kind.listed_in {
            let directory = format!("sys/class/{class}");
            let names = tree.list(&directory).unwrap_or_default().into_iter();
            found.extend(names.take(MOST_DISKS).filter_map(|name| {
                let target = tree.link(&format!("{directory}/{name}")).ok()?;
                let device = function_above(&target, class).filter(|&it| !is_console(it))?;
                Some(OsDevice {
                    name,
                    kind: named_as,
                    device,
                })
            }));
        }
    }
    found.extend(nvidia(tree));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The GPUs of NVIDIA's driver, by the names of their files in /dev, which no class lists.
fn nvidia(tree: &Tree) -> impl Iterator<Item = OsDevice> {
    const GPUS: &str = "proc/driver/nvidia/gpus";
    let minor = |bytes: &[u8]| -> Option<u32> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse().ok())
    };
    let names = tree.list(GPUS).unwrap_or_default().into_iter();
    names.take(MOST_DISKS).filter_map(move |name| {
        let file = format!("{GPUS}/{name}/information");
        let minor = tree.with_bytes(&file, minor).ok().flatten()?;
        Some(OsDevice {
            name: format!("nvidia{minor}"),
            kind: OsDeviceKind::Gpu,
            device: name.parse().ok()?,
        })
    })
}

/// `nvme0c1n1`.
fn is_nvme_path(name: &str) -> bool {
    name.strip_prefix("nvme")
        .is_some_and(|rest| rest.contains('c'))
}

const VIRTIO: &str = "sys/bus/virtio/devices";

/// What carries a virtio device, and what drives it.
pub(crate) struct VirtioDevice {
    /// The PCI function, where it is one; a virtio device may also hang from a memory-mapped or channel bus.
    pub(crate) parent: Option<PciAddress>,
    /// `virtio_net`, `virtio_blk`.
    pub(crate) driver: Option<String>,
}

/// All virtio devices, by name (`virtio0`).
pub(crate) fn virtio(tree: &Tree) -> BTreeMap<String, VirtioDevice> {
    let names = tree.list(VIRTIO).unwrap_or_else(|error| {
        tree.unless_absent(error);
        Vec::new()
    });
    if names.is_empty() && !tree.is_live() {
        return below_classes(tree);
    }
    let read = |name: String| {
        let path = format!("{VIRTIO}/{name}");
        let parent = tree.function_behind(std::slice::from_ref(&path));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_s_function_is_the_last_address_on_the_way() {
        let found = |target| function_above(target, "block").map(|address| address.to_string());
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
        let gpu = "../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/drm/card1";
        let above = function_above(gpu, "drm").map(|address| address.to_string());
        assert_eq!(above, of("0000:81:00.0"));
        assert_eq!(function_above(&format!("{gpu}/card1-DP-1"), "drm"), None);
        assert!(is_nvme_path("nvme0c1n1") && !is_nvme_path("nvme0n1") && !is_nvme_path("sdc"));
    }
}
