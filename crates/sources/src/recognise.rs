//! Recognises a file by its content. Names and extensions are not used: people send `topo.txt`.

use crate::bundle;
use crate::error::SourceError;

/// What nearfar reads from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
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
pub(crate) fn kind(head: &[u8], place: &str) -> Result<Kind, SourceError> {
    let unknown = |looks_like: &str, next| {
        Err(SourceError::NotRecognised {
            place: place.to_owned(),
            looks_like: looks_like.to_owned(),
            next,
        })
    };
    if let Some((_, looks_like, next)) =
        FOREIGN.iter().find(|(magic, _, _)| head.starts_with(magic))
    {
        return unknown(looks_like, next);
    }
    if bundle::is_tar(head) {
        return Ok(Kind::Archive);
    }
    if head.contains(&0) {
        return unknown("it is binary data", WANTED);
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.is_empty() {
        return unknown("it is empty", WANTED);
    }
    if text.starts_with('{')
        && ["\"nearfar_snapshot\"", "\"schema\""]
            .iter()
            .any(|key| text.contains(key))
    {
        return Ok(Kind::Snapshot);
    }
    // libvirt's capabilities have an element of the same name in them.
    if is_xml(text) && text.contains("<topology") && !text.contains("<capabilities") {
        return Ok(Kind::HwlocXml);
    }
    if text.lines().any(is_table_of_toml) {
        return Ok(Kind::Description);
    }
    Ok(Kind::Text)
}

/// What a text was meant to be in which no program's output was found.
pub(crate) fn without_output(head: &[u8], place: &str) -> Result<Kind, SourceError> {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let json = text.strip_prefix('{').map(str::trim_start);
    if json.is_some_and(|json| json.starts_with(['"', '}'])) {
        return Ok(Kind::Snapshot);
    }
    if is_xml(text) {
        return Ok(Kind::HwlocXml);
    }
    if text.lines().any(is_toml) {
        return Ok(Kind::Description);
    }
    Err(SourceError::NotRecognised {
        place: place.to_owned(),
        looks_like: "it is text without a line that nearfar knows".to_owned(),
        next: WANTED,
    })
}

fn is_xml(text: &str) -> bool {
    ["<?xml", "<!", "<topology"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// `[[node]]`
fn is_table_of_toml(line: &str) -> bool {
    let name = line
        .strip_prefix("[[")
        .and_then(|line| line.split_once("]]"));
    name.is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

/// `[[node]]`, or `key = value`.
fn is_toml(line: &str) -> bool {
    let line = line.trim();
    let key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (line.starts_with('[') && line.ends_with(']'))
        || line
            .split_once('=')
            .is_some_and(|(name, _)| !name.trim().is_empty() && name.trim().chars().all(key))
}
