//! Opening the file: whose it is, which layout it has, and which journal its file system allows.
//!
//! ```text
//!  header (100 bytes, read without SQLite) ── not ours? ──► Foreign, untouched
//!     │
//!     ▼            network file system (9p, NFS, SMB, FUSE ...), or WAL fails
//!  journal: WAL ───────────────────────────────────────────────────────────────► rollback journal
//!     │            the file or its directory cannot be written
//!     └────────────────────────────────────────────────────────────────────────► read only
//! ```
//!
//! A write-ahead log's index is memory, which several systems that see the same file would not share
//! (<https://www.sqlite.org/wal.html>: "WAL does not work over a network filesystem"). The kind of file system is looked up in
//! `/proc/self/mountinfo` (proc_pid_mountinfo(5)). statfs(2) does not tell: 9p answers with the kind that the file has on the host.

use std::fmt;
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use nearfar_proc::mountinfo::{self, Mount};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::schema::{APPLICATION_ID, STEPS, upgrade, version};
use super::{Store, StoreError, at};
use crate::run::{Host, Owner};

/// How long a writer waits for another one.
const PATIENCE: Duration = Duration::from_secs(30);
const OF_ANOTHER_PROGRAM: &str = "an SQLite file of another program";

/// How a store keeps what is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Journal {
    /// A write-ahead log: readers and a writer do not wait for each other.
    WriteAhead,
    /// A rollback journal, because this file system has no memory that processes of several systems could share:
    /// readers and writers wait for each other.
    Rollback,
    /// None: the file cannot be written and is only read.
    ReadOnly,
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteAhead => "write-ahead log",
            Self::Rollback => {
                "rollback journal instead of a write-ahead log, which this file system cannot have; do not use the \
                 file from two systems at once"
            }
            Self::ReadOnly => "read only: the file or its directory cannot be written",
        })
    }
}

impl Store {
    /// Opens a store for writing, and makes one where there is no file, with its directory. An older layout is
    /// upgraded.
    ///
    /// # Errors
    /// What is not a store of runs is left untouched ([`StoreError::Foreign`], [`StoreError::Newer`]); a file that
    /// cannot be written, or a directory that cannot be made.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let directory = directory_of(path);
        let failed = StoreError::file("create", directory);
        std::fs::create_dir_all(directory).map_err(failed)?;
        if matches!(look_at_header(path)?, Header::Absent) {
            Self::make(path)?;
        }
        Self::open_for_writing(path)
    }

    /// Makes a store with its tables under another name first: a process that is killed meanwhile leaves no file that is not a store.
    fn make(path: &Path) -> Result<(), StoreError> {
        let failed = StoreError::file("create", path);
        let file = tempfile::Builder::new()
            .prefix(".runs-")
            // As SQLite makes files; the process's mask applies.
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(directory_of(path))
            .map_err(&failed)?;
        drop(Self::open_for_writing(file.path())?);
        match file.persist_noclobber(path) {
            // Another process has made it meanwhile.
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made.map(drop).map_err(|error| failed(error.error)),
        }
    }

    /// Opens a store that is there, for writing where that is possible and else for reading.
    ///
    /// # Errors
    /// As [`Store::open`], and [`StoreError::Absent`]. A file without tables is no store yet, and is not made one.
    pub fn open_existing(path: &Path) -> Result<Self, StoreError> {
        match look_at_header(path)? {
            Header::Absent => Err(StoreError::Absent {
                path: path.to_owned(),
            }),
            Header::Empty if !has_content(path, "-wal") && !has_content(path, "-journal") => {
                Err(StoreError::foreign(path, "a file without tables"))
            }
            Header::Ours if !writable(path) => Self::open_for_reading(path),
            _ => Self::open_for_writing(path),
        }
    }

    fn open_for_writing(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let sqlite = at(path);
        let mut connection = Connection::open_with_flags(path, flags).map_err(&sqlite)?;
        prepare(&connection).map_err(&sqlite)?;
        let pages: rusqlite::Result<i64> =
            connection.pragma_query_value(None, "page_count", |row| row.get(0));
        if pages.is_ok_and(|pages| pages == 0) {
            // Has to come before the first page is written. Later it would be without effect, but a page is written for it
            // all the same: a command that only lists runs would wait for the disk, and fail where that is full.
            let set = connection.pragma_update(None, "auto_vacuum", "INCREMENTAL");
            set.map_err(&sqlite)?;
        }
        let without_log = is_between_systems(path) || version(&connection).is_err();
        if without_log {
            set_rollback_journal(&connection).map_err(&sqlite)?;
        }
        let found = version(&connection).map_err(&sqlite)?;
        check_version(path, found)?;
        if found < STEPS.len() as i64 {
            // Before there is a log: with its first table the file says whose it is, whenever this process is killed.
            if !upgrade(&mut connection, STEPS).map_err(&sqlite)? {
                return Err(StoreError::foreign(path, OF_ANOTHER_PROGRAM));
            }
        }
        let journal = if without_log {
            Journal::Rollback
        } else {
            write_ahead(&connection).map_err(&sqlite)?
        };
        Ok(Self::opened(connection, path, journal))
    }

    fn open_for_reading(path: &Path) -> Result<Self, StoreError> {
        let sqlite = at(path);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(&sqlite)?;
        if version(&connection).is_err() {
            // A write-ahead log needs files next to the store, even to read. Without any of it the store is complete.
            if has_content(path, "-wal") {
                return Err(StoreError::ReadOnly {
                    path: path.to_owned(),
                });
            }
            let uri = immutable_uri(path);
            connection = Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
                .map_err(&sqlite)?;
        }
        prepare(&connection).map_err(&sqlite)?;
        let found = version(&connection).map_err(&sqlite)?;
        check_version(path, found)?;
        if found < STEPS.len() as i64 {
            return Err(StoreError::OlderReadOnly {
                path: path.to_owned(),
                found,
            });
        }
        Ok(Self::opened(connection, path, Journal::ReadOnly))
    }

    fn opened(connection: Connection, path: &Path, journal: Journal) -> Self {
        Self {
            connection,
            path: path.to_owned(),
            journal,
            here: Host::here(),
            us: Owner::this_process(),
        }
    }
}

/// Settings of a connection. The file may come from anywhere: its schema is trusted with nothing.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "FULL")
}

/// A write-ahead log, or the other journal where this file system does not allow it.
fn write_ahead(connection: &Connection) -> rusqlite::Result<Journal> {
    match set_journal(connection, "WAL").and_then(|mode| version(connection).map(|_| mode)) {
        Ok(mode) if mode == "wal" => Ok(Journal::WriteAhead),
        Ok(_) => Ok(Journal::Rollback),
        Err(error) => match error.sqlite_error_code() {
            // Another process has it open with the other journal, which serves as well.
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Ok(Journal::Rollback),
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Err(error),
            _ => set_rollback_journal(connection).map(|()| Journal::Rollback),
        },
    }
}

/// A rollback journal. A file that has a log can be opened without shared memory only by one that locks out all others
/// (<https://www.sqlite.org/wal.html>, "Use of WAL Without Shared-Memory"); thereafter it has none.
fn set_rollback_journal(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    set_journal(connection, "TRUNCATE")?;
    connection.pragma_update(None, "locking_mode", "NORMAL")?;
    // The lock is given back by the next access.
    version(connection).map(|_| ())
}

fn set_journal(connection: &Connection, mode: &str) -> rusqlite::Result<String> {
    connection.pragma_update_and_check(None, "journal_mode", mode, |row| row.get(0))
}

/// What the first bytes of a file say.
enum Header {
    Absent,
    Empty,
    Ours,
}

/// Reads the header as <https://www.sqlite.org/fileformat2.html#the_database_header> describes it: a file that is not
/// ours is not even opened by SQLite, which would take an empty journal next to it as a reason to write.
fn look_at_header(path: &Path) -> Result<Header, StoreError> {
    let failed = StoreError::file("read", path);
    let foreign = |what| StoreError::foreign(path, what);
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Header::Absent),
        Err(error) => return Err(failed(error)),
        Ok(found) if found.is_dir() => return Err(foreign("a directory")),
        Ok(found) if !found.is_file() => return Err(foreign("not a regular file")),
        Ok(_) => {}
    }
    let mut header = Vec::new();
    File::open(path)
        .and_then(|file| file.take(100).read_to_end(&mut header))
        .map_err(&failed)?;
    if header.is_empty() {
        return Ok(Header::Empty);
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(foreign("not an SQLite file"));
    }
    // The number changes with each change of the tables: at 0 there never was one, or it is in a log, where it is looked
    // for later. A store that is just being made looks so, too.
    let without_tables = header.get(40..44) == Some(&[0; 4]);
    match header.get(68..72) {
        Some(id) if id == APPLICATION_ID.to_be_bytes() => {}
        Some([0, 0, 0, 0]) if without_tables => return Ok(Header::Empty),
        _ => return Err(foreign(OF_ANOTHER_PROGRAM)),
    }
    // The newest version may still be in the log; it is looked at again when that has been read.
    let written: Option<[u8; 4]> = header.get(60..64).and_then(|bytes| bytes.try_into().ok());
    check_version(path, written.map_or(0, i32::from_be_bytes).into())?;
    match cut_off(path).map_err(failed)? {
        Some((found, should)) => Err(StoreError::CutOff {
            path: path.to_owned(),
            found,
            should,
        }),
        None => Ok(Header::Ours),
    }
}

/// Whether the file of this name with this end has a byte.
fn has_content(path: &Path, end: &str) -> bool {
    let mut other = path.as_os_str().to_owned();
    other.push(end);
    std::fs::metadata(other).is_ok_and(|other| other.len() > 0)
}

/// The bytes that a file has and that its header says it has, where the end is missing. SQLite would fill the last page up.
fn cut_off(path: &Path) -> std::io::Result<Option<(u64, u64)>> {
    let look = || -> std::io::Result<Option<(u64, u64)>> {
        let mut header = [0; 100];
        let mut file = File::open(path)?;
        file.read_exact(&mut header)?;
        let number = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let page = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 1 << 16,
            bytes => u64::from(bytes),
        };
        // Who did not keep the size up to date has not written down this change either.
        let should = if number(24) == number(92) {
            u64::from(number(28)) * page
        } else {
            0
        };
        // While there is a journal the file may be longer or shorter; it is looked at before the length is.
        let unfinished = has_content(path, "-wal") || has_content(path, "-journal");
        let found = file.metadata()?.len();
        Ok((found < should && !unfinished).then_some((found, should)))
    };
    let looked = || match look() {
        // Of less than a header more is missing than can be told.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        looked => looked,
    };
    match looked()? {
        None => Ok(None),
        // Again: another process may have made it shorter between the reading of its header and of its length.
        first => Ok(looked()?.filter(|second| Some(*second) == first)),
    }
}

fn check_version(path: &Path, found: i64) -> Result<(), StoreError> {
    let known = STEPS.len() as i64;
    match found {
        _ if found > known => Err(StoreError::Newer {
            path: path.to_owned(),
            found,
            known,
        }),
        _ if found < 0 => Err(StoreError::foreign(path, OF_ANOTHER_PROGRAM)),
        _ => Ok(()),
    }
}

fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// Whether the file and its directory can be written: SQLite keeps its journal next to the file.
fn writable(path: &Path) -> bool {
    let directory = directory_of(path);
    let access = rustix::fs::Access::WRITE_OK;
    rustix::fs::access(path, access).is_ok() && rustix::fs::access(directory, access).is_ok()
}

/// The file as a URI that promises that no process changes it.
fn immutable_uri(path: &Path) -> String {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(byte.into())
            }
            _ => write!(uri, "%{byte:02x}").expect("a String takes all that is written"),
        }
    }
    uri + "?immutable=1"
}

/// Kinds of file systems that other systems may have mounted as well. FUSE is among them for sshfs and its like.
const SHARED: [&str; 15] = [
    "9p", "virtiofs", "nfs", "nfs4", "cifs", "smb3", "ceph", "afs", "lustre", "gfs2", "ocfs2",
    "beegfs", "gpfs", "vboxsf", "prl_fs",
];

/// Whether other systems may see the same file, which need not be there yet. What cannot be found out counts as no.
fn is_between_systems(path: &Path) -> bool {
    let found = std::fs::metadata(path).or_else(|_| std::fs::metadata(directory_of(path)));
    let Ok(found) = found else {
        return false;
    };
    let Ok(mounts) = mountinfo::of_this_process() else {
        return false;
    };
    let (major, minor) = (
        rustix::fs::major(found.dev()),
        rustix::fs::minor(found.dev()),
    );
    kind_of(&mounts, major, minor).is_some_and(is_shared)
}

fn is_shared(kind: &str) -> bool {
    SHARED.contains(&kind) || kind == "fuse" || kind.starts_with("fuse.")
}

/// The kind of the file system on a device.
fn kind_of(mounts: &[Mount], major: u32, minor: u32) -> Option<&str> {
    let device = format!("{major}:{minor}");
    let mount = mounts.iter().find(|mount| mount.device == device)?;
    Some(&mount.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
        31 22 0:28 / /results rw,relatime shared:4 master:1 - 9p nearfar.results rw,trans=virtio\n\
        40 22 0:40 / /media/a\\040b rw - fuse.sshfs host: rw\n\
        41 22 8:17 / /media/disk rw - fuseblk /dev/sdb1 rw";

    #[test]
    fn the_kind_of_a_file_system_is_that_of_its_device() {
        let mounts = mountinfo::mounts(MOUNTS);
        assert_eq!(kind_of(&mounts, 254, 1), Some("ext4"));
        assert_eq!(kind_of(&mounts, 0, 28), Some("9p"));
        assert_eq!(kind_of(&mounts, 0, 2), None);
        let shared = [(0, 28), (0, 40), (8, 17), (254, 1)]
            .map(|(major, minor)| kind_of(&mounts, major, minor).map(is_shared));
        assert_eq!(shared, [true, true, false, false].map(Some));
    }
}
