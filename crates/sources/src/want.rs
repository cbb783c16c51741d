//! What a caller wants to be read: what is not asked for costs nothing and is `Known::No("not asked for")`.

/// The parts of a machine that cost something to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// PCI devices, host bridges, network devices, NVMe subsystems.
    pub devices: bool,
    /// Interrupts with their affinities.
    pub interrupts: bool,
    /// How often each interrupt fired, and on which node its descriptor lives: the kernel counts per CPU, so this reads CPUs x interrupts numbers.
    pub interrupt_counts: bool,
    /// Processes.
    pub tasks: TaskScope,
}

/// Which processes to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskScope {
    /// None.
    None,
    /// These, by process number.
    Of(Vec<i32>),
    /// All that can be seen.
    All,
}

impl Want {
    /// Everything.
    pub fn all() -> Self {
        Self { devices: true, interrupts: true, interrupt_counts: true, tasks: TaskScope::All }
    }

    /// Nodes, CPUs, caches and distances only.
    pub fn topology() -> Self {
        Self { devices: false, interrupts: false, interrupt_counts: false, tasks: TaskScope::None }
    }
}
