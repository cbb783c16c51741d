//! Finds the pieces of a text that programs printed.
//!
//! A piece begins with a line that only one program prints. What stands before that line's own text is the prefix of
//! its lines, until the next such line, whose prefix may be another one. All pieces of one kind are one.

use std::sync::LazyLock;

use regex_lite::Regex;

use super::prefix::{Prefix, unquoted};
use super::printed::{Line, Lines, expression};
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
    let of = |kind: &'static Kind| Expressions {
        kind,
        starts: kind
            .starts
            .iter()
            .map(|start| (start, expression(start.line), start.next.map(expression)))
            .collect(),
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
    match pieces
        .iter_mut()
        .find(|piece| std::ptr::eq(piece.kind, kind))
    {
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
                next.is_match(unquoted(prefix.strip(following.peek()?)?))
                    .then_some(at)
            } else {
                Some(at)
            }
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
        let mut words: Vec<&'static str> = KINDS
            .iter()
            .flat_map(|kind| kind.starts)
            .flat_map(|start| start.words.iter().copied())
            .collect();
        words.sort_unstable();
        words.dedup();
        let next = words
            .into_iter()
            .map(|word| (word, text.find(word)))
            .collect();
        Self { text, next }
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
