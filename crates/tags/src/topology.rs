//! Which CPUs are near each other, as the caller says.

/// CPUs that share a part of the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
pub struct Topology {
    /// By CPU number, up to the highest possible CPU; a number without a CPU is `None`.
    pub cpus: Vec<Option<Cpu>>,
    /// From node to node by index, as ACPI SLIT: 10 to itself.
    pub distances: Vec<Vec<u32>>,
}
