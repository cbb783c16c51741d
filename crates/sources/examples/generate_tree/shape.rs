//! The machine that is made: which CPUs are where.

use nearfar_machine::{CpuId, CpuSet};

/// Sizes of the machine.
pub struct Shape {
    pub cpus: u32,
    pub nodes: u32,
    pub pci: u32,
    pub interrupts: u32,
}

impl Shape {
    /// Refuses what cannot be spread evenly.
    pub fn check(&self) -> Result<(), String> {
        if self.nodes == 0
            || self.cpus == 0
            || !self.nodes.is_multiple_of(2)
            || !self.cpus.is_multiple_of(2 * self.nodes)
        {
            return Err(format!(
                "{} CPUs do not spread over {} nodes (an even number) in pairs",
                self.cpus, self.nodes
            ));
        }
        Ok(())
    }

    /// Cores of the machine, each with two threads.
    pub fn cores(&self) -> u32 {
        self.cpus / 2
    }

    pub fn cores_per_node(&self) -> u32 {
        self.cores() / self.nodes
    }

    /// The core of a CPU.
    pub fn core_of(&self, cpu: u32) -> u32 {
        cpu % self.cores()
    }

    pub fn node_of(&self, cpu: u32) -> u32 {
        self.core_of(cpu) / self.cores_per_node()
    }

    /// Both threads of some cores.
    pub fn threads(&self, first_core: u32, cores: u32) -> CpuSet {
        let range = |start: u32| CpuSet::range(CpuId(start), CpuId(start + cores - 1));
        range(first_core).union(&range(self.cores() + first_core))
    }

    pub fn cpus_of_node(&self, node: u32) -> CpuSet {
        self.threads(node * self.cores_per_node(), self.cores_per_node())
    }

    /// A SLIT with three steps: the same node, the other node of the package, others by ring distance.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let packages = self.nodes / 2;
        let apart = (from / 2).abs_diff(to / 2);
        let ring = apart.min(packages - apart);
        match (from == to, ring) {
            (true, _) => 10,
            (false, 0) => 12,
            (false, 1) => 20,
            (false, 2..=4) => 26,
            (false, _) => 32,
        }
    }
}
