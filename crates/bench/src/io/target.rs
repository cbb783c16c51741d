//! What is measured, and which nodes are near it and far from it.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nearfar_machine::{CpuSet, Machine, Node, NodeId, PciAddress, alternatives};
use nearfar_placement::locality::Localities;

use super::identity::Identity;
use super::writable::{block_directory, name};

/// A target that cannot be measured, or whose place is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("--device {name}: there is no such device; {}", alternatives(name, .known))]
    NoDevice { name: String, known: Vec<String> },
    #[error("--device {name}: it has {} disks ({}): name one of them", disks.len(), disks.join(", "))]
    SeveralDisks { name: String, disks: Vec<String> },
    #[error("{} has no size: it is not set up, or its medium is missing", path.display())]
    Empty { path: PathBuf },
    #[error("--device {name}: it has no disk")]
    NoDisk { name: String },
    #[error("--device {name}: not a block device; a regular file is measured with --file")]
    NotBlock { name: String },
    #[error("--file {}: neither a regular file nor a directory; a block device is measured with --device", path.display())]
    NotFile { path: PathBuf },
    #[error(
        "--file {path:?}: fio cannot be given a path that is not UTF-8, or has blanks at an end"
    )]
    Name { path: PathBuf },
    #[error("cannot read {}: {}", path.display(), nearfar_proc::error_text(error))]
    Read { path: PathBuf, error: io::Error },
    #[error("where {what} is is unknown ({reason}): --device-node says which node it is on")]
    NoNode { what: String, reason: String },
    #[error("{option}: node {node} is not online")]
    Offline { option: &'static str, node: NodeId },
    #[error("no online node has {what}")]
    NoNodeWith { what: &'static str },
}

/// A block device or a regular file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    /// Without links.
    pub(super) path: PathBuf,
    /// The disks in sysfs that serve it; none where the file system has no block device of its own.
    pub(super) disks: Vec<PathBuf>,
    /// The PCI functions of those.
    pub(super) functions: Vec<PciAddress>,
    /// Whether the path is a directory in which nearfar makes a file, or that file.
    pub(super) is_made: bool,
    /// Of a block device.
    pub(super) identity: Option<Identity>,
}

impl Target {
    /// A device by any name that Linux has for it, by its PCI address, or by a path.
    pub(super) fn device(machine: &Machine, given: &str) -> Result<Self, TargetError> {
        let path = Path::new("/dev").join(given);
        let path = match path.exists() {
            true if !given.is_empty() => path,
            _ => Path::new("/dev").join(Self::disk_of(machine, given)?),
        };
        let path = fs::canonicalize(&path).map_err(read(&path))?;
        let found = fs::metadata(&path).map_err(read(&path))?;
        if !found.file_type().is_block_device() {
            // A controller is a character device: its disk is meant.
            let disk = Self::disk_of(machine, given).map_err(|_| TargetError::NotBlock {
                name: given.to_owned(),
            })?;
            return Self::at(machine, Path::new("/dev").join(disk));
        }
        Self::at(machine, path)
    }

    /// The one disk of a controller, a subsystem or a PCI function.
    fn disk_of(machine: &Machine, given: &str) -> Result<String, TargetError> {
        let bare = given.strip_prefix("/dev/").unwrap_or(given);
        let functions = machine.functions_named(bare);
        if functions.is_empty() {
            let known = machine.device_names();
            return Err(TargetError::NoDevice {
                name: given.to_owned(),
                known: known.into_iter().map(str::to_owned).collect(),
            });
        }
        let is_disk = |name: &&str| Path::new("/sys/class/block").join(name).exists();
        let names = functions.iter().flat_map(|it| machine.names_on(*it));
        let mut disks: Vec<String> = names.filter(is_disk).map(str::to_owned).collect();
        disks.sort();
        disks.dedup();
        let name = given.to_owned();
        match disks.len() {
            0 => Err(TargetError::NoDisk { name }),
            1 => Ok(disks.remove(0)),
            _ => Err(TargetError::SeveralDisks { name, disks }),
        }
    }

    /// A block device or a regular file by its path.
    pub(super) fn at(machine: &Machine, path: PathBuf) -> Result<Self, TargetError> {
        Self::found(machine, path, false)
    }

    /// A regular file.
    pub(super) fn file(machine: &Machine, path: PathBuf) -> Result<Self, TargetError> {
        let target = Self::at(machine, path)?;
        // --device has the checks that a block device takes.
        match target.identity.is_some() {
            true => Err(TargetError::NotFile { path: target.path }),
            false => Ok(target),
        }
    }

    /// A directory for a file that is made there.
    pub(super) fn directory(machine: &Machine, path: PathBuf) -> Result<Self, TargetError> {
        Self::found(machine, path, true)
    }

    fn found(machine: &Machine, path: PathBuf, is_made: bool) -> Result<Self, TargetError> {
        let path = fs::canonicalize(&path).map_err(read(&path))?;
        let found = fs::metadata(&path).map_err(read(&path))?;
        let number = match found.file_type() {
            kind if kind.is_block_device() => found.rdev(),
            kind if kind.is_file() => found.dev(),
            kind if kind.is_dir() && is_made => found.dev(),
            _ => return Err(TargetError::NotFile { path }),
        };
        // fio cuts blanks off: the command that is shown would be of another file.
        if path.to_str().is_none_or(|it| it.trim() != it) {
            return Err(TargetError::Name { path });
        }
        let identity = match found.file_type().is_block_device() {
            true => Some(Identity::of(number).map_err(read(&path))?),
            false => None,
        };
        if identity.as_ref().is_some_and(Identity::is_empty) {
            return Err(TargetError::Empty { path });
        }
        let mut disks = Vec::new();
        // A file system without a block device, such as tmpfs, has no directory there.
        if let Ok(directory) = block_directory(number) {
            lowest_disks(directory, &mut disks, 0);
        }
        let named = |disk: &PathBuf| machine.functions_named(&name(disk));
        let mut functions: Vec<PciAddress> = disks.iter().flat_map(named).collect();
        functions.sort_unstable();
        functions.dedup();
        Ok(Self {
            path,
            disks,
            functions,
            is_made,
            identity,
        })
    }
}

/// Deeper stacks of device mapper and md do not exist.
const MAX_LAYERS: u32 = 8;

/// The disks below partitions, device mapper and md.
fn lowest_disks(directory: PathBuf, disks: &mut Vec<PathBuf>, layer: u32) {
    let directory = match directory.join("partition").exists() {
        true => directory
            .parent()
            .map_or(directory.clone(), Path::to_path_buf),
        false => directory,
    };
    let slaves = fs::read_dir(directory.join("slaves")).into_iter().flatten();
    let mut slaves: Vec<PathBuf> = slaves
        .filter_map(|it| fs::canonicalize(it.ok()?.path()).ok())
        .collect();
    slaves.sort();
    if slaves.is_empty() || layer == MAX_LAYERS {
        if !disks.contains(&directory) {
            disks.push(directory);
        }
        return;
    }
    for slave in slaves {
        lowest_disks(slave, disks, layer + 1);
    }
}

fn read(path: &Path) -> impl Fn(io::Error) -> TargetError + use<> {
    let path = path.to_owned();
    move |error| TargetError::Read {
        path: path.clone(),
        error,
    }
}

/// The nodes of a machine as seen from a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Surroundings {
    /// Where the device is: a node for each of its controllers.
    nodes: Vec<NodeId>,
    /// Nodes with CPUs that may be used, with their distance to the nearest controller; nearest first.
    cpus: Vec<(u32, NodeId)>,
    /// The same of nodes with memory.
    memory: Vec<(u32, NodeId)>,
}

impl Surroundings {
    /// Around the functions of a device, or around the node of an option. Where neither says anything a machine with one node has
    /// it there.
    pub(super) fn new(
        machine: &Machine,
        allowed: &CpuSet,
        functions: &[PciAddress],
        asked: Option<(NodeId, &'static str)>,
        what: &str,
    ) -> Result<Self, TargetError> {
        let nodes = match asked {
            Some((node, _)) if machine.node(node).is_some_and(|it| it.online) => vec![node],
            Some((node, option)) => return Err(TargetError::Offline { option, node }),
            None => device_nodes(machine, functions, what)?,
        };
        let around = |has: &dyn Fn(&Node) -> bool| {
            let mut around: Vec<(u32, NodeId)> = machine
                .online_nodes()
                .filter(|node| has(node))
                .map(|node| (distance(machine, node.id, &nodes), node.id))
                .collect();
            around.sort_unstable();
            around
        };
        let cpus = around(&|node| usable(machine, allowed, node.id).is_some());
        let memory = around(&|node| node.has_memory() != Some(false));
        if cpus.is_empty() {
            let what = "a CPU that this process may use";
            return Err(TargetError::NoNodeWith { what });
        }
        if memory.is_empty() {
            let what = "memory";
            return Err(TargetError::NoNodeWith { what });
        }
        Ok(Self {
            nodes,
            cpus,
            memory,
        })
    }

    pub(super) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The node of a level of `cpu_node`: `near`, `far` or a number.
    ///
    /// # Errors
    /// Why the machine has none.
    pub(super) fn cpu_node(&self, level: &str) -> Result<NodeId, String> {
        choose(&self.cpus, level, "CPUs")
    }

    /// The node of a level of `memory_node`.
    ///
    /// # Errors
    /// Why the machine has none.
    pub(super) fn memory_node(&self, level: &str) -> Result<NodeId, String> {
        choose(&self.memory, level, "memory")
    }
}

/// The CPUs of a node that this process may use; `None` where there are none.
pub(super) fn usable(machine: &Machine, allowed: &CpuSet, node: NodeId) -> Option<CpuSet> {
    let cpus = machine.node(node)?.known_cpus().intersection(allowed);
    (!cpus.is_empty()).then_some(cpus)
}

fn choose(around: &[(u32, NodeId)], level: &str, has: &str) -> Result<NodeId, String> {
    let nearest = around.first().copied();
    let (least, near) = nearest.ok_or_else(|| format!("no node has {has}"))?;
    match level {
        "near" => Ok(near),
        "far" => {
            let most = around.last().filter(|(distance, _)| *distance > least);
            most.map(|&(_, node)| node)
                .ok_or_else(|| match around.len() {
                    1 => format!("node {near} is the only one with {has}"),
                    _ => format!("all nodes with {has} are equally far from the device"),
                })
        }
        number => {
            let of = |(_, node): &&(u32, NodeId)| node.to_string() == number;
            let found = around.iter().find(of).map(|&(_, node)| node);
            found.ok_or_else(|| format!("node {number} has no {has} that may be used"))
        }
    }
}

/// To the nearest of the nodes; unknown distances are longer than all known ones.
fn distance(machine: &Machine, from: NodeId, nodes: &[NodeId]) -> u32 {
    let to = |&node: &NodeId| match node == from {
        true => 0,
        false => machine.distance(from, node).map_or(u32::MAX, |it| it.0),
    };
    nodes.iter().map(to).min().unwrap_or(u32::MAX)
}

fn device_nodes(
    machine: &Machine,
    functions: &[PciAddress],
    what: &str,
) -> Result<Vec<NodeId>, TargetError> {
    let localities = Localities::new(machine);
    let found: Vec<_> = functions.iter().map(|&it| localities.of(it)).collect();
    let mut nodes: Vec<NodeId> = found.iter().filter_map(|it| it.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if !nodes.is_empty() {
        return Ok(nodes);
    }
    let online: Vec<NodeId> = machine.online_nodes().map(|node| node.id).collect();
    if let [only] = online[..] {
        return Ok(vec![only]);
    }
    let reason = found.first().map(ToString::to_string);
    Err(TargetError::NoNode {
        what: what.to_owned(),
        reason: reason.unwrap_or_else(|| "it belongs to no PCI function".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gallery(name: &str) -> Machine {
        let request = nearfar_sources::Request {
            sources: vec![name.to_owned()],
            ..nearfar_sources::Request::live(nearfar_sources::Want::audit())
        };
        nearfar_sources::read(&request).unwrap()
    }

    fn around(name: &str, device: &str) -> Surroundings {
        let machine = gallery(name);
        let functions = machine.functions_named(device);
        let all = machine.cpu_states.online.clone();
        Surroundings::new(&machine, &all, &functions, None, device).unwrap()
    }

    #[test]
    fn near_and_far_are_by_the_model_where_the_kernel_has_no_node() {
        // nvme1 is on -1; the firmware's node 2 is offline and node 1 is next to it.
        let found = around("x86-case1", "nvme1");
        assert_eq!(found.cpu_node("near"), Ok(NodeId(1)));
        assert_eq!(found.cpu_node("far"), Ok(NodeId(0)));
        assert_eq!(found.memory_node("near"), Ok(NodeId(1)));
        assert_eq!(found.memory_node("0"), Ok(NodeId(0)));
        let error = found.cpu_node("2").unwrap_err();
        assert_eq!(error, "node 2 has no CPUs that may be used");
    }

    #[test]
    fn with_a_controller_on_each_node_nothing_is_far() {
        let found = around("nvme-two-controllers", "nvme-subsys0");
        let error = found.cpu_node("far").unwrap_err();
        assert_eq!(error, "all nodes with CPUs are equally far from the device");
    }

    #[test]
    fn an_unknown_place_is_an_error_and_a_node_can_be_named() {
        let machine = gallery("two-node");
        let all = machine.cpu_states.online.clone();
        let asked = |node: NodeId| (node, "--device-node");
        let on = |node: Option<NodeId>| {
            Surroundings::new(&machine, &all, &[], node.map(asked), "/dev/x")
        };
        let error = on(None).unwrap_err().to_string();
        assert!(
            error.contains("/dev/x") && error.contains("--device-node"),
            "{error}"
        );
        assert_eq!(on(Some(NodeId(1))).unwrap().cpu_node("far"), Ok(NodeId(0)));
        let error = on(Some(NodeId(7))).unwrap_err().to_string();
        assert_eq!(error, "--device-node: node 7 is not online");
    }
}
