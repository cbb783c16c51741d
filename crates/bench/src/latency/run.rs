//! One run of the probe: buffers prepared, pairs measured in rounds, samples summed up.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, Machine, NodeId};

use super::chase::{self, Random};
use super::conditions::{self, Ticks};
use super::mapping::Mapping;
use super::room::{self, Room};
use super::subjects::{self, Subjects};
use super::{LatencyMatrix, LatencyOptions, LatencyPair, PageKind, ProbeError, SkippedPair, Summary, Warning, pinning};

/// Loads before the clock starts, after the thread moved to another CPU.
const WARM_UP_STEPS: u64 = 256;
/// Loads in the sample that tells how long a load takes here.
const TRIAL_STEPS: u64 = 2_000;
/// Fewest loads in a sample: enough for the clock's own time not to show.
const LEAST_STEPS: u64 = 1_000;
/// Most loads in a sample: a few milliseconds, so that on a busy machine most samples end before the scheduler comes.
const MOST_STEPS: u64 = 20_000;
/// Seed of the order of lines and of pairs; any constant would do.
const SEED: u64 = 0x6e65_6172_6661_7221;

/// A buffer on a node, and where the chase through it stands.
struct Buffer {
    node: NodeId,
    memory: Mapping,
    at: u64,
}

/// A pair to measure: who, and which buffer.
#[derive(Clone, Copy)]
struct Pair {
    cpu_node: NodeId,
    cpu: CpuId,
    buffer: usize,
}

struct Run<'a> {
    machine: &'a Machine,
    options: &'a LatencyOptions,
    deadline: Instant,
    skipped: Vec<SkippedPair>,
    warnings: Vec<Warning>,
}

/// Measures on the calling thread, whose affinity it leaves changed.
pub(super) fn measure(machine: &Machine, options: &LatencyOptions) -> Result<LatencyMatrix, ProbeError> {
    let start = Instant::now();
    let allowed = pinning::allowed().map_err(ProbeError::Thread)?;
    let Subjects { cpus, memory, skipped } = subjects::pick(machine, &allowed);
    if cpus.is_empty() || memory.is_empty() {
        let because = match memory.is_empty() {
            true => "no online node has memory".to_owned(),
            false => format!("this process may run on CPUs {allowed}, none of which is on a known online node"),
        };
        return Err(ProbeError::NothingToMeasure { because });
    }
    let Room { buffer_bytes, line_bytes, last_level_cache_bytes, warnings } =
        room::decide(machine, &memory, options, room::spare_memory());
    let mut run = Run { machine, options, deadline: start + options.budget, skipped, warnings };
    let mut buffers = run.prepare(&memory, &cpus, buffer_bytes, line_bytes)?;
    let page_kind = run.page_kind(&buffers);
    let (steps, samples) = run.sample(&cpus, &mut buffers)?;
    let pairs = run.sum_up(&samples, &buffers);
    run.warnings.extend(conditions::governor(machine));
    Ok(LatencyMatrix {
        pairs,
        skipped: run.skipped,
        buffer_bytes,
        line_bytes,
        last_level_cache_bytes,
        page_kind,
        steps,
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings: run.warnings,
        emulated: machine.origin.emulated.clone(),
    })
}

/// The samples of each pair: CPU node, CPU, index of the buffer.
type Samples = BTreeMap<(NodeId, usize), (CpuId, Vec<f64>)>;

impl Run<'_> {
    fn check_cancelled(&self) -> Result<(), ProbeError> {
        match self.options.cancel.load(Ordering::Relaxed) {
            true => Err(ProbeError::Cancelled),
            false => Ok(()),
        }
    }

    /// A buffer on each node, linked; nodes whose memory cannot be had are skipped.
    fn prepare(
        &mut self,
        nodes: &[NodeId],
        cpus: &[(NodeId, CpuId)],
        bytes: u64,
        line_bytes: u64,
    ) -> Result<Vec<Buffer>, ProbeError> {
        // The line count fits: a buffer has at most 16 GiB and a line at least 64 bytes.
        let cycle = chase::cycle((bytes / line_bytes) as u32, &mut Random::new(SEED));
        let mut buffers = Vec::new();
        for &node in nodes {
            self.check_cancelled()?;
            let own_cpu = cpus.iter().find(|(of, _)| *of == node).map(|&(_, cpu)| cpu);
            let mut memory = Mapping::new(bytes as usize).map_err(|source| ProbeError::Memory { bytes, source })?;
            if nodes.len() > 1
                && let Err(error) = memory.bind(node)
            {
                if own_cpu.is_none_or(|cpu| pinning::pin(cpu).is_err()) {
                    let because = format!("its memory cannot be bound ({error}) nor touched first by a CPU of its own");
                    self.skipped.push(SkippedPair { cpu_node: None, memory_node: Some(node), because });
                    continue;
                }
                self.warnings.push(Warning::BindRefused { node, error: error.to_string() });
            }
            chase::link(memory.words_mut(), &cycle, (line_bytes / 8) as usize);
            if nodes.len() > 1 && !self.is_in_place(node, &memory) {
                continue;
            }
            buffers.push(Buffer { node, memory, at: 0 });
        }
        match buffers.is_empty() {
            true => {
                Err(ProbeError::NothingToMeasure { because: "no node's memory could be bound or reached".to_owned() })
            }
            false => Ok(buffers),
        }
    }

    /// Whether a buffer is where it should be, as far as that can be told; says so when it is not.
    fn is_in_place(&mut self, node: NodeId, memory: &Mapping) -> bool {
        match memory.share_elsewhere(node) {
            Ok(share) if share > 0.5 => {
                let because = format!("{:.0} % of the pages meant for it are on another node", share * 100.0);
                self.skipped.push(SkippedPair { cpu_node: None, memory_node: Some(node), because });
                return false;
            }
            Ok(0.0) => {}
            Ok(share) => self.warnings.push(Warning::PagesElsewhere { node, percent: share * 100.0 }),
            Err(error) => self.warnings.push(Warning::Unverified { node, error: error.to_string() }),
        }
        true
    }

    fn page_kind(&mut self, buffers: &[Buffer]) -> PageKind {
        let mut kinds = buffers.iter().map(|buffer| buffer.memory.page_kind());
        let first = kinds.next().unwrap_or(PageKind::Unknown);
        let kind = if kinds.all(|kind| kind == first) { first } else { PageKind::Mixed };
        if kind == PageKind::Base {
            self.warnings.push(Warning::BasePages);
        }
        kind
    }

    /// Takes rounds of samples until every pair has enough or the time is over.
    fn sample(&mut self, cpus: &[(NodeId, CpuId)], buffers: &mut [Buffer]) -> Result<(u64, Samples), ProbeError> {
        let of_cpu = |&(cpu_node, cpu)| (0..buffers.len()).map(move |buffer| Pair { cpu_node, cpu, buffer });
        let mut pairs: Vec<Pair> = cpus.iter().flat_map(of_cpu).collect();
        let wanted = self.options.most_samples.max(1);
        let mut random = Random::new(SEED);
        let mut samples = Samples::new();
        let (ticks, mut switches) = (Ticks::now(), 0);
        let mut steps = TRIAL_STEPS;
        // Round 0 warms up, tells how long a load takes, and is dropped.
        for round in 0..=wanted {
            random.shuffle(&mut pairs);
            let began = Instant::now();
            let mut unusable = Vec::new();
            for pair in &pairs {
                self.check_cancelled()?;
                if round > 1 && Instant::now() >= self.deadline {
                    break;
                }
                if let Err(error) = pinning::pin(pair.cpu) {
                    unusable.push((pair.cpu_node, format!("cannot run on CPU {}: {error}", pair.cpu)));
                    continue;
                }
                let (nanoseconds, switched) = buffers[pair.buffer].sample(steps);
                switches += switched;
                if round > 0 {
                    let entry = samples.entry((pair.cpu_node, pair.buffer)).or_insert_with(|| (pair.cpu, Vec::new()));
                    entry.1.push(nanoseconds);
                }
            }
            self.drop_unusable(&mut pairs, unusable);
            if round == 0 {
                let left = self.deadline.saturating_duration_since(Instant::now());
                steps = fitting_steps(began.elapsed(), left, wanted);
            } else if Instant::now() >= self.deadline {
                break;
            }
        }
        self.judge(&samples, wanted, switches, &ticks, cpus);
        Ok((steps, samples))
    }

    fn drop_unusable(&mut self, pairs: &mut Vec<Pair>, mut unusable: Vec<(NodeId, String)>) {
        unusable.sort();
        unusable.dedup_by_key(|(node, _)| *node);
        for (node, because) in unusable {
            pairs.retain(|pair| pair.cpu_node != node);
            self.skipped.push(SkippedPair { cpu_node: Some(node), memory_node: None, because });
        }
    }

    /// Says what went on besides.
    fn judge(&mut self, samples: &Samples, wanted: usize, switches: u64, ticks: &Ticks, cpus: &[(NodeId, CpuId)]) {
        let taken = samples.values().map(|(_, samples)| samples.len() as u64).sum::<u64>();
        // A switch in a hundred samples is the machine breathing; the median does not feel it.
        if switches > taken / 100 + 1 {
            self.warnings.push(Warning::Interrupted { switches, samples: taken });
        }
        self.warnings.extend(Ticks::now().stolen_since(ticks, cpus.iter().map(|&(_, cpu)| cpu)));
        let fewest = samples.values().map(|(_, samples)| samples.len()).min().unwrap_or(0);
        if fewest < wanted.min(5) {
            self.warnings.push(Warning::CutShort { samples: fewest, wanted });
        }
    }

    fn sum_up(&self, samples: &Samples, buffers: &[Buffer]) -> Vec<LatencyPair> {
        let pairs = samples.iter().filter_map(|(&(cpu_node, buffer), (cpu, samples))| {
            let (memory_node, summary) = (buffers[buffer].node, Summary::of(samples)?);
            Some(LatencyPair {
                cpu_node,
                memory_node,
                cpu: *cpu,
                samples_ns: samples.clone(),
                median_ns: summary.median,
                low_ns: summary.low,
                high_ns: summary.high,
                distance: self.machine.distance(cpu_node, memory_node),
            })
        });
        pairs.collect()
    }
}

impl Buffer {
    /// One sample: nanoseconds a load, and how often the scheduler interfered. The chase goes on where it stood, so
    /// that it comes back to a line only after it has been to all others.
    fn sample(&mut self, steps: u64) -> (f64, u64) {
        let words = self.memory.words();
        let (warm, _) = chase::follow(words, self.at, WARM_UP_STEPS);
        let switches = conditions::switches();
        let (at, nanoseconds) = chase::follow(words, warm, steps);
        self.at = at;
        (nanoseconds, conditions::switches().saturating_sub(switches))
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
    fn steps_fill_the_time_and_stay_within_bounds() {
        let second = Duration::from_secs(1);
        assert_eq!(fitting_steps(second / 100, second * 2, 20), 18_000);
        assert_eq!(fitting_steps(second, second / 10, 20), LEAST_STEPS);
        assert_eq!(fitting_steps(Duration::ZERO, second * 1000, 1), MOST_STEPS);
        assert_eq!(fitting_steps(second, Duration::ZERO, 20), LEAST_STEPS);
    }
}
