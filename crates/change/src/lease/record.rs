//! The journal of a lease.
//!
//! ```text
//! 0a1b2c3d {"n":0,"at_s":1763690000,"lease":{"lease_format":1,"pid":4711,"what":"bench probe",...}}
//! 55667788 {"n":1,"at_s":1763690000,"old":{"path":"/proc/sys/kernel/numa_balancing","old":"1\n"}}
//! 99aabbcc {"n":2,"at_s":1763690000,"new":{"path":"/proc/sys/kernel/numa_balancing","new":"0"}}
//! ```

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::lease::descendants;
use crate::lease::files::{Held, may_be_set};
use crate::lease::masks::Masks;
use crate::lease::resource::Resource;
use crate::lease::{LeaseError, Recovered, claim};
use crate::line_file::LineFile;
use crate::lines::{self, Line};
use crate::rebind::nvme;
use crate::state::StateDir;
use crate::system::System;
use nearfar_machine::PciAddress;
use nearfar_proc::error_text;

pub(crate) const LEASE_FORMAT: u32 = 1;
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

/// Whose lease, and for what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LeaseHeader {
    pub(crate) lease_format: u32,
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

/// A journal that is being written; its owner is who holds this.
pub(crate) struct LeaseJournal(LineFile);

impl LeaseJournal {
    /// Begins one, under the first name that is free. The directory's lock must be held.
    pub(crate) fn begin(
        state: &StateDir,
        system: &dyn System,
        header: &LeaseHeader,
    ) -> Result<(String, Self), LeaseError> {
        use rustix::fs::OFlags;
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
            let mut journal = Self(LineFile::new(file));
            let begun =
                claimed.and_then(|_| journal.append(system, LeaseRecord::Lease(header.clone())));
            if let Err(error) = begun {
                let _ = state.remove_file(&name);
                return Err(failed(&error));
            }
            return Ok((name, journal));
        }
        unreachable!("there are fewer files than numbers")
    }

    /// Appends a record; on disk after [`Self::sync`]. After a failure the journal ends where it ended before.
    pub(crate) fn append(&mut self, system: &dyn System, record: LeaseRecord) -> io::Result<()> {
        self.0.append_cached(system, record)
    }

    pub(crate) fn sync(&self, system: &dyn System) -> io::Result<()> {
        self.0.sync(system)
    }
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
pub(crate) struct LeaseContents<'a> {
    /// None where the owner died before it had written anything.
    pub(crate) header: Option<LeaseHeader>,
    pub(crate) files: Cow<'a, [Held]>,
    pub(crate) masks: Cow<'a, [Masks]>,
    pub(super) resources: Cow<'a, [Resource]>,
}

impl LeaseContents<'_> {
    /// Undoes everything, newest first.
    /// `was_killed`: the owner has not come to it, or not to its end.
    pub(crate) fn undo(&self, system: &dyn System, was_killed: bool) -> Recovered {
        let Some(header) = &self.header else {
            return Recovered {
                what: String::new(),
                pid: 0,
                undone: Vec::new(),
            };
        };
        let same_boot = header.boot == boot();
        // First what uses the settings.
        let resources = self.resources.iter().rev();
        let mut undone: Vec<_> = resources
            .map(|resource| resource.remove(same_boot))
            .collect();
        if same_boot {
            undone.extend(descendants::undo(&self.masks, header));
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
}

/// What is wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseRecordError {
    #[error("{}", error_text(.0))]
    Unreadable(#[from] std::io::Error),
    #[error("it has more than 64 MiB")]
    TooLarge,
    #[error(transparent)]
    Line(#[from] lines::BadLine),
    #[error("lease format {0}, this version knows {LEASE_FORMAT}")]
    Format(u32),
    #[error("a second lease begins")]
    SecondLease,
    #[error("the record that begins the lease is missing")]
    NoLease,
    #[error("{} has an old content already", .0.display())]
    SecondOld(PathBuf),
    #[error("{} has no old content", .0.display())]
    NoOld(PathBuf),
    #[error("{} has a driver whose name is none", .0.display())]
    Driver(PathBuf),
    /// A file or resource that no lease of nearfar has.
    #[error(transparent)]
    Foreign(#[from] ForeignError),
}

/// Something that nearfar neither sets nor makes for a while.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForeignError {
    #[error("{} is none of the files that nearfar sets for a while", .0.display())]
    File(PathBuf),
    #[error("{0} is nothing that nearfar makes")]
    Resource(String),
}

/// Reads a journal in this directory. Any bytes may come; a file that no lease may set is an error.
pub(crate) fn read(file: &File, leases: &Path) -> Result<LeaseContents<'static>, LeaseRecordError> {
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(LeaseRecordError::TooLarge);
    }
    parse(&bytes, leases)
}

fn parse(bytes: &[u8], leases: &Path) -> Result<LeaseContents<'static>, LeaseRecordError> {
    let mut header = None;
    let (mut files, mut masks) = (Vec::<Held>::new(), Vec::new());
    let mut resources = Vec::new();
    let mut places: HashMap<PathBuf, usize> = HashMap::new();
    lines::read(bytes, &mut |line: Line<LeaseRecord>| {
        match (line.record, line.n) {
            (LeaseRecord::Lease(lease), 0) if lease.lease_format == LEASE_FORMAT => {
                header = Some(lease)
            }
            (LeaseRecord::Lease(lease), 0) => {
                return Err(LeaseRecordError::Format(lease.lease_format));
            }
            (LeaseRecord::Lease(_), _) => return Err(LeaseRecordError::SecondLease),
            (_, 0) => return Err(LeaseRecordError::NoLease),
            (
                LeaseRecord::Old {
                    path,
                    old,
                    later_paths,
                    driver,
                },
                _,
            ) => {
                may_be_set(&path, leases)?;
                if driver
                    .as_deref()
                    .is_some_and(|it| !nvme::is_driver_name(it))
                {
                    return Err(LeaseRecordError::Driver(path));
                }
                if places.insert(path.clone(), files.len()).is_some() {
                    return Err(LeaseRecordError::SecondOld(path));
                }
                files.push(Held {
                    path,
                    old,
                    later_paths,
                    driver,
                    ours: BTreeSet::new(),
                });
            }
            (LeaseRecord::New { path, new }, _) => match places.get(&path) {
                Some(&place) => drop(files[place].ours.insert(new)),
                None => return Err(LeaseRecordError::NoOld(path)),
            },
            (LeaseRecord::Masks(group), _) => masks.push(group),
            (LeaseRecord::Resource(resource), _) => {
                resource.check()?;
                resources.push(resource);
            }
        }
        Ok(())
    })?;
    Ok(LeaseContents {
        header,
        files: files.into(),
        masks: masks.into(),
        resources: resources.into(),
    })
}
