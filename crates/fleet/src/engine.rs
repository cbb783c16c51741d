//! What runs a step on a host: Slurm, OpenSSH, or this machine. nearfar has no scheduler, transport or daemon of its own.
//!
//! ```text
//!              ┌─ local   child process ─────────┐ standard output ─► .HOST.partial ─► HOST.result.gz
//!  step of n1 ─┼─ ssh     ssh n1 ... ────────────┘        (renamed when the step ended with 0)
//!              └─ slurm   sbatch --nodelist=n1   the job does the same in the folder, which all nodes share
//! ```

mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nearfar_machine::shell_quoted;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::folder::{Folder, Layout, MAX_FILE_BYTES, create_new_file};
use crate::hosts::HostName;
use slurm::Slurm;

pub use slurm::{check_options, hosts_of_partition};

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
        EngineSettings::Local { time_limit_minutes } => {
            let steps = StepCommands::of(folder);
            Box::new(Processes::new(steps, None, *time_limit_minutes))
        }
        EngineSettings::Ssh {
            options,
            time_limit_minutes,
        } => {
            let mut steps = StepCommands::of(folder);
            // Without a terminal sshd sends no signal to what it started.
            steps.step.push("--end-with-input".to_owned());
            let ssh = Some(options.clone());
            Box::new(Processes::new(steps, ssh, *time_limit_minutes))
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

/// How long a step may take to end after SIGTERM, as with Slurm (KillWait).
const MAX_END: Duration = Duration::from_secs(30);
/// The most that a step may write to standard error, in bytes.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// A process for each host.
struct Processes {
    steps: StepCommands,
    /// The options of the ssh that carries out the steps; `None` where they are processes here.
    ssh: Option<Vec<String>>,
    time_limit: Duration,
    running: Vec<Running>,
}

struct Running {
    host: HostName,
    child: Child,
    since: Instant,
    /// Why it was told to end, and when.
    ended_for: Option<(&'static str, Instant)>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Processes {
    fn new(steps: StepCommands, ssh: Option<Vec<String>>, time_limit_minutes: u32) -> Self {
        Self {
            steps,
            ssh,
            time_limit: Duration::from_secs(60 * u64::from(time_limit_minutes)),
            running: Vec::new(),
        }
    }

    /// Why a step is not waited for any longer: a hanging host answers no more, a broken one without end.
    fn excess(&self, running: &Running) -> Option<&'static str> {
        let layout = &self.steps.layout;
        let is_large = |path, most| fs::metadata(path).is_ok_and(|it| it.len() > most);
        if running.since.elapsed() > self.time_limit {
            Some("its step was over its time limit (--time-limit)")
        } else if is_large(layout.partial(&running.host), MAX_FILE_BYTES) {
            Some("its answer is larger than 64 MiB")
        } else if is_large(layout.log(&running.host), MAX_LOG_BYTES) {
            Some("its step wrote more than 16 MiB to standard error")
        } else {
            None
        }
    }

    /// The step ended: its output is the answer if it ended well.
    fn finish(&self, running: &Running, status: ExitStatus) -> StepEnd {
        let (layout, host) = (&self.steps.layout, &running.host);
        let problem = match (status.success(), running.ended_for) {
            (true, _) => {
                let partial = layout.partial(host);
                let renamed = fs::rename(&partial, layout.answer(host)).err();
                renamed.map(|reason| format!("cannot rename {}: {reason}", partial.display()))
            }
            (false, Some((reason, _))) => {
                // It may be what was too large.
                let _ = fs::remove_file(layout.partial(host));
                Some(reason.to_owned())
            }
            (false, None) if is_no_command(status) => {
                Some("there is no such command (--command names it)".to_owned())
            }
            (false, None) => Some(format!("its step ended with {status}")),
        };
        StepEnd {
            host: host.clone(),
            problem,
            is_not_begun: is_no_command(status),
        }
    }
}

impl Engine for Processes {
    fn start(&mut self, host: &HostName) -> Result<String, EngineError> {
        let step = self.steps.words(host);
        // A pipe ends with this process.
        let (words, input) = match &self.ssh {
            Some(options) => (ssh(options, host, &step), Stdio::piped()),
            None => (step, Stdio::null()),
        };
        let layout = &self.steps.layout;
        let (out, log) = (new_file(layout.partial(host))?, new_file(layout.log(host))?);
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(input)
            .stdout(out)
            .stderr(log)
            // A Ctrl-C is for this process, which ends the steps.
            .process_group(0)
            .spawn()
            .map_err(|reason| EngineError::NotStarted {
                program: words[0].clone(),
                reason,
            })?;
        let job = child.id().to_string();
        self.running.push(Running {
            host: host.clone(),
            child,
            since: Instant::now(),
            ended_for: None,
        });
        Ok(job)
    }

    fn adopt(&mut self, _: &BTreeMap<HostName, String>) -> Result<BTreeSet<HostName>, EngineError> {
        // A process is no child of another nearfar, and its number may be another's by now.
        Ok(BTreeSet::new())
    }

    fn ended(&mut self) -> Result<Vec<StepEnd>, EngineError> {
        let (mut ended, mut going_on) = (Vec::new(), Vec::new());
        for mut running in std::mem::take(&mut self.running) {
            let problem = match running.child.try_wait() {
                Ok(Some(status)) => {
                    ended.push(self.finish(&running, status));
                    continue;
                }
                Err(error) => Some(format!("cannot wait for its step: {error}")),
                Ok(None) => match running.ended_for {
                    None => {
                        if let Some(reason) = self.excess(&running) {
                            running.signal(Signal::TERM);
                            running.ended_for = Some((reason, Instant::now()));
                        }
                        None
                    }
                    Some((reason, since)) if since.elapsed() > MAX_END => {
                        running.signal(Signal::KILL);
                        let _ = fs::remove_file(self.steps.layout.partial(&running.host));
                        Some(format!(
                            "{reason}, and it did not end within 30 s of SIGTERM"
                        ))
                    }
                    Some(_) => None,
                },
            };
            match problem {
                None => going_on.push(running),
                problem => ended.push(StepEnd {
                    host: running.host,
                    problem,
                    is_not_begun: false,
                }),
            }
        }
        self.running = going_on;
        Ok(ended)
    }

    fn cancel(&mut self) {
        for running in &self.running {
            running.signal(Signal::TERM);
        }
        for mut running in self.running.drain(..) {
            let _ = running.child.wait();
            let _ = fs::remove_file(self.steps.layout.partial(&running.host));
        }
    }

    fn interval_ms(&self) -> u64 {
        50
    }
}

fn new_file(path: std::path::PathBuf) -> Result<File, EngineError> {
    create_new_file(&path).map_err(|reason| EngineError::File {
        path: path.display().to_string(),
        reason,
    })
}

/// Whether a POSIX shell, here or at the other end of ssh, found no command or may not run it.
fn is_no_command(status: ExitStatus) -> bool {
    matches!(status.code(), Some(126 | 127))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Layout;

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

    /// A limit of no time: the step is over it whenever it is looked at.
    #[test]
    fn a_step_that_hangs_is_ended_at_its_time_limit() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout {
            folder: directory.path().to_owned(),
        };
        for part in [layout.answers(), layout.logs()] {
            fs::create_dir(part).unwrap();
        }
        let steps = StepCommands {
            layout,
            command: ["sh", "-c", "sleep 1000"].map(str::to_owned).to_vec(),
            step: Vec::new(),
            arguments: Vec::new(),
        };
        let mut engine = Processes::new(steps, None, 0);
        engine.start(&"n1".parse().unwrap()).unwrap();
        let end = loop {
            if let Some(end) = engine.ended().unwrap().pop() {
                break end;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let problem = end.problem.unwrap();
        assert!(problem.contains("over its time limit"), "{problem}");
        assert!(!end.is_not_begun);
    }
}
