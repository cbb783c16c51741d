//! One test: runs it through a supervisor, once more if it was over its limit, and judges its end and what it printed: libtest's result,
//! and the lines by which a test reports that it skips or repeats something.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::config::Treatment;
use crate::executables::{Executable, selection};
use crate::supervise::{Ending, How, Order, supervise};

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
                .into(),
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
            let ending = supervise(&self.order(log.path(), pause))?;
            let text = read_log(log.path())?;
            outcome.seconds += ending.seconds;
            outcome.left.extend(ending.left.iter().cloned());
            outcome.retries.extend(retries(&text));
            outcome.verdict = self.verdict(&ending, &text);
            let is_over_limit = ending.how == How::OverLimit;
            if is_over_limit {
                report(&self.describe_hang(attempt, &ending, &text));
            }
            // Processes that cannot be killed still hold what a second attempt needs.
            if is_over_limit && attempt == 1 && ending.unkillable.is_empty() {
                outcome.retries.push(self.over_limit());
                continue;
            }
            outcome.output = tail(&text, FAILURE_LINES);
            break;
        }
        Ok(outcome)
    }

    pub fn order(&self, log: &Path, pause: Duration) -> Order {
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
            How::Exited(0) if self.is_one_test && !has_one_passed(text) => {
                let reason = "exit code 0, but libtest does not report one passed test";
                Verdict::Failed(reason.to_owned())
            }
            How::Exited(0) => match skips(text) {
                Ok(skips) if skips.is_empty() => Verdict::Passed,
                Ok(skips) => Verdict::Skipped(skips),
                Err(error) => {
                    Verdict::Failed(format!("a line that begins with `skipped: `: {error}"))
                }
            },
            How::Exited(code) => Verdict::Failed(format!("exit code {code}")),
            How::Signalled(signal) => Verdict::Failed(format!("ended by signal {signal}")),
            How::OverLimit => Verdict::Failed(self.over_limit()),
            How::Interrupted => Verdict::Interrupted,
        }
    }

    fn over_limit(&self) -> String {
        format!("over its limit of {:?}", self.treatment.limit)
    }

    fn describe_hang(&self, attempt: u32, ending: &Ending, text: &str) -> String {
        let consequence = match attempt {
            1 => "runs once more",
            _ => "failed",
        };
        let (id, over_limit) = (&self.id, self.over_limit());
        let mut lines = vec![format!("{over_limit}, killed, {consequence}: {id}")];
        lines.extend(ending.hung.iter().map(|process| format!("  {process}")));
        lines.push(format!("  output, at most the last {HANG_LINES} lines:"));
        let output = tail(text, HANG_LINES);
        lines.extend(output.lines().map(|line| format!("  | {line}")));
        lines.join("\n")
    }
}

/// What a test lacked. A test prints `skipped: KIND: REASON`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// A kernel, busybox, QEMU or the plugin for guests.
    Guests,
    /// The rights of root.
    Root,
    /// The kernel's permission to use perf events.
    Perf,
    /// Two or more CPUs.
    Cpus,
    /// Something that only some kernels have, or do not forbid.
    Kernel,
    /// A program of another package.
    Tools,
    /// One of the architectures that the test is for.
    Arch,
    /// Permission to fetch from the network.
    Network,
    /// A person who asked for it.
    Manual,
}

/// A reason to skip.
#[derive(Debug, Clone, PartialEq)]
pub struct Skip {
    pub kind: Kind,
    pub reason: String,
}

impl Kind {
    /// The kinds in a list such as `guests,root,perf`; none in an empty one.
    pub fn list(text: &str) -> Result<Vec<Self>, String> {
        let words = text.split(',').map(str::trim);
        let words = words.filter(|word| !word.is_empty());
        words.map(str::parse).collect()
    }

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| {
            let names = Self::value_variants().iter().map(|kind| kind.name());
            let names = names.collect::<Vec<_>>().join(", ");
            format!("no kind of skip: {text:?}; there are {names}")
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.reason)
    }
}

/// `KIND: REASON`, as it stands behind `skipped: `.
impl FromStr for Skip {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, reason) = text.split_once(": ").unwrap_or((text, ""));
        Ok(Self {
            kind: kind.parse()?,
            reason: reason.to_owned(),
        })
    }
}

/// How much of a hung test's output is shown.
const HANG_LINES: usize = 100;
/// How much of a failed test's output is shown.
const FAILURE_LINES: usize = 400;
/// How much of one line is shown, in characters.
const LINE_LENGTH: usize = 1000;
/// How much of a log is read: its end.
const LOG_BYTES: u64 = 16 << 20;

const SKIPPED: &str = "skipped: ";
const RETRIED: &str = "retried: ";
/// What the command itself prints when it boots a guest once more.
const BOOTED_AGAIN: &str = "note: the guest was booted again";

/// Reads the end of a log. A process that escaped its test may still write, so the length is fixed first.
pub fn read_log(log: &Path) -> anyhow::Result<String> {
    let mut file = File::open(log).context("cannot open a log")?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES)
        .read_to_end(&mut bytes)
        .context("cannot read a log")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The lines, without libtest's `test NAME ... ` in front of the first that the test prints.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| {
        let rest = line.strip_prefix("test ");
        let printed = rest.and_then(|rest| rest.split_once(" ... "));
        printed.map_or(line, |(_, printed)| printed)
    })
}

/// Why the test skipped all or part of what it tests.
///
/// # Errors
/// When a reason names no kind.
fn skips(text: &str) -> Result<Vec<Skip>, String> {
    let reasons = lines(text).filter_map(|line| line.strip_prefix(SKIPPED));
    reasons.map(|reason| shortened(reason).parse()).collect()
}

/// What the test itself repeated.
fn retries(text: &str) -> Vec<String> {
    let is_booted_again = |line: &&str| line.starts_with(BOOTED_AGAIN);
    let reason = |line| str::strip_prefix(line, RETRIED).or(Some(line).filter(is_booted_again));
    lines(text).filter_map(reason).map(shortened).collect()
}

/// Whether libtest reports that one test ran and passed. A test that ends its process with code 0 has no such line, neither
/// has a name that matches no test.
fn has_one_passed(text: &str) -> bool {
    text.lines()
        .any(|line| line.starts_with("test result: ok. 1 passed; 0 failed;"))
}

/// The last lines, each shortened, and a note of what is left out.
fn tail(text: &str, count: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let hidden = all.len().saturating_sub(count);
    let note = (hidden > 0).then(|| format!("({hidden} lines before these)"));
    note.into_iter()
        .chain(all[hidden..].iter().map(|line| shortened(line)))
        .collect::<Vec<_>>()
        .join("\n")
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LINE_LENGTH) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_also_after_libtests_prefix() {
        let text = "\nrunning 1 test\ntest a::b ... skipped: guests: no QEMU\nskipped: tools: no numactl\nit was skipped: no\n\
                    retried: the guest hung\nnote: the guest was booted again after 3 s\nok\n";
        let skips = |text| {
            skips(text).map(|skips| skips.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(
            skips(text),
            Ok(vec![
                "guests: no QEMU".to_owned(),
                "tools: no numactl".to_owned()
            ])
        );
        assert!(skips("skipped: no QEMU\n").is_err());
        assert_eq!(
            retries(text),
            [
                "the guest hung",
                "note: the guest was booted again after 3 s"
            ]
        );
    }

    #[test]
    fn a_test_has_passed_only_if_libtest_says_so() {
        assert!(has_one_passed(
            "ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out\n"
        ));
        assert!(!has_one_passed(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out\n"
        ));
        assert!(!has_one_passed("test a ... "));
    }

    #[test]
    fn long_outputs_and_lines_are_shortened() {
        assert_eq!(tail("a\nb\nc\n", 2), "(1 lines before these)\nb\nc");
        assert_eq!(tail("a\nb\n", 2), "a\nb");
        assert_eq!(tail(&"ä".repeat(2000), 1).chars().count(), LINE_LENGTH + 4);
    }

    #[test]
    fn kinds_are_read_and_unknown_ones_refused() {
        assert_eq!(
            Kind::list("guests, perf,"),
            Ok(vec![Kind::Guests, Kind::Perf])
        );
        assert_eq!(Kind::list(""), Ok(vec![]));
        assert!(
            Kind::list("guests,kvm")
                .unwrap_err()
                .contains("\"kvm\"; there are guests, root, perf")
        );
        let skip: Skip = "guests: no QEMU: not found".parse().unwrap();
        assert_eq!(
            (skip.kind, skip.to_string().as_str()),
            (Kind::Guests, "guests: no QEMU: not found")
        );
        assert!("no QEMU".parse::<Skip>().is_err());
    }

    /// Each line with which a test of this workspace skips names a kind.
    #[test]
    fn every_skip_in_the_sources_names_a_kind() {
        fn sources(directory: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
            for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
                match entry.path() {
                    path if path.is_dir() => sources(&path, found),
                    path if path.extension().is_some_and(|extension| extension == "rs") => {
                        found.push(path)
                    }
                    _ => {}
                }
            }
        }
        let mut files = Vec::new();
        sources(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates").as_ref(),
            &mut files,
        );
        files.retain(|file| !file.components().any(|part| part.as_os_str() == "examples"));
        let mut lines = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(
                !text.contains("\"SKIPPED"),
                "{}: a skip that is not counted",
                file.display()
            );
            for (_, rest) in text
                .match_indices("\"skipped: ")
                .map(|(at, mark)| text[at..].split_at(mark.len()))
            {
                let kind = rest.split_once(": ").map_or(rest, |(kind, _)| kind);
                assert!(
                    kind.parse::<Kind>().is_ok(),
                    "{}: {:?}",
                    file.display(),
                    rest.lines().next()
                );
                lines += 1;
            }
        }
        assert!(lines > 40, "only {lines} lines were found");
    }
}
