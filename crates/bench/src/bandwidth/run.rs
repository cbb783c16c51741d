//! One run: pairs visited in random order, all kinds of traffic at each visit, samples summed up.

use std::time::{Duration, Instant};

use fastrand::Rng;
use nearfar_experiment::Recording;
use nearfar_experiment::sampler::{self, Attempt, Turn};
use nearfar_machine::{CpuId, Machine};
use nearfar_runs::{Better, Metric};
use nearfar_statistics::Figures;
use serde_json::json;

use super::part::Work;
use super::workers::{self, Counted, Worker, WorkerError};
use super::{BandwidthMatrix, BandwidthPair, Traffic};
use crate::buffer_size::BufferSize;
use crate::conditions::{self, Ticks};
use crate::latency;
use crate::node_buffers::NodeBuffers;
use crate::node_selection::{SkippedPair, Source};
use crate::options::{ProbeError, ProbeOptions};
use crate::sampling::{self, Amount, Declared, Measured, SEED, Samples};
use crate::warning::Warning;

/// Most samples of a pair.
const MAX_SAMPLES: usize = 15;
/// The shortest time to count: some blocks even where a block takes a millisecond.
const MIN_WINDOW: Duration = Duration::from_millis(2);
/// The longest.
const MAX_WINDOW: Duration = Duration::from_millis(50);

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
    let start = Instant::now();
    let ticks = Ticks::now();
    let mut run = Run::new(streams);
    let (machine, options) = (run.streams.machine, run.streams.options);
    let amount = Amount {
        items: run.pairs.len(),
        max_samples: FittingWindow::max_samples(options),
        deadline: run.streams.deadline,
        is_spread: options.is_spread,
    };
    let samples = sampling::sample(&amount, &options.cancel, &mut run)?;
    let pairs = run.summaries(&samples);
    let Streams {
        sources,
        size,
        buffers,
        ..
    } = &run.streams;
    let mut warnings = [size.warnings.as_slice(), &buffers.warnings].concat();
    warnings.extend(conditions::governor(machine));
    let cpus = sources.iter().flat_map(|source| source.all.clone());
    warnings.extend(Ticks::now().warnings_since(&ticks, cpus));
    let rates = pairs.iter().map(|pair| pair.bytes_per_s.samples.as_slice());
    warnings.extend(samples.warnings(rates));
    let recording = run.recording(&samples, &warnings);
    let answer = BandwidthMatrix {
        pairs,
        skipped: [buffers.skipped.as_slice(), &run.skipped].concat(),
        buffer_bytes: size.buffer_bytes,
        page_kind: buffers.page_kind,
        window_s: run.window.as_secs_f64(),
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings,
        emulation: machine.origin.emulation.clone(),
    };
    Ok(Measured {
        answer,
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
            options,
            size,
            buffers,
            threads,
            ..
        } = &self.streams;
        let mut parameters =
            sampling::buffer_parameters(size.buffer_bytes, buffers.page_kind, options);
        parameters["threads"] = json!(threads);
        let mut metrics =
            Traffic::ALL.map(|kind| Metric::real(metric(kind), "B/s", Better::Higher));
        metrics[0].primary = true;
        let pairs = sampling::count(self.pairs.len(), "pair of nodes", "pairs of nodes");
        let cell =
            |pair: &Pair<'_>| latency::cell(pair.source.node, buffers.buffers[pair.buffer].node);
        let declared = Declared {
            experiment: "bandwidth",
            title: format!("memory bandwidth, {pairs}"),
            parameters,
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
        let mut pairs = Vec::new();
        for (pair, samples) in self.pairs.iter().zip(samples.by_item()) {
            let (cpu_node, memory_node) = (pair.source.node, buffers.buffers[pair.buffer].node);
            for (index, traffic) in Traffic::ALL.into_iter().enumerate() {
                let rates = samples.iter().map(|(block, rates)| (*block, rates[index]));
                let rates: Vec<_> = rates.collect();
                let Some(bytes_per_s) = Figures::of_blocks(&rates) else {
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
            Err(error) => {
                let pair = &self.pairs[item];
                self.skipped.push(SkippedPair {
                    cpu_node: Some(pair.source.node),
                    memory_node: Some(self.streams.buffers.buffers[pair.buffer].node),
                    reason: error.to_string(),
                });
                Ok(Attempt::Exclude(vec![item]))
            }
        }
    }

    fn warmed_up(&mut self, took: Duration, items: usize, left: Option<Duration>) {
        let fitting = FittingWindow {
            works: Traffic::ALL.len(),
            round: took,
            items,
        };
        self.window = fitting.window(left.unwrap_or_default(), self.streams.options);
    }
}

/// The CPUs of a node that take part.
fn cpus_of(source: &Source, threads: Option<usize>) -> &[CpuId] {
    &source.all[..threads.unwrap_or(usize::MAX).clamp(1, source.all.len())]
}

/// What follows from a first round with the least window for how long to count.
pub(crate) struct FittingWindow {
    /// How many kinds of work a visit has.
    pub(crate) works: usize,
    /// How long the round took.
    pub(crate) round: Duration,
    /// Visits of a round.
    pub(crate) items: usize,
}

impl FittingWindow {
    /// The window of the first round.
    pub(crate) const FIRST: Duration = MIN_WINDOW;

    /// Samples of a pair: threads and ramps make one far more expensive than a sample of latency.
    pub(crate) fn max_samples(options: &ProbeOptions) -> usize {
        options.max_samples.clamp(1, MAX_SAMPLES)
    }

    /// How long to count where all rounds have to fit into what is `left`. What a visit takes besides counting stays as it was.
    pub(crate) fn window(&self, left: Duration, options: &ProbeOptions) -> Duration {
        self.fitting(left, Self::max_samples(options))
    }

    fn fitting(&self, left: Duration, rounds: usize) -> Duration {
        let a_visit = |total: Duration, rounds: usize| {
            total.as_secs_f64() / (rounds.max(1) * self.items.max(1)) as f64
        };
        // Threads run for the counted time and a quarter of it more.
        let counting = 1.25 * self.works as f64;
        let besides = (a_visit(self.round, 1) - counting * MIN_WINDOW.as_secs_f64()).max(0.0);
        let window = (a_visit(left, rounds) * 0.95 - besides) / counting;
        let (least, most) = (MIN_WINDOW.as_secs_f64(), MAX_WINDOW.as_secs_f64());
        Duration::from_secs_f64(window.clamp(least, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_fill_the_time_and_stay_within_bounds() {
        let second = Duration::from_secs(1);
        let fitting = |round, items, left, rounds| {
            let fitting = FittingWindow {
                works: 3,
                round,
                items,
            };
            fitting.fitting(left, rounds)
        };
        // 16 pairs, 10 rounds, 8.5 ms a visit of which 1 ms is not counting: 3 s leave 17.8 ms, 4.5 ms each.
        let window = fitting(Duration::from_micros(136_000), 16, second * 3, 10);
        assert_eq!((window.as_secs_f64() * 1e3).round(), 4.0);
        assert_eq!(fitting(second, 16, second, 10), MIN_WINDOW);
        assert_eq!(fitting(second / 100, 1, second * 100, 10), MAX_WINDOW);
        assert_eq!(fitting(Duration::ZERO, 0, Duration::ZERO, 0), MIN_WINDOW);
    }
}
