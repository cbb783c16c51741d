//! How long a load takes while other CPUs read from the same memory.
//!
//! ```text
//!  buffer on node 2:  │ chain of one CPU          │ CPU 1's │ CPU 2's │ CPU 3's │
//!
//!  the others:        idle │ 2048, 1024, ... 1 steps of a calculation after each line │ one line after the other
//!                     ────────────────────────── more and more bytes a second ─────────────────────────────►
//! ```
//!
//! The one CPU's loads depend on one another, as those of [`crate::latency`]. Memory answers each later the more it has to do: first
//! little, and close to what it can carry as much as the lines that wait.

use std::time::Duration;

use fastrand::Rng;
use nearfar_experiment::Recording;
use nearfar_loops::chase;
use nearfar_machine::{Acceleration, CpuId, CpuSet, Emulation, Machine, NodeId};
use nearfar_runs::{Better, Cell, Metric, Values};
use nearfar_statistics::Figures;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::bandwidth::Method;
use crate::buffer_size::BufferSize;
use crate::node_buffers::Mapping;
use crate::node_selection::{SkippedPair, Source};
use crate::options::{ProbeError, ProbeOptions};
use crate::sampling::{self, Measured, SEED, Samples};
use crate::streams::{self, Counted, Streams, Visits, Work, Worker, WorkerError, workers};

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadedLatency {
    /// One a node that has CPUs and memory, ascending.
    pub curves: Vec<LoadedCurve>,
    /// A half of each buffer is for the chain, a half for all readers.
    #[serde(flatten)]
    pub method: Method,
}

/// The memory of one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadedCurve {
    /// The node of the CPUs and of the memory.
    pub node: NodeId,
    /// The CPU whose loads are timed.
    pub cpu: CpuId,
    /// The CPUs that read, one thread each.
    pub readers: CpuSet,
    /// By the load, ascending.
    pub points: Vec<LoadedPoint>,
}

/// What was measured under one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoadedPoint {
    /// Steps that each reader computes after each line; `None` where the readers are idle.
    pub pause: Option<u32>,
    /// Bytes a second, all readers together.
    pub read_bytes_per_s: Figures,
    /// Nanoseconds of a load.
    pub latency_ns: Figures,
}

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
    streams::measure(streams, prepare)
}

/// Links the chain of each node that has memory of its own and a second CPU.
fn prepare<'a>(streams: &mut Streams<'a>) -> Result<(Vec<Node<'a>>, Vec<SkippedPair>), ProbeError> {
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
            skipped.push(of_node(source.node, reason.to_owned()));
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
    Ok((nodes, skipped))
}

fn of_node(node: NodeId, reason: String) -> SkippedPair {
    SkippedPair::new(Some(node), Some(node), reason)
}

/// Each node under each load.
impl Visits for Vec<Node<'_>> {
    type Sample = Sample;
    type Found = LoadedCurve;
    type Answer = LoadedLatency;
    const WORKS: usize = 1;

    fn items(&self) -> usize {
        self.len() * LOADS.len()
    }

    fn visit(
        &mut self,
        streams: &mut Streams<'_>,
        item: usize,
        counted: Counted<'_>,
    ) -> Result<Sample, WorkerError> {
        let (node, load) = (&mut self[item / LOADS.len()], LOADS[item % LOADS.len()]);
        let (chain, rest) = halves(&mut streams.buffers.buffers[node.buffer].memory);
        let (chase, read) = ([Work::Chase], [Work::ReadPausing(load.unwrap_or(0).into())]);
        let (own, others) = node.positions.split_at_mut(1);
        let mut all = vec![Worker {
            cpu: node.source.cpu,
            words: chain,
            at: &mut own[0],
            works: &chase,
        }];
        if load.is_some() {
            all.extend(workers(&node.readers, rest, others.iter_mut(), &read)?);
        }
        let rates = streams::work(all, counted)?.concat();
        Ok(Sample::of_rates(rates[0], &rates[1..]))
    }

    fn excluded(&self, _: &Streams<'_>, item: usize, reason: String) -> (Vec<usize>, SkippedPair) {
        let number = item / LOADS.len();
        let items = number * LOADS.len()..(number + 1) * LOADS.len();
        (items.collect(), of_node(self[number].source.node, reason))
    }

    fn found(&self, _: &Streams<'_>, samples: &Samples<Sample>) -> Vec<LoadedCurve> {
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
        let curves = self.iter().enumerate().map(curve);
        curves.filter(|curve| !curve.points.is_empty()).collect()
    }

    fn figures(found: &LoadedCurve) -> Vec<&Figures> {
        found.points.iter().map(|it| &it.latency_ns).collect()
    }

    fn declared(&self, streams: &Streams<'_>) -> Recording {
        let cell = |node: &Node<'_>, load: Option<u32>| {
            let cell = Cell::new().with("node", node.source.node.0);
            match load {
                Some(steps) => cell.with("pause", steps),
                None => cell.with("pause", "idle"),
            }
        };
        let cells = self
            .iter()
            .flat_map(|node| LOADS.map(|load| cell(node, load)));
        let nodes = sampling::count(self.len(), "node", "nodes");
        let plan = streams.plan(cells.collect());
        Recording::new(
            "loaded",
            format!("loaded memory latency, {nodes}"),
            plan,
            metrics(),
        )
    }

    fn stored(
        &self,
        _: &Streams<'_>,
        item: usize,
        sample: &Sample,
        window: Duration,
    ) -> (Values, serde_json::Value) {
        sample.stored(self[item / LOADS.len()].readers.len(), window)
    }

    fn answer(self, _: &Streams<'_>, curves: Vec<LoadedCurve>, method: Method) -> LoadedLatency {
        LoadedLatency { curves, method }
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
