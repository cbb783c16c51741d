//! Which network card is nearest to which GPU or disk, and how GPUs and network cards reach each other.
//!
//! ```text
//! 0000:40 ─┬─ 40:01.0 ─┬─ 41:00.0 GPU       bridge      one PCI bridge above both: traffic need not leave it
//!          │           └─ 42:00.0 card
//!          └─ 40:02.0 ─── 43:00.0 card      root bus    one host bridge
//! 0000:60 ──── 60:01.0 ── 61:00.0 card      node        then by distance
//! ```

use nearfar_machine::{DeviceKind, Distance, Machine, PciAddress, PciDevice};
use serde::Serialize;

use crate::locality::Localities;

/// What two functions have in common, nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Common {
    /// A PCI bridge or switch.
    Bridge,
    /// The host bridge.
    RootBus,
    Node,
    /// Neither: they are on different nodes.
    Nothing,
    /// The node of one of them is unknown.
    Unknown,
}

/// A GPU or disk with its nearest network cards.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Nearest {
    pub device: PciAddress,
    /// Equally near, by address; empty where there is no card.
    pub cards: Vec<PciAddress>,
    pub common: Common,
    /// The lowest bridge above both, for [`Common::Bridge`].
    pub bridge: Option<PciAddress>,
    /// From the device's node to the cards'.
    pub distance: Option<Distance>,
}

/// Whether it is an NVMe controller, or another storage controller with disks.
pub fn is_disk(machine: &Machine, device: &PciDevice) -> bool {
    device.class_code() == 0x0108
        || (device.is(&DeviceKind::STORAGE) && !machine.names_on(device.address).is_empty())
}

/// Every GPU and disk, by address, with its nearest network cards.
pub fn nearest_cards(machine: &Machine) -> Vec<Nearest> {
    let localities = Localities::new(machine);
    let all = || machine.pci.get().into_iter().flatten();
    let cards: Vec<&PciDevice> = all()
        .filter(|it| it.is(&DeviceKind::NETWORK_CARD))
        .collect();
    let devices = all().filter(|device| device.is(&DeviceKind::GPU) || is_disk(machine, device));
    let nearest = |device: &PciDevice| {
        let ranked = cards
            .iter()
            .map(|card| (rank(machine, &localities, device, card), card));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|((common, hops, distance, _), card)| {
            (*common, *hops, distance.is_none(), *distance, card.address)
        });
        let Some(&((common, hops, distance, bridge), _)) = ranked.first() else {
            return Nearest {
                device: device.address,
                cards: Vec::new(),
                common: Common::Unknown,
                bridge: None,
                distance: None,
            };
        };
        let as_near = ranked
            .iter()
            .take_while(|((common_, hops_, distance_, _), _)| {
                (*common_, *hops_, *distance_) == (common, hops, distance)
            });
        Nearest {
            device: device.address,
            cards: as_near.map(|(_, card)| card.address).collect(),
            common,
            bridge,
            distance,
        }
    };
    devices.map(nearest).collect()
}

/// The GPUs and network cards of a machine, and how each two of them reach each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GpuPaths {
    /// GPUs, then network cards, each by address; empty where there is no GPU.
    pub devices: Vec<PciAddress>,
    /// A row for each device with a column for each, in the words of `nvidia-smi topo -m`: `X` the device itself, `PIX` through one
    /// PCIe switch or bridge, `PXB` through several, `PHB` through the host bridge, `NODE` through host bridges of one node, `SYS`
    /// between nodes; `?` where a node is unknown. NVLink is not in sysfs.
    pub matrix: Vec<Vec<&'static str>>,
}

/// How the GPUs and network cards of a machine reach each other.
pub fn gpu_paths(machine: &Machine) -> GpuPaths {
    let localities = Localities::new(machine);
    let all = || machine.pci.items().iter();
    let mut devices: Vec<&PciDevice> = all().filter(|it| it.is(&DeviceKind::GPU)).collect();
    if !devices.is_empty() {
        devices.extend(all().filter(|it| it.is(&DeviceKind::NETWORK_CARD)));
    }
    let path = |a: &PciDevice, b: &PciDevice| {
        let (common, bridges, ..) = rank(machine, &localities, a, b);
        match common {
            _ if a.address == b.address => "X",
            // Below one switch they have its two lower ports between them.
            Common::Bridge if bridges <= 2 => "PIX",
            Common::Bridge => "PXB",
            Common::RootBus => "PHB",
            Common::Node => "NODE",
            Common::Nothing => "SYS",
            Common::Unknown => "?",
        }
    };
    let row = |a: &&PciDevice| devices.iter().map(|b| path(a, b)).collect();
    GpuPaths {
        matrix: devices.iter().map(row).collect(),
        devices: devices.iter().map(|it| it.address).collect(),
    }
}

/// What they have in common, the bridges between them, the distance of their nodes, the lowest bridge above both.
type Rank = (Common, usize, Option<Distance>, Option<PciAddress>);

fn rank(machine: &Machine, localities: &Localities<'_>, a: &PciDevice, b: &PciDevice) -> Rank {
    let (node_a, node_b) = (localities.of(a.address).node, localities.of(b.address).node);
    let distance = node_a.zip(node_b).and_then(|(a, b)| machine.distance(a, b));
    let (above_a, above_b) = (bridges(machine, a), bridges(machine, b));
    let shared = above_a.iter().enumerate().find_map(|(hops, bridge)| {
        let other = above_b.iter().position(|it| it == bridge)?;
        Some((hops + other, *bridge))
    });
    match (shared, node_a, node_b) {
        (Some((hops, bridge)), ..) => (Common::Bridge, hops, distance, Some(bridge)),
        _ if a.root == b.root => (Common::RootBus, 0, distance, None),
        (_, Some(a), Some(b)) if a == b => (Common::Node, 0, distance, None),
        (_, Some(_), Some(_)) => (Common::Nothing, 0, distance, None),
        // A kernel may say none (-1) of devices where there is one node; where firmware names an offline one, there are more.
        _ if machine.nodes.len() == 1
            && [a, b].iter().all(|it| {
                it.node.get() == Some(&None) && localities.firmware(it.root).is_none()
            }) =>
        {
            (Common::Node, 0, None, None)
        }
        _ => (Common::Unknown, 0, None, None),
    }
}

/// The bridges above a function, lowest first.
fn bridges(machine: &Machine, device: &PciDevice) -> Vec<PciAddress> {
    // Input that has a bridge above itself ends here; PCI has 256 buses in a domain.
    const MAX_DEPTH: usize = 256;
    let above = |address: &PciAddress| machine.pci_device(*address)?.parent;
    std::iter::successors(device.parent, above)
        .take(MAX_DEPTH)
        .collect()
}
