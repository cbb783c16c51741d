//! The folder of a fleet run: what was asked, what happened, and an answer of each host.
//!
//! ```text
//! DIR/fleet-run.json            what was asked: engine, hosts, verb
//! DIR/events.jsonl              what happened to each host, one line each, only appended to
//! DIR/hosts/n1.result.gz        the answer of a host (crate::result), renamed to this name when it is whole
//! DIR/logs/n1.err               standard error of its step
//! ```
//!
//! It says which commands are run on which hosts, so it is used only where no other user can write it or replace it
//! ([`nearfar_change::trusted`]). What is made here gets its mode explicitly: the umask may give the group write access, and so may
//! the default ACL of the directory above.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nearfar_change::trusted::{self, TrustError, TrustedDir};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::{EngineSettings, quoted};
use crate::hosts::HostName;
use crate::result::{Brief, Ended, HostResult, ResultError, hexadecimal};

/// The shape of `fleet-run.json`.
pub const SCHEMA: &str = "fleet-run/1";
const MANIFEST: &str = "fleet-run.json";
const EVENTS: &str = "events.jsonl";
/// The most that one file may have, in bytes: an answer is compressed.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;
/// The longest line of events or of the audit log, in bytes.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// Mode of what is made in the folder: every user can read it, this one write it.
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// What is shown of a host's standard error, in bytes from its end.
const MAX_LOG_BYTES: u64 = 4096;

/// What was asked of which hosts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: String,
    /// 16 hexadecimal digits, random: the run's name in the dataset and in the names of its jobs.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Seconds since 1970.
    pub started_at_s: f64,
    /// `user@host`: who asked.
    pub by: String,
    /// The version that began it.
    pub nearfar: String,
    pub engine: EngineSettings,
    /// How nearfar is called on the hosts: a name, a path, or words before it such as a container's.
    pub command: Vec<String>,
    pub step: Step,
    /// The verb and its arguments.
    pub arguments: Vec<String>,
    /// How many hosts are asked at the same time, at most.
    pub at_once: usize,
    pub hosts: Vec<HostName>,
}

/// What became of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum HostEvent {
    /// Its step is about to be handed to the engine.
    Starting,
    /// Its step was handed to the engine, which calls it by this name.
    Started {
        job: String,
    },
    Answered,
    /// nearfar ran there and failed.
    Failed {
        reason: String,
    },
    /// No answer came.
    Lost {
        reason: String,
        /// Whether the host is known not to have begun its step.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_not_begun: bool,
    },
}

/// A line of `events.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub at_s: f64,
    /// `user@host`: who asked for it.
    pub by: String,
    pub host: HostName,
    #[serde(flatten)]
    pub event: HostEvent,
}

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot {action} {path}: {reason}")]
    File {
        action: &'static str,
        path: String,
        reason: io::Error,
    },
    #[error("cannot use {path}, which says what commands are run: {reason}")]
    NotTrusted { path: String, reason: TrustError },
    /// There is no run, or it is not one of this version, or one that must not be changed.
    #[error("{0}")]
    Unusable(String),
    #[error("another nearfar works on the fleet run in {path}")]
    InUse { path: String },
    #[error(transparent)]
    Result(#[from] ResultError),
}

/// Where the files of hosts are.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Absolute: the hosts see it by this path.
    pub folder: PathBuf,
}

impl Layout {
    pub fn answers(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    pub fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Where a host's answer is, or will be.
    pub fn answer(&self, host: &HostName) -> PathBuf {
        self.answers().join(format!("{host}.result.gz"))
    }

    /// Where it is while it is written.
    pub fn partial(&self, host: &HostName) -> PathBuf {
        self.answers().join(format!(".{host}.partial"))
    }

    /// Where the standard error of its step is.
    pub fn log(&self, host: &HostName) -> PathBuf {
        self.logs().join(format!("{host}.err"))
    }
}

/// The folder, open.
#[derive(Debug)]
pub struct Folder {
    layout: Layout,
    pub manifest: Manifest,
}

/// The right to change the folder, until it is dropped.
#[derive(Debug)]
pub struct FolderLock(#[allow(dead_code, reason = "the lock ends with the file")] File);

/// A new random name of a run.
pub fn new_id() -> String {
    let mut bytes = [0; 8];
    // Without the kernel's random numbers (before 3.17) the time has to do.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(8) {
        bytes = nearfar_runs::now_s().to_bits().to_be_bytes();
    }
    hexadecimal(&bytes)
}

impl Folder {
    /// Makes the folder of a new run; one without a run may be there.
    ///
    /// # Errors
    /// It has a run, or cannot be written.
    pub fn create(path: &Path, manifest: Manifest) -> Result<Self, FolderError> {
        let failed = failure("make", path);
        TrustedDir::make_readable(path).map_err(refusal("make", path))?;
        let path = fs::canonicalize(path).map_err(&failed)?;
        let layout = Layout {
            folder: path.clone(),
        };
        // Where there is a run, that is said below.
        if !path.join(MANIFEST).exists() {
            for part in [layout.answers(), layout.logs()] {
                let made = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(&part);
                made.map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => FolderError::Unusable(format!(
                        "cannot begin a fleet run in {}: {} is there, of another run",
                        path.display(),
                        part.display()
                    )),
                    _ => failed(error),
                })?;
            }
        }
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| failed(error.into()))?;
        if !write_new(&path.join(MANIFEST), &text)? {
            let is_rollout = Self::open(&path).is_ok_and(|there| there.manifest.is_rollout());
            let path = path.display().to_string();
            // How to go on with it, where that can be done.
            let hint = match is_rollout {
                true => String::new(),
                false => format!(
                    "; nearfar fleet run --resume --results {} goes on with it",
                    quoted(std::slice::from_ref(&path))
                ),
            };
            return Err(FolderError::Unusable(format!(
                "{path} already holds a fleet run; another folder begins one{hint}"
            )));
        }
        Ok(Self { layout, manifest })
    }

    /// Opens the folder of a run.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let path = fs::canonicalize(path).map_err(failure("open", path))?;
        let file = path.join(MANIFEST);
        let Some(text) = read_limited(&file)? else {
            return Err(FolderError::Unusable(format!(
                "{} is not the folder of a fleet run: it has no {MANIFEST}",
                path.display()
            )));
        };
        let place = file.display();
        let manifest: Manifest = serde_json::from_slice(&text)
            .map_err(|reason| FolderError::Unusable(format!("cannot read {place}: {reason}")))?;
        if manifest.schema != SCHEMA {
            return Err(FolderError::Unusable(format!(
                "{place} has the schema {:?}; this nearfar reads {SCHEMA:?}",
                manifest.schema
            )));
        }
        if let Some(what) = manifest.wrong_part() {
            return Err(FolderError::Unusable(format!(
                "cannot read {place}: {what} is not one that nearfar writes"
            )));
        }
        let layout = Layout { folder: path };
        for part in [layout.answers(), layout.logs()] {
            TrustedDir::open(&part).map_err(refusal("open", &part))?;
        }
        Ok(Self { layout, manifest })
    }

    pub fn path(&self) -> &Path {
        &self.layout.folder
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where a host's answer is, or will be.
    pub fn result_path(&self, host: &HostName) -> PathBuf {
        self.layout.answer(host)
    }

    /// The right to change it.
    ///
    /// # Errors
    /// Another process has it.
    pub fn lock(&self) -> Result<FolderLock, FolderError> {
        let path = self.path().join(MANIFEST);
        // NFS takes an exclusive lock only of a file that is open for writing (flock(2)).
        let file = TrustedDir::open(self.path())
            .and_then(|folder| folder.open_file(MANIFEST, OFlags::RDWR))
            .map_err(refusal("lock", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(FolderLock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FolderError::InUse {
                path: self.path().display().to_string(),
            }),
            Err(error) => Err(failure("lock", &path)(error.into())),
        }
    }

    /// The answer of a host; `None` where there is none yet.
    ///
    /// # Errors
    /// It is damaged, or another host's.
    pub fn result(&self, host: &HostName) -> Result<Option<HostResult>, FolderError> {
        self.read(host, HostResult::read, |answer| &answer.host)
    }

    /// How a host's step ended and what it did to the host, without the rest of its answer.
    ///
    /// # Errors
    /// As [`Folder::result`].
    pub(crate) fn brief(&self, host: &HostName) -> Result<Option<Brief>, FolderError> {
        self.read(host, Brief::read, |answer| &answer.host)
    }

    fn read<T>(
        &self,
        host: &HostName,
        read: impl Fn(&[u8], &str) -> Result<T, ResultError>,
        host_of: impl Fn(&T) -> &HostName,
    ) -> Result<Option<T>, FolderError> {
        let path = self.result_path(host);
        let place = path.display().to_string();
        let Some(bytes) = read_limited(&path)? else {
            // Whole, but its nearfar was gone before it could be renamed.
            let partial = read_limited(&self.layout.partial(host)).ok().flatten();
            let partial = partial.and_then(|bytes| read(&bytes, &place).ok());
            return Ok(partial.filter(|it| host_of(it) == host));
        };
        let result = read(&bytes, &place)?;
        let found = host_of(&result);
        match found == host {
            true => Ok(Some(result)),
            false => {
                let what = format!("is the answer of {found}, not of {host}");
                Err(ResultError { place, what }.into())
            }
        }
    }

    /// What is known of a host from its answer alone: `None` without one.
    pub(crate) fn outcome(&self, host: &HostName) -> Option<HostEvent> {
        outcome_of(&self.brief(host), |answer| &answer.ended)
    }

    /// Removes what a host answered before, so that an old answer is not taken for a new one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn forget(&self, host: &HostName) -> Result<(), FolderError> {
        // Without a log it is known that a job did not begin.
        let files = [
            self.result_path(host),
            self.layout.partial(host),
            self.layout.log(host),
        ];
        for path in files {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failure("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The last line that a host's step wrote to standard error; empty without one.
    pub(crate) fn last_log_line(&self, host: &HostName) -> String {
        use std::io::{Seek as _, SeekFrom};
        let read = || -> io::Result<Vec<u8>> {
            let mut file = open_regular(&self.layout.log(host), OFlags::NOFOLLOW)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines().map(str::trim);
        one_line(lines.rfind(|line| !line.is_empty()).unwrap_or_default())
    }

    /// Appends to `events.jsonl`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn append(&self, event: &Event) -> Result<(), FolderError> {
        append_line(&self.path().join(EVENTS), event)
    }

    /// What happened, oldest first. A line that a kill cut is passed over.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn events(&self) -> Result<Vec<Event>, FolderError> {
        read_lines(&self.path().join(EVENTS))
    }
}

impl Manifest {
    /// A part that is used in paths or names of jobs and is not what nearfar writes.
    fn wrong_part(&self) -> Option<&'static str> {
        let is_id = self.id.len() == 16 && self.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        // Up to the year 9999.
        let is_time = (0.0..253_402_300_800.0).contains(&self.started_at_s);
        let parts = [
            ("its id", is_id),
            ("its time", is_time),
            ("its command", !self.command.is_empty()),
            ("its list of hosts", !self.hosts.is_empty()),
            ("at_once", self.at_once > 0),
        ];
        let mut parts = parts.into_iter();
        parts.find(|(_, is_good)| !is_good).map(|(what, _)| what)
    }
}

/// What an answer says of its host's step, or that it cannot be read; `None` where there is none.
pub(crate) fn outcome_of<T>(
    answer: &Result<Option<T>, FolderError>,
    ended: impl Fn(&T) -> &Ended,
) -> Option<HostEvent> {
    match answer {
        Ok(None) => None,
        Ok(Some(answer)) => Some(match ended(answer) {
            Ended::Answered { .. } => HostEvent::Answered,
            Ended::Failed { reason, .. } => HostEvent::Failed {
                reason: one_line(reason),
            },
        }),
        Err(error) => Some(HostEvent::Lost {
            reason: error.to_string(),
            is_not_begun: false,
        }),
    }
}

/// A new file in place of whatever is there; a link is not followed.
pub(crate) fn create_new_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Appends a line of JSON to a file. A line that a kill cut is ended first, so that only that one is lost.
pub(crate) fn append_line(path: &Path, value: &impl Serialize) -> Result<(), FolderError> {
    use std::io::{Seek as _, SeekFrom};
    let failed = failure("write", path);
    let mut line = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    let mut write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(FILE_MODE)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?;
        let length = file.metadata()?.len();
        if length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::Start(length - 1))?;
            file.read_exact(&mut last)?;
            if last != [b'\n'] {
                line.insert(0, b'\n');
            }
        }
        // One write: a line is never half of another's.
        file.write_all(&line)?;
        file.sync_data()
    };
    write().map_err(&failed)
}

/// The lines of JSON of a file, without those that cannot be read; none where there is no file.
pub(crate) fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, FolderError> {
    let Some(file) = open_trusted(path)? else {
        return Ok(Vec::new());
    };
    let mut file = BufReader::new(file);
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = (&mut file)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
            .map_err(failure("read", path))?;
        if read == 0 {
            return Ok(lines);
        }
        lines.extend(serde_json::from_slice(&line).ok());
    }
}

/// The text on one line, cut where it is long: it comes from other hosts.
pub(crate) fn one_line(text: &str) -> String {
    const MAX_CHARACTERS: usize = 1000;
    let of_line = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(of_line).take(MAX_CHARACTERS).collect()
}

fn failure<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> FolderError + 'a {
    move |reason| FolderError::File {
        action,
        path: path.display().to_string(),
        reason,
    }
}

fn refusal<'a>(action: &'static str, path: &'a Path) -> impl Fn(TrustError) -> FolderError + 'a {
    move |reason| match reason {
        TrustError::System(reason) => failure(action, path)(reason),
        reason => FolderError::NotTrusted {
            path: path.display().to_string(),
            reason,
        },
    }
}

/// Opens a regular file for reading, with these flags besides: opening a FIFO would wait for ever.
pub(crate) fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// What no other user can have written; `None` where there is no such file.
fn read_limited(path: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    let failed = failure("read", path);
    let Some(file) = open_trusted(path)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(&failed)?;
    match bytes.len() as u64 > MAX_FILE_BYTES {
        true => Err(failed(io::Error::other("it is larger than 64 MiB"))),
        false => Ok(Some(bytes)),
    }
}

fn open_trusted(path: &Path) -> Result<Option<File>, FolderError> {
    match trusted::open_to_read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some).map_err(refusal("read", path)),
    }
}

/// Writes a file next to its place and gives it its name, unless there is one of that name.
fn write_new(path: &Path, content: &[u8]) -> Result<bool, FolderError> {
    let failed = failure("write", path);
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(FILE_MODE))
        .tempfile_in(directory)
        .map_err(&failed)?;
    file.write_all(content)
        .and_then(|()| file.as_file().sync_all())
        .map_err(&failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(taken) if taken.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(other) => Err(failed(other.error)),
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Step {
    /// Runs the verb and answers.
    Verb,
    /// The same of `apply`, between two measurements, and undoes what made the host worse.
    Change {
        /// The verb that measures, with its arguments, separated by blanks.
        measure: String,
        /// What the host may be worse by, as a share.
        margin: f64,
    },
    /// Undoes what a rollout changed.
    Undo {
        /// The id of the rollout.
        rollout: String,
    },
}

impl Manifest {
    /// Whether it is of `fleet apply`: its steps change hosts.
    pub fn is_rollout(&self) -> bool {
        matches!(self.step, Step::Change { .. })
    }

    /// The words after the command, which `nearfar fleet on-host` reads; a host's name and the arguments follow.
    pub(crate) fn step_words(&self) -> Vec<String> {
        let mut words = vec!["fleet".to_owned(), "on-host".to_owned()];
        let rollout = match &self.step {
            Step::Verb => return words,
            Step::Change { measure, margin } => {
                words.extend(["--measure".to_owned(), measure.clone()]);
                words.extend(["--margin".to_owned(), margin.to_string()]);
                &self.id
            }
            Step::Undo { rollout } => rollout,
        };
        words.extend(["--change-label".to_owned(), change_label(rollout)]);
        words
    }
}

/// What the change sets of a rollout are called on every host. Their numbers are not theirs alone: a host that was installed again counts
/// from 1.
pub(crate) fn change_label(rollout: &str) -> String {
    format!("fleet-{rollout}")
}
