//! The folder of a fleet run: what was asked, what happened, and an answer of each host.
//!
//! ```text
//! DIR/fleet-run.json            what was asked: engine, hosts, verb
//! DIR/events.jsonl              what happened to each host, one line each, only appended to
//! DIR/hosts/n1.result.gz        the answer of a host (crate::result), renamed to this name when it is whole
//! DIR/logs/n1.err               standard error of its step
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::engine::EngineSettings;
use crate::hosts::HostName;
use crate::result::{Ended, HostResult, ResultError, hexadecimal};

/// The shape of `fleet-run.json`.
pub const SCHEMA: &str = "fleet-run/1";
const MANIFEST: &str = "fleet-run.json";
const EVENTS: &str = "events.jsonl";
/// The most that one answer may have compressed, and the most of the manifest, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;
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
    /// The words after the command: for each host `--host HOST` is added.
    pub step: Vec<String>,
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
    #[error("{path} has a fleet run already: --resume goes on with it, another folder begins one")]
    Exists { path: String },
    #[error("{path} is not the folder of a fleet run: it has no {MANIFEST}")]
    NotAFolder { path: String },
    #[error("cannot read {path}: {reason}")]
    Json {
        path: String,
        reason: serde_json::Error,
    },
    #[error("{path} has the schema {found:?}; this nearfar reads {SCHEMA:?}")]
    OtherSchema { path: String, found: String },
    #[error("another nearfar works on the fleet run in {path}")]
    InUse { path: String },
    #[error(transparent)]
    Result(#[from] ResultError),
}

/// The folder, open.
#[derive(Debug)]
pub struct Folder {
    /// Absolute: the hosts see it by this path.
    path: PathBuf,
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
        fs::create_dir_all(path).map_err(&failed)?;
        let path = fs::canonicalize(path).map_err(&failed)?;
        if path.join(MANIFEST).exists() {
            return Err(FolderError::Exists {
                path: path.display().to_string(),
            });
        }
        for part in ["hosts", "logs"] {
            fs::create_dir_all(path.join(part)).map_err(&failed)?;
        }
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| failed(error.into()))?;
        write_whole(&path.join(MANIFEST), &text)?;
        Ok(Self { path, manifest })
    }

    /// Opens the folder of a run.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let path = fs::canonicalize(path).map_err(failure("open", path))?;
        let file = path.join(MANIFEST);
        let text = match read_limited(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FolderError::NotAFolder {
                    path: path.display().to_string(),
                });
            }
            text => text.map_err(failure("read", &file))?,
        };
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|reason| FolderError::Json {
                path: file.display().to_string(),
                reason,
            })?;
        match manifest.schema == SCHEMA {
            true => Ok(Self { path, manifest }),
            false => Err(FolderError::OtherSchema {
                path: file.display().to_string(),
                found: manifest.schema,
            }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The right to change it.
    ///
    /// # Errors
    /// Another process has it.
    pub fn lock(&self) -> Result<FolderLock, FolderError> {
        let path = self.path.join(MANIFEST);
        let file = File::open(&path).map_err(failure("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(FolderLock(file)),
            Err(_) => Err(FolderError::InUse {
                path: self.path.display().to_string(),
            }),
        }
    }

    /// Where a host's answer is, or will be.
    pub fn result_path(&self, host: &HostName) -> PathBuf {
        self.path.join("hosts").join(format!("{host}.result.gz"))
    }

    /// Where it is while it is written.
    pub fn partial_path(&self, host: &HostName) -> PathBuf {
        self.path.join("hosts").join(format!(".{host}.partial"))
    }

    /// Where the standard error of its step is.
    pub fn log_path(&self, host: &HostName) -> PathBuf {
        self.path.join("logs").join(format!("{host}.err"))
    }

    /// The answer of a host; `None` where there is none yet.
    ///
    /// # Errors
    /// It is damaged, or another host's.
    pub fn result(&self, host: &HostName) -> Result<Option<HostResult>, FolderError> {
        let path = self.result_path(host);
        let place = path.display().to_string();
        let bytes = match read_limited(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(failure("read", &path))?,
        };
        let result = HostResult::read(&bytes, &place)?;
        match result.host == *host {
            true => Ok(Some(result)),
            false => Err(FolderError::Result(ResultError::OtherHost {
                place,
                expected: host.clone(),
                found: result.host,
            })),
        }
    }

    /// What is known of a host from its answer alone: `None` without one.
    pub fn outcome(&self, host: &HostName) -> Option<HostEvent> {
        match self.result(host) {
            Ok(None) => None,
            Ok(Some(result)) => Some(match result.ended {
                Ended::Answered { .. } => HostEvent::Answered,
                Ended::Failed { reason, .. } => HostEvent::Failed { reason },
            }),
            Err(error) => Some(HostEvent::Lost {
                reason: error.to_string(),
            }),
        }
    }

    /// Removes what a host answered before, so that an old answer is not taken for a new one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(&self, host: &HostName) -> Result<(), FolderError> {
        for path in [self.result_path(host), self.partial_path(host)] {
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
    pub fn last_words(&self, host: &HostName) -> String {
        use std::io::{Seek as _, SeekFrom};
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(self.log_path(host))?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines().map(str::trim);
        lines
            .rfind(|line| !line.is_empty())
            .unwrap_or_default()
            .to_owned()
    }

    /// Appends to `events.jsonl`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn append(&self, event: &Event) -> Result<(), FolderError> {
        let path = self.path.join(EVENTS);
        let failed = failure("write", &path);
        let mut line = serde_json::to_vec(event).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(&failed)?;
        // One write: a line is never half of another's.
        file.write_all(&line).map_err(&failed)
    }

    /// What happened, oldest first. A last line that was cut by a kill is passed over.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn events(&self) -> Result<Vec<Event>, FolderError> {
        let path = self.path.join(EVENTS);
        let bytes = match read_limited(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes.map_err(failure("read", &path))?,
        };
        let lines: Vec<&[u8]> = bytes
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .collect();
        let mut events = Vec::with_capacity(lines.len());
        for (index, line) in lines.iter().enumerate() {
            match serde_json::from_slice(line) {
                Ok(event) => events.push(event),
                Err(_) if index + 1 == lines.len() => {}
                Err(reason) => {
                    return Err(FolderError::Json {
                        path: format!("{} line {}", path.display(), index + 1),
                        reason,
                    });
                }
            }
        }
        Ok(events)
    }
}

fn failure<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> FolderError + 'a {
    move |reason| FolderError::File {
        action,
        path: path.display().to_string(),
        reason,
    }
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE_BYTES {
        true => Err(io::Error::other("it is larger than 256 MiB")),
        false => Ok(bytes),
    }
}

/// Writes a file next to its place and renames it.
fn write_whole(path: &Path, content: &[u8]) -> Result<(), FolderError> {
    let failed = failure("write", path);
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(directory)
        .map_err(&failed)?;
    file.write_all(content)
        .and_then(|()| file.as_file().sync_all())
        .map_err(&failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}
