//! What a caller wants to be read: what is not asked for costs nothing and is `Known::No("not asked for")`.

/// The parts of a machine that cost something to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Caches, clusters, dies and the kernel's numbers of cores: most of what there is to read about CPUs, and nothing that
    /// decides over placement. Which CPUs share a core is read in any case.
    pub cpu_details: bool,
    /// The name of the CPU's model. `/proc/cpuinfo` has it, and x86 kernels before 5.18 wait up to 20 ms for clock rates when it is
    /// opened.
    pub cpu_model: bool,
    /// The names of PCI devices and classes, from this system's copy of pci.ids.
    pub names: bool,
    /// PCI devices, host bridges, network devices, NVMe subsystems.
    pub devices: bool,
    /// Interrupts with their affinities.
    pub interrupts: bool,
    /// How often each interrupt fired, and on which node its descriptor lives: the kernel counts per CPU, so this reads
    /// CPUs x interrupts numbers.
    pub interrupt_counts: bool,
    pub tasks: TaskScope,
    /// The memory of those processes by node, which stops each of them for a moment.
    pub task_memory: bool,
    /// Leave out processes with less resident memory than this, in bytes, and read no more of them than that. 0 for none.
    pub min_task_bytes: u64,
    /// The threads of those processes.
    pub threads: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskScope {
    None,
    /// These, by process number.
    Of(Vec<i32>),
    All,
}

impl Want {
    /// Everything of the machine itself. Names are another file's affair and added by those who show them.
    pub fn all() -> Self {
        Self {
            cpu_details: true,
            cpu_model: true,
            names: false,
            devices: true,
            interrupts: true,
            interrupt_counts: true,
            tasks: TaskScope::All,
            task_memory: true,
            min_task_bytes: 0,
            threads: false,
        }
    }

    /// Nodes, CPUs, caches and distances only.
    pub fn topology() -> Self {
        Self {
            cpu_details: true,
            ..Self::placement()
        }
    }

    /// What spreading queues needs: nodes, distances, and which CPUs share a core.
    pub fn placement() -> Self {
        Self {
            cpu_details: false,
            cpu_model: false,
            names: false,
            devices: false,
            interrupts: false,
            interrupt_counts: false,
            tasks: TaskScope::None,
            task_memory: true,
            min_task_bytes: 0,
            threads: false,
        }
    }

    /// What an audit looks at, without the processes: devices and interrupts, but neither names nor counts.
    pub fn audit() -> Self {
        Self {
            devices: true,
            interrupts: true,
            ..Self::placement()
        }
    }
}
