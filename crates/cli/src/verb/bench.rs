//! `nearfar bench NAME`: verbs, help and arguments of the experiments in the registry are made from what they declare. What is measured and
//! how is in the crate of that name.

mod guests;
mod latency;

use std::cell::RefCell;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use nearfar_bench::registry::{
    Announcement, Arguments, EXPERIMENTS, Entry, Request, RunError, given, simulated_default,
};
use nearfar_experiment::{Ended, Options, Resume, fingerprint};
use nearfar_lab::delay::TimeSpec;
use nearfar_machine::Machine;
use nearfar_report::count;
use nearfar_runs::{Filter, Host, Run, RunId, RunState, Store};
use nearfar_sources::Want;

use self::guests::{Guests, PreparedGuests, same_guests};
use crate::args::{Colour, FormatArgs, of_store, option_words, read_live, runs_command};
use crate::failure::{Failure, Outcome, input, refused};
use crate::recorded::{ExperimentStore, RecordArgs, presence};
use crate::verb::lab::guest::keys;
use crate::verb::runs;
use crate::{output, progress, shell, signals};

/// Measure what distance costs: memory, tasks, I/O, requests, locks, tags
#[derive(Subcommand)]
#[command(
    after_long_help = "Examples:\n  nearfar bench latency\n  nearfar bench probe --seconds 2 --samples 8"
)]
pub enum Bench {
    Latency(latency::Latency),
    #[command(flatten)]
    Registered(Registered),
}

impl Bench {
    /// Runs the experiment that was asked for.
    pub fn run(self, colour: Colour) -> Outcome {
        match self {
            Self::Latency(experiment) => experiment.run(colour),
            Self::Registered(experiment) => experiment.run(colour),
        }
    }
}

/// The value of `--resume` without a number.
const NEWEST: &str = "newest";

/// The run to continue; `None` for the newest one.
#[derive(Clone, Copy)]
struct Resumed(Option<RunId>);

fn resumed(text: &str) -> Result<Resumed, &'static str> {
    match text {
        NEWEST => Ok(Resumed(None)),
        number => number
            .parse()
            .map(|run| Resumed(Some(run)))
            .map_err(|_| "expected the number of a run"),
    }
}

/// The arguments that every experiment has.
#[derive(Args)]
struct CommonArgs {
    /// Measure only these levels of a factor (may be repeated)
    #[arg(long, value_name = "NAME=LEVEL,...", conflicts_with = "resume")]
    factor: Vec<String>,
    /// Measure exactly this cell (may be repeated), with a level of each factor
    #[arg(long, value_name = "NAME=LEVEL,NAME=LEVEL,...", conflicts_with_all = ["resume", "factor"])]
    cell: Vec<String>,
    /// Samples of each cell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: Option<u32>,
    /// Continue a run of this experiment on this machine that was interrupted, with its cells and parameters: the newest one, or
    /// that of a number
    #[arg(long, value_name = "RUN", num_args = 0..=1, require_equals = true, default_missing_value = NEWEST, value_parser = resumed,
          conflicts_with = "no_store")]
    resume: Option<Resumed>,
    /// Seed of the order [default: a random one, which is stored]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    seed: Option<u64>,
    /// What to call the run in the store
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[arg(long, value_name = "KEY=VALUE", help = format!("Measure in a guest of the lab with this: {} (may be repeated); a key that \
          is given several times is a factor, with a guest for each of its values", keys()))]
    guest: Vec<String>,
    /// Take one sample of each cell, print the last one as JSON, and store nothing
    #[arg(long, hide = true, conflicts_with_all = ["guest", "resume"])]
    one_sample: bool,
    /// Print what would be measured as JSON, and measure nothing
    #[arg(long, hide = true, conflicts_with_all = ["guest", "resume"])]
    plan: bool,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl CommonArgs {
    /// The command that continues the run that these began.
    fn continuation(&self, experiment: &str, run: RunId) -> Vec<OsString> {
        let mut words = ["nearfar", "bench", experiment]
            .map(OsString::from)
            .to_vec();
        words.push(format!("--resume={run}").into());
        let guests = self.guest.iter().map(|guest| ("--guest", guest.into()));
        let store = self
            .record
            .store
            .store
            .iter()
            .map(|file| ("--store", file.into()));
        words.extend(option_words(guests.chain(store)));
        words
    }
}

/// One of the experiments, with its arguments.
pub struct Registered {
    entry: &'static Entry,
    matches: ArgMatches,
    common: CommonArgs,
}

impl Subcommand for Registered {
    fn augment_subcommands(command: Command) -> Command {
        EXPERIMENTS.iter().fold(command, |command, entry| {
            command.subcommand(definition(entry))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        entry(name).is_some()
    }
}

impl FromArgMatches for Registered {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        Ok(Self {
            entry: entry(name).ok_or_else(missing)?,
            matches: matches.clone(),
            common: CommonArgs::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn entry(name: &str) -> Option<&'static Entry> {
    let found = |entry: &&Entry| entry.declaration.name == name;
    EXPERIMENTS.iter().find(found)
}

fn definition(entry: &'static Entry) -> Command {
    let declaration = &entry.declaration;
    let name = declaration.name;
    let (about, _) = declaration
        .about
        .split_once("\n\n")
        .unwrap_or((declaration.about, ""));
    let factors = declaration.factors.iter();
    let factors = factors.map(|factor| format!("\n{}: {}", factor.name, factor.help()));
    let factor_help = "Measure only these levels of a factor (may be repeated)";
    let factor_long_help = format!("{factor_help}\n{}", factors.collect::<String>());
    let examples = declaration.examples.iter();
    let examples = examples.map(|words| folded(format!("nearfar bench {name} {words}").trim_end()));
    let examples: Vec<String> = examples.collect();
    let samples = format!("Samples of each cell [default: {}]", declaration.samples);
    // Before the rest: it would set what it says of itself.
    let command = (declaration.options)(CommonArgs::augment_args(Command::new(name)))
        .about(about)
        .long_about(declaration.about)
        .hide(declaration.is_hidden)
        .mut_arg("factor", |factor| {
            factor.help(factor_help).long_help(factor_long_help)
        })
        .mut_arg("samples", |argument| argument.help(samples))
        .mut_arg("guest", |guest| guest.hide(declaration.is_of_machine))
        .after_long_help(format!("Examples:{}", examples.concat()));
    let own = declaration.own_options(false);
    let own = own.get_arguments().map(|option| option.get_id().clone());
    own.fold(command, |command, id| command.mut_arg(id, shown))
}

/// A command as an indented line, or several that a shell takes as one.
fn folded(command: &str) -> String {
    const COLUMNS: usize = 94;
    let mut lines = vec![String::new()];
    for (position, part) in command.split(" --").enumerate() {
        let part = match position {
            0 => part.to_owned(),
            _ => format!(" --{part}"),
        };
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.len() + part.len() <= COLUMNS => {
                line.push_str(&part)
            }
            _ => lines.push(format!("   {part}")),
        }
    }
    format!("\n  {}", lines.join(" \\\n  "))
}

/// An option that only one experiment has, as its verb shows it.
fn shown(option: Arg) -> Arg {
    let option = match option.is_positional() {
        // A stored run has its command.
        true => option.required_unless_present("resume"),
        false => option.conflicts_with("resume"),
    };
    let Some(simulated) = simulated_default(&option) else {
        return option;
    };
    let default = option.get_default_values().iter();
    let default: Vec<_> = default.map(|it| it.to_string_lossy()).collect();
    let help = option.get_help().map(ToString::to_string);
    let (help, default) = (help.unwrap_or_default(), default.join(","));
    let of = "in guests of simulated time";
    let help = format!("{help} [default: {default}, {of} {simulated}]");
    option.help(help).hide_default_value(true)
}

impl Registered {
    /// Measures, stores and prints what `runs show` prints.
    fn run(self, colour: Colour) -> Outcome {
        let declaration = &self.entry.declaration;
        let common = &self.common;
        if let (Some(guest), true) = (common.guest.first(), declaration.is_of_machine) {
            let name = declaration.name;
            return Err(input!(
                "--guest {guest}: the cells of bench {name} depend on the machine; measure inside a guest: \
                 nearfar lab run -- nearfar bench {name}"
            ));
        }
        let time = match declaration.is_simulated {
            true => TimeSpec::Auto,
            false => TimeSpec::Host,
        };
        let guests = Guests::read(&common.guest, time)?;
        let typed = |source| source == ValueSource::CommandLine;
        let words = given(&declaration.own_options(false), &self.matches, typed);
        let arguments = |is_simulated| {
            let (factors, cells) = (&common.factor, &common.cell);
            let arguments = declaration.arguments(factors, cells, is_simulated, words.clone());
            arguments.map_err(Failure::input)
        };
        // What is wrong with them is said before the machine is read.
        arguments(false)?;
        let want = Want {
            devices: declaration.needs_devices,
            interrupts: declaration.needs_devices,
            ..Want::topology()
        };
        let machine = read_live(want)?;
        let cancel = signals::cancel_flag();
        let is_simulated_here = machine.origin.is_simulated();
        if common.one_sample || common.plan {
            let arguments = arguments(is_simulated_here)?;
            return on_target(self.entry, arguments, &machine, &cancel, common.plan);
        }
        if common.resume.is_some() {
            // A store that is made now has nothing to continue.
            common.record.store.open_existing()?;
        }
        let mut store = ExperimentStore::open(&common.record)?;
        let samples = declaration.samples_without_option(&self.matches);
        let mut options = Options::new(common.samples.unwrap_or(samples));
        (options.seed, options.label) = (common.seed, common.label.clone());
        options.resume = Resume::Nothing;
        options.is_kept = !common.record.no_store;
        options.progress = progress::on_standard_error();
        let mut continued = None;
        if let Some(which) = common.resume {
            let run = self.interrupted(which, &store.store, &machine)?;
            let detail = store.store.detail(run.run).map_err(of_store)?;
            same_guests(&run, &detail, guests.as_ref())?;
            options.resume = Resume::Run(run.run);
            options.samples = common.samples.unwrap_or(run.samples_per_cell);
            options.label.clone_from(&run.label);
            continued = Some(declaration.arguments_of(run, detail));
        }
        let guests = guests.map(Guests::prepare).transpose()?;
        let is_simulated = guests.as_ref().map(PreparedGuests::are_simulated);
        let new = || arguments(is_simulated.unwrap_or(is_simulated_here));
        let arguments = continued.map_or_else(new, Ok)?;
        options.presence = presence(&format!("nearfar bench {}", declaration.name));
        let targets = guests.map(|guests| guests.boot(&cancel)).transpose()?;
        let samples = options.samples;
        let done = (self.entry.carry_out)(Request {
            arguments,
            options,
            store: &mut store.store,
            machine: &machine,
            cancel: &cancel,
            targets,
            announce: &|announced| {
                announce(announced, samples, !common.record.no_store);
                ControlFlow::Continue(())
            },
        });
        let done = done.map_err(refusal)?;
        let shape = runs::Shape::of(common.format.format, colour, !common.record.no_store);
        runs::show(&store.store, done.run, &shape)?;
        match done.ended {
            Ended::Complete => Ok(()),
            Ended::Incomplete | Ended::Interrupted => {
                let run = store.store.run(done.run).map_err(of_store)?;
                Err(Failure::Refused(self.missing(&run, done.ended)))
            }
        }
    }

    /// What a run that is not complete has, and how to continue it.
    fn missing(&self, run: &Run, ended: Ended) -> anyhow::Error {
        let why = match ended {
            Ended::Interrupted => "interrupted",
            Ended::Incomplete | Ended::Complete => "samples failed",
        };
        let (there, wanted) = (
            run.samples.saturating_sub(run.failed),
            run.cells * u64::from(run.samples_per_cell),
        );
        if self.common.record.no_store {
            return anyhow::anyhow!(
                "{why}: {there} of {wanted} samples were taken, and nothing is kept"
            );
        }
        anyhow::anyhow!(
            "{why}: {there} of {wanted} samples are kept in run {}; `{}` continues it",
            run.run,
            shell::words(
                self.common
                    .continuation(self.entry.declaration.name, run.run)
            )
        )
    }

    /// The newest interrupted run of this experiment on this machine, or the one of this number.
    fn interrupted(
        &self,
        Resumed(number): Resumed,
        store: &Store,
        machine: &Machine,
    ) -> Result<Run, Failure> {
        let (name, label) = (self.entry.declaration.name, &self.common.label);
        let filter = Filter {
            experiment: Some(name.to_owned()),
            label: label.clone(),
            ..Filter::default()
        };
        let here = fingerprint(machine, &Host::here());
        let runs = store.list(&filter).map_err(of_store)?;
        let found = runs.into_iter().find(|run| {
            let is_it = number.is_none_or(|number| number == run.run);
            let is_incomplete = matches!(run.state, RunState::Interrupted | RunState::Failed);
            is_it && is_incomplete && run.fingerprint == here
        });
        found.ok_or_else(|| {
            let (list, store) = (runs_command("list", store.path()), store.path().display());
            let label = label.as_ref().map(|label| format!(" with the label \"{label}\""));
            let label = label.unwrap_or_default();
            let run = number.map(|number| format!(" with the number {number}"));
            let run = run.unwrap_or_default();
            input!(
                "nothing to resume: {store} has no interrupted run of {name}{label}{run} on this machine \
                 ({list})"
            )
        })
    }
}

/// Takes a sample as a target of another nearfar, which stores it, or says which cells it would take samples of.
fn on_target(
    entry: &Entry,
    arguments: Arguments,
    machine: &Machine,
    cancel: &AtomicBool,
    is_plan: bool,
) -> Outcome {
    let mut store = ExperimentStore::temporary()?;
    let mut options = Options::new(1);
    options.is_kept = false;
    // The answer says why there is no sample.
    options.failures_in_a_row = u32::MAX;
    let plan = RefCell::new(None);
    let done = (entry.carry_out)(Request {
        arguments,
        options,
        store: &mut store.store,
        machine,
        cancel,
        targets: None,
        announce: &|announced| match is_plan {
            true => {
                plan.replace(Some(serde_json::to_string(announced)));
                ControlFlow::Break(())
            }
            false => ControlFlow::Continue(()),
        },
    });
    if let Some(plan) = plan.into_inner() {
        return output::print(&plan.map_err(Failure::refused)?);
    }
    let run = done.map_err(refusal)?.run;
    let sample = store.store.samples(run).map_err(of_store)?.pop();
    let interrupted = || refused!("interrupted: there is no sample");
    let sample = sample.ok_or_else(interrupted)?;
    output::print(&serde_json::to_string(&sample).map_err(Failure::refused)?)
}

/// What is about to be measured and how long it may take, on standard error.
fn announce(announced: &Announcement, samples: u32, is_kept: bool) {
    let Announcement {
        plan,
        warnings,
        notes,
        sample,
    } = announced;
    let said = notes.iter().chain(warnings);
    said.for_each(|it| output::say!("{it}"));
    let cells = plan.cells.len();
    let all = cells as f64 * f64::from(samples);
    let duration = sample.map_or_else(String::new, |sample| {
        let (each, all) = (sample.as_secs_f64(), rough(sample.mul_f64(all)));
        format!(" of about {each:.1} s, {all}")
    });
    let interrupted = match is_kept {
        true => "Ctrl-C keeps the samples, --resume continues",
        false => "Ctrl-C shows the samples, nothing is kept",
    };
    let (cells, samples) = (count(cells, "cell"), count(samples as usize, "sample"));
    output::say!("{cells} x {samples}{duration}; {interrupted}");
}

/// A duration to one or two units.
fn rough(duration: Duration) -> String {
    let minutes = (duration.as_secs_f64() / 60.0).round() as u64;
    match minutes {
        0 => format!("about {:.0} s", duration.as_secs_f64()),
        1..60 => format!("about {minutes} min"),
        _ => format!("about {} h {} min", minutes / 60, minutes % 60),
    }
}

fn refusal(error: RunError) -> Failure {
    match error {
        RunError::Arguments(error) => Failure::input(error),
        RunError::Target(error) => Failure::Input(anyhow::Error::from_boxed(error)),
        RunError::Prepare(error) => Failure::Refused(anyhow::Error::from_boxed(error)),
        RunError::Interrupted => Failure::refused(error),
        RunError::Experiment(error) => Failure::refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_example_is_one_command_for_a_shell() {
        assert_eq!(
            folded("nearfar bench io --null 0"),
            "\n  nearfar bench io --null 0"
        );
        let long = format!(
            "nearfar bench io --device nvme0n1 --factor {} --label x",
            "a".repeat(70)
        );
        let lines: Vec<String> = folded(&long).lines().skip(1).map(str::to_owned).collect();
        assert!(lines.len() == 2 && lines[0].ends_with(" \\"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() <= 98), "{lines:?}");
        let joined: Vec<&str> = lines
            .iter()
            .map(|it| it.trim_end_matches('\\').trim())
            .collect();
        assert_eq!(joined.join(" "), long);
    }

    #[test]
    fn the_command_that_continues_has_run_guests_and_store() {
        let given =
            "mock --samples 3 --label=a&b --guest append=quiet --guest append=none --store runs.db";
        let command = CommonArgs::augment_args(Command::new("mock"));
        let matches = command.get_matches_from(given.split(' '));
        let common = CommonArgs::from_arg_matches(&matches).unwrap();
        assert_eq!(
            shell::words(common.continuation("mock", RunId(7))),
            "nearfar bench mock --resume=7 --guest append=quiet --guest append=none --store runs.db"
        );
    }
}
