//! Plain data that describes a NUMA machine, as far as a source could see it.
//!
//! ```text
//! Machine
//! ├─ nodes        0, 1, 2 ...      CPUs, memory, state; distances between them
//! ├─ cpus         0, 1, 2 ...      core, cluster, die, package, node; caches they share
//! ├─ host_bridges 0000:20          where the firmware says the tree below is
//! │  └─ pci       0000:21:00.0     class, driver, where the kernel says it is
//! │     ├─ networks    eth0        queues with their XPS and RPS masks
//! │     ├─ nvme        nvme-subsys0   controllers, namespaces, paths
//! │     └─ interrupts  42          queue, affinity, effective affinity, managed or not
//! ├─ tasks, cpusets                allowed CPUs and nodes, memory by node
//! └─ settings, writers, warnings
//! ```
//!
//! Nothing in here does I/O and nothing judges: sources fill a [`Machine`] in, placement draws conclusions from it.
//! A field that a source could not see is [`Known::No`] with the reason; it never holds a plausible number instead.

mod cpu;
mod device;
mod device_kind;
mod distance;
mod emulation;
mod id;
mod interrupt;
mod known;
mod machine;
mod names;
mod node;
mod origin;
pub mod seconds;
mod set;
pub mod size;
mod system;
mod task;
mod timing;

pub use cpu::{Cache, CacheKind, Cpu, CpuStates, Nearness, Neighbourhood};
pub use device::{
    AnaState, Disk, FirmwareLocality, FirmwareSource, HostBridge, IoPolicy, NetworkDevice,
    NvmeController, NvmeNamespace, NvmePath, NvmeSubsystem, OpenDevice, OsDevice, OsDeviceKind,
    PciDevice, ReceiveQueue, TaskFiles, TransmitQueue, UseKind, UsedFiles,
};
pub use device_kind::DeviceKind;
pub use distance::{DistanceError, DistanceOrigin, Distances, Flat};
pub use emulation::{
    Acceleration, Bandwidth, CacheModel, DelayFault, Delays, DistanceDelay, EmulatedGuest,
    Emulation, LineDelay, MAX_DELAY_NS, NodeDelay, NodeLimits, NodeLimitsError, PairDelay,
    SimulatedTime, delay_digits, delay_nanoseconds, delay_of, megabytes,
};
pub use id::{CpuId, Distance, Id, Irq, NodeId, PciAddress, PciAddressError, RootBus};
pub use interrupt::{Interrupt, Managed, PROC_IRQ_FILES, queue_of};
pub use known::{Known, NOT_ASKED_FOR};
pub use machine::Machine;
pub use names::{alternatives, near_match, shell_command, shell_quoted, shell_words};
pub use node::{Access, HugePages, Memory, MemorySideCache, Node};
pub use origin::{Origin, SourceKind, Warning};
pub use set::{CpuSet, IdSet, MAX_NUMBER, MOST_NODES, NodeSet, SetError};
pub use system::{NumaBalancing, Settings, Writer, WriterKind};
pub use task::{
    ContainerName, CpuTime, Cpuset, MemorySample, NodeBytes, PageCache, PolicyBytes, ResidentBytes,
    ServiceGroup, Task, Thread, UsedMemory,
};
pub use timing::{Latency, LineTransfer, Timing};
