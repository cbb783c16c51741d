//! `nearfar bench NAME` of the experiments in the registry: verb, help and arguments are made from what they declare.

use std::sync::atomic::AtomicBool;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use nearfar_bench::registry::{ArgumentError, Arguments, EXPERIMENTS, Entry, Request, RunError};
use nearfar_experiment::{Ended, Options, Resume, fingerprint};
use nearfar_machine::Machine;
use nearfar_runs::{Filter, Host, RunId, RunState, Store};
use nearfar_sources::{Request as Source, Want};

use super::guests;
use crate::args::{Colour, FormatArgs, StoreArgs, of_store};
use crate::failure::{Failure, Outcome};
use crate::verb::runs;
use crate::{output, progress, signals};

/// The arguments that every experiment has.
#[derive(Args)]
struct CommonArgs {
    /// Measure these levels of a factor (may be repeated)
    #[arg(long, value_name = "NAME=LEVEL,...")]
    factor: Vec<String>,
    /// Samples of each cell
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    /// Continue the newest interrupted run of this experiment on this machine
    #[arg(long)]
    resume: bool,
    /// Seed of the order [default: a random one, which is stored]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    seed: Option<u64>,
    /// What to call the run in the store
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Measure in a guest of the lab with this: machine=, scale=, kernel=, append=, delay=, arch= or accel= (may be
    /// repeated); a key that is given several times is a factor, with a guest for each of its values
    #[arg(long, value_name = "KEY=VALUE")]
    guest: Vec<String>,
    /// Take one sample of each cell, print the last one as JSON, and store nothing
    #[arg(long, hide = true, conflicts_with_all = ["guest", "resume"])]
    one_sample: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
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
    let (name, about) = (declaration.name, declaration.about);
    let factors = declaration.factors.iter().map(|factor| {
        let (levels, default) = (factor.levels.join(","), factor.default.join(","));
        format!("{}={levels} [default: {default}]", factor.name)
    });
    let factors = factors.collect::<Vec<_>>().join("; ");
    let factor_help = format!("Measure these levels of a factor (may be repeated): {factors}");
    // Before the rest: it would set what it says of itself.
    let command = CommonArgs::augment_args(Command::new(name))
        .about(about)
        .long_about(about)
        .hide(declaration.is_hidden)
        .mut_arg("factor", |factor| factor.help(factor_help))
        .after_long_help(format!(
            "Examples:\n  nearfar bench {name} --samples 20 --label quiet\n  nearfar bench {name} --resume"
        ));
    declaration
        .arguments
        .iter()
        .fold(command, |command, argument| {
            let argument = Arg::new(argument.name)
                .long(argument.name)
                .help(argument.help)
                .value_name("VALUE")
                .default_value(argument.default)
                .action(ArgAction::Set);
            command.arg(argument)
        })
}

impl Registered {
    /// Measures, stores and prints what `runs show` prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let Self {
            entry,
            matches,
            common,
        } = self;
        let value = |name: &str| matches.get_one::<String>(name).cloned();
        let arguments = entry.declaration.arguments(&common.factor, value);
        let arguments = arguments.map_err(Failure::input)?;
        let machine =
            nearfar_sources::read(&Source::live(Want::topology())).map_err(Failure::input)?;
        let cancel = signals::cancel_flag();
        if common.one_sample {
            return one_sample(entry, arguments, &machine, &cancel);
        }
        let mut store = common.store.open()?;
        let targets = guests::targets(&common.guest, &cancel)?;
        let mut options = Options::new(common.samples);
        (options.seed, options.label) = (common.seed, common.label.clone());
        options.resume = match common.resume {
            true => Resume::Run(interrupted(
                &store,
                &machine,
                entry,
                options.label.as_deref(),
            )?),
            false => Resume::Nothing,
        };
        options.progress = progress::on_standard_error();
        let done = (entry.carry_out)(Request {
            arguments,
            options,
            store: &mut store,
            machine: &machine,
            cancel: &cancel,
            targets,
        });
        let done = done.map_err(refusal)?;
        runs::show::show(&store, done.run, None, common.format.format, colour)?;
        match done.ended {
            Ended::Complete => Ok(()),
            Ended::Interrupted => Err(Failure::Refused(anyhow::anyhow!(
                "interrupted: run {} keeps its samples; --resume continues it",
                done.run
            ))),
        }
    }
}

/// Takes a sample as a target of another nearfar, which stores it.
fn one_sample(
    entry: &Entry,
    arguments: Arguments,
    machine: &Machine,
    cancel: &AtomicBool,
) -> Outcome {
    let place = tempfile::tempdir().map_err(Failure::refused)?;
    let mut store = Store::open(&place.path().join("runs.db")).map_err(of_store)?;
    let mut options = Options::new(1);
    // The answer says why there is no sample.
    options.failures_in_a_row = u32::MAX;
    let done = (entry.carry_out)(Request {
        arguments,
        options,
        store: &mut store,
        machine,
        cancel,
        targets: None,
    });
    let run = done.map_err(refusal)?.run;
    let sample = store.samples(run).map_err(of_store)?.pop();
    let interrupted = || Failure::Refused(anyhow::anyhow!("interrupted: there is no sample"));
    let sample = sample.ok_or_else(interrupted)?;
    output::print(&serde_json::to_string(&sample).map_err(Failure::refused)?)
}

/// The newest interrupted run of this experiment on this machine.
fn interrupted(
    store: &Store,
    machine: &Machine,
    entry: &Entry,
    label: Option<&str>,
) -> Result<RunId, Failure> {
    let filter = Filter {
        experiment: Some(entry.declaration.name.to_owned()),
        label: label.map(str::to_owned),
        ..Filter::default()
    };
    let here = fingerprint(machine, &Host::here());
    let runs = store.list(&filter).map_err(of_store)?;
    let found = runs.into_iter().find(|run| {
        run.fingerprint == here && matches!(run.state, RunState::Interrupted | RunState::Failed)
    });
    found.map(|run| run.run).ok_or_else(|| {
        let store = store.path().display();
        Failure::Input(anyhow::anyhow!(
            "nothing to resume: {store} has no interrupted run of {} on this machine (nearfar runs list)",
            entry.declaration.name
        ))
    })
}

fn refusal(error: RunError) -> Failure {
    match error {
        RunError::Arguments(
            error @ (ArgumentError::Factor { .. } | ArgumentError::Value { .. }),
        ) => Failure::input(error),
        RunError::Experiment(error) => Failure::refused(error),
    }
}
