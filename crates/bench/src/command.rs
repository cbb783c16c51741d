//! A command of the user under placements: which CPUs and which memory are best for it.
//!
//! ```text
//! cell ──► Placement ──► the command, so placed ──► Sample: time, CPU time, a number that it prints
//!                              └─ Observer: where it really was; a run that was elsewhere has no sample
//! findings   each placement against the first, within rounds; the best, or how large a difference there can be
//! ```

mod events;
mod measure;
mod observe;
mod placement;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clap::Args as _;
use nearfar_experiment::{Column, RunPlan};
use nearfar_runs::{Better, Cell, Detail, Factor, Metric, Sample as StoredSample};
use nearfar_statistics::Interval;
use nearfar_statistics::compare::sequential::fewest_rounds;
use nearfar_statistics::compare::{DEFAULT_MARGIN, Design, Verdict, fewest_samples};
use serde::{Deserialize, Serialize};

use crate::registry::{Arguments, Declaration, Entry, Varied, number, within};
use crate::step::{Measured, Step};
use observe::Seen;
use placement::{ALL, DEFAULT, SPREAD, Usable, is_of_one_node, read_cpus, read_memory};

pub use placement::Commands;

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "command";
/// The primary metric: from the command's first instruction to its end, or of the load of a server.
pub const ELAPSED: &str = "elapsed_s";
/// A number that the command or the load prints; runs are compared by it where there is one.
pub const FIGURE: &str = "figure";
pub const CPU_TIME: &str = "cpu_s";
/// How much of the memory is on the node of the CPU, by the CPU time on each node: 0 to 1.
pub const NEAR_SHARE: &str = "near_share";

pub(super) const CPUS: &str = "cpus";
pub(super) const MEMORY: &str = "memory";
const BALANCING: &str = "balancing";
const HUGE_PAGES: &str = "huge_pages";
const KEEP: &str = "keep";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure a command under placements: CPUs x memory policy x NUMA balancing x huge pages\n\n\
            Runs a command in rounds, each time with other CPUs and another memory policy, and says which placement is best, \
            or how large a difference between them can be. By default: as it is, on each node with memory of that node, with \
            memory of all nodes in turn, on one last-level cache where nodes have several. While it runs, nearfar looks where \
            its threads and its pages are: a run that was not where it was put is no sample. Nothing of nearfar is in the way \
            of the command; it has no standard input.\n\n\
            With --load the command is a server: it is started, loaded once it is ready, and ended.",
    examples: &[
        "-- ./job --threads 8",
        "--factor cpus=all,0,near --near eth0 --samples 20 -- ./job",
        "--factor cpus=0 --factor memory=0,1,interleave --regex 'rate: ([0-9.]+)' --better higher -- ./stream",
        "--load 'redis-benchmark -q -n 100000 -t get' --ready 6379 -- redis-server --save ''",
    ],
    is_hidden: false,
    is_of_machine: true,
    needs_devices: true,
    is_simulated: false,
    samples: 10,
    factors: &[
        Varied::of_machine(
            CPUS,
            "all, spread (one CPU of each core), a node's number, cacheN (a last-level cache), near (with --near) \
             [default: by the machine]",
            read_cpus,
        ),
        Varied::of_machine(
            MEMORY,
            "default, local, bind, preferred (of the CPUs' node), interleave, weighted (of all nodes), or a node's number \
             [default: by the machine]",
            read_memory,
        ),
        Varied::new(BALANCING, &[KEEP, "on", "off"], &[KEEP]),
        Varied::new(HUGE_PAGES, &[KEEP, "never"], &[KEEP]),
    ],
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(measure::make),
};

/// Its own options, as they are stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct Parameters {
    /// A device, for the level near of the factor cpus: eth0, nvme0n1, a PCI address
    #[arg(long, value_name = "DEVICE")]
    near: Option<String>,
    /// Run this in a shell before each run; it is not measured
    #[arg(long, value_name = "COMMAND")]
    prepare: Option<String>,
    /// Run this in a shell after each run
    #[arg(long, value_name = "COMMAND")]
    cleanup: Option<String>,
    /// Runs before the first that counts, as the first placement has it: they fill the page cache
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(0..=1000, number::<u32>))]
    warmup: u32,
    /// Drop the page cache before each run, of the whole system (root); without it pages of files are where a run before has read them
    #[arg(long)]
    drop_caches: bool,
    /// Compare by a number that the command prints, or the load: the first group of this expression's last match
    #[arg(
        long,
        value_name = "REGEX",
        requires = "better",
        conflicts_with = "pointer"
    )]
    regex: Option<String>,
    /// The same of JSON, by a JSON pointer such as /jobs/0/read/iops
    #[arg(long, value_name = "POINTER", requires = "better")]
    pointer: Option<String>,
    /// Which numbers are better
    #[arg(long, value_name = "DIRECTION", value_parser = ["higher", "lower"])]
    better: Option<String>,
    /// COMMAND is a server: measure this shell command, which loads it
    #[arg(long, value_name = "COMMAND")]
    load: Option<String>,
    /// The server is ready when it listens on this TCP port, or its output matches
    #[arg(long, value_name = "PORT-OR-REGEX", requires = "load")]
    ready: Option<String>,
    /// Also count these generic events of perf in the command and what it starts: cycles, cache-misses, LLC-load-misses, page-faults,
    /// context-switches, ...
    #[arg(long, value_name = "EVENT[,EVENT...]")]
    count: Option<String>,
    /// Take no more samples of a placement once its answer is clear: looked at after 10, 20, 40, ... rounds, to --samples (then 80).
    /// All looks together have the chance of a false alarm that a run of a fixed number has
    #[arg(long)]
    until_clear: bool,
    /// Take runs whose exit code is not 0
    #[arg(long)]
    ignore_failure: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// A run is continued only with the same program.
    #[arg(skip)]
    file: Option<ProgramFile>,
}

/// Which program a command is.
#[derive(Clone, Debug, Serialize)]
struct ProgramFile {
    path: PathBuf,
    directory: PathBuf,
    bytes: u64,
    modified_s: i64,
}

impl ProgramFile {
    /// Of a file that was found from the working directory.
    fn of(path: PathBuf) -> Self {
        let metadata = std::fs::metadata(&path).ok();
        Self {
            directory: std::env::current_dir().unwrap_or_default(),
            bytes: metadata.as_ref().map_or(0, |it| it.len()),
            modified_s: metadata.as_ref().map_or(0, MetadataExt::mtime),
            path,
        }
    }
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    elapsed_s: f64,
    cpu_s: f64,
    /// Of it in the kernel; `None` of a server.
    #[serde(default)]
    system_s: Option<f64>,
    figure: Option<f64>,
    is_higher_better: bool,
    /// Of each event that was asked for, in that order.
    #[serde(default)]
    counts: Vec<(String, f64)>,
    seen: Seen,
    /// How to run the command so without this experiment; `None` for a run as it is.
    commands: Option<Commands>,
    /// What may be wrong with it, in sentences.
    warnings: Vec<String>,
}

fn figure_metric(is_higher_better: bool) -> Metric {
    let better = match is_higher_better {
        true => Better::Higher,
        false => Better::Lower,
    };
    Metric::real(FIGURE, "", better)
}

fn columns() -> Vec<Column<Sample>> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    vec![
        Column::new(lower(ELAPSED, "s").primary(), |it: &Sample| {
            Some(it.elapsed_s)
        }),
        Column::new(lower(CPU_TIME, "s"), |it: &Sample| Some(it.cpu_s)),
        Column::new(
            Metric::real(NEAR_SHARE, "1", Better::Higher),
            |it: &Sample| it.seen.near_share(),
        ),
    ]
}

/// The run that was asked for, with the machine's placements where none are named, and what is left out of it, in sentences.
fn plan(
    arguments: &Arguments,
    parameters: &Parameters,
    usable: &Usable<'_>,
) -> (RunPlan, Vec<String>) {
    let plan = arguments.plan(parameters);
    let is_named = |factor| !arguments.levels(factor).is_empty();
    if !arguments.named_cells().is_empty() {
        return (plan, Vec::new());
    }
    let (pairs, notes) = match (is_named(CPUS), is_named(MEMORY)) {
        (false, false) => usable.proposed(),
        _ => {
            let levels = |factor, default: &str| {
                let levels = arguments.levels(factor).iter().map(ToString::to_string);
                let levels: Vec<String> = levels.collect();
                match levels.is_empty() {
                    true => vec![default.to_owned()],
                    false => levels,
                }
            };
            let memory = levels(MEMORY, DEFAULT);
            let cpus = levels(CPUS, ALL).into_iter();
            let pairs =
                cpus.flat_map(|cpus| memory.iter().map(move |it| (cpus.clone(), it.clone())));
            // Named, a cell is an error; of two factors it is what is left of them.
            let (named, left): (Vec<_>, Vec<_>) = pairs.partition(|(cpus, memory)| {
                let is_of_several =
                    [ALL, SPREAD].contains(&cpus.as_str()) && usable.only_node().is_none();
                !(is_of_one_node(memory) && is_of_several)
            });
            let note = |(cpus, memory): &(String, String)| {
                format!(
                    "cpus={cpus} with memory={memory} is left out: they are CPUs of several nodes"
                )
            };
            (named, left.iter().map(note).collect())
        }
    };
    let is_placement = |it: &Factor| [CPUS, MEMORY].contains(&it.name.as_str());
    let others: Vec<Factor> = plan
        .factors
        .into_iter()
        .filter(|it| !is_placement(it))
        .collect();
    let others = Cell::all(&others);
    let cells = pairs.iter().flat_map(|(cpus, memory)| {
        let placed = |cell: &Cell| {
            cell.clone()
                .with(CPUS, cpus.as_str())
                .with(MEMORY, memory.as_str())
        };
        others.iter().map(placed).collect::<Vec<Cell>>()
    });
    (RunPlan::of_cells(plan.parameters, cells.collect()), notes)
}

/// What the samples of a run say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// What runs are compared by.
    pub metric: String,
    /// Each placement against the first one.
    pub steps: Vec<Step>,
    /// Of the placements that are better than the first one by more than chance, all comparisons together, the one with the largest
    /// change.
    pub best: Option<Cell>,
    /// How the command is run in that placement without this experiment.
    pub commands: Option<Commands>,
    /// Whether the first placement binds nothing.
    pub is_first_unbound: bool,
    /// The range that holds the changes of the placements that are neither better nor worse, with 95 % each: shares. `None` where one of
    /// them has no interval, or there are none.
    pub undecided: Option<Interval>,
    /// Whether no more samples were taken of placements whose answer was clear.
    #[serde(default)]
    pub is_until_clear: bool,
    /// With so many comparisons no fewer samples of a placement can be significant.
    pub samples_needed: usize,
}

/// Each placement against the first one.
fn compared<'a>(
    detail: &'a Detail,
    samples: &'a [StoredSample],
) -> (&'static str, Vec<Step>, Measured<'a>) {
    let has_figure = detail.metrics.iter().any(|it| it.name == FIGURE);
    let metric = if has_figure { FIGURE } else { ELAPSED };
    let measured = Measured::of(detail, samples, &[metric]);
    let mut steps: Vec<Step> = Vec::new();
    if let Some((first, others)) = detail.plan.split_first() {
        let step = |cell: &Cell| Step {
            metric: metric.to_owned(),
            ..Step::new(first.clone(), cell.clone())
        };
        steps.extend(others.iter().map(step));
    }
    measured.answer(&mut steps, DEFAULT_MARGIN);
    (metric, steps, measured)
}

/// The placements whose answer is clear; all once the first one is compared with none of the others any more.
fn settled(detail: &Detail, samples: &[StoredSample]) -> Vec<Cell> {
    let (_, steps, measured) = compared(detail, samples);
    let clear = steps.iter().filter(|it| measured.is_clear(it, steps.len()));
    let clear: Vec<Cell> = clear.map(|it| it.b.clone()).collect();
    match clear.len() == steps.len() && !steps.is_empty() {
        true => detail.plan.clone(),
        false => clear,
    }
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[StoredSample]) -> Findings {
    let (metric, steps, _) = compared(detail, samples);
    let first = detail.plan.first();
    let is_until_clear = detail.is_until_clear();
    let change = |step: &Step| step.compared.get().and_then(|it| it.change);
    let size = |step: &&Step| change(step).map_or(0.0, |it| it.value.abs());
    let better = steps.iter().filter(|step| step.is(Verdict::Better));
    let best = better.max_by(|a, b| size(a).total_cmp(&size(b)));
    let best = best.map(|step| step.b.clone());
    let commands = samples
        .iter()
        .find(|it| Some(&it.cell) == best.as_ref() && it.failed.is_none());
    let commands =
        commands.and_then(|it| Option::<Commands>::deserialize(it.detail.get("commands")?).ok());
    let others = steps
        .iter()
        .filter(|step| !step.is(Verdict::Better) && !step.is(Verdict::Worse));
    // Of a placement without an interval nothing can be excluded.
    let intervals: Option<Vec<Interval>> = others.map(|step| change(step)?.confidence).collect();
    let widest = |a: Interval, b: Interval| Interval {
        low: a.low.min(b.low),
        high: a.high.max(b.high),
    };
    let undecided = intervals.and_then(|it| it.into_iter().reduce(widest));
    let is_unbound = |cell: &Cell| cell.text(CPUS) == ALL && cell.text(MEMORY) == DEFAULT;
    Findings {
        metric: metric.to_owned(),
        is_first_unbound: first.is_some_and(is_unbound),
        samples_needed: match is_until_clear {
            true => fewest_rounds(Design::Paired, steps.len()) as usize,
            false => fewest_samples(Design::Paired, steps.len()),
        },
        is_until_clear,
        steps,
        commands: commands.flatten(),
        best,
        undecided,
    }
}

#[cfg(test)]
mod tests {
    use nearfar_runs::{UNTIL_CLEAR, Values};
    use nearfar_statistics::compare::sequential::is_look;
    use serde_json::{Value, json};

    use super::*;

    const PLACEMENTS: [(&str, &str); 5] = [
        (ALL, DEFAULT),
        ("0", "bind"),
        ("1", "bind"),
        (ALL, "interleave"),
        ("cache0", "bind"),
    ];
    fn cell((cpus, memory): (&str, &str)) -> Cell {
        Cell::new().with(CPUS, cpus).with(MEMORY, memory)
    }

    /// A run whose placements take these times, with noise of 2 % in each sample, and of 2 % that a round's samples share: of so many
    /// rounds or, of as many at most, until its answers are clear.
    fn run(
        times: [f64; 5],
        rounds: u32,
        is_until_clear: bool,
        random: &mut fastrand::Rng,
    ) -> (Detail, Vec<StoredSample>) {
        let plan: Vec<Cell> = PLACEMENTS.iter().map(|it| cell(*it)).collect();
        let detail = Detail {
            parameters: json!({UNTIL_CLEAR: is_until_clear}),
            plan: plan.clone(),
            metrics: nearfar_experiment::metrics(columns()),
            seed: 1,
            ..Detail::default()
        };
        let (mut samples, mut clear) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            let mut noise = || 1.0 + 0.02 * normal(random);
            let shared = noise();
            for (cell, time) in plan.iter().zip(times) {
                let time = time * shared * noise();
                if clear.contains(cell) {
                    continue;
                }
                samples.push(StoredSample {
                    number: 0,
                    round,
                    cell: cell.clone(),
                    started_at_s: 0.0,
                    took_s: 1.0,
                    values: Values::from([(ELAPSED.to_owned(), time.into())]),
                    failed: None,
                    warnings: Vec::new(),
                    detail: Value::Null,
                });
            }
            if is_until_clear && is_look(round) {
                clear.extend(settled(&detail, &samples));
            }
        }
        (detail, samples)
    }

    fn simulated(times: [f64; 5], random: &mut fastrand::Rng) -> Findings {
        let (detail, samples) = run(times, 10, false, random);
        findings(&detail, &samples)
    }

    /// Of a normal distribution, nearly: the sum of twelve uniform numbers.
    fn normal(random: &mut fastrand::Rng) -> f64 {
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    #[test]
    fn of_equal_placements_hardly_any_run_names_a_best_one() {
        const RUNS: usize = 200;
        let mut random = fastrand::Rng::with_seed(33);
        let mut named = 0;
        for _ in 0..RUNS {
            let found = simulated([1.0; 5], &mut random);
            named += usize::from(found.best.is_some());
            let undecided = found.undecided.unwrap();
            assert!(undecided.low < 0.0 && undecided.high > 0.0, "{undecided:?}");
        }
        // 5 % of runs have a false alarm at most, in either direction.
        assert!(named <= RUNS / 20, "{named} of {RUNS}");
    }

    #[test]
    fn a_placement_that_is_better_by_a_tenth_is_named() {
        let mut random = fastrand::Rng::with_seed(33);
        let right = (0..200).filter(|_| {
            let found = simulated([1.0, 1.1, 0.9, 1.2, 1.5], &mut random);
            found.best == Some(cell(("1", "bind")))
        });
        let right = right.count();
        assert!(right >= 190, "{right} of 200");
    }

    #[test]
    fn a_run_until_its_answer_is_clear_has_no_more_false_alarms_and_intervals_that_hold() {
        const RUNS: usize = 200;
        let mut random = fastrand::Rng::with_seed(33);
        // Equal ones: hardly any run names one, and most are found to be equivalent only late or never.
        let (mut alarms, mut held, mut intervals) = (0, 0, 0);
        for _ in 0..RUNS {
            let (detail, samples) = run([1.0; 5], 80, true, &mut random);
            let found = findings(&detail, &samples);
            let is_different = |it: &Step| it.is(Verdict::Better) || it.is(Verdict::Worse);
            alarms += usize::from(found.steps.iter().any(is_different));
            for step in &found.steps {
                let change = step.compared.get().and_then(|it| it.change);
                let interval = change.and_then(|it| it.confidence).unwrap();
                held += usize::from(interval.low <= 0.0 && 0.0 <= interval.high);
                intervals += 1;
            }
        }
        println!(
            "{alarms} of {RUNS} runs with a false alarm, {held} of {intervals} intervals hold the truth"
        );
        assert!(alarms <= RUNS / 20, "{alarms} of {RUNS}");
        assert!(held * 100 >= intervals * 95, "{held} of {intervals}");
    }

    #[test]
    fn a_run_until_its_answer_is_clear_takes_more_samples_only_where_it_pays() {
        let mut random = fastrand::Rng::with_seed(33);
        let mut right = 0;
        let mut taken = [0; 5];
        for _ in 0..200 {
            let (detail, samples) = run([1.0, 1.2, 0.98, 1.2, 1.5], 80, true, &mut random);
            for (taken, placement) in taken.iter_mut().zip(PLACEMENTS) {
                *taken += samples
                    .iter()
                    .filter(|it| it.cell == cell(placement))
                    .count();
            }
            right += usize::from(findings(&detail, &samples).best == Some(cell(("1", "bind"))));
        }
        println!("{right} of 200 right; samples {taken:?}");
        assert!(right >= 190, "{right} of 200");
        // Clear after the first look, of 80 rounds.
        assert_eq!([taken[1], taken[3], taken[4]], [2000; 3]);
        assert!(taken[2] > 2000 && taken[2] < 16_000, "{taken:?}");
    }
}
