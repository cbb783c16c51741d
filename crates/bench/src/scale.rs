//! Case 5: tasks that all want one kernel lock, from one task to all CPUs.
//!
//! ```text
//!  nearfar                                   task 0      task 1      ...     processes, or threads of one
//!  start, wait until ready                   loop        loop
//!  warm up, read counters ◄── memfd ──────── counter     counter             a cache line pair each
//!  profile, seconds later read them again
//!  trace lock contention for a while         (not while operations are counted)
//!  kill
//! ```
//!
//! The tasks run until they are killed; one that ends by itself is an error. Files are without a name.
//!
//! Here are what `nearfar bench scale` declares, how a run is prepared, and what a sample has.

mod findings;
mod measure;
mod published;
mod tasks;
mod workload;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args as _;
use nearfar_experiment::{BoxError, Column, Experiment, RunPlan};
use nearfar_machine::{CpuSet, Known, Machine, NodeSet, seconds};
use nearfar_runs::{Better, Cell, Level, Metric};
use nearfar_statistics::law::MIN_LEVELS;
use serde::{Deserialize, Serialize};

use crate::registry::{
    Arguments, Context, Declaration, Entry, Made, RunError, SECONDS, Varied, number, size, within,
};
use findings::{Contention, Hot};
use measure::{Placing, Plan, check_memory, take};
use workload::{Workload, unnamed_file};

pub use findings::{Curve, Findings, HotFunction, HotLock, findings};
pub use published::Published;
pub use tasks::serve;

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "scale";

/// The primary metric: of all tasks.
pub const OPERATIONS: &str = "operations_per_s";
/// Time in waits for locks, as a share of the tasks' time while they were traced.
pub const LOCK_SHARE: &str = "lock_share";

/// The factors.
pub const TASKS: &str = "tasks";
pub const WORKLOAD: &str = "workload";
pub const KIND: &str = "kind";
const BINDING: &str = "binding";
const MEMORY: &str = "memory";
const NODES_USED: &str = "nodes_used";

const ALL: &str = "all";
const MAX_TASKS: i64 = 8192;
/// More would be felt by what is measured.
const MAX_FREQUENCY: u32 = 1000;

const ONE_NODE: &str = "this machine has one node: whether more nodes help shows in guests whose memory is split:\n  \
                        nearfar bench scale --guest machine=two-node --guest append=numa=fake=1U \\\n    \
                        --guest append=numa=fake=2U --factor tasks=1,2,3,4 --factor memory=spread";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure how throughput grows with tasks that want one kernel lock: workload x kind x binding x memory x tasks\n\n\
            N processes or threads repeat one operation of the kernel's memory or file management, from one task to one on \
            each CPU. Fits the universal scalability law, says where adding CPUs stops paying and whether more nodes help, \
            and traces which locks are waited for. Several --guest append=numa=fake=N compare numbers of nodes.",
    examples: &[
        "",
        "--factor workload=page_fault --factor kind=process,thread --sweep full",
        "--guest machine=two-node --guest append=numa=fake=1U --guest append=numa=fake=2U --factor tasks=1,2,3,4 --factor memory=spread",
        "--resume",
    ],
    is_hidden: false,
    is_of_machine: false,
    needs_devices: false,
    is_simulated: true,
    samples: 8,
    factors: &[
        Varied::new(WORKLOAD, &Workload::NAMES, &["tlb_flush"]),
        Varied::new(KIND, &["process", "thread"], &["process"]),
        Varied::new(BINDING, &["bound", "unbound"], &["bound"]),
        Varied::new(MEMORY, &["local", "spread"], &["local"]),
        Varied::of_machine(
            NODES_USED,
            "all, or the number of nodes whose CPUs are used",
            |text| match text {
                ALL => Some(ALL.into()),
                _ => tasks(text),
            },
        ),
        Varied::of_machine(
            TASKS,
            "1 to the number of CPUs [default: by --sweep]",
            tasks,
        ),
    ],
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(make),
};

fn tasks(text: &str) -> Option<Level> {
    let number = text.parse().ok().filter(|it| (1..=MAX_TASKS).contains(it));
    number.map(Level::Number)
}

/// Its own options, as they are stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct Parameters {
    /// Numbers of tasks: powers of two and all CPUs, or every number
    #[arg(long, value_name = "NAME", default_value = "few", value_parser = ["few", "full"])]
    sweep: String,
    /// Seconds for which operations are counted
    #[arg(long, value_name = SECONDS, default_value = "1", value_parser = within(0.001..=3600.0, seconds::parse))]
    seconds: f64,
    /// Seconds before that
    #[arg(long, value_name = SECONDS, default_value = "0.3", value_parser = within(0.0..=3600.0, seconds::parse))]
    warm_up: f64,
    /// Seconds after that in which lock contention is traced; 0 for none
    #[arg(long, value_name = SECONDS, default_value = "0.5", value_parser = within(0.0..=3600.0, seconds::parse))]
    trace_seconds: f64,
    /// Times per second that each CPU's kernel function is sampled while operations are counted; 0 for none
    #[arg(long, value_name = "N", default_value = "99", value_parser = within(0..=MAX_FREQUENCY, number::<u32>))]
    profile_frequency: u32,
    /// Size of each task's mapping or file
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = size(64 << 10..=1 << 40))]
    memory_size: u64,
    /// Where files are made, without a name
    #[arg(long, value_name = "DIRECTORY", default_value = "/tmp")]
    directory: String,
}

/// The experiment, on this machine or, with targets, on theirs.
pub(crate) struct ScaleExperiment<'a> {
    machine: &'a Machine,
    parameters: Parameters,
    plan: RunPlan,
    /// CPUs that this process may use.
    allowed: CpuSet,
}

fn make<'a>(
    arguments: &Arguments,
    context: Context<'a>,
) -> Result<Made<ScaleExperiment<'a>>, RunError> {
    let Context { machine, .. } = context;
    let allowed = context.allowed_cpus();
    let parameters: Parameters = arguments.parameters()?;
    let page = rustix::param::page_size() as u64;
    if !parameters.memory_size.is_multiple_of(page) {
        let reason = format!("expected a multiple of {page} bytes");
        return Err(arguments.wrong("memory-size", reason).into());
    }
    let is_full = parameters.sweep == "full";
    let mut plan = arguments.plan(&parameters);
    for factor in plan.factors.iter_mut().filter(|it| it.levels.is_empty()) {
        factor.levels = match factor.name == TASKS {
            false => vec![ALL.into()],
            // Each target counts its own CPUs.
            true if !context.is_measured_here => Vec::new(),
            true => {
                let all = measure::sweep(allowed.len(), is_full).into_iter();
                all.map(|it| Level::Number(it as i64)).collect()
            }
        };
    }
    if arguments.named_cells().is_empty() {
        plan.cells = Cell::all(&plan.factors);
    }
    let seconds = parameters.seconds + parameters.warm_up + parameters.trace_seconds;
    let experiment = ScaleExperiment {
        machine,
        parameters,
        plan,
        allowed,
    };
    let mut notes = Vec::new();
    if context.is_measured_here {
        let directory = Path::new(&experiment.parameters.directory);
        if !directory.is_dir() {
            let reason = "not a directory".to_owned();
            return Err(arguments.wrong("directory", reason).into());
        }
        let workloads = experiment.plan.cells.iter().map(|it| it.text(WORKLOAD));
        let mut workloads = workloads.filter_map(|it| Workload::of(&it));
        if workloads.any(Workload::has_file)
            && let Err(error) = unnamed_file(directory, 0)
        {
            let reason = nearfar_proc::error_text(&error);
            let reason = format!("cannot make a file without a name there: {reason}");
            return Err(arguments.wrong("directory", reason).into());
        }
        for cell in &experiment.plan.cells {
            let placed = experiment
                .placing(cell)
                .and_then(|it| Ok(measure::place(machine, &experiment.allowed, it)?));
            placed.map_err(|error| RunError::Target(format!("{cell}: {error}").into()))?;
        }
        let fits = |cell: &Cell| match (cell.level(TASKS), Workload::of(&cell.text(WORKLOAD))) {
            (Some(Level::Number(tasks)), Some(workload)) => check_memory(
                workload,
                experiment.parameters.memory_size,
                usize::try_from(*tasks).unwrap_or(usize::MAX),
            ),
            _ => Ok(()),
        };
        let checked = experiment.plan.cells.iter().try_for_each(fits);
        checked.map_err(|error| arguments.wrong("memory-size", error.to_string()))?;
        if arguments.levels(TASKS).is_empty() && arguments.named_cells().is_empty() {
            check_law(experiment.allowed.len(), is_full)?;
        }
        if machine.online_nodes().count() < 2 {
            notes.push(ONE_NODE.to_owned());
        }
    }
    Ok(Made {
        experiment,
        warnings: Vec::new(),
        notes,
        sample: Some(Duration::from_secs_f64(seconds)),
    })
}

/// Fails where the numbers of tasks that a sweep of so many CPUs has give no law, which is what the run is for. Who names the
/// numbers has another reason.
fn check_law(cpus: usize, is_full: bool) -> Result<(), RunError> {
    let levels = measure::sweep(cpus, is_full).len();
    if levels >= MIN_LEVELS {
        return Ok(());
    }
    let answers = match cpus >= MIN_LEVELS {
        true => "nearfar bench scale --sweep full".to_owned(),
        false => {
            let tasks: Vec<String> = (1..=MIN_LEVELS).map(|tasks| tasks.to_string()).collect();
            format!(
                "nearfar bench scale --guest machine=two-node --guest scale=cpus={} --factor tasks={}",
                MIN_LEVELS.div_ceil(2),
                tasks.join(",")
            )
        }
    };
    let reason = format!(
        "{levels} {} of tasks on {cpus} CPUs: the scalability law takes {MIN_LEVELS}. This answers:\n  {answers}\n\
         --factor tasks=N measures without a law",
        if levels == 1 { "number" } else { "numbers" }
    );
    Err(RunError::Target(reason.into()))
}

impl ScaleExperiment<'_> {
    fn placing(&self, cell: &Cell) -> Result<Placing, BoxError> {
        let number = |factor| match cell.level(factor) {
            Some(Level::Number(number)) => usize::try_from(*number).ok(),
            _ => None,
        };
        Ok(Placing {
            tasks: number(TASKS).ok_or("tasks is not a number")?,
            is_bound: cell.text(BINDING) == "bound",
            is_spread: cell.text(MEMORY) == "spread",
            nodes: number(NODES_USED),
        })
    }
}

impl Experiment for ScaleExperiment<'_> {
    type Sample = Sample;

    fn name(&self) -> &str {
        DECLARATION.name
    }

    fn title(&self) -> String {
        "throughput of tasks that want one kernel lock".to_owned()
    }

    fn plan(&self) -> RunPlan {
        self.plan.clone()
    }

    fn columns() -> Vec<Column<Sample>> {
        columns()
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Sample, BoxError> {
        let workload = Workload::of(&cell.text(WORKLOAD));
        let parameters = &self.parameters;
        let plan = Plan {
            machine: self.machine,
            workload: workload.ok_or("the workload is unknown")?,
            bytes: parameters.memory_size,
            directory: Path::new(&parameters.directory),
            is_threads: cell.text(KIND) == "thread",
            tasks: measure::place(self.machine, &self.allowed, self.placing(cell)?)?,
            warm_up: Duration::from_secs_f64(parameters.warm_up),
            time: Duration::from_secs_f64(parameters.seconds),
            trace: Duration::from_secs_f64(parameters.trace_seconds),
            profile_hertz: parameters.profile_frequency,
        };
        take(&plan, cancel)
    }

    fn warnings(sample: &Sample) -> Vec<String> {
        warnings(sample)
    }
}

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Of each task.
    operations_per_s: Vec<f64>,
    /// CPU time of all tasks while operations were counted, in ticks of 10 ms; `None` in simulated time.
    user_s: Option<f64>,
    system_s: Option<f64>,
    /// How long operations were counted.
    seconds: f64,
    /// Nodes that are online.
    nodes: NodeSet,
    /// Nodes that the tasks' memory was bound to; empty where it came from wherever they ran.
    memory_nodes: NodeSet,
    contention: Known<Contention>,
    #[serde(default = "not_sampled")]
    profile: Known<Hot>,
    warnings: Vec<String>,
}

fn not_sampled() -> Known<Hot> {
    Known::no("it was not sampled")
}

impl Sample {
    fn all(&self) -> f64 {
        self.operations_per_s.iter().sum()
    }
}

/// Jain's index: 1 where all tasks do the same, 1 / N where one does everything; `None` without an operation.
fn fairness(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|it| it * it).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

fn columns() -> Vec<Column<Sample>> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    let higher = |name, unit| Metric::real(name, unit, Better::Higher);
    // Unknown is not 0.
    let contention = |name, of: fn(&Contention) -> f64| {
        let of = move |it: &Sample| {
            let traced = it.contention.get().filter(|it| it.no_spin_reason.is_none());
            traced.map(of)
        };
        Column::new(lower(name, "1"), of)
    };
    vec![
        Column::new(higher(OPERATIONS, "1/s").primary(), |it: &Sample| {
            Some(it.all())
        }),
        Column::new(higher("operations_per_task_s", "1/s"), |it: &Sample| {
            Some(it.all() / it.operations_per_s.len() as f64)
        }),
        Column::new(higher("fairness", "1"), |it: &Sample| {
            fairness(&it.operations_per_s)
        }),
        contention(LOCK_SHARE, |it| it.share),
        contention("spin_share", |it| it.spin_share),
        contention("hot_lock_share", |it| {
            it.locks.first().map_or(0.0, |lock| lock.share)
        }),
        Column::new(lower("lock_function_share", "1"), |it: &Sample| {
            it.profile.get()?.lock_function_share
        }),
        Column::new(lower("system_s", "s"), |it: &Sample| it.system_s),
        Column::new(lower("user_s", "s"), |it: &Sample| it.user_s),
    ]
}

fn warnings(sample: &Sample) -> Vec<String> {
    let mut warnings = sample.warnings.clone();
    warnings.extend(
        sample
            .contention
            .get()
            .into_iter()
            .flat_map(Contention::warnings),
    );
    warnings.extend(sample.profile.get().into_iter().flat_map(Hot::warnings));
    if sample.operations_per_s.contains(&0.0) {
        warnings.push("a task made no operation while they were counted".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use nearfar_experiment::{metrics, values};

    use super::*;

    #[test]
    fn a_sweep_without_a_law_names_what_gives_one() {
        let refused = |cpus, is_full| check_law(cpus, is_full).map_err(|error| error.to_string());
        let text = refused(2, false).unwrap_err();
        assert!(
            text.starts_with("2 numbers of tasks on 2 CPUs") && text.contains("--guest"),
            "{text}"
        );
        // Powers of two: 1, 2, 4.
        let text = refused(4, false).unwrap_err();
        assert!(text.contains("--sweep full"), "{text}");
        assert_eq!(refused(4, true), Ok(()));
        assert_eq!(refused(8, false), Ok(()));
    }

    #[test]
    fn a_sample_is_all_tasks_and_how_evenly_they_worked() {
        let sample = Sample {
            operations_per_s: vec![300.0, 100.0],
            user_s: Some(0.25),
            system_s: Some(0.75),
            seconds: 0.5,
            nodes: NodeSet::new(),
            memory_nodes: NodeSet::new(),
            contention: Known::no("not traced"),
            profile: not_sampled(),
            warnings: Vec::new(),
        };
        let values = values(&columns(), &sample);
        let of = |name: &str| values[name].number();
        assert_eq!(
            (of(OPERATIONS), of("operations_per_task_s")),
            (400.0, 200.0)
        );
        assert!((of("fairness") - 0.8).abs() < 1e-9);
        assert_eq!(values.get(LOCK_SHARE), None, "unknown is not 0");
        assert_eq!(
            nearfar_runs::check_values(&metrics(columns()), &values),
            Ok(())
        );
        assert_eq!(fairness(&[0.0, 0.0]), None);
        assert_eq!(fairness(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
    }
}
