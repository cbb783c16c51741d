//! Whether fio may write to a block device: not where something else has or uses what is on it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_proc::mountinfo;

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
        not_mounted(&name, directory).map_err(|error| error.or(&device))?;
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
pub(super) fn block_directory(number: u64) -> io::Result<PathBuf> {
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

enum NotFree {
    Known(NotWritableError),
    Unread(io::Error),
}

impl From<io::Error> for NotFree {
    fn from(error: io::Error) -> Self {
        Self::Unread(error)
    }
}

impl NotFree {
    fn or(self, device: &str) -> NotWritableError {
        match self {
            Self::Known(error) => error,
            Self::Unread(error) => NotWritableError::Unknown {
                device: device.to_owned(),
                reason: nearfar_proc::error_text(&error),
            },
        }
    }
}

fn not_mounted(device: &str, directory: &Path) -> Result<(), NotFree> {
    let number = fs::read_to_string(directory.join("dev"))?;
    let number = number.trim();
    let is_it = |path: &Path| path == Path::new(device) || is_device(path, number);
    // Btrfs gives a number of its own, so the source counts too.
    let mounts = mountinfo::of_this_process()?;
    let mounted = mounts
        .iter()
        .find(|mount| mount.device == number || is_it(&mount.source));
    if let Some(mount) = mounted {
        return Err(NotFree::Known(NotWritableError::Mounted {
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
    match is_swap {
        true => Err(NotFree::Known(NotWritableError::Swap {
            device: device.to_owned(),
        })),
        false => Ok(()),
    }
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
