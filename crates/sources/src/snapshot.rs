//! nearfar's own snapshot: a whole [`Machine`] in one compressed file, for looking at a machine somewhere else.
//!
//! ```text
//! gzip( {"nearfar_snapshot": 1, "tool_version": "0.1.0", "machine": { ... }} )
//! ```
//!
//! The number is the format's version. It is raised when an older nearfar would misunderstand the file; fields that
//! are merely new do not raise it, and an older nearfar passes over them.

use std::io::{self, BufReader, Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use nearfar_machine::{Known, Machine, SourceKind};
use serde::{Deserialize, Serialize};

use crate::error::json_problem;
use crate::packed::{self, Packing};

/// The version of the format that this nearfar writes, and the newest it reads.
pub const VERSION: u32 = 1;

/// The schema of what `nearfar topo --format json` prints: the machine's fields with those of the envelope.
pub const TOPO_SCHEMA: &str = "topo/1";

/// Why a snapshot could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("{place} is a damaged or truncated snapshot ({reason}); copy it again, in binary mode")]
    Damaged {
        place: String,
        #[source]
        reason: io::Error,
    },
    #[error(
        "{place} inflates to more than {limit_mib} MiB, which no real snapshot does; it was not read"
    )]
    TooLarge {
        place: String,
        /// The limit for a file of its size.
        limit_mib: u64,
    },
    #[error(
        "{place} is a snapshot of format {found}, and this nearfar ({}) reads up to {VERSION}; \
         read it with a newer nearfar",
        env!("CARGO_PKG_VERSION")
    )]
    Newer { place: String, found: u32 },
    #[error(
        "{place} has the schema {schema:?}, and a machine is in {TOPO_SCHEMA:?}: \
         `nearfar topo --format json` of this version ({}) prints that",
        env!("CARGO_PKG_VERSION")
    )]
    OtherSchema { place: String, schema: String },
    #[error("{place} does not hold a nearfar snapshot: {}", located(reason))]
    NotASnapshot {
        place: String,
        /// What is wrong, with line and column of the JSON text.
        #[source]
        reason: serde_json::Error,
    },
    #[error("{place}: the snapshot contradicts itself: {violation}; take it again")]
    Contradicts {
        place: String,
        /// The first contradiction.
        violation: String,
    },
    #[error("cannot write the snapshot: {0}")]
    Write(#[source] io::Error),
}

#[derive(Serialize)]
struct Written<'a> {
    nearfar_snapshot: u32,
    tool_version: &'static str,
    machine: &'a Machine,
}

/// What every version has, and what `topo` prints has instead. Everything else is passed over.
#[derive(Deserialize)]
struct Head {
    nearfar_snapshot: Option<u32>,
    schema: Option<String>,
}

#[derive(Deserialize)]
struct Body {
    machine: Machine,
}

/// Writes a machine as a snapshot.
///
/// # Errors
/// When `out` does not take it. What was written by then is no valid snapshot: write to a new file and rename it.
pub fn write(machine: &Machine, out: impl Write) -> Result<(), SnapshotError> {
    let mut encoder = io::BufWriter::new(GzEncoder::new(out, Compression::default()));
    let snapshot = Written {
        nearfar_snapshot: VERSION,
        tool_version: env!("CARGO_PKG_VERSION"),
        machine,
    };
    let written = serde_json::to_writer(&mut encoder, &snapshot).map_err(io::Error::from);
    let encoder = written.and_then(|()| encoder.into_inner().map_err(|error| error.into_error()));
    let finished = encoder.and_then(GzEncoder::finish);
    let flushed = finished.and_then(|mut out| out.flush());
    flushed.map_err(SnapshotError::Write)
}

/// Reads a snapshot: the compressed file, or the JSON text in it. What `nearfar topo --format json` prints is a snapshot as
/// well, compressed or not.
///
/// # Errors
/// When it is damaged, too large, of a newer format, no snapshot, or contradicts itself.
pub fn read(bytes: &[u8], place: &str) -> Result<Machine, SnapshotError> {
    let head: Head = decode(bytes, place)?;
    let place_of = || place.to_owned();
    let machine = match (head.nearfar_snapshot, head.schema) {
        (Some(found), _) if found > VERSION => {
            let place = place_of();
            return Err(SnapshotError::Newer { place, found });
        }
        (Some(_), _) => decode::<Body>(bytes, place)?.machine,
        (None, Some(schema)) if schema == TOPO_SCHEMA => decode(bytes, place)?,
        (None, Some(schema)) => {
            let place = place_of();
            return Err(SnapshotError::OtherSchema { place, schema });
        }
        (None, None) => {
            let reason = serde::de::Error::missing_field("nearfar_snapshot");
            let place = place_of();
            return Err(SnapshotError::NotASnapshot { place, reason });
        }
    };
    match machine.check().into_iter().next() {
        Some(violation) => Err(SnapshotError::Contradicts {
            place: place.to_owned(),
            violation,
        }),
        None => Ok(machine),
    }
}

/// The same as a source: its files are not those of this system. What was taken of a source without files was read from
/// the snapshot too, and that source need not be here.
pub(crate) fn restore(bytes: &[u8], place: &str) -> Result<Machine, SnapshotError> {
    let mut machine = read(bytes, place)?;
    let origin = &mut machine.origin;
    if origin.kind.has_files() {
        origin.kind = SourceKind::Snapshot;
        origin.place = place.to_owned();
    } else {
        let of = std::mem::take(&mut origin.place);
        origin.place = format!("{place} (of {of})");
        for bridge in machine.host_bridges.items_mut() {
            if let Known::Yes(Some(firmware)) = &mut bridge.firmware
                && let Some(rest) = firmware.evidence.strip_prefix(&of)
            {
                firmware.evidence = format!("{}{rest}", origin.place);
            }
        }
    }
    Ok(machine)
}

fn located(reason: &serde_json::Error) -> String {
    let problem = json_problem(reason);
    match reason.line() {
        0 => problem,
        line => format!("line {line}, column {}: {problem}", reason.column()),
    }
}

fn damaged(place: &str, reason: io::Error) -> SnapshotError {
    SnapshotError::Damaged {
        place: place.to_owned(),
        reason,
    }
}

/// Plain and compressed text by one reader: what reads a whole machine is compiled for each kind of reader, and takes half a minute.
fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8], place: &str) -> Result<T, SnapshotError> {
    let text = packed::reader(bytes).map_err(|reason| damaged(place, reason))?;
    let limit = match Packing::of(bytes) {
        Some(_) => packed::limit(bytes),
        None => bytes.len() as u64,
    };
    let mut stream = BufReader::new(text).take(limit + 1);
    let decoded = serde_json::from_reader(&mut stream);
    if stream.limit() == 0 {
        return Err(SnapshotError::TooLarge {
            place: place.to_owned(),
            limit_mib: limit >> 20,
        });
    }
    decoded.map_err(|reason: serde_json::Error| match reason.classify() {
        serde_json::error::Category::Io => damaged(place, reason.into()),
        _ => SnapshotError::NotASnapshot {
            place: place.to_owned(),
            reason,
        },
    })
}
