//! Which CPUs are near each other, as the caller says.

use std::collections::HashMap;

use crate::BuildError;
use crate::order::Order;

/// CPUs that share a part of the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Group {
    /// The hardware threads of a core.
    Core,
    /// The CPUs that share a last-level cache.
    Llc,
    /// The CPUs of a memory node.
    Node,
}

/// Where a CPU is. The numbers only say which CPUs share a part; equal numbers of different parts mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Cpu {
    pub core: u32,
    /// A group of cores below the last-level cache: a module, a cluster. The core's number where there is none.
    pub core_group: u32,
    pub llc: u32,
    /// The index of its node in `Topology::distances`.
    pub node: u32,
}

/// The machine as far as the order of stealing needs it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Topology {
    /// By CPU number, up to the highest possible CPU; a number without a CPU is `None`.
    pub cpus: Vec<Option<Cpu>>,
    /// From node to node by index, as ACPI SLIT: 10 to itself.
    pub distances: Vec<Vec<u32>>,
}

impl Cpu {
    /// A CPU of this core and node: the core is a group of its own, and the node's CPUs share a last-level cache.
    pub fn new(core: u32, node: u32) -> Self {
        Self {
            core,
            core_group: core,
            llc: node,
            node,
        }
    }

    pub fn with_core_group(self, core_group: u32) -> Self {
        Self { core_group, ..self }
    }

    pub fn with_llc(self, llc: u32) -> Self {
        Self { llc, ..self }
    }
}

impl Topology {
    /// The fields of that name. [`Builder::build`](crate::Builder::build) checks them.
    pub fn new(cpus: Vec<Option<Cpu>>, distances: Vec<Vec<u32>>) -> Self {
        Self { cpus, distances }
    }

    /// Whether the order of stealing can be made of it. A last-level cache or core group may span nodes, as with emulated nodes: its
    /// CPUs on one node are near each other. A core may not.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let cpus = || self.cpus.iter().enumerate();
        let numbers = self.cpus.len();
        if numbers > Order::MAX_CPUS {
            return Err(BuildError::CpuNumbers(numbers));
        }
        if self.cpus.iter().all(Option::is_none) {
            return Err(BuildError::CpuNumbers(0));
        }
        let nodes = self.distances.len();
        if let Some(node) = self.distances.iter().position(|row| row.len() != nodes) {
            let node = node as u32;
            return Err(BuildError::Distances { node });
        }
        let mut cores = HashMap::new();
        for (number, cpu) in cpus().filter_map(|(number, cpu)| Some((number, cpu.as_ref()?))) {
            if cpu.node as usize >= nodes {
                let node = cpu.node;
                return Err(BuildError::NoSuchNode { cpu: number, node });
            }
            let (first, other) = *cores.entry(cpu.core).or_insert((number, cpu));
            if other != cpu {
                let (core, cpus) = (cpu.core, [first, number]);
                return Err(BuildError::SplitCore { core, cpus });
            }
        }
        Ok(())
    }
}
