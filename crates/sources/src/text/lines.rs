//! The lines of a text as programs printed them: without what terminals, mails and web pages did to them, and without what
//! stands before each (quoting marks, a time, a host's name, a line number).
//!
//! ```text
//! > > node 0 cpus: 0 1 2=20=
//! > > 3 4                                  ─►   > > node 0 cpus: 0 1 2 3 4     folded by a mail
//! <br/>node&nbsp;0&nbsp;size: 512 MB       ─►   node 0 size: 512 MB            markup
//! "node 0 cpus: 0\nnode 0 size: 1 MB"      ─►   two lines                      within JSON
//! ```
//!
//! A piece begins with a line that only one program prints. What stands before that line's own text is the prefix of
//! its lines, until the next such line, whose prefix may be another one. All pieces of one kind are one.

use std::collections::{BTreeSet, VecDeque};
use std::sync::LazyLock;

use regex_lite::Regex;

use super::{KINDS, Kind, Start};

/// What one program printed.
pub(crate) struct Piece {
    pub(super) kind: &'static Kind,
    /// At least one, without the prefix.
    pub(super) lines: Vec<Line>,
}

impl Piece {
    /// The number of its first line.
    pub(super) fn line(&self) -> usize {
        self.lines.first().map_or(0, |line| line.number)
    }
}

/// How many lines of other text end a piece: mails and logs put some between its lines.
const MOST_BETWEEN: usize = 64;

struct Expressions {
    kind: &'static Kind,
    starts: Vec<(&'static Start, Regex, Option<Regex>)>,
    goes_on: Regex,
}

static EXPRESSIONS: LazyLock<Vec<Expressions>> = LazyLock::new(|| {
    let compiled =
        |start: &'static Start| (start, expression(start.line), start.next.map(expression));
    let of = |kind: &'static Kind| Expressions {
        kind,
        starts: kind.starts.iter().map(compiled).collect(),
        goes_on: expression(kind.goes_on),
    };
    KINDS.iter().map(of).collect()
});

/// The pieces of a text, by kind in the order of their first lines. The time is linear in the length of the text.
pub(crate) fn find(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut words = Words::of(text);
    let mut lines = Lines::of(text);
    while let Some(word) = words.next_from(lines.at()) {
        lines.skip_to(word);
        let mut open: Option<(&Expressions, Prefix)> = None;
        let mut between = 0;
        while let Some(line) = lines.next() {
            let start = EXPRESSIONS
                .iter()
                .find_map(|kind| Some((kind, kind.start(&line.text, &mut lines)?)));
            if let Some((kind, at)) = start {
                let (prefix, own) = line.text.split_at(at);
                open = Some((kind, Prefix::of(prefix)));
                between = 0;
                add(&mut pieces, kind.kind, line.number, own);
            } else if let Some((kind, prefix)) = &open {
                between += 1;
                if let Some(own) = prefix.strip(&line.text) {
                    if kind.goes_on.is_match(unquoted(own)) {
                        between = 0;
                    }
                    add(&mut pieces, kind.kind, line.number, own);
                }
                if between > MOST_BETWEEN {
                    open = None;
                }
            }
            if open.is_none() && lines.at() > word && !lines.has_more() {
                break;
            }
        }
    }
    pieces
}

fn add(pieces: &mut Vec<Piece>, kind: &'static Kind, number: usize, text: &str) {
    let line = Line {
        number,
        text: text.to_owned(),
    };
    let mut known = pieces.iter_mut();
    match known.find(|piece| std::ptr::eq(piece.kind, kind)) {
        Some(piece) => piece.lines.push(line),
        None => pieces.push(Piece {
            kind,
            lines: vec![line],
        }),
    }
}

impl Expressions {
    /// Where a line's own text begins, if it is one of this kind.
    fn start(&self, line: &str, following: &mut Lines<'_>) -> Option<usize> {
        self.starts.iter().find_map(|(start, expression, next)| {
            if !start.words.iter().any(|word| line.contains(word)) || !(start.likely)(line) {
                return None;
            }
            let at = expression.captures(line)?.get(1)?.start();
            if let Some(next) = next {
                let prefix = Prefix::of(&line[..at]);
                let following = prefix.strip(following.peek()?)?;
                return next.is_match(unquoted(following)).then_some(at);
            }
            Some(at)
        })
    }
}

/// Where the words stand of which each line that begins something has one. Each word is searched once in the text.
struct Words<'a> {
    text: &'a str,
    /// Each word and where it stands next; `None` where it does not stand again.
    next: Vec<(&'static str, Option<usize>)>,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Self {
        let starts = KINDS.iter().flat_map(|kind| kind.starts);
        let words = starts.flat_map(|start| start.words.iter().copied());
        let words: BTreeSet<&'static str> = words.collect();
        let next = words.into_iter().map(|word| (word, text.find(word)));
        Self {
            text,
            next: next.collect(),
        }
    }

    /// The first word at this byte or behind it.
    fn next_from(&mut self, at: usize) -> Option<usize> {
        for (word, next) in &mut self.next {
            if next.is_some_and(|next| next < at) {
                *next = self.text[at..].find(*word).map(|found| at + found);
            }
        }
        self.next.iter().filter_map(|(_, next)| *next).min()
    }
}

/// A line of a text.
pub(super) struct Line {
    /// Its number in the file, from 1.
    pub(super) number: usize,
    pub(super) text: String,
}

/// The lines of a text from some line on.
struct Lines<'a> {
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
    fn has_more(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Passes over the lines before the one with this byte.
    fn skip_to(&mut self, byte: usize) {
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
            let mut ready = self.ready.iter().skip(looked_at);
            if let Some(found) = ready.position(|line| !line.text.trim().is_empty()) {
                let line = self.ready.get(looked_at + found);
                return line.map(|line| line.text.as_str());
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

fn is_digits_only(line: &str) -> bool {
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

/// The prefix that the lines of a piece share: its numbers may differ from line to line, as in `12:03:04 ` or `17- `.
#[derive(Default)]
pub(super) struct Prefix(Vec<Token>);

enum Token {
    /// White space within the prefix, of any width: `[    1.25]` and `[  112.25]` are alike.
    Space,
    /// White space at its end, at most so many characters: the rest is the line's own indentation.
    LastSpace(usize),
    Number,
    Sign(char),
}

impl Prefix {
    pub(super) fn of(text: &str) -> Self {
        let mut tokens = Vec::new();
        // Longer ones are text before the only line of a file.
        const LONGEST: usize = 512;
        let mut rest = if text.len() > LONGEST { "" } else { text };
        while let Some(c) = rest.chars().next() {
            let is_same = |other: char| match c {
                ' ' => other == ' ',
                _ => c.is_ascii_digit() && other.is_ascii_digit(),
            };
            let behind = rest.trim_start_matches(is_same);
            tokens.push(match c {
                ' ' if behind.is_empty() => Token::LastSpace(rest.len()),
                ' ' => Token::Space,
                _ if c.is_ascii_digit() => Token::Number,
                _ => Token::Sign(c),
            });
            rest = match behind.len() == rest.len() {
                true => &rest[c.len_utf8()..],
                false => behind,
            };
        }
        Self(tokens)
    }

    /// A line without the prefix, or without the marks of a quotation. `None` for a line of something else, such as
    /// another container's in the same log.
    pub(super) fn strip<'a>(&self, line: &'a str) -> Option<&'a str> {
        match self.after(line) {
            Some(rest) => Some(rest),
            None if self.is_marks() => Some(unquoted(line)),
            // The end of a list that was folded after the prefix was put before it.
            None => is_digits_only(line).then_some(line),
        }
    }

    fn after<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut rest = line;
        for token in &self.0 {
            rest = match token {
                Token::Space => rest.trim_start_matches(' '),
                Token::LastSpace(most) => {
                    let width = rest.len() - rest.trim_start_matches(' ').len();
                    &rest[width.min(*most)..]
                }
                Token::Number => {
                    let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                    (behind.len() < rest.len()).then_some(behind)?
                }
                Token::Sign(sign) => rest.strip_prefix(*sign)?,
            };
        }
        Some(rest)
    }

    /// Whether it has neither letters nor numbers.
    fn is_marks(&self) -> bool {
        self.0.iter().all(|token| match token {
            Token::Space | Token::LastSpace(_) => true,
            Token::Number => false,
            Token::Sign(sign) => !sign.is_alphanumeric(),
        })
    }
}

/// A line without quoting marks of mails.
pub(super) fn unquoted(line: &str) -> &str {
    line.trim_start_matches(['>', '|', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(prefix: &str, line: &str) -> Option<String> {
        Prefix::of(prefix).strip(line).map(str::to_owned)
    }

    #[test]
    fn numbers_in_a_prefix_may_differ() {
        for (prefix, line, rest) in [
            ("", "  0: 10", "  0: 10"),
            ("> ", ">   0: 10", "  0: 10"),
            ("12:03:59 ", "12:04:00   0: 10", "  0: 10"),
            ("9:", "10:  0: 10", "  0: 10"),
            ("     9 ", "    10   0: 10", "  0: 10"),
            ("[    0.1] ", "[   12.25]   0: 10", "  0: 10"),
            ("node001: ", "node001: 0: 10", "0: 10"),
            (
                "Jan 02 03:04:05 host sh[12]: ",
                "Jan 02 03:04:06 host sh[12]:   0: 10",
                "  0: 10",
            ),
            ("> ", "0: 10", "0: 10"),
            ("web_1  | ", "12 13", "12 13"),
        ] {
            assert_eq!(
                strip(prefix, line).as_deref(),
                Some(rest),
                "{prefix:?} {line:?}"
            );
        }
        assert_eq!(strip("web_1  | ", "db_1   | 0: 10"), None);
    }

    proptest::proptest! {
        #[test]
        fn a_prefix_strips_itself(prefix: String, line: String) {
            let joined = format!("{prefix}{}", line.trim_start());
            let own = Prefix::of(&prefix);
            proptest::prop_assert!(own.after(&joined).is_some(), "{prefix:?} {line:?}");
            let _ = own.strip(&line);
        }
    }
}
