//! `nearfar ab`: the same command under A and under B.

mod sides;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use clap::Args;
use nearfar_experiment::{Ended, Options, Resume, carry_out};
use nearfar_lab::LabError;
use nearfar_lab::cache::Cache;
use nearfar_lab::delay::TimeSpec;
use nearfar_lab::guest::PreparedGuest;
use nearfar_lab::request::GuestRequest;
use nearfar_report::ab::{Comparison, Run, Selection, Side};
use nearfar_sources::{Request, Want};

use self::sides::{Sides, Turns};
use crate::args::{Colour, Format, FormatArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::recorded::ExperimentStore;
use crate::signals;
use crate::verb::lab::guest_args::{GuestArgs, failure};

/// Run a command in two guests that differ in one thing, in turns
#[derive(Args)]
#[command(
    after_long_help = "Each run starts a fresh guest. What the command prints is compared value by value where it is \
                       JSON, line by line otherwise.\n\nExamples:\n  \
                       nearfar ab --a kernel=6.1 --b kernel=6.12 --machine powerpc-case1 -- nearfar topo\n  \
                       nearfar ab --a append=numa_balancing=disable --b append=numa_balancing=enable --runs 5 -- ./job\n  \
                       nearfar ab --a delay=off --b delay=auto --value 'latency.pairs[*].median_ns' \\\n      \
                       -- nearfar bench latency --what latency --format json"
)]
pub struct Ab {
    /// What side A has: machine=, scale=, kernel=, append=, arch=, accel=, delay= or time= (may be
    /// repeated)
    #[arg(long, value_name = "KEY=VALUE", required = true)]
    a: Vec<String>,
    /// What side B has
    #[arg(long, value_name = "KEY=VALUE", required = true)]
    b: Vec<String>,
    /// Runs of each side, in the order A B B A A B ...
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Show this value of JSON answers, also when it is equal; * stands for any name (may be repeated)
    #[arg(long, value_name = "PATH")]
    value: Vec<String>,
    #[command(flatten)]
    guest: GuestArgs,
    /// Go on with the newest interrupted comparison of the same command and sides
    #[arg(long, conflicts_with = "no_store")]
    resume: bool,
    /// What to call the run in the store
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    /// Do not store the runs
    #[arg(long, conflicts_with = "store")]
    no_store: bool,
    #[command(flatten)]
    format: FormatArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Ab {
    /// Runs both sides in turns and compares.
    pub fn run(self, colour: Colour) -> Outcome {
        let cancel = signals::cancel_flag();
        // Both sides are understood before either is prepared: a slip in the second is then not hidden by a kernel that the
        // first lacks.
        let ((mut a, guest_a), (mut b, guest_b)) =
            (self.side("--a", &self.a)?, self.side("--b", &self.b)?);
        let requests = [
            guest_a.request(TimeSpec::Auto)?,
            guest_b.request(TimeSpec::Auto)?,
        ];
        let cache = Cache::of_user().map_err(failure)?;
        let prepared = GuestRequest::prepare_alike(&requests, &cache);
        let prepared = prepared.map_err(|(_, error)| failure(error))?;
        let Ok([prepared_a, prepared_b]) = <[PreparedGuest; 2]>::try_from(prepared) else {
            unreachable!("a guest for each request");
        };
        (a.emulation, b.emulation) = (Some(prepared_a.emulation()), Some(prepared_b.emulation()));
        let notes_a = &prepared_a.design.notes;
        let notes_b = prepared_b.design.notes.iter();
        for note in notes_a
            .iter()
            .chain(notes_b.filter(|note| !notes_a.contains(note)))
        {
            output::say!("note: {note}");
        }
        let selection = Selection::new(self.value.clone());
        [a.runs, b.runs] =
            self.carry_out([(&a, prepared_a), (&b, prepared_b)], &selection, &cancel)?;
        let runs = a.runs.iter().chain(&b.runs);
        selection.check(runs).map_err(Failure::input)?;
        let comparison = Comparison::of(self.command, a, b, &selection);
        output::print(&match self.format.format {
            Format::Json => output::json("ab/1", None, &comparison)?,
            Format::Table => {
                nearfar_report::ab::document(&comparison).to_text(&output::style(colour))
            }
        })
    }

    /// One side: what it has, and the guest that is asked for with it.
    fn side(&self, option: &str, words: &[String]) -> Result<(Side, GuestArgs), Failure> {
        let mut settings = BTreeMap::<String, String>::new();
        let mut guest = self.guest.clone();
        for word in words {
            let set = |(key, value)| {
                guest
                    .clone()
                    .with(key, value)
                    .map(|guest| (guest, key, value))
            };
            let (changed, key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word}: KEY=VALUE is wanted"))
                .and_then(set)
                .map_err(|problem| Failure::input(anyhow::anyhow!("{option} {problem}")))?;
            guest = changed;
            settings
                .entry(key.to_owned())
                .and_modify(|all| *all = format!("{all} {value}"))
                .or_insert(value.to_owned());
        }
        Ok((
            Side {
                settings,
                emulation: None,
                runs: Vec::new(),
            },
            guest,
        ))
    }

    /// The runs of both sides, stored; those of an interrupted comparison included where it is resumed.
    fn carry_out(
        &self,
        sides: [(&Side, PreparedGuest); 2],
        selection: &Selection,
        cancel: &AtomicBool,
    ) -> Result<[Vec<Run>; 2], Failure> {
        let machine =
            nearfar_sources::read(&Request::live(Want::topology())).map_err(Failure::input)?;
        let mut store = ExperimentStore::open(&self.store, !self.no_store)?;
        let mut options = Options::new(self.runs);
        options.resume = match self.resume {
            true => Resume::Newest,
            false => Resume::Nothing,
        };
        options.is_kept = !self.no_store;
        options.label = self.label.clone();
        options.failures_in_a_row = 1;
        options.progress = Box::new(Turns {
            names: [sides[0].0.name(), sides[1].0.name()],
            total: 0,
        });
        let mut experiment = Sides {
            command: &self.command,
            sides,
            selection,
            first: [None, None],
            failure: None,
        };
        let outcome = carry_out(&mut experiment, options, &mut store, &machine, cancel);
        let outcome = match (outcome, experiment.failure) {
            // What happened to the guest says more, and decides the exit code.
            (Err(_), Some(failure)) => return Err(failure),
            (outcome, _) => outcome.map_err(Failure::refused)?,
        };
        if outcome.ended == Ended::Interrupted {
            return Err(failure(LabError::Interrupted));
        }
        if !self.no_store {
            output::say!("stored as run {}", outcome.run);
        }
        let runs = |side| {
            let cell = sides::cell(side);
            let of_side = outcome.of(&cell);
            of_side.map(|sampled| sampled.sample.clone()).collect()
        };
        Ok([runs("a"), runs("b")])
    }
}
