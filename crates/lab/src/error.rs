//! What can go wrong between a machine's description and a command's exit code.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::arch::Arch;
use crate::delay::DelayError;

/// Why there is no guest, or no answer from one. Programs that start a guest again tell the causes by the words in brackets, which
/// do not change: `guest-hung`, `guest-broken`, `command-timeout`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The machine cannot be built from QEMU's parts, not even scaled down.
    #[error("this machine cannot be emulated: {0}")]
    Design(String),
    /// The delays that were asked for do not fit the machine.
    #[error("--delay: {0}")]
    Delay(#[from] DelayError),
    /// A program or file the lab needs is not there; says which command brings it.
    #[error("{what} is missing: {hint}")]
    Missing {
        /// The program or file.
        what: String,
        /// What to do.
        hint: String,
    },
    /// No kernel of that name, or a folder that is not one.
    #[error("kernel {spec} for {arch}: {problem}")]
    Kernel {
        /// As the user wrote it.
        spec: String,
        /// For which guest.
        arch: Arch,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// QEMU ended before the guest was up. Carries the last lines that it and the guest's console printed.
    #[error("the guest did not come up: {problem}\n{console}")]
    Boot {
        /// What was seen.
        problem: String,
        /// The end of the console.
        console: String,
    },
    /// The guest went away while a command ran in it.
    #[error("the guest died{}: {problem}\n{console}", if *is_emulators_fault { " [guest-broken]" } else { "" })]
    Died {
        /// What was seen.
        problem: String,
        /// Whether its kernel died of a known fault of QEMU's software emulation; the same guest may go well again.
        is_emulators_fault: bool,
        /// The end of the console.
        console: String,
    },
    /// The guest was found to hang while a command ran in it, and was ended.
    #[error("the guest hangs [guest-hung]: {problem}\n{console}")]
    Hung {
        /// What was seen.
        problem: String,
        /// Its vCPUs and the end of the console.
        console: String,
    },
    /// A command was given its time.
    #[error("the command did not end within {} s [command-timeout], and the guest was ended\n{console}", limit.as_secs_f64())]
    OutOfTime {
        /// How long it might take.
        limit: Duration,
        /// The end of the console.
        console: String,
    },
    /// QEMU or the guest refused a hot plug.
    #[error("hot plug of {what}: {problem}")]
    HotPlug {
        /// What was to be plugged.
        what: String,
        /// The refusal.
        problem: String,
    },
    /// The user pressed Ctrl-C before there was a guest to pass it to.
    #[error("interrupted")]
    Interrupted,
    /// The operating system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was tried, with the path.
        doing: String,
        /// The refusal.
        source: io::Error,
    },
    /// A file of ours or of a package has an unexpected content.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl LabError {
    /// Wraps a refusal of the operating system.
    pub fn system(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            doing: doing.into(),
            source: source.into(),
        }
    }
}
