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
mod words;

use nearfar_machine::Machine;

use crate::error::TextError;
use crate::limits::MOST_NODES;
use crate::warnings::Warnings;
use record::Reader;

/// Reads the output of `numactl -H` with whatever stands around it.
///
/// # Errors
/// When the text holds no line about any node.
pub fn parse(text: &str, place: &str) -> Result<Machine, TextError> {
    let lines = words::lines(text);
    let words = words::words(&lines);
    let mut warnings = Warnings::about(place);
    let record = Reader::new(&words, &mut warnings).read();
    if record.nodes.is_empty() && record.columns.is_empty() {
        return Err(nothing_in_it(text, place));
    }
    if record.nodes.len().max(record.columns.len()) > MOST_NODES {
        let problem = format!("more than {MOST_NODES} nodes, which no Linux kernel supports");
        return Err(TextError::new(
            place,
            None,
            problem,
            "look for a line that was damaged on its way",
        ));
    }
    Ok(build::machine(record, place, warnings))
}

/// Whether a text looks like the output of `numactl -H`, with or without other text around it.
pub(crate) fn resembles(text: &str) -> bool {
    let lines = words::lines(text);
    let words = words::words(&lines);
    is_refusal(text)
        || words
            .windows(3)
            .any(|three| three[0].first && record::is_start(three))
}

fn is_refusal(text: &str) -> bool {
    text.contains("No NUMA available") || text.contains("No NUMA support available")
}

fn nothing_in_it(text: &str, place: &str) -> TextError {
    if is_refusal(text) {
        let problem =
            "numactl says that the system has no NUMA support, and so names neither nodes nor CPUs";
        return TextError::new(
            place,
            None,
            problem,
            "take a snapshot there instead: nearfar snapshot -o FILE",
        );
    }
    let problem = "no line about a node (\"node 0 cpus: 0 1 2\") in it";
    TextError::new(place, None, problem, "paste the whole output of numactl -H")
}
