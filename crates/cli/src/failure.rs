//! How a verb fails: three exit codes, one message.

use std::process::ExitCode;

use crate::output;

/// What went wrong, by who has to act.
#[derive(Debug)]
pub enum Failure {
    /// The answer is one that the caller asked to fail on; it has been printed. Exit code 1.
    AskedToFail,
    /// Wrong usage or unreadable input. Exit code 2.
    Input(anyhow::Error),
    /// The system refused. Exit code 3.
    Refused(anyhow::Error),
    /// The command that was run on the user's behalf ended with this code, which becomes ours.
    CommandEnded(u8),
    /// Whoever read our output has enough. Not a failure.
    OutputClosed,
}

/// What a verb answers.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// Wrong usage or unreadable input.
    pub fn input(error: impl Into<anyhow::Error>) -> Self {
        Self::Input(error.into())
    }

    /// The system refused.
    pub fn refused(error: impl Into<anyhow::Error>) -> Self {
        Self::Refused(error.into())
    }

    /// Prints the message and gives the exit code.
    pub fn report(&self) -> ExitCode {
        let (error, code) = match self {
            Self::OutputClosed => return ExitCode::SUCCESS,
            Self::CommandEnded(code) => return ExitCode::from(*code),
            Self::AskedToFail => return ExitCode::from(1),
            Self::Input(error) => (error, 2),
            Self::Refused(error) => (error, 3),
        };
        let mut message = String::new();
        for cause in error.chain().map(ToString::to_string) {
            // Some errors repeat their cause in their own text; each sentence is printed once.
            if !message.contains(&cause) {
                message += if message.is_empty() { "" } else { ": " };
                message += &cause;
            }
        }
        // Messages quote foreign files, which may hold what a terminal obeys.
        let message = message.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
        output::say!("{red}nearfar:{red:#} {message}", red = anstyle::AnsiColor::Red.on_default().bold());
        ExitCode::from(code)
    }
}
