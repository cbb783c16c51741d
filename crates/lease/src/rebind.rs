//! NVMe controllers whose PCI function was put on another node: the driver reads the node once, when it is bound.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A controller needs less than a second; an emulated one on a busy host some more.
const LIVE_WITHIN: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_millis(20);
const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";

/// Binds the NVMe driver of a PCI function again where its controller has another node than the function, and waits
/// until the controller is live. Leaves a function without an NVMe controller as it is.
///
/// # Errors
/// When a disk of the controller has no other path and is in use, or the kernel refuses.
pub(crate) fn controllers_follow(function: &Path) -> io::Result<()> {
    let Some(controller) = controller(function) else {
        return Ok(());
    };
    let node = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    let of_driver = node(controller.join("numa_node"));
    // Kernels that do not show the controller's node have no way to tell whether this is needed.
    if of_driver.is_none() || of_driver == node(function.join("numa_node")) {
        return Ok(());
    }
    for disk in disks_of(&controller) {
        let exclusive = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(Path::new("/dev").join(&disk));
        if exclusive.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            let why = format!("disk {disk} is in use: its driver cannot be bound again now");
            return Err(io::Error::other(why));
        }
    }
    let address = function.file_name().unwrap_or_default();
    let address = address.as_encoded_bytes();
    let driver = fs::canonicalize(function.join("driver"))?;
    fs::write(driver.join("unbind"), address)?;
    fs::write(driver.join("bind"), address)?;
    until_live(function)
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

fn until_live(function: &Path) -> io::Result<()> {
    let until = Instant::now() + LIVE_WITHIN;
    loop {
        let state = controller(function).map(|it| fs::read_to_string(it.join("state")));
        if matches!(state, Some(Ok(state)) if state.trim() == "live") {
            return Ok(());
        }
        if Instant::now() > until {
            let limit = LIVE_WITHIN.as_secs();
            let why = format!(
                "the NVMe controller is not live {limit} s after its driver was bound again"
            );
            return Err(io::Error::other(why));
        }
        sleep(CHECK_EVERY);
    }
}
