//! The node of a device, for `--near eth0`: which CPUs are home to whatever works with it.
//!
//! ```text
//! eth0 ────────────► network device ─┐
//! nvme0, nvme0n1 ──► NVMe controller ┼─► PCI address ─► effective node ─► has CPUs? ──► home
//! 41:00.0 ───────────────────────────┤   (how sure: placement::locality)    └─ no: nearest node that has
//! sda, card0, bond0 ─► [`class`] ────┘
//! ```
//!
//! What the kernel does not know is answered as far as the firmware or neighbours tell, and said to be so.

pub mod class;

use std::path::Path;

use nearfar_machine::{Distance, Known, Machine, NodeId, NvmeController, PciAddress, alternatives};
use nearfar_placement::locality::{EffectiveNode, How, Localities};
use nearfar_placement::order::nodes_by_distance;
use serde::Serialize;

/// The node whose CPUs are nearest to a device, and how that is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Home {
    /// An online node with online CPUs.
    pub node: NodeId,
    /// The device as it was named.
    pub device: String,
    /// The PCI function that it is or sits on, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
    /// Where the device is, and how sure that is.
    pub located: EffectiveNode,
    /// The distance from the device's own node, where that one has no CPUs and this is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
}

/// The device's own node has no CPUs, so home is elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Moved {
    /// The device's node.
    pub from: NodeId,
    /// From there to home; `None` where no table tells.
    pub distance: Option<Distance>,
}

impl std::fmt::Display for Home {
    /// `node 1 (guessed: online node nearest to the firmware's node 2, 16)`, and where the CPUs are when not there.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.moved {
            None => self.located.fmt(f),
            Some(Moved { from, distance }) => {
                let far = distance.map_or("at an unknown distance".to_owned(), |it| {
                    format!("at distance {it}")
                });
                write!(
                    f,
                    "node {}, the nearest with CPUs {far}: {} is on {}",
                    self.node, self.device, self.located
                )?;
                write!(f, ", and node {from} has none")
            }
        }
    }
}

/// Why a device gives no home.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NearError {
    /// A number was given.
    #[error(
        "--near takes a device such as eth0, nvme0 or 0000:41:00.0; for node {0} itself say --node {0}"
    )]
    IsNode(u32),
    /// The machine has no such device.
    #[error("there is no device \"{device}\" here; {known}")]
    NoSuchDevice {
        /// As named.
        device: String,
        /// The devices that there are, in a sentence.
        known: String,
    },
    /// It is no device of its own, and stands on none that is.
    #[error(
        "{device} has no hardware of its own on the PCI bus ({because}); name the device that it uses, or --node N"
    )]
    NoHardware {
        /// As named.
        device: String,
        /// What was found instead.
        because: String,
    },
    /// Several devices in several places serve it.
    #[error("{device} has more than one home: {ways}; name one of them, or --node N")]
    Ambiguous {
        /// As named.
        device: String,
        /// Each way with its node.
        ways: String,
    },
    /// Nothing tells where it is.
    #[error(
        "where {device} is cannot be told ({because}); measure it with nearfar bench latency, or say --node N"
    )]
    Unknown {
        /// As named.
        device: String,
        /// What was looked at.
        because: String,
    },
    /// No node that could be home has CPUs.
    #[error(
        "{device} is on node {node}, which has no CPUs, and no distance leads from there to a node that has; say --node N"
    )]
    NoCpus {
        /// As named.
        device: String,
        /// Its node.
        node: NodeId,
    },
    /// A directory of sysfs could not be read.
    #[error("{file}: {because}")]
    Unreadable {
        /// The file.
        file: String,
        /// The system's reason.
        because: String,
    },
}

/// One way to a device: its name, PCI function and node.
struct Way {
    name: String,
    address: Option<PciAddress>,
    located: EffectiveNode,
}

/// The home of a device, by the model alone: network devices, NVMe controllers, disks and subsystems, PCI addresses
/// (`41:00.0` is `0000:41:00.0`).
///
/// # Errors
/// When there is no such device in the model, nothing tells where it is, or its ways lead to several nodes.
pub fn home(machine: &Machine, device: &str) -> Result<Home, NearError> {
    if let Ok(node) = device.parse() {
        return Err(NearError::IsNode(node));
    }
    let localities = Localities::new(machine);
    let ways = match device.parse::<PciAddress>() {
        Ok(address) => by_address(machine, &localities, device, address)?,
        Err(_) => match network(machine, &localities, device) {
            Some(way) => vec![way],
            None => match nvme(machine, &localities, device)? {
                Some(ways) => ways,
                None => disk(machine, &localities, device)
                    .ok_or_else(|| unknown_device(machine, device))?,
            },
        },
    };
    settle(machine, device, ways)
}

/// The same for a device of the running system that the model need not have: also disks, GPUs, InfiniBand devices, and what
/// is stacked on devices (bonds, volumes). `sys` is where sysfs is mounted.
///
/// # Errors
/// As [`home`], and when sysfs cannot be read.
pub fn find(machine: &Machine, sys: &Path, device: &str) -> Result<Home, NearError> {
    match home(machine, device) {
        Err(missing @ NearError::NoSuchDevice { .. }) => {
            let hardware = class::hardware(sys, device)?.ok_or(missing)?;
            let localities = Localities::new(machine);
            let way = |(name, address)| Way {
                name,
                address: Some(address),
                located: localities.of(address),
            };
            settle(machine, device, hardware.into_iter().map(way).collect())
        }
        answer => answer,
    }
}

/// A rule's or an option's node, checked: online, with CPUs.
///
/// # Errors
/// When there is no such node, or it has no online CPU; said with the nearest that has.
pub fn node(machine: &Machine, node: NodeId) -> Result<NodeId, String> {
    if machine.node(node).is_none_or(|found| !found.online) {
        return Err(format!(
            "there is no node {node}; online are {}",
            machine.online_node_set()
        ));
    }
    if has_cpus(machine, node) {
        return Ok(node);
    }
    Err(match nearest_with_cpus(machine, node) {
        Some((near, _)) => {
            format!("node {node} has no online CPUs; the nearest that has is node {near}")
        }
        None => format!("node {node} has no online CPUs"),
    })
}

fn has_cpus(machine: &Machine, node: NodeId) -> bool {
    machine
        .node(node)
        .is_some_and(|node| node.online && node.cpus.intersects(&machine.cpu_states.online))
}

fn nearest_with_cpus(machine: &Machine, from: NodeId) -> Option<(NodeId, Option<Distance>)> {
    nodes_by_distance(machine, from)
        .into_iter()
        .find(|&(node, _)| has_cpus(machine, node))
}

/// A disk such as `vda`, by the PCI function above it.
fn disk(machine: &Machine, localities: &Localities<'_>, device: &str) -> Option<Vec<Way>> {
    let functions = machine.functions_named(device);
    let way = |address| Way {
        name: device.to_owned(),
        address: Some(address),
        located: localities.of(address),
    };
    (!functions.is_empty()).then(|| functions.into_iter().map(way).collect())
}

fn by_address(
    machine: &Machine,
    localities: &Localities<'_>,
    device: &str,
    address: PciAddress,
) -> Result<Vec<Way>, NearError> {
    if machine.pci_device(address).is_none() {
        return Err(unknown_device(machine, device));
    }
    Ok(vec![Way {
        name: device.to_owned(),
        address: Some(address),
        located: localities.of(address),
    }])
}

fn network(machine: &Machine, localities: &Localities<'_>, device: &str) -> Option<Way> {
    let found = machine
        .networks
        .get()?
        .iter()
        .find(|network| network.name == device)?;
    let located = located(localities, found.device, &found.node);
    Some(Way {
        name: device.to_owned(),
        address: found.device,
        located,
    })
}

/// The controllers behind a controller's, a disk's or a subsystem's name; `None` where it is none of these.
fn nvme(
    machine: &Machine,
    localities: &Localities<'_>,
    device: &str,
) -> Result<Option<Vec<Way>>, NearError> {
    for subsystem in machine.nvme.get().into_iter().flatten() {
        let disk = subsystem.namespaces.iter().find(|disk| disk.name == device);
        let serves = |found: &&NvmeController| match disk {
            Some(disk) => disk.paths.iter().any(|path| path.controller == found.name),
            None => subsystem.name == device || found.name == device,
        };
        let serving: Vec<_> = subsystem.controllers.iter().filter(serves).collect();
        if serving.is_empty() && disk.is_none() {
            continue;
        }
        return controllers(localities, device, &serving).map(Some);
    }
    Ok(None)
}

fn controllers(
    localities: &Localities<'_>,
    device: &str,
    serving: &[&NvmeController],
) -> Result<Vec<Way>, NearError> {
    let far = |controller: &NvmeController| {
        controller
            .transport
            .get()
            .filter(|it| *it != "pcie")
            .cloned()
    };
    if let Some(transport) = serving.iter().find_map(|controller| far(controller)) {
        let because = format!("it is reached over {transport}");
        return Err(NearError::NoHardware {
            device: device.to_owned(),
            because,
        });
    }
    let way = |controller: &&NvmeController| Way {
        name: controller.name.clone(),
        address: controller.device,
        located: located(localities, controller.device, &controller.node),
    };
    Ok(serving.iter().map(way).collect())
}

/// A PCI function's place, or for what sits on another bus the kernel's word alone.
fn located(
    localities: &Localities<'_>,
    device: Option<PciAddress>,
    node: &Known<Option<NodeId>>,
) -> EffectiveNode {
    if let Some(address) = device {
        return localities.of(address);
    }
    match node {
        Known::Yes(Some(node)) => EffectiveNode {
            node: Some(*node),
            how: How::Kernel,
        },
        Known::Yes(None) => {
            because("the kernel says none (-1), and it is no PCI device".to_owned())
        }
        Known::No { unknown_reason } => because(unknown_reason.to_string()),
    }
}

fn because(because: String) -> EffectiveNode {
    EffectiveNode {
        node: None,
        how: How::Unknown { because },
    }
}

/// One home from all ways, or why there is none.
fn settle(machine: &Machine, device: &str, mut ways: Vec<Way>) -> Result<Home, NearError> {
    let named = || device.to_owned();
    let Some(first) = ways.first() else {
        return Err(NearError::Unknown {
            device: named(),
            because: "nothing serves it at present".to_owned(),
        });
    };
    if let Some(Way {
        located: EffectiveNode {
            how: How::Unknown { because },
            ..
        },
        ..
    }) = ways.iter().find(|way| way.located.node.is_none())
    {
        return Err(NearError::Unknown {
            device: named(),
            because: because.clone(),
        });
    }
    if ways
        .iter()
        .any(|way| way.located.node != first.located.node)
    {
        let each: Vec<_> = ways
            .iter()
            .map(|way| format!("{} on {}", way.name, way.located))
            .collect();
        return Err(NearError::Ambiguous {
            device: named(),
            ways: each.join(", "),
        });
    }
    let Way {
        address, located, ..
    } = ways.swap_remove(0);
    let own = located.node.unwrap_or_default();
    let (node, distance) = nearest_with_cpus(machine, own).ok_or_else(|| NearError::NoCpus {
        device: named(),
        node: own,
    })?;
    let moved = (node != own).then_some(Moved {
        from: own,
        distance,
    });
    Ok(Home {
        node,
        device: named(),
        address,
        located,
        moved,
    })
}

fn unknown_device(machine: &Machine, device: &str) -> NearError {
    let names = machine.device_names();
    let known = match (names.is_empty(), machine.pci.unknown_reason()) {
        (true, Some(because)) => format!("what devices there are is not known: {because}"),
        (true, None) => {
            "it has neither network nor NVMe devices, name another by its PCI address (lspci)"
                .to_owned()
        }
        (false, _) => format!(
            "{}; any other has a PCI address (lspci)",
            alternatives(device, &names)
        ),
    };
    NearError::NoSuchDevice {
        device: device.chars().take(64).collect(),
        known,
    }
}
