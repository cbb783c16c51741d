//! How long one load takes, from the CPUs of each node to the memory of each node.
//!
//! ```text
//!  node 0: CPU 7 ──┬── chase ──► buffer bound to node 0      a sample: one chase of `steps` loads, each load's
//!                  └── chase ──► buffer bound to node 2      address being what the load before it returned
//!  node 1: CPU 15 ─┬── chase ──► buffer bound to node 0
//!                  └── chase ──► buffer bound to node 2      a round: every pair once, in random order
//! ```
//!
//! Loads depend on one another, so neither the prefetcher nor out-of-order execution can hide the time. The order of
//! the lines is one random cycle over a buffer several times as large as the last-level cache. Pairs are interleaved,
//! so that what disturbs the machine for a while disturbs all of them. The first round is dropped.

use std::time::{Duration, Instant};

use fastrand::Rng;
use nearfar_experiment::sampler::{self, Attempt, Turn};
use nearfar_experiment::{Recording, RunPlan};
use nearfar_loops::chase;
use nearfar_machine::{CpuId, Distance, Emulation, Machine, NodeId};
use nearfar_proc::affinity;
use nearfar_runs::{Better, Cell, Metric};
use nearfar_statistics::{Interval, Summary};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::buffer_size::{self, BufferSize, Use};
use crate::conditions::{self, Ticks};
use crate::node_buffers::{self, Buffer, HUGE_PAGE, NodeBuffers};
use crate::node_selection::{self, Source};
use crate::options::{ProbeOptions, check_live, on_own_thread};
use crate::sampling::{self, Amount, SEED, Samples};

pub use crate::node_buffers::PageKind;
pub use crate::node_selection::SkippedPair;
pub use crate::options::{ProbeError, ProbeOptions as LatencyOptions};
pub use crate::sampling::Measured;
pub use crate::warning::Warning;

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyMatrix {
    /// One entry a pair of nodes, by CPU node, then memory node.
    pub pairs: Vec<LatencyPair>,
    /// Pairs of nodes that were not measured.
    pub skipped: Vec<SkippedPair>,
    /// Size of the buffer on each node, in bytes.
    pub buffer_bytes: u64,
    /// Distance between the words that are loaded, in bytes: a cache line.
    pub line_bytes: u64,
    /// The largest cache that the buffer has to exceed, in bytes; `None` where the machine's caches are not known.
    pub last_level_cache_bytes: Option<u64>,
    pub page_kind: PageKind,
    /// Loads in one sample.
    pub steps: u64,
    /// How long the probe took, in seconds.
    pub elapsed_s: f64,
    /// What was true of the measurement and makes it worth less.
    pub warnings: Vec<Warning>,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl LatencyMatrix {
    /// The measurement of one pair, if it was made.
    pub fn pair(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<&LatencyPair> {
        self.pairs
            .iter()
            .find(|pair| pair.cpu_node == cpu_node && pair.memory_node == memory_node)
    }
}

/// One pair of nodes: whose CPU loaded, whose memory was loaded from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyPair {
    /// The node of the CPU.
    pub cpu_node: NodeId,
    pub memory_node: NodeId,
    /// The CPU that did the loads.
    pub cpu: CpuId,
    /// The mean time of one load in each sample, in nanoseconds, in the order they were taken.
    pub samples_ns: Vec<f64>,
    /// Their median.
    pub median_ns: f64,
    /// Their lower quartile.
    pub low_ns: f64,
    /// Their upper quartile.
    pub high_ns: f64,
    /// The 95 % confidence interval of the median; `None` where there are too few samples for one.
    #[serde(default)]
    pub confidence_ns: Option<Interval>,
    /// How many samples lie far from the others.
    #[serde(default)]
    pub outliers: usize,
    /// The distance between the two nodes, where the machine gives one.
    pub distance: Option<Distance>,
}

/// The cell of a pair of nodes in stored runs.
pub(crate) fn cell(cpu_node: NodeId, memory_node: NodeId) -> Cell {
    Cell::new()
        .with("cpu_node", cpu_node.0)
        .with("memory_node", memory_node.0)
}

/// Nanoseconds of a load that a last-level cache answers, from the first node that the options name to its memory; `None` where the
/// size of the caches is unknown. Half of a cache holds all lines, and other CPUs' too.
///
/// # Errors
/// As those of [`measure`].
pub(crate) fn of_cache_hits(
    machine: &Machine,
    options: &LatencyOptions,
) -> Result<Option<f64>, ProbeError> {
    let Some(half) = buffer_size::last_level_cache(machine).map(|bytes| bytes / 2) else {
        return Ok(None);
    };
    let size = |nodes: &[NodeId], spare| {
        let usual = buffer_size::size_of(machine, nodes, options, &Use::default(), spare);
        Ok(BufferSize {
            buffer_bytes: half.next_multiple_of(HUGE_PAGE as u64),
            one_cpu_bytes: half,
            warnings: Vec::new(),
            ..usual
        })
    };
    let measured = measure_in(machine, options, size)?.answer;
    Ok(measured.pairs.first().map(|pair| pair.median_ns))
}

/// Measures every pair of online nodes of the live system, as far as CPUs and memory allow.
///
/// # Errors
/// When the machine is not the live system, nothing can be measured, memory lacks, or the probe was cancelled before each
/// pair had a sample. What concerns single pairs only is in [`LatencyMatrix::skipped`] and [`LatencyMatrix::warnings`] instead.
pub fn measure(
    machine: &Machine,
    options: &LatencyOptions,
) -> Result<Measured<LatencyMatrix>, ProbeError> {
    measure_in(machine, options, |nodes, spare| {
        buffer_size::decide(machine, nodes, options, &Use::default(), spare)
    })
}

/// The same in buffers of the size that is decided for these nodes, by the memory that this process may still take.
fn measure_in(
    machine: &Machine,
    options: &LatencyOptions,
    size: impl FnOnce(&[NodeId], Option<u64>) -> Result<BufferSize, ProbeError> + Send,
) -> Result<Measured<LatencyMatrix>, ProbeError> {
    check_live(machine)?;
    let start = Instant::now();
    on_own_thread(|| {
        let allowed = affinity::get(0).map_err(ProbeError::Thread)?;
        let selection = node_selection::select(machine, &allowed, options)?;
        let size = size(&selection.memory, buffer_size::spare_memory())?;
        let mut buffers = node_buffers::allocate(
            machine,
            &selection.memory,
            &selection.sources,
            size.buffer_bytes,
            options,
        )?;
        let mut measured = measure_on(Chases {
            machine,
            options,
            sources: &selection.sources,
            size: &size,
            buffers: &mut buffers,
            deadline: start + options.budget,
        })?;
        let matrix = &mut measured.answer;
        matrix.skipped.splice(0..0, selection.skipped);
        matrix.elapsed_s = start.elapsed().as_secs_f64();
        Ok(measured)
    })
}

/// The metric of stored runs: nanoseconds a load.
const METRIC: &str = "latency_ns";
/// Loads before the clock starts, after the thread moved to another CPU.
const WARM_UP_STEPS: u64 = 256;
/// Loads in the sample that tells how long a load takes here.
const TRIAL_STEPS: u64 = 2_000;
/// Fewest loads in a sample: enough for the clock's own time not to show.
const MIN_STEPS: u64 = 1_000;
/// Most loads in a sample: a few milliseconds, so that on a busy machine most samples end before the scheduler comes.
const MAX_STEPS: u64 = 20_000;
/// On an emulated machine chains are as short as the clock allows: the host takes its CPUs away for milliseconds at a
/// time, and most samples should not notice.
const EMULATED_STEPS: u64 = 100;
/// Loads before the clock starts on an emulated machine: enough to meet nearly all pages of a block.
const EMULATED_WARM_UP_STEPS: u64 = 256;
/// Loads between two looks at the clock while caches are emptied of what linking left there.
const SETTLING_STEPS: u64 = 4_096;
/// The share of the time left that emptying caches may take.
const SETTLING_SHARE: f64 = 0.1;
/// A last-level cache where its size is not known.
const DEFAULT_CACHE_BYTES: u64 = 8 << 20;

/// Bytes of a block on an emulated machine. QEMU finds addresses in a table per vCPU, of 64 entries of 4 KiB at least
/// (`CPU_TLB_DYN_MIN_BITS` of its accel/tcg), that grows and shrinks with what ran there: 32 pages always fit.
const BLOCK_BYTES: u64 = 128 << 10;

/// How long something took, by two clocks.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// On the wall.
    wall: Duration,
    /// Of the thread's own time on a CPU, which stands still while the scheduler runs another task. Where the kernel does
    /// not trust the processor's counter, as in guests under emulation, it may advance in ticks only.
    own: Duration,
}

/// What the chases need.
pub(crate) struct Chases<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a ProbeOptions,
    pub(crate) sources: &'a [Source],
    pub(crate) size: &'a BufferSize,
    pub(crate) buffers: &'a mut NodeBuffers,
    pub(crate) deadline: Instant,
}

/// A pair to measure: which CPU, and which buffer.
#[derive(Clone, Copy)]
struct ChasePair {
    cpu_node: NodeId,
    cpu: CpuId,
    buffer: usize,
}

/// The chase through one buffer: it continues where it stopped, so that it returns to a line only after it has been to
/// all others.
struct Chase<'a> {
    words: &'a [u64],
    at: u64,
    shape: Shape,
    /// Loads so far.
    loads: u64,
}

/// How chains run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    /// Loads before the clock starts.
    warm_up: u64,
    /// Lines of a block that is visited as a whole before the next one; `None` where the whole buffer is one.
    block: Option<u64>,
    /// The number of loads in a sample, where it does not follow from the machine's speed.
    steps: Option<u64>,
}

impl Shape {
    fn of(machine: &Machine, line_bytes: u64) -> Self {
        match machine.origin.emulation {
            Some(_) => Self {
                warm_up: EMULATED_WARM_UP_STEPS,
                block: Some(BLOCK_BYTES / line_bytes),
                steps: Some(EMULATED_STEPS),
            },
            None => Self {
                warm_up: WARM_UP_STEPS,
                block: None,
                steps: None,
            },
        }
    }
}

/// Measures on the calling thread, whose affinity it leaves changed.
pub(crate) fn measure_on(chases: Chases<'_>) -> Result<Measured<LatencyMatrix>, ProbeError> {
    let Chases {
        machine,
        options,
        sources,
        size,
        buffers,
        deadline,
    } = chases;
    let start = Instant::now();
    let shape = Shape::of(machine, size.line_bytes);
    link(buffers, size, shape, options)?;
    let mut run = ChaseRun::new(machine, options, sources, shape, buffers, size);
    let cache_bytes = size.last_level_cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
    run.settle(sources, cache_bytes / size.line_bytes, deadline)?;
    let amount = Amount {
        items: run.pairs.len(),
        max_samples: options.max_samples,
        deadline,
        is_spread: options.is_spread,
    };
    let ticks = Ticks::now();
    let samples = sampling::sample(&amount, &options.cancel, &mut run)?;
    let pairs = run.summaries(&samples, buffers);
    let mut warnings = [size.warnings.as_slice(), &buffers.warnings].concat();
    warnings.extend(run.interrupted(samples.outcome.samples.len() as u64));
    warnings.extend(Ticks::now().warnings_since(&ticks, sources.iter().map(|source| source.cpu)));
    warnings.extend(conditions::governor(machine));
    warnings.extend(samples.warnings(pairs.iter().map(|pair| pair.samples_ns.as_slice())));
    let recording = run.recording(&samples, size, buffers, &warnings);
    let answer = LatencyMatrix {
        pairs,
        skipped: [buffers.skipped.as_slice(), &run.skipped].concat(),
        buffer_bytes: size.one_cpu_bytes,
        line_bytes: size.line_bytes,
        last_level_cache_bytes: size.last_level_cache_bytes,
        page_kind: buffers.page_kind,
        steps: run.steps,
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings,
        emulation: machine.origin.emulation.clone(),
    };
    Ok(Measured {
        answer,
        recordings: vec![recording],
    })
}

/// Writes the chain into each buffer.
fn link(
    buffers: &mut NodeBuffers,
    size: &BufferSize,
    shape: Shape,
    options: &ProbeOptions,
) -> Result<(), ProbeError> {
    // The line count fits: a buffer has at most 16 GiB and a line at least 64 bytes.
    let lines = (size.one_cpu_bytes / size.line_bytes) as u32;
    let (mut random, cancel) = (Rng::with_seed(SEED), &options.cancel);
    let cycle = match shape.block {
        Some(block) => chase::cycle_in_blocks(lines, block as u32, &mut random, cancel),
        None => chase::cycle(lines, &mut random, cancel),
    };
    let cycle = cycle.ok_or(ProbeError::Cancelled)?;
    for buffer in &mut buffers.buffers {
        chase::link(
            buffer.memory.words_mut(),
            &cycle,
            (size.line_bytes / 8) as usize,
            &options.cancel,
        );
        options.check_cancelled()?;
    }
    Ok(())
}

/// The source of samples: chases through the buffers, from one CPU of each node.
struct ChaseRun<'a> {
    machine: &'a Machine,
    options: &'a ProbeOptions,
    pairs: Vec<ChasePair>,
    chases: Vec<Chase<'a>>,
    /// Loads of a sample.
    steps: u64,
    /// Whether `steps` follows from how long the warm-up takes.
    fits_steps: bool,
    /// Involuntary context switches in timed parts.
    switches: u64,
    skipped: Vec<SkippedPair>,
}

impl<'a> ChaseRun<'a> {
    fn new(
        machine: &'a Machine,
        options: &'a ProbeOptions,
        sources: &[Source],
        shape: Shape,
        buffers: &'a NodeBuffers,
        size: &BufferSize,
    ) -> Self {
        let words = (size.one_cpu_bytes / 8) as usize;
        let chase = |buffer: &'a Buffer| Chase {
            words: &buffer.memory.words()[..words],
            at: 0,
            shape,
            loads: 0,
        };
        let chases: Vec<Chase<'a>> = buffers.buffers.iter().map(chase).collect();
        let of_source = |source: &Source| {
            let (cpu_node, cpu) = (source.node, source.cpu);
            (0..chases.len()).map(move |buffer| ChasePair {
                cpu_node,
                cpu,
                buffer,
            })
        };
        Self {
            machine,
            options,
            pairs: sources.iter().flat_map(of_source).collect(),
            chases,
            steps: shape.steps.unwrap_or(TRIAL_STEPS),
            fits_steps: shape.steps.is_none(),
            switches: 0,
            skipped: Vec::new(),
        }
    }

    /// Linking leaves the end of the last buffer in some node's cache, which would make that pair look near. From each
    /// node as many lines are loaded as its cache has, and half as many again.
    fn settle(
        &mut self,
        sources: &[Source],
        cache_lines: u64,
        deadline: Instant,
    ) -> Result<(), ProbeError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left.mul_f64(SETTLING_SHARE) / sources.len().max(1) as u32;
        for source in sources {
            if affinity::pin(source.cpu).is_err() {
                continue;
            }
            let end = Instant::now() + share;
            let (mut loaded, mut turn) = (0, 0);
            while loaded < cache_lines + cache_lines / 2 && Instant::now() < end {
                self.options.check_cancelled()?;
                self.chases[turn].follow(SETTLING_STEPS);
                (loaded, turn) = (loaded + SETTLING_STEPS, (turn + 1) % self.chases.len());
            }
        }
        Ok(())
    }

    /// No pair of this node is measured any more.
    fn exclude(&mut self, node: NodeId, reason: String) -> Attempt<f64> {
        let skipped = SkippedPair::new(Some(node), None, reason);
        self.skipped.push(skipped);
        let of_node = |&item: &usize| self.pairs[item].cpu_node == node;
        Attempt::Exclude((0..self.pairs.len()).filter(of_node).collect())
    }

    /// A warning when the scheduler interfered with more than one sample in a hundred, which the median would show.
    fn interrupted(&self, samples: u64) -> Option<Warning> {
        let switches = self.switches;
        (switches > samples / 100 + 1).then_some(Warning::Interrupted { switches, samples })
    }

    fn recording(
        &self,
        samples: &Samples<f64>,
        size: &BufferSize,
        buffers: &NodeBuffers,
        warnings: &[Warning],
    ) -> Recording {
        let pairs = sampling::count(self.pairs.len(), "pair of nodes", "pairs of nodes");
        let mut parameters =
            sampling::buffer_parameters(size.one_cpu_bytes, buffers.page_kind, self.options);
        parameters["line_bytes"] = size.line_bytes.into();
        let cell = |pair: &ChasePair| cell(pair.cpu_node, buffers.buffers[pair.buffer].node);
        let plan = RunPlan::of_cells(parameters, self.pairs.iter().map(cell).collect());
        let metrics = vec![Metric::real(METRIC, "ns", Better::Lower).primary()];
        let recording =
            Recording::new("latency", format!("memory latency, {pairs}"), plan, metrics);
        samples.recorded(recording, warnings, |item, &nanoseconds| {
            let detail = json!({"cpu": self.pairs[item].cpu, "loads": self.steps});
            ([(METRIC.to_owned(), nanoseconds.into())].into(), detail)
        })
    }

    fn summaries(&self, samples: &Samples<f64>, buffers: &NodeBuffers) -> Vec<LatencyPair> {
        let pairs = self.pairs.iter().zip(samples.by_item());
        let summary = |(pair, samples): (&ChasePair, Vec<(Option<u32>, &f64)>)| {
            let samples: Vec<_> = samples
                .into_iter()
                .map(|(block, &ns)| (block, ns))
                .collect();
            let summary = Summary::of_blocks(&samples)?;
            let memory_node = buffers.buffers[pair.buffer].node;
            Some(LatencyPair {
                cpu_node: pair.cpu_node,
                memory_node,
                cpu: pair.cpu,
                samples_ns: samples.iter().map(|it| it.1).collect(),
                median_ns: summary.median,
                low_ns: summary.low,
                high_ns: summary.high,
                confidence_ns: summary.confidence,
                outliers: summary.outliers,
                distance: self.machine.distance(pair.cpu_node, memory_node),
            })
        };
        pairs.filter_map(summary).collect()
    }
}

impl sampler::Source for ChaseRun<'_> {
    /// Nanoseconds a load.
    type Value = f64;
    type Error = ProbeError;

    fn take(&mut self, turn: Turn) -> Result<Attempt<f64>, ProbeError> {
        let pair = self.pairs[turn.slot.item];
        if let Err(error) = affinity::pin(pair.cpu) {
            let reason = format!("cannot run on CPU {}: {error}", pair.cpu);
            return Ok(self.exclude(pair.cpu_node, reason));
        }
        let (nanoseconds, switches) = self.chases[pair.buffer].sample(self.steps);
        self.switches += switches;
        Ok(Attempt::Value(nanoseconds))
    }

    fn warmed_up(&mut self, took: Duration, _: usize, left: Option<Duration>) {
        if let (true, Some(left)) = (self.fits_steps, left) {
            self.steps = fitting_steps(took, left, self.options.max_samples.max(1));
        }
    }
}

impl Chase<'_> {
    /// Goes on for so many loads.
    fn follow(&mut self, steps: u64) -> Took {
        // The thread's own clock is a system call, which short chains would feel: it encloses the other one.
        let (own_start, start) = (conditions::thread_time(), Instant::now());
        self.at = chase::follow(self.words, self.at, steps);
        let wall = start.elapsed();
        let own = conditions::thread_time().saturating_sub(own_start);
        self.loads += steps;
        Took { wall, own }
    }

    /// One sample: nanoseconds a load, and how often the scheduler interfered.
    fn sample(&mut self, steps: u64) -> (f64, u64) {
        // A timed chain stays in the block whose pages were met in the warm-up.
        let left = self
            .shape
            .block
            .map_or(u64::MAX, |block| block - self.loads % block);
        if left < self.shape.warm_up + steps {
            self.follow(left);
        }
        self.follow(self.shape.warm_up);
        let before = conditions::switches();
        let took = self.follow(steps);
        let switches = conditions::switches().saturating_sub(before);
        (
            clock_of(took, switches).as_nanos() as f64 / steps.max(1) as f64,
            switches,
        )
    }
}

/// Which clock to believe: the finer one on the wall, unless the scheduler ran another task meanwhile.
fn clock_of(took: Took, switches: u64) -> Duration {
    if switches > 0 && !took.own.is_zero() {
        took.own.min(took.wall)
    } else {
        took.wall
    }
}

/// How many loads a sample may have, when a round of trial samples took `round` and `wanted` rounds have to fit into
/// what is `left`. The last tenth is kept for the rest of the work.
fn fitting_steps(round: Duration, left: Duration, wanted: usize) -> u64 {
    let rounds = wanted as f64 * round.as_secs_f64().max(1e-9);
    let steps = TRIAL_STEPS as f64 * left.as_secs_f64() * 0.9 / rounds;
    (steps as u64).clamp(MIN_STEPS, MAX_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_counts_unless_the_scheduler_came() {
        let milliseconds = Duration::from_millis;
        let took = Took {
            wall: milliseconds(9),
            own: milliseconds(4),
        };
        assert_eq!(clock_of(took, 0), milliseconds(9));
        assert_eq!(clock_of(took, 1), milliseconds(4));
        let coarse = Took {
            wall: milliseconds(1),
            own: Duration::ZERO,
        };
        assert_eq!(
            clock_of(coarse, 1),
            milliseconds(1),
            "a clock that stands still tells nothing"
        );
        let coarse = Took {
            wall: milliseconds(1),
            own: milliseconds(4),
        };
        assert_eq!(
            clock_of(coarse, 1),
            milliseconds(1),
            "nothing takes longer than it takes"
        );
    }

    #[test]
    fn steps_fill_the_time_and_stay_within_bounds() {
        let second = Duration::from_secs(1);
        assert_eq!(fitting_steps(second / 100, second * 2, 20), 18_000);
        assert_eq!(fitting_steps(second, second / 10, 20), MIN_STEPS);
        assert_eq!(fitting_steps(Duration::ZERO, second * 1000, 1), MAX_STEPS);
        assert_eq!(fitting_steps(second, Duration::ZERO, 20), MIN_STEPS);
    }
}
