//! Text that people paste: what programs and files print about a machine, with whatever a mail, a log or an issue put
//! around it.
//!
//! ```text
//! file ──► pieces: the lines of each program, without the prefix that they share
//!             ├─ numactl -H ─────► Machine ┐
//!             ├─ lscpu ──────────► Machine ├─► join ──► one Machine
//!             ├─ /proc/interrupts► Machine ┘
//!    └───► documents: XML and JSON inside of other text (`lstopo --of xml` in a mail, `lscpu -J` in an issue)
//!
//! > Here it is:
//! > <topology version="2.0">          the prefix of this line is taken off all of its lines
//! >   <object type="Machine" ...>
//! > </topology>
//! ```
//!
//! Each kind of text is one file with a `Kind`: how its lines are recognised, and how they are read into a machine
//! of which everything else is unknown. `KINDS` lists them, `DOCUMENT_KINDS` those of documents.

pub(crate) mod core_to_core;
mod files;
mod interrupts;
mod lines;
mod lscpu;
mod lstopo;
mod memory;
mod mlc;
mod numactl;
mod nvidia;
mod nvme;
mod virsh;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{CpuSet, Known, Machine, Node, NodeId, Origin, SourceKind, Warning};
use serde_json::Value;

use crate::error::{SourceError, TextError, Warnings, json_problem, line_of, second_output};
use crate::{MOST_NODES, hwloc_xml, join, snapshot};
use lines::{Line, Piece, Prefix, expression};

pub use mlc::{MlcFigures, mlc_figures};

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
    documents: Vec<BareDocument>,
    pieces: Vec<Piece>,
}

impl Parts {
    pub(crate) fn of(text: &str) -> Self {
        Self {
            documents: find_documents(text),
            pieces: lines::find(text),
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
            let read = read.map_err(|problem| nothing(&problem, place, Some(line)).into());
            (line, label, read)
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
            let none = "no line about a node (\"node 0 cpus: 0 1 2\") in it";
            let first = failures.into_iter().next().map(|(_, error)| error);
            return Err(first.unwrap_or_else(|| nothing(none, place, None).into()));
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
        let mut machine = reading.machine;
        if machine.nodes.len() > MOST_NODES {
            return Err(format!(
                "more than {MOST_NODES} nodes, which no Linux kernel supports"
            ));
        }
        machine.warnings = reading.warnings.finish();
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

    /// Nodes with these CPUs.
    fn set_nodes(&mut self, nodes: BTreeMap<NodeId, CpuSet>) {
        let nodes = nodes.into_iter();
        let nodes = nodes.map(|(id, cpus)| self.node(id, Known::Yes(cpus)));
        self.machine.nodes = nodes.collect();
    }

    /// A node whose CPUs the text does not have.
    fn node_of_unknown_cpus(&self, id: NodeId) -> Node {
        self.node(id, Known::no(self.reason.clone()))
    }
}

/// One kind of document.
struct DocumentKind {
    name: &'static str,
    /// What only such a document has, near its beginning.
    mark: &'static str,
    /// What stands behind the mark.
    behind: &'static str,
    /// How it ends: an XML document at this tag, and a JSON object at its own end.
    end: Option<&'static str>,
    read: fn(&str, &str) -> Result<Machine, SourceError>,
}

static DOCUMENT_KINDS: &[DocumentKind] = &[
    // Before hwloc's: it has an element of the same name in it.
    DocumentKind {
        name: "virsh capabilities",
        mark: "<capabilities",
        behind: r"^[\s>]",
        end: Some("</capabilities>"),
        read: |text, place| Ok(virsh::parse(text, place)?),
    },
    DocumentKind {
        name: "hwloc XML",
        mark: "<topology",
        behind: r"^[\s>]",
        end: Some("</topology>"),
        read: |text, place| Ok(hwloc_xml::parse(text, place)?),
    },
    DocumentKind {
        name: "snapshot",
        mark: "\"nearfar_snapshot\"",
        behind: r"^\s*:",
        end: None,
        read: |text, place| Ok(snapshot::restore(text.as_bytes(), place)?),
    },
    DocumentKind {
        name: "JSON of nearfar topo",
        mark: "\"topo/1\"",
        behind: r"^\s*,",
        end: None,
        read: |text, place| Ok(snapshot::restore(text.as_bytes(), place)?),
    },
    DocumentKind {
        name: "lscpu -J",
        mark: "\"lscpu\"",
        behind: r"^\s*:[\s>|]*\[",
        end: None,
        read: |text, place| Ok(lscpu::parse_summary(text, place)?),
    },
    DocumentKind {
        name: "lscpu -e -J",
        mark: "\"cpus\"",
        behind: r#"^\s*:[\s>|]*\[[\s>|]*\{[\s>|]*"cpu""#,
        end: None,
        read: |text, place| Ok(lscpu::parse_table(text, place)?),
    },
    DocumentKind {
        name: "nvme list-subsys",
        mark: "\"Subsystems\"",
        behind: r"^\s*:[\s>|]*\[",
        end: None,
        read: |text, place| Ok(nvme::parse(text, place)?),
    },
];

/// A document without the prefix of its lines.
pub(crate) struct BareDocument {
    kind: &'static DocumentKind,
    /// The number of its first line.
    pub(super) line: usize,
    /// Of the part of the file that it is, at least.
    length: usize,
    /// The line where another document of its kind begins, which is not read.
    pub(super) second: Option<usize>,
    /// Behind as many empty lines as there are before it in the file, so that lines have their numbers.
    text: String,
}

impl BareDocument {
    pub(super) fn label(&self, place: &str) -> String {
        format!("{} ({place}, line {})", self.kind.name, self.line)
    }

    pub(super) fn read(&self, place: &str) -> Result<Machine, SourceError> {
        let mut machine = (self.kind.read)(&self.text, place)?;
        let second = self.second.map(|line| {
            let message = second_output(self.kind.name);
            Warning::new(format!("{place}, line {line}"), message)
        });
        machine.warnings.extend(second);
        Ok(machine)
    }
}

/// The first document of each kind. One within another is of that one.
fn find_documents(text: &str) -> Vec<BareDocument> {
    let mut found: Vec<(std::ops::Range<usize>, BareDocument)> = Vec::new();
    for kind in DOCUMENT_KINDS {
        let Some((range, is_escaped)) = kind.find(text, 0) else {
            continue;
        };
        if found.iter().all(|(other, _)| !other.contains(&range.start)) {
            let document = extract(kind, text, range.clone(), is_escaped);
            found.push((range.start..range.start + document.length, document));
        }
    }
    let ranges: Vec<_> = found.iter().map(|(range, _)| range.clone()).collect();
    for (range, document) in &mut found {
        let second = document.kind.find(text, range.end).map(|it| it.0.start);
        let second = second.filter(|at| ranges.iter().all(|range| !range.contains(at)));
        document.second = second.map(|at| line_of(text, at));
    }
    found.into_iter().map(|(_, document)| document).collect()
}

/// The line where a document begins, by the empty lines before it.
pub(super) fn first_line(text: &str) -> usize {
    text.len() - text.trim_start_matches('\n').len() + 1
}

/// Reads the JSON of a document.
///
/// # Errors
/// When it is no JSON.
pub(super) fn json(text: &str, place: &str, next: &str) -> Result<Value, TextError> {
    serde_json::from_str(text).map_err(|error| {
        let problem = format!("{} (column {})", json_problem(&error), error.column());
        TextError::new(place, Some(error.line()), problem, next)
    })
}

impl DocumentKind {
    /// The first document behind this byte, and whether its signs are escaped.
    fn find(&self, text: &str, from: usize) -> Option<(std::ops::Range<usize>, bool)> {
        let found = |is_escaped| Some((self.find_as(text, from, is_escaped)?, is_escaped));
        found(false).or_else(|| found(true))
    }

    fn find_as(&self, text: &str, from: usize, is_escaped: bool) -> Option<std::ops::Range<usize>> {
        let escaped = |tag: &str| match is_escaped {
            true => {
                let tag = tag.replace('<', "&lt;").replace('>', "&gt;");
                tag.replace('"', "&quot;")
            }
            false => tag.to_owned(),
        };
        let (mark, behind) = (escaped(self.mark), expression(self.behind));
        let is_it = |at: &usize| {
            const ENOUGH: usize = 80;
            let next: String = text[at + mark.len()..].chars().take(ENOUGH).collect();
            behind.is_match(&plain(&next, is_escaped))
        };
        let mut marks = text[from..].match_indices(&mark).map(|(at, _)| from + at);
        let mark = marks.find(is_it)?;
        Some(match self.end {
            Some(end) => {
                let end = escaped(end);
                mark..mark + text[mark..].find(&end)? + end.len()
            }
            None => from + text[from..mark].rfind('{')?..text.len(),
        })
    }
}

fn extract(
    kind: &'static DocumentKind,
    text: &str,
    range: std::ops::Range<usize>,
    is_escaped: bool,
) -> BareDocument {
    let line_start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
    let line = line_of(text, range.start);
    let prefix = Prefix::of(&text[line_start..range.start]);
    let mut own = String::new();
    for (at, line) in text[range.clone()].split('\n').enumerate() {
        if at > 0 {
            own.push('\n');
        }
        let stripped = if at > 0 { prefix.strip(line) } else { None };
        own.push_str(&plain(stripped.unwrap_or(line), is_escaped));
    }
    let mut length = range.len();
    if kind.end.is_none() {
        own.truncate(first_value(&own));
        length = length.min(own.len());
    }
    BareDocument {
        kind,
        line,
        length,
        second: None,
        text: "\n".repeat(line - 1) + &own,
    }
}

fn plain(line: &str, is_escaped: bool) -> Cow<'_, str> {
    match is_escaped {
        true => line
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&amp;", "&")
            .into(),
        false => line.into(),
    }
}

/// How long the JSON value is that a text begins with; all of it where that is damaged, for the reader's own message.
fn first_value(text: &str) -> usize {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => values.byte_offset(),
        _ => text.len(),
    }
}
