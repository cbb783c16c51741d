//! Block devices that end with a lease: null_blk in configfs, and loop devices.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use super::removed;
use crate::lease::UndoStatus;

/// Where null_blk has its devices, once it is loaded and configfs is mounted.
pub(super) const NULL: &str = "/sys/kernel/config/nullb";
/// include/uapi/linux/loop.h.
const LOOP_SET_FD: libc::Ioctl = 0x4c00;
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
/// Another process may take the free device first.
const MAX_ATTEMPTS: u32 = 16;

pub(super) fn make_null(name: &str, attributes: &[(&str, &str)]) -> io::Result<PathBuf> {
    if !Path::new(NULL).is_dir() {
        let how = "there is no null_blk: modprobe null_blk nr_devices=0, with configfs mounted";
        return Err(io::Error::other(how));
    }
    let directory = Path::new(NULL).join(name);
    fs::create_dir(&directory)?;
    for (attribute, value) in attributes {
        let named = |error| io::Error::other(format!("{attribute} = {value}: {error}"));
        fs::write(directory.join(attribute), value).map_err(named)?;
    }
    fs::write(directory.join("power"), "1")?;
    // Named after the directory since 6.1, numbered before.
    let device = Path::new("/dev").join(name);
    if Path::new("/sys/block").join(name).exists() {
        return Ok(device);
    }
    let index = fs::read_to_string(directory.join("index"))?;
    Ok(format!("/dev/nullb{}", index.trim()).into())
}

pub(super) fn remove_null(name: &str) -> io::Result<UndoStatus> {
    let directory = Path::new(NULL).join(name);
    match fs::write(directory.join("power"), "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UndoStatus::Gone),
        // One that never had power is removed all the same.
        _ => removed(fs::remove_dir(directory)),
    }
}

pub(super) fn attach(file: &Path) -> io::Result<PathBuf> {
    let backing = OpenOptions::new().read(true).write(true).open(file)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    for _ in 0..MAX_ATTEMPTS {
        let free = ioctl(&control, LOOP_CTL_GET_FREE, 0)?;
        let path = PathBuf::from(format!("/dev/loop{free}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        match ioctl(&device, LOOP_SET_FD, backing.as_raw_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            answer => return answer.map(|_| path),
        }
    }
    Err(io::Error::other(
        "other processes take every free loop device",
    ))
}

/// Detaches the loop devices whose backing file this is.
pub(super) fn detach(file: &Path) -> io::Result<UndoStatus> {
    let mut status = UndoStatus::Gone;
    let Ok(devices) = fs::read_dir("/sys/block") else {
        return Ok(status);
    };
    for device in devices {
        let name = device?.file_name();
        let backing = Path::new("/sys/block")
            .join(&name)
            .join("loop/backing_file");
        let Ok(backing) = fs::read_to_string(backing) else {
            continue;
        };
        let backing = backing
            .trim_end_matches('\n')
            .trim_end_matches(" (deleted)");
        if Path::new(backing) == file {
            let device = File::open(Path::new("/dev").join(&name))?;
            ioctl(&device, LOOP_CLR_FD, 0)?;
            status = UndoStatus::Removed;
        }
    }
    Ok(status)
}

fn ioctl(file: &File, request: libc::Ioctl, argument: i32) -> io::Result<i32> {
    // SAFETY: these requests take an integer and no memory.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, argument) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}
