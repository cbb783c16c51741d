//! Guests that were saved right after their kernel's boot, in the cache folder.
//!
//! ```text
//! saved/KEY/               KEY: SHA-256 of all that the saved guest depends on
//! ├─ record.json           what it is, sums and sizes; its modification time is the last use
//! ├─ state                 vCPUs and devices, as QEMU's migration writes them (about 1 MB)
//! └─ memory-0, memory-1    the memory of each node that has some, with holes where the guest wrote nothing
//! ```
//!
//! A guest maps the memory files privately, so guests of one design share the pages that none of them writes. A process that starts
//! from a saved guest opens its files first and works on descriptors: it may be removed meanwhile.

mod key;
mod memory;

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::PreparedGuest;
use super::process;
use crate::cache::{Cache, MemoryFile, RECORD_FORMAT, SavedRecord, StoredError, mark_used};
use crate::error::LabError;
use crate::packages::sha256;
use nearfar_proc::system::boot_id;

pub use key::Key;

/// The largest state that is read: it has one to two megabytes.
const MAX_STATE_BYTES: u64 = 256 << 20;

/// How long another process may hold the cache before a guest is not kept.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How long for a guest that is to be removed: a caller waits for the start.
const DISCARD_PATIENCE: Duration = Duration::from_millis(200);

/// The files of a saved guest, or those that a guest is about to be saved to.
#[derive(Debug)]
pub struct SavedGuest {
    /// The state of vCPUs and devices.
    pub state: OwnedFd,
    /// The memory of each node that has some.
    pub memory: Vec<(usize, OwnedFd)>,
    /// The inode of its folder in the cache; 0 for one that is in no folder.
    pub folder: u64,
}

impl SavedGuest {
    /// Anonymous files for a guest that is to be saved.
    ///
    /// # Errors
    /// When the system has no memory for them.
    pub fn anonymous(prepared: &PreparedGuest) -> Result<Self, LabError> {
        let memory = memory_nodes(prepared).map(|(node, bytes)| {
            process::memory_disk(&format!("memory of node {node}"), bytes).map(|file| (node, file))
        });
        Ok(Self {
            memory: memory.collect::<Result<_, _>>()?,
            state: process::memory_file("state", &[])?,
            folder: 0,
        })
    }

    fn share(&self) -> Result<Self, LabError> {
        let memory = self
            .memory
            .iter()
            .map(|(node, file)| process::duplicate(file).map(|file| (*node, file)));
        Ok(Self {
            memory: memory.collect::<Result<_, _>>()?,
            state: process::duplicate(&self.state)?,
            folder: 0,
        })
    }
}

/// Nodes with memory, and its bytes.
fn memory_nodes(prepared: &PreparedGuest) -> impl Iterator<Item = (usize, u64)> {
    prepared
        .design
        .hardware
        .nodes
        .iter()
        .map(|node| node.bytes)
        .enumerate()
        .filter(|(_, bytes)| *bytes > 0)
}

/// The place of one saved guest in the cache.
#[derive(Clone, Debug)]
pub struct Place {
    cache: Cache,
    folder: PathBuf,
    /// The record of the guest that belongs there, without checksums.
    record: SavedRecord,
}

impl Place {
    /// The place of the guest that this request asks for.
    pub fn new(cache: &Cache, prepared: &PreparedGuest, key: Key) -> Self {
        let file = |(node, bytes)| MemoryFile {
            file: memory_file(node),
            bytes,
            crc32: 0,
        };
        let record = SavedRecord {
            format: RECORD_FORMAT,
            machine: prepared.request.name.clone(),
            kernel: prepared.kernel.release.clone(),
            arch: prepared.design.arch.to_string(),
            cpus: prepared.design.cpu_nodes.len() as u64,
            nodes: prepared.design.hardware.nodes.len() as u64,
            qemu: prepared.qemu.version_text(),
            state_sha256: String::new(),
            memory: memory_nodes(prepared).map(file).collect(),
            boot_id: boot_id().unwrap_or_default(),
            made_of: key.made_of,
        };
        Self {
            cache: cache.clone(),
            folder: cache.root().join("saved").join(key.digest),
            record,
        }
    }

    /// The saved guest, if there is one; marks it as used now.
    ///
    /// # Errors
    /// When it is damaged, or another user could have written it.
    pub fn find(&self) -> Result<Option<SavedGuest>, StoredError> {
        // Opened once: another process may put another guest in its place while its files are read.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&self.folder, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(|errno| StoredError::file("folder")(errno.into()))?,
        };
        let seen = rustix::fs::fstat(&opened)
            .map_err(|errno| StoredError::file("folder")(errno.into()))?;
        let is_ours = seen.st_uid == rustix::process::geteuid().as_raw() || seen.st_uid == 0;
        if !is_ours || seen.st_mode & 0o022 != 0 {
            return Err(StoredError::OtherUser);
        }
        let folder = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let mut record = SavedRecord::read(&folder)?;
        if let Some(problem) = record.damage(&folder) {
            return Err(StoredError::Damaged(problem));
        }
        let open = |name: &str| File::open(folder.join(name)).map_err(StoredError::file(name));
        let state = open("state")?;
        let mut content = Vec::new();
        let read = memory::reopened(&state)
            .and_then(|file| file.take(MAX_STATE_BYTES).read_to_end(&mut content));
        read.map_err(StoredError::file("state"))?;
        if sha256::of_bytes(&content) != record.state_sha256 {
            let file = "state".to_owned();
            return Err(StoredError::Changed { file });
        }
        let mut memory = Vec::new();
        for wanted in &self.record.memory {
            let file = record
                .memory
                .iter()
                .find(|file| (&file.file, file.bytes) == (&wanted.file, wanted.bytes));
            let file = file.ok_or_else(|| StoredError::NotRecorded {
                file: wanted.file.clone(),
                bytes: wanted.bytes,
            })?;
            let content = open(&file.file)?;
            // What was written shortly before the host crashed may be missing. One comparison in a boot of the host is enough.
            let is_compared = record.boot_id == self.record.boot_id && !record.boot_id.is_empty();
            if !is_compared && memory::sum(&content).ok() != Some(file.crc32) {
                let file = file.file.clone();
                return Err(StoredError::Changed { file });
            }
            let node = file
                .file
                .strip_prefix(MEMORY)
                .and_then(|node| node.parse().ok());
            memory.extend(node.map(|node| (node, OwnedFd::from(content))));
        }
        match record.boot_id == self.record.boot_id {
            true => mark_used(&folder.join("record.json")),
            false => {
                record.boot_id.clone_from(&self.record.boot_id);
                // In a cache that cannot be written the sums are compared at each start.
                drop(record.write(&folder));
            }
        }
        Ok(Some(SavedGuest {
            state: state.into(),
            memory,
            folder: seen.st_ino,
        }))
    }

    /// Removes a saved guest that cannot be used: the one in the folder with this inode, or one that is damaged. Another process may
    /// have put a good one there meanwhile, which stays. Where the cache is in use or cannot be written, the next start finds out by
    /// itself.
    pub fn discard(&self, unusable: Option<u64>) {
        let Ok(Some(lock)) = self.cache.lock_within(DISCARD_PATIENCE) else {
            return;
        };
        if !matches!(self.find(), Ok(Some(other)) if Some(other.folder) != unusable) {
            drop(lock.remove(&self.folder));
        }
    }

    /// Copies a saved guest into the cache, in a thread: its first user need not wait for that. Where the cache cannot be
    /// written or another process holds it for long, the next guest is saved again.
    ///
    /// # Errors
    /// When descriptors cannot be duplicated.
    pub fn keep(&self, guest: &SavedGuest) -> Result<JoinHandle<()>, LabError> {
        let (place, guest) = (self.clone(), guest.share()?);
        Ok(std::thread::spawn(move || drop(place.write(&guest))))
    }

    fn write(&self, guest: &SavedGuest) -> Result<(), LabError> {
        let Some(lock) = self.cache.lock_within(LOCK_PATIENCE)? else {
            return Ok(());
        };
        if matches!(self.find(), Ok(Some(_))) || !self.has_room_for(guest) {
            return Ok(());
        }
        let making = lock.workshop()?;
        let folder = making.path().join("guest");
        // Whatever the umask: a folder that others may write is not taken by `find`.
        let created = DirBuilder::new().mode(0o700).create(&folder);
        let written = created.and_then(|()| self.write_to(&folder, guest));
        written.map_err(|error| {
            LabError::system(format!("cannot write {}", folder.display()), error)
        })?;
        lock.put(&folder, &self.folder)?;
        // The one that was just put there is the most recently used: it goes only when the limit is too small for it.
        lock.trim(&[]).map(drop)
    }

    /// Whether the cache's limit and its file system have room for a guest.
    fn has_room_for(&self, guest: &SavedGuest) -> bool {
        let blocks =
            |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |seen| seen.st_blocks as u64 * 512);
        let bytes: u64 = guest.memory.iter().map(|(_, file)| blocks(file)).sum();
        let free = rustix::fs::statvfs(self.cache.root())
            .map_or(u64::MAX, |disk| disk.f_bavail * disk.f_frsize);
        bytes <= self.cache.limit_or_default().0 && bytes < free
    }

    fn write_to(&self, folder: &Path, guest: &SavedGuest) -> std::io::Result<()> {
        let mut record = self.record.clone();
        let mut state = Vec::new();
        memory::reopened(&guest.state)?.read_to_end(&mut state)?;
        record.state_sha256 = sha256::of_bytes(&state);
        File::create(folder.join("state"))?.write_all(&state)?;
        for (node, source) in &guest.memory {
            let name = memory_file(*node);
            let sum = memory::copy(source, &folder.join(&name))?;
            record
                .memory
                .iter_mut()
                .filter(|file| file.file == name)
                .for_each(|file| file.crc32 = sum);
        }
        record.write(folder)
    }
}

const MEMORY: &str = "memory-";

fn memory_file(node: usize) -> String {
    format!("{MEMORY}{node}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BYTES: u64 = 1 << 20;

    /// A cache with a saved guest of one node in it.
    fn saved() -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        let record = SavedRecord {
            format: RECORD_FORMAT,
            machine: "two-node".to_owned(),
            kernel: "6.12".to_owned(),
            arch: "x86_64".to_owned(),
            cpus: 1,
            nodes: 1,
            qemu: "10.0.2".to_owned(),
            state_sha256: String::new(),
            memory: vec![MemoryFile {
                file: memory_file(0),
                bytes: BYTES,
                crc32: 0,
            }],
            boot_id: "this boot".to_owned(),
            made_of: "a test".to_owned(),
        };
        let place = Place {
            folder: cache.root().join("saved/key"),
            cache,
            record,
        };
        let memory = process::memory_disk("memory", BYTES).expect("memory");
        File::from(process::duplicate(&memory).expect("a descriptor"))
            .write_all_at(b"kernel", 4096)
            .expect("room");
        let state = process::memory_file("state", b"vCPUs and devices").expect("memory");
        place
            .write(&SavedGuest {
                state,
                memory: vec![(0, memory)],
                folder: 0,
            })
            .expect("it can be written");
        (folder, place)
    }

    fn problem(place: &Place) -> String {
        let problem = place.find().expect_err("damage is noticed");
        problem.to_string()
    }

    fn with_boot(place: &Place, boot_id: &str) -> Place {
        Place {
            record: SavedRecord {
                boot_id: boot_id.to_owned(),
                ..place.record.clone()
            },
            ..place.clone()
        }
    }

    #[test]
    fn what_was_saved_is_found_and_discarded() {
        let (_folder, place) = saved();
        let found = place.find().expect("no damage").expect("a saved guest");
        let mut state = String::new();
        memory::reopened(&found.state)
            .and_then(|mut file| file.read_to_string(&mut state))
            .expect("it can be read");
        assert_eq!(
            (state.as_str(), found.memory.len()),
            ("vCPUs and devices", 1)
        );
        place.discard(Some(found.folder + 1));
        assert!(
            place.find().expect("no damage").is_some(),
            "another guest was put there meanwhile"
        );
        place.discard(Some(found.folder));
        assert!(place.find().expect("no damage").is_none());
    }

    #[test]
    fn damage_is_noticed_in_each_file() {
        let change = |name: &str, change: &dyn Fn(&File)| {
            let (folder, place) = saved();
            change(
                &File::options()
                    .write(true)
                    .open(place.folder.join(name))
                    .expect("it is there"),
            );
            let problem = problem(&place);
            drop(folder);
            problem
        };
        assert!(
            change("state", &|file| file.write_all_at(b"x", 3).expect("room")).contains("state")
        );
        assert!(
            change("memory-0", &|file| file
                .set_len(4096)
                .expect("it can be cut"))
            .contains("memory-0")
        );
        assert!(
            change("record.json", &|file| file
                .set_len(20)
                .expect("it can be cut"))
            .contains("record.json")
        );
    }

    #[test]
    fn a_guest_of_other_memory_is_not_taken() {
        let (_folder, place) = saved();
        let mut other = place.clone();
        other.record.memory[0].bytes = 2 * BYTES;
        assert!(problem(&other).contains("no memory-0 of"));
    }

    #[test]
    fn the_memory_is_compared_once_after_each_boot_of_the_host() {
        let (_folder, place) = saved();
        let file = File::options()
            .write(true)
            .open(place.folder.join("memory-0"))
            .expect("it is there");
        let later = with_boot(&place, "the next boot");
        assert!(later.find().expect("no damage").is_some());
        file.write_all_at(b"broken", 4096).expect("room");
        assert!(later.find().expect("compared already").is_some());
        assert!(problem(&with_boot(&place, "the boot after that")).contains("memory-0"));
    }
}
