//! The node of a device, for `--near eth0`: which CPUs are home to whatever works with it.
//!
//! ```text
//! eth0 ────────────► network device ─┐
//! nvme0, nvme0n1 ──► NVMe controller ┼─► PCI address ─► effective node ─► has CPUs? ──► home
//! 41:00.0 ───────────────────────────┤   (how sure: placement::locality)    └─ no: nearest node that has
//! sda, card0, bond0 ─► /sys/class ────┘
//! ```
//!
//! What the kernel does not know is answered as far as the firmware or neighbours tell, and said to be so.
//!
//! ```text
//! /sys/class/block/sda ──► ../../devices/pci0000:00/0000:00:17.0/ata1/.../block/sda      the last address on the way
//! /sys/class/block/dm-0 ─► ../../devices/virtual/block/dm-0/slaves/{sda,sdb}             each of these in turn
//! /sys/class/net/bond0 ──► ../../devices/virtual/net/bond0/lower_{eth0,eth1}
//! ```

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nearfar_machine::{
    DeviceKind, Distance, Known, Machine, NodeId, NodeSet, PciAddress, alternatives,
};
use nearfar_placement::locality::{EffectiveNode, How, Localities};
use nearfar_placement::nodes_by_distance;
use serde::Serialize;

mod visible;

pub use self::visible::Visibility;

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

/// Why a device gives no home, or a node cannot be preferred. Devices are named as they were given.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NearError {
    #[error("there is no node {node}; online are {online}")]
    NoNode { node: NodeId, online: NodeSet },
    #[error(
        "node {node} has no online CPUs{}",
        .nearest.map_or(String::new(), |near| format!("; the nearest that has is node {near}"))
    )]
    NodeWithoutCpus {
        node: NodeId,
        nearest: Option<NodeId>,
    },
    #[error(
        "--near takes a device such as eth0, nvme0 or 0000:41:00.0; for node {0} itself say --node {0}"
    )]
    IsNode(u32),
    /// `known`: the devices that there are, in a sentence.
    #[error("there is no device \"{device}\" here; {known}")]
    NoSuchDevice { device: String, known: String },
    /// It is not a device of its own, and nothing below it is.
    #[error(
        "{device} has no hardware of its own on the PCI bus ({reason}); name the device that it uses, or --node N"
    )]
    NoHardware { device: String, reason: String },
    /// `ways`: each device that serves it with its node.
    #[error("{device} has more than one home: {ways}; name one of them, or --node N")]
    Ambiguous { device: String, ways: String },
    #[error(
        "the node of {device} is unknown: {reason}; measure it with nearfar bench latency, or say --node N"
    )]
    Unknown { device: String, reason: String },
    #[error(
        "{device} is on node {node}, which has no CPUs, and no distance leads from there to a node that has; say --node N"
    )]
    NoCpus { device: String, node: NodeId },
    /// Why no GPU is visible, or it is unknown which.
    #[error("--near-visible-gpu: {reason}")]
    NoVisibleGpu { reason: String },
    #[error("cannot read {file}: {reason}")]
    Unreadable { file: String, reason: String },
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
    settle(machine, device, ways(machine, device)?)
}

/// The same for a device of the running system that the model need not have: also disks, GPUs, InfiniBand devices, and what
/// is stacked on devices (bonds, volumes). `sys` is where sysfs is mounted.
///
/// # Errors
/// As [`home`], and when sysfs cannot be read.
pub fn find(machine: &Machine, sys: &Path, device: &str) -> Result<Home, NearError> {
    match home(machine, device) {
        Err(missing @ NearError::NoSuchDevice { .. }) => {
            let hardware = hardware(sys, device)?.ok_or(missing)?;
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

/// The home of all GPUs that are visible to a program.
///
/// # Errors
/// When there is none, its node is unknown, or they are on several nodes.
pub fn of_visible_gpus(machine: &Machine, visibility: &Visibility<'_>) -> Result<Home, NearError> {
    let gpus = visibility.gpus(machine);
    let gpus = gpus.map_err(|reason| NearError::NoVisibleGpu { reason })?;
    let localities = Localities::new(machine);
    let way = |&address: &PciAddress| Way {
        name: address.to_string(),
        address: Some(address),
        located: localities.of(address),
    };
    settle(machine, "a visible GPU", gpus.iter().map(way).collect())
}

/// A rule's or an option's node, checked: online, with online CPUs.
///
/// # Errors
/// When there is no such node, or it has no online CPU.
pub fn node(machine: &Machine, node: NodeId) -> Result<NodeId, NearError> {
    if machine.node(node).is_none_or(|found| !found.online) {
        let online = machine.online_node_set();
        return Err(NearError::NoNode { node, online });
    }
    if has_cpus(machine, node) {
        return Ok(node);
    }
    let nearest = nearest_with_cpus(machine, node).map(|(near, _)| near);
    Err(NearError::NodeWithoutCpus { node, nearest })
}

fn has_cpus(machine: &Machine, node: NodeId) -> bool {
    machine
        .node(node)
        .is_some_and(|node| node.online && node.known_cpus().intersects(&machine.cpu_states.online))
}

fn nearest_with_cpus(machine: &Machine, from: NodeId) -> Option<(NodeId, Option<Distance>)> {
    nodes_by_distance(machine, from)
        .into_iter()
        .find(|&(node, _)| has_cpus(machine, node))
}

/// What serves a device of the model. Empty where a known device is served by nothing at present.
fn ways(machine: &Machine, device: &str) -> Result<Vec<Way>, NearError> {
    let localities = Localities::new(machine);
    let way = |name: &str, address, node: &Known<Option<NodeId>>| Way {
        name: name.to_owned(),
        address,
        located: located(&localities, address, node),
    };
    let controllers = machine.controllers_named(device);
    if !controllers.is_empty() {
        let mut transports = controllers.iter().filter_map(|it| it.transport.get());
        return match transports.find(|transport| *transport != "pcie") {
            Some(transport) => Err(NearError::NoHardware {
                device: device.to_owned(),
                reason: format!("it is reached over {transport}"),
            }),
            None => Ok(controllers
                .iter()
                .map(|it| way(&it.name, it.device, &it.node))
                .collect()),
        };
    }
    let mut networks = machine.networks.get().into_iter().flatten();
    if let Some(network) = networks.find(|network| network.name == device) {
        return Ok(vec![way(device, network.device, &network.node)]);
    }
    let functions = machine.functions_named(device);
    if functions.is_empty() && !machine.device_names().contains(&device) {
        return Err(unknown_device(machine, device));
    }
    let kernels = Known::Yes(None);
    Ok(functions
        .into_iter()
        .map(|address| way(device, Some(address), &kernels))
        .collect())
}

/// A PCI function's place, or for what sits on another bus the kernel's word alone.
fn located(
    localities: &Localities<'_>,
    device: Option<PciAddress>,
    node: &Known<Option<NodeId>>,
) -> EffectiveNode {
    let reason = match (device, node) {
        (Some(address), _) => return localities.of(address),
        (None, Known::Yes(Some(node))) => {
            let (node, how) = (Some(*node), How::Kernel);
            return EffectiveNode { node, how };
        }
        (None, Known::Yes(None)) => "the kernel says none (-1), and it is no PCI device".to_owned(),
        (None, Known::No { unknown_reason }) => unknown_reason.to_string(),
    };
    let (node, how) = (None, How::Unknown { reason });
    EffectiveNode { node, how }
}

/// One home from all ways, or why there is none.
fn settle(machine: &Machine, device: &str, mut ways: Vec<Way>) -> Result<Home, NearError> {
    let named = || device.to_owned();
    let Some(first) = ways.first() else {
        return Err(NearError::Unknown {
            device: named(),
            reason: "nothing serves it at present".to_owned(),
        });
    };
    if let Some(Way {
        located: EffectiveNode {
            how: How::Unknown { reason },
            ..
        },
        ..
    }) = ways.iter().find(|way| way.located.node.is_none())
    {
        return Err(NearError::Unknown {
            device: named(),
            reason: reason.clone(),
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
        (true, Some(reason)) => format!("what devices there are is not known: {reason}"),
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

/// Volumes stacked deeper than this are taken for a loop of links.
const DEEPEST: usize = 8;

/// The PCI functions that a device is made of, each with the name of the device that sits on it, by name; `None` where no
/// class has such a device.
///
/// # Errors
/// When the device is there and no PCI function is below it, or a directory cannot be read.
pub fn hardware(sys: &Path, device: &str) -> Result<Option<Vec<(String, PciAddress)>>, NearError> {
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    // The kernel writes names with a slash (cciss/c0d0) with an exclamation mark.
    let name = name.replace('/', "!");
    if matches!(name.as_str(), "" | "." | "..") {
        return Ok(None);
    }
    let classes = DeviceKind::ALL.iter().flat_map(|kind| kind.listed_in);
    let Some(found) = classes
        .map(|class| sys.join("class").join(class).join(&name))
        .find(|it| it.exists())
    else {
        return Ok(None);
    };
    let mut functions = BTreeSet::new();
    descend(&found, &name, DEEPEST, &mut functions)?;
    if functions.is_empty() {
        let reason = match found.canonicalize() {
            Ok(place) => format!("{} leads past no PCI device", place.display()),
            Err(error) => error.to_string(),
        };
        return Err(NearError::NoHardware {
            device: device.to_owned(),
            reason,
        });
    }
    Ok(Some(functions.into_iter().collect()))
}

fn descend(
    listed: &Path,
    name: &str,
    deeper: usize,
    functions: &mut BTreeSet<(String, PciAddress)>,
) -> Result<(), NearError> {
    let place = listed
        .canonicalize()
        .map_err(|error| unreadable(listed, &error))?;
    if let Some(address) = last_address(&place) {
        functions.insert((name.to_owned(), address));
        return Ok(());
    }
    if deeper == 0 {
        return Ok(());
    }
    // A partition is a directory below its disk, whose volumes it shares.
    for (below, name) in lower(&place.join("slaves"), "")?
        .into_iter()
        .chain(lower(&place, "lower_")?)
    {
        descend(&below, &name, deeper - 1, functions)?;
    }
    Ok(())
}

/// What a directory links to under names with this prefix.
fn lower(directory: &Path, prefix: &str) -> Result<Vec<(PathBuf, String)>, NearError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(directory, &error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(directory, &error))?;
        if let Some(name) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(prefix))
        {
            found.push((entry.path(), name.to_owned()));
        }
    }
    Ok(found)
}

/// The last PCI address on a path: the function itself, below all bridges.
fn last_address(place: &Path) -> Option<PciAddress> {
    // Full addresses only: parts such as `1:0.0` are something else.
    let address =
        |part: &std::ffi::OsStr| part.to_str().filter(|part| part.len() >= 12)?.parse().ok();
    place.iter().rev().find_map(address)
}

fn unreadable(file: &Path, error: &std::io::Error) -> NearError {
    NearError::Unreadable {
        file: file.display().to_string(),
        reason: error.to_string(),
    }
}
