//! Faults in a description, with line and key.

use std::fmt::Display;
use std::ops::Range;

use toml::Spanned;

use crate::error::TextError;

const NEXT: &str = "see docs/descriptions.md for the keys";

pub(super) struct Faults<'a> {
    text: &'a str,
    place: &'a str,
}

impl<'a> Faults<'a> {
    pub(super) fn of(text: &'a str, place: &'a str) -> Self {
        Self { text, place }
    }

    pub(super) fn place(&self) -> &'a str {
        self.place
    }

    /// What the TOML reader found: bad syntax, an unknown key, a value of the wrong kind.
    pub(super) fn syntax(&self, error: &toml::de::Error) -> TextError {
        // The reader's messages may run over several lines; one is enough.
        let message = error
            .message()
            .lines()
            .next()
            .unwrap_or("not TOML")
            .to_owned();
        TextError::new(
            self.place,
            error.span().map(|span| self.line(&span)),
            message,
            NEXT,
        )
    }

    pub(super) fn at<T>(&self, value: &Spanned<T>, key: &str, problem: impl Display) -> TextError {
        TextError::new(
            self.place,
            Some(self.line(&value.span())),
            format!("{key}: {problem}"),
            NEXT,
        )
    }

    /// A fault of the file as a whole.
    pub(super) fn whole(&self, problem: impl Display) -> TextError {
        TextError::new(self.place, None, problem.to_string(), NEXT)
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..span.start)
            .unwrap_or(self.text.as_bytes());
        before.iter().filter(|&&byte| byte == b'\n').count() + 1
    }
}
