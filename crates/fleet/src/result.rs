//! What one host answers: one file with everything, so that it can be read anywhere and years later.
//!
//! ```text
//! gzip(comment = sha256 of the JSON; {"schema": "fleet-result/1", "host": "n1", ..., "machine": {...}, "runs": [...]})
//! ```
//!
//! `zcat` shows it, `gzip -t` checks the compression, and the sum in the header's comment (RFC 1952) the content.

use std::io::{self, BufReader, Read as _, Write};

use flate2::bufread::GzDecoder;
use flate2::{Compression, GzBuilder};
use nearfar_machine::Machine;
use nearfar_runs::export::Whole;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::hosts::HostName;
use crate::rollout::Rollout;

/// The shape of the JSON.
pub const SCHEMA: &str = "fleet-result/1";
/// The most that a result may inflate to, in bytes: ten times the machine with 4096 CPUs and its samples.
const MAX_INFLATED: u64 = 64 << 20;
/// The most values that the JSON may have. Each takes up to a hundred bytes of memory once it is parsed, and two of the text.
const MAX_VALUES: usize = 4 << 20;

/// How the verb ended on the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Ended {
    /// The verb answered: it exited with 0, or with 1 because it was asked to fail on what it found.
    Answered { exit_code: i32 },
    /// It did not: the code it exited with, none where a signal ended it, and its message.
    Failed {
        exit_code: Option<i32>,
        reason: String,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostResult {
    pub schema: String,
    /// The version that wrote it.
    pub nearfar: String,
    /// The name that the engine has for the host; [`Machine::origin`] has its own.
    pub host: HostName,
    /// The verb and its arguments.
    pub arguments: Vec<String>,
    /// Seconds since 1970.
    pub started_at_s: f64,
    pub took_s: f64,
    pub ended: Ended,
    /// What the verb printed, where that is JSON.
    pub answer: Value,
    /// The same as text where it is not JSON; empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub printed: String,
    /// What the step did to the host, where it is one of `fleet apply`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The machine without its processes; `None` where it cannot be read.
    pub machine: Option<Machine>,
    /// The runs that the verb stored.
    pub runs: Vec<Whole>,
}

/// What is wrong with an answer, after the name of its file.
#[derive(Debug, thiserror::Error)]
#[error("{place} {what}")]
pub struct ResultError {
    pub(crate) place: String,
    pub(crate) what: String,
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    schema: String,
}

impl HostResult {
    /// Writes the compressed file.
    ///
    /// # Errors
    /// What writing answers; also where the result is larger than what is read.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let json = serde_json::to_vec(self)?;
        if json.len() as u64 > MAX_INFLATED || has_too_many_values(&json) {
            return Err(io::Error::other(format!(
                "the answer is larger than {} MiB or has more than {MAX_VALUES} values",
                MAX_INFLATED >> 20
            )));
        }
        let sum = hexadecimal(&Sha256::digest(&json));
        let mut encoder = GzBuilder::new()
            .comment(format!("sha256:{sum}"))
            .write(out, Compression::default());
        encoder.write_all(&json)?;
        encoder.finish()?.flush()
    }

    /// Reads the compressed file. `place` is its name in messages.
    ///
    /// # Errors
    /// It is damaged, larger than 64 MiB, has too many values, is of another schema, or its machine contradicts itself.
    pub fn read(bytes: &[u8], place: &str) -> Result<Self, ResultError> {
        let result: Self = parsed(bytes, place)?;
        let violations = result.machine.as_ref().map(Machine::check);
        match violations.unwrap_or_default().into_iter().next() {
            Some(violation) => Err(ResultError {
                place: place.to_owned(),
                what: format!("contradicts itself: {violation}"),
            }),
            None => Ok(result),
        }
    }
}

/// What is needed of an answer to know how the host's step ended.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Brief {
    pub host: HostName,
    pub ended: Ended,
    #[serde(default)]
    pub rollout: Option<Rollout>,
}

impl Brief {
    /// As [`HostResult::read`], without what the verb printed, machine and runs.
    ///
    /// # Errors
    /// It is damaged, larger than 64 MiB, has too many values, or is of another schema.
    pub fn read(bytes: &[u8], place: &str) -> Result<Self, ResultError> {
        parsed(bytes, place)
    }
}

/// Inflates, compares the sum and the schema, and parses.
fn parsed<T: DeserializeOwned>(bytes: &[u8], place: &str) -> Result<T, ResultError> {
    let not_a_result = |reason| format!("is not the answer of a host: {reason}");
    let parse = |json: Vec<u8>| {
        let Head { schema } = serde_json::from_slice(&json).map_err(not_a_result)?;
        match schema == SCHEMA {
            true => serde_json::from_slice(&json).map_err(not_a_result),
            false => Err(format!(
                "has the schema {schema:?}; this nearfar reads {SCHEMA:?}"
            )),
        }
    };
    inflated(bytes).and_then(parse).map_err(|what| ResultError {
        place: place.to_owned(),
        what,
    })
}

/// The JSON, whose sum is the header's.
fn inflated(bytes: &[u8]) -> Result<Vec<u8>, String> {
    if bytes.is_empty() {
        return Err("is empty: the step printed nothing (is --command nearfar?)".to_owned());
    }
    // RFC 1952.
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
        let begin = begin.lines().next().unwrap_or_default();
        return Err(format!(
            "begins with {begin:?}: something on the host, such as its login shell, prints before nearfar does"
        ));
    }
    let mut decoder = GzDecoder::new(BufReader::new(bytes));
    let mut json = Vec::new();
    let read = (&mut decoder).take(MAX_INFLATED + 1).read_to_end(&mut json);
    read.map_err(|reason| format!("is damaged or truncated: {reason}"))?;
    if json.len() as u64 > MAX_INFLATED {
        return Err("is larger than 64 MiB without its compression".to_owned());
    }
    check_sum(decoder.header(), &json)?;
    match has_too_many_values(&json) {
        true => Err(format!("has more than {MAX_VALUES} values")),
        false => Ok(json),
    }
}

/// Whether a text has more values than is parsed. Each but the first follows a comma, a colon or a bracket.
fn has_too_many_values(json: &[u8]) -> bool {
    let (mut values, mut is_in_string, mut is_escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if std::mem::take(&mut is_escaped) => {}
            b'\\' => is_escaped = is_in_string,
            b'"' => is_in_string = !is_in_string,
            b',' | b':' | b'[' | b'{' if !is_in_string => values += 1,
            _ => {}
        }
    }
    values > MAX_VALUES
}

fn check_sum(header: Option<&flate2::GzHeader>, json: &[u8]) -> Result<(), String> {
    let comment = header.and_then(flate2::GzHeader::comment);
    let expected = comment
        .and_then(|comment| std::str::from_utf8(comment).ok())
        .and_then(|comment| comment.strip_prefix("sha256:"))
        .ok_or("is not the answer of a host: it has no checksum in its header")?;
    let found = hexadecimal(&Sha256::digest(json));
    match expected == found {
        true => Ok(()),
        false => Err(format!(
            "is damaged: its content has the SHA-256 {found}, its header says {}",
            expected.chars().take(64).collect::<String>()
        )),
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> HostResult {
        HostResult {
            schema: SCHEMA.to_owned(),
            nearfar: "0.1.0".to_owned(),
            host: "n1".parse().unwrap(),
            arguments: vec!["audit".to_owned()],
            started_at_s: 1.5,
            took_s: 0.5,
            ended: Ended::Answered { exit_code: 0 },
            answer: serde_json::json!({"findings": []}),
            printed: String::new(),
            rollout: None,
            machine: None,
            runs: Vec::new(),
        }
    }

    fn written(result: &HostResult) -> Vec<u8> {
        let mut bytes = Vec::new();
        result.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = written(&result());
        assert_eq!(HostResult::read(&bytes, "x").unwrap(), result());
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let bytes = written(&result());
        // Of the header, gzip itself checks nothing: time, system and flags of speed may be anything.
        let unchecked = 4..10;
        for at in (0..bytes.len()).filter(|at| !unchecked.contains(at)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            assert!(HostResult::read(&damaged, "x").is_err(), "byte {at}");
            assert!(HostResult::read(&bytes[..at], "x").is_err(), "cut at {at}");
        }
    }

    /// 60 KB compressed, 1 GB once it is parsed.
    #[test]
    fn an_answer_of_too_many_values_is_refused_on_both_sides() {
        let list = |length| HostResult {
            answer: vec![0; length].into(),
            ..result()
        };
        HostResult::read(&written(&list(MAX_VALUES / 2)), "x").unwrap();
        let error = list(MAX_VALUES).write(io::sink()).unwrap_err();
        assert!(error.to_string().contains("values"), "{error}");
        let json = serde_json::to_vec(&list(MAX_VALUES)).unwrap();
        let sum = hexadecimal(&Sha256::digest(&json));
        let mut file = Vec::new();
        let mut encoder = GzBuilder::new()
            .comment(format!("sha256:{sum}"))
            .write(&mut file, Compression::default());
        encoder.write_all(&json).unwrap();
        encoder.finish().unwrap();
        for error in [
            HostResult::read(&file, "x").unwrap_err(),
            Brief::read(&file, "x").unwrap_err(),
        ] {
            assert!(error.to_string().contains("values"), "{error}");
        }
    }

    #[test]
    fn values_are_counted_outside_of_strings() {
        let text = format!("[\"{}\\\"{}\"]", ",".repeat(MAX_VALUES), ":".repeat(9));
        assert!(!has_too_many_values(text.as_bytes()));
        let text = format!("[\"\\\\\"{}]", ",0".repeat(MAX_VALUES));
        assert!(has_too_many_values(text.as_bytes()));
    }

    #[test]
    fn another_shape_is_named() {
        let other = HostResult {
            schema: "fleet-result/9".to_owned(),
            ..result()
        };
        let error = HostResult::read(&written(&other), "n1.result.gz").unwrap_err();
        assert_eq!(
            error.to_string(),
            "n1.result.gz has the schema \"fleet-result/9\"; this nearfar reads \"fleet-result/1\""
        );
    }
}
