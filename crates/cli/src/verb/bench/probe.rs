//! `nearfar bench probe`: the matrix of the probe under load, or one probe.

mod once;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nearfar_bench::matrix::{
    self, Answer, Calibrated, EXPERIMENT, LeftOut, Matrix, MatrixCell, Parameters, Places, Policy,
    Selection, Tuning, stored,
};
use nearfar_bench::probe::{ChildError, Pattern, Where, default_buffer_bytes};
use nearfar_experiment::{Ended, Options, Resume, carry_out, fingerprint};
use nearfar_machine::Machine;
use nearfar_report::count;
use nearfar_runs::{Detail, Filter, Host, Run, RunState, Store};
use nearfar_sources::{Request, Want};

use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store, size};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::progress;
use crate::signals;

/// The program that children are started from: this one, also when its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";

/// Measure what placement does to a task under load: preferred node x NUMA balancing x memory x CPUs
///
/// A probe goes through a large buffer while one process on each CPU burns a constant share of it, so that the scheduler
/// keeps wanting to move the probe. Each cell of the matrix binds its memory and CPUs to a node or leaves them floating
/// (F), with NUMA balancing off or on, with or without a preferred node. Cells are run in random order within each round.
/// What is set for a cell is put back at the end, also after a crash. Ctrl-C keeps what was measured; --resume goes on.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar bench probe                                 the whole matrix: hours\n  \
                             nearfar bench probe --seconds 2 --samples 8\n  \
                             nearfar bench probe --policies off,on --memory 0 --cpus 0,F\n  \
                             nearfar bench probe --cell preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=0 --cell preferred_node=0,numa_balancing=1,memory_node=0,cpu_node=F\n  \
                             nearfar bench probe --resume\n  \
                             nearfar bench probe --once --memory 0 --cpus 1"
)]
pub struct Probe {
    #[command(flatten)]
    cells: CellArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    setup: SetupArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Which cells.
#[derive(Args)]
#[command(next_help_heading = "Cells")]
struct CellArgs {
    /// Each preferred node with NUMA balancing off, too
    #[arg(long, conflicts_with_all = ["policies", "cell"])]
    all: bool,
    /// Only these policies: off, on (NUMA balancing without a preferred node), 0, 1 ... (that node preferred, NUMA
    /// balancing on), 0-off, 1-off ...
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        conflicts_with = "cell"
    )]
    policies: Vec<Policy>,
    /// Memory only on these nodes, F for floating
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        conflicts_with = "cell"
    )]
    memory: Vec<Where>,
    /// CPUs only of these nodes, F for floating
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        conflicts_with = "cell"
    )]
    cpus: Vec<Where>,
    /// Exactly this cell (may be repeated), such as preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0; preferred_node=-1 is no preferred node
    #[arg(long, value_name = "CELL")]
    cell: Vec<MatrixCell>,
}

/// How a run is carried out.
#[derive(Args)]
#[command(next_help_heading = "Run")]
struct RunArgs {
    /// Samples of each cell
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    /// Go on with the newest interrupted run on this machine, with its cells and parameters
    #[arg(long, conflicts_with_all = ["all", "policies", "memory", "cpus", "cell", "counts", "bytes", "steps", "seconds",
        "load", "pattern", "huge", "scan_period_ms", "scan_delay_ms", "migration_cost_ns", "samples", "seed", "once", "no_store"])]
    resume: bool,
    /// Seed of the order [default: a random one, which is stored]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// What to call the run in the store
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Keep nothing
    #[arg(long)]
    no_store: bool,
    /// One run of one cell, without the matrix
    #[arg(long, conflicts_with_all = ["all", "policies", "cell", "samples", "seed", "label", "no_store", "scan_period_ms",
        "scan_delay_ms", "migration_cost_ns"])]
    once: bool,
}

/// What is the same in all cells.
#[derive(Args)]
#[command(next_help_heading = "Probe, load and kernel")]
struct SetupArgs {
    /// How the buffer is gone through
    #[arg(long, value_enum, default_value_t = PatternArg::RandomReadWrite, value_name = "PATTERN")]
    pattern: PatternArg,
    /// Size of the buffer, such as 256M [default: far beyond the last-level cache]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bytes: Option<u64>,
    /// Rounds of the probe in one run
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    counts: u32,
    /// How long a run shall take; one run before the matrix finds out how many accesses that is
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds, conflicts_with = "steps")]
    seconds: f64,
    /// Accesses in each round, instead of --seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Use transparent huge pages
    #[arg(long)]
    huge: bool,
    /// The share of each CPU that the load burns, in percent; 0 for no load
    #[arg(long, value_name = "PERCENT", default_value_t = 60.0, value_parser = percent)]
    load: f64,
    /// Have NUMA balancing scan at least this often (1000 in the kernel), for runs shorter than the published 140 s
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    scan_period_ms: Option<u32>,
    /// Have NUMA balancing scan a process for the first time after it has run for so long [default: as --scan-period-ms]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    scan_delay_ms: Option<u32>,
    /// Let the load balancer take a task for cache-hot for this long after it ran (500000 in the kernel)
    #[arg(long, value_name = "NS")]
    migration_cost_ns: Option<u64>,
}

impl SetupArgs {
    fn tuning(&self) -> Tuning {
        let Self {
            scan_period_ms,
            scan_delay_ms,
            migration_cost_ns,
            ..
        } = *self;
        Tuning {
            scan_delay_ms,
            scan_period_ms,
            migration_cost_ns,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PatternArg {
    /// Read, then write, at random places (the published one)
    RandomReadWrite,
    /// Read, then write, one word after the other
    SequentialReadWrite,
    /// Read at random places
    RandomRead,
    /// Read one word after the other
    SequentialRead,
    /// Write at random places
    RandomWrite,
    /// Write one word after the other
    SequentialWrite,
    /// Follow a chain: each load's address is what the one before brought
    Chain,
}

impl PatternArg {
    fn pattern(self) -> Pattern {
        match self {
            Self::RandomReadWrite => Pattern::RandomReadWrite,
            Self::SequentialReadWrite => Pattern::SequentialReadWrite,
            Self::RandomRead => Pattern::RandomRead,
            Self::SequentialRead => Pattern::SequentialRead,
            Self::RandomWrite => Pattern::RandomWrite,
            Self::SequentialWrite => Pattern::SequentialWrite,
            Self::Chain => Pattern::Chain,
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (0.01..=86_400.0).contains(number));
    number.ok_or_else(|| "a run takes 0.01 to 86400 seconds".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (0.0..=99.0).contains(number));
    number.ok_or_else(|| "a load is 0 to 99 percent".to_owned())
}

impl Probe {
    /// Measures, stores and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let machine =
            nearfar_sources::read(&Request::live(Want::topology())).map_err(Failure::input)?;
        let cancel = signals::cancel_flag();
        if self.run.once {
            return self.once(&machine, &cancel, colour);
        }
        // The frame keeps every sample in a store; one that nobody asked for goes with its directory.
        let temporary = tempfile::tempdir().map_err(Failure::refused)?;
        let mut store = match self.run.no_store {
            true => Store::open(&temporary.path().join("runs.db")).map_err(of_store)?,
            false => self.store.open()?,
        };
        let plan = match self.run.resume {
            true => Plan::of_interrupted(&store, &machine, &self)?,
            false => self.plan(&machine, &cancel)?,
        };
        plan.announce(self.run.no_store);
        let (ended, mut answer) = plan.carry_out(&mut store, &machine, &cancel)?;
        if self.run.no_store {
            answer.run = None;
        }
        self.print(&answer, &machine, colour)?;
        match ended {
            Ended::Complete => Ok(()),
            Ended::Interrupted => Err(Failure::Refused(self.interrupted(&answer))),
        }
    }

    /// What an interruption left, and how to go on.
    fn interrupted(&self, answer: &Answer) -> anyhow::Error {
        let (there, wanted) = answer.progress();
        match &answer.run {
            None => anyhow::anyhow!(
                "interrupted: {there} of {wanted} samples were taken, and nothing is kept"
            ),
            Some(run) => {
                let store = self
                    .store
                    .store
                    .as_ref()
                    .map(|file| format!(" --store {}", file.display()));
                anyhow::anyhow!(
                    "interrupted: {there} of {wanted} samples are kept in run {run}; `nearfar bench probe --resume{}` goes on",
                    store.unwrap_or_default()
                )
            }
        }
    }

    /// A new run as it was asked for.
    fn plan(&self, machine: &Machine, cancel: &AtomicBool) -> Result<Plan, Failure> {
        let balancing = matrix::balancing(machine);
        let places = matrix::places(machine);
        let chosen =
            matrix::choose(&places, &balancing, &self.cells.selection()).map_err(Failure::input)?;
        let (mut parameters, warnings) =
            self.parameters(&places, machine, chosen.cells, chosen.left_out)?;
        let mut estimate = None;
        if self.setup.steps.is_none() {
            let seconds = self.setup.seconds;
            let found =
                matrix::calibrate(machine, Path::new(PROGRAM), &parameters, seconds, cancel);
            let Calibrated { steps, preparing } = found.map_err(refusal)?;
            parameters.steps = steps;
            estimate = Some(preparing + Duration::from_secs_f64(seconds));
        }
        let RunArgs {
            samples,
            seed,
            label,
            ..
        } = &self.run;
        let (seed, label, resume) = (*seed, label.clone(), Resume::Nothing);
        Ok(Plan {
            parameters,
            samples: *samples,
            seed,
            label,
            resume,
            estimate,
            warnings,
        })
    }

    /// What is the same for all cells, with the number of steps still open unless it was given; and warnings about it.
    fn parameters(
        &self,
        places: &Places,
        machine: &Machine,
        cells: Vec<MatrixCell>,
        left_out: Vec<LeftOut>,
    ) -> Result<(Parameters, Vec<String>), Failure> {
        let SetupArgs {
            pattern,
            bytes,
            counts,
            seconds,
            steps,
            huge,
            load,
            ..
        } = &self.setup;
        let tuning = self.setup.tuning();
        let settings = tuning
            .settings()
            .map_err(|because| Failure::Refused(anyhow::Error::msg(because)))?;
        let (bytes, warnings) = match bytes {
            Some(bytes) => (*bytes, Vec::new()),
            None => default_buffer_bytes(machine, &places.memory),
        };
        let parameters = Parameters {
            pattern: pattern.pattern(),
            bytes,
            counts: *counts,
            steps: steps.unwrap_or(1),
            calibrated_to_s: steps.is_none().then_some(*seconds),
            load_percent: *load,
            huge_pages: *huge,
            settings,
            nodes: places.cpus.clone(),
            cells,
            left_out,
        };
        Ok((
            parameters,
            warnings.iter().map(ToString::to_string).collect(),
        ))
    }

    fn print(&self, answer: &Answer, machine: &Machine, colour: Colour) -> Outcome {
        output::print(&match self.format.format {
            Format::Table => nearfar_report::probe::matrix(answer).to_text(&output::style(colour)),
            Format::Json => output::json("bench-probe/1", Some(&machine.origin), answer)?,
        })
    }
}

impl CellArgs {
    fn selection(&self) -> Selection {
        let Self {
            all,
            policies,
            memory,
            cpus,
            cell,
        } = self;
        Selection {
            all: *all,
            policies: policies.clone(),
            memory: memory.clone(),
            cpus: cpus.clone(),
            cells: cell.clone(),
        }
    }
}

/// A run that can be begun or continued.
struct Plan {
    parameters: Parameters,
    samples: u32,
    seed: Option<u64>,
    label: Option<String>,
    resume: Resume,
    /// What a sample will take, where that was found out.
    estimate: Option<Duration>,
    warnings: Vec<String>,
}

impl Plan {
    /// The newest run in the store that was interrupted on this machine.
    fn of_interrupted(store: &Store, machine: &Machine, asked: &Probe) -> Result<Self, Failure> {
        let filter = Filter {
            experiment: Some(EXPERIMENT.to_owned()),
            label: asked.run.label.clone(),
            ..Filter::default()
        };
        let here = fingerprint(machine, &Host::here());
        let runs = store.list(&filter).map_err(of_store)?;
        let can_go_on = |run: &Run| {
            run.fingerprint == here && matches!(run.state, RunState::Interrupted | RunState::Failed)
        };
        let run = runs.into_iter().find(can_go_on).ok_or_else(|| {
            let place = store.path().display();
            let labelled =
                asked.run.label.as_ref().map(|label| format!(" with the label \"{label}\"")).unwrap_or_default();
            Failure::Input(anyhow::anyhow!(
                "there is nothing to resume: {place} has no interrupted run of the probe{labelled} on this machine \
                 (nearfar runs list)"
            ))
        })?;
        let detail: Detail = store.detail(run.run).map_err(of_store)?;
        let parameters = stored::parameters(&run, &detail).map_err(Failure::input)?;
        Ok(Self {
            parameters,
            samples: run.samples_per_cell,
            seed: Some(detail.seed),
            label: run.label,
            resume: Resume::Run(run.run),
            estimate: None,
            warnings: Vec::new(),
        })
    }

    fn carry_out(
        self,
        store: &mut Store,
        machine: &Machine,
        cancel: &AtomicBool,
    ) -> Result<(Ended, Answer), Failure> {
        let mut matrix = Matrix::new(machine, PathBuf::from(PROGRAM), self.parameters);
        let mut options = Options::new(self.samples);
        (options.seed, options.resume, options.label) = (self.seed, self.resume, self.label);
        options.warnings = self.warnings;
        options.progress = progress::on_standard_error();
        if let Some(because) = matrix.not_traced_because() {
            let warning = format!("migrations are not traced: {because}");
            output::say!("{warning}");
            options.warnings.push(warning);
        }
        let outcome =
            carry_out(&mut matrix, options, store, machine, cancel).map_err(Failure::refused)?;
        let id = outcome.run;
        let read = |store: &Store| Ok((store.run(id)?, store.detail(id)?, store.samples(id)?));
        let (run, detail, samples) = read(store).map_err(of_store)?;
        Ok((
            outcome.ended,
            stored::answer(&run, &detail, &samples).map_err(Failure::input)?,
        ))
    }

    /// What is about to happen and how long it may take, on standard error.
    fn announce(&self, keeps_nothing: bool) {
        let Parameters {
            cells, left_out, ..
        } = &self.parameters;
        for left in left_out {
            output::say!("not measured: {}, because {}", left.what, left.because);
        }
        for warning in &self.warnings {
            output::say!("{warning}");
        }
        let runs = cells.len() as u64 * u64::from(self.samples);
        let about = self.estimate.map_or_else(String::new, |each| {
            format!(
                " of about {:.1} s, {}",
                each.as_secs_f64(),
                rough(each.mul_f64(runs as f64))
            )
        });
        let interrupted = match keeps_nothing {
            true => "Ctrl-C shows what is there, nothing is kept",
            false => "Ctrl-C keeps what is there, --resume goes on",
        };
        let (cells, samples) = (
            count(cells.len(), "cell"),
            count(self.samples as usize, "sample"),
        );
        output::say!("{cells} x {samples}{about}; {interrupted}");
    }
}

/// A duration as people say it.
fn rough(duration: Duration) -> String {
    let minutes = (duration.as_secs_f64() / 60.0).round() as u64;
    match minutes {
        0 => format!("about {:.0} s", duration.as_secs_f64()),
        1..60 => format!("about {minutes} min"),
        _ => format!("about {} h {} min", minutes / 60, minutes % 60),
    }
}

/// A child's answer as the command's.
fn refusal(error: ChildError) -> Failure {
    match error {
        ChildError::BadSpec { .. } => Failure::input(error),
        ChildError::Cancelled { .. } => Failure::Refused(anyhow::anyhow!(
            "interrupted before the first sample: nothing is kept"
        )),
        _ => Failure::refused(error),
    }
}
