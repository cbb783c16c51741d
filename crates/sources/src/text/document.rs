//! XML and JSON inside of other text: `lstopo --of xml` in a mail, `lscpu -J` in an issue, `nearfar topo --format json`
//! in a log.
//!
//! ```text
//! > Here it is:
//! > <topology version="2.0">          the prefix of this line is taken off all of its lines
//! >   <object type="Machine" ...>
//! > </topology>
//! ```

use std::borrow::Cow;

use nearfar_machine::{Machine, Warning};

use serde_json::Value;

use super::prefix::Prefix;
use super::printed::expression;
use super::{lscpu, nvme, virsh};
use crate::error::{SourceError, TextError, json_problem};
use crate::warnings::second_output;
use crate::{hwloc_xml, snapshot};

/// One kind of document.
struct Kind {
    name: &'static str,
    /// What only such a document has, near its beginning.
    mark: &'static str,
    /// What stands behind the mark.
    behind: &'static str,
    /// How it ends: an XML document at this tag, and a JSON object at its own end.
    end: Option<&'static str>,
    read: fn(&str, &str) -> Result<Machine, SourceError>,
}

static KINDS: &[Kind] = &[
    // Before hwloc's: it has an element of the same name in it.
    Kind {
        name: "virsh capabilities",
        mark: "<capabilities",
        behind: r"^[\s>]",
        end: Some("</capabilities>"),
        read: |text, place| Ok(virsh::parse(text, place)?),
    },
    Kind {
        name: "hwloc XML",
        mark: "<topology",
        behind: r"^[\s>]",
        end: Some("</topology>"),
        read: |text, place| Ok(hwloc_xml::parse(text, place)?),
    },
    Kind {
        name: "snapshot",
        mark: "\"nearfar_snapshot\"",
        behind: r"^\s*:",
        end: None,
        read: |text, place| Ok(snapshot::restore(text.as_bytes(), place)?),
    },
    Kind {
        name: "JSON of nearfar topo",
        mark: "\"topo/1\"",
        behind: r"^\s*,",
        end: None,
        read: |text, place| Ok(snapshot::restore(text.as_bytes(), place)?),
    },
    Kind {
        name: "lscpu -J",
        mark: "\"lscpu\"",
        behind: r"^\s*:[\s>|]*\[",
        end: None,
        read: |text, place| Ok(lscpu::parse_summary(text, place)?),
    },
    Kind {
        name: "lscpu -e -J",
        mark: "\"cpus\"",
        behind: r#"^\s*:[\s>|]*\[[\s>|]*\{[\s>|]*"cpu""#,
        end: None,
        read: |text, place| Ok(lscpu::parse_table(text, place)?),
    },
    Kind {
        name: "nvme list-subsys",
        mark: "\"Subsystems\"",
        behind: r"^\s*:[\s>|]*\[",
        end: None,
        read: |text, place| Ok(nvme::parse(text, place)?),
    },
];

/// A document without the prefix of its lines.
pub(crate) struct Document {
    kind: &'static Kind,
    /// The number of its first line.
    pub(super) line: usize,
    /// Of the part of the file that it is, at least.
    length: usize,
    /// The line where another document of its kind begins, which is not read.
    pub(super) second: Option<usize>,
    /// Behind as many empty lines as there are before it in the file, so that lines have their numbers.
    text: String,
}

impl Document {
    pub(super) fn label(&self, place: &str) -> String {
        format!("{} ({place}, line {})", self.kind.name, self.line)
    }

    pub(super) fn read(&self, place: &str) -> Result<Machine, SourceError> {
        let mut machine = (self.kind.read)(&self.text, place)?;
        let second = self.second.map(|line| {
            Warning::new(
                format!("{place}, line {line}"),
                second_output(self.kind.name),
            )
        });
        machine.warnings.extend(second);
        Ok(machine)
    }
}

/// The first document of each kind. One within another is of that one.
pub(crate) fn find(text: &str) -> Vec<Document> {
    let mut found: Vec<(std::ops::Range<usize>, Document)> = Vec::new();
    for kind in KINDS {
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

/// The number of the line with this byte.
fn line_of(text: &str, byte: usize) -> usize {
    text[..byte].matches('\n').count() + 1
}

impl Kind {
    /// The first document behind this byte, and whether its signs are escaped.
    fn find(&self, text: &str, from: usize) -> Option<(std::ops::Range<usize>, bool)> {
        let found = |is_escaped| Some((self.find_as(text, from, is_escaped)?, is_escaped));
        found(false).or_else(|| found(true))
    }

    fn find_as(&self, text: &str, from: usize, is_escaped: bool) -> Option<std::ops::Range<usize>> {
        let escaped = |tag: &str| match is_escaped {
            true => tag
                .replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('"', "&quot;"),
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
    kind: &'static Kind,
    text: &str,
    range: std::ops::Range<usize>,
    is_escaped: bool,
) -> Document {
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
    Document {
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
