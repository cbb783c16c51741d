//! What stands before each line of a text: quoting marks, a time, a host's name, a line number.

use super::printed::is_digits_only;

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
