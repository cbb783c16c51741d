//! One run: nodes and loads visited in random order, samples summed up.

use std::time::Duration;

use fastrand::Rng;
use nearfar_experiment::Recording;
use nearfar_experiment::sampler::{self, Attempt, Turn};
use nearfar_loops::chase;
use nearfar_machine::{Acceleration, CpuId, Emulation, Machine};
use nearfar_runs::{Better, Cell, Metric, Values};
use serde_json::json;

use super::{LoadedCurve, LoadedLatency, LoadedPoint};
use crate::bandwidth::workers::{self, Counted, Worker, WorkerError};
use crate::bandwidth::{MIN_WINDOW, Since, Streams, Work};
use crate::buffer_size::BufferSize;
use crate::mapping::Mapping;
use crate::node_selection::{SkippedPair, Source};
use crate::options::{ProbeError, ProbeOptions};
use crate::sampling::{self, Declared, Measured, SEED, Samples};
use crate::warning::Warning;

/// Steps after each line, by the load; `None` for no reader at all. A step takes a nanosecond or two.
const LOADS: [Option<u32>; 13] = [
    None,
    Some(2048),
    Some(1024),
    Some(512),
    Some(256),
    Some(128),
    Some(64),
    Some(32),
    Some(16),
    Some(8),
    Some(4),
    Some(1),
    Some(0),
];
/// Bytes of a load.
const LOAD_BYTES: f64 = 8.0;
const LATENCY: &str = "latency_ns";
const BANDWIDTH: &str = "read_bytes_per_s";

/// What a [`Sample`] has, as runs in the store declare it.
pub(crate) fn metrics() -> Vec<Metric> {
    vec![
        Metric::real(LATENCY, "ns", Better::Lower).primary(),
        Metric::real(BANDWIDTH, "B/s", Better::Higher),
    ]
}

/// The memory of one node, and who uses it.
struct Node<'a> {
    source: &'a Source,
    readers: Vec<CpuId>,
    buffer: usize,
    /// How far the chain's CPU and each reader are in their words.
    positions: Vec<usize>,
}

/// Nanoseconds of a load, and bytes a second of all readers.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) latency_ns: f64,
    pub(crate) bytes_per_s: f64,
}

impl Sample {
    /// Of the rate of a chase, and those of all readers, in bytes a second.
    pub(crate) fn of_rates(chase: f64, readers: &[f64]) -> Self {
        Self {
            latency_ns: 1e9 * LOAD_BYTES / chase.max(1.0),
            // A sum of nothing is -0.
            bytes_per_s: readers.iter().fold(0.0, |sum, rate| sum + rate),
        }
    }

    /// Its values by the names of [`metrics`], and how it was taken.
    pub(crate) fn stored(&self, readers: usize, window: Duration) -> (Values, serde_json::Value) {
        let values = [
            (LATENCY.to_owned(), self.latency_ns.into()),
            (BANDWIDTH.to_owned(), self.bytes_per_s.into()),
        ];
        let detail = json!({"readers": readers, "window_s": window.as_secs_f64()});
        (values.into(), detail)
    }
}

/// Measures on threads of its own.
pub(crate) fn measure_on(streams: Streams<'_>) -> Result<Measured<LoadedLatency>, ProbeError> {
    let since = Since::now();
    let mut run = Run::new(streams)?;
    let amount = run.streams.amount(run.nodes.len() * LOADS.len());
    let options = run.streams.options;
    let samples = sampling::sample(&amount, &options.cancel, &mut run)?;
    let curves = run.curves(&samples);
    let points = curves.iter().flat_map(|curve| &curve.points);
    let warnings = samples.warnings(points.map(|it| it.latency_ns.samples.as_slice()));
    let method = (run.streams).method(&since, run.window, warnings, &run.skipped);
    let recording = run.recording(&samples, &method.warnings);
    Ok(Measured {
        answer: LoadedLatency { curves, method },
        recordings: vec![recording],
    })
}

/// The source of samples.
struct Run<'a> {
    streams: Streams<'a>,
    nodes: Vec<Node<'a>>,
    /// How long loads and bytes are counted.
    window: Duration,
    skipped: Vec<SkippedPair>,
}

impl<'a> Run<'a> {
    fn new(streams: Streams<'a>) -> Result<Self, ProbeError> {
        check_can_be_busy(streams.machine)?;
        let (mut nodes, mut skipped) = (Vec::new(), Vec::new());
        for source in streams.sources {
            let others = source.all.iter().copied().filter(|&cpu| cpu != source.cpu);
            let most = streams.threads.unwrap_or(usize::MAX);
            let readers: Vec<CpuId> = others.take(most).collect();
            let mut buffers = streams.buffers.buffers.iter();
            let buffer = buffers.position(|it| it.node == source.node);
            let (Some(buffer), false) = (buffer, readers.is_empty()) else {
                let reason = match buffer {
                    Some(_) => "latency under load needs a second CPU on the node",
                    None => "latency under load needs memory of the CPUs' own node",
                };
                skipped.push(SkippedPair {
                    cpu_node: Some(source.node),
                    memory_node: Some(source.node),
                    reason: reason.to_owned(),
                });
                continue;
            };
            let memory = &mut streams.buffers.buffers[buffer].memory;
            link(memory, streams.size, streams.options)?;
            nodes.push(Node {
                source,
                positions: vec![0; 1 + readers.len()],
                readers,
                buffer,
            });
        }
        if nodes.is_empty() {
            let first = skipped.first().map(|it: &SkippedPair| it.reason.clone());
            let reason = first.unwrap_or_else(|| "no node has CPUs".to_owned());
            return Err(ProbeError::NothingToMeasure { reason });
        }
        Ok(Self {
            streams,
            nodes,
            window: MIN_WINDOW,
            skipped,
        })
    }

    fn visit(&mut self, item: usize) -> Result<Sample, WorkerError> {
        let (node, load) = (
            &mut self.nodes[item / LOADS.len()],
            LOADS[item % LOADS.len()],
        );
        let counted = Counted {
            window: self.window,
            cancel: &self.streams.options.cancel,
        };
        let (chain, rest) = halves(&mut self.streams.buffers.buffers[node.buffer].memory);
        let (chase, read) = ([Work::Chase], [Work::ReadPausing(load.unwrap_or(0).into())]);
        let (own, others) = node.positions.split_at_mut(1);
        let mut all = vec![Worker {
            cpu: node.source.cpu,
            words: chain,
            at: &mut own[0],
            works: &chase,
        }];
        if load.is_some() {
            let parts = workers::parts(rest, node.readers.len())?;
            let readers = node.readers.iter().zip(parts).zip(others);
            all.extend(readers.map(|((&cpu, words), at)| Worker {
                cpu,
                words,
                at,
                works: &read,
            }));
        }
        let rates = workers::work(all, counted)?.concat();
        Ok(Sample::of_rates(rates[0], &rates[1..]))
    }

    fn recording(&self, samples: &Samples<Sample>, warnings: &[Warning]) -> Recording {
        let cell = |node: &Node<'_>, load: Option<u32>| {
            let cell = Cell::new().with("node", node.source.node.0);
            match load {
                Some(steps) => cell.with("pause", steps),
                None => cell.with("pause", "idle"),
            }
        };
        let cells = self
            .nodes
            .iter()
            .flat_map(|node| LOADS.map(|load| cell(node, load)));
        let nodes = sampling::count(self.nodes.len(), "node", "nodes");
        let declared = Declared {
            experiment: "loaded",
            title: format!("loaded memory latency, {nodes}"),
            parameters: self.streams.parameters(),
            metrics: metrics(),
            cells: cells.collect(),
        };
        samples.recording(declared, warnings, |item, sample| {
            let readers = self.nodes[item / LOADS.len()].readers.len();
            sample.stored(readers, self.window)
        })
    }

    fn curves(&self, samples: &Samples<Sample>) -> Vec<LoadedCurve> {
        let rates = samples.figures(|it| it.bytes_per_s);
        let latencies = samples.figures(|it| it.latency_ns);
        let point = |item: usize| {
            Some(LoadedPoint {
                pause: LOADS[item % LOADS.len()],
                read_bytes_per_s: rates[item].clone()?,
                latency_ns: latencies[item].clone()?,
            })
        };
        let curve = |(number, node): (usize, &Node<'_>)| LoadedCurve {
            node: node.source.node,
            cpu: node.source.cpu,
            readers: node.readers.iter().copied().collect(),
            points: (number * LOADS.len()..)
                .take(LOADS.len())
                .filter_map(point)
                .collect(),
        };
        let curves = self.nodes.iter().enumerate().map(curve);
        curves.filter(|curve| !curve.points.is_empty()).collect()
    }
}

/// That memory can be busy at all.
///
/// # Errors
/// Under emulation in the host's time it cannot.
pub(crate) fn check_can_be_busy(machine: &Machine) -> Result<(), ProbeError> {
    let guest = machine.origin.emulation.as_ref();
    let guest = guest.and_then(Emulation::guest);
    if guest.is_some_and(|it| it.simulated_time.is_none() && it.acceleration == Acceleration::Tcg) {
        let reason = "under emulation in the host's time memory is never busy, in simulated time it is (--time simulated)";
        return Err(ProbeError::NothingToMeasure {
            reason: reason.to_owned(),
        });
    }
    Ok(())
}

/// The words of the chain, and those of all readers.
pub(crate) fn halves(memory: &mut Mapping) -> (&mut [u64], &mut [u64]) {
    let words = memory.words_mut();
    words.split_at_mut(words.len() / 2)
}

/// Makes a chain of the first half of this memory.
///
/// # Errors
/// When it was cancelled.
pub(crate) fn link(
    memory: &mut Mapping,
    size: &BufferSize,
    options: &ProbeOptions,
) -> Result<(), ProbeError> {
    let (chain, _) = halves(memory);
    let stride = (size.line_bytes / 8) as usize;
    // The line count fits: a buffer has at most 16 GiB and a line at least 64 bytes.
    let lines = (chain.len() / stride) as u32;
    let cycle = chase::cycle(lines, &mut Rng::with_seed(SEED), &options.cancel);
    let cycle = cycle.ok_or(ProbeError::Cancelled)?;
    chase::link(chain, &cycle, stride, &options.cancel);
    options.check_cancelled()
}

impl sampler::Source for Run<'_> {
    type Value = Sample;
    type Error = ProbeError;

    fn take(&mut self, turn: Turn) -> Result<Attempt<Sample>, ProbeError> {
        let item = turn.slot.item;
        match self.visit(item) {
            Ok(sample) => Ok(Attempt::Value(sample)),
            Err(error) => {
                let number = item / LOADS.len();
                let node = Some(self.nodes[number].source.node);
                let of_node = number * LOADS.len()..(number + 1) * LOADS.len();
                Ok(error.attempt(of_node.collect(), |reason| {
                    self.skipped.push(SkippedPair {
                        cpu_node: node,
                        memory_node: node,
                        reason,
                    });
                }))
            }
        }
    }

    fn warmed_up(&mut self, took: Duration, items: usize, left: Option<Duration>) {
        self.window = self.streams.window(1, took, items, left);
    }
}
