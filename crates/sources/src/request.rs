//! Which machine a caller wants, and finding it: the live system, a directory, a file, standard input, a name in the
//! gallery, a synthetic string.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nearfar_machine::Machine;

use crate::error::{SourceError, TextError};
use crate::finish::finish;
use crate::packed::{self, Packing};
use crate::recognise::{self, Kind};
use crate::tree::Tree;
use crate::want::Want;
use crate::warnings::excerpt;
use crate::{bundle, description, gallery, hwloc_xml, join, snapshot, synthetic, sysfs, text};

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
        (Some(root), None) if root == Path::new("/") => sysfs::read(&Tree::live()?, &request.want)?,
        (Some(root), None) => sysfs::read(&Tree::at(root)?, &request.want)?,
        (None, None) => sysfs::read(&Tree::live()?, &request.want)?,
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

fn of_kind(kind: Kind, bytes: &[u8], place: &str) -> Result<Machine, SourceError> {
    if kind == Kind::Snapshot {
        return Ok(snapshot::restore(bytes, place)?);
    }
    let inflated = Packing::of(bytes).map(|_| packed::unpack(bytes, LARGEST_TEXT as u64));
    let inflated = inflated
        .transpose()
        .map_err(|reason| SourceError::unreadable(place, reason))?;
    let bytes = inflated.as_deref().unwrap_or(bytes);
    let limit = match kind {
        Kind::Description => LARGEST_DESCRIPTION,
        Kind::Archive | Kind::HwlocXml | Kind::Snapshot | Kind::Text => LARGEST_TEXT,
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
        Kind::Text => {
            // Mails come in all encodings; what matters in them is ASCII.
            let text = String::from_utf8_lossy(bytes);
            if let Some(machine) = text::core_to_core::parse(&text, place) {
                return Ok(machine);
            }
            let parts = text::Parts::of(&text);
            if !parts.is_empty() {
                return parts.read(place);
            }
            recognise::without_output(&bytes[..bytes.len().min(recognise::HEAD)], place)?
        }
        kind => kind,
    };
    Ok(match kind {
        Kind::Snapshot => snapshot::restore(bytes, place)?,
        Kind::Description => description::parse(utf8(bytes, place)?, place)?,
        Kind::Archive | Kind::HwlocXml | Kind::Text => {
            hwloc_xml::parse(utf8(bytes, place)?, place)?
        }
    })
}

fn utf8<'a>(bytes: &'a [u8], place: &str) -> Result<&'a str, TextError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count()
            + 1;
        TextError::new(
            place,
            Some(line),
            "not UTF-8 text",
            "convert it: iconv -f LATIN1 -t UTF-8",
        )
    })
}

fn named(source: &str, want: &Want) -> Result<Machine, SourceError> {
    if source == "-" {
        return stream(
            io::stdin().lock(),
            "standard input",
            Path::new(""),
            None,
            want,
        );
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
    if let Some(text) = gallery::text(source) {
        return Ok(description::parse(
            text,
            &format!("machines/{source}.toml"),
        )?);
    }
    if synthetic::resembles(source) {
        return Ok(synthetic::parse(source)?);
    }
    if source.contains('/') {
        let reason = io::Error::new(io::ErrorKind::NotFound, "no such file or directory");
        return Err(SourceError::unreadable(source, reason));
    }
    let gallery = gallery::gallery()
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    Err(SourceError::NoSuchSource {
        source_name: excerpt(source),
        gallery,
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
    stream
        .by_ref()
        .take(recognise::HEAD as u64)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if Packing::of(&bytes).is_some() {
        // A block of bzip2 is unpacked as a whole, and has up to 900 kB.
        let mut more = stream.by_ref().take(PACKED_HEAD - bytes.len() as u64);
        more.read_to_end(&mut bytes).map_err(unreadable)?;
    }
    let head = packed::start(&bytes, recognise::HEAD as u64).map_err(unreadable)?;
    let kind = recognise::kind(&head, place)?;
    if kind == Kind::Archive || !inside.as_os_str().is_empty() {
        return bundle::read_archive(bytes.as_slice().chain(stream), place, inside, want);
    }
    if length.is_some_and(|length| length > LARGEST) {
        return Err(too_large(place));
    }
    let most = match kind {
        Kind::Text if Packing::of(&bytes).is_none() => LARGEST_TEXT as u64,
        _ => LARGEST,
    };
    stream
        .take(most + 1 - bytes.len() as u64)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
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
