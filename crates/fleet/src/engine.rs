//! What runs a step on a host: Slurm, OpenSSH, or this machine. nearfar has no scheduler, transport or daemon of its own.
//!
//! ```text
//!              ┌─ local   child process ─────────┐ standard output ─► .HOST.partial ─► HOST.result.gz
//!  step of n1 ─┼─ ssh     ssh n1 ... ────────────┘        (renamed when the step ended with 0)
//!              └─ slurm   sbatch --nodelist=n1   the job does the same in the folder, which all nodes share
//! ```

mod processes;
mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::process::Stdio;

use nearfar_machine::shell_quoted;
use serde::{Deserialize, Serialize};

use processes::Processes;
use slurm::Slurm;
pub use slurm::{check_options, hosts_of_partition};

use crate::folder::{Folder, Layout};
use crate::hosts::HostName;

/// Which engine, and how it is used. Part of the manifest, so that `--resume` needs nothing else.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum EngineSettings {
    /// Each host's step is a process here: for tests.
    Local {
        #[serde(default = "day")]
        time_limit_minutes: u32,
    },
    Ssh {
        /// Words between `ssh` and the host.
        options: Vec<String>,
        #[serde(default = "day")]
        time_limit_minutes: u32,
    },
    Slurm(SlurmSettings),
}

impl EngineSettings {
    /// For steps that measure nothing: they need no node for themselves.
    pub(crate) fn without_measuring(&self) -> Self {
        match self {
            Self::Slurm(settings) => Self::Slurm(SlurmSettings {
                is_exclusive: false,
                ..settings.clone()
            }),
            other => other.clone(),
        }
    }
}

/// The time limit of steps that Slurm does not end, in minutes.
pub const DEFAULT_TIME_LIMIT_MINUTES: u32 = 24 * 60;

/// That of a run that has none.
fn day() -> u32 {
    DEFAULT_TIME_LIMIT_MINUTES
}

/// How jobs are submitted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SlurmSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Whether a job has its node for itself.
    pub is_exclusive: bool,
    pub time_limit_minutes: u32,
    /// Words for sbatch, such as `--account=perf`.
    pub options: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("cannot start {program}: {reason}")]
    NotStarted { program: String, reason: io::Error },
    #[error("{program} failed: {reason}")]
    Failed { program: String, reason: String },
    #[error("cannot write {path}: {reason}")]
    File { path: String, reason: io::Error },
}

/// A step that ended, and why if it gave no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepEnd {
    pub host: HostName,
    /// What the engine says of its end; `None` where it says that all is well.
    pub problem: Option<String>,
    /// Whether it is known not to have begun on the host.
    pub is_not_begun: bool,
}

pub trait Engine {
    /// The hosts of these that cannot take a step now, each with the reason.
    ///
    /// # Errors
    /// The engine cannot be asked.
    fn unavailable(&mut self, _: &[HostName]) -> Result<Vec<(HostName, String)>, EngineError> {
        Ok(Vec::new())
    }

    /// Starts the step of a host, and says by which name the engine knows it.
    ///
    /// # Errors
    /// This host's step cannot be started; [`EngineError::NotStarted`] if none can.
    fn start(&mut self, host: &HostName) -> Result<String, EngineError>;

    /// Takes over the steps that an earlier nearfar started, each with the engine's name for it: those that may still be there.
    ///
    /// # Errors
    /// The engine cannot be asked: a step that is taken for gone would be started once more next to the one that runs.
    fn adopt(
        &mut self,
        steps: &BTreeMap<HostName, String>,
    ) -> Result<BTreeSet<HostName>, EngineError>;

    /// The steps that ended since it was last asked.
    ///
    /// # Errors
    /// The engine cannot be asked.
    fn ended(&mut self) -> Result<Vec<StepEnd>, EngineError>;

    /// Ends all steps.
    fn cancel(&mut self);

    /// Ends the steps of the run that wait and have not begun, also those that an earlier nearfar started.
    ///
    /// # Errors
    /// The engine cannot be asked.
    fn cancel_waiting(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whether the engine has steps of the run that wait or run, also those that an earlier nearfar started. Engines whose steps are
    /// processes do not know.
    ///
    /// # Errors
    /// The engine cannot be asked.
    fn has_active(&mut self) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// How long to wait before it is asked again, in milliseconds.
    fn interval_ms(&self) -> u64;
}

/// The engine of a run.
pub fn engine_of(folder: &Folder) -> Box<dyn Engine> {
    let manifest = &folder.manifest;
    match &manifest.engine {
        EngineSettings::Local { time_limit_minutes } => Box::new(Processes::new(
            StepCommands::of(folder),
            |_, step| step,
            Stdio::null,
            *time_limit_minutes,
        )),
        EngineSettings::Ssh {
            options,
            time_limit_minutes,
        } => {
            let options = options.clone();
            let mut steps = StepCommands::of(folder);
            // Without a terminal sshd sends no signal to what it started.
            steps.step.push("--end-with-input".to_owned());
            let words = move |host: &HostName, step: Vec<String>| ssh(&options, host, &step);
            Box::new(Processes::new(
                steps,
                words,
                Stdio::piped,
                *time_limit_minutes,
            ))
        }
        EngineSettings::Slurm(settings) => Box::new(Slurm::new(
            StepCommands::of(folder),
            &manifest.id,
            settings.clone(),
        )),
    }
}

/// What an engine has to know of a run.
#[derive(Clone, Debug)]
struct StepCommands {
    layout: Layout,
    command: Vec<String>,
    step: Vec<String>,
    arguments: Vec<String>,
}

impl StepCommands {
    fn of(folder: &Folder) -> Self {
        let manifest = &folder.manifest;
        Self {
            layout: folder.layout().clone(),
            command: manifest.command.clone(),
            step: manifest.step_words(),
            arguments: manifest.arguments.clone(),
        }
    }

    /// The words of a host's step.
    fn words(&self, host: &HostName) -> Vec<String> {
        let mut words = self.command.clone();
        words.extend(self.step.iter().cloned());
        words.extend(["--host".to_owned(), host.to_string(), "--".to_owned()]);
        words.extend(self.arguments.iter().cloned());
        words
    }
}

/// What ssh is called with: a password is never asked for; a host that does not answer is given up after 10 s, one that answers no
/// longer after a minute.
const SSH_OPTIONS: [&str; 8] = [
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=15",
    "-o",
    "ServerAliveCountMax=4",
];

/// The words of a step on another host.
fn ssh(options: &[String], host: &HostName, step: &[String]) -> Vec<String> {
    let mut words = vec!["ssh".to_owned()];
    words.extend(SSH_OPTIONS.map(str::to_owned));
    words.extend(options.iter().cloned());
    words.extend(["--".to_owned(), host.to_string(), quoted(step)]);
    words
}

/// Words as a POSIX shell takes them.
pub(crate) fn quoted(words: &[String]) -> String {
    let quoted = words.iter().map(|word| shell_quoted(word));
    quoted.collect::<Vec<_>>().join(" ")
}

fn os_words(words: &[String]) -> impl Iterator<Item = OsString> + '_ {
    words.iter().map(OsString::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_shell_gets_every_word_as_it_is() {
        let step = [
            "nearfar".to_owned(),
            "a b".to_owned(),
            "it's; $(x)".to_owned(),
        ];
        let words = ssh(
            &["-p".to_owned(), "22".to_owned()],
            &"n1".parse().unwrap(),
            &step,
        );
        assert_eq!(
            words[9..],
            ["-p", "22", "--", "n1", r"'nearfar' 'a b' 'it'\''s; $(x)'"]
        );
        let shown = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {}", words[13])])
            .output()
            .unwrap();
        assert_eq!(shown.stdout, b"nearfar\na b\nit's; $(x)\n");
    }
}
