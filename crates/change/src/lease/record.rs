//! The journal of a lease, and the files that it gives another content for a while.
//!
//! ```text
//! 0a1b2c3d {"n":0,"at_s":1763690000,"lease":{"lease_format":1,"pid":4711,"what":"bench probe",...}}
//! 55667788 {"n":1,"at_s":1763690000,"old":{"path":"/proc/sys/kernel/numa_balancing","old":"1\n"}}
//! 99aabbcc {"n":2,"at_s":1763690000,"new":{"path":"/proc/sys/kernel/numa_balancing","new":"0"}}
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use nearfar_machine::PciAddress;
use nearfar_proc::{choice, error_text, mountinfo};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::journal::{self, FileRecord, Line, LineFile};
use crate::kind::Setting;
use crate::lease::masks::{self, Masks};
use crate::lease::resource::Resource;
use crate::lease::{LeaseError, Recovered, Undone, claim};
use crate::outcome::UndoResult;
use crate::rebind;
use crate::rollback::{self, Changed, Found};
use crate::state::StateDir;
use crate::system::{System, text};

const LEASE_FORMAT: u32 = 1;
const LONGEST: u64 = 64 << 20;

/// What happened, or is about to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LeaseRecord {
    /// The first line.
    Lease(LeaseHeader),
    /// What a file holds before its first change.
    Old {
        path: PathBuf,
        old: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        later_paths: Vec<PciAddress>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        driver: Option<String>,
    },
    /// What it is about to hold, or was found to hold after a write.
    New { path: PathBuf, new: String },
    /// Threads that are about to be confined.
    Masks(Masks),
    /// What is about to be made, or a process that was started.
    Resource(Resource),
}

impl FileRecord for LeaseRecord {
    const FORMAT: u32 = LEASE_FORMAT;
    const FILE: &str = "lease";
    const OF: &str = "lease";

    fn format(&self) -> Option<u32> {
        match self {
            Self::Lease(header) => Some(header.lease_format),
            _ => None,
        }
    }

    fn other_format(found: u32) -> String {
        format!("lease format {found}, this version knows {LEASE_FORMAT}")
    }
}

/// Whose lease, and for what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LeaseHeader {
    lease_format: u32,
    pub(crate) pid: u32,
    pub(crate) what: String,
    pub(crate) boot: Option<String>,
    /// Clock ticks from boot to the begin of the lease.
    pub(crate) since: u64,
    pub(crate) tool_version: String,
}

impl LeaseHeader {
    pub(crate) fn new(what: &str) -> Self {
        Self {
            lease_format: LEASE_FORMAT,
            pid: std::process::id(),
            what: what.to_owned(),
            boot: boot(),
            since: nearfar_proc::system::ticks_since_boot(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

fn boot() -> Option<String> {
    nearfar_proc::system::boot_id()
        .ok()
        .filter(|id| !id.is_empty())
}

/// Begins a journal, under the first name that is free; its owner is who holds it. The directory's lock must be held.
pub(crate) fn begin(
    state: &StateDir,
    system: &dyn System,
    header: &LeaseHeader,
) -> Result<(String, LineFile), LeaseError> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
    for number in 0_u32.. {
        let name = name(header.pid, number);
        let failed = |error: &io::Error| LeaseError::Journal {
            file: name.clone().into(),
            reason: error_text(error),
        };
        let file = match state.open_file(&name, flags) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => opened.map_err(|error| failed(&error))?,
        };
        let claimed = claim(&file);
        let mut journal = LineFile::new(file);
        let begun =
            claimed.and_then(|_| journal.append_cached(system, LeaseRecord::Lease(header.clone())));
        if let Err(error) = begun {
            let _ = state.remove_file(&name);
            return Err(failed(&error));
        }
        return Ok((name, journal));
    }
    unreachable!("there are fewer files than numbers")
}

fn name(pid: u32, number: u32) -> String {
    format!("lease-{pid}-{number}.journal")
}

/// The owner's number in the name of a journal.
pub(crate) fn owner(file: &str) -> Option<u32> {
    let (pid, number) = file
        .strip_prefix("lease-")?
        .strip_suffix(".journal")?
        .split_once('-')?;
    let pid = pid.parse().ok()?;
    (name(pid, number.parse().ok()?) == file).then_some(pid)
}

/// What a lease holds.
pub(crate) struct LeaseContents {
    pub(crate) header: LeaseHeader,
    pub(crate) files: Vec<Held>,
    pub(crate) masks: Vec<Masks>,
    pub(crate) resources: Vec<Resource>,
}

impl LeaseContents {
    pub(crate) fn new(header: LeaseHeader) -> Self {
        Self {
            header,
            files: Vec::new(),
            masks: Vec::new(),
            resources: Vec::new(),
        }
    }

    /// Undoes everything, newest first.
    /// `was_killed`: the owner has not come to it, or not to its end.
    pub(crate) fn undo(&self, system: &dyn System, was_killed: bool) -> Recovered {
        let header = &self.header;
        let same_boot = header.boot == boot();
        // First what uses the settings.
        let resources = self.resources.iter().rev();
        let mut undone: Vec<_> = resources
            .map(|resource| resource.remove(same_boot))
            .collect();
        if same_boot {
            undone.extend(masks::undo(&self.masks, header));
        }
        undone.extend(
            self.files
                .iter()
                .rev()
                .map(|held| held.undo(system, same_boot, was_killed)),
        );
        Recovered {
            what: header.what.clone(),
            pid: header.pid,
            undone,
        }
    }

    /// Adds what a record says. `places`: of the files by their path.
    fn take(
        &mut self,
        record: LeaseRecord,
        leases: &Path,
        places: &mut HashMap<PathBuf, usize>,
    ) -> Result<(), String> {
        match record {
            LeaseRecord::Lease(_) => {}
            LeaseRecord::Old {
                path,
                old,
                later_paths,
                driver,
            } => {
                may_be_set(&path, leases)?;
                if driver
                    .as_deref()
                    .is_some_and(|it| !rebind::is_driver_name(it))
                {
                    return Err(format!(
                        "{} has a driver whose name is none",
                        path.display()
                    ));
                }
                if places.insert(path.clone(), self.files.len()).is_some() {
                    return Err(format!("{} has an old content already", path.display()));
                }
                self.files.push(Held {
                    path,
                    old,
                    later_paths,
                    driver,
                    ours: BTreeSet::new(),
                });
            }
            LeaseRecord::New { path, new } => match places.get(&path) {
                Some(&place) => drop(self.files[place].ours.insert(new)),
                None => return Err(format!("{} has no old content", path.display())),
            },
            LeaseRecord::Masks(group) => self.masks.push(group),
            LeaseRecord::Resource(resource) => {
                resource.check()?;
                self.resources.push(resource);
            }
        }
        Ok(())
    }
}

/// Reads a journal in this directory. Any bytes may come; a file that no lease may set is an error. `None` where the owner died before
/// it had written anything.
pub(crate) fn read(file: &File, leases: &Path) -> Result<Option<LeaseContents>, String> {
    let bytes = journal::load(file, LONGEST).map_err(|error| error_text(&error))?;
    let mut contents: Option<LeaseContents> = None;
    let mut places = HashMap::new();
    let read = journal::read_lines(&bytes, &mut |line: Line<LeaseRecord>| match line.record {
        LeaseRecord::Lease(header) => {
            contents = Some(LeaseContents::new(header));
            Ok(())
        }
        record => match &mut contents {
            Some(contents) => contents.take(record, leases, &mut places),
            None => Err(LeaseRecord::no_beginning()),
        },
    });
    read.map(|_| contents).map_err(|error| error.to_string())
}

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
    may_be_set(&path, leases).map_err(bad)?;
    Ok((path, new.to_owned()))
}

/// Whether a lease may set this. Undoing does what a journal says, with the rights of the process that finds it: nothing else is read or
/// written, whatever the journal says. Who can write a file of the leases' own directory needs no lease for it; tests do.
fn may_be_set(path: &Path, leases: &Path) -> Result<(), String> {
    let of_group = || path.is_absolute() && is_of_group(path);
    let is_test_file =
        || fs::canonicalize(leases).is_ok_and(|leases| path.parent() == Some(&leases));
    match setting(path).is_some() || of_group() || is_test_file() {
        true => Ok(()),
        false => Err(format!(
            "{} is none of the files that nearfar sets for a while",
            path.display()
        )),
    }
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
            held.later_paths = rebind::later_paths(system, device);
            held.driver = rebind::driver(system, device);
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
        rollback::write_back(system, path, content)?;
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
        let mut is_bound = rebind::bind_unbound(system, &[device], self.driver.as_deref())?;
        is_bound |= rebind::controllers_follow(system, device)?;
        if is_old {
            // Also where none was bound: a kill may have come between two of them.
            is_bound |= rebind::paths_follow(system, device, &self.later_paths)?;
        }
        Ok(is_bound)
    }

    /// Puts it back, if it is as the lease left it.
    /// `was_killed`: the owner has not come to it.
    fn undo(&self, system: &dyn System, same_boot: bool, was_killed: bool) -> Undone {
        let subject = self.path.display().to_string();
        let is_kernels = ["/proc", "/sys"].iter().any(|it| self.path.starts_with(it));
        let result = match same_boot || !is_kernels {
            true => {
                self.restore(system, was_killed)
                    .unwrap_or_else(|error| match is_gone(&error) {
                        true => UndoResult::Gone,
                        false => UndoResult::failed(&error),
                    })
            }
            // A reboot has put it back, and who has set it since then meant it.
            false => UndoResult::GoneWithReboot,
        };
        tracing::info!(
            path = subject,
            new = self.old.trim_end(),
            ?result,
            "put back"
        );
        Undone { subject, result }
    }

    fn restore(&self, system: &dyn System, was_killed: bool) -> io::Result<UndoResult> {
        let now = self.read(system)?;
        let restored = |to: &str| UndoResult::Restored {
            from: now.trim_end().to_owned(),
            to: to.trim_end().to_owned(),
            note: None,
        };
        match self.found(system, &now) {
            // A kill may have come between the file and its driver.
            Found::Old if !self.ours.is_empty() => Ok(match self.follow_old(system, was_killed) {
                Ok(true) => restored(&now),
                Ok(false) => UndoResult::AlreadyBefore,
                Err(error) => UndoResult::failed(&error),
            }),
            Found::Old => Ok(UndoResult::AlreadyBefore),
            Found::Foreign => Ok(UndoResult::ChangedSince {
                now: now.trim_end().to_owned(),
                by_change_set: None,
            }),
            Found::Ours => {
                let back = self.put(system, &self.old)?;
                match self.is_before(system, &back) {
                    true => Ok(restored(&back)),
                    false => Ok(UndoResult::Failed {
                        error: format!("it says {back:?} after {:?} was written", self.old),
                    }),
                }
            }
        }
    }

    /// Lets drivers follow a node that is as before. Whether one was bound.
    fn follow_old(&self, system: &dyn System, was_killed: bool) -> io::Result<bool> {
        // Without a kill, they were unbound on purpose.
        let driver = self.driver.as_deref().filter(|_| was_killed);
        let later = rebind::bind_unbound(system, &self.later_paths, driver);
        // Bound whatever has become of the others.
        let own = self.drivers_follow(system, true);
        Ok(later? | own?)
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
