//! `nearfar fleet on-host`: what an engine runs on each host. Its standard output is the host's answer, as one file.
//!
//! Changing a host: measure, apply, measure again, and undo what made it worse.

use std::io::{IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use clap::Args;
use nearfar_change::{LabelLock, Target};
use nearfar_fleet::rollout::{Regression, Rollout, RolloutOutcome, UNDO_WAIT_S, worst};
use nearfar_fleet::{Ended, HostName, HostResult, RESULT_SCHEMA};
use nearfar_runs::export::Whole;
use nearfar_runs::{Filter, Store, now_s};
use nearfar_sources::{Request, TaskScope, Want};
use rustix::fs::FileType;
use rustix::process::Signal;
use serde_json::Value;

use crate::args::of_store;
use crate::failure::{Failure, Outcome, input, refused};
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
            return Err(input!(
                "the answer of a host is not for a terminal: redirect standard output to a file"
            ));
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
            return Err(refused!(
                "this rollout was undone on this host: nothing was changed"
            ));
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
struct VerbOutput {
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

/// What a step does to its host.
struct ChangeStep<'a> {
    /// The words of apply.
    apply: &'a [String],
    /// The verb that measures, and its arguments.
    measure: Vec<String>,
    /// A host that gets worse by more than this share in any cell is undone.
    margin: f64,
    /// What the change set is called.
    label: &'a str,
    directory: &'a Path,
    /// Once it is set the step ends soon, with the host as it was: Slurm sends SIGTERM to a job that is over its time limit.
    cancel: &'a AtomicBool,
}

/// What came of it: the answer of apply, what it did, and the runs before and after.
struct Changed {
    output: VerbOutput,
    rollout: Rollout,
    runs: Vec<Whole>,
    /// What apply printed; `null` where it did not run or printed no JSON.
    answer: Value,
}

impl ChangeStep<'_> {
    /// Changes this host. Once changes may have been made, every failure ends in undoing them, and in an answer that says so.
    ///
    /// # Errors
    /// Before anything is changed.
    fn change(&self) -> Result<Changed, Failure> {
        if let Some(unchanged) = self.nothing_to_change()? {
            return Ok(unchanged);
        }
        let before = self.directory.join("before.db");
        let measured = self.run(&self.measure, &before)?;
        if self.is_cancelled() {
            let reason = "it was ended before the changes".to_owned();
            return Ok(Changed::untouched(measured, reason));
        }
        if !measured.is_answer() {
            let reason = format!("cannot measure before the changes: {}", measured.reason());
            return Ok(Changed::untouched(measured, reason));
        }
        let runs = runs_of(&before)?;
        if runs.is_empty() {
            let reason = format!("{} stored no run to compare", self.measure.join(" "));
            return Ok(Changed::untouched(measured, reason));
        }
        let mut words = self.apply.to_vec();
        words.extend(["--label".to_owned(), self.label.to_owned()]);
        let output = self.run(&words, &self.unused())?;
        let mut changed = Changed::by(output, runs);
        let problem = self.problem(&mut changed);
        changed.rollout.outcome = match problem {
            Ok(None) => return Ok(changed),
            Ok(Some(worst)) => RolloutOutcome::Worse {
                metric: worst.metric,
                by: worst.by.is_finite().then_some(worst.by),
                is_undone: self.undo(),
            },
            Err(reason) => RolloutOutcome::NotMade {
                reason: match self.is_cancelled() {
                    true => "it was ended before the second measurement was complete".to_owned(),
                    false => reason,
                },
                is_undone: self.undo(),
            },
        };
        Ok(changed)
    }

    /// The answer where the plan has no change: measuring could show nothing, and takes most of the time.
    fn nothing_to_change(&self) -> Result<Option<Changed>, Failure> {
        let mut words = self.apply.to_vec();
        words.push("--dry-run".to_owned());
        let output = self.run(&words, &self.unused())?;
        let plan: Value = serde_json::from_slice(&output.printed).unwrap_or_default();
        let is_empty = plan["changes"].as_array().is_some_and(Vec::is_empty);
        Ok((output.is_success() && is_empty).then(|| Changed::by(output, Vec::new())))
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::SeqCst)
    }

    fn run(&self, words: &[String], store: &Path) -> Result<VerbOutput, Failure> {
        VerbOutput::by(words, self.directory, store, self.cancel)
    }

    /// The store of verbs that store no runs.
    fn unused(&self) -> PathBuf {
        self.directory.join("unused.db")
    }

    /// What is wrong with the host now: what got worse, or why that or the changes are not known.
    fn problem(&self, changed: &mut Changed) -> Result<Option<Regression>, String> {
        if !changed.output.is_answer() {
            return Err(changed.output.reason());
        }
        let answer = &changed.answer;
        if answer["schema"] != "apply/1" || answer.get("change_set").is_none() {
            return Err("apply printed no answer that says what it changed".to_owned());
        }
        if changed.rollout.change_set.is_none() {
            return Ok(None);
        }
        let after = self.directory.join("after.db");
        let failed = |reason: String| format!("cannot measure after the changes: {reason}");
        let measured = self
            .run(&self.measure, &after)
            .map_err(|failure| failed(failure.message()))?;
        if !measured.is_answer() {
            return Err(failed(measured.reason()));
        }
        let runs = runs_of(&after).map_err(|failure| failed(failure.message()))?;
        let worst = worst(&changed.runs, &runs, self.margin).map_err(|error| error.to_string());
        changed.runs.extend(runs);
        worst
    }

    /// Undoes what apply made, also where it was killed before it answered: whether the host is as it was.
    fn undo(&self) -> bool {
        let words = [
            "rollback",
            "--label",
            self.label,
            "--if-exists",
            "--wait",
            UNDO_WAIT_S,
        ];
        let words = words.map(str::to_owned);
        VerbOutput::by(&words, self.directory, &self.unused(), &NOT_CANCELLED)
            .is_ok_and(|output| output.is_success())
    }
}

impl Changed {
    fn untouched(output: VerbOutput, reason: String) -> Self {
        let outcome = RolloutOutcome::NotMade {
            reason,
            is_undone: true,
        };
        Self {
            output,
            rollout: Rollout {
                outcome,
                change_set: None,
                changes: Vec::new(),
            },
            runs: Vec::new(),
            answer: Value::Null,
        }
    }

    /// What apply says that it did.
    fn by(output: VerbOutput, runs: Vec<Whole>) -> Self {
        let answer: Value = serde_json::from_slice(&output.printed).unwrap_or_default();
        let change_set = answer["change_set"].as_u64();
        Self {
            rollout: Rollout {
                outcome: match change_set {
                    None => RolloutOutcome::NothingToChange,
                    Some(_) => RolloutOutcome::Kept,
                },
                change_set,
                changes: changes(&answer),
            },
            runs,
            output,
            answer,
        }
    }
}

/// The files that were written: `FILE: BEFORE -> AFTER`.
fn changes(outcome: &Value) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let made = |tried: &Value| {
        let result = &tried["result"];
        let value = |key: &str| result.get(key).or_else(|| tried.get(key)).map(text);
        let file = text(tried.get("file")?);
        Some(format!(
            "{file}: {} -> {}",
            value("before")?,
            value("after")?
        ))
    };
    let all = outcome["changes"].as_array();
    all.into_iter().flatten().filter_map(made).collect()
}
