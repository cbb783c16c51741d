//! Case 1: I/O of fio to a block device or a file, from near and far CPUs, with near and far memory.
//!
//! ```text
//! asked ──► Target    the device, where it is, which nodes are near and far
//!             │
//! cell ────► Job ──► fio (JSON+) ──► Answer ─┐
//!             └─► Meanwhile: NVMe paths, other I/O ─┴─► Sample
//!
//! target      which disk it is, and whether fio may write to it
//! findings    what each factor costs or gains, judged over a run
//! ```
//!
//! fio is a process of its own and nothing of nearfar is in the way of its I/O. A sample has the command that measures the
//! same without nearfar.
//!
//! Here are what `nearfar bench io` declares, what a sample has, and the findings: pairs of cells that differ in one factor only,
//! compared within rounds.
//!
//! ```text
//! cpu_node, memory_node   near ─► far
//! plan                    before ─► after
//! iopolicy                the first level ─► each other one
//! ```
//!
//! By I/Os per second and by the 99th percentile of latency; all together have a chance of any false alarm of 5 % (Holm).

mod answer;
mod fio;
mod measure;
mod prepare;
mod target;

use std::fmt;
use std::path::PathBuf;

use clap::Args as _;
use nearfar_experiment::Column;
use nearfar_machine::{CpuSet, NodeId, seconds};
use nearfar_runs::{Better, Detail, Metric, Quantiles, Sample as StoredSample};
use nearfar_statistics::compare::DEFAULT_MARGIN;
use nearfar_trace::locks::LockWaits;
use serde::{Deserialize, Serialize};

use crate::planned;
use crate::registry::{Declaration, Entry, RunError, SECONDS, Varied, node, number, size, within};
use crate::step::{Measured, Step, by_factor};

pub use answer::{Answer, AnswerError};

/// The experiment's name in lists of runs.
pub const EXPERIMENT: &str = "io";

/// The primary metric.
pub const IOPS: &str = "iops";
/// The 99th percentile of completion latency within a sample, in nanoseconds.
pub const LATENCY_P99: &str = "latency_p99_ns";
/// The factors whose levels are compared.
pub const COMPARED_FACTORS: [&str; 4] = ["plan", "iopolicy", "memory_node", "cpu_node"];
/// Completion latency as fio counts it, in nanoseconds.
pub const LATENCY: &str = "latency_ns";
/// The share of NVMe commands that took a path nearest to their CPU, 0 to 1.
pub const NEAREST_PATH_SHARE: &str = "nearest_path_share";

const PATTERN: &str = "pattern";
const BLOCK_SIZE: &str = "block_size";
const DEPTH: &str = "depth";
const MEMORY_NODE: &str = "memory_node";
const CPU_NODE: &str = "cpu_node";
const IOPOLICY: &str = "iopolicy";
const KEEP: &str = "keep";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure I/O with fio from near and far CPUs: node of CPUs and memory x depth x I/O policy x plan\n\n\
            Runs fio on a device, a file or a null block device, from the CPUs nearest to it and those most distant, with \
            its memory near or far. near and far follow nearfar's model, also for a device that the kernel has no node \
            for. A device is only read unless a pattern that writes is asked for; one that is mounted, has holders or is in \
            use is never written to, one with partitions or a signature only if --destroy names it again.",
    examples: &[
        "--device nvme0n1",
        "--device nvme0n1 --factor iopolicy=numa,round-robin --factor plan=before,after --override-device-node",
        "--null 0 --factor depth=1,32",
        "--file /var/tmp --factor pattern=randread,randwrite",
    ],
    is_hidden: false,
    is_of_machine: false,
    needs_devices: true,
    is_simulated: false,
    samples: 10,
    factors: &[
        Varied::new(
            PATTERN,
            &["randread", "randwrite", "randrw", "read", "write", "rw"],
            &["randread"],
        ),
        Varied::numbers(BLOCK_SIZE, 512..=16 << 20, &[4096]),
        Varied::numbers(DEPTH, 1..=4096, &[32]),
        Varied::new(
            IOPOLICY,
            &[KEEP, "numa", "round-robin", "queue-depth"],
            &[KEEP],
        ),
        planned::FACTOR,
        Varied::node(MEMORY_NODE, &["near"]),
        Varied::node(CPU_NODE, &["near", "far"]),
    ],
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(prepare::make),
};

/// Its own options, as they are stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
struct Parameters {
    /// The block device: nvme0n1, sda, a path, an NVMe controller or subsystem, a PCI address
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// A regular file instead, or a directory: a file is made there and removed
    #[arg(long, value_name = "FILE-OR-DIRECTORY")]
    file: Option<String>,
    /// A null block device instead, with its structures in memory of this node; it is removed afterwards
    #[arg(long, value_name = "NODE", value_parser = node)]
    null: Option<NodeId>,
    /// The device's node [default: by the model]
    #[arg(long, value_name = "NODE", value_parser = node)]
    device_node: Option<NodeId>,
    /// Seconds a sample takes
    #[arg(long, value_name = SECONDS, default_value = "2", value_parser = within(0.01..=3600.0, seconds::parse))]
    seconds: f64,
    /// Seconds of I/O before that
    #[arg(long, value_name = SECONDS, default_value = "0.2", value_parser = within(0.0..=3600.0, seconds::parse))]
    ramp_seconds: f64,
    /// Jobs of fio, each with the depth
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=1024, number::<u32>))]
    jobs: u32,
    /// How fio submits: io_uring, or libaio where the kernel refuses that
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "io_uring", "libaio"])]
    engine: String,
    /// Size of a file that is made in a directory
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size(1 << 20..=1 << 50))]
    size: u64,
    /// Through the page cache, for file systems that have no direct I/O
    #[arg(long)]
    buffered: bool,
    /// Trace which path NVMe commands take, where the disk has several paths
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "off"])]
    trace: String,
    /// Trace which kernel locks are waited for on the CPUs of fio; this costs time where waits are many
    #[arg(long)]
    locks: bool,
    /// Submission queues of the null block device
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=4096, number::<u32>))]
    null_queues: u32,
    /// Microseconds after which the null block device completes an I/O
    #[arg(long, value_name = "N", default_value = "0", value_parser = within(0.0..=1e6, number))]
    null_delay_us: f64,
    /// Write to this device or file although something is on it
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    planned: planned::Parameters,
}

/// What is to be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Asked {
    /// A block device by any of its names.
    Device(String),
    /// A regular file, or a directory for one.
    File(PathBuf),
    /// A null block device on a node.
    Null(NodeId),
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
            Self::Null(node) => write!(f, "a null block device on node {node}"),
        }
    }
}

impl Parameters {
    /// The one target that was named.
    ///
    /// # Errors
    /// When there is none, or another one.
    fn asked(&self) -> Result<Asked, RunError> {
        let device = self.device.clone().map(Asked::Device);
        let file = self.file.clone().map(|path| Asked::File(path.into()));
        let null = self.null.map(Asked::Null);
        let mut given = [device, file, null].into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(asked), None) => Ok(asked),
            (None, _) => Err(RunError::Target(
                "what to measure is missing: --device NAME, --file FILE-OR-DIRECTORY or --null NODE\na machine without a \
                 device to spare has --file with a directory, and --null 0 for root where the kernel has null_blk; both only read \
                 and write what nearfar makes"
                    .into(),
            )),
            _ => Err(RunError::Target(
                "only one of --device, --file and --null can be measured".into(),
            )),
        }
    }
}

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    fio: Answer,
    /// The command that measures the same without nearfar.
    command: String,
    engine: String,
    /// Where the device is.
    device_nodes: Vec<NodeId>,
    cpu_node: NodeId,
    cpus: CpuSet,
    memory_node: NodeId,
    /// `None` for a device with one path, and where it is unknown.
    nearest_path_share: Option<f64>,
    /// `None` where that was not asked for.
    #[serde(flatten)]
    waited: Option<Waited>,
    /// What may be wrong with it, in sentences.
    warnings: Vec<String>,
}

/// What fio waited for, from its start to its end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Waited {
    /// Of its own tasks.
    locks: LockWaits,
    /// Its system time, in seconds.
    system_s: f64,
}

fn columns() -> Vec<Column<Sample>> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    let higher = |name, unit| Metric::real(name, unit, Better::Higher);
    let quantile = |name, of: fn(&Quantiles) -> u64| {
        let of = move |it: &Sample| Some(of(&it.fio.latency_ns.quantiles()?) as f64);
        Column::new(lower(name, "ns"), of)
    };
    let of_jobs = |name, of: fn(&Answer) -> f64| {
        let known = |it: &Answer| it.jobs_s > 0.0;
        let of = move |it: &Sample| known(&it.fio).then(|| of(&it.fio) / it.fio.jobs_s);
        Column::new(lower(name, "1"), of)
    };
    let per_io = |name, unit, of: fn(&Answer) -> f64| {
        let of = move |it: &Sample| (it.fio.ios > 0).then(|| of(&it.fio) / it.fio.ios as f64);
        Column::new(lower(name, unit), of)
    };
    vec![
        Column::new(higher(IOPS, "1/s").primary(), |it: &Sample| {
            Some(it.fio.iops)
        }),
        Column::new(higher("bytes_per_s", "B/s"), |it: &Sample| {
            Some(it.fio.bytes_per_s)
        }),
        Column::new(
            Metric::histogram(LATENCY, "ns", Better::Lower),
            |it: &Sample| Some(it.fio.latency_ns.clone()).filter(|it| it.count() > 0),
        ),
        Column::new(lower("latency_mean_ns", "ns"), |it: &Sample| {
            Some(it.fio.latency_mean_ns)
        }),
        quantile("latency_p50_ns", |it| it.p50),
        quantile(LATENCY_P99, |it| it.p99),
        quantile("latency_p999_ns", |it| it.p999),
        of_jobs("user_share", |it| it.user_s),
        of_jobs("system_share", |it| it.system_s),
        per_io("cpu_ns_per_io", "ns", |it| 1e9 * (it.user_s + it.system_s)),
        per_io("context_switches_per_io", "", |it| {
            it.context_switches as f64
        }),
        Column::new(higher(NEAREST_PATH_SHARE, "1"), |it: &Sample| {
            it.nearest_path_share
        }),
        Column::new(lower("lock_spin_share", "1"), spin_share),
    ]
}

/// The share of fio's system time, warm-up included, that it was busy waiting for spinlocks.
fn spin_share(sample: &Sample) -> Option<f64> {
    let Waited { locks, system_s } = sample.waited.as_ref()?;
    let is_known = locks.no_spin_reason.is_none() && *system_s > 0.0;
    is_known.then(|| locks.spin_s / system_s)
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    pub steps: Vec<Step>,
}

/// What the samples of a run say.
pub fn findings(detail: &Detail, samples: &[StoredSample]) -> Findings {
    let measured = Measured::of(detail, samples, &[IOPS, LATENCY_P99]);
    let steps = measured.names().flat_map(|metric| {
        let steps = by_factor(detail, COMPARED_FACTORS).into_iter();
        steps.map(|step| Step {
            metric: metric.to_owned(),
            ..step
        })
    });
    let mut steps: Vec<Step> = steps.collect();
    measured.answer(&mut steps, DEFAULT_MARGIN);
    Findings { steps }
}

#[cfg(test)]
mod tests {
    use nearfar_runs::{Cell, Factor, Values};
    use nearfar_statistics::compare::Verdict;
    use serde_json::Value;

    use super::*;

    fn cell(cpu: &str, plan: &str) -> Cell {
        Cell::new().with("cpu_node", cpu).with("plan", plan)
    }

    fn sample_of(cell: &Cell, round: u32, iops: f64) -> StoredSample {
        let values = [(IOPS, iops), (LATENCY_P99, 1e9 / iops)];
        let values = values.map(|(name, value)| (name.to_owned(), value.into()));
        StoredSample {
            number: 0,
            round,
            cell: cell.clone(),
            started_at_s: 0.0,
            took_s: 1.0,
            values: Values::from(values),
            failed: None,
            warnings: Vec::new(),
            detail: Value::Null,
        }
    }

    #[test]
    fn cells_that_differ_in_one_factor_are_compared_by_iops_and_p99() {
        let cells = [
            (cell("near", "before"), 1000.0),
            (cell("near", "after"), 1000.0),
            (cell("far", "before"), 800.0),
            (cell("far", "after"), 1000.0),
        ];
        let plan: Vec<Cell> = cells.iter().map(|(cell, _)| cell.clone()).collect();
        let mut random = fastrand::Rng::with_seed(3);
        let mut samples = Vec::new();
        for round in 1..=12 {
            let noisy = |(cell, iops): &(Cell, f64)| {
                sample_of(cell, round, iops * (1.0 + 0.01 * random.f64()))
            };
            samples.extend(cells.iter().map(noisy));
        }
        let detail = Detail {
            parameters: Value::Null,
            factors: vec![
                Factor::new("cpu_node", ["near", "far"]),
                Factor::new("plan", ["before", "after"]),
            ],
            plan,
            metrics: nearfar_experiment::metrics(columns()),
            seed: 1,
            ..Detail::default()
        };
        let found = findings(&detail, &samples);
        // Two metrics x (near to far twice, before to after twice).
        assert_eq!(found.steps.len(), 8);
        let verdict = |metric: &str, factor: &str, b: &Cell| {
            let mut steps = found.steps.iter();
            let step = steps.find(|it| it.metric == metric && it.factor == factor && it.b == *b);
            step.unwrap().compared.get().unwrap().verdict
        };
        let far = cell("far", "before");
        assert_eq!(verdict(IOPS, "cpu_node", &far), Verdict::Worse);
        assert_eq!(verdict(LATENCY_P99, "cpu_node", &far), Verdict::Worse);
        let fixed = cell("far", "after");
        assert_eq!(verdict(IOPS, "plan", &fixed), Verdict::Better);
        assert_eq!(verdict(IOPS, "cpu_node", &fixed), Verdict::Equivalent);
    }
}
