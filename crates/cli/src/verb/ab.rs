//! `nearfar ab`: the same command under A and under B.
//!
//! An experiment: the factor is the side, a sample is one run of the command in a fresh guest.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use nearfar_compare::answers::{
    AnswerComparison, CommandRun, CommandSide, KernelComparison, MOST_ROUNDS, ValueSelection,
    metrics_of, metrics_taken,
};
use nearfar_compare::{Comparison, DEFAULT_MARGIN, Kind, Side, compare};
use nearfar_experiment::TargetOutput;
use nearfar_experiment::progress::{Begun, Progress, Step};
use nearfar_experiment::sampler::Order;
use nearfar_experiment::{
    Ahead, BoxError, Cell, Column, Ended, Experiment, Factor, Options, Resume, RunPlan, Settled,
    Take, carry_out, fingerprint,
};
use nearfar_lab::cache::Cache;
use nearfar_lab::delay::TimeSpec;
use nearfar_lab::guest::{Exec, PreparedGuest, Signals};
use nearfar_lab::request::GuestRequest;
use nearfar_lab::{Arch, LabError};
use nearfar_report::ab::EXPERIMENT;
use nearfar_runs::export::Whole;
use nearfar_runs::{
    Better, Detail, Host, Metric, MetricValue, RunId, RunTarget, Sample, UNTIL_CLEAR,
};
use nearfar_sources::Want;
use nearfar_trace::Losses;
use nearfar_trace::kernel::{ActivityKind, KernelActivity};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::{Colour, FormatArgs, read_live};
use crate::failure::{Failure, Outcome, input, refused};
use crate::recorded::{ExperimentStore, RecordArgs};
use crate::verb::lab::guest::{GuestArgs, booted, captured, failure, keys};
use crate::{output, signals};

/// Run a command in two guests that differ in one thing, in turns
#[derive(Args)]
#[command(
    after_long_help = "Each run starts a fresh guest. What the command prints is compared value by value where it is \
                       JSON, line by line otherwise. nearfar runs show last --format mail: the last comparison as a cover letter.\n\nExamples:\n  \
                       nearfar ab --a kernel=6.1 --b kernel=6.12 --machine powerpc-case1 -- nearfar topo\n  \
                       nearfar ab --a append=numa_balancing=disable --b append=numa_balancing=enable --runs 5 -- ./job\n  \
                       nearfar ab --a delay=off --b delay=auto --value 'latency.pairs[*].median_ns' \\\n      \
                       -- nearfar bench latency --what latency --format json"
)]
pub struct Ab {
    #[arg(long, value_name = "KEY=VALUE", required = true, help = format!("What side A has: {} (may be repeated)", keys()))]
    a: Vec<String>,
    /// What side B has
    #[arg(long, value_name = "KEY=VALUE", required = true)]
    b: Vec<String>,
    /// Runs of each side, in the order A B B A A B ... [default: 3, with --until-clear 80]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// End once the values of --value are clear, or without any the run time: looked at after 10, 20, 40, ... runs of each side. All
    /// looks together have the chance of a false alarm that a fixed number of runs has
    #[arg(long)]
    until_clear: bool,
    /// Show this value of JSON answers, also when it is equal; * stands for any name (may be repeated)
    #[arg(long, value_name = "PATH")]
    value: Vec<String>,
    /// Trace what the kernels do meanwhile (nearfar trace kernel), compare that, and name the likely cause of a difference.
    /// Tracing takes time on both sides
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    guest: GuestArgs,
    /// Go on with the newest interrupted comparison of the same command and sides
    #[arg(long, conflicts_with = "no_store")]
    resume: bool,
    /// What to call the run in the store
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Ab {
    /// Runs both sides in turns and compares.
    pub fn run(self, colour: Colour) -> Outcome {
        let (_, comparison) = self.measure()?;
        let document = || nearfar_report::ab::document(&comparison);
        self.format
            .print(colour, "ab/1", None, &comparison, document)
    }

    /// Runs both sides in turns: what that is stored as, and the comparison.
    pub(super) fn measure(&self) -> Result<(RunId, AnswerComparison), Failure> {
        let cancel = signals::cancel_flag();
        // Both sides are understood, and what they ask for is there, before either is prepared: a kernel takes minutes to build.
        let ((mut a, guest_a), (mut b, guest_b)) =
            (self.side("--a", &self.a)?, self.side("--b", &self.b)?);
        GuestArgs::check(&[&guest_a, &guest_b])?;
        GuestArgs::check_command(&self.command)?;
        let requests = [
            guest_a.request(TimeSpec::Auto)?,
            guest_b.request(TimeSpec::Auto)?,
        ];
        if self.trace {
            for request in &requests {
                let arch = request.architecture().map_err(failure)?;
                if Some(arch) != Arch::host() {
                    return Err(input!(
                        "--trace: what happens in a guest of {arch} cannot be traced on this host"
                    ));
                }
            }
        }
        let cache = Cache::of_user().map_err(failure)?;
        let [prepared_a, prepared_b] = prepared(&requests, &cache)?;
        (a.emulation, b.emulation) = (Some(prepared_a.emulation()), Some(prepared_b.emulation()));
        let notes_a = &prepared_a.design.notes;
        let notes_b = prepared_b.design.notes.iter();
        for note in notes_a
            .iter()
            .chain(notes_b.filter(|note| !notes_a.contains(note)))
        {
            output::say!("note: {note}");
        }
        let selection = ValueSelection::new(self.value.clone());
        let fixed = if self.until_clear { MOST_ROUNDS } else { 3 };
        let turns = Turns {
            command: &self.command,
            selection: &selection,
            until: self.until_clear.then(|| Until {
                settled,
                parameter: (VALUE, json!(selection)),
            }),
            runs: self.runs.unwrap_or(fixed),
            is_traced: self.trace,
            resumes: self.resume,
            label: self.label.clone(),
            record: &self.record,
        };
        let taken = turns.take([(&a, prepared_a), (&b, prepared_b)], &cancel);
        let taken = taken.map_err(|(_, failure)| failure)?;
        if !self.record.no_store {
            output::say!("stored as run {}", taken.run);
        }
        [a.runs, b.runs] = taken.runs;
        let runs = a.runs.iter().chain(&b.runs);
        selection.check(runs).map_err(Failure::input)?;
        let command = self.command.clone();
        let comparison = AnswerComparison::of(command, a, b, &selection, self.until_clear);
        Ok((taken.run, comparison))
    }

    /// One side: what it has, and the guest that is asked for with it.
    fn side(&self, option: &str, words: &[String]) -> Result<(CommandSide, GuestArgs), Failure> {
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
                .map_err(|problem| input!("{option} {problem}"))?;
            guest = changed;
            settings
                .entry(key.to_owned())
                .and_modify(|all| *all = format!("{all} {value}"))
                .or_insert(value.to_owned());
        }
        Ok((
            CommandSide {
                settings,
                emulation: None,
                runs: Vec::new(),
            },
            guest,
        ))
    }
}

/// The guests of both sides.
pub(super) fn prepared(
    requests: &[GuestRequest; 2],
    cache: &Cache,
) -> Result<[PreparedGuest; 2], Failure> {
    let prepared = GuestRequest::prepare_alike(requests, cache);
    let prepared = prepared.map_err(|(_, error)| failure(error))?;
    let Ok(both) = <[PreparedGuest; 2]>::try_from(prepared) else {
        unreachable!("a guest for each request");
    };
    Ok(both)
}

/// Runs of a command on two sides that are asked for.
pub(super) struct Turns<'a> {
    pub command: &'a [String],
    /// Checked as soon as both sides have answered: no guest boots for runs that would show nothing.
    pub selection: &'a ValueSelection,
    /// When they end, if that is decided from them.
    pub until: Option<Until>,
    /// Of each side, at the most.
    pub runs: u32,
    /// Whether what the kernels do is traced.
    pub is_traced: bool,
    /// Whether those of an interrupted comparison count.
    pub resumes: bool,
    pub label: Option<String>,
    pub record: &'a RecordArgs,
}

/// How it is decided that no more runs are needed.
#[derive(Clone)]
pub(super) struct Until {
    pub settled: Settled,
    /// What [`Self::settled`] finds among the run's parameters.
    pub parameter: (&'static str, Value),
}

/// The runs of both sides, and what they are stored as.
pub(super) struct RunsOfSides {
    pub run: RunId,
    pub runs: [Vec<CommandRun>; 2],
}

impl Turns<'_> {
    /// Runs both sides in turns, and stores that.
    ///
    /// # Errors
    /// With the place of the side whose guest or command it was.
    pub(super) fn take(
        &self,
        sides: [(&CommandSide, PreparedGuest); 2],
        cancel: &AtomicBool,
    ) -> Result<RunsOfSides, (Option<usize>, Failure)> {
        let of_none = |failure| (None, failure);
        let machine = read_live(Want::topology()).map_err(of_none)?;
        let mut store = ExperimentStore::open(self.record).map_err(of_none)?;
        let mut options = Options::new(self.runs);
        options.resume = match self.resumes {
            true => Resume::Newest,
            false => Resume::Nothing,
        };
        options.is_kept = !self.record.no_store;
        options.label = self.label.clone();
        options.failures_in_a_row = 1;
        options.progress = Box::new(TurnProgress {
            names: [sides[0].0.name(), sides[1].0.name()],
            total: 0,
        });
        let mut experiment = Sides::new(self, sides).map_err(of_none)?;
        let outcome = carry_out(&mut experiment, options, &mut store.store, &machine, cancel);
        let outcome = match (outcome, experiment.failure) {
            // What happened to the guest says more, and decides the exit code.
            (Err(_), Some((side, failure))) => return Err((Some(side), failure)),
            (outcome, _) => outcome.map_err(|error| of_none(Failure::refused(error)))?,
        };
        if outcome.ended == Ended::Interrupted {
            return Err(of_none(failure(LabError::Interrupted)));
        }
        let runs = |side| {
            let cell = cell(side);
            let of_side = outcome.of(&cell);
            of_side.map(|sampled| sampled.sample.clone()).collect()
        };
        Ok(RunsOfSides {
            run: outcome.run,
            runs: [runs("a"), runs("b")],
        })
    }
}

const SIDE: &str = "side";
const ELAPSED: &str = "elapsed_s";
const EXIT_CODE: &str = "exit_code";
/// The parameter with the values that are compared, and that decide when it ends.
const VALUE: &str = "value";
/// The parameter that says that the kernels were traced.
const TRACE: &str = "trace";
/// Where a guest keeps what its kernel did, until it is asked for.
const TRACE_FILE: &str = "/run/nearfar-trace-kernel.json";
const TRACE_WORDS: [&str; 6] = [
    "trace",
    "kernel",
    "--format=json",
    "--output",
    TRACE_FILE,
    "--",
];
/// With a larger share of the events missing, what they tell is unknown.
const MOST_LOST: f64 = 0.01;

/// The two sides.
struct Sides<'a> {
    turns: &'a Turns<'a>,
    sides: [&'a CommandSide; 2],
    targets: [RunTarget; 2],
    /// The command as it is run in a guest.
    words: Vec<OsString>,
    runs: Ahead<Result<CommandRun, Failure>>,
    /// The first run of each side.
    first: [Option<CommandRun>; 2],
    /// Why the last sample failed, where its guest did, and of which side.
    failure: Option<(usize, Failure)>,
}

/// The cell of a side: "a" or "b".
fn cell(side: &str) -> Cell {
    Cell::new().with(SIDE, side)
}

/// The place of a cell's side.
fn place(cell: &Cell) -> usize {
    usize::from(cell.level(SIDE) == Some(&"b".into()))
}

impl<'a> Sides<'a> {
    fn new(
        turns: &'a Turns<'a>,
        sides: [(&'a CommandSide, PreparedGuest); 2],
    ) -> Result<Self, Failure> {
        let is_traced = turns.is_traced;
        let mut words = Vec::new();
        if is_traced {
            words.push(std::env::current_exe().map_err(Failure::refused)?.into());
            words.extend(TRACE_WORDS.map(OsString::from));
        }
        words.extend(turns.command.iter().map(OsString::from));
        let [(a, of_a), (b, of_b)] = sides;
        let targets = [target(cell("a"), &of_a), target(cell("b"), &of_b)];
        let takes = [of_a, of_b].map(|guest| {
            let take = move |command: &[OsString], cancel: &AtomicBool| {
                Ok(once(&guest, command, is_traced, cancel))
            };
            Box::new(take) as Take<_>
        });
        Ok(Self {
            turns,
            sides: [a, b],
            runs: Ahead::new(&targets, takes.into()),
            targets,
            words,
            first: [None, None],
            failure: None,
        })
    }
}

/// Boots a guest and runs the command in it once.
fn once(
    prepared: &PreparedGuest,
    command: &[OsString],
    is_traced: bool,
    cancel: &AtomicBool,
) -> Result<CommandRun, Failure> {
    let mut guest = booted(prepared, cancel).map_err(failure)?;
    let signals = Signals::of_process().map_err(failure)?;
    let (start, before) = (Instant::now(), guest.simulated_time());
    let output = captured(&mut guest, &Exec::new(command), &signals).map_err(failure)?;
    let simulated = guest.simulated_time().zip(before);
    let elapsed = simulated.map_or_else(|| start.elapsed(), |(after, before)| after - before);
    let mut traced = None;
    if is_traced && !cancel.load(Ordering::Relaxed) {
        let file = captured(&mut guest, &Exec::new(&["cat", TRACE_FILE]), &signals);
        traced = TracedRun::read(&file.map_err(failure)?, &output)?;
    }
    guest.power_off();
    // Ctrl-C went to the command in the guest; whatever it made of that, no further run is wanted.
    if cancel.load(Ordering::Relaxed) {
        return Err(failure(LabError::Interrupted));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // Without what nearfar did before and after.
    let seconds = traced.as_ref().map(|it| it.seconds);
    Ok(CommandRun {
        elapsed_s: seconds.unwrap_or(elapsed.as_secs_f64()),
        exit_code: output.exit_code,
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        kernel: traced.map(|it| it.kernel),
    })
}

/// A run with what its kernel did: what is read of `trace-kernel/1`.
#[derive(Deserialize)]
struct TracedRun {
    seconds: f64,
    losses: Losses,
    #[serde(flatten)]
    kernel: KernelActivity,
}

impl TracedRun {
    /// `None` of a command that could not be started, as shells have it.
    ///
    /// # Errors
    /// When there is none, with what the command said last.
    fn read(file: &TargetOutput, command: &TargetOutput) -> Result<Option<Self>, Failure> {
        let read = match serde_json::from_slice::<Self>(&file.stdout) {
            Err(_) if matches!(command.exit_code, 126 | 127) => return Ok(None),
            read => read,
        };
        let mut traced = read.map_err(|_| {
            let errors = String::from_utf8_lossy(&command.stderr);
            let last = errors.lines().last().unwrap_or("it says nothing");
            refused!("the guest's kernel was not traced: {last}")
        })?;
        let Losses { lost, occurred, .. } = traced.losses;
        if lost as f64 > MOST_LOST * occurred as f64 {
            let reason = format!("{lost} of {occurred} events of a run are missing");
            for kind in ActivityKind::OF_EVENTS {
                let unknown = &mut traced.kernel.unknown_reasons;
                unknown.entry(kind).or_insert_with(|| reason.clone());
            }
        }
        Ok(Some(traced))
    }
}

impl Experiment for Sides<'_> {
    type Sample = CommandRun;

    fn name(&self) -> &str {
        EXPERIMENT
    }

    fn title(&self) -> String {
        let command = self.turns.command.join(" ");
        let words: Vec<&str> = command.split_whitespace().collect();
        let [a, b] = self.sides;
        format!("{} (a: {}; b: {})", words.join(" "), a.name(), b.name())
    }

    fn plan(&self) -> RunPlan {
        let side =
            |side: &CommandSide| json!({"settings": side.settings, "emulation": side.emulation});
        let [a, b] = self.sides;
        let mut parameters = json!({"command": self.turns.command, "a": side(a), "b": side(b)});
        if !self.turns.selection.is_empty() {
            parameters[VALUE] = json!(self.turns.selection);
        }
        if self.turns.is_traced {
            parameters[TRACE] = true.into();
        }
        if let Some(Until { parameter, .. }) = &self.turns.until {
            parameters[UNTIL_CLEAR] = true.into();
            parameters[parameter.0] = parameter.1.clone();
        }
        RunPlan::of_factors(parameters, vec![Factor::new(SIDE, ["a", "b"])])
    }

    fn targets(&self) -> Vec<RunTarget> {
        self.targets.to_vec()
    }

    /// A B B A: a drift of the host affects both sides alike.
    fn order(&self, _: u64) -> Order {
        Order::Mirrored
    }

    fn settled(&self) -> Option<Settled> {
        self.turns.until.as_ref().map(|until| until.settled)
    }

    fn columns() -> Vec<Column<CommandRun>> {
        vec![
            Column::new(
                Metric::real(ELAPSED, "s", Better::Lower).primary(),
                |run: &CommandRun| Some(run.elapsed_s),
            ),
            Column::new(
                Metric::integer(EXIT_CODE, "", Better::Lower),
                |run: &CommandRun| Some(i64::from(run.exit_code)),
            ),
        ]
    }

    fn further(run: &CommandRun) -> Vec<(Metric, MetricValue)> {
        metrics_of(&run.stdout, &[ELAPSED, EXIT_CODE])
    }

    fn begin(&mut self, cells: &[&Cell]) {
        for cell in cells {
            self.runs.begin(place(cell), cell, self.words.clone());
        }
    }

    fn has(&mut self, cell: &Cell) -> bool {
        self.runs.has(cell)
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<CommandRun, BoxError> {
        let side = place(cell);
        let run = self.runs.take(side, cell, self.words.clone(), cancel)?;
        let run = run.and_then(|run| {
            let is_second = self.first.iter().flatten().count() == 1;
            self.first[side].get_or_insert_with(|| run.clone());
            match &self.first {
                [Some(a), Some(b)] if is_second => {
                    let selection = self.turns.selection;
                    selection.check([a, b]).map_err(Failure::input)?;
                }
                _ => {}
            }
            Ok(run)
        });
        run.map_err(|failure| {
            let reason = match &failure {
                Failure::Input(error) | Failure::Refused(error) => format!("{error:#}"),
                _ => "the guest ended".to_owned(),
            };
            self.failure = Some((side, failure));
            reason.into()
        })
    }
}

/// The stored comparison of both sides, of the values that were asked for, and of what the kernels did.
///
/// # Errors
/// When the run has samples of one side only, or cannot be read.
pub(super) fn compared(whole: &Whole) -> Result<(Comparison, Option<KernelComparison>), Failure> {
    let side = Side::of_run(format!("run {}", whole.run.run), whole);
    let sides = side.by(SIDE, None).map_err(Failure::input)?;
    let selection = ValueSelection::deserialize(&whole.detail.parameters[VALUE]);
    let selection = selection.unwrap_or_default();
    let runs = runs_of_sides(&whole.taken);
    let taken = runs
        .iter()
        .flatten()
        .flat_map(|run| metrics_taken(&run.stdout, &selection));
    let mut metrics = BTreeSet::from_iter(taken);
    // Of an answer with many numbers some are not stored.
    metrics.retain(|name| whole.detail.metrics.iter().any(|it| it.name == *name));
    if metrics.is_empty() && !selection.is_empty() {
        return Err(input!(
            "run {}: none of its --value is stored as a metric",
            whole.run.run
        ));
    }
    if !metrics.is_empty() {
        metrics.insert(EXIT_CODE.to_owned());
    }
    let options = nearfar_compare::Options {
        margin: DEFAULT_MARGIN,
        metrics: metrics.into_iter().collect(),
        across: Kind::all().into(),
        judges_single_runs: false,
    };
    let comparison = compare(&sides, &options).map_err(Failure::input)?;
    let [a, b] = runs.map(CommandSide::of);
    let is_until_clear = whole.detail.is_until_clear();
    let of_answers = AnswerComparison::of(Vec::new(), a, b, &selection, is_until_clear);
    Ok((comparison, of_answers.kernel))
}

/// The stored runs of both sides.
pub(super) fn runs_of_sides(samples: &[Sample]) -> [Vec<CommandRun>; 2] {
    ["a", "b"].map(|side| {
        let cell = cell(side);
        let of_side = samples.iter().filter(|it| it.cell == cell);
        of_side
            .filter_map(|it| CommandRun::deserialize(&it.detail).ok())
            .collect()
    })
}

/// Both sides, once what decides it is clear.
fn settled(detail: &Detail, samples: &[Sample]) -> Vec<Cell> {
    let selection = ValueSelection::deserialize(&detail.parameters[VALUE]).unwrap_or_default();
    let [a, b] = runs_of_sides(samples).map(CommandSide::of);
    let comparison = AnswerComparison::of(Vec::new(), a, b, &selection, true);
    match comparison.is_clear() {
        true => detail.plan.clone(),
        false => Vec::new(),
    }
}

/// The machine of a side, of which each run boots a new one: what its design says, as nothing is up before the first run.
fn target(levels: Cell, guest: &PreparedGuest) -> RunTarget {
    let mut machine = guest.design.expected.clone();
    machine.origin.emulation = Some(guest.emulation());
    let host = Host {
        name: guest.request.name.clone(),
        kernel: guest.kernel.release.clone(),
        kernel_version: String::new(),
        kernel_command_line: guest.request.append.join(" "),
    };
    RunTarget {
        levels,
        fingerprint: fingerprint(&machine, &host),
        emulation: machine.origin.emulation.clone(),
        host,
        // A description holds nothing that JSON does not.
        machine: serde_json::to_value(machine).unwrap_or_default(),
    }
}

/// A line for each run that begins.
struct TurnProgress {
    /// What makes side A and side B.
    names: [String; 2],
    total: u64,
}

impl Progress for TurnProgress {
    fn begin(&mut self, begun: &Begun) {
        self.total = begun.total;
    }

    fn step(&mut self, step: &Step<'_>) {
        if let Some(cell) = step.next {
            let name = &self.names[place(cell)];
            output::say!("run {} of {}: {name}", step.done + 1, self.total);
        }
    }

    fn end(&mut self) {}
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nearfar_lab::arch::Arch;
    use nearfar_lab::design::Design;
    use nearfar_lab::kernels::Kernel;
    use nearfar_lab::qemu::Qemu;
    use nearfar_lab::request::GuestRequest;
    use nearfar_machine::{Acceleration, Machine};
    use nearfar_sources::{Request, Want};

    use crate::args::StoreArgs;

    use super::*;

    /// What a guest of this kernel and these words would be made of.
    fn guest(release: &str, append: &[&str]) -> PreparedGuest {
        let arch = Arch::X86_64;
        let request = Request::source("two-node", Want::topology());
        let machine = nearfar_sources::read(&request).unwrap();
        let design = Design::new(&machine, arch).unwrap();
        PreparedGuest {
            request: GuestRequest {
                append: append.iter().map(ToString::to_string).collect(),
                ..GuestRequest::new(machine, "two-node")
            },
            design,
            kernel: Kernel {
                arch,
                release: release.to_owned(),
                image: PathBuf::new(),
                modules: None,
            },
            qemu: Qemu {
                arch,
                program: PathBuf::new(),
                version: (10, 0, 2),
                plugins: false,
            },
            acceleration: Acceleration::Tcg,
            delay: None,
            foreign: None,
            busybox: PathBuf::new(),
            drmgr: None,
        }
    }

    #[test]
    fn a_run_has_its_time_and_exit_code_besides_what_its_answer_has() {
        let run = CommandRun {
            elapsed_s: 2.0,
            exit_code: 3,
            stdout: r#"{"elapsed_s": 9.0, "median_ns": 90.5}"#.to_owned(),
            stderr: String::new(),
            kernel: None,
        };
        let values = nearfar_experiment::values(&Sides::columns(), &run);
        let values: Vec<_> = values
            .iter()
            .map(|(name, it)| (name.as_str(), it.number()))
            .collect();
        assert_eq!(values, [(ELAPSED, 2.0), (EXIT_CODE, 3.0)]);
        let further = Sides::further(&run);
        let names: Vec<_> = further
            .iter()
            .map(|(metric, _)| metric.name.as_str())
            .collect();
        assert_eq!(names, ["median_ns"], "a name counts once");
    }

    #[test]
    fn each_side_is_a_target_with_kernel_emulation_and_nodes_of_its_guest() {
        let side = |kernel: &str| CommandSide {
            settings: [("kernel".to_owned(), kernel.to_owned())].into(),
            emulation: None,
            runs: Vec::new(),
        };
        let (a, b) = (side("6.1"), side("6.12"));
        let record = RecordArgs {
            store: StoreArgs { store: None },
            no_store: true,
        };
        let turns = Turns {
            command: &["nearfar".to_owned(), "topo".to_owned()],
            selection: &ValueSelection::default(),
            until: None,
            runs: 3,
            is_traced: false,
            resumes: false,
            label: None,
            record: &record,
        };
        let guests = [(&a, guest("6.1.9", &[])), (&b, guest("6.12.3", &["quiet"]))];
        let sides = Sides::new(&turns, guests).ok().unwrap();
        assert_eq!(
            sides.title(),
            "nearfar topo (a: kernel=6.1; b: kernel=6.12)"
        );
        let targets = sides.targets();
        let kernels: Vec<_> = targets.iter().map(|it| it.host.kernel.as_str()).collect();
        assert_eq!(kernels, ["6.1.9", "6.12.3"]);
        assert_eq!(targets[1].host.kernel_command_line, "quiet");
        assert_ne!(targets[0].fingerprint, targets[1].fingerprint);
        for (level, target) in ["a", "b"].into_iter().zip(&targets) {
            assert_eq!(target.levels, cell(level));
            let label = target.emulation.as_ref().unwrap().to_string();
            assert!(label.contains("two-node"), "{label}");
            let machine: Machine = serde_json::from_value(target.machine.clone()).unwrap();
            assert_eq!(machine.nodes.len(), 2);
            assert_eq!(machine.origin.emulation, target.emulation);
        }
        assert_eq!(targets, sides.targets(), "or a run could not be resumed");
    }
}
