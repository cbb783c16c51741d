//! What interleaved memory brings all CPUs, and costs one of them.
//!
//! ```text
//!  near             each CPU reads memory of its own node         what first touch gives a program that starts its threads first
//!  node 2           all CPUs read memory of node 2                what it gives one whose first thread fills all memory
//!  interleaved      all CPUs read pages of all nodes in turn      numactl --interleave=all
//! ```
//!
//! Reading alone, a CPU waits for the latency of its memory, of which interleaved memory has a mean. Reading all at once, they
//! wait for the memory or the link that is busiest, and interleaving spreads the load over all.

use std::time::Duration;

use nearfar_experiment::Recording;
use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_runs::{Cell, Values};
use nearfar_statistics::Figures;
use serde::{Deserialize, Serialize};

use crate::bandwidth::{Method, Traffic};
use crate::loaded::{Sample, check_can_be_busy, halves, link, metrics};
use crate::node_buffers::{self, Mapping};
use crate::node_selection::SkippedPair;
use crate::options::ProbeError;
use crate::sampling::{Measured, Samples};
use crate::streams::{self, Counted, Streams, Visits, Work, Worker, WorkerError, cpus_of, workers};

/// What was measured, and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InterleavedMemory {
    /// The CPU whose loads are timed while the others are idle.
    pub cpu: CpuId,
    /// The CPUs that read together, one thread each.
    pub readers: CpuSet,
    /// Near memory, where each of these CPUs has some, the memory of each node alone, and interleaved memory.
    pub placements: Vec<MeasuredPlacement>,
    /// A half of each buffer is for the chain, a half for all readers.
    #[serde(flatten)]
    pub method: Method,
}

/// Where the memory is that all CPUs use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPlacement {
    /// That of each CPU on its own node.
    Near,
    /// All of it on this node.
    Node(NodeId),
    /// On all nodes with memory, page by page.
    Interleaved,
}

impl std::fmt::Display for MemoryPlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Near => f.write_str("near"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Interleaved => f.write_str("interleaved"),
        }
    }
}

/// What was measured of one placement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MeasuredPlacement {
    pub memory: MemoryPlacement,
    /// Bytes a second, all readers together.
    pub read_bytes_per_s: Figures,
    /// Nanoseconds of a load.
    pub latency_ns: Figures,
}

/// Measures on threads of its own.
pub(crate) fn measure_on(streams: Streams<'_>) -> Result<Measured<InterleavedMemory>, ProbeError> {
    streams::measure(streams, prepare)
}

/// Placements, each read by all CPUs and then by one.
struct Placements<'a> {
    interleaved: Mapping,
    /// The CPUs that read, by their nodes.
    cpus: Vec<(NodeId, &'a [CpuId])>,
    placements: Vec<MemoryPlacement>,
    /// How far the chain's CPU and each reader are in their words, of each placement.
    positions: Vec<Vec<usize>>,
}

/// Maps interleaved memory, and links the chain of each memory.
fn prepare<'a>(
    streams: &mut Streams<'a>,
) -> Result<(Placements<'a>, Vec<SkippedPair>), ProbeError> {
    check_can_be_busy(streams.machine)?;
    let (size, options, threads) = (streams.size, streams.options, streams.threads);
    let (machine, buffers) = (streams.machine, &mut *streams.buffers);
    let mut interleaved = node_buffers::interleaved(machine, buffers, size.buffer_bytes, options)?;
    let memories = buffers.buffers.iter_mut().map(|it| &mut it.memory);
    for memory in memories.chain([&mut interleaved]) {
        link(memory, size, options)?;
    }
    let sources = streams.sources.iter();
    let cpus: Vec<_> = sources
        .map(|source| (source.node, cpus_of(source, threads)))
        .collect();
    let nodes: Vec<NodeId> = streams.buffers.buffers.iter().map(|it| it.node).collect();
    let without = cpus.iter().find(|(node, _)| !nodes.contains(node));
    let reason = "no near memory is measured: this node has none of its own";
    let without = without.map(|&(node, _)| SkippedPair::new(Some(node), None, reason.to_owned()));
    let skipped = Vec::from_iter(without);
    let near = skipped.is_empty().then_some(MemoryPlacement::Near);
    let placements: Vec<_> = near
        .into_iter()
        .chain(nodes.into_iter().map(MemoryPlacement::Node))
        .chain([MemoryPlacement::Interleaved])
        .collect();
    let all = 1 + cpus.iter().map(|(_, cpus)| cpus.len()).sum::<usize>();
    let placements = Placements {
        positions: vec![vec![0; all]; placements.len()],
        interleaved,
        cpus,
        placements,
    };
    Ok((placements, skipped))
}

impl Placements<'_> {
    fn readers(&self) -> impl Iterator<Item = CpuId> {
        self.cpus.iter().flat_map(|(_, cpus)| cpus.iter().copied())
    }
}

impl Visits for Placements<'_> {
    type Sample = Sample;
    type Found = MeasuredPlacement;
    type Answer = InterleavedMemory;
    const WORKS: usize = 2;

    fn items(&self) -> usize {
        self.placements.len()
    }

    fn visit(
        &mut self,
        streams: &mut Streams<'_>,
        item: usize,
        counted: Counted<'_>,
    ) -> Result<Sample, WorkerError> {
        let all: Vec<CpuId> = self.readers().collect();
        let buffers = streams.buffers.buffers.iter_mut();
        let used: Vec<(&mut Mapping, &[CpuId])> = match self.placements[item] {
            MemoryPlacement::Near => {
                let cpus = |node| self.cpus.iter().find(|(other, _)| *other == node);
                let used = buffers.filter_map(|it| Some((&mut it.memory, cpus(it.node)?.1)));
                used.collect()
            }
            MemoryPlacement::Node(node) => {
                let used = buffers.filter(|it| it.node == node);
                used.map(|it| (&mut it.memory, &all[..])).collect()
            }
            MemoryPlacement::Interleaved => vec![(&mut self.interleaved, &all[..])],
        };
        let (own, others) = self.positions[item].split_at_mut(1);
        let (mut readers, mut others) = (Vec::new(), others.iter_mut());
        let read = [Work::Move(Traffic::Read)];
        for (memory, cpus) in used {
            readers.extend(workers(cpus, halves(memory).1, &mut others, &read)?);
        }
        let rates = streams::work(readers, counted)?.concat();
        let source = &streams.sources[0];
        let node = match self.placements[item] {
            MemoryPlacement::Near => Some(source.node),
            MemoryPlacement::Node(node) => Some(node),
            MemoryPlacement::Interleaved => None,
        };
        let mut buffers = streams.buffers.buffers.iter_mut();
        let buffer = buffers.find(|it| Some(it.node) == node);
        let memory = buffer.map_or(&mut self.interleaved, |it| &mut it.memory);
        let chase = Worker {
            cpu: source.cpu,
            words: halves(memory).0,
            at: &mut own[0],
            works: &[Work::Chase],
        };
        let chase = streams::work(vec![chase], counted)?.concat();
        Ok(Sample::of_rates(chase[0], &rates))
    }

    fn excluded(&self, _: &Streams<'_>, item: usize, reason: String) -> (Vec<usize>, SkippedPair) {
        let reason = format!("{} memory: {reason}", self.placements[item]);
        (vec![item], SkippedPair::new(None, None, reason))
    }

    fn found(&self, _: &Streams<'_>, samples: &Samples<Sample>) -> Vec<MeasuredPlacement> {
        let rates = samples.figures(|it| it.bytes_per_s);
        let figures = rates.into_iter().zip(samples.figures(|it| it.latency_ns));
        let measured = self.placements.iter().zip(figures);
        let measured = measured.filter_map(|(&memory, (rate, latency))| {
            Some(MeasuredPlacement {
                memory,
                read_bytes_per_s: rate?,
                latency_ns: latency?,
            })
        });
        measured.collect()
    }

    fn figures(found: &MeasuredPlacement) -> Vec<&Figures> {
        vec![&found.read_bytes_per_s]
    }

    fn declared(&self, streams: &Streams<'_>) -> Recording {
        let cell = |placement: &MemoryPlacement| Cell::new().with("memory", placement.to_string());
        let plan = streams.plan(self.placements.iter().map(cell).collect());
        Recording::new(
            "interleaved",
            "interleaved memory".to_owned(),
            plan,
            metrics(),
        )
    }

    fn stored(
        &self,
        _: &Streams<'_>,
        _: usize,
        sample: &Sample,
        window: Duration,
    ) -> (Values, serde_json::Value) {
        sample.stored(self.readers().count(), window)
    }

    fn answer(
        self,
        streams: &Streams<'_>,
        placements: Vec<MeasuredPlacement>,
        method: Method,
    ) -> InterleavedMemory {
        InterleavedMemory {
            cpu: streams.sources[0].cpu,
            readers: self.readers().collect(),
            placements,
            method,
        }
    }
}
