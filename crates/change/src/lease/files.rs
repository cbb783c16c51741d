//! Files of the kernel that are given another content for a while.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use nearfar_machine::PciAddress;
use nearfar_proc::{choice, error_text, mountinfo};

use crate::cpuset;
use crate::found::{Changed, Found};
use crate::kind::Setting;
use crate::lease::record::{ForeignError, LeaseRecord};
use crate::lease::{LeaseError, UndoStatus, Undone};
use crate::rebind::nvme;
use crate::system::{System, text};

/// The CPUs of a control group, wherever the groups are mounted.
const OF_GROUPS: &str = "cpuset.cpus";

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
    let path = match setting(path) {
        Some(_) => path.to_owned(),
        None => fs::canonicalize(path).map_err(|error| bad(error_text(&error)))?,
    };
    may_be_set(&path, leases).map_err(|error| bad(error.to_string()))?;
    Ok((path, new.to_owned()))
}

/// Whether a lease may set this. Undoing does what a journal says, with the rights of the process that finds it: nothing else is read or
/// written, whatever the journal says. Who can write a file of the leases' own directory needs no lease for it; tests do.
pub(crate) fn may_be_set(path: &Path, leases: &Path) -> Result<(), ForeignError> {
    let of_group = || path.is_absolute() && is_of_group(path);
    let is_test_file =
        || fs::canonicalize(leases).is_ok_and(|leases| path.parent() == Some(&leases));
    let may = setting(path).is_some() || of_group() || is_test_file();
    may.then_some(())
        .ok_or_else(|| ForeignError::File(path.to_owned()))
}

/// What a file sets; `None` for what is not set for a while: putting back the nodes of a group's memory moves nothing back.
fn setting(path: &Path) -> Option<Setting> {
    Setting::at(path.to_str()?).filter(|it| !matches!(it, Setting::CpusetMemory(_)))
}

fn is_of_group(path: &Path) -> bool {
    let leads_up = path.components().any(|it| it == Component::ParentDir);
    path.file_name().is_some_and(|name| name == OF_GROUPS) && !leads_up
}

impl Held {
    /// A file as it is now.
    pub(crate) fn before(system: &dyn System, path: PathBuf) -> Result<Self, LeaseError> {
        let mut held = Self {
            path,
            old: String::new(),
            later_paths: Vec::new(),
            driver: None,
            ours: BTreeSet::new(),
        };
        held.old = held.read(system).map_err(|error| LeaseError::File {
            path: held.path.clone(),
            reason: error_text(&error),
        })?;
        if let Some(device) = held.device() {
            held.later_paths = nvme::later_paths(system, device);
            held.driver = nvme::driver(system, device);
        }
        Ok(held)
    }

    pub(crate) fn record(&self) -> LeaseRecord {
        LeaseRecord::Old {
            path: self.path.clone(),
            old: self.old.clone(),
            later_paths: self.later_paths.clone(),
            driver: self.driver.clone(),
        }
    }

    /// Whether the lease can have made it say this.
    pub(crate) fn is_ours(&self, system: &dyn System, now: &str) -> bool {
        let ours = self.ours.iter().map(String::as_str);
        self.changed(system, |it| it.is_one_of(ours, now))
    }

    /// Whose this content is.
    fn found(&self, system: &dyn System, now: &str) -> Found {
        let ours = self.ours.iter().map(String::as_str);
        self.changed(system, |it| it.found(now, &self.old, ours))
    }

    /// Whether this is the old content.
    fn is_before(&self, system: &dyn System, now: &str) -> bool {
        self.changed(system, |it| it.shows(&self.old, now))
    }

    fn changed<T>(&self, system: &dyn System, look: impl FnOnce(Changed<'_>) -> T) -> T {
        look(Changed {
            system,
            path: &self.path,
            setting: setting(&self.path).as_ref(),
        })
    }

    /// Writes, and says what it says then.
    pub(crate) fn write(&self, system: &dyn System, content: &str) -> Result<String, LeaseError> {
        tracing::info!(path = %self.path.display(), old = self.old.trim_end(), new = content.trim_end(), "write for a while");
        let now = self.put(system, content);
        now.map_err(|error| LeaseError::File {
            path: self.path.clone(),
            reason: error_text(&error),
        })
    }

    /// Writes, lets drivers follow, and says what it says then.
    fn put(&self, system: &dyn System, content: &str) -> io::Result<String> {
        // A write of nothing does not reach the kernel's handler; an empty set of CPUs is an empty line.
        let content = if content.is_empty() { "\n" } else { content };
        let path = self.text_path(system)?;
        cpuset::write_back(system, path, content)?;
        self.drivers_follow(system, self.is_before(system, content))?;
        self.read(system)
    }

    /// The content as it can be written again: of a choice (`always [madvise] never`) the chosen word.
    fn read(&self, system: &dyn System) -> io::Result<String> {
        let text = text(system, self.text_path(system)?)?;
        Ok(choice::chosen(&text).map_or(text.clone(), str::to_owned))
    }

    /// The path for the system; a group's only where groups are mounted: that file system holds no links and no files of others.
    fn text_path(&self, system: &dyn System) -> io::Result<&str> {
        let path = self.path.to_str();
        let path = path.ok_or_else(|| io::Error::other("its name is no text"))?;
        let is_of_groups = || {
            let mounts = mountinfo::mounts(&system.read("/proc/self/mountinfo")?);
            let above = mounts.iter().filter(|it| self.path.starts_with(&it.place));
            // Of those at the same place the last one is seen.
            let seen = above.max_by_key(|it| it.place.components().count());
            io::Result::Ok(seen.is_some_and(|it| it.kind == "cgroup2"))
        };
        if is_of_group(&self.path) && !is_of_groups()? {
            let gone = system.read(path).err().filter(is_gone);
            return Err(gone.unwrap_or_else(|| io::Error::other("it is in no control group")));
        }
        Ok(path)
    }

    /// The PCI function that this is the node of.
    fn device(&self) -> Option<PciAddress> {
        match setting(&self.path)? {
            Setting::DeviceNode(it) => Some(it.device),
            _ => None,
        }
    }

    /// Lets the drivers follow the node of a PCI function. Whether one was bound. `is_old`: the node is as before the lease.
    fn drivers_follow(&self, system: &dyn System, is_old: bool) -> io::Result<bool> {
        let Some(device) = self.device() else {
            return Ok(false);
        };
        let mut is_bound = nvme::bind_unbound(system, &[device], self.driver.as_deref())?;
        is_bound |= nvme::controllers_follow(system, device)?;
        if is_old {
            // Also where none was bound: a kill may have come between two of them.
            is_bound |= nvme::paths_follow(system, device, &self.later_paths)?;
        }
        Ok(is_bound)
    }

    /// Puts it back, if it is as the lease left it.
    /// `was_killed`: the owner has not come to it.
    pub(crate) fn undo(&self, system: &dyn System, same_boot: bool, was_killed: bool) -> Undone {
        let subject = self.path.display().to_string();
        let status = self.status(system, same_boot, was_killed);
        tracing::info!(path = subject, new = self.old.trim_end(), result = ?status, "put back");
        Undone { subject, status }
    }

    fn status(&self, system: &dyn System, same_boot: bool, was_killed: bool) -> UndoStatus {
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
        let now = match self.read(system) {
            Err(error) if is_gone(&error) => return UndoStatus::Gone,
            Err(error) => return failed(&error),
            Ok(now) => now,
        };
        let found = self.found(system, &now);
        if found == Found::Old {
            // A kill may have come between the file and its driver.
            let has_written = !self.ours.is_empty();
            let follow = || {
                // Without a kill, they were unbound on purpose.
                let driver = self.driver.as_deref().filter(|_| was_killed);
                let later = nvme::bind_unbound(system, &self.later_paths, driver);
                // Bound whatever has become of the others.
                let own = self.drivers_follow(system, true);
                Ok(later? | own?)
            };
            return match has_written.then(follow) {
                None | Some(Ok(false)) => UndoStatus::AsBefore,
                Some(Ok(true)) => UndoStatus::PutBack,
                Some(Err(error)) => failed(&error),
            };
        }
        if found == Found::Foreign {
            return UndoStatus::NotOurs { now };
        }
        match self.put(system, &self.old) {
            Ok(back) if self.is_before(system, &back) => UndoStatus::PutBack,
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
