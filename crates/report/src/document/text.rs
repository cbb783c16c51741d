//! Text in roles, fit to be shown.

use std::fmt::Display;

use crate::style::Role;
use crate::wrapping::{clean, columns, longest_word, wrap};

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
        let roles = self
            .spans
            .iter()
            .flat_map(|span| span.text.chars().map(move |c| (span.role, c)));
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
        wrap(&self.plain(), width)
            .into_iter()
            .map(&mut line)
            .collect()
    }
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
}
