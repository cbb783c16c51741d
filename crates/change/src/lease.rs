//! Temporary changes that belong to a living process: undone when it ends, however it ends.
//!
//! ```text
//!  owner ── flock ──► lease-4711-0.journal     old values, on disk before anything is written over them
//!    │                      ▲      ▲
//!    │ pipe                 │      └── recover(): the next nearfar finds a journal without an owner, and undoes it
//!    └──────► guard ────────┘          a child that waits for the end of the pipe, and undoes it at once
//! ```
//!
//! The kernel lets go of the lock and closes the pipe whatever the owner died of, so no number of a process is ever
//! trusted. Files are recorded and undone as those of a change set; masks and resources have records of their own. Undoing touches
//! only what still is as the owner left it, so it can be done twice, by two, or be killed and begun again.
//!
//! A file belongs to one lease at a time: a second one is refused and told who holds it.
//!
//! The guard is this program again (`nearfar lease-guard DIRECTORY OWNER`), with the reading end of a pipe as its standard input.
//! One guard serves all leases of a process in one directory. An owner that needs it no longer sends it home with a word: it
//! must not wait for what other threads of its owner hold meanwhile.
//!
//! What is **not** defined here: leases of different users do not see each other, and neither user can undo the other's.

mod masks;
mod presence;
mod record;
mod resource;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use nearfar_proc::cpuset::Cpusets;
use nearfar_proc::{TaskId, affinity, error_text};
use rustix::fs::{Access, FlockOperation, OFlags, flock};

use crate::journal::{Extent, LineFile, Progress, Record, Written};
use crate::kind::Setting;
use crate::outcome::UndoResult;
use crate::rollback::shows;
use crate::state::{Location, Lock, STATE_DIR, StateDir, StateError, try_lock};
use crate::system::{Rooted, System};
use record::LeaseContents;

pub use masks::{Masks, Member, whole_sessions};
pub use presence::{Measuring, Presence};
pub(crate) use record::LeaseHeader;
pub use resource::Process;
pub(crate) use resource::Resource;

/// Others hold the directory's lock while they set or undo a few files.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A directory of leases.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leases {
    directory: PathBuf,
}

/// Changes that are undone when this is released or dropped, or its process dies.
pub struct Lease {
    state: StateDir,
    leases: Leases,
    name: String,
    journal: LineFile,
    contents: LeaseContents,
    /// How many resources the journal names that are removed.
    removed: usize,
    /// Whether the journal's name is on disk.
    named: bool,
    released: bool,
    guard: Option<Arc<Guard>>,
    system: Arc<dyn System + Send + Sync>,
}

/// What was undone of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// What the lease was for, in its owner's words.
    pub what: String,
    /// The owner's number.
    pub pid: u32,
    /// Each file, and each group of threads.
    pub undone: Vec<Undone>,
}

/// What became of one change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Undone {
    /// The file's path, or which threads.
    pub subject: String,
    /// What became of it.
    pub result: UndoResult,
}

/// Undoes the leases of this user whose owners are dead. Cheap where there are none: one directory is read.
///
/// # Errors
/// When the directory cannot be read, or others can write to it. A damaged journal is an error too, after all others were
/// undone.
pub fn recover() -> Result<Vec<Recovered>, LeaseError> {
    Leases::of_user()?.recover()
}

impl Leases {
    /// The leases of this user: /var/lib/nearfar/leases for root, $XDG_STATE_HOME/nearfar/leases or
    /// ~/.local/state/nearfar/leases for others (XDG Base Directory Specification).
    ///
    /// # Errors
    /// When there is neither XDG_STATE_HOME nor a directory HOME that this user may enter: services often have none, or root's.
    pub fn of_user() -> Result<Self, LeaseError> {
        if rustix::process::geteuid().is_root() {
            return Ok(Self::at(Path::new(STATE_DIR).join("leases")));
        }
        let absolute = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let enter = |home: &PathBuf| rustix::fs::access(home.join("."), Access::EXEC_OK).is_ok();
        let home = || {
            absolute("HOME")
                .filter(enter)
                .map(|home| home.join(".local/state"))
        };
        let base = absolute("XDG_STATE_HOME")
            .or_else(home)
            .ok_or(LeaseError::NoHome)?;
        Ok(Self::at(base.join("nearfar/leases")))
    }

    /// The leases in this directory.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn location(&self) -> Location {
        Location::Directory(self.directory.clone())
    }

    /// Begins a lease, and its guard where [`guard_with`] was called before. `what` is for those who read about it later.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn take(&self, what: &str) -> Result<Lease, LeaseError> {
        self.take_with(what, Arc::new(live()?))
    }

    /// [`Leases::take`] on a system of the caller's.
    ///
    /// # Errors
    /// As [`Leases::take`].
    pub fn take_with(
        &self,
        what: &str,
        system: Arc<dyn System + Send + Sync>,
    ) -> Result<Lease, LeaseError> {
        let state = StateDir::make(&self.location())?;
        let guard = Guard::of_this_process(&self.directory);
        let contents = LeaseContents::new(LeaseHeader::new(what));
        let lock = Lock::take(&state, Some(LOCK_TIMEOUT), None)?;
        let (name, journal) = record::begin(&state, &*system, &contents.header)?;
        drop(lock);
        tracing::debug!(path = %self.directory.join(&name).display(), what, "lease begun");
        Ok(Lease {
            state,
            leases: self.clone(),
            name,
            journal,
            contents,
            removed: 0,
            named: false,
            released: false,
            guard,
            system,
        })
    }

    /// As [`recover()`], of this directory.
    ///
    /// # Errors
    /// As [`recover()`].
    pub fn recover(&self) -> Result<Vec<Recovered>, LeaseError> {
        self.recover_with(&live()?)
    }

    /// [`Leases::recover`] on a system of the caller's.
    ///
    /// # Errors
    /// As [`recover()`].
    pub fn recover_with(&self, system: &dyn System) -> Result<Vec<Recovered>, LeaseError> {
        let Some(state) = StateDir::find(&self.location())? else {
            return Ok(Vec::new());
        };
        if journals(&state)?.is_empty() {
            return Ok(Vec::new());
        }
        let lock = Lock::take(&state, Some(LOCK_TIMEOUT), None)?;
        let mut recovered = Vec::new();
        let mut bad = None;
        // A journal that cannot be read or undone stays, and keeps no other from being undone.
        for name in journals(&state)? {
            match undo_if_dead(&state, system, &name) {
                Ok(undone) => recovered.extend(undone),
                Err(error) => bad = bad.or(Some(error)),
            }
        }
        drop(lock);
        bad.map_or(Ok(recovered), Err)
    }

    /// Waits until this process has let go of its leases.
    fn wait_for(&self, owner: u32) -> Result<(), LeaseError> {
        let Some(state) = StateDir::find(&self.location())? else {
            return Ok(());
        };
        for name in journals(&state)?
            .iter()
            .filter(|name| record::owner(name) == Some(owner))
        {
            if let Some(file) = open(&state, name)? {
                // The pipe ends a moment before the lock, in whatever order the kernel closes files.
                let _ = flock(&file, FlockOperation::LockShared);
            }
        }
        Ok(())
    }
}

impl Lease {
    /// Begins a lease in the directory of this user.
    ///
    /// # Errors
    /// As [`Leases::take`].
    pub fn take(what: &str) -> Result<Self, LeaseError> {
        Leases::of_user()?.take(what)
    }

    /// Whether a guard stands by that undoes this lease as soon as its owner dies; without one the next nearfar does.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// When it began, in clock ticks since boot as in [`TaskId`].
    pub fn since(&self) -> u64 {
        self.contents.header.since
    }

    /// Gives a file this content and reads it back; what it holds is on disk before. For those of the kernel's files that
    /// `lease/record.rs` lists (and, for tests, files in the directory of the journals): text, written with one write.
    ///
    /// # Errors
    /// When it is none of these files, when another lease holds it, when it cannot be read or written, or reads back as
    /// something else. It is as before then, or undone with the lease.
    pub fn set_file(&mut self, path: &Path, value: &[u8]) -> Result<(), LeaseError> {
        let (setting, new) = record::checked(path, value, &self.leases.directory)?;
        let system = self.system.clone();
        let mut writes = self.contents.writes.iter();
        let index = match writes.position(|it| it.intent.setting == setting) {
            Some(index) => {
                let written = &self.contents.writes[index];
                // A driver can be left unbound whatever the value.
                if !is_ours(&*system, written, &new) || written.intent.rebind.is_some() {
                    self.intend(index, &new)?;
                }
                index
            }
            None => {
                let lock = Lock::take(&self.state, Some(LOCK_TIMEOUT), None)?;
                no_other_holds(&self.state, &*system, &self.name, &setting)?;
                let index = self.contents.writes.len();
                let intent = record::intended(&*system, setting.clone(), index, &new)?;
                self.note(Record::Intent(Box::new(intent.clone())), false)?;
                // From here on others find the file in this journal.
                drop(lock);
                self.contents.writes.push(Written::intended(intent));
                if let Err(error) = self.sync() {
                    // Not held: a further attempt notes it again before it writes.
                    self.contents.writes.pop();
                    return Err(self.journal_failed(&error));
                }
                index
            }
        };
        let now = record::write(&*system, &self.contents.writes[index].intent, &new)?;
        let written = &mut self.contents.writes[index];
        if !shows(&*system, &setting, &new, &now) {
            // What it says now is by our doing as well.
            if !is_ours(&*system, written, &now) {
                self.intend(index, &now)?;
            }
            return Err(LeaseError::ReadBack {
                path: setting.path().into(),
                wrote: new,
                reads: now,
            });
        }
        if written.progress == Progress::Intended {
            written.done(now.clone());
            let write = written.intent.write;
            // Without this record the write stays uncertain.
            let _ = self.note(Record::Done { write, now }, false);
        }
        Ok(())
    }

    /// Notes another value of a file that is held; on disk when this returns.
    fn intend(&mut self, index: usize, new: &str) -> Result<(), LeaseError> {
        let mut intent = self.contents.writes[index].intent.clone();
        intent.new = new.to_owned();
        self.note(Record::Intent(Box::new(intent)), true)?;
        self.contents.writes[index].intend(new.to_owned());
        Ok(())
    }

    /// Notes the masks of threads, before they are set: from now on undoing gives `own` back to each of these threads, to
    /// the threads and processes that they make, wherever they still have `narrow`. Nothing is set by this.
    ///
    /// Written, not forced to disk: threads do not outlive the page cache.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn hold_masks(&mut self, masks: Masks) -> Result<(), LeaseError> {
        self.note(Record::Masks(masks.clone()), false)?;
        self.remember(masks);
        Ok(())
    }

    /// Notes that a thread has this mask by its program's choice: undoing gives nothing back to it, nor to what it makes. Holds
    /// for this lease also where that cannot be written.
    ///
    /// # Errors
    /// When the journal cannot be written: [`recover()`] will not know.
    pub fn note_choice(
        &mut self,
        mask: nearfar_machine::CpuSet,
        member: Member,
    ) -> Result<(), LeaseError> {
        let masks = Masks::new(mask.clone(), mask, vec![member]);
        let noted = self.note(Record::Masks(masks.clone()), false);
        self.remember(masks);
        noted
    }

    fn remember(&mut self, masks: Masks) {
        match self.contents.masks.last_mut().filter(|last| {
            (&last.own, &last.narrow, last.unconfined)
                == (&masks.own, &masks.narrow, masks.unconfined)
        }) {
            Some(last) => last.members.extend(masks.members),
            None => self.contents.masks.push(masks),
        }
    }

    /// Who else has confined this thread: the number of a living process, and its words about why. None where that cannot
    /// be read.
    pub fn confined_by(&self, task: TaskId, process: i32) -> Option<(u32, String)> {
        let header = confined_by(&self.state, &self.name, task, process)
            .ok()
            .flatten()?;
        Some((header.pid, header.what))
    }

    /// Puts these in place of all masks noted so far: for an owner that knows which threads have ended.
    ///
    /// # Errors
    /// When the journal cannot be written; the old one then goes on to count.
    pub fn rewrite_masks(&mut self, masks: Vec<Masks>) -> Result<(), LeaseError> {
        let old = std::mem::replace(&mut self.contents.masks, masks);
        self.rewrite().inspect_err(|_| self.contents.masks = old)
    }

    /// Writes a new journal of what there is now, in place of the old one.
    fn rewrite(&mut self) -> Result<(), LeaseError> {
        let lock = Lock::take(&self.state, Some(LOCK_TIMEOUT), None)?;
        let (name, journal) = record::begin(&self.state, &*self.system, &self.contents.header)?;
        let (old_name, old_journal) = (
            std::mem::replace(&mut self.name, name),
            std::mem::replace(&mut self.journal, journal),
        );
        self.named = false;
        if let Err(error) = self.note_all() {
            let _ = self.state.remove_file(&self.name);
            (self.name, self.journal) = (old_name, old_journal);
            return Err(error);
        }
        self.removed = 0;
        // A kill between the two leaves two journals of one lease, and undoing twice does no harm.
        let removed = self.state.remove_file(&old_name);
        drop(lock);
        removed.map_err(|error| self.journal_failed(&error))
    }

    /// Confines one thread to these CPUs and reads back.
    ///
    /// # Errors
    /// When the thread is gone or another one has its number, when the journal cannot be written, when the kernel refuses.
    pub fn set_affinity(
        &mut self,
        task: TaskId,
        cpus: &nearfar_machine::CpuSet,
    ) -> Result<(), LeaseError> {
        let failed = |error: io::Error| LeaseError::Affinity {
            tid: task.tid,
            reason: error_text(&error),
        };
        let mut member = Member::find(task.tid).map_err(failed)?;
        if member.task != task {
            return Err(LeaseError::Affinity {
                tid: task.tid,
                reason: "it has ended".to_owned(),
            });
        }
        member.whole_session =
            whole_sessions(&BTreeSet::from([member.process])).contains(&member.session);
        let own = affinity::get(task.tid).map_err(failed)?;
        let mut cpusets = Cpusets::of_this_system();
        let masks = match cpusets.asked_for_none(task.tid, &own) {
            true => Masks::unconfined(&cpusets, cpus.clone(), vec![member]),
            false => Masks::new(own, cpus.clone(), vec![member]),
        };
        self.hold_masks(masks)?;
        affinity::set(task.tid, cpus).map_err(failed)?;
        let now = affinity::get(task.tid).map_err(failed)?;
        match now == *cpus {
            true => Ok(()),
            false => Err(failed(io::Error::other(format!(
                "confined to {cpus} it says {now}"
            )))),
        }
    }

    /// Undoes everything, newest first, and ends the lease. Says what became of each change.
    ///
    /// # Errors
    /// When something could not be put back; the journal then stays for [`recover()`].
    pub fn release(mut self) -> Result<Recovered, LeaseError> {
        self.end()
    }

    fn end(&mut self) -> Result<Recovered, LeaseError> {
        self.released = true;
        let recovered = self.contents.undo(&*self.system, &mut self.journal);
        if let Some(failed) = recovered.failed() {
            return Err(failed);
        }
        self.state
            .remove_file(&self.name)
            .map_err(|error| self.journal_failed(&error))?;
        Ok(recovered)
    }

    fn note(&mut self, record: Record, durable: bool) -> Result<(), LeaseError> {
        let noted = self
            .journal
            .append_cached(&*self.system, record)
            .and_then(|()| if durable { self.sync() } else { Ok(()) });
        noted.map_err(|error| self.journal_failed(&error))
    }

    /// Returns when the journal is on disk, with its name.
    fn sync(&mut self) -> io::Result<()> {
        self.journal.sync(&*self.system)?;
        if !self.named {
            self.state.sync()?;
            self.named = true;
        }
        Ok(())
    }

    fn note_all(&mut self) -> Result<(), LeaseError> {
        for record in self.contents.records() {
            self.note(record, false)?;
        }
        self.sync().map_err(|error| self.journal_failed(&error))
    }

    fn journal_failed(&self, error: &io::Error) -> LeaseError {
        let file = self.leases.directory.join(&self.name);
        LeaseError::Journal {
            file,
            reason: error_text(error),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.released {
            let _ = self.end();
        }
    }
}

impl Recovered {
    fn failed(&self) -> Option<LeaseError> {
        self.undone.iter().find_map(|undone| match &undone.result {
            UndoResult::Failed { error } => Some(LeaseError::Undo {
                subject: undone.subject.clone(),
                reason: error.clone(),
            }),
            _ => None,
        })
    }
}

fn live() -> Result<Rooted, LeaseError> {
    Rooted::live().map_err(LeaseError::Root)
}

/// Why a temporary change was not made or not undone.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The directory cannot be used, or stays locked.
    #[error(transparent)]
    Directory(#[from] StateError),
    #[error("cannot open /: {}", error_text(.0))]
    Root(#[source] std::io::Error),
    /// Nowhere to keep a journal.
    #[error(
        "there is neither XDG_STATE_HOME nor a HOME to be entered: set one of them, so that a change can be undone after a crash"
    )]
    NoHome,
    /// Another lease holds the file.
    #[error("{} is held by process {pid} ({what}): wait for it or end it", path.display())]
    Held {
        path: PathBuf,
        /// The other lease's owner.
        pid: u32,
        /// What its lease is for.
        what: String,
    },
    /// The file is none that a lease may set, or it or the value is nothing that could be put back.
    #[error("cannot change {} for a while: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// The kernel took something else than what was written.
    #[error("{} says {reads:?} after {wrote:?} was written", path.display())]
    ReadBack {
        path: PathBuf,
        /// What was written.
        wrote: String,
        /// What it says.
        reads: String,
    },
    /// A resource could not be made.
    #[error("cannot {doing} {}: {error}", path.display())]
    Make {
        /// What was tried: "make the directory".
        doing: &'static str,
        /// What it is, or what it is made of.
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    /// A thread's mask could not be set.
    #[error("cannot confine thread {tid}: {reason}")]
    Affinity {
        /// The thread.
        tid: i32,
        reason: String,
    },
    /// The journal could not be written; what it was to announce was not done.
    #[error("cannot write {}: {reason}; nothing was changed", file.display())]
    Journal {
        /// The journal of the lease.
        file: PathBuf,
        reason: String,
    },
    /// A journal of a dead owner cannot be read.
    #[error(
        "cannot undo what {file} says: {reason}; look at it, put back what it names, and remove it"
    )]
    Unreadable {
        /// The journal.
        file: String,
        reason: String,
    },
    /// Something could not be put back; the next nearfar tries again.
    #[error("cannot put {subject} back: {reason}; the next nearfar will try again")]
    Undo {
        /// The file or the threads.
        subject: String,
        reason: String,
    },
}

/// Whether the lease can have made the file say this.
fn is_ours(system: &dyn System, written: &Written, now: &str) -> bool {
    let mut values = written.values();
    values.any(|it| shows(system, &written.intent.setting, it, now))
}

/// Fails where a living owner's lease, other than the one named, holds the file; undoes it where the owner is dead. The
/// directory's lock must be held.
fn no_other_holds(
    state: &StateDir,
    system: &dyn System,
    mine: &str,
    setting: &Setting,
) -> Result<(), LeaseError> {
    for name in journals(state)?.iter().filter(|name| *name != mine) {
        undo_if_dead(state, system, name)?;
        let Some(file) = open(state, name)? else {
            continue;
        };
        if let (Some(LeaseContents { header, writes, .. }), _) = contents(state, name, &file)?
            && writes.iter().any(|it| it.intent.setting == *setting)
        {
            return Err(LeaseError::Held {
                path: setting.path().into(),
                pid: header.pid,
                what: header.what,
            });
        }
    }
    Ok(())
}

/// The owner, alive, of a lease other than the one named that has confined this thread.
fn confined_by(
    state: &StateDir,
    mine: &str,
    task: TaskId,
    process: i32,
) -> Result<Option<LeaseHeader>, LeaseError> {
    for name in journals(state)?.iter().filter(|name| *name != mine) {
        let Some(file) = open(state, name)? else {
            continue;
        };
        if let (Some(LeaseContents { header, masks, .. }), _) = contents(state, name, &file)?
            && masks::confines(&masks, &header, task, process)
            && !is_dead(state, name, &file)?
        {
            return Ok(Some(header));
        }
    }
    Ok(None)
}

fn undo_if_dead(
    state: &StateDir,
    system: &dyn System,
    name: &str,
) -> Result<Option<Recovered>, LeaseError> {
    let Some(file) = open(state, name)? else {
        return Ok(None);
    };
    if !is_dead(state, name, &file)? {
        return Ok(None);
    }
    let (contents, extent) = contents(state, name, &file)?;
    let journal = LineFile::resume(file, &extent);
    let mut journal = journal.map_err(|error| unreadable(state, name, error_text(&error)))?;
    let recovered = contents.map(|mut contents| contents.undo(system, &mut journal));
    if let Some(failed) = recovered.as_ref().and_then(Recovered::failed) {
        return Err(failed);
    }
    state
        .remove_file(name)
        .map_err(|error| unreadable(state, name, error_text(&error)))?;
    Ok(recovered.filter(|recovered| !recovered.undone.is_empty()))
}

/// Whether a journal's owner is dead; the journal is then ours until the file is closed.
fn is_dead(state: &StateDir, name: &str, file: &File) -> Result<bool, LeaseError> {
    try_lock(file).map_err(|error| unreadable(state, name, error_text(&error)))
}

fn contents(
    state: &StateDir,
    name: &str,
    file: &File,
) -> Result<(Option<LeaseContents>, Extent), LeaseError> {
    record::read(file, Path::new(&state.place)).map_err(|reason| unreadable(state, name, reason))
}

/// None where its owner has just released it.
fn open(state: &StateDir, name: &str) -> Result<Option<File>, LeaseError> {
    match state.open_file(name, OFlags::RDWR | OFlags::APPEND) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened
            .map(Some)
            .map_err(|error| unreadable(state, name, error_text(&error))),
    }
}

fn journals(state: &StateDir) -> Result<Vec<String>, LeaseError> {
    let names = state
        .names()
        .map_err(|error| unreadable(state, "", error_text(&error)))?;
    Ok(names
        .into_iter()
        .filter(|name| record::owner(name).is_some())
        .collect())
}

fn unreadable(state: &StateDir, name: &str, reason: String) -> LeaseError {
    LeaseError::Unreadable {
        file: format!("{}/{name}", state.place),
        reason,
    }
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
static RUNNING: Mutex<Vec<(PathBuf, Weak<Guard>)>> = Mutex::new(Vec::new());

/// The first argument of a guard.
pub const GUARD: &str = "lease-guard";
/// What an owner says that lives on.
const GO_HOME: &[u8] = b".";

/// Says which program stands guard: one that calls [`guard`] when it is started as `PROGRAM lease-guard DIRECTORY OWNER`.
/// Before this is called leases have no guards.
pub fn guard_with(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Stands guard: returns when the owner of standard input's other end is gone and its leases are undone, or when that says
/// that it needs no guard.
///
/// # Errors
/// As [`recover()`].
pub fn guard(directory: &Path, owner: u32) -> Result<Vec<Recovered>, LeaseError> {
    // Ctrl-C and a service manager's SIGTERM are for the owner. In a session of its own the terminal does not reach it.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    // "I stand". The owner may be gone already, and then none reads it.
    let mut out = std::io::stdout();
    let _ = out.write_all(b"!").and_then(|()| out.flush());
    let mut word = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut word);
    let leases = Leases::at(directory.to_owned());
    if word != GO_HOME {
        leases.wait_for(owner)?;
    }
    // What the owner could not put back has no owner now.
    leases.recover()
}

/// A guard that stands by; goes home when dropped.
struct Guard(Child);

impl Guard {
    /// The one of this process, started where there is none yet. None where it cannot be had.
    fn of_this_process(directory: &Path) -> Option<Arc<Self>> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|(_, guard)| guard.strong_count() > 0);
        let known = running
            .iter()
            .find(|(place, _)| place == directory)
            .and_then(|(_, guard)| guard.upgrade());
        known.or_else(|| {
            let guard = Arc::new(Self::start(PROGRAM.get()?, directory)?);
            running.push((directory.to_owned(), Arc::downgrade(&guard)));
            Some(guard)
        })
    }

    fn start(program: &Path, directory: &Path) -> Option<Self> {
        let mut command = Command::new(program);
        command
            .arg(GUARD)
            .arg(directory)
            .arg(std::process::id().to_string());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut guard = Self(command.spawn().ok()?);
        let mut ready = [0];
        let stands = guard.0.stdout.take()?.read_exact(&mut ready).is_ok();
        stands.then_some(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // If it is not read, no process has to end.
            let _ = stdin.write_all(GO_HOME);
        }
        // The lease is released or, in the worst case, undone by the guard now; either takes moments.
        let _ = self.0.wait();
    }
}
