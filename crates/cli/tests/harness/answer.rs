//! What a command answered.

use std::fmt;
use std::ops::Deref;
use std::process::Output;

use serde_json::Value;

use super::Sandbox;

/// Exit status and outputs of a command that has ended. As text it is what a failed test prints.
#[derive(Debug)]
pub struct Answer {
    pub(super) output: Output,
    pub(super) words: String,
    pub(super) sandbox: Sandbox,
}

impl Answer {
    /// Standard output, which has to be UTF-8.
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8(self.output.stdout.clone())
            .unwrap_or_else(|error| panic!("standard output: {error}\n{self}"))
    }

    /// Standard error, which has to be UTF-8.
    #[track_caller]
    pub fn errors(&self) -> String {
        String::from_utf8(self.output.stderr.clone())
            .unwrap_or_else(|error| panic!("standard error: {error}\n{self}"))
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|error| panic!("standard output is not JSON: {error}\n{self}"))
    }

    /// Its exit code; none where a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// Fails unless the exit code is 0.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        self.exited(0)
    }

    /// Fails unless the exit code is this one.
    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        assert!(self.code() == Some(code), "wanted exit code {code}\n{self}");
        self
    }

    /// Fails unless standard error contains all of these.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        let errors = String::from_utf8_lossy(&self.output.stderr);
        for part in parts {
            assert!(
                errors.contains(part),
                "standard error lacks {part:?}\n{self}"
            );
        }
        self
    }

    /// Fails unless it was refused as wrong usage, with a message that contains all of these and no other output.
    #[track_caller]
    pub fn refused(self, parts: &[&str]) -> Self {
        let answer = self.exited(2).says(parts);
        assert!(
            answer.output.stdout.is_empty(),
            "standard output is not empty\n{answer}"
        );
        answer
    }
}

impl Deref for Answer {
    type Target = Output;

    fn deref(&self) -> &Output {
        &self.output
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "command    {}", self.words)?;
        writeln!(f, "status     {}", self.output.status)?;
        writeln!(f, "directory  {}", self.sandbox.root().display())?;
        write!(f, "{}", self.sandbox.listing())?;
        for (name, bytes) in [
            ("output", &self.output.stdout),
            ("errors", &self.output.stderr),
        ] {
            writeln!(f, "standard {name}, {} bytes", bytes.len())?;
            for line in String::from_utf8_lossy(bytes).lines() {
                writeln!(f, "  | {line}")?;
            }
        }
        Ok(())
    }
}
