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

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{
    CpuId, CpuSet, Distance, DistanceOrigin, Distances, Known, MAX_NUMBER, Memory, Node, NodeId,
    NodeSet, size,
};

use super::lines::{Line, unquoted};
use super::{Kind, Reading, Start, ends_in_digit};
use crate::MOST_NODES;
use crate::error::{Warnings, excerpt, second_output};

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
    let record = WordReader::new(&words, &mut reading.warnings).read();
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
    fill(record, reading);
    Ok(())
}

fn words(lines: &[Line]) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    for line in lines {
        let texts = unquoted(&line.text).split(' ');
        let texts = texts.filter(|word| !word.is_empty());
        words.extend(texts.enumerate().map(|(at, text)| Word {
            text,
            line: line.number,
            first: at == 0,
        }));
    }
    words
}

struct Word<'a> {
    text: &'a str,
    /// Its line, from 1.
    line: usize,
    /// Whether it is the first of its line.
    first: bool,
}

#[derive(Default)]
struct Record {
    /// "available: N nodes (LIST)".
    header: Option<Header>,
    /// What the lines say of each node.
    nodes: BTreeMap<NodeId, NodeLines>,
    columns: Vec<NodeId>,
    /// The rows of the distance table, as many entries as could be read.
    rows: BTreeMap<NodeId, Vec<Option<Distance>>>,
}

/// The first line.
struct Header {
    line: usize,
    count: u64,
    listed: Option<NodeSet>,
    text: String,
}

/// The lines of one node.
#[derive(Default)]
struct NodeLines {
    line: usize,
    cpus: Option<CpuSet>,
    size: Option<u64>,
    free: Option<u64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Field {
    Cpus,
    Size,
    Free,
}

fn field(word: &str) -> Option<Field> {
    match word {
        "cpus:" => Some(Field::Cpus),
        "size:" => Some(Field::Size),
        "free:" => Some(Field::Free),
        _ => None,
    }
}

/// A whole number, perhaps with a comma after it.
fn number(word: &str) -> Option<u64> {
    let digits = word.strip_suffix(',').unwrap_or(word);
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// A number in parentheses.
fn count(word: &str) -> Option<u64> {
    number(word.strip_prefix('(')?.strip_suffix(')')?)
}

/// The label of a row of distances, `3:`.
fn label(word: &str) -> Option<u64> {
    number(word.strip_suffix(':')?).filter(|_| !word.contains(','))
}

/// Reads words into a [`Record`].
struct WordReader<'a, 'd> {
    words: &'a [Word<'a>],
    at: usize,
    record: Record,
    warnings: &'d mut Warnings,
}

impl<'a, 'd> WordReader<'a, 'd> {
    fn new(words: &'a [Word<'a>], warnings: &'d mut Warnings) -> Self {
        Self {
            words,
            at: 0,
            record: Record::default(),
            warnings,
        }
    }

    /// The first output of numactl in the text.
    fn read(mut self) -> Record {
        while let Some(word) = self.words.get(self.at) {
            let rest = &self.words[self.at..];
            let in_table = !self.record.columns.is_empty();
            match (word.text, rest.get(1).map(|word| word.text)) {
                ("available:", Some(count)) if number(count).is_some() => {
                    if self.record.header.is_some() || !self.record.nodes.is_empty() {
                        let message = second_output(NAME);
                        self.warnings.note_line(word.line, message);
                        break;
                    }
                    self.header();
                }
                ("node", Some("distances:")) => {
                    self.at += 2;
                    // A note behind the heading is not of the table.
                    let is_note = |next: &Word<'_>| next.line == word.line && next.text != "node";
                    while self.word(0).is_some_and(is_note) {
                        self.at += 1;
                    }
                    self.table(word.line);
                }
                // The line of columns where the heading was not copied.
                ("node", Some(id))
                    if !in_table && word.first && number(id).is_some() && self.is_table() =>
                {
                    self.table(word.line);
                }
                ("node", Some(id)) if number(id).is_some() => {
                    match rest.get(2).and_then(|word| field(word.text)) {
                        Some(field) => self.node(field),
                        None => self.at += 1,
                    }
                }
                (text, Some(_)) if in_table && word.first && label(text).is_some() => self.row(),
                _ => self.at += 1,
            }
        }
        self.record
    }

    fn word(&self, ahead: usize) -> Option<&'a Word<'a>> {
        self.words.get(self.at + ahead)
    }

    /// `available: 3 nodes (0,2-3)`; the list may be folded.
    fn header(&mut self) {
        let Some((line, count)) = self.word(0).zip(self.word(1)) else {
            return;
        };
        let (line, count) = (line.line, number(count.text).unwrap_or(u64::MAX));
        self.at += 2;
        let is_noun = |word: &Word<'_>| word.text.starts_with("node");
        self.at += usize::from(self.word(0).is_some_and(is_noun));
        let mut list = String::new();
        if self.word(0).is_some_and(|word| word.text.starts_with('(')) {
            const LONGEST: usize = 256;
            for word in self.words[self.at..].iter().take(LONGEST) {
                self.at += 1;
                match word.text.split_once(')') {
                    Some((listed, _)) => {
                        list.extend([listed, ")"]);
                        break;
                    }
                    None => list.push_str(word.text),
                }
            }
        }
        let inner = list.trim_start_matches('(').trim_end_matches(')');
        let listed = NodeSet::parse_list(inner).ok();
        let text = format!("{count} nodes {}", excerpt(&list));
        self.record.header = Some(Header {
            line,
            count,
            listed: listed.filter(|_| !list.is_empty()),
            text: text.trim_end().to_owned(),
        });
    }

    /// `node 2 cpus: 48 49 50`, `node 2 size: 64509 MB`.
    fn node(&mut self, field: Field) {
        let Some((word, id)) = self.word(0).zip(self.word(1)) else {
            return;
        };
        let line = word.line;
        let id = number(id.text).unwrap_or(u64::MAX);
        self.at += 3;
        let Some(id) = self.supported("node", id, line).map(NodeId) else {
            return;
        };
        // One too many is enough for the error that follows.
        if self.record.nodes.len() > MOST_NODES {
            return;
        }
        match field {
            Field::Cpus => {
                let cpus = self.cpus(line);
                let lines = self.lines(id, line);
                match &lines.cpus {
                    Some(before) if *before != cpus => {
                        let message = format!(
                            "node {id} has CPUs {cpus} here and {before} in line {}; the first was taken",
                            lines.line
                        );
                        self.warnings.note_line(line, message);
                    }
                    _ => lines.cpus = Some(cpus),
                }
            }
            Field::Size | Field::Free => {
                let bytes = self.bytes(id, line);
                let lines = self.lines(id, line);
                let slot = match field {
                    Field::Size => &mut lines.size,
                    _ => &mut lines.free,
                };
                match (*slot, bytes) {
                    (Some(before), Some(now)) if before != now => {
                        let message = format!(
                            "node {id}: {now} bytes here, {before} bytes before; the first was taken"
                        );
                        self.warnings.note_line(line, message);
                    }
                    (None, bytes) => *slot = bytes,
                    _ => {}
                }
            }
        }
    }

    fn lines(&mut self, id: NodeId, line: usize) -> &mut NodeLines {
        self.record.nodes.entry(id).or_insert_with(|| NodeLines {
            line,
            ..NodeLines::default()
        })
    }

    /// The numbers after "cpus:", also those on lines that hold nothing but numbers.
    fn cpus(&mut self, line: usize) -> CpuSet {
        let mut cpus = CpuSet::new();
        while let Some(word) = self.word(0) {
            if word.first && !self.line_continues() {
                break;
            }
            if let Some(cpu) = number(word.text) {
                cpus.extend(self.supported("CPU", cpu, word.line).map(CpuId));
            } else if let Ok(range) = CpuSet::parse_list(word.text)
                && word.text.starts_with(|c: char| c.is_ascii_digit())
            {
                cpus = cpus.union(&range);
            } else if let Some(count) = count(word.text) {
                // `--cpu-compress` adds how many there are: `0-31, 64-95 (64)`, `(0)`.
                self.at += 1;
                if count != cpus.len() as u64 {
                    let message = format!(
                        "the line lists {} CPUs ({cpus}) and counts {count}; the list was taken",
                        cpus.len()
                    );
                    self.warnings.note_line(word.line, message);
                }
                break;
            } else {
                if word.line == line && !matches!(word.text, "node" | "available:") {
                    let text = excerpt(word.text);
                    let message = format!("{text:?} is not a CPU number; the list ends before it");
                    self.warnings.note_line(line, message);
                }
                break;
            }
            self.at += 1;
        }
        cpus
    }

    /// Whether the line that begins at the current word is the rest of a folded list: numbers up to its end, or up to
    /// where numactl's next line was joined to it.
    fn line_continues(&self) -> bool {
        let rest = &self.words[self.at..];
        let line = rest.iter().enumerate();
        let line = line.take_while(|(at, word)| *at == 0 || !word.first);
        let list = line.map(|(_, word)| word.text);
        let mut list = list.take_while(|text| !matches!(*text, "node" | "available:"));
        let is_number = |text: &str| number(text).is_some();
        rest.first().is_some_and(|word| is_number(word.text)) && list.all(is_number)
    }

    /// `63379 MB`, `62GB`, `<not available>`.
    fn bytes(&mut self, id: NodeId, line: usize) -> Option<u64> {
        let word = self.word(0)?;
        if word.text.starts_with("<not") {
            return None;
        }
        let unit = self.word(1);
        let unit = unit.filter(|unit| size::unit(unit.text, 0).is_some());
        let bytes = match unit {
            Some(unit) if number(word.text).is_some() => {
                self.at += 2;
                size::parse(&format!("{}{}", word.text, unit.text), 1)
            }
            _ => {
                let bytes = size::parse(word.text, 1 << 20);
                self.at += usize::from(bytes.is_some());
                if bytes.is_some() && number(word.text).is_some() {
                    let text = excerpt(word.text);
                    let message = format!("node {id}: {text} without a unit was taken as MB");
                    self.warnings.note_line(line, message);
                }
                bytes
            }
        };
        if bytes.is_none() {
            let message = format!("node {id}: {:?} is not a size", excerpt(word.text));
            self.warnings.note_line(line, message);
        }
        bytes
    }

    /// Whether numbers, and then the label of a row, follow the word "node".
    fn is_table(&self) -> bool {
        let behind = self.words[self.at + 1..].iter();
        let mut behind = behind.skip_while(|word| number(word.text).is_some() && !word.first);
        let next = behind.next();
        next.is_some_and(|word| word.first && label(word.text).is_some())
    }

    /// The line with the columns, which may be folded.
    fn table(&mut self, line: usize) {
        if self.word(0).is_none_or(|word| word.text != "node") || !self.record.columns.is_empty() {
            let message = "no line with the columns (\"node 0 1\") follows, or there are two tables of distances";
            self.warnings.note_line(line, message);
            return;
        }
        self.at += 1;
        while let Some(word) = self.word(0)
            && let Some(id) = number(word.text)
        {
            self.at += 1;
            let column = self.supported("node", id, word.line).map(NodeId);
            let Some(column) = column else { continue };
            let columns = &mut self.record.columns;
            if columns.len() > MOST_NODES || columns.contains(&column) {
                let message = format!("a second column for node {column}");
                self.warnings.note_line(word.line, message);
            } else {
                columns.push(column);
            }
        }
    }

    /// `2: 32 25 10 16`, which may be folded.
    fn row(&mut self) {
        let Some(word) = self.word(0) else { return };
        let line = word.line;
        let id = label(word.text).unwrap_or(u64::MAX);
        self.at += 1;
        let width = self.record.columns.len();
        let mut entries = Vec::new();
        while entries.len() < width
            && let Some(entry) = self.word(0).and_then(|word| entry(word.text))
        {
            entries.push(entry);
            self.at += 1;
        }
        let Some(id) = self.supported("node", id, line).map(NodeId) else {
            return;
        };
        let found = entries.len();
        let message = if !self.record.columns.contains(&id) {
            format!("a row for node {id}, which has no column; it was left out")
        } else if let Entry::Vacant(row) = self.record.rows.entry(id) {
            row.insert(entries);
            if found == width {
                return;
            }
            format!("the row of node {id} has {found} of {width} distances")
        } else {
            format!("a second row for node {id}; the first was taken")
        };
        self.warnings.note_line(line, message);
    }

    fn supported(&mut self, noun: &str, number: u64, line: usize) -> Option<u32> {
        if number > MAX_NUMBER.into() {
            let message = format!(
                "{noun} {number} is above {MAX_NUMBER}, the highest number supported; left out"
            );
            self.warnings.note_line(line, message);
            return None;
        }
        u32::try_from(number).ok()
    }
}

/// One distance; 0 is what numactl prints if the kernel has none, so it is a hole like `-`.
fn entry(word: &str) -> Option<Option<Distance>> {
    if matches!(word, "-" | "?") {
        return Some(None);
    }
    let distance = u32::try_from(number(word)?).ok();
    let distance = distance.filter(|&distance| distance > 0);
    Some(distance.map(Distance))
}

fn fill(mut record: Record, reading: &mut Reading) {
    let Reading {
        machine, warnings, ..
    } = reading;
    check_header(&record, warnings);
    check_free(&mut record, warnings);
    machine.nodes = nodes(&record);
    note_shared_cpus(&machine.nodes, warnings);
    machine.distances = distances(&record, &machine.nodes, warnings);
}

/// The header counts and lists nodes; both may differ from the nodes that have lines.
fn check_header(record: &Record, warnings: &mut Warnings) {
    let Some(header) = &record.header else {
        warnings.note("the line \"available: N nodes\" is missing: the text may be incomplete");
        return;
    };
    let described = record.nodes.keys().chain(&record.columns);
    let described: NodeSet = described.copied().collect();
    let count_fits = header.count == described.len() as u64;
    let listed = header.listed.as_ref();
    let list_fits = listed.is_none_or(|listed| *listed == described);
    if !count_fits || !list_fits {
        let message = format!(
            "the header says \"{}\", but there are lines for {} node(s) ({described}); the lines were taken",
            header.text,
            described.len()
        );
        warnings.note_line(header.line, message);
    }
}

fn nodes(record: &Record) -> Vec<Node> {
    let in_table = record.columns.iter().chain(record.rows.keys());
    let ids: BTreeSet<NodeId> = record.nodes.keys().chain(in_table).copied().collect();
    let no_lines = NodeLines::default();
    let node = |id: NodeId| {
        let lines = record.nodes.get(&id).unwrap_or(&no_lines);
        let cpus = Known::from_option(lines.cpus.clone(), || {
            format!("the text has no line with the CPUs of node {id}")
        });
        let mut node = Node::new(id, cpus);
        node.memory = match lines.size {
            Some(total) => Known::Yes(Memory {
                free_bytes: lines.free,
                ..Memory::of(total)
            }),
            None => Known::no(format!("the text has no size for node {id}")),
        };
        node
    };
    ids.into_iter().map(node).collect()
}

/// Less can be free than there is.
fn check_free(record: &mut Record, warnings: &mut Warnings) {
    for (id, lines) in &mut record.nodes {
        if let (Some(total), Some(free)) = (lines.size, lines.free)
            && free > total
        {
            warnings.note(format!(
                "node {id} has {free} bytes free of {total}; what is free was left out"
            ));
            lines.free = None;
        }
    }
}

fn note_shared_cpus(nodes: &[Node], warnings: &mut Warnings) {
    let mut homes: BTreeMap<CpuId, NodeId> = BTreeMap::new();
    for node in nodes {
        let cpus = node.known_cpus().iter();
        let shared: CpuSet = cpus.filter(|cpu| homes.contains_key(cpu)).collect();
        if let Some(other) = shared.first().and_then(|cpu| homes.get(&cpu)) {
            let message = format!(
                "CPUs {shared} are listed in node {other} and in node {}, as fake nodes do it",
                node.id
            );
            warnings.note(message);
        }
        for cpu in node.known_cpus().iter() {
            homes.entry(cpu).or_insert(node.id);
        }
    }
}

fn distances(record: &Record, nodes: &[Node], warnings: &mut Warnings) -> Known<Distances> {
    if record.columns.is_empty() || record.rows.values().all(Vec::is_empty) {
        return Known::no("the text has no table of distances");
    }
    let entries = record.rows.iter().flat_map(|(&from, row)| {
        let row = record.columns.iter().zip(row);
        row.map(move |(&to, &distance)| (from, to, distance))
    });
    let ids = nodes.iter().map(|node| node.id);
    let distances = Distances::of(DistanceOrigin::Described, ids, entries);
    if !distances.is_complete() {
        let holes = distances.entries().filter(|entry| entry.2.is_none());
        let missing: NodeSet = holes.map(|entry| entry.0).collect();
        let message = format!("the table of distances has holes in the rows of nodes {missing}");
        warnings.note(message);
    }
    Known::Yes(distances)
}
