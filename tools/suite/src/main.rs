//! Builds and runs the tests of the workspace, each with a time limit of its own. docs/testing.md describes it.

mod config;
mod executables;
mod item;
mod supervise;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

use config::{Class, Config, Durations, Schedule, Treatment, read_durations};
use executables::{Executable, Workspace, names};
use item::{Item, Kind, Outcome, Verdict, read_log};
use supervise::{How, supervise};

/// Builds and runs the tests of the workspace, each in a process of its own and with a time limit
#[derive(Debug, Parser)]
#[command(name = "nearfar-suite")]
struct Arguments {
    /// Run only tests whose identifier (PACKAGE/TARGET/TEST) contains one of these texts
    filters: Vec<String>,
    /// Build and run only the tests of this package
    #[arg(short, long, value_name = "NAME")]
    package: Vec<String>,
    /// Print the tests with their classes and limits instead of running them
    #[arg(long)]
    list: bool,
    /// Run the tests that take long, and the ordinary ones again with ten times their limit, instead of those of `make test`
    #[arg(long)]
    slow: bool,
    /// Read limits and classes from this file instead of tools/suite/suite.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Run this test executable instead of building those of the workspace
    #[arg(long, value_name = "FILE", conflicts_with = "package")]
    executable: Vec<PathBuf>,
}

/// What is needed to run tests, wherever they come from.
struct Suite {
    config: Config,
    executables: Vec<Executable>,
    documentation: Option<Executable>,
    /// The durations of the last run are kept here.
    durations: Option<PathBuf>,
}

/// The identifier of all documentation tests together.
const DOCUMENTATION: &str = "workspace/documentation";

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some(supervise::ARGUMENT) => supervise::main().map(|()| true),
        _ => run(&Arguments::parse()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nearfar-suite: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The kinds of skips that are failures, such as `guests,root,perf`.
const REQUIRE: &str = "NEARFAR_REQUIRE";

/// Whether all tests passed.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let required = std::env::var(REQUIRE).unwrap_or_default();
    let required = Kind::list(&required).map_err(|error| anyhow::anyhow!("{REQUIRE}: {error}"))?;
    let suite = match arguments.executable.is_empty() {
        true => of_workspace(arguments)?,
        false => of_files(arguments)?,
    };
    let logs = tempfile::tempdir().context("cannot make a folder for logs")?;
    let items = items(&suite, arguments, logs.path())?;
    if arguments.list {
        for Item { id, treatment, .. } in &items {
            println!("{:?} {:?} {id}", treatment.class, treatment.limit);
        }
        return Ok(true);
    }
    if items.is_empty() {
        bail!("no test matches");
    }
    let count = |class| {
        let of_class = items.iter().filter(|item| item.treatment.class == class);
        of_class.count()
    };
    let [ordinary, guest, alone] = [Class::Ordinary, Class::Guest, Class::Alone].map(count);
    println!(
        "{} tests: {ordinary} ordinary, {guest} with guests, {alone} that run alone",
        items.len()
    );
    let known = suite.durations.as_deref().map(read_durations);
    let mut durations = known.unwrap_or_default();
    let begin = Instant::now();
    let schedule = Schedule::new(items, &durations);
    let outcomes = run_all(&suite.config, &required, schedule, logs.path())?;
    if let Some(path) = &suite.durations {
        let outcomes = outcomes.iter();
        durations.extend(outcomes.map(|outcome| (outcome.id.clone(), outcome.seconds)));
        write_durations(path, &durations)?;
    }
    println!("all tests took {:.0} s", begin.elapsed().as_secs_f64());
    print!("{}", phases());
    print!("{}", summary(&outcomes));
    Ok(!is_failure(&outcomes))
}

/// The file in which tools/phase notes how long each step before the tests took.
const PHASES: &str = "NEARFAR_PHASES";

/// What that file says, if there is one. The results of the tests do not depend on it.
fn phases() -> String {
    let Some(path) = std::env::var_os(PHASES) else {
        return String::new();
    };
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| format!("unknown: {}: {error}\n", path.display()));
    format!("\nbefore the tests:\n{text}")
}

fn of_workspace(arguments: &Arguments) -> anyhow::Result<Suite> {
    let workspace = Workspace::find()?;
    let config = (arguments.config.clone())
        .unwrap_or_else(|| workspace.workspace_root.join("tools/suite/suite.toml"));
    let documentation = Executable {
        label: DOCUMENTATION.to_owned(),
        path: executables::cargo().get_program().into(),
        directory: workspace.workspace_root.clone(),
        environment: BTreeMap::new(),
    };
    let config = Config::read(&config)?;
    Ok(Suite {
        executables: workspace.build(&arguments.package, &config.examples)?,
        config,
        documentation: Some(documentation),
        durations: Some(workspace.target_directory.join("suite-durations.json")),
    })
}

fn of_files(arguments: &Arguments) -> anyhow::Result<Suite> {
    let config = arguments.config.as_deref();
    let config = config.context("--executable needs --config")?;
    let directory = std::env::current_dir()?;
    let executables = arguments.executable.iter().map(|path| {
        let label = path.file_stem().unwrap_or_default();
        Ok(Executable {
            label: label.to_string_lossy().into_owned(),
            path: std::path::absolute(path)?,
            directory: directory.clone(),
            environment: BTreeMap::new(),
        })
    });
    Ok(Suite {
        executables: executables.collect::<anyhow::Result<_>>()?,
        config: Config::read(config)?,
        documentation: None,
        durations: None,
    })
}

/// The tests that match the filters.
fn items(suite: &Suite, arguments: &Arguments, logs: &Path) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    for executable in &suite.executables {
        let [all, ignored] =
            [&[][..], &["--ignored"]].map(|options| list(suite, executable, options, logs));
        let (ignored, all) = (ignored?, all?);
        let ignored = names(&ignored);
        let run = |name: &&str| !ignored.contains(name);
        for name in names(&all).into_iter().filter(run) {
            let id = format!("{}/{name}", executable.label);
            items.push(Item::test(executable, name, suite.config.treatment(&id)));
        }
    }
    if let Some(cargo) = &suite.documentation {
        let treatment = suite.config.treatment(DOCUMENTATION);
        let packages = &arguments.package;
        items.push(Item::documentation(cargo.clone(), packages, treatment));
    }
    if arguments.package.is_empty() {
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        if let unused @ [_, ..] = &suite.config.unused(&ids)[..] {
            bail!("rules that match no test: {}", unused.join(", "));
        }
    }
    let filters = &arguments.filters;
    items.retain(|item| {
        let is_wanted = filters.is_empty() || filters.iter().any(|filter| item.id.contains(filter));
        is_wanted && is_in_tier(&item.treatment, arguments.slow)
    });
    for treatment in items.iter_mut().map(|item| &mut item.treatment) {
        if arguments.slow && !treatment.is_slow {
            treatment.limit *= SLOW_LIMIT_FACTOR;
        }
    }
    Ok(items)
}

/// How much longer the limits of ordinary tests are with `--slow`, where property tests try many more cases.
const SLOW_LIMIT_FACTOR: u32 = 10;

/// Whether a test is run: without `--slow` all but the slow ones, with it these and, for the sake of property tests, the ordinary ones.
fn is_in_tier(treatment: &Treatment, slow: bool) -> bool {
    treatment.is_slow == slow || (slow && treatment.class == Class::Ordinary)
}

/// What an executable prints as the list of its tests, within the default limit.
fn list(
    suite: &Suite,
    executable: &Executable,
    options: &[&str],
    logs: &Path,
) -> anyhow::Result<String> {
    let log = tempfile::NamedTempFile::new_in(logs)?;
    let words = ["--list", "--format", "terse"].iter().chain(options);
    let list = Item {
        id: executable.label.clone(),
        executable: executable.clone(),
        arguments: words.map(|&word| word.to_owned()).collect(),
        is_one_test: false,
        treatment: suite.config.treatment(&executable.label),
    };
    let ending = supervise(&list.order(log.path(), suite.config.pause))?;
    let text = read_log(log.path())?;
    match ending.how {
        How::Exited(0) => Ok(text),
        how => bail!("cannot list the tests of {}: {how:?}\n{text}", list.id),
    }
}

/// The outcomes of the tests that have ended so far.
type Outcomes = Mutex<Vec<Outcome>>;

fn lock(outcomes: &Outcomes) -> MutexGuard<'_, Vec<Outcome>> {
    outcomes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes all, sorted by identifier.
fn take(outcomes: &Outcomes) -> Vec<Outcome> {
    let mut outcomes = std::mem::take(&mut *lock(outcomes));
    outcomes.sort_by(|a, b| a.id.cmp(&b.id));
    outcomes
}

fn run_all(
    config: &Config,
    required: &[Kind],
    schedule: Schedule,
    logs: &Path,
) -> anyhow::Result<Vec<Outcome>> {
    let (schedule, outcomes) = (Arc::new(schedule), Arc::new(Outcomes::default()));
    end_on_signals(Arc::clone(&schedule), Arc::clone(&outcomes))?;
    thread::scope(|scope| {
        for _ in 0..config.jobs {
            scope.spawn(|| {
                while let Some(item) = schedule.next() {
                    let outcome = run_one(&item, logs, config.pause, required);
                    lock(&outcomes).push(outcome);
                    schedule.end(&item.id);
                }
            });
        }
    });
    Ok(take(&outcomes))
}

fn run_one(item: &Item, logs: &Path, pause: Duration, required: &[Kind]) -> Outcome {
    let outcome = item.run(logs, pause, &|text| println!("{text}"));
    let failed = |error| Outcome::without_run(&item.id, Verdict::Failed(format!("{error:#}")), 0.0);
    let mut outcome = outcome.unwrap_or_else(failed);
    outcome.require(required);
    if let Some(line) = progress(&outcome) {
        println!("{line}");
    }
    outcome
}

/// On SIGTERM and SIGINT, prints the summary of what has ended, with the tests that run as interrupted ones, and ends. Each
/// supervisor then kills its test.
fn end_on_signals(schedule: Arc<Schedule>, outcomes: Arc<Outcomes>) -> anyhow::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let running = schedule.running().into_iter();
            let interrupted = running
                .map(|(id, seconds)| Outcome::without_run(&id, Verdict::Interrupted, seconds));
            let all: Vec<Outcome> = take(&outcomes).into_iter().chain(interrupted).collect();
            println!("ended by signal {signal}");
            print!("{}", summary(&all));
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Replaces the file at once: a run that reads it at the same time reads the old or the new one.
fn write_durations(path: &Path, durations: &Durations) -> anyhow::Result<()> {
    let folder = path.parent().context("no folder for durations")?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut file, durations)?;
    file.persist(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Tests that take longer get a line when they end.
const SLOW_S: f64 = 5.0;
/// How many of the slowest tests the summary names.
const SLOWEST: usize = 20;

/// The line of a test that has ended, if it has one.
fn progress(outcome: &Outcome) -> Option<String> {
    let what = match &outcome.verdict {
        Verdict::Failed(reason) => format!("failed, {reason}: "),
        Verdict::Passed | Verdict::Skipped(_) if outcome.seconds > SLOW_S => String::new(),
        _ => return None,
    };
    Some(format!("{:8.1} s  {what}{}", outcome.seconds, outcome.id))
}

/// Whether the run fails: a test failed or was interrupted, or there was none.
fn is_failure(outcomes: &[Outcome]) -> bool {
    let is_bad =
        |outcome: &Outcome| matches!(outcome.verdict, Verdict::Failed(_) | Verdict::Interrupted);
    outcomes.is_empty() || outcomes.iter().any(is_bad)
}

/// The summary. Its last line is alone what other programs may read.
fn summary(outcomes: &[Outcome]) -> String {
    let mut lines = Vec::new();
    failures(&mut lines, outcomes);
    list_of(&mut lines, "skipped", outcomes, |outcome| {
        match &outcome.verdict {
            Verdict::Skipped(skips) => skips.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    });
    let left = "processes left by tests, killed";
    list_of(&mut lines, left, outcomes, |outcome| outcome.left.clone());
    let retries = |outcome: &Outcome| outcome.retries.clone();
    list_of(&mut lines, "retries", outcomes, retries);
    let retries: usize = outcomes.iter().map(|outcome| outcome.retries.len()).sum();
    if retries > 1 {
        let finding = format!("finding: {retries} retries in one run, look into them");
        lines.push(finding);
    }
    by_package(&mut lines, outcomes);
    slowest(&mut lines, outcomes);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for outcome in outcomes {
        *match outcome.verdict {
            Verdict::Passed => &mut passed,
            Verdict::Failed(_) | Verdict::Interrupted => &mut failed,
            Verdict::Skipped(_) => &mut skipped,
        } += 1;
    }
    let counts = format!("{passed} passed, {failed} failed, {skipped} skipped\n");
    lines.push(counts);
    lines.join("\n")
}

fn failures(lines: &mut Vec<String>, outcomes: &[Outcome]) {
    for outcome in outcomes {
        let reason = match &outcome.verdict {
            Verdict::Failed(reason) => reason,
            Verdict::Interrupted => "interrupted",
            _ => continue,
        };
        let (id, seconds) = (&outcome.id, outcome.seconds);
        lines.push(format!("\nfailed: {id} ({reason}, {seconds:.1} s)"));
        lines.extend(outcome.output.lines().map(|line| format!("  | {line}")));
    }
}

/// One line for each test and different entry.
fn list_of(
    lines: &mut Vec<String>,
    title: &str,
    outcomes: &[Outcome],
    entries: impl Fn(&Outcome) -> Vec<String>,
) {
    let before = lines.len();
    for outcome in outcomes {
        let mut entries = entries(outcome);
        entries.dedup();
        let line = |entry| format!("  {}: {entry}", outcome.id);
        lines.extend(entries.into_iter().map(line));
    }
    if lines.len() > before {
        lines.insert(before, format!("\n{title}:"));
    }
}

/// The sum of each package's tests, the largest first.
fn by_package(lines: &mut Vec<String>, outcomes: &[Outcome]) {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for outcome in outcomes {
        let package = outcome.id.split('/').next().unwrap_or_default();
        let (seconds, count) = sums.entry(package).or_default();
        (*seconds, *count) = (*seconds + outcome.seconds, *count + 1);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let line = |(package, (seconds, count))| format!("{seconds:8.1} s  {package} ({count})");
    lines.push("\nby package:".to_owned());
    lines.extend(sums.into_iter().map(line));
}

fn slowest(lines: &mut Vec<String>, outcomes: &[Outcome]) {
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let line = |outcome: &Outcome| format!("{:8.1} s  {}", outcome.seconds, outcome.id);
    lines.push("\nslowest:".to_owned());
    lines.extend(sorted.into_iter().take(SLOWEST).map(line));
    lines.push(String::new());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(id: &str, verdict: Verdict, seconds: f64, retries: &[&str]) -> Outcome {
        let retries = retries.iter().map(|&retry| retry.to_owned()).collect();
        let output = "first\nsecond".to_owned();
        Outcome {
            id: id.to_owned(),
            verdict,
            seconds,
            retries,
            left: Vec::new(),
            output,
        }
    }

    #[test]
    fn the_summary_ends_with_the_counts() {
        let outcomes = [
            outcome("p/t/a", Verdict::Passed, 7.26, &["over its limit of 1s"]),
            outcome(
                "p/t/b",
                Verdict::Failed("exit code 101".into()),
                0.2,
                &["the guest hung"],
            ),
            outcome(
                "p/t/c",
                Verdict::Skipped(vec![
                    "guests: no QEMU".parse().unwrap(),
                    "guests: no QEMU".parse().unwrap(),
                ]),
                0.1,
                &[],
            ),
        ];
        let expected = "
failed: p/t/b (exit code 101, 0.2 s)
  | first
  | second

skipped:
  p/t/c: guests: no QEMU

retries:
  p/t/a: over its limit of 1s
  p/t/b: the guest hung
finding: 2 retries in one run, look into them

by package:
     7.6 s  p (3)

slowest:
     7.3 s  p/t/a
     0.2 s  p/t/b
     0.1 s  p/t/c

1 passed, 1 failed, 1 skipped
";
        assert_eq!(summary(&outcomes), expected);
        assert!(is_failure(&outcomes) && is_failure(&[]) && !is_failure(&outcomes[..1]));
        let lines: Vec<_> = outcomes.iter().filter_map(progress).collect();
        assert_eq!(
            lines,
            [
                "     7.3 s  p/t/a",
                "     0.2 s  failed, exit code 101: p/t/b"
            ]
        );
    }
}
