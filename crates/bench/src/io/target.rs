//! What is measured, which nodes are near it and far from it, which disk it is, and whether fio may write to it: not where something
//! else has or uses what is on it.
//!
//! A disk is known by its identity. Its name may be another disk's once an NVMe driver has been bound again: a namespace that something
//! holds open keeps its number, and the others move on.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_machine::{CpuSet, Machine, Node, NodeId, PciAddress, alternatives};
use nearfar_placement::locality::Localities;
use nearfar_proc::mountinfo;

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
        let for_any = machine.nodes_for_any();
        let memory = around(&|node| for_any.contains(node.id));
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

const BLOCK_DEVICES: &str = "/sys/class/block";
/// What the kernel has of a disk's own identity, below its directory: of NVMe, of SCSI.
const IDENTITIES: [&str; 2] = ["wwid", "device/wwid"];

/// A disk or one of its partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    /// Its own identity; of a disk without one, where it is in sysfs.
    disk: String,
    partition: Option<String>,
    sectors: String,
}

impl Identity {
    /// Of the block device with this number.
    ///
    /// # Errors
    /// When the kernel has no such device.
    pub(super) fn of(number: u64) -> io::Result<Self> {
        Self::read(&block_directory(number)?)
    }

    fn read(directory: &Path) -> io::Result<Self> {
        let text = |path: PathBuf| fs::read_to_string(path).map(|it| it.trim().to_owned());
        let partition = text(directory.join("partition")).ok();
        let disk = match (&partition, directory.parent()) {
            (Some(_), Some(disk)) => disk,
            _ => directory,
        };
        let own = IDENTITIES.iter().filter_map(|it| text(disk.join(it)).ok());
        let own = own.into_iter().find(|it| !it.is_empty());
        Ok(Self {
            disk: own.unwrap_or_else(|| disk.display().to_string()),
            partition,
            sectors: text(directory.join("size"))?,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sectors == "0"
    }

    /// Opens the device by the path that it had, or by the one that it has now. What is opened has to be this device.
    ///
    /// # Errors
    /// When there is no such device any more, or it cannot be opened.
    pub(super) fn open_with<E: From<io::Error>>(
        &self,
        path: &Path,
        open: impl Fn(&Path) -> Result<File, E>,
    ) -> Result<(PathBuf, File), E> {
        let now = self.path_now(path)?;
        let file = open(&now)?;
        let opened = Self::of(file.metadata()?.rdev())?;
        match opened == *self {
            true => Ok((now, file)),
            false => Err(self.lost(path).into()),
        }
    }

    fn path_now(&self, path: &Path) -> io::Result<PathBuf> {
        let has_it = |path: &Path| {
            let number = fs::metadata(path).ok().map(|it| it.rdev());
            number.is_some_and(|it| Self::of(it).is_ok_and(|found| found == *self))
        };
        if has_it(path) {
            return Ok(path.to_owned());
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(BLOCK_DEVICES)? {
            let device = Path::new("/dev").join(name(&entry?.path()));
            if has_it(&device) {
                found.push(device);
            }
        }
        // Several where a disk has paths that no multipath driver joins.
        match <[PathBuf; 1]>::try_from(found) {
            Ok([device]) => Ok(device),
            Err(_) => Err(self.lost(path)),
        }
    }

    fn lost(&self, path: &Path) -> io::Error {
        io::Error::other(format!(
            "{} is not the device any more that was to be measured ({})",
            path.display(),
            self.disk
        ))
    }
}

/// Why a device is not written to.
#[derive(Debug, thiserror::Error)]
pub enum NotWritableError {
    #[error("{device} is mounted on {}", place.display())]
    Mounted { device: String, place: PathBuf },
    #[error("{device} is swap space")]
    Swap { device: String },
    #[error("{device} has partitions ({partitions})")]
    Partitions { device: String, partitions: String },
    #[error("{device} is held by {holders} (LVM, md, device mapper or the like)")]
    Holders { device: String, holders: String },
    #[error("{device} is in use: another process or the kernel has it open exclusively")]
    InUse { device: String },
    #[error("{device} has a signature ({signature})")]
    Signature { device: String, signature: String },
    #[error("cannot tell whether {device} is free: {reason}")]
    Unknown { device: String, reason: String },
}

impl NotWritableError {
    /// Whether it is what is on the device, not who uses it.
    pub(super) fn is_content(&self) -> bool {
        matches!(self, Self::Partitions { .. } | Self::Signature { .. })
    }
}

/// Opens the device so that nothing can mount or claim it while the file is open, if nothing has it and nothing is on it.
/// `may_destroy`: what is on it does not matter.
///
/// # Errors
/// The first reason not to write to it.
pub(super) fn claim(path: &Path, may_destroy: bool) -> Result<File, NotWritableError> {
    let device = path.display().to_string();
    let unknown = |reason: String| NotWritableError::Unknown {
        device: device.clone(),
        reason,
    };
    let system = |error: io::Error| unknown(nearfar_proc::error_text(&error));
    let number = fs::metadata(path).map_err(system)?.rdev();
    let block = block_directory(number).map_err(system)?;
    let partitions = partitions(&block).map_err(system)?;
    for directory in partitions.iter().chain([&block]) {
        let name = format!("/dev/{}", name(directory));
        if let Some(error) = mounted(&name, directory).map_err(system)? {
            return Err(error);
        }
        no_holders(&name, directory)?;
    }
    if !partitions.is_empty() && !may_destroy {
        let names: Vec<String> = partitions.iter().map(|it| name(it)).collect();
        return Err(NotWritableError::Partitions {
            device,
            partitions: names.join(", "),
        });
    }
    // Before blkid, which would find the signature of what uses it.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
        .open(path);
    let file = match file {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(NotWritableError::InUse { device });
        }
        file => file.map_err(system)?,
    };
    if may_destroy {
        return Ok(file);
    }
    match signature(path).map_err(unknown)? {
        Some(signature) => Err(NotWritableError::Signature { device, signature }),
        None => Ok(file),
    }
}

/// The directory of a block device in sysfs.
fn block_directory(number: u64) -> io::Result<PathBuf> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))
}

/// Its last part: the kernel's name of the device.
pub(super) fn name(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn partitions(block: &Path) -> io::Result<Vec<PathBuf>> {
    let mut partitions = Vec::new();
    for entry in fs::read_dir(block)? {
        let path = entry?.path();
        if path.join("partition").exists() {
            partitions.push(path);
        }
    }
    partitions.sort();
    Ok(partitions)
}

/// Where a device is mounted, or that it is swap space; `None` where it is neither.
fn mounted(device: &str, directory: &Path) -> io::Result<Option<NotWritableError>> {
    let number = fs::read_to_string(directory.join("dev"))?;
    let number = number.trim();
    let is_it = |path: &Path| path == Path::new(device) || is_device(path, number);
    // Btrfs gives a number of its own, so the source counts too.
    let mounts = mountinfo::of_this_process()?;
    let mounted = mounts
        .iter()
        .find(|mount| mount.device == number || is_it(&mount.source));
    if let Some(mount) = mounted {
        return Ok(Some(NotWritableError::Mounted {
            device: device.to_owned(),
            place: mount.place.clone(),
        }));
    }
    // No /proc/swaps: a kernel without swap.
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_swap = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .any(|path| is_it(Path::new(path)));
    let device = device.to_owned();
    Ok(is_swap.then_some(NotWritableError::Swap { device }))
}

/// Whether a path is a device file of this number, `major:minor`.
fn is_device(path: &Path, number: &str) -> bool {
    let Ok(found) = fs::metadata(path) else {
        return false;
    };
    let rdev = found.rdev();
    let is_block = found.mode() & libc::S_IFMT == libc::S_IFBLK;
    is_block && format!("{}:{}", libc::major(rdev), libc::minor(rdev)) == number
}

fn no_holders(device: &str, directory: &Path) -> Result<(), NotWritableError> {
    // Without that directory the kernel has no holders for this kind of device.
    let holders = fs::read_dir(directory.join("holders"));
    let mut holders: Vec<String> = holders
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(name(&entry.ok()?.path())))
        .collect();
    holders.sort();
    match holders.is_empty() {
        true => Ok(()),
        false => Err(NotWritableError::Holders {
            device: device.to_owned(),
            holders: holders.join(", "),
        }),
    }
}

/// What blkid(8) recognises on a device; `None` where that is nothing.
///
/// # Errors
/// When blkid is missing or fails: then nothing is known.
fn signature(path: &Path) -> Result<Option<String>, String> {
    let answer = Command::new("blkid")
        .args(["--probe", "--output", "export"])
        .arg(path)
        .output()
        .map_err(|error| format!("blkid: {}", nearfar_proc::error_text(&error)))?;
    match answer.status.code() {
        Some(0) => Ok(signature_of(&String::from_utf8_lossy(&answer.stdout))),
        // Nothing was found.
        Some(2) => Ok(None),
        // Several signatures that exclude each other.
        Some(8) => Ok(Some("several, of different kinds".to_owned())),
        _ => Err(format!(
            "blkid: {}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.stderr).trim()
        )),
    }
}

/// From lines of `TAG=VALUE`. What a partition table says of a partition is not on the partition.
fn signature_of(export: &str) -> Option<String> {
    let tags = export.lines().filter_map(|line| line.split_once('='));
    let tags: Vec<(&str, &str)> = tags
        .filter(|(tag, _)| *tag != "DEVNAME" && !tag.starts_with("PART_ENTRY_"))
        .collect();
    let value = |wanted: &str| {
        let found = tags.iter().find(|(tag, _)| *tag == wanted);
        found.map(|(tag, value)| format!("{tag} {value}"))
    };
    let named = value("TYPE").or_else(|| value("PTTYPE"));
    match tags.is_empty() {
        true => None,
        false => Some(named.unwrap_or_else(|| "of an unknown kind".to_owned())),
    }
}

/// Whether two names are the same file or device.
pub(super) fn is_same(one: &Path, other: &OsStr) -> bool {
    let canonical = |path: &Path| fs::canonicalize(path).ok();
    let other = Path::new(other);
    let in_dev = Path::new("/dev").join(other);
    canonical(one).is_some_and(|one| {
        [other, &in_dev]
            .into_iter()
            .filter_map(canonical)
            .any(|it| it == one)
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

    fn disk(root: &Path, name: &str, wwid: Option<&str>) -> PathBuf {
        let directory = root.join(name);
        let partition = directory.join(format!("{name}p1"));
        fs::create_dir_all(&partition).unwrap();
        fs::write(directory.join("size"), "2048\n").unwrap();
        fs::write(partition.join("size"), "1024\n").unwrap();
        fs::write(partition.join("partition"), "1\n").unwrap();
        if let Some(wwid) = wwid {
            fs::write(directory.join("wwid"), format!("{wwid}\n")).unwrap();
        }
        directory
    }

    #[test]
    fn a_disk_is_known_by_its_own_identity_and_not_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        let read = |path: &Path| Identity::read(path).unwrap();
        let before = read(&disk(root.path(), "nvme0n1", Some("uuid.1")));
        let renamed = disk(root.path(), "nvme0n2", Some("uuid.1"));
        assert_eq!(read(&renamed), before);
        let partition = read(&renamed.join("nvme0n2p1"));
        assert_eq!(
            (&partition.disk, partition.partition.as_deref()),
            (&before.disk, Some("1"))
        );
        assert_ne!(partition, before);
        assert_ne!(read(&disk(root.path(), "nvme0n3", Some("uuid.2"))), before);
        let nameless = ["loop0", "loop1"].map(|name| read(&disk(root.path(), name, None)));
        assert_ne!(nameless[0], nameless[1]);
    }

    #[test]
    fn a_device_that_is_gone_is_no_other_one() {
        let gone = Identity {
            disk: "uuid.none".to_owned(),
            partition: None,
            sectors: "1".to_owned(),
        };
        let error = gone.open_with(Path::new("/dev/null"), |path| File::open(path));
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("/dev/null is not the device any more"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_partition_has_no_signature() {
        let entry = "DEVNAME=/dev/loop0p1\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_TYPE=0fc6\n";
        assert_eq!(signature_of(entry), None);
        assert_eq!(signature_of(""), None);
        let ext4 = format!("{entry}UUID=1\nTYPE=ext4\nUSAGE=filesystem\n");
        assert_eq!(signature_of(&ext4).as_deref(), Some("TYPE ext4"));
        let table = "DEVNAME=/dev/loop0\nPTUUID=1\nPTTYPE=gpt\n";
        assert_eq!(signature_of(table).as_deref(), Some("PTTYPE gpt"));
        assert_eq!(
            signature_of("LABEL=x\n").as_deref(),
            Some("of an unknown kind")
        );
    }
}
