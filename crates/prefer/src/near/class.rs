//! The PCI functions below any device that the kernel lists under `/sys/class`.
//!
//! ```text
//! /sys/class/block/sda ──► ../../devices/pci0000:00/0000:00:17.0/ata1/.../block/sda      the last address on the way
//! /sys/class/block/dm-0 ─► ../../devices/virtual/block/dm-0/slaves/{sda,sdb}             each of these in turn
//! /sys/class/net/bond0 ──► ../../devices/virtual/net/bond0/lower_{eth0,eth1}
//! ```

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nearfar_machine::PciAddress;

use super::NearError;

/// Where a device may be listed (Documentation/ABI/testing/sysfs-class-* in the kernel).
const CLASSES: [&str; 7] = [
    "block",
    "net",
    "nvme",
    "drm",
    "infiniband",
    "accel",
    "scsi_host",
];
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
    let Some(found) = CLASSES
        .iter()
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
