//! Builds and runs the tests of the workspace, each with a time limit of its own. docs/testing.md describes it.

mod config;
mod executables;
mod item;
mod output;
mod processes;
mod report;
mod schedule;
mod skip;
mod supervise;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

use config::{Class, Config, Treatment};
use executables::{Executable, Workspace, names};
use item::{Item, Outcome, Verdict};
use schedule::{Durations, Schedule, read_durations};
use skip::Kind;
use supervise::{How, Order};

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
    let suite = if arguments.executable.is_empty() {
        of_workspace(arguments)?
    } else {
        of_files(arguments)?
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
        items
            .iter()
            .filter(|item| item.treatment.class == class)
            .count()
    };
    let [ordinary, guest, alone] = [Class::Ordinary, Class::Guest, Class::Alone].map(count);
    println!(
        "{} tests: {ordinary} ordinary, {guest} with guests, {alone} that run alone",
        items.len()
    );
    let mut durations = suite
        .durations
        .as_deref()
        .map(read_durations)
        .unwrap_or_default();
    let begin = Instant::now();
    let outcomes = run_all(
        &suite.config,
        &required,
        Schedule::new(items, &durations),
        logs.path(),
    )?;
    if let Some(path) = &suite.durations {
        durations.extend(
            outcomes
                .iter()
                .map(|outcome| (outcome.id.clone(), outcome.seconds)),
        );
        write_durations(path, &durations)?;
    }
    println!("all tests took {:.0} s", begin.elapsed().as_secs_f64());
    print!("{}", phases());
    print!("{}", report::summary(&outcomes));
    Ok(!report::is_failure(&outcomes))
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
    let config = arguments
        .config
        .clone()
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
    let config = arguments
        .config
        .as_deref()
        .context("--executable needs --config")?;
    let directory = std::env::current_dir()?;
    let executables = arguments.executable.iter().map(|path| {
        let label = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let path = std::path::absolute(path)?;
        Ok(Executable {
            label,
            path,
            directory: directory.clone(),
            environment: BTreeMap::new(),
        })
    });
    let executables = executables.collect::<anyhow::Result<_>>()?;
    Ok(Suite {
        config: Config::read(config)?,
        executables,
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
        let ignored = ignored?;
        for name in names(&all?)
            .into_iter()
            .filter(|name| !names(&ignored).contains(name))
        {
            let treatment = suite
                .config
                .treatment(&format!("{}/{name}", executable.label));
            items.push(Item::test(executable, name, treatment));
        }
    }
    if let Some(cargo) = &suite.documentation {
        let treatment = suite.config.treatment(DOCUMENTATION);
        items.push(Item::documentation(
            cargo.clone(),
            &arguments.package,
            treatment,
        ));
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
    let ending = item::attempt_once(&Order {
        program: executable.path.clone(),
        arguments: ["--list", "--format", "terse"]
            .iter()
            .chain(options)
            .map(|&word| word.to_owned())
            .collect(),
        directory: executable.directory.clone(),
        environment: executable.environment.clone(),
        log: log.path().to_owned(),
        limit: suite.config.treatment(&executable.label).limit,
        pause: suite.config.pause,
        runner: std::process::id().cast_signed(),
    })?;
    let text = output::read(log.path())?;
    match ending.how {
        How::Exited(0) => Ok(text),
        how => bail!(
            "cannot list the tests of {}: {how:?}\n{text}",
            executable.label
        ),
    }
}

/// The outcomes of the tests that have ended so far.
#[derive(Debug, Default)]
struct Outcomes(Mutex<Vec<Outcome>>);

impl Outcomes {
    fn push(&self, outcome: Outcome) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(outcome);
    }

    /// Takes all, sorted by identifier.
    fn take(&self) -> Vec<Outcome> {
        let mut outcomes =
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        outcomes.sort_by(|a, b| a.id.cmp(&b.id));
        outcomes
    }
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
                    outcomes.push(run_one(&item, logs, config.pause, required));
                    schedule.end(&item.id);
                }
            });
        }
    });
    Ok(outcomes.take())
}

fn run_one(item: &Item, logs: &Path, pause: Duration, required: &[Kind]) -> Outcome {
    let outcome = item.run(logs, pause, &|text| println!("{text}"));
    let failed = |error| Outcome::without_run(&item.id, Verdict::Failed(format!("{error:#}")), 0.0);
    let mut outcome = outcome.unwrap_or_else(failed);
    outcome.require(required);
    if let Some(line) = report::progress(&outcome) {
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
            let all: Vec<Outcome> = outcomes.take().into_iter().chain(interrupted).collect();
            println!("ended by signal {signal}");
            print!("{}", report::summary(&all));
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
