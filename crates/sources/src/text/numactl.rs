//! The text that `numactl -H` prints, as people paste it into mails and bug reports.
//!
//! ```text
//! available: 2 nodes (0-1)        what numactl believes; checked against the lines below
//! node 0 cpus: 0 1 2 3            one line a node; nothing after the colon means no CPUs
//! node 0 size: 64509 MB
//! node 0 free: 63942 MB
//! node distances:
//! node   0   1                    columns
//!   0:  10  20                    rows
//!   1:  20  10
//! ```
//!
//! The text is read word by word, so that folded and reflowed lines do not matter. What contradicts itself becomes a
//! warning that names both sides; only a text that describes no node at all is an error.

mod build;
mod record;

use super::prefix::unquoted;
use super::printed::Line;
use super::{Kind, Reading, Start, ends_in_digit};
use crate::limits::MOST_NODES;
use record::{Reader, Word};

pub(super) const NAME: &str = "numactl -H";

const NODE: &str = r"(?:^|\W)(node\s+\d+\s+(?:cpus|size|free):)";

pub(super) const KIND: Kind = Kind {
    name: NAME,
    has: "nodes, their CPUs, memory and distances",
    starts: &[
        Start::new(&["available:"], r"(?:^|\W)(available:\s+\d+,?\s+node)"),
        Start::new(&["cpus:", "size:", "free:"], NODE),
        Start::new(&["distances:"], r"(?:^|\W)(node\s+distances:)"),
        // A table alone.
        Start::before(
            &["node"],
            r"(?:^|\W)(node(?:\s+\d+)+)\s*$",
            r"^\s*\d+:(?:\s+(?:\d+|-))+\s*$",
        )
        .if_likely(ends_in_digit),
        Start::new(&["No NUMA"], r"(No NUMA (?:support )?available)"),
    ],
    goes_on: r"^[\d\s,:-]+$",
    read,
};

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let words = words(lines);
    let record = Reader::new(&words, &mut reading.warnings).read();
    if record.nodes.is_empty() && record.columns.is_empty() {
        let is_refusal = lines.iter().any(|line| line.text.contains("No NUMA"));
        return Err(match is_refusal {
            true => "numactl says that the system has no NUMA support, and so names neither nodes nor CPUs".to_owned(),
            false => "no line about a node (\"node 0 cpus: 0 1 2\") in it".to_owned(),
        });
    }
    if record.nodes.len().max(record.columns.len()) > MOST_NODES {
        return Err(format!(
            "more than {MOST_NODES} nodes, which no Linux kernel supports: a line was damaged on its way"
        ));
    }
    build::fill(record, reading);
    Ok(())
}

fn words(lines: &[Line]) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    for line in lines {
        let texts = unquoted(&line.text)
            .split(' ')
            .filter(|word| !word.is_empty());
        words.extend(texts.enumerate().map(|(at, text)| Word {
            text,
            line: line.number,
            first: at == 0,
        }));
    }
    words
}
