//! The lines of a text as they were printed: without what terminals, mails and web pages did to them.
//!
//! ```text
//! > > node 0 cpus: 0 1 2=20=
//! > > 3 4                                  ─►   > > node 0 cpus: 0 1 2 3 4     folded by a mail
//! <br/>node&nbsp;0&nbsp;size: 512 MB       ─►   node 0 size: 512 MB            markup
//! "node 0 cpus: 0\nnode 0 size: 1 MB"      ─►   two lines                      within JSON
//! ```

use std::collections::VecDeque;
use std::sync::LazyLock;

use regex_lite::Regex;

/// A line of a text.
pub(super) struct Line {
    /// Its number in the file, from 1.
    pub(super) number: usize,
    pub(super) text: String,
}

/// The lines of a text from some line on.
pub(super) struct Lines<'a> {
    text: &'a str,
    /// Where the next physical line begins, and its number.
    at: usize,
    number: usize,
    ready: VecDeque<Line>,
}

impl<'a> Lines<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            number: 1,
            ready: VecDeque::new(),
        }
    }

    /// Where the first line begins that was not looked at yet, in bytes.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Whether lines were taken from the text that were not looked at yet.
    pub(super) fn has_more(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Passes over the lines before the one with this byte.
    pub(super) fn skip_to(&mut self, byte: usize) {
        self.ready.clear();
        let start = self.text[self.at..byte].rfind('\n');
        if let Some(start) = start {
            let passed = &self.text.as_bytes()[self.at..=self.at + start];
            self.number += passed.iter().filter(|&&byte| byte == b'\n').count();
            self.at += start + 1;
        }
    }

    /// The next line that is not empty, without taking it.
    pub(super) fn peek(&mut self) -> Option<&str> {
        let mut looked_at = 0;
        loop {
            if let Some(found) = self
                .ready
                .iter()
                .skip(looked_at)
                .position(|line| !line.text.trim().is_empty())
            {
                return self
                    .ready
                    .get(looked_at + found)
                    .map(|line| line.text.as_str());
            }
            looked_at = self.ready.len();
            const MOST_EMPTY: usize = 4;
            if looked_at > MOST_EMPTY || !self.fill() {
                return None;
            }
        }
    }

    fn fill(&mut self) -> bool {
        let number = self.number;
        let Some(mut line) = self.physical().map(str::to_owned) else {
            return false;
        };
        while line.ends_with('=') && !line.trim_matches('=').is_empty() {
            line.pop();
            match self.physical() {
                Some(rest) => line.push_str(unfolded(rest)),
                None => break,
            }
        }
        let printed = printed(&line);
        let lines = printed.split('\n').map(|text| Line {
            number,
            text: text.trim_end_matches(is_around).to_owned(),
        });
        self.ready.extend(lines);
        true
    }

    fn physical(&mut self) -> Option<&'a str> {
        let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
        let end = rest.find('\n').unwrap_or(rest.len());
        self.at += (end + 1).min(rest.len());
        self.number += 1;
        Some(rest[..end].trim_end_matches('\r'))
    }
}

impl Iterator for Lines<'_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        if self.ready.is_empty() {
            self.fill();
        }
        self.ready.pop_front()
    }
}

/// The rest of a folded line, whose spaces count, without quoting marks.
fn unfolded(line: &str) -> &str {
    let mut rest = line;
    while let Some(inner) = rest.strip_prefix(['>', '|']) {
        rest = inner.strip_prefix(' ').unwrap_or(inner);
    }
    rest
}

/// What stands behind a line and is not of it: white space, quotation marks, the border of a table.
fn is_around(c: char) -> bool {
    is_space(c) || matches!(c, '`' | '"' | '\'' | '*' | '|' | '\\' | ',')
}

/// White space in the widest sense: also what a Latin-1 no-break space becomes when it is read as UTF-8.
fn is_space(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{200b}' | '\u{2060}' | '\u{feff}' | '\u{fffd}')
}

pub(super) fn is_digits_only(line: &str) -> bool {
    line.chars()
        .all(|c| c.is_ascii_digit() || matches!(c, ' ' | ',' | '-'))
}

fn printed(line: &str) -> String {
    static ESCAPES: LazyLock<Regex> = LazyLock::new(|| {
        expression(
            "\u{1b}(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^\u{7}\u{1b}]*(?:\u{7}|\u{1b}\\\\)?|[()][0-9A-Z])",
        )
    });
    static TAGS: LazyLock<Regex> = LazyLock::new(|| {
        expression(
            r"(?i)</?(br|p|pre|div|li|tr|ul|ol|blockquote|table|code|span|b|i|u|em|strong|font|tt|td|th|tbody|a|samp|kbd|small|details|summary)(?:\s[^<>]*)?/?>",
        )
    });
    // Of quoted-printable; `size=20MiB` is not.
    static SPACES: LazyLock<Regex> = LazyLock::new(|| expression(r"(^|[^A-Za-z])(?:=20)+"));
    let mut text = line.to_owned();
    if text.contains('\u{1b}') {
        text = ESCAPES.replace_all(&text, "").into_owned();
    }
    // Markup that is itself quoted is markup of the text that was quoted.
    if text.contains('&') {
        let entities = [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#34;", "\""),
            ("&#39;", "'"),
            ("&nbsp;", " "),
            ("&#160;", " "),
            ("&amp;", "&"),
        ];
        for (entity, sign) in entities {
            text = text.replace(entity, sign);
        }
    }
    if text.contains('<') {
        text = TAGS
            .replace_all(&text, |found: &regex_lite::Captures<'_>| {
                match found[1].to_ascii_lowercase().as_str() {
                    "br" | "p" | "pre" | "div" | "li" | "tr" | "ul" | "ol" | "blockquote"
                    | "table" => "\n",
                    "td" | "th" => " ",
                    _ => "",
                }
            })
            .into_owned();
    }
    if text.contains('\\') {
        text = text
            .replace("\\r\\n", "\n")
            .replace("\\n", "\n")
            .replace("\\t", " ")
            .replace("\\\"", "\"");
    }
    if ["=20", "=A0", "=3D"].iter().any(|code| text.contains(code)) {
        text = match text.contains(' ') && !text.contains("=3D") {
            true => SPACES.replace_all(&text, "$1 ").into_owned(),
            false => text.replace("=20", " "),
        };
        text = text.replace("=A0", " ").replace("=3D", "=");
    }
    text.replace(|c: char| c != '\n' && is_space(c), " ")
}

/// Compiles an expression that stands in the source; tests compile all of them.
pub(super) fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|error| unreachable!("{pattern}: {error}"))
}
