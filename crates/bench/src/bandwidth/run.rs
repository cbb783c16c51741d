//! One run: pairs visited in random order, all kinds of traffic at each visit, samples summed up.

use std::time::{Duration, Instant};

use fastrand::Rng;
use nearfar_experiment::Recording;
use nearfar_experiment::sampler::{self, Attempt, Turn};
use nearfar_machine::{CpuId, Machine};
use nearfar_runs::{Better, Metric};
use serde_json::json;

use super::part::Work;
use super::workers::{self, Counted, Worker, WorkerError};
use super::{BandwidthMatrix, BandwidthPair, Method, Traffic};
use crate::buffer_size::BufferSize;
use crate::conditions::{self, Ticks};
use crate::latency;
use crate::node_buffers::NodeBuffers;
use crate::node_selection::{SkippedPair, Source};
use crate::options::{ProbeError, ProbeOptions};
use crate::sampling::{self, Amount, Declared, Measured, SEED, Samples};
use crate::warning::Warning;

/// Most samples of a pair: threads and ramps make one far more expensive than a sample of latency.
const MAX_SAMPLES: usize = 15;
/// The shortest time to count: some blocks even where a block takes a millisecond.
pub(crate) const MIN_WINDOW: Duration = Duration::from_millis(2);
/// The longest.
const MAX_WINDOW: Duration = Duration::from_millis(50);
/// The longest in simulated time, in which little disturbs a sample, and each of its moments takes the host long.
const MAX_WINDOW_SIMULATED: Duration = Duration::from_millis(5);

/// What the streams need.
pub(crate) struct Streams<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a ProbeOptions,
    pub(crate) sources: &'a [Source],
    pub(crate) size: &'a BufferSize,
    pub(crate) buffers: &'a mut NodeBuffers,
    /// The most threads of a node; `None` for one on each of its CPUs.
    pub(crate) threads: Option<usize>,
    pub(crate) deadline: Instant,
}

impl Streams<'_> {
    /// How often so many items are measured.
    pub(crate) fn amount(&self, items: usize) -> Amount {
        Amount {
            items,
            max_samples: self.max_samples(),
            deadline: self.deadline,
            is_spread: self.options.is_spread,
        }
    }

    fn max_samples(&self) -> usize {
        self.options.max_samples.clamp(1, MAX_SAMPLES)
    }

    /// How long to count, when a first round of `items` visits, each with so many kinds of work, took `round` with the least window.
    pub(crate) fn window(
        &self,
        works: usize,
        round: Duration,
        items: usize,
        left: Option<Duration>,
    ) -> Duration {
        let left = left.unwrap_or_default();
        let window = fitting_window(works, round, items, left, self.max_samples());
        match self.machine.origin.is_simulated() {
            true => window.min(MAX_WINDOW_SIMULATED),
            false => window,
        }
    }

    /// How all of it was measured since it began, with the warnings of the samples and what was skipped of them.
    pub(crate) fn method(
        &self,
        since: &Since,
        window: Duration,
        of_samples: Vec<Warning>,
        skipped: &[SkippedPair],
    ) -> Method {
        let (size, buffers) = (self.size, &self.buffers);
        let mut warnings = [size.warnings.as_slice(), &buffers.warnings].concat();
        warnings.extend(conditions::governor(self.machine));
        let cpus = self.sources.iter().flat_map(|source| source.all.clone());
        warnings.extend(Ticks::now().warnings_since(&since.ticks, cpus));
        warnings.extend(of_samples);
        Method {
            skipped: [buffers.skipped.as_slice(), skipped].concat(),
            buffer_bytes: size.buffer_bytes,
            page_kind: buffers.page_kind,
            window_s: window.as_secs_f64(),
            elapsed_s: since.start.elapsed().as_secs_f64(),
            warnings,
            emulation: self.machine.origin.emulation.clone(),
        }
    }

    /// What decides what a sample is, for the store.
    pub(crate) fn parameters(&self) -> serde_json::Value {
        let (size, buffers) = (self.size.buffer_bytes, &self.buffers);
        let mut parameters = sampling::buffer_parameters(size, buffers.page_kind, self.options);
        parameters["threads"] = json!(self.threads);
        parameters
    }
}

/// When a measurement began, and what the machine had done until then.
pub(crate) struct Since {
    start: Instant,
    ticks: Ticks,
}

impl Since {
    pub(crate) fn now() -> Self {
        Self {
            start: Instant::now(),
            ticks: Ticks::now(),
        }
    }
}

/// A pair to measure.
struct Pair<'a> {
    source: &'a Source,
    buffer: usize,
    /// How far each thread is in its part of the buffer, in words.
    positions: Vec<usize>,
}

/// Bytes a second of each kind of traffic, in the order of [`Traffic::ALL`].
type Rates = [f64; Traffic::ALL.len()];

/// Measures on threads of its own.
pub(crate) fn measure_on(streams: Streams<'_>) -> Result<Measured<BandwidthMatrix>, ProbeError> {
    let since = Since::now();
    let mut run = Run::new(streams);
    let (amount, options) = (run.streams.amount(run.pairs.len()), run.streams.options);
    let samples = sampling::sample(&amount, &options.cancel, &mut run)?;
    let pairs = run.summaries(&samples);
    let rates = pairs.iter().map(|pair| pair.bytes_per_s.samples.as_slice());
    let warnings = samples.warnings(rates);
    let method = (run.streams).method(&since, run.window, warnings, &run.skipped);
    let recording = run.recording(&samples, &method.warnings);
    Ok(Measured {
        answer: BandwidthMatrix { pairs, method },
        recordings: vec![recording],
    })
}

/// The metric of a kind of traffic in stored runs.
fn metric(traffic: Traffic) -> String {
    format!("{traffic}_bytes_per_s")
}

/// The source of samples: streams of the threads of one node through one buffer, of all kinds of traffic.
struct Run<'a> {
    streams: Streams<'a>,
    pairs: Vec<Pair<'a>>,
    /// How long bytes are counted.
    window: Duration,
    /// Decides the order of the kinds of traffic.
    random: Rng,
    skipped: Vec<SkippedPair>,
}

impl<'a> Run<'a> {
    fn new(streams: Streams<'a>) -> Self {
        let buffers = streams.buffers.buffers.len();
        let of_source = |source: &'a Source| {
            (0..buffers).map(move |buffer| Pair {
                source,
                buffer,
                positions: Vec::new(),
            })
        };
        Self {
            pairs: streams.sources.iter().flat_map(of_source).collect(),
            streams,
            window: MIN_WINDOW,
            random: Rng::with_seed(SEED),
            skipped: Vec::new(),
        }
    }

    fn visit(&mut self, item: usize) -> Result<Rates, WorkerError> {
        let mut order = [0, 1, 2];
        self.random.shuffle(&mut order);
        let works = order.map(|index| Work::Move(Traffic::ALL[index]));
        let counted = Counted {
            window: self.window,
            cancel: &self.streams.options.cancel,
        };
        let pair = &mut self.pairs[item];
        let cpus = cpus_of(pair.source, self.streams.threads);
        pair.positions.resize(cpus.len(), 0);
        let words = self.streams.buffers.buffers[pair.buffer].memory.words_mut();
        let parts = workers::parts(words, cpus.len())?;
        let all = cpus.iter().zip(parts).zip(&mut pair.positions);
        let all = all.map(|((&cpu, words), at)| Worker {
            cpu,
            words,
            at,
            works: &works,
        });
        let mut rates = Rates::default();
        for in_order in workers::work(all.collect(), counted)? {
            for (index, rate) in order.into_iter().zip(in_order) {
                rates[index] += rate;
            }
        }
        Ok(rates)
    }

    fn recording(&self, samples: &Samples<Rates>, warnings: &[Warning]) -> Recording {
        let Streams {
            buffers, threads, ..
        } = &self.streams;
        let mut metrics =
            Traffic::ALL.map(|kind| Metric::real(metric(kind), "B/s", Better::Higher));
        metrics[0].primary = true;
        let pairs = sampling::count(self.pairs.len(), "pair of nodes", "pairs of nodes");
        let cell =
            |pair: &Pair<'_>| latency::cell(pair.source.node, buffers.buffers[pair.buffer].node);
        let declared = Declared {
            experiment: "bandwidth",
            title: format!("memory bandwidth, {pairs}"),
            parameters: self.streams.parameters(),
            metrics: metrics.into(),
            cells: self.pairs.iter().map(cell).collect(),
        };
        samples.recording(declared, warnings, |item, rates| {
            let values = Traffic::ALL.into_iter().zip(rates);
            let values = values.map(|(kind, &rate)| (metric(kind), rate.into()));
            let threads = cpus_of(self.pairs[item].source, *threads).len();
            let detail = json!({"threads": threads, "window_s": self.window.as_secs_f64()});
            (values.collect(), detail)
        })
    }

    fn summaries(&self, samples: &Samples<Rates>) -> Vec<BandwidthPair> {
        let Streams {
            machine,
            buffers,
            threads,
            ..
        } = &self.streams;
        let rates = [0, 1, 2].map(|index| samples.figures(|rates| rates[index]));
        let mut pairs = Vec::new();
        for (item, pair) in self.pairs.iter().enumerate() {
            let (cpu_node, memory_node) = (pair.source.node, buffers.buffers[pair.buffer].node);
            for (traffic, rates) in Traffic::ALL.into_iter().zip(&rates) {
                let Some(bytes_per_s) = rates[item].clone() else {
                    continue;
                };
                pairs.push(BandwidthPair {
                    traffic,
                    cpu_node,
                    memory_node,
                    cpus: cpus_of(pair.source, *threads).iter().copied().collect(),
                    bytes_per_s,
                    distance: machine.distance(cpu_node, memory_node),
                });
            }
        }
        pairs
    }
}

impl sampler::Source for Run<'_> {
    type Value = Rates;
    type Error = ProbeError;

    fn take(&mut self, turn: Turn) -> Result<Attempt<Rates>, ProbeError> {
        let item = turn.slot.item;
        match self.visit(item) {
            Ok(rates) => Ok(Attempt::Value(rates)),
            Err(error) => Ok(error.attempt(vec![item], |reason| {
                let pair = &self.pairs[item];
                self.skipped.push(SkippedPair {
                    cpu_node: Some(pair.source.node),
                    memory_node: Some(self.streams.buffers.buffers[pair.buffer].node),
                    reason,
                });
            })),
        }
    }

    fn warmed_up(&mut self, took: Duration, items: usize, left: Option<Duration>) {
        self.window = self.streams.window(Traffic::ALL.len(), took, items, left);
    }
}

/// The CPUs of a node that take part.
pub(crate) fn cpus_of(source: &Source, threads: Option<usize>) -> &[CpuId] {
    &source.all[..threads.unwrap_or(usize::MAX).clamp(1, source.all.len())]
}

/// How long to count, when a first round of `items` visits with the least window took `round` and `wanted` rounds have
/// to fit into what is `left`. What a visit takes besides counting stays as it was.
fn fitting_window(
    works: usize,
    round: Duration,
    items: usize,
    left: Duration,
    wanted: usize,
) -> Duration {
    let a_visit = |total: Duration, rounds: usize| {
        total.as_secs_f64() / (rounds.max(1) * items.max(1)) as f64
    };
    // Threads run for the counted time and a quarter of it more.
    let counting = 1.25 * works as f64;
    let besides = (a_visit(round, 1) - counting * MIN_WINDOW.as_secs_f64()).max(0.0);
    let window = (a_visit(left, wanted) * 0.95 - besides) / counting;
    Duration::from_secs_f64(window.clamp(MIN_WINDOW.as_secs_f64(), MAX_WINDOW.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_fill_the_time_and_stay_within_bounds() {
        let second = Duration::from_secs(1);
        let milliseconds = |window: Duration| (window.as_secs_f64() * 1e3).round();
        let fitting = |round, items, left, wanted| fitting_window(3, round, items, left, wanted);
        // 16 pairs, 10 rounds, 8.5 ms a visit of which 1 ms is not counting: 3 s leave 17.8 ms, 4.5 ms each.
        let window = fitting(Duration::from_micros(136_000), 16, second * 3, 10);
        assert_eq!(milliseconds(window), 4.0);
        assert_eq!(fitting(second, 16, second, 10), MIN_WINDOW);
        assert_eq!(fitting(second / 100, 1, second * 100, 10), MAX_WINDOW);
        assert_eq!(fitting(Duration::ZERO, 0, Duration::ZERO, 0), MIN_WINDOW);
    }
}
