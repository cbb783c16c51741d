//! Text that people paste: what programs and files print about a machine, with whatever a mail, a log or an issue put
//! around it.
//!
//! ```text
//! file ──► pieces: the lines of each program, without the prefix that they share
//!             ├─ numactl -H ─────► Machine ┐
//!             ├─ lscpu ──────────► Machine ├─► join ──► one Machine
//!             ├─ /proc/interrupts► Machine ┘
//! ```
//!
//! Each kind of text is one file with a `Kind`: how its lines are recognised, and how they are read into a machine
//! of which everything else is unknown. `KINDS` lists them.

pub(crate) mod core_to_core;
mod document;
mod files;
mod interrupts;
mod lscpu;
mod lstopo;
mod memory;
mod mlc;
mod numactl;
mod nvidia;
mod nvme;
mod piece;
mod prefix;
mod printed;
mod virsh;

use std::borrow::Cow;
use std::collections::BTreeSet;

use nearfar_machine::{CpuSet, Known, Machine, Node, NodeId, Origin, SourceKind, Warning};

use crate::error::{SourceError, TextError};
use crate::join;
use crate::limits::MOST_NODES;
use crate::warnings::{Warnings, second_output};
use document::Document;
use piece::Piece;
use printed::Line;

/// One kind of text.
struct Kind {
    /// What prints it, as messages name it.
    name: &'static str,
    /// What it says of a machine: completes "... has only ...".
    has: &'static str,
    /// How its lines are recognised.
    starts: &'static [Start],
    /// Lines that belong to it though no [`Start`] recognises them: an expression for a line without its prefix.
    goes_on: &'static str,
    read: fn(&[Line], &mut Reading) -> Result<(), String>,
}

/// A line that only this program prints.
struct Start {
    /// One of them is in every such line; most lines are sorted out by that.
    words: &'static [&'static str],
    /// The line's own text is its first group; what stands before is the prefix.
    line: &'static str,
    /// Whether it is worth a look with the expression: another sign, where the word is common.
    likely: fn(&str) -> bool,
    /// What the next line, without the prefix, must be like, where the line alone could be another program's.
    next: Option<&'static str>,
}

impl Start {
    const fn new(words: &'static [&'static str], line: &'static str) -> Self {
        Self {
            words,
            line,
            likely: |_| true,
            next: None,
        }
    }

    const fn if_likely(self, likely: fn(&str) -> bool) -> Self {
        Self { likely, ..self }
    }

    const fn before(
        words: &'static [&'static str],
        line: &'static str,
        next: &'static str,
    ) -> Self {
        Self {
            next: Some(next),
            ..Self::new(words, line)
        }
    }
}

static KINDS: &[Kind] = &[
    numactl::KIND,
    lscpu::TABLE,
    lscpu::SUMMARY,
    memory::NUMASTAT,
    memory::MEMINFO,
    memory::ZONEINFO,
    interrupts::KIND,
    files::KIND,
    lstopo::KIND,
    mlc::KIND,
    nvidia::KIND,
    nvme::KIND,
];

fn ends_in_digit(line: &str) -> bool {
    line.ends_with(|c: char| c.is_ascii_digit())
}

/// What a kind of text reads into.
struct Reading {
    /// Everything is unknown, for the reason below.
    machine: Machine,
    reason: Cow<'static, str>,
    warnings: Warnings,
    /// What prints the text.
    name: &'static str,
    /// The headings and names of fields that an output has once, as far as it was read.
    keys: BTreeSet<String>,
}

/// Reads what programs printed about one machine, of whatever kinds there are in a text.
///
/// # Errors
/// When the text has no line that such a program prints, or none that says anything of a machine.
pub fn parse(text: &str, place: &str) -> Result<Machine, SourceError> {
    Parts::of(text).read(place)
}

/// What a text has of a machine.
pub(crate) struct Parts {
    documents: Vec<Document>,
    pieces: Vec<Piece>,
}

impl Parts {
    pub(crate) fn of(text: &str) -> Self {
        Self {
            documents: document::find(text),
            pieces: piece::find(text),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.documents.is_empty() && self.pieces.is_empty()
    }

    pub(crate) fn read(&self, place: &str) -> Result<Machine, SourceError> {
        let reason = match &self.pieces[..] {
            [piece] => only(piece.kind),
            pieces => {
                let kinds: Vec<&str> = pieces.iter().map(|piece| piece.kind.name).collect();
                format!("the text has only {}", kinds.join(", "))
            }
        };
        let documents = self.documents.iter().map(|document| {
            let line = document.line;
            (line, document.label(place), document.read(place))
        });
        let pieces = self.pieces.iter().map(|piece| {
            let label = format!("{} ({place}, line {})", piece.kind.name, piece.line());
            let read = Reading::read(piece.kind, &piece.lines, place, reason.clone());
            let line = piece.line();
            (
                line,
                label,
                read.map_err(|problem| nothing(&problem, place, Some(line)).into()),
            )
        });
        let (mut joined, mut failures): (Option<(Machine, String)>, _) = (None, Vec::new());
        for (line, label, read) in documents.chain(pieces) {
            match (read, joined.take()) {
                (Ok(machine), None) => joined = Some((machine, label)),
                (Ok(machine), Some((first, name))) => {
                    joined = Some((join::join(first, machine, &name, &label), name));
                }
                (Err(error), before) => {
                    joined = before;
                    failures.push((line, error));
                }
            }
        }
        let Some((mut machine, _)) = joined else {
            let none = || {
                nothing(
                    "no line about a node (\"node 0 cpus: 0 1 2\") in it",
                    place,
                    None,
                )
                .into()
            };
            return Err(failures
                .into_iter()
                .next()
                .map_or_else(none, |(_, error)| error));
        };
        let failures = failures.into_iter().map(|(line, error)| {
            let problem = match error {
                SourceError::Text(error) => error.problem,
                error => error.to_string(),
            };
            Warning::new(
                format!("{place}, line {line}"),
                format!("left out: {problem}"),
            )
        });
        machine.warnings.extend(failures);
        Ok(machine)
    }
}

/// Why the rest of a machine is unknown.
fn only(kind: &Kind) -> String {
    format!("{} text has only {}", kind.name, kind.has)
}

/// Reads lines of one kind, without others.
fn read_alone(kind: &'static Kind, lines: &[Line], place: &str) -> Result<Machine, TextError> {
    let first = lines.first().map(|line| line.number);
    Reading::read(kind, lines, place, only(kind)).map_err(|problem| nothing(&problem, place, first))
}

fn nothing(problem: &str, place: &str, line: Option<usize>) -> TextError {
    const ASK: &str =
        "paste the whole output of numactl -H, or take a snapshot there: nearfar snapshot -o FILE";
    TextError::new(place, line, problem, ASK)
}

impl Reading {
    fn read(
        kind: &'static Kind,
        lines: &[Line],
        place: &str,
        reason: String,
    ) -> Result<Machine, String> {
        let source = match kind.name {
            numactl::NAME => SourceKind::NumactlText,
            _ => SourceKind::Text,
        };
        let mut reading = Self {
            machine: Machine::empty(Origin::new(source, place), reason.clone()),
            reason: reason.into(),
            warnings: Warnings::about(place),
            name: kind.name,
            keys: BTreeSet::new(),
        };
        (kind.read)(lines, &mut reading)?;
        let Self {
            mut machine,
            warnings,
            ..
        } = reading;
        if machine.nodes.len() > MOST_NODES {
            return Err(format!(
                "more than {MOST_NODES} nodes, which no Linux kernel supports"
            ));
        }
        machine.warnings = warnings.finish();
        join::place_cpus(&mut machine);
        Ok(machine)
    }

    /// Whether a second output of the program begins in this line, because it repeats what an output has once. The
    /// reader ends there: of two machines in one text it would make one that does not exist.
    fn is_second(&mut self, key: impl Into<String>, line: usize) -> bool {
        let is_second = !self.keys.insert(key.into());
        if is_second {
            self.warnings.note_line(line, second_output(self.name));
        }
        is_second
    }

    /// The same for the first line of an output, whose beginning may be missing where it was copied before.
    fn is_second_heading(&mut self, heading: &str, line: usize) -> bool {
        if !self.keys.is_empty() {
            self.keys.insert(heading.to_owned());
        }
        self.is_second(heading, line)
    }

    /// A node of which nothing else is known yet.
    fn node(&self, id: NodeId, cpus: Known<CpuSet>) -> Node {
        let mut node = Node::new(id, cpus);
        node.memory = Known::no(self.reason.clone());
        node
    }

    /// A node whose CPUs the text does not have.
    fn node_of_unknown_cpus(&self, id: NodeId) -> Node {
        self.node(id, Known::no(self.reason.clone()))
    }
}
