//! Why a source could not be read: what was tried, on what, why it failed, what to do next. And what is odd about one that was
//! read: warnings, collected without letting a hostile input grow the list for ever.

use std::io;

use nearfar_machine::{Warning, alternatives};

use crate::fake::FakeError;
use crate::snapshot::SnapshotError;
use crate::sysfs::SysfsError;
use crate::tree::Unreadable;

/// A source that could not be turned into a machine.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "both a root directory ({root}) and a source ({source_name}) were given: they are two machines; give one"
    )]
    TwoMachines { root: String, source_name: String },
    #[error(
        "{source_name:?} is no file, no machine of the gallery and no synthetic string; \
         {}; a synthetic string looks like \"node:2 core:4 pu:2 distance:10,20\"",
        alternatives(source_name, gallery)
    )]
    NoSuchSource {
        /// What was asked for, cut to a readable length.
        source_name: String,
        gallery: Vec<&'static str>,
    },
    #[error("cannot read {place}: {reason}")]
    Unreadable {
        place: String,
        #[source]
        reason: io::Error,
    },
    #[error(
        "{place} holds more than {limit_mib} MiB; {kind} is never that large: is it the right file?"
    )]
    TooLarge {
        place: String,
        /// What it was taken for.
        kind: &'static str,
        limit_mib: u64,
    },
    #[error(
        "{} and {} are different machines: {what} {:?} and {:?}; give one of them",
        names[0],
        names[1],
        values[0],
        values[1]
    )]
    DifferentMachines {
        names: [String; 2],
        /// What differs, and how.
        what: &'static str,
        values: [String; 2],
    },
    /// Of a support bundle, or of a directory that is no tree itself.
    #[error("{}", not_one_machine(place, machines, warnings))]
    NotOneMachine {
        place: String,
        /// Each as a source of its own.
        machines: Vec<String>,
        /// What was left out.
        warnings: Vec<String>,
    },
    #[error("cannot recognise {place}: {looks_like}; {next}")]
    NotRecognised {
        place: String,
        /// What its content looks like.
        looks_like: String,
        next: &'static str,
    },
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Fake(#[from] FakeError),
    #[error(transparent)]
    Root(#[from] Unreadable),
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
}

impl SourceError {
    pub(crate) fn unreadable(place: &str, reason: io::Error) -> Self {
        Self::Unreadable {
            place: place.to_owned(),
            reason,
        }
    }
}

fn not_one_machine(place: &str, machines: &[String], warnings: &[String]) -> String {
    const MOST: usize = 16;
    let lines = |lines: &[String]| -> String {
        let shown = lines.iter().take(MOST);
        let shown: String = shown.map(|line| format!("\n  {line}")).collect();
        match lines.len().saturating_sub(MOST) {
            0 => shown,
            more => format!("{shown}\n  and {more} more"),
        }
    };
    let problem = match machines.len() {
        0 => "no directory in it has `sys` or `proc` of a machine".to_owned(),
        count => {
            let sources = lines(machines);
            format!("it holds {count} machines; give one of them as the source:{sources}")
        }
    };
    let left_out = lines(warnings);
    format!("{place}: {problem}{left_out}")
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}; {next}", self.located())]
pub struct TextError {
    /// The file, or the synthetic string itself.
    pub place: String,
    /// The line, counted from 1, where the fault has one.
    pub line: Option<usize>,
    pub problem: String,
    pub next: String,
}

impl TextError {
    pub(crate) fn new(
        place: &str,
        line: Option<usize>,
        problem: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self {
            place: place.to_owned(),
            line,
            problem: problem.into(),
            next: next.into(),
        }
    }

    fn located(&self) -> String {
        match self.line {
            Some(line) => format!("{}, line {line}", self.place),
            None => self.place.clone(),
        }
    }
}

/// The line with this byte of a text, counted from 1.
pub(crate) fn line_of(text: impl AsRef<[u8]>, byte: usize) -> usize {
    let text = text.as_ref();
    let before = text.get(..byte).unwrap_or(text);
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// What is wrong with JSON text, without the place.
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    match error.classify() {
        Category::Syntax => "not JSON".to_owned(),
        Category::Eof => "the JSON text ends early".to_owned(),
        Category::Data | Category::Io => {
            let text = error.to_string();
            let (problem, _) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
            problem.replace('`', "\"")
        }
    }
}

/// How many warnings one input may cause; further ones are only counted.
const MOST: usize = 64;
/// How much of a foreign word a message repeats, in characters.
const LONGEST_EXCERPT: usize = 60;

pub(crate) struct Warnings {
    place: String,
    found: Vec<Warning>,
    left_out: usize,
}

impl Warnings {
    /// None yet, about this file or text.
    pub(crate) fn about(place: &str) -> Self {
        Self {
            place: place.to_owned(),
            found: Vec::new(),
            left_out: 0,
        }
    }

    /// Something odd about the input as a whole.
    pub(crate) fn note(&mut self, message: impl Into<String>) {
        self.push(self.place.clone(), message.into());
    }

    /// Something odd in one line, counted from 1.
    pub(crate) fn note_line(&mut self, line: usize, message: impl Into<String>) {
        self.push(format!("{}, line {line}", self.place), message.into());
    }

    /// All of them, in the order in which they were found.
    pub(crate) fn finish(mut self) -> Vec<Warning> {
        if self.left_out > 0 {
            let message = format!(
                "{} more oddities of this kind are not listed",
                self.left_out
            );
            self.found.push(Warning::new(self.place, message));
        }
        self.found
    }

    fn push(&mut self, place: String, message: String) {
        match self.found.len() < MOST {
            true => self.found.push(Warning::new(place, message)),
            false => self.left_out += 1,
        }
    }
}

/// Foreign text, cut to what fits into a message.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(LONGEST_EXCERPT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The warning about the line where a second output of a program begins: of two machines in one text no one is made.
pub(crate) fn second_output(name: &str) -> String {
    format!(
        "a second output of {name} begins here; only the first one was read: cut the text in two to see the other"
    )
}
