//! Files of the kernel that are given another content for a while.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nearfar_machine::{CpuSet, PciAddress};
use nearfar_proc::{choice, error_text};

use crate::rebind;
use crate::record::{ForeignError, Record};
use crate::{LeaseError, UndoStatus, Undone};

/// The files that are set for a while. Undoing does what a journal says, with the rights of the process that finds it: what is not
/// named here is neither read nor written, whatever the journal says.
const FILES: &[&str] = &[
    "/proc/sys/kernel/numa_balancing",
    // Linux before 5.13; later kernels have them in debugfs (kernel/sched/debug.c).
    "/proc/sys/kernel/numa_balancing_scan_delay_ms",
    "/proc/sys/kernel/numa_balancing_scan_period_max_ms",
    "/proc/sys/kernel/numa_balancing_scan_period_min_ms",
    "/proc/sys/kernel/sched_migration_cost_ns",
    "/sys/kernel/debug/sched/numa_balancing/scan_delay_ms",
    "/sys/kernel/debug/sched/numa_balancing/scan_period_max_ms",
    "/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms",
    "/sys/kernel/debug/sched/migration_cost_ns",
    "/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps",
    "/proc/sys/net/core/rps_sock_flow_entries",
    "/proc/sys/vm/zone_reclaim_mode",
];
/// And this one of any control group, wherever the groups are mounted.
const OF_GROUPS: &str = "cpuset.cpus";
/// The node of a PCI function, below its address.
const NODE: &str = "numa_node";
/// CGROUP2_SUPER_MAGIC (include/uapi/linux/magic.h).
const GROUPS_MAGIC: i64 = 0x6367_7270;

/// More than any of these files holds, in bytes: a set of CPUs as text is the longest.
const LONGEST: u64 = 1 << 20;

/// A file that a lease holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) path: PathBuf,
    /// What puts it back.
    pub(crate) old: String,
    /// Of the node of a PCI function with an NVMe controller: the functions whose controllers the kernel found after it, in that order.
    pub(crate) later_paths: Vec<PciAddress>,
    /// The driver of that controller. A kill while it is bound again leaves the function without one.
    pub(crate) driver: Option<String>,
    /// All that the lease wrote or made the kernel say, and may find there.
    pub(crate) ours: BTreeSet<String>,
}

/// The file by the name the kernel has for it, and the value as text. `leases` is the directory of the leases.
pub(crate) fn checked(
    path: &Path,
    value: &[u8],
    leases: &Path,
) -> Result<(PathBuf, String), LeaseError> {
    let bad = |reason: String| LeaseError::File {
        path: path.to_owned(),
        reason,
    };
    let new = std::str::from_utf8(value).map_err(|_| bad("the value is no text".to_owned()))?;
    // The class directories are links to where a device is today; the journal keeps the name that was checked.
    let path = match is_of_device(path) {
        true => path.to_owned(),
        false => fs::canonicalize(path).map_err(|error| bad(error_text(&error)))?,
    };
    may_be_set(&path, leases).map_err(|error| bad(error.to_string()))?;
    Ok((path, new.to_owned()))
}

/// Whether a lease may set this. Who can write a file of the leases' own directory needs no lease for it; tests do.
pub(crate) fn may_be_set(path: &Path, leases: &Path) -> Result<(), ForeignError> {
    let of_group = path.is_absolute() && path.file_name().is_some_and(|name| name == OF_GROUPS);
    let is_test_file =
        || fs::canonicalize(leases).is_ok_and(|leases| path.parent() == Some(&leases));
    let may = FILES.iter().any(|file| path.as_os_str() == *file)
        || of_group
        || is_of_device(path)
        || is_test_file();
    may.then_some(())
        .ok_or_else(|| ForeignError::File(path.to_owned()))
}

/// Whether it is the setting of an interrupt, a network queue, an NVMe subsystem or the node of a PCI function, whose numbers and names differ
/// from machine to machine.
fn is_of_device(path: &Path) -> bool {
    let Some(path) = path.to_str() else {
        return false;
    };
    let parts: Vec<&str> = path.split('/').collect();
    let number = |text: &str| {
        (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let numbered = |text: &str, prefix: &str| text.strip_prefix(prefix).is_some_and(number);
    match parts[..] {
        ["", "proc", "irq", irq, "smp_affinity_list"] => number(irq),
        [
            "",
            "sys",
            "class",
            "net",
            interface,
            "queues",
            queue,
            "xps_cpus",
        ] => is_interface_name(interface) && numbered(queue, "tx-"),
        [
            "",
            "sys",
            "class",
            "net",
            interface,
            "queues",
            queue,
            "rps_cpus",
        ] => is_interface_name(interface) && numbered(queue, "rx-"),
        ["", "sys", "class", "nvme-subsystem", subsystem, "iopolicy"] => {
            numbered(subsystem, "nvme-subsys")
        }
        ["", "sys", "bus", "pci", "devices", address, NODE] => address
            .parse()
            .is_ok_and(|it: PciAddress| it.to_string() == address),
        _ => false,
    }
}

/// Whether a network interface may have this name. The kernel's `dev_valid_name` (net/core/dev.c) lets more through;
/// nearfar takes the names people and udev give.
pub fn is_interface_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=15).contains(&name.len()) && name.bytes().all(plain) && name != "." && name != ".."
}

/// Whether two contents of a file mean the same: "0-3" and "0,1,2,3" in a list, "f" and "0000000f" in a mask.
fn same(path: &Path, one: &str, other: &str) -> bool {
    if one.trim() == other.trim() {
        return true;
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let cpus = |text: &str| match name? {
        "smp_affinity_list" => CpuSet::parse_list(text.trim()).ok(),
        "xps_cpus" | "rps_cpus" => CpuSet::parse_mask(text.trim()).ok(),
        _ => None,
    };
    cpus(one).is_some_and(|one| Some(one) == cpus(other))
}

impl Held {
    /// A file as it is now.
    pub(crate) fn before(path: PathBuf) -> Result<Self, LeaseError> {
        match read(&path) {
            Ok(old) => Ok(Self {
                later_paths: function_of(&path).map_or_else(Vec::new, rebind::later_paths),
                driver: function_of(&path).and_then(rebind::nvme_driver),
                path,
                old,
                ours: BTreeSet::new(),
            }),
            Err(error) => Err(LeaseError::File {
                path,
                reason: error_text(&error),
            }),
        }
    }

    pub(crate) fn record(&self) -> Record {
        Record::Old {
            path: self.path.clone(),
            old: self.old.clone(),
            later_paths: self.later_paths.clone(),
            driver: self.driver.clone(),
        }
    }

    /// Whether the lease can have made it say this.
    pub(crate) fn is_ours(&self, now: &str) -> bool {
        self.ours.iter().any(|ours| self.is_after(ours, now))
    }

    /// Whether the file says this after `written` was written, see [`write()`].
    fn is_after(&self, written: &str, now: &str) -> bool {
        let of_parent = || cpus_of_parent(&self.path).is_some_and(|it| it.trim() == now.trim());
        same(&self.path, written, now) || (written.trim().is_empty() && of_parent())
    }

    /// Writes, and says what it says then.
    pub(crate) fn write(&self, content: &str) -> Result<String, LeaseError> {
        tracing::info!(path = %self.path.display(), old = self.old.trim_end(), new = content.trim_end(), "write for a while");
        let now = self.put(content);
        now.map_err(|error| LeaseError::File {
            path: self.path.clone(),
            reason: error_text(&error),
        })
    }

    /// Writes, lets drivers follow, and says what it says then.
    fn put(&self, content: &str) -> io::Result<String> {
        write(&self.path, content)?;
        self.drivers_follow(self.is_after(&self.old, content))?;
        read(&self.path)
    }

    /// Lets the drivers follow the node of a PCI function. Whether one was bound. `is_old`: the node is as before the lease.
    fn drivers_follow(&self, is_old: bool) -> io::Result<bool> {
        let Some(function) = function_of(&self.path) else {
            return Ok(false);
        };
        let mut is_bound = rebind::bind_unbound(function, self.driver.as_deref())?;
        is_bound |= rebind::controllers_follow(function)?;
        if !is_old {
            return Ok(is_bound);
        }
        for later in &self.later_paths {
            let later = rebind::function(*later);
            is_bound |= rebind::bind_unbound(&later, self.driver.as_deref())?;
        }
        if is_bound {
            rebind::paths_follow(function, &self.later_paths)?;
        }
        Ok(is_bound)
    }

    /// Puts it back, if it is as the lease left it.
    pub(crate) fn undo(&self, same_boot: bool) -> Undone {
        let (subject, status) = (self.path.display().to_string(), self.status(same_boot));
        tracing::info!(path = subject, new = self.old.trim_end(), result = ?status, "put back");
        Undone { subject, status }
    }

    fn status(&self, same_boot: bool) -> UndoStatus {
        // A reboot has put it back, and who has set it since then meant it.
        if !same_boot
            && ["/proc", "/sys"]
                .iter()
                .any(|kernel| self.path.starts_with(kernel))
        {
            return UndoStatus::Gone;
        }
        let failed = |error: &io::Error| UndoStatus::Failed {
            reason: error_text(error),
        };
        let now = match read(&self.path) {
            Err(error) if is_gone(&error) => return UndoStatus::Gone,
            Err(error) => return failed(&error),
            Ok(now) => now,
        };
        if self.is_after(&self.old, &now) {
            // A kill may have come between the file and its driver.
            let has_written = !self.ours.is_empty();
            return match has_written.then(|| self.drivers_follow(true)) {
                None | Some(Ok(false)) => UndoStatus::AsBefore,
                Some(Ok(true)) => UndoStatus::PutBack,
                Some(Err(error)) => failed(&error),
            };
        }
        if !self.is_ours(&now) {
            return UndoStatus::NotOurs { now };
        }
        match self.put(&self.old) {
            Ok(back) if self.is_after(&self.old, &back) => UndoStatus::PutBack,
            Ok(back) => UndoStatus::Failed {
                reason: format!("it says {:?} after {:?} was written", back, self.old),
            },
            Err(error) if is_gone(&error) => UndoStatus::Gone,
            Err(error) => failed(&error),
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// The content as it can be written again: of a choice (`always [madvise] never`) the chosen word.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = open(path, OpenOptions::new().read(true))?
        .take(LONGEST + 1)
        .read_to_string(&mut text)?;
    if read as u64 > LONGEST {
        return Err(io::Error::other("it holds more than a mebibyte"));
    }
    Ok(choice::chosen(&text).map_or(text.clone(), str::to_owned))
}

/// One write, as the kernel's files need it. Nothing is cut off before it: a kill in between would leave an empty file
/// that is neither before nor ours.
fn write(path: &Path, content: &str) -> io::Result<()> {
    // A write of nothing does not reach the kernel's handler; an empty set of CPUs is an empty line.
    let content = if content.is_empty() { "\n" } else { content };
    let mut file = open(path, OpenOptions::new().write(true))?;
    match file.write_all(content.as_bytes()) {
        // A group with tasks cannot be given back its empty set (`validate_change()` in kernel/cgroup/cpuset.c), which
        // means those of its parent.
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
            let cpus = cpus_of_parent(path).filter(|_| content == "\n");
            return file.write_all(cpus.ok_or(error)?.as_bytes());
        }
        written => written?,
    }
    // The rest of longer old content, in files that have any; the kernel's have no length.
    let _ = file.set_len(content.len() as u64);
    Ok(())
}

/// The PCI function that this is the node of.
fn function_of(path: &Path) -> Option<&Path> {
    path.parent()
        .filter(|_| path.file_name().is_some_and(|name| name == NODE))
}

/// The CPUs that a control group has without a set of its own; `None` where the file is not a set of CPUs.
fn cpus_of_parent(path: &Path) -> Option<String> {
    let parent = path.parent()?.parent()?;
    let is_set = path.file_name()? == OF_GROUPS;
    is_set.then(|| fs::read_to_string(parent.join("cpuset.cpus.effective")).ok())?
}

/// A file that [`may_be_set`], and nothing that only has its name: no link, FIFO or device, and a group's file only where
/// groups are.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let of_group = path.file_name().is_some_and(|name| name == OF_GROUPS);
    if of_group && rustix::fs::fstatfs(&file)?.f_type != GROUPS_MAGIC {
        return Err(io::Error::other("it is in no control group"));
    }
    Ok(file)
}
