//! What the words of `numactl -H` say, before any of it is believed.

use std::collections::BTreeMap;

use nearfar_machine::{CpuId, CpuSet, Distance, MAX_NUMBER, NodeId, NodeSet};

use crate::warnings::{Warnings, excerpt, second_output};
use nearfar_machine::size;

pub(super) struct Word<'a> {
    pub text: &'a str,
    /// Its line, from 1.
    pub line: usize,
    /// Whether it is the first of its line.
    pub first: bool,
}

#[derive(Default)]
pub(super) struct Record {
    /// "available: N nodes (LIST)".
    pub header: Option<Header>,
    /// What the lines say of each node.
    pub nodes: BTreeMap<NodeId, NodeLines>,
    pub columns: Vec<NodeId>,
    /// The rows of the distance table, as many entries as could be read.
    pub rows: BTreeMap<NodeId, Vec<Option<Distance>>>,
}

/// The first line.
pub(super) struct Header {
    pub line: usize,
    pub count: u64,
    pub listed: Option<NodeSet>,
    pub text: String,
}

/// The lines of one node.
#[derive(Default)]
pub(super) struct NodeLines {
    pub line: usize,
    pub cpus: Option<CpuSet>,
    pub size: Option<u64>,
    pub free: Option<u64>,
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
pub(super) struct Reader<'a, 'd> {
    words: &'a [Word<'a>],
    at: usize,
    record: Record,
    warnings: &'d mut Warnings,
}

impl<'a, 'd> Reader<'a, 'd> {
    pub(super) fn new(words: &'a [Word<'a>], warnings: &'d mut Warnings) -> Self {
        Self {
            words,
            at: 0,
            record: Record::default(),
            warnings,
        }
    }

    /// The first output of numactl in the text.
    pub(super) fn read(mut self) -> Record {
        while let Some(word) = self.words.get(self.at) {
            let rest = &self.words[self.at..];
            let in_table = !self.record.columns.is_empty();
            match (word.text, rest.get(1).map(|word| word.text)) {
                ("available:", Some(count)) if number(count).is_some() => {
                    if self.record.header.is_some() || !self.record.nodes.is_empty() {
                        let message = second_output(super::NAME);
                        self.warnings.note_line(word.line, message);
                        break;
                    }
                    self.header();
                }
                ("node", Some("distances:")) => {
                    self.at += 2;
                    // A note behind the heading is not of the table.
                    while self
                        .word(0)
                        .is_some_and(|next| next.line == word.line && next.text != "node")
                    {
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
        self.at += usize::from(
            self.word(0)
                .is_some_and(|word| word.text.starts_with("node")),
        );
        let mut list = String::new();
        if self.word(0).is_some_and(|word| word.text.starts_with('(')) {
            const LONGEST: usize = 256;
            for word in self.words[self.at..].iter().take(LONGEST) {
                self.at += 1;
                let (listed, end) = match word.text.split_once(')') {
                    Some((listed, _)) => (listed, true),
                    None => (word.text, false),
                };
                list.push_str(listed);
                if end {
                    list.push(')');
                    break;
                }
            }
        }
        let inner = list.trim_start_matches('(').trim_end_matches(')');
        let listed = (!list.is_empty())
            .then(|| NodeSet::parse_list(inner).ok())
            .flatten();
        let text = format!("{count} nodes {}", excerpt(&list))
            .trim_end()
            .to_owned();
        self.record.header = Some(Header {
            line,
            count,
            listed,
            text,
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
        if self.record.nodes.len() > crate::limits::MOST_NODES {
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
                let slot = if field == Field::Size {
                    &mut lines.size
                } else {
                    &mut lines.free
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
                    let message = format!(
                        "{:?} is not a CPU number; the list ends before it",
                        excerpt(word.text)
                    );
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
        let line = rest
            .iter()
            .enumerate()
            .take_while(|(at, word)| *at == 0 || !word.first)
            .map(|(_, word)| word.text);
        line.take_while(|text| !matches!(*text, "node" | "available:"))
            .all(|text| number(text).is_some())
            && rest.first().is_some_and(|word| number(word.text).is_some())
    }

    /// `63379 MB`, `62GB`, `<not available>`.
    fn bytes(&mut self, id: NodeId, line: usize) -> Option<u64> {
        let word = self.word(0)?;
        if word.text.starts_with("<not") {
            return None;
        }
        let unit = self
            .word(1)
            .filter(|unit| size::unit(unit.text, 0).is_some());
        let bytes = match unit {
            Some(unit) if number(word.text).is_some() => {
                self.at += 2;
                size::parse(&format!("{}{}", word.text, unit.text), 1)
            }
            _ => {
                let bytes = size::parse(word.text, 1 << 20);
                self.at += usize::from(bytes.is_some());
                if bytes.is_some() && number(word.text).is_some() {
                    let message = format!(
                        "node {id}: {} without a unit was taken as MB",
                        excerpt(word.text)
                    );
                    self.warnings.note_line(line, message);
                }
                bytes
            }
        };
        if bytes.is_none() {
            self.warnings.note_line(
                line,
                format!("node {id}: {:?} is not a size", excerpt(word.text)),
            );
        }
        bytes
    }

    /// Whether numbers, and then the label of a row, follow the word "node".
    fn is_table(&self) -> bool {
        let behind = self.words[self.at + 1..].iter();
        let mut behind = behind.skip_while(|word| number(word.text).is_some() && !word.first);
        behind
            .next()
            .is_some_and(|word| word.first && label(word.text).is_some())
    }

    /// The line with the columns, which may be folded.
    fn table(&mut self, line: usize) {
        if self.word(0).is_none_or(|word| word.text != "node") || !self.record.columns.is_empty() {
            let message = "no line with the columns (\"node 0 1\") follows, or there are two tables of distances";
            self.warnings.note_line(line, message);
            return;
        }
        self.at += 1;
        while let Some((word, id)) = self
            .word(0)
            .and_then(|word| Some((word, number(word.text)?)))
        {
            self.at += 1;
            let column = self.supported("node", id, word.line).map(NodeId);
            let Some(column) = column else { continue };
            match self.record.columns.len() > crate::limits::MOST_NODES
                || self.record.columns.contains(&column)
            {
                true => self
                    .warnings
                    .note_line(word.line, format!("a second column for node {column}")),
                false => self.record.columns.push(column),
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
        if !self.record.columns.contains(&id) {
            self.warnings.note_line(
                line,
                format!("a row for node {id}, which has no column; it was left out"),
            );
        } else if self.record.rows.contains_key(&id) {
            self.warnings.note_line(
                line,
                format!("a second row for node {id}; the first was taken"),
            );
        } else {
            if entries.len() < width {
                let message = format!(
                    "the row of node {id} has {} of {width} distances",
                    entries.len()
                );
                self.warnings.note_line(line, message);
            }
            self.record.rows.insert(id, entries);
        }
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
    let distance = number(word)?;
    Some(
        u32::try_from(distance)
            .ok()
            .filter(|&distance| distance > 0)
            .map(Distance),
    )
}
