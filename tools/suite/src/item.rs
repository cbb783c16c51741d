//! One test: runs it through a supervisor, once more if it was over its limit, and says what became of it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::config::Treatment;
use crate::executables::{Executable, selection};
use crate::output;
use crate::skip::{Kind, Skip};
use crate::supervise::{self, Ending, How, Order};

/// A test, or all documentation tests together.
#[derive(Debug, Clone)]
pub struct Item {
    /// `PACKAGE/TARGET/TEST`.
    pub id: String,
    pub executable: Executable,
    pub arguments: Vec<String>,
    /// Whether libtest's summary has to say that exactly one test passed.
    pub is_one_test: bool,
    pub treatment: Treatment,
}

/// What became of a test.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Passed,
    Skipped(Vec<Skip>),
    Failed(String),
    /// The runner was interrupted.
    Interrupted,
}

/// All that is reported of a test.
#[derive(Debug)]
pub struct Outcome {
    pub id: String,
    pub verdict: Verdict,
    /// Of all attempts together.
    pub seconds: f64,
    /// One reason for each attempt, of the runner or within the test, that had to be repeated.
    pub retries: Vec<String>,
    /// Processes that had to be killed after the test had ended.
    pub left: Vec<String>,
    /// The end of its output, if it failed.
    pub output: String,
}

impl Outcome {
    /// An outcome of which only the verdict is known.
    pub fn without_run(id: &str, verdict: Verdict, seconds: f64) -> Self {
        let (retries, left, output) = Default::default();
        Self {
            id: id.to_owned(),
            verdict,
            seconds,
            retries,
            left,
            output,
        }
    }

    /// Fails it where it was skipped for want of something that this run requires.
    pub fn require(&mut self, required: &[Kind]) {
        let Verdict::Skipped(skips) = &self.verdict else {
            return;
        };
        if let Some(skip) = skips.iter().find(|skip| required.contains(&skip.kind)) {
            self.verdict = Verdict::Failed(format!("skipped, but {} required: {skip}", skip.kind));
        }
    }
}

impl Item {
    /// One test of an executable.
    pub fn test(executable: &Executable, name: &str, treatment: Treatment) -> Self {
        Self {
            id: format!("{}/{name}", executable.label),
            executable: executable.clone(),
            arguments: ["--exact", name, "--nocapture", "--test-threads", "1"]
                .map(str::to_owned)
                .to_vec(),
            is_one_test: true,
            treatment,
        }
    }

    /// The documentation tests of these packages, or of all if there are none.
    pub fn documentation(
        executable: Executable,
        packages: &[String],
        treatment: Treatment,
    ) -> Self {
        let arguments = ["test", "--doc", "--locked", "--quiet"].map(str::to_owned);
        let arguments = arguments.into_iter().chain(selection(packages)).collect();
        Self {
            id: executable.label.clone(),
            executable,
            arguments,
            is_one_test: false,
            treatment,
        }
    }

    /// Runs it. `report` receives what a person has to see at once: a test over its limit, with its output.
    pub fn run(
        &self,
        logs: &Path,
        pause: Duration,
        report: &dyn Fn(&str),
    ) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::without_run(&self.id, Verdict::Interrupted, 0.0);
        for attempt in 1..=2 {
            let log = tempfile::Builder::new().suffix(".log").tempfile_in(logs)?;
            let ending = attempt_once(&self.order(log.path(), pause))?;
            let text = output::read(log.path())?;
            outcome.seconds += ending.seconds;
            outcome.left.extend(ending.left.iter().cloned());
            outcome.retries.extend(output::retries(&text));
            outcome.verdict = self.verdict(&ending, &text);
            let is_over_limit = ending.how == How::OverLimit;
            if is_over_limit {
                report(&self.describe_hang(attempt, &ending, &text));
            }
            // Processes that cannot be killed still hold what a second attempt needs.
            if is_over_limit && attempt == 1 && ending.unkillable.is_empty() {
                outcome
                    .retries
                    .push(format!("over its limit of {:?}", self.treatment.limit));
                continue;
            }
            outcome.output = output::tail(&text, output::FAILURE_LINES);
            break;
        }
        Ok(outcome)
    }

    fn order(&self, log: &Path, pause: Duration) -> Order {
        Order {
            program: self.executable.path.clone(),
            arguments: self.arguments.clone(),
            directory: self.executable.directory.clone(),
            environment: self.executable.environment.clone(),
            log: log.to_owned(),
            limit: self.treatment.limit,
            pause,
            runner: std::process::id().cast_signed(),
        }
    }

    fn verdict(&self, ending: &Ending, text: &str) -> Verdict {
        if !ending.unkillable.is_empty() {
            return Verdict::Failed(format!("cannot kill {}", ending.unkillable.join(", ")));
        }
        match ending.how {
            How::Exited(0) if self.is_one_test && !output::has_one_passed(text) => Verdict::Failed(
                "exit code 0, but libtest does not report one passed test".to_owned(),
            ),
            How::Exited(0) => match output::skips(text) {
                Ok(skips) if skips.is_empty() => Verdict::Passed,
                Ok(skips) => Verdict::Skipped(skips),
                Err(error) => {
                    Verdict::Failed(format!("a line that begins with `skipped: `: {error}"))
                }
            },
            How::Exited(code) => Verdict::Failed(format!("exit code {code}")),
            How::Signalled(signal) => Verdict::Failed(format!("ended by signal {signal}")),
            How::OverLimit => {
                Verdict::Failed(format!("over its limit of {:?}", self.treatment.limit))
            }
            How::Interrupted => Verdict::Interrupted,
        }
    }

    fn describe_hang(&self, attempt: u32, ending: &Ending, text: &str) -> String {
        let consequence = if attempt == 1 {
            "runs once more"
        } else {
            "failed"
        };
        let mut lines = vec![format!(
            "over its limit of {:?}, killed, {consequence}: {}",
            self.treatment.limit, self.id
        )];
        lines.extend(ending.hung.iter().map(|process| format!("  {process}")));
        lines.push(format!(
            "  output, at most the last {} lines:",
            output::HANG_LINES
        ));
        lines.extend(
            output::tail(text, output::HANG_LINES)
                .lines()
                .map(|line| format!("  | {line}")),
        );
        lines.join("\n")
    }
}

/// Runs an order in a process of its own.
pub fn attempt_once(order: &Order) -> anyhow::Result<Ending> {
    // Not by its path: the build may have replaced this program's file.
    let mut child = Command::new("/proc/self/exe")
        .arg(supervise::ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a supervisor")?;
    let input = child.stdin.take().context("no standard input")?;
    serde_json::to_writer(input, order).context("cannot write the order")?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "the supervisor of {}: {}",
            order.program.display(),
            output.status
        );
    }
    serde_json::from_slice(&output.stdout).context("cannot read what the supervisor wrote")
}
