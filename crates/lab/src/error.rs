//! What can go wrong between a machine's description and a command's exit code.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::arch::Arch;
use crate::delay::DelayError;
use crate::guest::{BootFailure, Crash, HangSign};

/// Why there is no guest, or no answer from one. Programs use [`LabError::code`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The machine cannot be built from QEMU's parts, not even scaled down.
    #[error("this machine cannot be emulated: {0}")]
    Design(String),
    /// KVM was asked for, and what only software emulation has.
    #[error("--accel kvm has neither delays nor simulated time: software emulation has")]
    PluginUnderKvm,
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
        problem: BootProblem,
        /// The end of the console.
        console: String,
    },
    /// The guest went away while a command ran in it.
    #[error("the guest died: {problem}\n{console}")]
    Died {
        /// What was seen.
        problem: String,
        /// How its kernel crashed, if it did.
        crash: Option<Crash>,
        /// The end of the console.
        console: String,
    },
    /// The guest was found to hang while a command ran in it, and was ended.
    #[error("the guest hangs: {sign}\n{console}")]
    Hung {
        /// Why it counts as hanging.
        sign: HangSign,
        /// Its vCPUs and the end of the console.
        console: String,
    },
    /// A command was given its time.
    #[error("the command did not end within {} s, and the guest was ended\n{console}", limit.as_secs_f64())]
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
    Content { path: PathBuf, problem: String },
}

/// Why a guest did not come up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BootProblem {
    /// The boot timeout is over.
    #[error(
        "it was not up after {} s (--boot-timeout changes that); its console had printed {console_bytes} bytes by then",
        limit.as_secs()
    )]
    TimedOut {
        /// The timeout.
        limit: Duration,
        /// How much the console had printed.
        console_bytes: u64,
    },
    /// QEMU ended, after the kernel had printed something.
    #[error("it ended while it booted")]
    Ended,
    /// Failures by chance, too many in a row.
    #[error("{failure}, the last of {attempts} times")]
    Repeated {
        /// The last one.
        failure: BootFailure,
        /// How often it was tried.
        attempts: usize,
    },
}

impl LabError {
    /// [`Self::Kernel`] of each problem with this one.
    pub(crate) fn kernel(spec: impl Display, arch: Arch) -> impl Fn(String) -> Self {
        move |problem| Self::Kernel {
            spec: spec.to_string(),
            arch,
            problem,
        }
    }

    /// A word for programs. It does not change.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Design(_) => "design",
            Self::Delay(_) | Self::PluginUnderKvm => "delay",
            Self::Missing { .. } => "missing",
            Self::Kernel { .. } => "kernel",
            Self::Boot { .. } => "boot",
            Self::Died {
                crash: Some(Crash::LeftBreakpoint),
                ..
            } => "guest-broken",
            Self::Died { .. } => "guest-died",
            Self::Hung { .. } => "guest-hung",
            Self::OutOfTime { .. } => "command-timeout",
            Self::HotPlug { .. } => "hot-plug",
            Self::Interrupted => "interrupted",
            Self::System { .. } => "system",
            Self::Content { .. } => "content",
        }
    }

    /// Wraps a refusal of the operating system.
    pub fn system(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            doing: doing.into(),
            source: source.into(),
        }
    }

    /// Wraps its refusal to do something with a file.
    pub(crate) fn at<E: Into<io::Error>>(doing: &str, path: &Path) -> impl FnOnce(E) -> Self {
        move |error| Self::system(format!("{doing} {}", path.display()), error)
    }
}
