//! Support bundles as they are: archives of `sys` and `proc` (sosreport, must-gather, hwloc-gather-topology), packed or not,
//! archives within them, and directories that hold such trees somewhere below.
//!
//! ```text
//! must-gather.tar.xz ─► nodes/a/sysinfo.tgz ─► sys, proc     read as must-gather.tar.xz/nodes/a/sysinfo.tgz
//!                       nodes/b/sysinfo.tgz ─► sys, proc     one of several is named by this path
//! ```
//!
//! What `sys`, `proc`, `etc`, `usr` and `dev` hold is kept in memory. The archive comes from another machine: nothing is written, its
//! paths cannot leave it, devices and pipes are left out, and what it may take is limited.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nearfar_machine::Machine;
use rustix::fs::OFlags;
use tar::EntryType;

use crate::error::{SourceError, Warnings};
use crate::packed::{MOST_RATIO, Packing};
use crate::request::Want;
use crate::sysfs;
use crate::tree::{self, Folder, LARGEST, Tree};

/// Directories of a machine in which something is read.
const READ: [&str; 5] = ["sys", "proc", "etc", "usr", "dev"];
/// What is kept of all files, in bytes.
const MOST_KEPT: u64 = 512 << 20;
/// What the entries of all archives may have, logs included, which are not read, in bytes.
const MOST_BYTES: u64 = 16 << 30;
/// What one archive may inflate to whatever its ratio, in bytes.
const MOST_INFLATED: u64 = 1 << 30;
/// Between two entries, in bytes: long names and padding, which come before the limits of an entry.
const MOST_BETWEEN: u64 = 64 << 10;
/// What an entry or a directory takes in memory, in bytes.
const BYTES_OF_ENTRY: u64 = 1000;
/// The longest path of an entry or link, in bytes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;
/// Entries of archives and directories together.
const MOST_ENTRIES: usize = 4 << 20;
/// Archives in archives, and directories in directories.
const DEEPEST: usize = 24;
/// Parts of a path in an archive: /sys has paths of some twenty.
const MOST_PARTS: usize = 64;
const BLOCK: usize = 512;
/// File systems of the kernel (include/uapi/linux/magic.h): proc, sysfs, tracefs, debugfs, securityfs, configfs, cgroup and
/// cgroup2.
const KERNELS: [u64; 8] = [
    0x9fa0,
    0x6265_6572,
    0x7472_6163,
    0x6462_6720,
    0x7363_6673,
    0x6265_6570,
    0x0027_e0eb,
    0x6367_7270,
];

/// Whether content is a tar archive, by its first block.
pub(crate) fn is_tar(head: &[u8]) -> bool {
    head.get(257..262).is_some_and(|magic| magic == b"ustar")
}

/// Reads the machine in an archive, from its content, or the one below `inside`.
///
/// # Errors
/// When the archive is damaged, holds no machine or several, or more than is ever gathered.
pub(crate) fn read_archive(
    content: impl Read,
    place: &str,
    inside: &Path,
    want: &Want,
) -> Result<Machine, SourceError> {
    let unreadable = |reason| SourceError::unreadable(place, reason);
    let mut bundle = Bundle::at(place);
    let found = bundle.archive(content, Path::new(""), 0);
    if !found.map_err(unreadable)? {
        return Err(unreadable(io::Error::other("it is no archive")));
    }
    bundle.read(place, inside, want)
}

/// Reads the machine of a directory: its own, or else the only one somewhere below it.
///
/// # Errors
/// As [`read_archive`].
pub(crate) fn read_directory(place: &Path, want: &Want) -> Result<Machine, SourceError> {
    let own = sysfs::read(&Tree::at(place)?, want);
    let Err(none) = own else { return Ok(own?) };
    let place_name = place.display().to_string();
    let mut bundle = Bundle::at(&place_name);
    let found = bundle.directory(place, Path::new(""), 0);
    found.map_err(|reason| SourceError::unreadable(&place_name, reason))?;
    match bundle.on_disk.is_empty() && bundle.kept == 0 {
        true => Err(none.into()),
        false => bundle.read(&place_name, Path::new(""), want),
    }
}

/// What was found in a bundle.
struct Bundle {
    content: Folder,
    /// Paths of hard links and of what they are links to, of which a copy is made when all files are there.
    links: Vec<(PathBuf, PathBuf)>,
    /// Trees outside of archives, and their paths in the bundle.
    on_disk: Vec<(Tree, PathBuf)>,
    warnings: Warnings,
    entries: usize,
    bytes: u64,
    kept: u64,
}

impl Bundle {
    fn at(place: &str) -> Self {
        Self {
            content: Folder::default(),
            links: Vec::new(),
            on_disk: Vec::new(),
            warnings: Warnings::about(place),
            entries: 0,
            bytes: 0,
            kept: 0,
        }
    }

    /// Keeps what is read of an archive, and of those in it, below `top`; whether it is one.
    fn archive(&mut self, content: impl Read, top: &Path, depth: usize) -> io::Result<bool> {
        let gauge = Rc::new(Gauge::default());
        match self.members(content, top, depth, &gauge) {
            // The libraries have a kind and a text of their own for it each ("incomplete deflate stream").
            Err(error) if gauge.ended.get() && error.kind() != TOO_MUCH => {
                let Some(last) = gauge.last.take() else {
                    return Err(io::Error::other("it was cut before its first whole member"));
                };
                let name = match top.as_os_str().is_empty() {
                    true => "the archive".to_owned(),
                    false => top.display().to_string(),
                };
                let last = last.display();
                self.warnings.note(format!(
                    "{name} was cut: {last} is its last whole member, and what came behind it is unknown"
                ));
                Ok(true)
            }
            read => read,
        }
    }

    /// The members of an archive, one after the other.
    fn members(
        &mut self,
        mut content: impl Read,
        top: &Path,
        depth: usize,
        gauge: &Rc<Gauge>,
    ) -> io::Result<bool> {
        let mut head = Vec::new();
        content.by_ref().take(6).read_to_end(&mut head)?;
        let packing = Packing::of(&head);
        let content = Packed(Cursor::new(head).chain(content), Rc::clone(gauge));
        let mut content: Box<dyn Read + '_> = match packing {
            Some(packing) => packing.reader(content)?,
            None => Box::new(content),
        };
        let mut head = Vec::new();
        content.by_ref().take(BLOCK as u64).read_to_end(&mut head)?;
        if !is_tar(&head) {
            return Ok(false);
        }
        if depth > DEEPEST {
            return Err(io::Error::other("archives are nested too deeply"));
        }
        gauge.left.set(MOST_BETWEEN);
        let content = Cursor::new(head).chain(content);
        let mut archive = tar::Archive::new(Limited(content, Rc::clone(gauge)));
        for entry in archive.entries()? {
            let mut entry = entry?;
            self.count(entry.size())?;
            gauge.left.set(entry.size().saturating_add(MOST_BETWEEN));
            let Some(below) = relative(&entry.path()?) else {
                let problem = "its path leads out of the archive, or is too long";
                self.warn(&top.join(entry.path()?), problem);
                continue;
            };
            let is_read = is_read(&below);
            let path = top.join(below);
            match entry.header().entry_type() {
                EntryType::Directory if is_read => {
                    self.keep(&path, tree::Entry::Folder(Folder::default()));
                }
                EntryType::Symlink if is_read => {
                    let target = entry.link_name_bytes().unwrap_or_default();
                    match std::str::from_utf8(&target) {
                        Ok(target) if target.len() <= LONGEST_PATH => {
                            self.keep(&path, tree::Entry::Link(target.to_owned()));
                        }
                        _ => self.warn(&path, "what it links to is not UTF-8, or too long"),
                    }
                }
                EntryType::Link if is_read => {
                    let target = entry.link_name()?;
                    if let Some(target) = target.and_then(|target| relative(&target)) {
                        self.kept += BYTES_OF_ENTRY;
                        self.links.push((path.clone(), top.join(target)));
                    }
                }
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse if is_read => {
                    let mut content = Vec::new();
                    let mut start = entry.by_ref().take(LARGEST as u64 + 1);
                    start.read_to_end(&mut content)?;
                    if (content.len() as u64) < entry.size().min(LARGEST as u64) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    match content.len() > LARGEST {
                        true => self.warn(&path, "larger than any such file of the kernel"),
                        false => self.keep(&path, tree::Entry::File(content)),
                    }
                }
                EntryType::Regular | EntryType::Continuous => {
                    self.inner(&mut entry, &path, depth + 1);
                }
                _ => {}
            }
            if self.kept > MOST_KEPT {
                return Err(too_much());
            }
            gauge.last.set(Some(path));
        }
        if gauge.zeros.get() < BLOCK {
            let message = "it ends without the mark of its end: perhaps it was cut";
            let at = match top.as_os_str().is_empty() {
                true => message.to_owned(),
                false => format!("{}: {message}", top.display()),
            };
            self.warnings.note(at);
        }
        Ok(true)
    }

    /// An archive in the bundle; nothing of one that is damaged.
    fn inner(&mut self, content: impl Read, path: &Path, depth: usize) {
        // The readers of one archive are in those of the other.
        let content: Box<dyn Read + '_> = Box::new(content);
        if let Err(error) = self.archive(content, path, depth) {
            if let Some(path) = path.to_str() {
                self.content.remove(path);
            }
            self.links.retain(|(link, _)| !link.starts_with(path));
            self.warn(path, &error.to_string());
        }
    }

    fn count(&mut self, bytes: u64) -> io::Result<()> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        match self.entries > MOST_ENTRIES || self.bytes > MOST_BYTES {
            true => Err(too_much()),
            false => Ok(()),
        }
    }

    fn warn(&mut self, path: &Path, problem: &str) {
        let message = format!("{} was left out: {problem}", path.display());
        self.warnings.note(message);
    }

    /// Of two entries with one path the last is kept, as when tar extracts them.
    fn keep(&mut self, path: &Path, entry: tree::Entry) {
        let bytes = match &entry {
            tree::Entry::File(content) => content.len(),
            tree::Entry::Link(target) => target.len(),
            tree::Entry::Folder(_) => 0,
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let folder = path.parent().and_then(Path::to_str);
        let folder = folder.and_then(|path| self.content.make(path));
        let Some((name, (folder, made))) = name.zip(folder) else {
            self.warn(path, "a file is in the way, or its path is not UTF-8");
            return;
        };
        if !matches!(folder.0.get(name), Some(tree::Entry::Folder(_))) {
            folder.0.insert(name.to_owned(), entry);
        }
        self.kept += bytes as u64 + BYTES_OF_ENTRY * (made + 1);
    }

    /// Looks for trees below a directory, and for archives in it.
    fn directory(&mut self, top: &Path, below: &Path, depth: usize) -> io::Result<()> {
        let here = top.join(below);
        if let Ok(tree) = Tree::at(&here)
            && sysfs::is_tree(&tree)
        {
            self.on_disk.push((tree, below.to_owned()));
            return Ok(());
        }
        if depth > DEEPEST {
            self.warn(below, "directories are nested too deeply");
            return Ok(());
        }
        // Reading a file there can change something, or wait for ever.
        if rustix::fs::statfs(&here).is_ok_and(|found| KERNELS.contains(&(found.f_type as u64))) {
            self.warn(below, "it is a file system of the kernel");
            return Ok(());
        }
        let entries = match fs::read_dir(&here).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => {
                self.warn(below, &error.to_string());
                return Ok(());
            }
        };
        for entry in entries {
            let path = below.join(entry.file_name());
            self.count(0)?;
            // What is gone meanwhile is not there.
            let Ok(status) = entry.metadata() else {
                continue;
            };
            if status.is_dir() {
                self.directory(top, &path, depth + 1)?;
            } else if status.is_file() && status.len() >= BLOCK as u64 {
                let mut options = File::options();
                let options = options
                    .read(true)
                    .custom_flags(OFlags::NONBLOCK.bits() as i32);
                match options.open(entry.path()) {
                    Ok(file) => self.inner(file, &path, 0),
                    Err(error) => self.warn(&path, &error.to_string()),
                }
            }
        }
        Ok(())
    }

    /// Reads the only machine at or below `inside`.
    fn read(mut self, place: &str, inside: &Path, want: &Want) -> Result<Machine, SourceError> {
        for (path, target) in std::mem::take(&mut self.links) {
            let found = target.to_str().map(|target| self.content.file(target));
            match found.and_then(Result::ok).map(<[u8]>::to_vec) {
                Some(content) => self.keep(&path, tree::Entry::File(content)),
                None => self.warn(&path, "a link to what is not read of the archive"),
            }
            if self.kept > MOST_KEPT {
                return Err(SourceError::unreadable(place, too_much()));
            }
        }
        let place_of = |path: &Path| match path.as_os_str().is_empty() {
            true => PathBuf::from(place),
            false => Path::new(place).join(path),
        };
        let mut trees = self.on_disk;
        in_memory(self.content, PathBuf::new(), &place_of, &mut trees);
        trees.retain(|(_, path)| path.starts_with(inside));
        trees.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        let [(tree, _)] = &trees[..] else {
            let name = |path: &Path| place_of(path).display().to_string();
            let warnings = self.warnings.finish().into_iter();
            return Err(SourceError::NotOneMachine {
                place: name(inside),
                warnings: warnings.map(|it| it.message).collect(),
                machines: trees.iter().map(|(_, path)| name(path)).collect(),
            });
        };
        let mut machine = sysfs::read(tree, want)?;
        machine.warnings.extend(self.warnings.finish());
        Ok(machine)
    }
}

/// The trees in a folder at `path`.
fn in_memory(
    folder: Folder,
    path: PathBuf,
    place_of: &impl Fn(&Path) -> PathBuf,
    trees: &mut Vec<(Tree, PathBuf)>,
) {
    let tree = Tree::in_memory(folder, place_of(&path));
    if sysfs::is_tree(&tree) {
        trees.push((tree, path));
        return;
    }
    for (name, entry) in tree.into_memory().into_iter().flat_map(|folder| folder.0) {
        if let tree::Entry::Folder(folder) = entry {
            in_memory(folder, path.join(name), place_of, trees);
        }
    }
}

/// What was read of an archive.
#[derive(Default)]
struct Gauge {
    packed: Cell<u64>,
    inflated: Cell<u64>,
    /// What may be read until this is set again.
    left: Cell<u64>,
    /// Zeros at the end of what was read: an archive ends with blocks of them.
    zeros: Cell<usize>,
    /// Whether more was wanted than there is.
    ended: Cell<bool>,
    /// The last member that was read whole.
    last: Cell<Option<PathBuf>>,
}

/// Counts what is read before it is unpacked.
struct Packed<R>(R, Rc<Gauge>);

impl<R: Read> Read for Packed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.0.read(buffer)?;
        self.1.packed.set(self.1.packed.get() + got as u64);
        self.1.ended.set(got == 0 && !buffer.is_empty());
        Ok(got)
    }
}

/// Fails when more is read of what is unpacked than is left, or than was packed into so little.
struct Limited<R>(R, Rc<Gauge>);

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.0.read(buffer)?;
        let gauge = &self.1;
        let left = gauge.left.get().checked_sub(got as u64);
        gauge.left.set(left.ok_or_else(too_much)?);
        let inflated = gauge.inflated.get() + got as u64;
        gauge.inflated.set(inflated);
        if inflated > MOST_INFLATED && inflated / MOST_RATIO > gauge.packed.get() {
            return Err(too_much());
        }
        let zeros = buffer[..got].iter().rev().take_while(|&&byte| byte == 0);
        let zeros = zeros.count();
        let before = if zeros == got { gauge.zeros.get() } else { 0 };
        gauge.zeros.set(before.saturating_add(zeros));
        Ok(got)
    }
}

/// The kind of [`too_much`], which no reader of archives has.
const TOO_MUCH: io::ErrorKind = io::ErrorKind::FileTooLarge;

fn too_much() -> io::Error {
    io::Error::new(
        TOO_MUCH,
        "it holds more than any bundle: extract what is of one machine and give the directory that holds sys and proc",
    )
}

fn is_read(path: &Path) -> bool {
    path.iter()
        .any(|part| READ.iter().any(|name| part == *name))
}

/// A path of an archive below its top; none for one that leads out of it, or is longer than any.
fn relative(path: &Path) -> Option<PathBuf> {
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    let is_short = below.as_os_str().len() <= LONGEST_PATH;
    (is_short && below.iter().count() <= MOST_PARTS).then_some(below)
}
