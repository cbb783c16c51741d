//! The records of saved guests.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::read_small;

/// The version of the record and of the files next to it that this nearfar reads and writes.
pub(crate) const RECORD_FORMAT: u64 = 1;

/// A record is far smaller: some 100 bytes for each memory file.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// What `saved/KEY/record.json` says about a guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SavedRecord {
    /// The version of the format; [`SavedRecord::parse`] accepts one.
    pub format: u64,
    /// The machine, as the user named it.
    pub machine: String,
    /// The kernel's release.
    pub kernel: String,
    /// The guest's architecture.
    pub arch: String,
    /// How many CPUs the guest has.
    pub cpus: u64,
    /// How many nodes the guest has.
    pub nodes: u64,
    /// The version of QEMU that saved it.
    pub qemu: String,
    /// The SHA-256 of the file `state`.
    pub state_sha256: String,
    /// The files with the guest's memory.
    pub memory: Vec<MemoryFile>,
    /// The host's boot in which the checksums of the memory were last compared (`/proc/sys/kernel/random/boot_id`).
    #[serde(default)]
    pub boot_id: String,
    /// What the folder's name is the checksum of, a fact a line.
    #[serde(default)]
    pub made_of: String,
}

/// A file with memory of a saved guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryFile {
    /// Its name in the folder.
    pub file: String,
    /// Its length, holes included.
    pub bytes: u64,
    /// A checksum of the offsets and contents of its blocks that are not zero.
    #[serde(default)]
    pub crc32: u32,
}

#[derive(Deserialize)]
struct Format {
    format: u64,
}

/// `two-node, 4 CPUs on 2 nodes, Linux 6.12.117, QEMU 10.0.2`
impl fmt::Display for SavedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            machine,
            kernel,
            cpus,
            nodes,
            qemu,
            ..
        } = self;
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(
            f,
            "{machine}, {cpus} CPU{} on {nodes} node{}, ",
            plural(*cpus),
            plural(*nodes)
        )?;
        write!(f, "Linux {kernel}, QEMU {qemu}")
    }
}

/// What is wrong with a file of the cache.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("format {0} is of another version of nearfar")]
    Format(u64),
    #[error("{file}: {error}")]
    File {
        file: String,
        #[source]
        error: io::Error,
    },
    #[error("record.json: {0}")]
    Record(Box<StoredError>),
    #[error("record.json: no {file} of {bytes} bytes")]
    NotRecorded { file: String, bytes: u64 },
    #[error("{file}: not what was saved")]
    Changed { file: String },
    /// What `SavedRecord::damage` returns.
    #[error("{0}")]
    Damaged(String),
    #[error("another user may have written it")]
    OtherUser,
}

impl StoredError {
    pub(crate) fn file(file: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |error| Self::File { file, error }
    }
}

impl SavedRecord {
    /// Reads the bytes of a record.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<Self, StoredError> {
        let Format { format } = serde_json::from_slice(bytes)?;
        if format != RECORD_FORMAT {
            return Err(StoredError::Format(format));
        }
        Ok(serde_json::from_slice(bytes)?)
    }

    /// The record in a folder of `saved/`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(folder: &Path) -> Result<Self, StoredError> {
        let bytes = read_small(&folder.join("record.json"), MAX_RECORD_BYTES)
            .map_err(StoredError::file("record.json"))?;
        Self::parse(&bytes).map_err(|error| StoredError::Record(Box::new(error)))
    }

    /// Writes the record into a folder: under another name, then renamed.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec_pretty(self).map_err(io::Error::other)?)?;
        file.persist(folder.join("record.json"))
            .map(drop)
            .map_err(|error| error.error)
    }

    /// What is missing or has another length than recorded. Reads no content: a start of the guest compares the
    /// checksum of the state.
    pub(crate) fn damage(&self, folder: &Path) -> Option<String> {
        let length = |file: &str| match fs::symlink_metadata(folder.join(file)) {
            Ok(metadata) if metadata.is_file() => Ok(metadata.len()),
            Ok(_) => Err(format!("{file}: not a regular file")),
            Err(error) => Err(format!("{file}: {error}")),
        };
        if let Err(problem) = length("state") {
            return Some(problem);
        }
        self.memory
            .iter()
            .find_map(|MemoryFile { file, bytes, .. }| {
                let mut parts = Path::new(file).components();
                if !matches!(
                    (parts.next(), parts.next()),
                    (Some(Component::Normal(_)), None)
                ) {
                    return Some(format!("record.json: {file:?} is not a file name"));
                }
                match length(file) {
                    Ok(found) if found != *bytes => {
                        Some(format!("{file}: {found} bytes instead of {bytes}"))
                    }
                    Ok(_) => None,
                    Err(problem) => Some(problem),
                }
            })
    }
}
