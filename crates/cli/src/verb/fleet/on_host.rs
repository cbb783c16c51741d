//! `nearfar fleet on-host`: what an engine runs on each host. Its standard output is the host's answer, as one file.

mod change;

use std::io::{IsTerminal as _, Read, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, anyhow};
use clap::Args;
use nearfar_change::{LabelLock, Target};
use nearfar_fleet::rollout::Rollout;
use nearfar_fleet::{Ended, HostName, HostResult, RESULT_SCHEMA};
use nearfar_runs::export::Whole;
use nearfar_runs::{Filter, Store, now_s};
use nearfar_sources::{Request, TaskScope, Want};
use rustix::fs::FileType;
use rustix::process::Signal;
use serde_json::Value;

use self::change::ChangeStep;
use crate::args::of_store;
use crate::failure::{Failure, Outcome};
use crate::signals;

/// For what is not ended before it ends itself.
static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);
/// The most that a verb may print, in bytes.
const MAX_PRINTED: u64 = 32 << 20;
/// What is kept of its messages, in bytes from the end.
const MAX_MESSAGE: usize = 2000;

/// Run a verb here and write its answer, its runs and the machine to standard output
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar fleet on-host --host n1 -- audit --format json > n1.result.gz"
)]
pub struct OnHost {
    /// The name that the engine has for this host
    #[arg(long, value_name = "HOST")]
    host: HostName,
    /// For apply: measure with this verb before and after, and undo what made this host worse
    #[arg(long, value_name = "VERB", requires_all = ["margin", "change_label"])]
    measure: Option<String>,
    /// What it may be worse by, as a share
    #[arg(long, value_name = "SHARE")]
    margin: Option<f64>,
    /// What the rollout's change sets are called: a step refuses while another of the same rollout runs on this host
    #[arg(long, value_name = "TEXT")]
    change_label: Option<String>,
    /// End when standard input ends, if it is a pipe or socket: then the one who asked is gone
    #[arg(long)]
    end_with_input: bool,
    /// The verb and its arguments; `snapshot` reads the machine and nothing else
    #[arg(last = true, required = true, value_name = "VERB")]
    arguments: Vec<String>,
}

impl OnHost {
    /// Answers.
    pub fn run(self) -> Outcome {
        let output = std::io::stdout();
        if output.is_terminal() {
            return Err(Failure::Input(anyhow!(
                "the answer of a host is not for a terminal: redirect standard output to a file"
            )));
        }
        let result = self.result()?;
        let mut bytes = Vec::new();
        result.write(&mut bytes).map_err(Failure::refused)?;
        let mut output = output.lock();
        output
            .write_all(&bytes)
            .and_then(|()| output.flush())
            .context("cannot write to standard output")
            .map_err(Failure::refused)
    }

    fn result(self) -> Result<HostResult, Failure> {
        // From the start, so that a step that is ended early answers as well.
        let cancel = self.measure.as_ref().map(|_| signals::cancel_flag());
        let target = Target::live(None);
        let label = self.change_label.as_deref();
        let mut lock = label
            .map(|label| LabelLock::take(&target, label))
            .transpose()
            .map_err(Failure::refused)?;
        if self.measure.is_some() && lock.as_mut().is_some_and(LabelLock::is_undone) {
            return Err(Failure::Refused(anyhow!(
                "this rollout was undone on this host: nothing was changed"
            )));
        }
        if self.end_with_input {
            end_with_input();
        }
        let started_at_s = now_s();
        let want = Want {
            tasks: TaskScope::None,
            ..Want::all()
        };
        let machine = nearfar_sources::read(&Request::live(want)).ok();
        let directory = tempfile::tempdir().map_err(Failure::refused)?;
        let done = self.carry_out(
            directory.path(),
            cancel.as_deref().unwrap_or(&NOT_CANCELLED),
        )?;
        if let Some(lock) = lock.as_mut().filter(|_| self.measure.is_none()) {
            // A step of the rollout that comes late changes nothing.
            lock.mark_undone().map_err(Failure::refused)?;
        }
        let answer = serde_json::from_slice(&done.output.printed).ok();
        let printed = match answer {
            Some(_) => String::new(),
            None => String::from_utf8_lossy(&done.output.printed).into_owned(),
        };
        Ok(HostResult {
            schema: RESULT_SCHEMA.to_owned(),
            nearfar: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.host,
            arguments: self.arguments,
            started_at_s,
            took_s: now_s() - started_at_s,
            ended: done.ended(),
            answer: answer.unwrap_or(Value::Null),
            printed,
            rollout: done.rollout,
            machine,
            runs: done.runs,
        })
    }

    fn carry_out(&self, directory: &Path, cancel: &AtomicBool) -> Result<Done, Failure> {
        if let (Some(verb), Some(margin), Some(label)) =
            (&self.measure, self.margin, &self.change_label)
        {
            let step = ChangeStep {
                apply: &self.arguments,
                measure: verb.split_whitespace().map(str::to_owned).collect(),
                margin,
                label,
                directory,
                cancel,
            };
            let changed = step.change()?;
            return Ok(Done {
                output: changed.output,
                runs: changed.runs,
                rollout: Some(changed.rollout),
            });
        }
        let store = directory.join("runs.db");
        Ok(Done {
            output: match self.arguments[..] == ["snapshot"] {
                true => VerbOutput::nothing(),
                false => VerbOutput::by(&self.arguments, directory, &store, &NOT_CANCELLED)?,
            },
            runs: runs_of(&store)?,
            rollout: None,
        })
    }
}

/// Sends this process SIGTERM when standard input ends. That of a command in a container is often /dev/null, which says nothing.
fn end_with_input() {
    let input = std::io::stdin();
    let kind = rustix::fs::fstat(&input).map(|there| FileType::from_raw_mode(there.st_mode));
    if matches!(kind, Ok(FileType::Fifo | FileType::Socket)) {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut input.lock(), &mut std::io::sink());
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
        });
    }
}

/// What was done here.
struct Done {
    output: VerbOutput,
    runs: Vec<Whole>,
    rollout: Option<Rollout>,
}

impl Done {
    /// A host that got worse has failed, whatever its verb exited with.
    fn ended(&self) -> Ended {
        let failed = |reason: String| Ended::Failed {
            exit_code: None,
            reason,
        };
        let rollout = self.rollout.as_ref();
        match rollout.and_then(|rollout| rollout.outcome.problem()) {
            Some(problem) => failed(problem),
            None => self.output.ended(),
        }
    }
}

/// What a verb printed, and how it ended.
pub(super) struct VerbOutput {
    status: Option<ExitStatus>,
    printed: Vec<u8>,
    message: String,
}

impl VerbOutput {
    fn nothing() -> Self {
        Self {
            status: None,
            printed: Vec::new(),
            message: String::new(),
        }
    }

    /// Runs the verb in a directory of its own, with a store of its own; ends it where `cancel` is set meanwhile.
    fn by(
        arguments: &[String],
        directory: &Path,
        store: &Path,
        cancel: &AtomicBool,
    ) -> Result<Self, Failure> {
        let nearfar = std::env::current_exe().map_err(Failure::refused)?;
        let mut command = Command::new(&nearfar);
        command
            .args(arguments)
            .current_dir(directory)
            .env("NEARFAR_STORE", store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        nearfar_proc::child::end_with_parent(&mut command, Signal::TERM);
        let mut child = command
            .spawn()
            .map_err(|error| Failure::not_started(nearfar.as_os_str(), error))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let messages = std::thread::spawn(move || all(err, MAX_PRINTED));
        let printed = std::thread::spawn(move || all(out, MAX_PRINTED));
        let status =
            nearfar_proc::child::wait_or_end(&mut child, cancel).map_err(Failure::refused)?;
        let messages = messages.join().unwrap_or_default();
        let printed = printed.join().unwrap_or_default();
        let message = String::from_utf8_lossy(&messages);
        // What it says last is why it failed.
        let begin = message.len().saturating_sub(MAX_MESSAGE);
        let begin = (begin..=message.len()).find(|&at| message.is_char_boundary(at));
        Ok(Self {
            status: Some(status),
            printed,
            message: message[begin.unwrap_or_default()..].trim().to_owned(),
        })
    }

    /// Whether it exited with 0, or with 1 because it was asked to fail on what it found.
    fn is_answer(&self) -> bool {
        matches!(self.ended(), Ended::Answered { .. })
    }

    fn is_success(&self) -> bool {
        self.ended() == Ended::Answered { exit_code: 0 }
    }

    fn ended(&self) -> Ended {
        let code = self.status.map_or(Some(0), |status| status.code());
        match code {
            // 1 is an answer that the caller asked to fail on.
            Some(exit_code @ (0 | 1)) => Ended::Answered { exit_code },
            exit_code => Ended::Failed {
                exit_code,
                reason: self.reason(),
            },
        }
    }
}

impl VerbOutput {
    /// The message that it failed with, else its last line, else how it ended.
    fn reason(&self) -> String {
        let message = |line: &str| -> Option<String> {
            let rest = line
                .strip_prefix("nearfar: ")
                .or_else(|| line.strip_prefix("error: "))?;
            Some(rest.to_owned())
        };
        let lines = || {
            self.message
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
        };
        lines()
            .rev()
            .find_map(message)
            .or_else(|| lines().next_back().map(str::to_owned))
            .or_else(|| self.status.map(|status| status.to_string()))
            .unwrap_or_default()
    }
}

/// What a pipe gives, without what is more than `most`; read to its end, so that the writer does not wait.
fn all(pipe: Option<impl Read>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = (&mut pipe).take(most).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    }
    bytes
}

/// The runs that the verb stored.
fn runs_of(store: &Path) -> Result<Vec<Whole>, Failure> {
    if !store.exists() {
        return Ok(Vec::new());
    }
    let store = Store::open_existing(store).map_err(of_store)?;
    let runs = store.list(&Filter::default()).map_err(of_store)?;
    let whole = runs.into_iter().map(|run| store.whole(run.run));
    whole.collect::<Result<_, _>>().map_err(of_store)
}
