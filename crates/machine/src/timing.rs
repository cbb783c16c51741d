//! What accesses take on a machine, as it was measured or published.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu::Nearness;
use crate::emulation::{Bandwidth, CacheModel, DistanceDelay, LineDelay, NodeDelay, delay_of};
use crate::id::{CpuId, Distance, NodeId};
use crate::machine::Machine;

/// The figures that are known. An emulated machine in simulated time has them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// In ascending order of the CPU's node and the memory's, each pair once; pairs without a figure are left out.
    pub latencies: Vec<Latency>,
    /// Each last-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheModel>,
    /// A line that another CPU has written, one way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<LineDelay>,
    #[serde(default, skip_serializing_if = "Bandwidth::is_unlimited")]
    pub bandwidth: Bandwidth,
    /// Picoseconds of an instruction that waits for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction_ps: Option<u32>,
    /// Where the figures come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Picoseconds one way between two CPUs, of a source that does not know what they share; gone when a machine is whole.
    #[serde(skip)]
    pub between_cpus: Vec<(CpuId, CpuId, u32)>,
}

/// What a line took from one CPU to another that has nothing to do but to wait for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LineTransfer {
    pub nearness: Nearness,
    /// Between the CPUs' nodes, where the machine gives one.
    pub distance: Option<Distance>,
    /// Nanoseconds one way.
    pub ns: f64,
}

/// Nanoseconds of a load that waits for the one before, from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Latency {
    pub cpu_node: NodeId,
    pub memory_node: NodeId,
    pub ns: u32,
}

impl Timing {
    /// The same with these latencies, of equal pairs the first.
    pub fn with_latencies(self, all: impl IntoIterator<Item = Latency>) -> Self {
        let mut latencies: Vec<Latency> = all.into_iter().collect();
        // A stable order.
        latencies.sort_by_key(Latency::pair);
        latencies.dedup_by_key(|it| it.pair());
        Self { latencies, ..self }
    }

    /// These figures, and those of `other` that are missing here.
    pub fn or(mut self, other: Self) -> Self {
        let latencies = [std::mem::take(&mut self.latencies), other.latencies].concat();
        self.sources.extend(other.sources);
        Self {
            cache: self.cache.or(other.cache),
            transfer: self.transfer.or(other.transfer),
            bandwidth: self.bandwidth.or(other.bandwidth),
            instruction_ps: self.instruction_ps.or(other.instruction_ps),
            between_cpus: match self.between_cpus.is_empty() {
                true => other.between_cpus,
                false => self.between_cpus,
            },
            ..self
        }
        .with_latencies(latencies)
    }

    /// Nanoseconds from the CPUs of a node to the memory of another.
    pub fn latency_ns(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<u32> {
        let pair = (cpu_node, memory_node);
        let at = self.latencies.binary_search_by_key(&pair, Latency::pair);
        at.ok().map(|at| self.latencies[at].ns)
    }
}

impl Latency {
    /// The nodes of the CPU and the memory.
    pub fn pair(&self) -> (NodeId, NodeId) {
        (self.cpu_node, self.memory_node)
    }
}

impl LineDelay {
    /// The medians of transfers on a machine, by what the CPUs share and by the distance of their nodes; `None` where the machine has pairs
    /// of CPUs within a node, or between nodes, and none of them is among these.
    pub fn of_transfers(
        all: impl IntoIterator<Item = LineTransfer>,
        machine: &Machine,
    ) -> Option<Self> {
        let mut within: BTreeMap<Nearness, Vec<f64>> = BTreeMap::new();
        let mut between: BTreeMap<Option<Distance>, Vec<f64>> = BTreeMap::new();
        for LineTransfer {
            nearness,
            distance,
            ns,
        } in all
        {
            match nearness {
                Nearness::Nodes => between.entry(distance).or_default().push(ns),
                _ => within.entry(nearness).or_default().push(ns),
            }
        }
        let mut within = |nearness| delay_of(median(within.get_mut(&nearness)?)?);
        let between = between.into_iter();
        let between: Vec<(Option<Distance>, u32)> = between
            .filter_map(|(distance, mut all)| Some((distance, delay_of(median(&mut all)?)?)))
            .collect();
        let [core, cache, node] =
            [Nearness::Core, Nearness::Cache, Nearness::Node].map(&mut within);
        let nearest = between.first().map(|&(_, ns)| ns);
        // Where a node has one CPU, or the machine one node, nothing is that far apart.
        let cpus = machine.nodes.iter().map(|node| node.known_cpus().len());
        let (nodes, most) = cpus.fold((0, 0), |(nodes, most), cpus| {
            (nodes + usize::from(cpus > 0), most.max(cpus))
        });
        let same_node_ns = node.or(cache).or(nearest.filter(|_| most < 2))?;
        let other_node_ns = nearest.or(Some(same_node_ns).filter(|_| nodes < 2))?;
        let by_distance = between.iter();
        let by_distance: Vec<DistanceDelay> = by_distance
            .filter_map(|&(distance, ns)| {
                Some(DistanceDelay {
                    distance: distance?,
                    ns,
                })
            })
            .collect();
        Some(Self {
            same_core_ns: core,
            // With threads of a core, other cores of the cache have a figure too.
            same_cache_ns: node.and(cache).or(core.and(Some(same_node_ns))),
            by_node: NodeDelay {
                same_node_ns,
                other_node_ns,
                is_by_distance: false,
            },
            // Both directions are in it.
            home_ns: 0,
            by_distance: Some(by_distance)
                .filter(|all| all.len() > 1)
                .unwrap_or_default(),
        })
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(match values.len() % 2 {
        0 => f64::midpoint(values[values.len() / 2 - 1], upper),
        _ => upper,
    })
}
