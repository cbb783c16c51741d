//! One run of the probe: buffers linked, pairs measured in rounds, samples summed up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, Machine, NodeId};

use super::chase::{self, Took};
use super::{LatencyMatrix, LatencyPair};
use crate::conditions::{self, Ticks};
use crate::options::{ProbeError, ProbeOptions};
use crate::placed::Placed;
use crate::random::{Random, SEED};
use crate::room::Room;
use crate::subjects::{SkippedPair, Source};
use crate::warning::{Warning, outliers};
use nearfar_proc::affinity;
use nearfar_statistics::Summary;

/// Loads before the clock starts, after the thread moved to another CPU.
const WARM_UP_STEPS: u64 = 256;
/// Loads in the sample that tells how long a load takes here.
const TRIAL_STEPS: u64 = 2_000;
/// Fewest loads in a sample: enough for the clock's own time not to show.
const LEAST_STEPS: u64 = 1_000;
/// Most loads in a sample: a few milliseconds, so that on a busy machine most samples end before the scheduler comes.
const MOST_STEPS: u64 = 20_000;
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
const ASSUMED_CACHE: u64 = 8 << 20;

/// What the chases need.
pub(crate) struct Chases<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a ProbeOptions,
    pub(crate) sources: &'a [Source],
    pub(crate) room: &'a Room,
    pub(crate) placed: &'a mut Placed,
    pub(crate) deadline: Instant,
}

/// A pair to measure: who, and which buffer.
#[derive(Clone, Copy)]
struct Pair {
    cpu_node: NodeId,
    cpu: CpuId,
    buffer: usize,
}

/// The chase through one buffer: it goes on where it stood, so that it comes back to a line only after it has been to
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
                block: Some(chase::BLOCK_BYTES / line_bytes),
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

/// The samples of each pair: CPU node, index of the buffer.
type Samples = BTreeMap<(NodeId, usize), (CpuId, Vec<f64>)>;

struct Run<'a> {
    machine: &'a Machine,
    options: &'a ProbeOptions,
    deadline: Instant,
    skipped: Vec<SkippedPair>,
    warnings: Vec<Warning>,
}

/// Measures on the calling thread, whose affinity it leaves changed.
pub(crate) fn measure_on(chases: Chases<'_>) -> Result<LatencyMatrix, ProbeError> {
    let Chases {
        machine,
        options,
        sources,
        room,
        placed,
        deadline,
    } = chases;
    let start = Instant::now();
    let shape = Shape::of(machine, room.line_bytes);
    link(placed, room, shape, options)?;
    let stride = (room.one_cpu_bytes / 8) as usize;
    let nodes: Vec<NodeId> = placed.buffers.iter().map(|buffer| buffer.node).collect();
    let chase = |words| Chase {
        words,
        at: 0,
        shape,
        loads: 0,
    };
    let mut buffers: Vec<Chase<'_>> = placed
        .buffers
        .iter()
        .map(|buffer| chase(&buffer.memory.words()[..stride]))
        .collect();
    let warnings = room
        .warnings
        .iter()
        .chain(&placed.warnings)
        .cloned()
        .collect();
    let mut run = Run {
        machine,
        options,
        deadline,
        skipped: placed.skipped.clone(),
        warnings,
    };
    let cache = room.last_level_cache_bytes.unwrap_or(ASSUMED_CACHE);
    run.settle(sources, &mut buffers, cache / room.line_bytes)?;
    let (steps, samples) = run.sample(sources, &mut buffers, shape)?;
    let pairs = run.sum_up(&samples, &nodes);
    run.warnings.extend(conditions::governor(machine));
    run.warnings.extend(outliers(
        pairs
            .iter()
            .map(|pair| (pair.outliers, pair.samples_ns.len())),
    ));
    Ok(LatencyMatrix {
        pairs,
        skipped: run.skipped,
        buffer_bytes: room.one_cpu_bytes,
        line_bytes: room.line_bytes,
        last_level_cache_bytes: room.last_level_cache_bytes,
        page_kind: placed.page_kind,
        steps,
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings: run.warnings,
        emulation: machine.origin.emulation.clone(),
    })
}

/// Writes the chain into each buffer.
fn link(
    placed: &mut Placed,
    room: &Room,
    shape: Shape,
    options: &ProbeOptions,
) -> Result<(), ProbeError> {
    // The line count fits: a buffer has at most 16 GiB and a line at least 64 bytes.
    let lines = (room.one_cpu_bytes / room.line_bytes) as u32;
    let (mut random, cancel) = (Random::new(SEED), &options.cancel);
    let cycle = match shape.block {
        Some(block) => chase::cycle_in_blocks(lines, block as u32, &mut random, cancel),
        None => chase::cycle(lines, &mut random, cancel),
    };
    let cycle = cycle.ok_or(ProbeError::Cancelled)?;
    for buffer in &mut placed.buffers {
        chase::link(
            buffer.memory.words_mut(),
            &cycle,
            (room.line_bytes / 8) as usize,
            &options.cancel,
        );
        options.check_cancelled()?;
    }
    Ok(())
}

impl Run<'_> {
    /// Linking leaves the end of the last buffer in some node's cache, which would make that pair look near. From each
    /// node as many lines are loaded as its cache has, and half as many again.
    fn settle(
        &self,
        sources: &[Source],
        buffers: &mut [Chase<'_>],
        cache_lines: u64,
    ) -> Result<(), ProbeError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let share = left.mul_f64(SETTLING_SHARE) / sources.len().max(1) as u32;
        for source in sources {
            if affinity::pin(source.cpu).is_err() {
                continue;
            }
            let end = Instant::now() + share;
            let (mut loaded, mut turn) = (0, 0);
            while loaded < cache_lines + cache_lines / 2 && Instant::now() < end {
                self.options.check_cancelled()?;
                let chase = &mut buffers[turn];
                chase.follow(SETTLING_STEPS);
                (loaded, turn) = (loaded + SETTLING_STEPS, (turn + 1) % buffers.len());
            }
        }
        Ok(())
    }

    /// Takes rounds of samples until every pair has enough or the time is over.
    fn sample(
        &mut self,
        sources: &[Source],
        buffers: &mut [Chase<'_>],
        shape: Shape,
    ) -> Result<(u64, Samples), ProbeError> {
        let of_source = |source: &Source| {
            let (cpu_node, cpu) = (source.node, source.cpu);
            (0..buffers.len()).map(move |buffer| Pair {
                cpu_node,
                cpu,
                buffer,
            })
        };
        let mut pairs: Vec<Pair> = sources.iter().flat_map(of_source).collect();
        let wanted = self.options.most_samples.max(1);
        let mut random = Random::new(SEED);
        let mut samples = Samples::new();
        let (ticks, mut switches) = (Ticks::now(), 0);
        let mut steps = shape.steps.unwrap_or(TRIAL_STEPS);
        // Round 0 warms up, tells how long a load takes, and is dropped.
        for round in 0..=wanted {
            random.shuffle(&mut pairs);
            let began = Instant::now();
            let mut unusable = Vec::new();
            for pair in &pairs {
                self.options.check_cancelled()?;
                if round > 1 && Instant::now() >= self.deadline {
                    break;
                }
                if let Err(error) = affinity::pin(pair.cpu) {
                    unusable.push((
                        pair.cpu_node,
                        format!("cannot run on CPU {}: {error}", pair.cpu),
                    ));
                    continue;
                }
                let (nanoseconds, switched) = buffers[pair.buffer].sample(steps);
                switches += switched;
                if round > 0 {
                    let entry = samples
                        .entry((pair.cpu_node, pair.buffer))
                        .or_insert_with(|| (pair.cpu, Vec::new()));
                    entry.1.push(nanoseconds);
                }
            }
            self.drop_unusable(&mut pairs, unusable);
            if round == 0 {
                let left = self.deadline.saturating_duration_since(Instant::now());
                steps = shape
                    .steps
                    .unwrap_or_else(|| fitting_steps(began.elapsed(), left, wanted));
            } else if Instant::now() >= self.deadline {
                break;
            }
        }
        self.judge(&samples, wanted, switches, &ticks, sources);
        Ok((steps, samples))
    }

    fn drop_unusable(&mut self, pairs: &mut Vec<Pair>, mut unusable: Vec<(NodeId, String)>) {
        unusable.sort();
        unusable.dedup_by_key(|(node, _)| *node);
        for (node, because) in unusable {
            pairs.retain(|pair| pair.cpu_node != node);
            self.skipped.push(SkippedPair {
                cpu_node: Some(node),
                memory_node: None,
                because,
            });
        }
    }

    /// Says what went on besides.
    fn judge(
        &mut self,
        samples: &Samples,
        wanted: usize,
        switches: u64,
        ticks: &Ticks,
        sources: &[Source],
    ) {
        let taken = samples
            .values()
            .map(|(_, samples)| samples.len() as u64)
            .sum::<u64>();
        // A switch in a hundred samples is the machine breathing; the median does not feel it.
        if switches > taken / 100 + 1 {
            self.warnings.push(Warning::Interrupted {
                switches,
                samples: taken,
            });
        }
        self.warnings
            .extend(Ticks::now().doubts_since(ticks, sources.iter().map(|source| source.cpu)));
        let fewest = samples
            .values()
            .map(|(_, samples)| samples.len())
            .min()
            .unwrap_or(0);
        if fewest < wanted.min(5) {
            self.warnings.push(Warning::CutShort {
                samples: fewest,
                wanted,
            });
        }
    }

    fn sum_up(&self, samples: &Samples, nodes: &[NodeId]) -> Vec<LatencyPair> {
        let pairs = samples
            .iter()
            .filter_map(|(&(cpu_node, buffer), (cpu, samples))| {
                let (memory_node, summary) = (nodes[buffer], Summary::of(samples)?);
                Some(LatencyPair {
                    cpu_node,
                    memory_node,
                    cpu: *cpu,
                    samples_ns: samples.clone(),
                    median_ns: summary.median,
                    low_ns: summary.low,
                    high_ns: summary.high,
                    confidence_ns: summary.confidence,
                    outliers: summary.outliers,
                    distance: self.machine.distance(cpu_node, memory_node),
                })
            });
        pairs.collect()
    }
}

impl Chase<'_> {
    /// Goes on for so many loads.
    fn follow(&mut self, steps: u64) -> Took {
        let (at, took) = chase::follow(self.words, self.at, steps);
        (self.at, self.loads) = (at, self.loads + steps);
        took
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

/// Which clock to believe: the finer one on the wall, unless the scheduler ran somebody else meanwhile.
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
    (steps as u64).clamp(LEAST_STEPS, MOST_STEPS)
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
        assert_eq!(fitting_steps(second, second / 10, 20), LEAST_STEPS);
        assert_eq!(fitting_steps(Duration::ZERO, second * 1000, 1), MOST_STEPS);
        assert_eq!(fitting_steps(second, Duration::ZERO, 20), LEAST_STEPS);
    }
}
