//! How a verb fails: four exit codes and those of a command, one message.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use nearfar_proc::error_text;

use crate::output;

/// What went wrong, by who has to act.
#[derive(Debug)]
pub enum Failure {
    /// The answer has been printed and ends with this exit code: 1 for one that the caller asked to fail on, or that of its format.
    Answered(u8),
    /// Whether the answer is one to fail on cannot be judged; it has been printed. Exit code 125, with which `git bisect run` skips
    /// a commit.
    CannotJudge(anyhow::Error),
    /// Wrong usage or unreadable input. Exit code 2.
    Input(anyhow::Error),
    /// The system refused. Exit code 3.
    Refused(anyhow::Error),
    /// The command that was run on the user's behalf ended with this code, which becomes ours.
    CommandEnded(u8),
    /// The command that was to be run could not be started; the exit code is a shell's.
    NotStarted(anyhow::Error, u8),
    /// The reader of our output has closed it. Not a failure.
    OutputClosed,
}

/// [`Failure::Input`] in the words of a format.
macro_rules! input {
    ($($text:tt)*) => { $crate::failure::Failure::Input(anyhow::anyhow!($($text)*)) };
}

/// [`Failure::Refused`] in the words of a format.
macro_rules! refused {
    ($($text:tt)*) => { $crate::failure::Failure::Refused(anyhow::anyhow!($($text)*)) };
}
pub(crate) use {input, refused};

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

    /// Exit code 1 where the answer is one to fail on.
    pub fn on(is_met: bool) -> Outcome {
        match is_met {
            true => Err(Self::Answered(1)),
            false => Ok(()),
        }
    }

    /// A command could not be started. As shells answer (exec in POSIX's sh): 127 where there is none, 126 where it is no
    /// program that this user may run. A process or a setting that the system refused is its refusal.
    pub fn not_started(program: &OsStr, reason: io::Error) -> Self {
        use rustix::io::Errno;
        let errno = Errno::from_io_error(&reason);
        let error =
            anyhow::Error::new(reason).context(format!("cannot start {}", program.display()));
        match errno {
            Some(Errno::NOENT) => Self::NotStarted(error, 127),
            // fork, and what is set between fork and exec: memory policy and affinity.
            Some(Errno::AGAIN | Errno::NOMEM | Errno::INVAL | Errno::PERM | Errno::NOSYS) => {
                Self::Refused(error)
            }
            // A word with a zero byte in it never got as far as the system.
            None => Self::Input(error),
            Some(_) => Self::NotStarted(error, 126),
        }
    }

    /// What went wrong, for a message that has more to say.
    pub fn message(&self) -> String {
        match self {
            Self::CannotJudge(error)
            | Self::Input(error)
            | Self::Refused(error)
            | Self::NotStarted(error, _) => message(error),
            Self::CommandEnded(code) => format!("the command ended with {code}"),
            Self::Answered(_) | Self::OutputClosed => "no answer was printed".to_owned(),
        }
    }

    /// Prints the message and gives the exit code.
    pub fn report(&self) -> ExitCode {
        let (error, code) = match self {
            Self::OutputClosed => return ExitCode::SUCCESS,
            Self::Answered(code) | Self::CommandEnded(code) => return ExitCode::from(*code),
            Self::CannotJudge(error) => (error, 125),
            Self::Input(error) => (error, 2),
            Self::Refused(error) => (error, 3),
            Self::NotStarted(error, code) => (error, *code),
        };
        let message = message(error);
        // Messages quote foreign files, which may hold what a terminal obeys.
        let message = output::cleaned(&message);
        let message = message.lines().map(readable).collect::<Vec<_>>().join("\n");
        output::say_part!(
            "{red}nearfar:{red:#} {message}\n",
            red = anstyle::AnsiColor::Red.on_default().bold()
        );
        ExitCode::from(code)
    }
}

/// The error and its causes. Some errors repeat their cause in their own text; each sentence is there once.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(|cause| error_text(&cause)) {
        if !message.contains(&cause) {
            message += if message.is_empty() { "" } else { ": " };
            message += &cause;
        }
    }
    message
}

/// A line of a message, without its middle if it is very long: what is wrong is said at the end, and
/// the megabyte of a foreign file that it is wrong with comes before.
fn readable(line: &str) -> Cow<'_, str> {
    let (begin, end) = (1200, 600);
    let length = line.chars().count();
    if length <= begin + end + 100 {
        return line.into();
    }
    let first: String = line.chars().take(begin).collect();
    let last: String = line.chars().skip(length - end).collect();
    format!(
        "{first} [... {} more characters ...] {last}",
        length - begin - end
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_middle_of_a_very_long_line_is_left_out() {
        assert_eq!(readable("x: no such file"), "x: no such file");
        let path = "\u{e9}".repeat(1900);
        assert_eq!(readable(&path), path);
        let long = format!("file {}: no such node", "y".repeat(1 << 20));
        let cut = readable(&long);
        assert!(
            cut.len() < 2000 && cut.starts_with("file yy") && cut.ends_with("yy: no such node"),
            "{cut}"
        );
        assert!(
            cut.contains(&format!(" {} more characters", long.len() - 1800)),
            "{cut}"
        );
    }
}
