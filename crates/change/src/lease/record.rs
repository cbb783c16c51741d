//! The journal of a lease, and the files that it gives another content for a while.
//!
//! ```text
//! 0a1b2c3d {"n":0,"at_s":1763690000,"lease":{"lease_format":2,"pid":4711,"what":"bench probe",...}}
//! 55667788 {"n":1,"at_s":1763690000,"intent":{"write":0,"change":0,"setting":{...},"old":"1\n","new":"0"}}
//! 99aabbcc {"n":2,"at_s":1763690000,"done":{"write":0,"now":"0\n"}}
//! ```
//!
//! In format 1 a file has its `old` content once, and a record for each `new` one.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path};

use nearfar_proc::{damon, error_text, mountinfo};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::journal::{self, Extent, FileRecord, Intent, Line, LineFile, Progress, Record, Written};
use crate::kind::{self, DeviceNode, Setting};
use crate::lease::masks::{self, Masks};
use crate::lease::resource::Resource;
use crate::lease::{LeaseError, Recovered, Undone};
use crate::outcome::UndoResult;
use crate::rebind;
use crate::rollback::{Writer, shows, write_back};
use crate::state::{StateDir, try_lock};
use crate::system::{System, text};

const LEASE_FORMAT: u32 = 2;
const LONGEST: u64 = 64 << 20;

/// A record of a lease's journal.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct LeaseRecord(Record);

impl FileRecord for LeaseRecord {
    const FORMAT: u32 = LEASE_FORMAT;
    const FILE: &str = "lease";
    const OF: &str = "lease";

    fn format(&self) -> Option<u32> {
        match &self.0 {
            Record::Lease(header) => Some(header.lease_format),
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
        let claimed = try_lock(&file);
        let mut journal = LineFile::new(file);
        let begun =
            claimed.and_then(|_| journal.append_cached(system, Record::Lease(header.clone())));
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
    /// One for each file.
    pub(crate) writes: Vec<Written>,
    pub(crate) masks: Vec<Masks>,
    pub(crate) resources: Vec<Resource>,
}

impl LeaseContents {
    pub(crate) fn new(header: LeaseHeader) -> Self {
        Self {
            header,
            writes: Vec::new(),
            masks: Vec::new(),
            resources: Vec::new(),
        }
    }

    /// Undoes everything, newest first.
    pub(crate) fn undo(&mut self, system: &dyn System, journal: &mut LineFile) -> Recovered {
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
        let mut writer = Writer {
            system,
            journal,
            change_set: None,
        };
        let writes = self.writes.iter_mut().rev().filter(|it| it.is_open());
        undone.extend(writes.map(|written| {
            let subject = written.intent.setting.path();
            let is_kernels = ["/proc/", "/sys/"].iter().any(|it| subject.starts_with(it));
            let result = match is_in_groups(system, &subject) {
                // A reboot has put it back, and who has set it since then meant it.
                _ if is_kernels && !same_boot => UndoResult::GoneWithReboot,
                Ok(()) => writer.undo(written),
                Err(error) => UndoResult::gone_or_failed(&error),
            };
            Undone { subject, result }
        }));
        self.settle_nodes(system, journal);
        Recovered {
            what: header.what.clone(),
            pid: header.pid,
            undone,
        }
    }

    /// Notes that the nodes of devices are as before, once all are: until then each is looked at again. From the last one on, in the order
    /// in which they were undone: those without a note then still end with the paths' order of before the first one.
    fn settle_nodes(&self, system: &dyn System, journal: &mut LineFile) {
        let is_node = |it: &&Written| matches!(it.intent.setting, Setting::DeviceNode(_));
        let nodes = || self.writes.iter().filter(is_node);
        if nodes().any(Written::is_open) {
            return;
        }
        let is_undone = |it: &&Written| it.progress == Progress::Undone;
        for written in nodes().rev().filter(is_undone) {
            let (write, gone) = (written.intent.write, false);
            let record = Record::Undone { write, gone };
            if journal.append_cached(system, record).is_err() {
                return;
            }
        }
    }

    /// What a journal has to say for it to hold this.
    pub(crate) fn records(&self) -> Vec<Record> {
        let of_write = |written: &Written| {
            let intent = |new: &String| {
                let new = new.clone();
                Record::Intent(Box::new(Intent {
                    new,
                    ..written.intent.clone()
                }))
            };
            let values = written.earlier.iter().chain([&written.intent.new]);
            let write = written.intent.write;
            let done = written.now.clone().map(|now| Record::Done { write, now });
            values.map(intent).chain(done).collect::<Vec<_>>()
        };
        let records = self.writes.iter().flat_map(of_write);
        let records = records.chain(self.resources.iter().cloned().map(Record::Resource));
        let records = records.chain(self.masks.iter().cloned().map(Record::Masks));
        records.collect()
    }

    /// Adds what a record says. `places`: of the writes by their file.
    fn take(
        &mut self,
        record: Record,
        leases: &Path,
        places: &mut HashMap<String, usize>,
    ) -> Result<(), String> {
        match record {
            Record::Intent(intent) => match places.get(&intent.setting.path()) {
                Some(&place) if !self.writes[place].is_same_file(&intent) => {
                    return Err(has_old(&intent.setting.path()));
                }
                Some(&place) => self.writes[place].intend(intent.new),
                None => self.begin(*intent, leases, places)?,
            },
            Record::Old {
                path,
                old,
                later_paths,
                driver,
            } => {
                if places.contains_key(&path) {
                    return Err(has_old(&path));
                }
                let intent = Intent {
                    later_paths,
                    rebind: driver,
                    ..intent(held(&path, leases)?, self.writes.len(), old.clone(), old)
                };
                self.begin(intent, leases, places)?;
            }
            Record::New { path, new } => match places.get(&path) {
                Some(&place) if self.writes[place].is_open() => self.writes[place].intend(new),
                _ => return Err(format!("{path} has no old content")),
            },
            Record::Masks(group) => self.masks.push(group),
            Record::Resource(resource) => {
                resource.check()?;
                self.resources.push(resource);
            }
            record => journal::advance(&mut self.writes, record)?,
        }
        Ok(())
    }

    fn begin(
        &mut self,
        intent: Intent,
        leases: &Path,
        places: &mut HashMap<String, usize>,
    ) -> Result<(), String> {
        let path = intent.setting.path();
        if held(&path, leases)? != intent.setting {
            return Err(not_held(&path));
        }
        places.insert(path, self.writes.len());
        journal::begin(&mut self.writes, intent)
    }
}

fn has_old(path: &str) -> String {
    format!("{path} has an old content already")
}

/// Reads a journal in this directory. Any bytes may come; a file that no lease may set is an error. `None` where the owner died before
/// it had written anything.
pub(crate) fn read(file: &File, leases: &Path) -> Result<(Option<LeaseContents>, Extent), String> {
    let bytes = journal::load(file, LONGEST).map_err(|error| error_text(&error))?;
    let mut contents: Option<LeaseContents> = None;
    let mut places = HashMap::new();
    let read = journal::read_lines(&bytes, &mut |line: Line<LeaseRecord>| match line.record.0 {
        Record::Lease(header) => {
            contents = Some(LeaseContents::new(header));
            Ok(())
        }
        record => match &mut contents {
            Some(contents) => contents.take(record, leases, &mut places),
            None => Err(LeaseRecord::no_beginning()),
        },
    });
    let extent = read.map_err(|error| error.to_string())?;
    Ok((contents, extent))
}

/// The CPUs of a control group, wherever the groups are mounted.
const OF_GROUPS: &str = "cpuset.cpus";

/// The setting by the name that the kernel has for its file, and the value as text. `leases` is the directory of the leases.
pub(crate) fn checked(
    path: &Path,
    value: &[u8],
    leases: &Path,
) -> Result<(Setting, String), LeaseError> {
    let bad = |reason: String| LeaseError::File {
        path: path.to_owned(),
        reason,
    };
    let new = std::str::from_utf8(value).map_err(|_| bad("the value is no text".to_owned()))?;
    let text_of = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| bad("its name is no text".to_owned()))
    };
    // The class directories are links to where a device is today; the journal keeps the name that was checked.
    let name = match Setting::at(&text_of(path)?) {
        Some(_) => text_of(path)?,
        None => text_of(&fs::canonicalize(path).map_err(|error| bad(error_text(&error)))?)?,
    };
    let setting = held(&name, leases).map_err(bad)?;
    Ok((setting, new.to_owned()))
}

/// The setting of a file that a lease may set. Undoing does what a journal says, with the rights of the process that finds it: nothing
/// else is read or written, whatever the journal says. Who can write a file of the leases' own directory needs no lease for it; tests
/// do. Putting back the nodes of a group's memory moves nothing back, so that is not set for a while.
fn held(path: &str, leases: &Path) -> Result<Setting, String> {
    if let Some(setting) = Setting::at(path).filter(|it| !matches!(it, Setting::CpusetMemory(_))) {
        return Ok(setting);
    }
    let parent = Path::new(path).parent();
    let is_test_file = || fs::canonicalize(leases).is_ok_and(|leases| parent == Some(&leases));
    match is_of_group(path) || is_of_damon(path) || is_test_file() {
        true => Ok(Setting::File(kind::File {
            path: path.to_owned(),
        })),
        false => Err(not_held(path)),
    }
}

fn not_held(path: &str) -> String {
    format!("{path} is none of the files that nearfar sets for a while")
}

fn is_of_group(path: &str) -> bool {
    let path = Path::new(path);
    let leads_up = path.components().any(|it| it == Component::ParentDir);
    path.is_absolute() && path.file_name().is_some_and(|name| name == OF_GROUPS) && !leads_up
}

/// Whether DAMON runs, and in how many threads.
fn is_of_damon(path: &str) -> bool {
    let name = path.strip_prefix(damon::KDAMONDS);
    let name = name.and_then(|name| name.strip_prefix('/'));
    name.is_some_and(|name| {
        name == "nr_kdamonds"
            || name
                .strip_suffix("/state")
                .is_some_and(|thread| thread.parse::<u32>().is_ok())
    })
}

/// Whether the file of a group is where groups are mounted: that file system holds no links and no files of others.
fn is_in_groups(system: &dyn System, path: &str) -> io::Result<()> {
    if !is_of_group(path) {
        return Ok(());
    }
    let mounts = mountinfo::mounts(&system.read("/proc/self/mountinfo")?);
    let above = mounts
        .iter()
        .filter(|it| Path::new(path).starts_with(&it.place));
    // Of those at the same place the last one is seen.
    let seen = above.max_by_key(|it| it.place.components().count());
    match seen.is_some_and(|it| it.kind == "cgroup2") {
        true => Ok(()),
        false => {
            system.read(path)?;
            Err(io::Error::other("it is in no control group"))
        }
    }
}

fn intent(setting: Setting, write: usize, old: String, new: String) -> Intent {
    Intent {
        write: write as u64,
        change: write as u64,
        setting,
        old,
        new,
        owner: None,
        rebind: None,
        later_paths: Vec::new(),
    }
}

/// A write to a file as it is now.
pub(crate) fn intended(
    system: &dyn System,
    setting: Setting,
    write: usize,
    new: &str,
) -> Result<Intent, LeaseError> {
    let path = setting.path();
    let old = is_in_groups(system, &path).and_then(|()| text(system, &path));
    let old = old.map_err(|error| file_error(&path, &error))?;
    let mut intent = intent(setting, write, old, new.to_owned());
    if let Setting::DeviceNode(DeviceNode { device }) = intent.setting {
        intent.later_paths = rebind::later_paths(system, device);
        intent.rebind = rebind::driver(system, device);
    }
    Ok(intent)
}

/// Writes, lets drivers follow, and says what the file says then.
pub(crate) fn write(system: &dyn System, intent: &Intent, new: &str) -> Result<String, LeaseError> {
    let Intent { setting, old, .. } = intent;
    let path = setting.path();
    tracing::info!(
        path,
        old = old.trim_end(),
        new = new.trim_end(),
        "write for a while"
    );
    let written = is_in_groups(system, &path).and_then(|()| {
        write_back(system, &path, new, false)?;
        if let Setting::DeviceNode(DeviceNode { device }) = *setting {
            let is_old = shows(system, setting, old, new);
            rebind::nvme_follows(system, device, intent, is_old, false)?;
        }
        text(system, &path)
    });
    written.map_err(|error| file_error(&path, &error))
}

fn file_error(path: &str, error: &io::Error) -> LeaseError {
    LeaseError::File {
        path: path.into(),
        reason: error_text(error),
    }
}
