//! Text in roles, fit to be shown: foreign text without control characters, and broken into lines where it may be.

use std::fmt::Display;

use unicode_width::UnicodeWidthStr;

use crate::style::Role;

/// Text whose parts have roles. Control characters of foreign text are replaced as it is made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Text {
    spans: Vec<Span>,
}

/// Text in one role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    pub role: Role,
    pub text: String,
}

impl<T: Display> From<T> for Text {
    fn from(text: T) -> Self {
        Self::new(Role::Plain, text)
    }
}

impl Text {
    /// Text in one role.
    pub fn new(role: Role, text: impl Display) -> Self {
        Self::default().then(role, text)
    }

    /// The text with more behind it.
    pub fn then(mut self, role: Role, text: impl Display) -> Self {
        let text = clean(&text.to_string());
        if !text.is_empty() {
            self.spans.push(Span { role, text });
        }
        self
    }

    /// The text with this role where it has none.
    pub(crate) fn in_role(mut self, role: Role) -> Self {
        let plain = self.spans.iter_mut().filter(|it| it.role == Role::Plain);
        plain.for_each(|span| span.role = role);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The text without its roles.
    pub fn plain(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// Columns it takes on one line.
    pub fn columns(&self) -> usize {
        self.spans.iter().map(|span| columns(&span.text)).sum()
    }

    /// Columns that its longest word takes.
    pub(crate) fn longest_word(&self) -> usize {
        longest_word(&self.plain())
    }

    /// The text in lines of at most `width` columns; at least one line.
    pub fn lines(&self, width: usize) -> Vec<Text> {
        let roles = self.spans.iter();
        let roles = roles.flat_map(|span| span.text.chars().map(move |c| (span.role, c)));
        // Wrapping drops spaces where it breaks and nothing else: the others are found again in order.
        let mut rest = roles.peekable();
        let mut line = |line: String| {
            let mut spans: Vec<Span> = Vec::new();
            for wanted in line.chars() {
                let found = rest.by_ref().find(|&(_, c)| c == wanted);
                let role = found.map_or(Role::Plain, |(role, _)| role);
                match spans.last_mut().filter(|span| span.role == role) {
                    Some(span) => span.text.push(wanted),
                    None => spans.push(Span {
                        role,
                        text: wanted.to_string(),
                    }),
                }
            }
            Text { spans }
        };
        let lines = wrap(&self.plain(), width).into_iter();
        lines.map(&mut line).collect()
    }
}

/// Text as it may be shown: control characters (a task's name can hold terminal escapes) and the characters that
/// turn the direction of writing around are replaced.
pub fn clean(text: &str) -> String {
    let unfit = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    text.chars()
        .map(|c| if unfit(c) { '\u{fffd}' } else { c })
        .collect()
}

/// Columns a text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// What is broken only where a line has no room for it alone.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut ends = rest.match_indices([' ', ',', '/']).map(|(at, _)| at + 1);
        let end = ends.find(|&end| !is_in_unit(rest, end));
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Whether a break here would be within a unit: `MB/s`.
fn is_in_unit(text: &str, at: usize) -> bool {
    let after = text[at..].strip_prefix('s');
    text[..at].ends_with('/') && after.is_some_and(|it| !it.starts_with(char::is_alphanumeric))
}

/// Columns that the longest part takes that [`wrap`] breaks only where it has to.
pub(crate) fn longest_word(text: &str) -> usize {
    let lengths = pieces(text).map(|it| columns(it.trim_end()));
    lengths.max().unwrap_or(0)
}

/// Breaks text into lines of at most `width` columns: after a space, comma or slash, or anywhere when there is none.
/// At least one line. A character of three columns (U+17D8) is a line of its own also where `width` is two.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines = vec![String::new()];
    for piece in pieces(text) {
        if columns(lines.last().map_or("", String::as_str)) + columns(piece.trim_end()) > width {
            lines.push(String::new());
        }
        for c in piece.chars() {
            let Some(line) = lines.last_mut() else {
                continue;
            };
            // A sign can change the width of the one before it, so that widths do not add up.
            line.push(c);
            if columns(line) > width {
                line.pop();
                if c != ' ' {
                    lines.push(c.to_string());
                }
            }
        }
    }
    let lines = lines.iter().map(|line| line.trim_end());
    let lines: Vec<String> = lines
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect();
    match lines.is_empty() {
        true => vec![String::new()],
        false => lines,
    }
}

/// The text cut to `width` columns, with "..." when something is missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if columns(&short) + 3 > width {
            short.pop();
            break;
        }
    }
    short + "..."
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_keeps_the_roles_of_its_parts() {
        let text = Text::from("a fine ")
            .then(Role::Subject, "eth0 queue")
            .then(Role::Dim, " here");
        let lines: Vec<Vec<(Role, String)>> = text
            .lines(11)
            .into_iter()
            .map(|line| {
                line.spans
                    .into_iter()
                    .map(|it| (it.role, it.text))
                    .collect()
            })
            .collect();
        assert_eq!(lines[0][1], (Role::Subject, "eth0".to_owned()));
        assert_eq!(lines[1][0], (Role::Subject, "queue".to_owned()));
        assert_eq!(lines[1][1], (Role::Dim, " here".to_owned()));
    }

    proptest! {
        #[test]
        fn wrapping_loses_only_spaces(parts in prop::collection::vec("[a-c ,/]{0,9}", 1..5), width in 2usize..14) {
            let roles = [Role::Plain, Role::Dim, Role::Far];
            let text = parts.iter().enumerate().fold(Text::default(), |text, (index, part)| text.then(roles[index % 3], part));
            let letters = |text: &Text, role: Role| {
                let of_role = text.spans.iter().filter(|span| span.role == role);
                of_role.flat_map(|span| span.text.chars()).filter(|c| *c != ' ').collect::<String>()
            };
            let lines = text.lines(width);
            prop_assert!(lines.iter().all(|line| line.columns() <= width));
            for role in roles {
                let wrapped: String = lines.iter().map(|line| letters(line, role)).collect();
                prop_assert_eq!(wrapped, letters(&text, role));
            }
        }
    }

    #[test]
    fn lines_break_after_spaces_commas_and_slashes() {
        assert_eq!(wrap("0-3,8,16-19", 6), ["0-3,8,", "16-19"]);
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("bandwidth MB/s", 12), ["bandwidth", "MB/s"]);
        assert_eq!(wrap("/sys/bus/s", 5), ["/sys/", "bus/s"]);
        assert_eq!(wrap("", 3), [""]);
        // The selector makes the sign two columns wide.
        assert_eq!(wrap("a\u{263a}\u{fe0f}", 2), ["a\u{263a}", "\u{fe0f}"]);
        assert_eq!(wrap("a\u{17d8}", 2), ["a", "\u{17d8}"]);
        assert_eq!(columns(&cut("ab\u{263a}\u{fe0f}cd", 6)), 6);
    }

    #[test]
    fn escapes_do_not_reach_a_terminal() {
        assert_eq!(
            clean("a\u{1b}[31mb\n\u{202e}c"),
            "a\u{fffd}[31mb\u{fffd}\u{fffd}c"
        );
    }

    #[test]
    fn cut_text_says_that_it_is_cut() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abc...");
    }

    proptest! {
        #[test]
        fn no_line_is_too_long_and_nothing_but_space_is_lost(text in "\\PC{0,80}", width in 2usize..30) {
            let lines = wrap(&text, width);
            let fits = |line: &String| columns(line) <= width || line == "\u{17d8}";
            prop_assert!(lines.iter().all(fits));
            let ink = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(ink(&lines.concat()), ink(&text));
            prop_assert!(columns(&cut(&text, width.max(3))) <= width.max(3));
        }
    }
}
