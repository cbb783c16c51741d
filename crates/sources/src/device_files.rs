//! Which tasks of the running system have a device open, or files on it, and which devices read and write the memory of each.
//!
//! ```text
//! device ──► its block devices ─► partitions, dm, md ──► numbers ─┐
//!        └─► its character devices ───────────────────► numbers ──┼─► /proc/PID/fd, maps of each task
//! /proc/PID/mountinfo: file systems without a block number (btrfs, overlay) ─┘
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, PoisonError};

use nearfar_machine::{
    Known, Machine, OpenDevice, PciAddress, Task, TaskFiles, UseKind, UsedFiles,
};
use nearfar_proc::mountinfo::{self, Mount};
use nearfar_proc::open_files::{self, DeviceNumber, OpenFile, parse_number};
use nearfar_proc::tasks;

use crate::parallel;
use crate::tree::{Tree, Unreadable};

const BLOCK: &str = "sys/class/block";
const CHARACTER: &str = "sys/dev/char";
/// File systems without a block device have this major number (`UNNAMED_MAJOR`).
const UNNAMED: u32 = 0;

/// The numbers of a device's files, each with the kernel's name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceNumbers {
    pub block: BTreeMap<DeviceNumber, String>,
    pub character: BTreeMap<DeviceNumber, String>,
}

impl DeviceNumbers {
    /// Those of a device of `machine` by its name ([`Machine::functions_named`]). A disk or namespace has its own block devices only; a
    /// controller or PCI function those of all its disks, and its character devices.
    pub fn of(tree: &Tree, machine: &Machine, name: &str) -> Self {
        let name = name.strip_prefix("/dev/").unwrap_or(name);
        let functions = machine.functions_named(name);
        let links = links(tree, BLOCK);
        let is_disk = links.contains_key(name);
        let disks: Vec<String> = match is_disk {
            true => vec![name.to_owned()],
            false => {
                let names = functions.iter().flat_map(|&at| machine.names_on(at));
                let disks = names.filter(|name| links.contains_key(*name));
                disks.map(str::to_owned).collect()
            }
        };
        Self {
            block: block(tree, &links, disks),
            character: match is_disk {
                true => BTreeMap::new(),
                false => {
                    let all = character(tree, machine).into_iter();
                    let own = all.filter(|it| functions.contains(&it.function));
                    own.map(|it| (it.number, it.name)).collect()
                }
            },
        }
    }

    pub fn is_empty(&self) -> bool {
        self.block.is_empty() && self.character.is_empty()
    }

    /// What the running tasks with these numbers have open. Tasks that have ended, and those that have nothing of it open, are left
    /// out.
    pub fn users(&self, pids: &[i32]) -> Vec<TaskFiles> {
        let mounts = Namespaces::default();
        let read = parallel::map(pids, |&pid| {
            let files = match self.used_by(pid, &mounts) {
                Ok(files) if files.is_empty() => return None,
                Ok(files) => Known::Yes(files),
                Err(error) if tasks::is_gone(&error) => return None,
                Err(error) => unreadable(pid, &error),
            };
            Some(TaskFiles { pid, files })
        });
        read.into_iter().flatten().collect()
    }

    fn used_by(&self, pid: i32, namespaces: &Namespaces) -> io::Result<Vec<UsedFiles>> {
        let mounts = namespaces.of(pid, self);
        // Where the root of a container was mounted, by the number of its file system.
        let own = namespaces.of(std::process::id().cast_signed(), self);
        let mut counts: BTreeMap<(String, UseKind), u32> = BTreeMap::new();
        let mut add = |name: Option<&String>, kind| {
            if let Some(name) = name {
                let count = counts.entry((name.clone(), kind)).or_default();
                *count = count.saturating_add(1);
            }
        };
        open_files::each(pid, |file| match file {
            OpenFile::Block(number) => add(self.block.get(&number), UseKind::Device),
            OpenFile::Character(number) => add(self.character.get(&number), UseKind::Device),
            OpenFile::Other { file_system, mount } => {
                let by_mount = || mount.and_then(|id| mounts.by_id.get(&id));
                let by_number = || own.by_number.get(&file_system);
                let name = self.block.get(&file_system).or_else(by_mount);
                add(name.or_else(by_number), UseKind::File);
            }
        })?;
        // maps has the number of the file system, also for a device node: that is /dev.
        open_files::each_mapped(pid, |number| {
            let name = self.block.get(&number);
            let by_number = |mounts: &Mounts| mounts.by_number.get(&number).cloned();
            let below = || by_number(&mounts).or_else(|| by_number(&own));
            add(name.cloned().or_else(below).as_ref(), UseKind::Mapping);
        })?;
        let used = counts.into_iter();
        let used = used.map(|((name, kind), count)| UsedFiles { name, kind, count });
        Ok(used.collect())
    }

    /// The block device below a file system without a number of its own: what btrfs was mounted from, or where overlay writes. Other
    /// file systems may have any text as their source, and a path of another mount namespace (`is_own` is false) may lead
    /// elsewhere, or to a server that does not answer.
    fn below(&self, mount: &Mount, is_own: bool) -> Option<&String> {
        use std::os::unix::fs::MetadataExt as _;
        let number = |device: u64| (rustix::fs::major(device), rustix::fs::minor(device));
        let stat = |path: &Path| std::fs::metadata(path).ok();
        let found = match mount.kind.as_str() {
            "overlay" if is_own => {
                let upper = mount.option_value("upperdir")?;
                number(stat(upper.is_absolute().then_some(&upper)?)?.dev())
            }
            "btrfs" | "bcachefs" if is_device_path(&mount.source) => {
                number(stat(&mount.source)?.rdev())
            }
            _ => return None,
        };
        self.block.get(&found)
    }
}

fn is_device_path(path: &Path) -> bool {
    let mut parts = path.components();
    path.starts_with("/dev") && !parts.any(|part| part == Component::ParentDir)
}

/// The file systems of a mount namespace that are on the device and do not have its number.
#[derive(Debug, Default)]
struct Mounts {
    by_id: HashMap<u64, String>,
    by_number: HashMap<DeviceNumber, String>,
}

/// Each mount namespace is read once.
#[derive(Default)]
struct Namespaces(Mutex<HashMap<std::path::PathBuf, Arc<Mounts>>>);

impl Namespaces {
    fn of(&self, pid: i32, numbers: &DeviceNumbers) -> Arc<Mounts> {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
        let Ok(name) = namespace(&pid.to_string()) else {
            return Arc::default();
        };
        let is_own = namespace("self").is_ok_and(|own| own == name);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts = all.entry(name).or_insert_with(|| {
            let mut mounts = Mounts::default();
            for mount in mountinfo::of_process(pid).unwrap_or_default() {
                let number = parse_number(&mount.device).filter(|number| number.0 == UNNAMED);
                if let Some((number, name)) = number.zip(numbers.below(&mount, is_own)) {
                    mounts.by_id.insert(mount.id, name.clone());
                    mounts.by_number.insert(number, name.clone());
                }
            }
            Arc::new(mounts)
        });
        Arc::clone(mounts)
    }
}

/// The names in a directory of sysfs, each with what its link says.
fn links(tree: &Tree, directory: &str) -> BTreeMap<String, String> {
    let names = tree.list(directory).unwrap_or_default();
    let link = |name: String| {
        let target = tree.link(&format!("{directory}/{name}")).ok()?;
        Some((name, target))
    };
    names.into_iter().filter_map(link).collect()
}

/// Disks with their partitions and what is made of them (device mapper, md, bcache).
fn block(
    tree: &Tree,
    links: &BTreeMap<String, String>,
    disks: Vec<String>,
) -> BTreeMap<DeviceNumber, String> {
    let mut found = BTreeMap::new();
    let mut wanted = disks;
    while let Some(name) = wanted.pop() {
        let number = tree.text(&format!("{BLOCK}/{name}/dev"));
        let Some(number) = number.ok().and_then(|text| parse_number(&text)) else {
            continue;
        };
        if found.insert(number, name.clone()).is_some() {
            continue;
        }
        let is_partition = |target: &&String| target.rsplit('/').nth(1) == Some(name.as_str());
        let partitions = links.iter().filter(|(_, target)| is_partition(target));
        wanted.extend(partitions.map(|(name, _)| name.clone()));
        let holders = tree.list(&format!("{BLOCK}/{name}/holders"));
        wanted.extend(holders.unwrap_or_default());
    }
    found
}

/// A character device of a PCI function. A VFIO group is one of each of its functions.
struct CharacterDevice {
    number: DeviceNumber,
    name: String,
    function: PciAddress,
    /// Whether the device reads and writes the memory of tasks that have this open.
    reads_memory: bool,
}

/// Those in sysfs, VFIO groups, and those of NVIDIA's driver.
fn character(tree: &Tree, machine: &Machine) -> Vec<CharacterDevice> {
    /// Directories of /sys/class; the last one has a device of a VFIO group (since Linux 6.6).
    const READ_MEMORY: [&str; 5] = ["drm", "accel", "infiniband_verbs", "uio", "vfio-dev"];
    /// Documentation/admin-guide/devices.txt.
    const NVIDIA: u32 = 195;
    let in_sysfs = links(tree, CHARACTER).into_iter();
    let in_sysfs = in_sysfs.filter_map(|(number, target)| {
        let mut parts = target.rsplit('/');
        let (name, class) = (parts.next()?, parts.next()?);
        Some(CharacterDevice {
            number: parse_number(&number)?,
            name: name.to_owned(),
            function: PciAddress::innermost(&target)?,
            reads_memory: READ_MEMORY.contains(&class),
        })
    });
    let group = |group: String| {
        let number = tree.text(&format!("sys/class/vfio/{group}/dev")).ok();
        let number = number.and_then(|text| parse_number(&text));
        let functions = tree.list(&format!("sys/kernel/iommu_groups/{group}/devices"));
        let functions = functions.unwrap_or_default().into_iter();
        functions.filter_map(move |function| {
            Some(CharacterDevice {
                number: number?,
                name: format!("vfio/{group}"),
                function: function.parse().ok()?,
                reads_memory: true,
            })
        })
    };
    let groups = tree.list("sys/class/vfio").unwrap_or_default();
    let nvidia = machine.os_devices.iter().filter_map(|device| {
        let minor = device.name.strip_prefix("nvidia")?.parse().ok()?;
        Some(CharacterDevice {
            number: (NVIDIA, minor),
            name: device.name.clone(),
            function: device.device,
            reads_memory: true,
        })
    });
    let groups = groups.into_iter().flat_map(group);
    in_sysfs.chain(groups).chain(nvidia).collect()
}

/// Adds to tasks of `machine` which of its devices read and write their memory ([`Task::devices`]).
pub fn add_open_devices(tree: &Tree, machine: &Machine, tasks: &mut [Task]) {
    if tasks.is_empty() || !tree.is_live() {
        for task in tasks {
            task.devices = Known::no("open files are read of the running system only");
        }
        return;
    }
    let moves_bulk_data = |at: PciAddress| {
        let kind = machine.pci_device(at).and_then(|device| device.kind());
        kind.is_some_and(|kind| kind.moves_bulk_data)
    };
    let mut devices = character(tree, machine);
    devices.retain(|it| it.reads_memory && moves_bulk_data(it.function));
    devices.sort_by(|a, b| (a.function, &a.name).cmp(&(b.function, &b.name)));
    let found = parallel::map(tasks, |task| match devices.is_empty() {
        true => Known::Yes(Vec::new()),
        false => open_devices(task.pid, &devices),
    });
    for (task, found) in tasks.iter_mut().zip(found) {
        task.devices = found;
    }
}

/// `devices` are in order.
fn open_devices(pid: i32, devices: &[CharacterDevice]) -> Known<Vec<OpenDevice>> {
    let mut open: HashSet<DeviceNumber> = HashSet::new();
    let read = open_files::each(pid, |file| {
        if let OpenFile::Character(number) = file {
            open.insert(number);
        }
    });
    // What has ended has nothing open.
    if let Err(error) = read
        && !tasks::is_gone(&error)
    {
        return unreadable(pid, &error);
    }
    let mut found: Vec<OpenDevice> = Vec::new();
    for it in devices.iter().filter(|it| open.contains(&it.number)) {
        match found.last_mut().filter(|last| last.device == it.function) {
            Some(last) => last.files.push(it.name.clone()),
            None => found.push(OpenDevice {
                device: it.function,
                files: vec![it.name.clone()],
            }),
        }
    }
    Known::Yes(found)
}

/// Why it is unknown what a task has open.
fn unreadable<T>(pid: i32, error: &io::Error) -> Known<T> {
    let error = nearfar_proc::error_text(error);
    Known::no(format!("/proc/{pid}/fd: {error}"))
}

/// The numbers of a device of the running system, which `machine` is.
///
/// # Errors
/// When the running system cannot be read.
pub fn device_numbers(machine: &Machine, name: &str) -> Result<DeviceNumbers, Unreadable> {
    Ok(DeviceNumbers::of(&Tree::live()?, machine, name))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nearfar_machine::{Disk, Origin, PciDevice, RootBus, SourceKind};

    use super::*;

    const FUNCTION: &str = "0000:20:00.0";

    /// A disk with a partition below dm-0, another disk, and character devices of two functions.
    fn tree() -> (tempfile::TempDir, Tree) {
        let directory = tempfile::tempdir().unwrap();
        let link = |path: &str, target: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        };
        let at = format!("../../devices/pci0000:20/{FUNCTION}");
        for (name, number, target) in [
            ("sda", "8:0", format!("{at}/ata1/host0/0:0:0:0/block/sda")),
            (
                "sda1",
                "8:1",
                format!("{at}/ata1/host0/0:0:0:0/block/sda/sda1"),
            ),
            ("sdb", "8:16", format!("{at}/ata2/host1/1:0:0:0/block/sdb")),
            (
                "dm-0",
                "253:0",
                "../../devices/virtual/block/dm-0".to_owned(),
            ),
        ] {
            link(&format!("{BLOCK}/{name}"), &target);
            let device = directory
                .path()
                .join("sys")
                .join(target.trim_start_matches("../../"));
            fs::create_dir_all(device.join("holders")).unwrap();
            fs::write(device.join("dev"), format!("{number}\n")).unwrap();
        }
        let partition =
            format!("sys/devices/pci0000:20/{FUNCTION}/ata1/host0/0:0:0:0/block/sda/sda1");
        link(
            &format!("{partition}/holders/dm-0"),
            "/sys/devices/virtual/block/dm-0",
        );
        link(
            &format!("{CHARACTER}/21:0"),
            &format!("{at}/ata1/host0/0:0:0:0/scsi_generic/sg0"),
        );
        link(
            &format!("{CHARACTER}/10:1"),
            &format!("{at}/0000:21:00.0/misc/other"),
        );
        link(
            &format!("{CHARACTER}/1:3"),
            "../../devices/virtual/mem/null",
        );
        let tree = Tree::at(directory.path()).unwrap();
        (directory, tree)
    }

    fn machine() -> Machine {
        let device: PciAddress = FUNCTION.parse().unwrap();
        let mut machine = Machine::empty(Origin::new(SourceKind::Tree, "test"), "left out");
        let disk = |name: &str| Disk {
            name: name.to_owned(),
            device,
        };
        machine.disks = vec![disk("sda"), disk("sdb")];
        let root = RootBus {
            domain: 0,
            bus: 0x20,
        };
        machine.pci = Known::Yes(vec![PciDevice {
            class: 0x0001_0601,
            node: Known::Yes(None),
            ..PciDevice::unknown(device, root, "")
        }]);
        machine
    }

    fn names(of: &BTreeMap<DeviceNumber, String>) -> Vec<&str> {
        of.values().map(String::as_str).collect()
    }

    #[test]
    fn a_disk_has_its_partitions_and_what_is_made_of_them_and_a_controller_all_of_its_disks() {
        let (_directory, tree) = tree();
        let disk = DeviceNumbers::of(&tree, &machine(), "/dev/sda");
        assert_eq!(names(&disk.block), ["sda", "sda1", "dm-0"]);
        assert!(disk.character.is_empty());
        let controller = DeviceNumbers::of(&tree, &machine(), FUNCTION);
        assert_eq!(names(&controller.block), ["sda", "sda1", "sdb", "dm-0"]);
        assert_eq!(names(&controller.character), ["sg0"]);
        assert!(DeviceNumbers::of(&tree, &machine(), "sdz").is_empty());
    }
}
