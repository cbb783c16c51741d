//! NVMe controllers whose PCI function was put on another node: the driver reads the node once, when it is bound.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_machine::PciAddress;

/// A controller needs less than a second; an emulated one on a busy host some more.
const LIVE_WITHIN: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_millis(20);
const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";
const FUNCTIONS: &str = "/sys/bus/pci/devices";
const DRIVERS: &str = "/sys/bus/pci/drivers";

/// A PCI function in sysfs.
pub(crate) fn function(address: PciAddress) -> PathBuf {
    Path::new(FUNCTIONS).join(address.to_string())
}

/// The driver of a function that has an NVMe controller.
pub(crate) fn nvme_driver(function: &Path) -> Option<String> {
    controller(function)?;
    let driver = fs::canonicalize(function.join("driver")).ok()?;
    let name = driver.file_name()?.to_str()?;
    is_driver_name(name).then(|| name.to_owned())
}

/// Whether it can be the name of a directory in /sys/bus/pci/drivers.
pub(crate) fn is_driver_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.')
}

/// Binds this driver to a function that has none, which is how a kill between unbinding and binding leaves it. Whether it was bound.
///
/// # Errors
/// When the kernel refuses, or the controller is not live in time.
pub(crate) fn bind_unbound(function: &Path, driver: Option<&str>) -> io::Result<bool> {
    let Some(driver) = driver.filter(|_| function.exists() && !function.join("driver").exists())
    else {
        return Ok(false);
    };
    let address = function.file_name().unwrap_or_default();
    fs::write(
        Path::new(DRIVERS).join(driver).join("bind"),
        address.as_encoded_bytes(),
    )?;
    until_live(function, false)?;
    Ok(true)
}

/// Whether something has a disk open exclusively: a mount in any namespace, a file system of several devices, swap, a volume manager.
pub fn is_claimed(disk: &str) -> bool {
    let exclusive = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(Path::new("/dev").join(disk));
    exclusive.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Binds the NVMe driver of a PCI function again where its controller has another node than the function, and waits
/// until the controller is live, and its paths are there if it had any. Leaves a function without an NVMe controller as it is.
/// Whether it was bound again.
///
/// # Errors
/// When a disk of the controller has no other path and is in use, or the kernel refuses.
pub(crate) fn controllers_follow(function: &Path) -> io::Result<bool> {
    let Some(controller) = controller(function) else {
        return Ok(false);
    };
    let node = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    let of_driver = node(controller.join("numa_node"));
    // Kernels that do not show the controller's node have no way to tell whether this is needed.
    if of_driver.is_none() || of_driver == node(function.join("numa_node")) {
        return Ok(false);
    }
    bind_again(function, &controller)?;
    Ok(true)
}

/// The functions whose controllers belong to the same subsystem as that of this directory of a function and have higher numbers,
/// ascending: the kernel found them later, unless a driver was bound again since. None where it has no NVMe controller.
pub fn later_paths(function: &Path) -> Vec<PciAddress> {
    let Some(number) = controller(function).and_then(|it| number(&it)) else {
        return Vec::new();
    };
    let mut later: Vec<(u32, PciAddress)> = functions_beside(function)
        .filter_map(|other| {
            let address = other.file_name()?.to_str()?.parse().ok()?;
            Some((self::number(&controller(&other)?)?, address))
        })
        .filter(|(other, _)| *other > number)
        .collect();
    later.sort();
    later.into_iter().map(|(_, address)| address).collect()
}

/// Binds the NVMe drivers of these functions again, in this order, once the controller of the first function is live. Of paths at
/// equal distances the kernel takes the one that it found first (`__nvme_find_path` in drivers/nvme/host/multipath.c), so a
/// function that was bound again gets back its place among the paths only if those that it preceded are bound after it.
/// Functions without a controller of the same subsystem are left alone.
///
/// # Errors
/// When a disk has no other path and is in use, a controller is not live in time, or the kernel refuses.
pub fn paths_follow(function: &Path, later: &[PciAddress]) -> io::Result<()> {
    if !later.is_empty() {
        until_live(function, true)?;
    }
    let others: Vec<PathBuf> = functions_beside(function).collect();
    for address in later {
        let other = self::function(*address);
        if let Some(controller) = controller(&other).filter(|_| others.contains(&other)) {
            bind_again(&other, &controller)?;
        }
    }
    Ok(())
}

fn bind_again(function: &Path, controller: &Path) -> io::Result<()> {
    let had_paths = has_paths(controller);
    for disk in disks_of(controller) {
        if is_claimed(&disk) {
            let why = format!("disk {disk} is in use: its driver cannot be bound again now");
            return Err(io::Error::other(why));
        }
    }
    let address = function.file_name().unwrap_or_default();
    let address = address.as_encoded_bytes();
    let driver = fs::canonicalize(function.join("driver"))?;
    fs::write(driver.join("unbind"), address)?;
    fs::write(driver.join("bind"), address)?;
    until_live(function, had_paths)
}

/// The other PCI functions with a controller of the same subsystem.
fn functions_beside(function: &Path) -> impl Iterator<Item = PathBuf> {
    let name = controller(function).and_then(|it| Some(it.file_name()?.to_owned()));
    let subsystems = names(Path::new(SUBSYSTEMS)).into_iter();
    let subsystem = subsystems
        .map(|subsystem| Path::new(SUBSYSTEMS).join(subsystem))
        .find(|it| name.as_ref().is_some_and(|name| it.join(name).exists()));
    let members = subsystem.map(|subsystem| (names(&subsystem), subsystem));
    let members = members
        .into_iter()
        .flat_map(|(names, subsystem)| names.into_iter().map(move |name| subsystem.join(name)));
    members
        .filter(move |member| member.file_name() != name.as_deref())
        // A link to the controller's directory, which links to its function in turn. Of other transports there is no function.
        .filter_map(|member| {
            let function = fs::canonicalize(member.join("device")).ok()?;
            let function = Path::new(FUNCTIONS).join(function.file_name()?);
            controller(&function).map(|_| function)
        })
}

/// The 3 of nvme3.
fn number(controller: &Path) -> Option<u32> {
    let name = controller.file_name()?.to_str()?;
    name.strip_prefix("nvme")?.parse().ok()
}

/// Whether a disk with several paths has one through this controller: nvme0c1n1.
fn has_paths(controller: &Path) -> bool {
    let is_path = |name: &String| {
        let rest = name.strip_prefix("nvme");
        rest.is_some_and(|rest| rest.contains('c'))
    };
    names(controller).iter().any(is_path)
}

/// The directory of the function's NVMe controller.
fn controller(function: &Path) -> Option<PathBuf> {
    let mut controllers = fs::read_dir(function.join("nvme")).ok()?;
    Some(controllers.next()?.ok()?.path())
}

/// The disks that the controller is a path to.
fn disks_of(controller: &Path) -> Vec<String> {
    let name = controller.file_name().unwrap_or_default();
    let mut disks = names(controller);
    for subsystem in names(Path::new(SUBSYSTEMS)) {
        let subsystem = Path::new(SUBSYSTEMS).join(subsystem);
        if subsystem.join(name).exists() {
            disks.extend(names(&subsystem));
        }
    }
    disks.retain(|name| Path::new("/sys/class/block").join(name).exists());
    disks
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn until_live(function: &Path, had_paths: bool) -> io::Result<()> {
    let until = Instant::now() + LIVE_WITHIN;
    loop {
        let is_live = |it: &PathBuf| {
            let state = fs::read_to_string(it.join("state"));
            state.is_ok_and(|state| state.trim() == "live")
        };
        let live = controller(function).filter(is_live);
        if live.is_some_and(|it| !had_paths || has_paths(&it)) {
            return Ok(());
        }
        if Instant::now() > until {
            let limit = LIVE_WITHIN.as_secs();
            let why = format!(
                "the NVMe controller is not as before {limit} s after its driver was bound again"
            );
            return Err(io::Error::other(why));
        }
        sleep(CHECK_EVERY);
    }
}
