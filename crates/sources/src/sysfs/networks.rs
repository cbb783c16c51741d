//! Network devices with hardware behind them, and the CPUs their queues are steered to.
//!
//! ```text
//! sys/class/net/eth1 -> ../../devices/pci0000:20/0000:20:01.0/0000:22:00.0/virtio0/net/eth1
//! sys/class/net/eth1/queues/tx-0/xps_cpus   01
//! sys/class/net/eth1/queues/rx-0/rps_cpus   00
//! ```

use std::collections::HashMap;

use nearfar_machine::{
    Known, NetworkDevice, NodeId, PciAddress, PciDevice, ReceiveQueue, TransmitQueue,
};

use super::attribute;
use super::notes::Notes;
use crate::parallel;
use crate::tree::{Directory, Tree};
use crate::value;

const DEVICES: &str = "sys/class/net";
/// Containers can have thousands of virtual devices; those are dropped before this counts.
const MOST_DEVICES: usize = 16_384;

/// Reads all network devices that have hardware, by name.
pub(crate) fn read(tree: &Tree, notes: &Notes, pci: &[PciDevice]) -> Known<Vec<NetworkDevice>> {
    let names = match tree.list(DEVICES) {
        Ok(names) => names,
        Err(error) => return Known::no(error.to_string()),
    };
    // `device` is missing for lo, bridges, bonds and tunnels, which are below sys/devices/virtual, and where it was not
    // gathered.
    let real = |name: &&String| {
        let path = format!("{DEVICES}/{name}");
        let is_of_hardware = |target: String| PciAddress::innermost(&target).is_some();
        tree.exists(&format!("{path}/device")) || tree.link(&path).is_ok_and(is_of_hardware)
    };
    let real: Vec<&String> = names.iter().filter(real).take(MOST_DEVICES).collect();
    let mut networks = parallel::map(&real, |name| read_one(tree, notes, pci, name));
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
    for network in networks {
        if network.device.is_none()
            || interfaces
                .get(&network.device)
                .is_some_and(|&number| number > 1)
        {
            network.mac = permanent_mac(tree, &network.name);
        }
    }
}

/// The address that the hardware has: not one that was drawn, taken from a bond or set by hand (`addr_assign_type` other
/// than `NET_ADDR_PERM`).
fn permanent_mac(tree: &Tree, name: &str) -> Option<String> {
    let word = |file: &str| {
        let path = format!("{DEVICES}/{name}/{file}");
        tree.with_bytes(&path, |bytes| value::text(bytes).map(str::to_owned))
            .ok()?
            .ok()
    };
    word("address")
        .filter(|_| word("addr_assign_type").as_deref() == Some("0"))
        .filter(|mac| !mac.is_empty())
}

fn read_one(tree: &Tree, notes: &Notes, pci: &[PciDevice], name: &str) -> NetworkDevice {
    let path = format!("{DEVICES}/{name}");
    // The class entry is a link since Linux 2.6.25; before, only its `device` is.
    let targets = [path.clone(), format!("{path}/device")];
    let device = targets
        .iter()
        .find_map(|link| PciAddress::innermost(&tree.link(link).ok()?));
    let (mut transmit, mut receive) = (Vec::new(), Vec::new());
    if let Ok(queues) = tree.directory(&format!("{path}/queues")) {
        (transmit, receive) = read_queues(&queues, notes);
    }
    let node = node(tree, notes, pci, device, &format!("{path}/device"));
    NetworkDevice {
        name: name.to_owned(),
        device,
        mac: None,
        node,
        transmit,
        receive,
    }
}

/// The queues by number. Cards of a large machine have thousands together, so their directories are not opened.
fn read_queues(queues: &Directory<'_>, notes: &Notes) -> (Vec<TransmitQueue>, Vec<ReceiveQueue>) {
    let (mut transmit, mut receive) = (Vec::new(), Vec::new());
    for queue in queues.names().unwrap_or_default() {
        let mask =
            |file: &str| attribute::known(queues, &format!("{queue}/{file}"), notes, value::mask);
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
    notes: &Notes,
    pci: &[PciDevice],
    address: Option<PciAddress>,
    device: &str,
) -> Known<Option<NodeId>> {
    if let Some(address) = address
        && let Ok(index) = pci.binary_search_by_key(&address, |device| device.address)
    {
        return pci[index].node.clone();
    }
    match tree.directory(device) {
        Ok(directory) => attribute::known(&directory, "numa_node", notes, attribute::node),
        Err(error) => Known::no(error.to_string()),
    }
}
