//! One run: pairs visited in random order, all kinds of traffic at each visit, samples summed up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, Machine, NodeId};

use super::crew::{self, Task};
use super::{BandwidthMatrix, BandwidthPair, Traffic};
use crate::conditions::{self, Ticks};
use crate::options::{ProbeError, ProbeOptions};
use crate::placed::Placed;
use crate::random::{Random, SEED};
use crate::room::Room;
use crate::subjects::{SkippedPair, Source};
use crate::warning::{Warning, outliers};
use nearfar_statistics::Figures;

/// More samples than this only cost time: threads and ramps make a sample far dearer than one of latency.
const MOST_SAMPLES: usize = 15;
/// The shortest time to count: some blocks even where a block takes a millisecond.
const LEAST_WINDOW: Duration = Duration::from_millis(2);
/// The longest.
const MOST_WINDOW: Duration = Duration::from_millis(50);

/// What the streams need.
pub(crate) struct Streams<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a ProbeOptions,
    pub(crate) sources: &'a [Source],
    pub(crate) room: &'a Room,
    pub(crate) placed: &'a mut Placed,
    /// The most threads of a node; `None` for one on each of its CPUs.
    pub(crate) threads: Option<usize>,
    pub(crate) deadline: Instant,
}

/// A pair to measure: which source, which buffer.
type Pair = (usize, usize);

/// What one pair has so far.
#[derive(Default)]
struct Taken {
    samples: BTreeMap<Traffic, Vec<f64>>,
    /// How far each thread is in its part.
    stood: Vec<usize>,
}

/// Measures on threads of its own.
pub(crate) fn measure_on(streams: Streams<'_>) -> Result<BandwidthMatrix, ProbeError> {
    let start = Instant::now();
    let ticks = Ticks::now();
    let mut run = Run {
        taken: BTreeMap::new(),
        skipped: streams.placed.skipped.clone(),
        streams,
    };
    let window = run.sample()?;
    let pairs = run.sum_up();
    let Run {
        skipped, streams, ..
    } = run;
    let mut warnings: Vec<Warning> = streams
        .room
        .warnings
        .iter()
        .chain(&streams.placed.warnings)
        .cloned()
        .collect();
    warnings.extend(conditions::governor(streams.machine));
    warnings.extend(Ticks::now().doubts_since(
        &ticks,
        streams.sources.iter().flat_map(|source| source.all.clone()),
    ));
    warnings.extend(outliers(pairs.iter().map(|pair| {
        (pair.bytes_per_s.outliers, pair.bytes_per_s.samples.len())
    })));
    let wanted = most_samples(streams.options);
    let fewest = pairs
        .iter()
        .map(|pair| pair.bytes_per_s.samples.len())
        .min()
        .unwrap_or(0);
    if fewest < wanted.min(5) {
        warnings.push(Warning::CutShort {
            samples: fewest,
            wanted,
        });
    }
    Ok(BandwidthMatrix {
        pairs,
        skipped,
        buffer_bytes: streams.room.buffer_bytes,
        page_kind: streams.placed.page_kind,
        window_s: window.as_secs_f64(),
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings,
        emulation: streams.machine.origin.emulation.clone(),
    })
}

fn most_samples(options: &ProbeOptions) -> usize {
    options.most_samples.clamp(1, MOST_SAMPLES)
}

struct Run<'a> {
    streams: Streams<'a>,
    taken: BTreeMap<Pair, Taken>,
    skipped: Vec<SkippedPair>,
}

impl Run<'_> {
    /// Takes rounds until every pair has enough samples or the time is over; gives how long was counted.
    fn sample(&mut self) -> Result<Duration, ProbeError> {
        let (sources, buffers) = (
            self.streams.sources.len(),
            self.streams.placed.buffers.len(),
        );
        let mut pairs: Vec<Pair> = (0..sources)
            .flat_map(|s| (0..buffers).map(move |b| (s, b)))
            .collect();
        let wanted = most_samples(self.streams.options);
        let mut random = Random::new(SEED);
        let mut window = LEAST_WINDOW;
        // Round 0 warms up, tells how long a visit takes, and is dropped.
        for round in 0..=wanted {
            random.shuffle(&mut pairs);
            let began = Instant::now();
            for pair in pairs.clone() {
                self.streams.options.check_cancelled()?;
                if round > 1 && Instant::now() >= self.streams.deadline {
                    return Ok(window);
                }
                let mut traffics = Traffic::ALL;
                random.shuffle(&mut traffics);
                match self.visit(pair, &traffics, window) {
                    Ok(rates) if round > 0 => {
                        self.taken.entry(pair).or_default().keep(&traffics, rates)
                    }
                    Ok(_) => {}
                    Err(because) => {
                        pairs.retain(|&other| other != pair);
                        self.skip(pair, because);
                    }
                }
            }
            if round == 0 {
                let left = self
                    .streams
                    .deadline
                    .saturating_duration_since(Instant::now());
                window = fitting_window(began.elapsed(), pairs.len(), left, wanted);
            }
        }
        Ok(window)
    }

    fn visit(
        &mut self,
        pair: Pair,
        traffics: &[Traffic],
        window: Duration,
    ) -> Result<Vec<f64>, String> {
        let cpus = cpus_of(&self.streams.sources[pair.0], self.streams.threads);
        let task = Task {
            cpus,
            traffics,
            window,
            cancel: &self.streams.options.cancel,
        };
        let stood = &mut self.taken.entry(pair).or_default().stood;
        crew::work(
            &task,
            self.streams.placed.buffers[pair.1].memory.words_mut(),
            stood,
        )
    }

    fn skip(&mut self, (source, buffer): Pair, because: String) {
        let cpu_node: Option<NodeId> = Some(self.streams.sources[source].node);
        let memory_node = Some(self.streams.placed.buffers[buffer].node);
        self.skipped.push(SkippedPair {
            cpu_node,
            memory_node,
            because,
        });
    }

    fn sum_up(&mut self) -> Vec<BandwidthPair> {
        let mut pairs = Vec::new();
        for (&(source, buffer), taken) in &mut self.taken {
            let (source, memory_node) = (
                &self.streams.sources[source],
                self.streams.placed.buffers[buffer].node,
            );
            for (traffic, samples) in std::mem::take(&mut taken.samples) {
                let Some(bytes_per_s) = Figures::of(samples) else {
                    continue;
                };
                pairs.push(BandwidthPair {
                    traffic,
                    cpu_node: source.node,
                    memory_node,
                    cpus: cpus_of(source, self.streams.threads)
                        .iter()
                        .copied()
                        .collect(),
                    bytes_per_s,
                    distance: self.streams.machine.distance(source.node, memory_node),
                });
            }
        }
        pairs
    }
}

impl Taken {
    fn keep(&mut self, traffics: &[Traffic], rates: Vec<f64>) {
        for (&traffic, rate) in traffics.iter().zip(rates) {
            self.samples.entry(traffic).or_default().push(rate);
        }
    }
}

/// The CPUs of a node that take part.
fn cpus_of(source: &Source, threads: Option<usize>) -> &[CpuId] {
    &source.all[..threads.unwrap_or(usize::MAX).clamp(1, source.all.len())]
}

/// How long to count, when a first round of `pairs` visits with the least window took `round` and `wanted` rounds have
/// to fit into what is `left`. What a visit takes besides counting stays as it was.
fn fitting_window(round: Duration, pairs: usize, left: Duration, wanted: usize) -> Duration {
    let traffics = Traffic::ALL.len() as f64;
    let a_visit = |total: Duration, rounds: usize| {
        total.as_secs_f64() / (rounds.max(1) * pairs.max(1)) as f64
    };
    // Threads run for the counted time and a quarter of it more.
    let counting = 1.25 * traffics;
    let besides = (a_visit(round, 1) - counting * LEAST_WINDOW.as_secs_f64()).max(0.0);
    let window = (a_visit(left, wanted) * 0.95 - besides) / counting;
    Duration::from_secs_f64(window.clamp(LEAST_WINDOW.as_secs_f64(), MOST_WINDOW.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_fill_the_time_and_stay_within_bounds() {
        let second = Duration::from_secs(1);
        let milliseconds = |window: Duration| (window.as_secs_f64() * 1e3).round();
        // 16 pairs, 10 rounds, 8.5 ms a visit of which 1 ms is not counting: 3 s leave 17.8 ms, 4.5 ms each.
        assert_eq!(
            milliseconds(fitting_window(
                Duration::from_micros(136_000),
                16,
                second * 3,
                10
            )),
            4.0
        );
        assert_eq!(fitting_window(second, 16, second, 10), LEAST_WINDOW);
        assert_eq!(
            fitting_window(second / 100, 1, second * 100, 10),
            MOST_WINDOW
        );
        assert_eq!(
            fitting_window(Duration::ZERO, 0, Duration::ZERO, 0),
            LEAST_WINDOW
        );
    }
}
