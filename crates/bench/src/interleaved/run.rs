//! One run: placements visited in random order, each read by all CPUs and then by one.

use std::time::Duration;

use nearfar_experiment::Recording;
use nearfar_experiment::sampler::{self, Attempt, Turn};
use nearfar_machine::{CpuId, NodeId};
use nearfar_runs::Cell;

use super::{InterleavedMemory, MeasuredPlacement, MemoryPlacement};
use crate::bandwidth::workers::{self, Counted, Worker, WorkerError};
use crate::bandwidth::{MIN_WINDOW, Since, Streams, Traffic, Work, cpus_of};
use crate::loaded::run::{Sample, check_can_be_busy, halves, link, metrics};
use crate::mapping::Mapping;
use crate::node_buffers;
use crate::node_selection::SkippedPair;
use crate::options::ProbeError;
use crate::sampling::{self, Declared, Measured, Samples};
use crate::warning::Warning;

/// Measures on threads of its own.
pub(crate) fn measure_on(streams: Streams<'_>) -> Result<Measured<InterleavedMemory>, ProbeError> {
    let since = Since::now();
    let mut run = Run::new(streams)?;
    let amount = run.streams.amount(run.placements.len());
    let options = run.streams.options;
    let samples = sampling::sample(&amount, &options.cancel, &mut run)?;
    let placements = run.measured(&samples);
    let rates = placements.iter().map(|it| &it.read_bytes_per_s);
    let warnings = samples.warnings(rates.map(|rates| rates.samples.as_slice()));
    let method = (run.streams).method(&since, run.window, warnings, &run.skipped);
    let recording = run.recording(&samples, &method.warnings);
    let answer = InterleavedMemory {
        cpu: run.streams.sources[0].cpu,
        readers: run.readers().collect(),
        placements,
        method,
    };
    Ok(Measured {
        answer,
        recordings: vec![recording],
    })
}

/// The source of samples.
struct Run<'a> {
    streams: Streams<'a>,
    interleaved: Mapping,
    /// The CPUs that read, by their nodes.
    cpus: Vec<(NodeId, &'a [CpuId])>,
    placements: Vec<MemoryPlacement>,
    /// How far the chain's CPU and each reader are in their words, of each placement.
    positions: Vec<Vec<usize>>,
    /// How long loads and bytes are counted.
    window: Duration,
    skipped: Vec<SkippedPair>,
}

impl<'a> Run<'a> {
    fn new(streams: Streams<'a>) -> Result<Self, ProbeError> {
        check_can_be_busy(streams.machine)?;
        let (size, options) = (streams.size, streams.options);
        let mut interleaved = node_buffers::interleaved(
            streams.machine,
            streams.buffers,
            size.buffer_bytes,
            options,
        )?;
        let buffers = &mut streams.buffers.buffers;
        let memories = buffers.iter_mut().map(|it| &mut it.memory);
        for memory in memories.chain([&mut interleaved]) {
            link(memory, size, options)?;
        }
        let cpus: Vec<_> = streams
            .sources
            .iter()
            .map(|source| (source.node, cpus_of(source, streams.threads)))
            .collect();
        let has_memory = |node| streams.buffers.buffers.iter().any(|it| it.node == node);
        let without = cpus.iter().find(|(node, _)| !has_memory(*node));
        let skipped: Vec<_> = without
            .map(|&(node, _)| SkippedPair {
                cpu_node: Some(node),
                memory_node: None,
                reason: "no near memory is measured: this node has none of its own".to_owned(),
            })
            .into_iter()
            .collect();
        let near = skipped.is_empty().then_some(MemoryPlacement::Near);
        let nodes = streams.buffers.buffers.iter().map(|it| it.node);
        let placements: Vec<_> = near
            .into_iter()
            .chain(nodes.map(MemoryPlacement::Node))
            .chain([MemoryPlacement::Interleaved])
            .collect();
        let all = 1 + cpus.iter().map(|(_, cpus)| cpus.len()).sum::<usize>();
        Ok(Self {
            positions: vec![vec![0; all]; placements.len()],
            streams,
            window: MIN_WINDOW,
            interleaved,
            cpus,
            placements,
            skipped,
        })
    }

    fn readers(&self) -> impl Iterator<Item = CpuId> {
        self.cpus.iter().flat_map(|(_, cpus)| cpus.iter().copied())
    }

    fn visit(&mut self, item: usize) -> Result<Sample, WorkerError> {
        let counted = Counted {
            window: self.window,
            cancel: &self.streams.options.cancel,
        };
        let all: Vec<CpuId> = self.readers().collect();
        let buffers = self.streams.buffers.buffers.iter_mut();
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
        let (mut workers, mut others) = (Vec::new(), others.iter_mut());
        let read = [Work::Move(Traffic::Read)];
        for (memory, cpus) in used {
            let parts = workers::parts(halves(memory).1, cpus.len())?;
            let readers = cpus.iter().zip(parts).zip(&mut others);
            workers.extend(readers.map(|((&cpu, words), at)| Worker {
                cpu,
                words,
                at,
                works: &read,
            }));
        }
        let rates = workers::work(workers, counted)?.concat();
        let source = &self.streams.sources[0];
        let node = match self.placements[item] {
            MemoryPlacement::Near => Some(source.node),
            MemoryPlacement::Node(node) => Some(node),
            MemoryPlacement::Interleaved => None,
        };
        let mut buffers = self.streams.buffers.buffers.iter_mut();
        let buffer = buffers.find(|it| Some(it.node) == node);
        let memory = buffer.map_or(&mut self.interleaved, |it| &mut it.memory);
        let chase = Worker {
            cpu: source.cpu,
            words: halves(memory).0,
            at: &mut own[0],
            works: &[Work::Chase],
        };
        let chase = workers::work(vec![chase], counted)?.concat();
        Ok(Sample::of_rates(chase[0], &rates))
    }

    fn recording(&self, samples: &Samples<Sample>, warnings: &[Warning]) -> Recording {
        let cell = |placement: &MemoryPlacement| Cell::new().with("memory", placement.to_string());
        let declared = Declared {
            experiment: "interleaved",
            title: "interleaved memory".to_owned(),
            parameters: self.streams.parameters(),
            metrics: metrics(),
            cells: self.placements.iter().map(cell).collect(),
        };
        samples.recording(declared, warnings, |_, sample| {
            sample.stored(self.readers().count(), self.window)
        })
    }

    fn measured(&self, samples: &Samples<Sample>) -> Vec<MeasuredPlacement> {
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
}

impl sampler::Source for Run<'_> {
    type Value = Sample;
    type Error = ProbeError;

    fn take(&mut self, turn: Turn) -> Result<Attempt<Sample>, ProbeError> {
        let item = turn.slot.item;
        match self.visit(item) {
            Ok(sample) => Ok(Attempt::Value(sample)),
            Err(error) => Ok(error.attempt(vec![item], |reason| {
                self.skipped.push(SkippedPair {
                    cpu_node: None,
                    memory_node: None,
                    reason: format!("{} memory: {reason}", self.placements[item]),
                });
            })),
        }
    }

    fn warmed_up(&mut self, took: Duration, items: usize, left: Option<Duration>) {
        self.window = self.streams.window(2, took, items, left);
    }
}
