//! How many bytes a second all CPUs of a node move from or to the memory of each node.
//!
//! ```text
//!  buffer on node 2:  │ CPU 0's │ CPU 1's │ CPU 2's │ CPU 3's │     each thread has a part of its own, whole pages,
//!                     └────►────┴────►────┴────►────┴────►────┘     and goes on where it stood the time before
//!
//!  barrier ─ all run ─┬──── counted: blocks done by the thread's own clock ────┬─ all still run ─ stop
//!                     ramp                                                  ramp
//! ```
//!
//! What is counted is what the program asked for: a plain store also makes the processor read the line first, so the
//! memory moves more than a `write` shows. Figures are sums over threads; 1 GB is 10^9 bytes.

use std::time::Duration;

use fastrand::Rng;
use nearfar_experiment::Recording;
use nearfar_machine::{CpuSet, Distance, Emulation, NodeId};
use nearfar_runs::{Better, Metric, Values};
use nearfar_statistics::Figures;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::latency;
use crate::node_buffers::PageKind;
use crate::node_selection::{SkippedPair, Source};
use crate::options::ProbeError;
use crate::sampling::{self, Measured, SEED, Samples};
use crate::streams::{self, Counted, Streams, Visits, Work, WorkerError, cpus_of, workers};
use crate::warning::Warning;

/// What is done to the memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// Every word is loaded.
    Read,
    /// Every word is stored to, with plain stores.
    Write,
    /// Every word of one half is loaded, changed and stored to the other half; both directions are counted.
    Copy,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Copy];
}

impl std::fmt::Display for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
        })
    }
}

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BandwidthMatrix {
    /// One entry a pair of nodes and kind of traffic, by CPU node, memory node, traffic.
    pub pairs: Vec<BandwidthPair>,
    #[serde(flatten)]
    pub method: Method,
}

/// How threads that use memory together were measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Method {
    /// Pairs of nodes that were not measured.
    pub skipped: Vec<SkippedPair>,
    /// Size of the buffer on each node, in bytes; the threads share it.
    pub buffer_bytes: u64,
    pub page_kind: PageKind,
    /// How long bytes were counted for one sample, in seconds.
    pub window_s: f64,
    /// How long the measurement took, in seconds.
    pub elapsed_s: f64,
    /// What was true of the measurement and makes it worth less.
    pub warnings: Vec<Warning>,
    /// The emulated machine; `None` for a real one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
}

impl BandwidthMatrix {
    /// The measurement of one pair, if it was made.
    pub fn pair(
        &self,
        traffic: Traffic,
        cpu_node: NodeId,
        memory_node: NodeId,
    ) -> Option<&BandwidthPair> {
        let wanted = (traffic, cpu_node, memory_node);
        self.pairs
            .iter()
            .find(|pair| (pair.traffic, pair.cpu_node, pair.memory_node) == wanted)
    }
}

/// One pair of nodes and kind of traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BandwidthPair {
    pub traffic: Traffic,
    /// The node of the CPUs.
    pub cpu_node: NodeId,
    pub memory_node: NodeId,
    /// The CPUs that did it, one thread each.
    pub cpus: CpuSet,
    /// Bytes a second, all CPUs together.
    pub bytes_per_s: Figures,
    /// The distance between the two nodes, where the machine gives one.
    pub distance: Option<Distance>,
}

/// A pair to measure.
struct TrafficPair<'a> {
    source: &'a Source,
    buffer: usize,
    /// How far each thread is in its part of the buffer, in words.
    positions: Vec<usize>,
}

impl TrafficPair<'_> {
    fn nodes(&self, streams: &Streams<'_>) -> (NodeId, NodeId) {
        (self.source.node, streams.buffers.buffers[self.buffer].node)
    }
}

/// Bytes a second of each kind of traffic, in the order of [`Traffic::ALL`].
type Rates = [f64; Traffic::ALL.len()];

/// Measures on threads of its own.
pub(crate) fn measure_on(streams: Streams<'_>) -> Result<Measured<BandwidthMatrix>, ProbeError> {
    streams::measure(streams, |streams| {
        let buffers = streams.buffers.buffers.len();
        let of_source = |source| {
            (0..buffers).map(move |buffer| TrafficPair {
                source,
                buffer,
                positions: Vec::new(),
            })
        };
        let pairs = Pairs {
            pairs: streams.sources.iter().flat_map(of_source).collect(),
            random: Rng::with_seed(SEED),
        };
        Ok((pairs, Vec::new()))
    })
}

/// The metric of a kind of traffic in stored runs.
fn metric(traffic: Traffic) -> String {
    format!("{traffic}_bytes_per_s")
}

/// Streams of the threads of one node through one buffer, of all kinds of traffic at each visit.
struct Pairs<'a> {
    pairs: Vec<TrafficPair<'a>>,
    /// Decides the order of the kinds of traffic.
    random: Rng,
}

impl Visits for Pairs<'_> {
    type Sample = Rates;
    type Found = BandwidthPair;
    type Answer = BandwidthMatrix;
    const WORKS: usize = Traffic::ALL.len();

    fn items(&self) -> usize {
        self.pairs.len()
    }

    fn visit(
        &mut self,
        streams: &mut Streams<'_>,
        item: usize,
        counted: Counted<'_>,
    ) -> Result<Rates, WorkerError> {
        let mut order = [0, 1, 2];
        self.random.shuffle(&mut order);
        let works = order.map(|index| Work::Move(Traffic::ALL[index]));
        let pair = &mut self.pairs[item];
        let cpus = cpus_of(pair.source, streams.threads);
        pair.positions.resize(cpus.len(), 0);
        let words = streams.buffers.buffers[pair.buffer].memory.words_mut();
        let all = workers(cpus, words, pair.positions.iter_mut(), &works)?;
        let mut rates = Rates::default();
        for in_order in streams::work(all.collect(), counted)? {
            for (index, rate) in order.into_iter().zip(in_order) {
                rates[index] += rate;
            }
        }
        Ok(rates)
    }

    fn excluded(
        &self,
        streams: &Streams<'_>,
        item: usize,
        reason: String,
    ) -> (Vec<usize>, SkippedPair) {
        let (cpu_node, memory_node) = self.pairs[item].nodes(streams);
        let skipped = SkippedPair::new(Some(cpu_node), Some(memory_node), reason);
        (vec![item], skipped)
    }

    fn found(&self, streams: &Streams<'_>, samples: &Samples<Rates>) -> Vec<BandwidthPair> {
        let rates = [0, 1, 2].map(|index| samples.figures(|rates| rates[index]));
        let mut pairs = Vec::new();
        for (item, pair) in self.pairs.iter().enumerate() {
            let (cpu_node, memory_node) = pair.nodes(streams);
            for (traffic, rates) in Traffic::ALL.into_iter().zip(&rates) {
                let Some(bytes_per_s) = rates[item].clone() else {
                    continue;
                };
                let cpus = cpus_of(pair.source, streams.threads);
                pairs.push(BandwidthPair {
                    traffic,
                    cpu_node,
                    memory_node,
                    cpus: cpus.iter().copied().collect(),
                    bytes_per_s,
                    distance: streams.machine.distance(cpu_node, memory_node),
                });
            }
        }
        pairs
    }

    fn figures(found: &BandwidthPair) -> Vec<&Figures> {
        vec![&found.bytes_per_s]
    }

    fn declared(&self, streams: &Streams<'_>) -> Recording {
        let mut metrics =
            Traffic::ALL.map(|kind| Metric::real(metric(kind), "B/s", Better::Higher));
        metrics[0].primary = true;
        let pairs = sampling::count(self.pairs.len(), "pair of nodes", "pairs of nodes");
        let cell = |pair: &TrafficPair<'_>| {
            let (cpu_node, memory_node) = pair.nodes(streams);
            latency::cell(cpu_node, memory_node)
        };
        let plan = streams.plan(self.pairs.iter().map(cell).collect());
        Recording::new(
            "bandwidth",
            format!("memory bandwidth, {pairs}"),
            plan,
            metrics.into(),
        )
    }

    fn stored(
        &self,
        streams: &Streams<'_>,
        item: usize,
        rates: &Rates,
        window: Duration,
    ) -> (Values, serde_json::Value) {
        let values = Traffic::ALL.into_iter().zip(rates);
        let values = values.map(|(kind, &rate)| (metric(kind), rate.into()));
        let threads = cpus_of(self.pairs[item].source, streams.threads).len();
        let detail = json!({"threads": threads, "window_s": window.as_secs_f64()});
        (values.collect(), detail)
    }

    fn answer(self, _: &Streams<'_>, pairs: Vec<BandwidthPair>, method: Method) -> BandwidthMatrix {
        BandwidthMatrix { pairs, method }
    }
}
