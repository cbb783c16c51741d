//! Which machine a caller wants, and finding it: the live system, a directory, a file, standard input, a name in the
//! gallery, a synthetic string. What is not asked for costs nothing and is `Known::No("not asked for")`.
//!
//! A file is recognised by its content. Names and extensions are not used: people send `topo.txt`. The gallery is descriptions
//! from `machines/`, known by their file's name.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nearfar_machine::Machine;

use crate::error::{SourceError, TextError, excerpt, line_of};
use crate::join::{self, finish};
use crate::packed::{self, Packing};
use crate::tree::Tree;
use crate::{bundle, description, hwloc_xml, snapshot, synthetic, sysfs, text};

/// The most that is read of a file or stream, in bytes.
const LARGEST: u64 = 1 << 30;
/// The same for hwloc's XML and for text: 65536 CPUs, more than any kernel has, take 45 MB of XML.
const LARGEST_TEXT: usize = 64 << 20;
/// The same for descriptions, which people write.
const LARGEST_DESCRIPTION: usize = 2 << 20;
/// What is looked at of packed content to recognise it, in bytes.
const PACKED_HEAD: u64 = 2 << 20;

#[derive(Clone, Debug)]
pub struct Request {
    /// Each a file, a path in an archive, `-` for standard input, a directory, a name in the gallery, or a synthetic string;
    /// none for the live system. A file of that name comes before the gallery. Several describe one machine together.
    pub sources: Vec<String>,
    /// A directory that holds `sys` and `proc`, instead of a source.
    pub root: Option<PathBuf>,
    /// Fake nodes to lay over whatever is read, see [`fake`](crate::fake).
    pub fake: Option<String>,
    /// What to read; only the live system and directories can leave something out, names aside.
    pub want: Want,
}

impl Request {
    /// The live system, and everything of it that is wanted.
    pub fn live(want: Want) -> Self {
        Self {
            sources: Vec::new(),
            root: None,
            fake: None,
            want,
        }
    }

    /// A source by name.
    pub fn source(source: impl Into<String>, want: Want) -> Self {
        Self {
            sources: vec![source.into()],
            ..Self::live(want)
        }
    }
}

/// Reads the machine that is asked for and lays the fake nodes over it.
///
/// # Errors
/// When the source cannot be found, read or understood; each says what to do next.
pub fn read(request: &Request) -> Result<Machine, SourceError> {
    // A layout that is wrong in itself is an error before anything is read.
    let fake = request.fake.as_deref().map(str::parse).transpose()?;
    let machine = match (&request.root, request.sources.split_first()) {
        (Some(root), Some((source, _))) => {
            let (root, source_name) = (root.display().to_string(), excerpt(source));
            return Err(SourceError::TwoMachines { root, source_name });
        }
        // The root of this system is this system, with all that only the live one has.
        (Some(root), None) if root != Path::new("/") => {
            sysfs::read(&Tree::at(root)?, &request.want)?
        }
        (_, None) => sysfs::read(&Tree::live()?, &request.want)?,
        (None, Some((first, others))) => {
            let mut joined = named(first, &request.want)?;
            for other in others {
                let next = named(other, &request.want)?;
                let names = [joined.origin.place.clone(), next.origin.place.clone()];
                if let Some((what, values)) = join::difference(&joined.origin, &next.origin) {
                    return Err(SourceError::DifferentMachines {
                        names,
                        what,
                        values,
                    });
                }
                joined = join::join(joined, next, &names[0], &names[1]);
            }
            joined
        }
    };
    let mut machine = finish(machine);
    if request.want.names {
        sysfs::pci_ids::add_names(&mut machine);
    }
    Ok(match fake {
        Some(spec) => crate::fake::lay(machine, &spec)?,
        None => machine,
    })
}

/// Reads a machine from the content of a file, recognised by that content.
///
/// # Errors
/// When the kind is not one that nearfar reads, or the content has a fault; `place` names it in messages.
pub fn read_bytes(bytes: &[u8], place: &str) -> Result<Machine, SourceError> {
    stream(bytes, place, Path::new(""), None, &Want::all()).map(finish)
}

fn of_kind(kind: FileKind, bytes: &[u8], place: &str) -> Result<Machine, SourceError> {
    if kind == FileKind::Snapshot {
        return Ok(snapshot::restore(bytes, place)?);
    }
    let inflated = Packing::of(bytes).map(|_| packed::unpack(bytes, LARGEST_TEXT as u64));
    let inflated = inflated.transpose();
    let inflated = inflated.map_err(|reason| SourceError::unreadable(place, reason))?;
    let bytes = inflated.as_deref().unwrap_or(bytes);
    let limit = match kind {
        FileKind::Description => LARGEST_DESCRIPTION,
        FileKind::Archive | FileKind::HwlocXml | FileKind::Snapshot | FileKind::Text => {
            LARGEST_TEXT
        }
    };
    if bytes.len() > limit {
        let limit_mib = limit as u64 >> 20;
        return Err(SourceError::TooLarge {
            place: place.to_owned(),
            kind: "text about one machine",
            limit_mib,
        });
    }
    let kind = match kind {
        FileKind::Text => {
            // Mails come in all encodings; what matters in them is ASCII.
            let text = String::from_utf8_lossy(bytes);
            if let Some(machine) = text::core_to_core::parse(&text, place) {
                return Ok(machine);
            }
            let parts = text::Parts::of(&text);
            if !parts.is_empty() {
                return parts.read(place);
            }
            without_output(&bytes[..bytes.len().min(HEAD)], place)?
        }
        kind => kind,
    };
    Ok(match kind {
        FileKind::Snapshot => snapshot::restore(bytes, place)?,
        FileKind::Description => description::parse(utf8(bytes, place)?, place)?,
        FileKind::Archive | FileKind::HwlocXml | FileKind::Text => {
            hwloc_xml::parse(utf8(bytes, place)?, place)?
        }
    })
}

fn utf8<'a>(bytes: &'a [u8], place: &str) -> Result<&'a str, TextError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let line = Some(line_of(bytes, error.valid_up_to()));
        let next = "convert it: iconv -f LATIN1 -t UTF-8";
        TextError::new(place, line, "not UTF-8 text", next)
    })
}

fn named(source: &str, want: &Want) -> Result<Machine, SourceError> {
    if source == "-" {
        let stdin = io::stdin().lock();
        return stream(stdin, "standard input", Path::new(""), None, want);
    }
    let path = Path::new(source);
    let unreadable = |reason| SourceError::unreadable(&excerpt(source), reason);
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => bundle::read_directory(path, want),
        Ok(found) if found.file_type().is_block_device() => {
            Err(unreadable(io::Error::other("it is a disk, not a file")))
        }
        Ok(found) => {
            let file = File::open(path).map_err(unreadable)?;
            stream(file, source, Path::new(""), Some(found.len()), want)
        }
        // A path in an archive.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            let is_file = |above: &&Path| above.is_file();
            let Some(archive) = path.ancestors().find(is_file) else {
                return Err(unreadable(error));
            };
            let file = File::open(archive).map_err(unreadable)?;
            let inside = path.strip_prefix(archive).unwrap_or(path);
            stream(file, &archive.display().to_string(), inside, None, want)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(unreadable(error)),
        Err(_) => without_file(source),
    }
}

fn without_file(source: &str) -> Result<Machine, SourceError> {
    if let Some(text) = gallery_text(source) {
        let place = format!("machines/{source}.toml");
        return Ok(description::parse(text, &place)?);
    }
    if synthetic::resembles(source) {
        return Ok(synthetic::parse(source)?);
    }
    if source.contains('/') {
        let reason = io::Error::new(io::ErrorKind::NotFound, "no such file or directory");
        return Err(SourceError::unreadable(source, reason));
    }
    Err(SourceError::NoSuchSource {
        source_name: excerpt(source),
        gallery: MACHINES.iter().map(|machine| machine.0).collect(),
    })
}

/// Reads a stream that may have no end, or one of a known length. Its beginning is looked at first, so that a device or a
/// wrong file is refused before much of it is read.
fn stream(
    mut stream: impl Read,
    place: &str,
    inside: &Path,
    length: Option<u64>,
    want: &Want,
) -> Result<Machine, SourceError> {
    let unreadable = |reason| SourceError::unreadable(place, reason);
    let mut bytes = Vec::new();
    let mut start = stream.by_ref().take(HEAD as u64);
    start.read_to_end(&mut bytes).map_err(unreadable)?;
    if Packing::of(&bytes).is_some() {
        // A block of bzip2 is unpacked as a whole, and has up to 900 kB.
        let mut more = stream.by_ref().take(PACKED_HEAD - bytes.len() as u64);
        more.read_to_end(&mut bytes).map_err(unreadable)?;
    }
    let head = packed::start(&bytes, HEAD as u64).map_err(unreadable)?;
    let kind = kind(&head, place)?;
    if kind == FileKind::Archive || !inside.as_os_str().is_empty() {
        return bundle::read_archive(bytes.as_slice().chain(stream), place, inside, want);
    }
    if length.is_some_and(|length| length > LARGEST) {
        return Err(too_large(place));
    }
    let most = match kind {
        FileKind::Text if Packing::of(&bytes).is_none() => LARGEST_TEXT as u64,
        _ => LARGEST,
    };
    let mut rest = stream.take(most + 1 - bytes.len() as u64);
    rest.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST {
        return Err(too_large(place));
    }
    of_kind(kind, &bytes, place)
}

fn too_large(place: &str) -> SourceError {
    SourceError::TooLarge {
        place: excerpt(place),
        kind: "a description of one machine",
        limit_mib: LARGEST >> 20,
    }
}

/// The parts of a machine that cost something to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Caches, clusters, dies and the kernel's numbers of cores: most of what there is to read about CPUs, and nothing that
    /// decides over placement. Which CPUs share a core is read in any case.
    pub cpu_details: bool,
    /// The name of the CPU's model. `/proc/cpuinfo` has it, and x86 kernels before 5.18 wait up to 20 ms for clock rates when it is
    /// opened.
    pub cpu_model: bool,
    /// The names of PCI devices and classes, from this system's copy of pci.ids.
    pub names: bool,
    /// PCI devices, host bridges, network devices, NVMe subsystems.
    pub devices: bool,
    /// Interrupts with their affinities.
    pub interrupts: bool,
    /// How often each interrupt fired, and on which node its descriptor lives: the kernel counts per CPU, so this reads
    /// CPUs x interrupts numbers.
    pub interrupt_counts: bool,
    pub tasks: TaskScope,
    /// The memory of those processes by node, which stops each of them for a moment.
    pub task_memory: bool,
    /// Leave out processes with less resident memory than this, in bytes, and read no more of them than that. 0 for none.
    pub min_task_bytes: u64,
    /// The threads of those processes.
    pub threads: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskScope {
    None,
    /// These, by process number.
    Of(Vec<i32>),
    All,
}

impl Want {
    /// Everything of the machine itself. Names are another file's affair and added by those who show them.
    pub fn all() -> Self {
        Self {
            cpu_model: true,
            interrupt_counts: true,
            cpu_details: true,
            tasks: TaskScope::All,
            ..Self::audit()
        }
    }

    /// Nodes, CPUs, caches and distances only.
    pub fn topology() -> Self {
        Self {
            cpu_details: true,
            ..Self::placement()
        }
    }

    /// What spreading queues needs: nodes, distances, and which CPUs share a core.
    pub fn placement() -> Self {
        Self {
            cpu_details: false,
            cpu_model: false,
            names: false,
            devices: false,
            interrupts: false,
            interrupt_counts: false,
            tasks: TaskScope::None,
            task_memory: true,
            min_task_bytes: 0,
            threads: false,
        }
    }

    /// What an audit looks at, without the processes: devices and interrupts, but neither names nor counts.
    pub fn audit() -> Self {
        Self {
            devices: true,
            interrupts: true,
            ..Self::placement()
        }
    }
}

/// What nearfar reads from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// A tar archive, packed or not.
    Archive,
    Snapshot,
    HwlocXml,
    Description,
    /// Whatever else: what programs printed may begin anywhere in it.
    Text,
}

/// Bytes of a file that are enough to recognise it.
pub(crate) const HEAD: usize = 64 << 10;

const EXTRACT: &str = "extract it and give the directory that holds sys and proc with --root";
const WANTED: &str = "a support bundle, a snapshot, the JSON of nearfar topo, hwloc XML (lstopo topology.xml), text that numactl -H, lscpu or the like \
     printed, or a description file (TOML) is wanted";

/// What stands at the beginning of files that are nothing for nearfar, and what to do about them.
const FOREIGN: &[(&[u8], &str, &str)] = &[
    (b"PK\x03\x04", "it is a zip archive", EXTRACT),
    (b"\x7fELF", "it is a program", WANTED),
    (
        b"\xff\xfe",
        "it is UTF-16 text",
        "convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    ),
    (
        b"\xfe\xff",
        "it is UTF-16 text",
        "convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    ),
];

/// The kind of a file, from its beginning, unpacked if it was packed.
pub(crate) fn kind(head: &[u8], place: &str) -> Result<FileKind, SourceError> {
    let unknown = |looks_like, next| Err(not_recognised(place, looks_like, next));
    let foreign = FOREIGN.iter().find(|it| head.starts_with(it.0));
    if let Some((_, looks_like, next)) = foreign {
        return unknown(looks_like, next);
    }
    if bundle::is_tar(head) {
        return Ok(FileKind::Archive);
    }
    if head.contains(&0) {
        return unknown("it is binary data", WANTED);
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.is_empty() {
        return unknown("it is empty", WANTED);
    }
    let keys = ["\"nearfar_snapshot\"", "\"schema\""];
    if text.starts_with('{') && keys.iter().any(|key| text.contains(key)) {
        return Ok(FileKind::Snapshot);
    }
    // libvirt's capabilities have an element of the same name in them.
    if is_xml(text) && text.contains("<topology") && !text.contains("<capabilities") {
        return Ok(FileKind::HwlocXml);
    }
    if text.lines().any(is_table_of_toml) {
        return Ok(FileKind::Description);
    }
    Ok(FileKind::Text)
}

/// What a text was meant to be in which no program's output was found.
fn without_output(head: &[u8], place: &str) -> Result<FileKind, SourceError> {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let json = text.strip_prefix('{').map(str::trim_start);
    if json.is_some_and(|json| json.starts_with(['"', '}'])) {
        return Ok(FileKind::Snapshot);
    }
    if is_xml(text) {
        return Ok(FileKind::HwlocXml);
    }
    if text.lines().any(is_toml) {
        return Ok(FileKind::Description);
    }
    let looks_like = "it is text without a line that nearfar knows";
    Err(not_recognised(place, looks_like, WANTED))
}

fn not_recognised(place: &str, looks_like: &str, next: &'static str) -> SourceError {
    SourceError::NotRecognised {
        place: place.to_owned(),
        looks_like: looks_like.to_owned(),
        next,
    }
}

fn is_xml(text: &str) -> bool {
    let mut starts = ["<?xml", "<!", "<topology"].into_iter();
    starts.any(|start| text.starts_with(start))
}

/// `[[node]]`
fn is_table_of_toml(line: &str) -> bool {
    let name = line.strip_prefix("[[");
    let name = name.and_then(|line| line.split_once("]]"));
    name.is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

/// `[[node]]`, or `key = value`.
fn is_toml(line: &str) -> bool {
    let line = line.trim();
    let of_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_key = |name: &str| !name.is_empty() && name.chars().all(of_key);
    let key = line.split_once('=').map(|(name, _)| name.trim());
    (line.starts_with('[') && line.ends_with(']')) || key.is_some_and(is_key)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct GalleryEntry {
    pub name: &'static str,
    /// What it is, in a sentence: the `description` in its file.
    pub description: &'static str,
}

macro_rules! machines {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../machines/", $name, ".toml")))),*]
    };
}

/// By name, ascending.
const MACHINES: &[(&str, &str)] = machines![
    "asymmetric",
    "cards-back-to-back",
    "cxl-memory-only",
    "database-host",
    "eight-node-ring",
    "epyc-7742",
    "epyc-7742-nps1",
    "fake-nodes",
    "five-nodes",
    "gb200",
    "kunpeng",
    "kunpeng-4826",
    "kunpeng-4826-one-node",
    "nvme-two-controllers",
    "powerpc-case1",
    "powerpc-case1-after",
    "queues-on-node-2",
    "sixteen-node-ring",
    "sub-numa-clusters",
    "two-node",
    "x86-case1",
    "xeon-6242",
    "xeon-8180",
    "xeon-8269cy-snc",
    "xeon-e7-4870",
];

/// All machines of the gallery, by name.
pub fn gallery() -> Vec<GalleryEntry> {
    let entry = |&(name, text): &(&'static str, &'static str)| GalleryEntry {
        name,
        description: sentence(text),
    };
    MACHINES.iter().map(entry).collect()
}

pub fn gallery_text(name: &str) -> Option<&'static str> {
    let machine = MACHINES.iter().find(|machine| machine.0 == name);
    machine.map(|machine| machine.1)
}

/// The value of the line `description = "..."`. The tests see to it that every file has one.
fn sentence(text: &'static str) -> &'static str {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("description = \""));
    line.map_or("", |rest| rest.trim_end().trim_end_matches('"'))
}
