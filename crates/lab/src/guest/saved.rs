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

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use nearfar_machine::Acceleration;
use nearfar_proc::system::boot_id;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, mark_used, of_another_version, read_small, write_renamed};
use crate::error::LabError;
use crate::guest::{PreparedGuest, Start, arguments, launch};
use crate::packages::sha256_of_bytes;

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
        let file = |(node, bytes)| {
            let name = format!("memory of node {node}");
            Ok((node, launch::memory_disk(&name, bytes)?))
        };
        let memory = memory_nodes(prepared).map(file);
        Ok(Self {
            memory: memory.collect::<Result<_, LabError>>()?,
            state: launch::memory_file("state", &[])?,
            folder: 0,
        })
    }

    fn share(&self) -> Result<Self, LabError> {
        let memory = self.memory.iter();
        let memory = memory.map(|(node, file)| Ok((*node, launch::duplicate(file)?)));
        Ok(Self {
            memory: memory.collect::<Result<_, LabError>>()?,
            state: launch::duplicate(&self.state)?,
            folder: 0,
        })
    }
}

/// Nodes with memory, and its bytes.
fn memory_nodes(prepared: &PreparedGuest) -> impl Iterator<Item = (usize, u64)> {
    let nodes = prepared.design.hardware.nodes.iter();
    let bytes = nodes.map(|node| node.bytes).enumerate();
    bytes.filter(|(_, bytes)| *bytes > 0)
}

/// The place of one saved guest in the cache.
#[derive(Clone, Debug)]
pub struct SavedPlace {
    cache: Cache,
    folder: PathBuf,
    /// The record of the guest that belongs there, without checksums.
    record: SavedRecord,
}

impl SavedPlace {
    /// The place of the guest that this request asks for.
    pub fn new(cache: &Cache, prepared: &PreparedGuest, key: Key) -> Self {
        let file = |(node, bytes)| MemoryFile {
            file: memory_name(node),
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
    pub fn find(&self) -> Result<Option<SavedGuest>, String> {
        // Opened once: another process may put another guest in its place while its files are read.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&self.folder, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(unreadable("folder"))?,
        };
        let seen = rustix::fs::fstat(&opened).map_err(unreadable("folder"))?;
        let is_ours = seen.st_uid == rustix::process::geteuid().as_raw() || seen.st_uid == 0;
        if !is_ours || seen.st_mode & 0o022 != 0 {
            return Err("another user may have written it".to_owned());
        }
        let folder = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let mut record = SavedRecord::read(&folder)?;
        if let Some(problem) = record.damage(&folder) {
            return Err(problem);
        }
        let open = |name: &str| File::open(folder.join(name)).map_err(unreadable(name));
        let changed = |file: &str| Err(format!("{file}: not what was saved"));
        let state = open("state")?;
        let mut content = Vec::new();
        let read =
            reopened(&state).and_then(|file| file.take(MAX_STATE_BYTES).read_to_end(&mut content));
        read.map_err(unreadable("state"))?;
        if sha256_of_bytes(&content) != record.state_sha256 {
            return changed("state");
        }
        let mut memory = Vec::new();
        for wanted in &self.record.memory {
            let MemoryFile { file, bytes, .. } = wanted;
            let mut files = record.memory.iter();
            let recorded = files.find(|it| (&it.file, it.bytes) == (file, *bytes));
            let recorded =
                recorded.ok_or_else(|| format!("{RECORD}: no {file} of {bytes} bytes"))?;
            let content = open(file)?;
            // What was written shortly before the host crashed may be missing. One comparison in a boot of the host is enough.
            let is_compared = record.boot_id == self.record.boot_id && !record.boot_id.is_empty();
            if !is_compared && memory_sum(&content).ok() != Some(recorded.crc32) {
                return changed(file);
            }
            let node = file.strip_prefix(MEMORY).map(str::parse);
            memory.extend(node.and_then(|node| Some((node.ok()?, OwnedFd::from(content)))));
        }
        match record.boot_id == self.record.boot_id {
            true => mark_used(&folder.join(RECORD)),
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
        written.map_err(LabError::at("cannot write", &folder))?;
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
        reopened(&guest.state)?.read_to_end(&mut state)?;
        record.state_sha256 = sha256_of_bytes(&state);
        File::create(folder.join("state"))?.write_all(&state)?;
        for (node, source) in &guest.memory {
            let name = memory_name(*node);
            let sum = copy_memory(source, &folder.join(&name))?;
            let files = record.memory.iter_mut();
            let of_node = files.filter(|file| file.file == name);
            of_node.for_each(|file| file.crc32 = sum);
        }
        record.write(folder)
    }
}

fn unreadable<E: Into<io::Error>>(file: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{file}: {}", error.into())
}

const MEMORY: &str = "memory-";

fn memory_name(node: usize) -> String {
    format!("{MEMORY}{node}")
}

/// The version of the record and of the files next to it that this nearfar reads and writes.
const RECORD_FORMAT: u64 = 1;

/// Its name in the folder of a saved guest.
const RECORD: &str = "record.json";

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
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let (cpus, nodes) = (self.cpus, self.nodes);
        let (s, t) = (plural(cpus), plural(nodes));
        write!(f, "{}, {cpus} CPU{s} on {nodes} node{t}, ", self.machine)?;
        write!(f, "Linux {}, QEMU {}", self.kernel, self.qemu)
    }
}

impl SavedRecord {
    /// Reads the bytes of a record.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let problem = |error: serde_json::Error| error.to_string();
        let Format { format } = serde_json::from_slice(bytes).map_err(problem)?;
        match format {
            RECORD_FORMAT => serde_json::from_slice(bytes).map_err(problem),
            _ => Err(of_another_version(format)),
        }
    }

    /// The record in a folder of `saved/`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let problem = |problem: &dyn fmt::Display| format!("{RECORD}: {problem}");
        let bytes = read_small(&folder.join(RECORD), MAX_RECORD_BYTES);
        let record = Self::parse(&bytes.map_err(|error| problem(&error))?);
        record.map_err(|error| problem(&error))
    }

    /// Writes the record into a folder: under another name, then renamed.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        write_renamed(&folder.join(RECORD), &serde_json::to_vec_pretty(self)?)
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
        let damage = |MemoryFile { file, bytes, .. }: &MemoryFile| {
            let mut parts = Path::new(file).components();
            let parts = (parts.next(), parts.next());
            if !matches!(parts, (Some(Component::Normal(_)), None)) {
                return Some(format!("{RECORD}: {file:?} is not a file name"));
            }
            match length(file) {
                Ok(found) if found == *bytes => None,
                Ok(found) => Some(format!("{file}: {found} bytes instead of {bytes}")),
                Err(problem) => Some(problem),
            }
        };
        self.memory.iter().find_map(damage)
    }
}

/// The name of a saved guest, made of what it depends on: a guest that differs in any of it is another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// 64 hexadecimal digits.
    pub digest: String,
    /// What they were made of, a fact a line.
    pub made_of: String,
}

impl Key {
    /// The key of a guest: the format, QEMU, its whole command line but for what is not part of the guest (folders of the
    /// host, descriptors, the delay plugin), the kernel, the first root and, on the host's own CPUs, what those can.
    ///
    /// # Errors
    /// When QEMU, the kernel or the firmware is gone.
    pub fn of(prepared: &PreparedGuest, kernel: &Path, archive: &[u8]) -> Result<Self, LabError> {
        // Any folder may be shared with a guest that starts from it.
        let mut same = prepared.clone();
        same.request.results = None;
        same.delay = None;
        same.kernel.modules = same.kernel.modules.map(|_| PathBuf::from("/"));
        let words = arguments::arguments(&same, Start::Load, kernel, &launch::shown);
        let mut text = format!("format {RECORD_FORMAT}\n");
        // The kernel as the user has it: the file that is loaded may be one of the cache, whose times are those of its last use.
        for file in [&prepared.qemu.program, &prepared.kernel.image]
            .into_iter()
            .chain(&prepared.design.firmware)
        {
            text += &format!("file {}\n", identity(file)?);
        }
        let mut first_root = DefaultHasher::new();
        archive.hash(&mut first_root);
        let (bytes, first_root) = (archive.len(), first_root.finish());
        text += &format!("first root {bytes} bytes {first_root:016x}\n");
        if prepared.acceleration == Acceleration::Kvm {
            text += &host_cpu();
        }
        text += &(words.join("\n") + "\n");
        Ok(Self {
            digest: sha256_of_bytes(text.as_bytes()),
            made_of: text,
        })
    }
}

/// A file by its path, size and times: reading a kernel would take longer than starting a guest.
fn identity(path: &Path) -> Result<String, LabError> {
    let seen = fs::metadata(path).map_err(LabError::at("cannot read", path))?;
    let identity = (seen.len(), seen.mtime(), seen.mtime_nsec(), seen.ino());
    Ok(format!("{} {identity:?}", path.display()))
}

/// The host's CPU, its features and its kernel: under KVM a guest has what these give it.
fn host_cpu() -> String {
    let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = information.split("\n\n").next().unwrap_or_default();
    // Clock speeds change all the time.
    let is_constant = |line: &&str| !line.contains("MHz") && !line.contains("bogomips");
    let lines: Vec<&str> = first.lines().filter(is_constant).collect();
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    format!("host {release}\n{}\n", lines.join("\n"))
}

/// What is read at once, and what is left out when it is all zeros: larger and more zeros are kept, smaller and the file has
/// more pieces.
const BLOCK: usize = 64 << 10;

/// A second opening of a file, which begins at its start.
fn reopened(file: impl AsFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// Copies a node's memory to a new file with holes: most of it was never written, or holds zeros. Gives the checksum as
/// [`memory_sum`] does.
fn copy_memory(source: impl AsFd, path: &Path) -> io::Result<u32> {
    let source = reopened(source)?;
    let target = File::create(path)?;
    target.set_len(source.metadata()?.len())?;
    let mut sum = crc32fast::Hasher::new();
    each_block(&source, |at, block| {
        add_block(&mut sum, at, block);
        target.write_all_at(block, at)
    })?;
    Ok(sum.finalize())
}

/// A checksum of the offsets and contents of all blocks that are not zero: the same for a copy whose holes are elsewhere.
fn memory_sum(file: &File) -> io::Result<u32> {
    let mut sum = crc32fast::Hasher::new();
    each_block(file, |at, block| {
        add_block(&mut sum, at, block);
        Ok(())
    })?;
    Ok(sum.finalize())
}

fn add_block(sum: &mut crc32fast::Hasher, at: u64, block: &[u8]) {
    sum.update(&at.to_le_bytes());
    sum.update(block);
}

/// Calls with each block that is not zero, and its place.
fn each_block(file: &File, mut call: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let size = file.metadata()?.len();
    let zeros = vec![0; BLOCK];
    let mut buffer = vec![0; BLOCK];
    let mut at = 0;
    while at < size {
        // From the next data on; a file system without holes says that all is data.
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data / BLOCK as u64 * BLOCK as u64,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let length = usize::try_from(size - at).map_or(BLOCK, |left| left.min(BLOCK));
        file.read_exact_at(&mut buffer[..length], at)?;
        if buffer[..length] != zeros[..length] {
            call(at, &buffer[..length])?;
        }
        at += BLOCK as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    const BYTES: u64 = 1 << 20;

    /// A cache with a saved guest of one node in it.
    fn saved() -> (tempfile::TempDir, SavedPlace) {
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
                file: memory_name(0),
                bytes: BYTES,
                crc32: 0,
            }],
            boot_id: "this boot".to_owned(),
            made_of: "a test".to_owned(),
        };
        let place = SavedPlace {
            folder: cache.root().join("saved/key"),
            cache,
            record,
        };
        let memory = launch::memory_disk("memory", BYTES).expect("memory");
        File::from(launch::duplicate(&memory).expect("a descriptor"))
            .write_all_at(b"kernel", 4096)
            .expect("room");
        let state = launch::memory_file("state", b"vCPUs and devices").expect("memory");
        place
            .write(&SavedGuest {
                state,
                memory: vec![(0, memory)],
                folder: 0,
            })
            .expect("it can be written");
        (folder, place)
    }

    fn problem(place: &SavedPlace) -> String {
        let problem = place.find().expect_err("damage is noticed");
        problem.to_string()
    }

    fn with_boot(place: &SavedPlace, boot_id: &str) -> SavedPlace {
        SavedPlace {
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
        reopened(&found.state)
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

    #[test]
    fn a_copy_has_the_content_and_leaves_zeros_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let size = 40 * BLOCK as u64 + 100;
        let source = File::create(&from).expect("a file");
        source.set_len(size).expect("room");
        source
            .write_all_at(&vec![0; 8 * BLOCK], 4 * BLOCK as u64)
            .expect("room");
        source.write_all_at(b"near", 7).expect("room");
        source.write_all_at(b"far", size - 3).expect("room");
        let sum_of_copy =
            copy_memory(File::open(&from).expect("it is there"), &to).expect("it can be copied");
        assert!(
            std::fs::read(&from).expect("it is there") == std::fs::read(&to).expect("it is there")
        );
        let copied = File::open(&to).expect("it is there");
        assert_eq!(memory_sum(&copied).expect("it can be read"), sum_of_copy);
        assert!(copied.metadata().expect("it is there").blocks() * 512 <= 4 * BLOCK as u64);
        File::options()
            .write(true)
            .open(&to)
            .and_then(|file| file.write_all_at(b"x", 9))
            .expect("room");
        assert_ne!(memory_sum(&copied).expect("it can be read"), sum_of_copy);
    }
}
