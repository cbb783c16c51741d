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

mod check;
mod cpu;
mod device_use;
mod disk;
mod distance;
mod emulation;
mod id;
mod interrupt;
mod known;
mod machine;
mod names;
mod nearness;
mod network;
mod node;
mod numa_balancing;
mod nvme;
mod origin;
mod os_device;
mod page_cache;
mod pci;
mod queue;
pub mod seconds;
mod set;
mod shell;
pub mod size;
mod system;
mod task;
mod timing;
mod warning;

pub use cpu::{Cache, CacheKind, Cpu, CpuStates};
pub use device_use::{TaskFiles, UseKind, UsedFiles};
pub use disk::Disk;
pub use distance::{DistanceError, DistanceOrigin, Distances, Flat};
pub use emulation::{
    Acceleration, Bandwidth, CacheModel, DelayFault, Delays, DistanceDelay, EmulatedGuest,
    Emulation, LineDelay, MAX_DELAY_NS, NodeDelay, NodeLimits, NodeLimitsError, NodeLimitsFault,
    PairDelay, SimulatedTime, delay_digits, delay_nanoseconds, delay_of, megabytes,
};
pub use id::{CpuId, Distance, Id, Irq, NodeId, PciAddress, PciAddressError};
pub use interrupt::{Interrupt, Managed, PROC_IRQ_FILES};
pub use known::{Known, NOT_ASKED_FOR};
pub use machine::Machine;
pub use names::{alternatives, near_match};
pub use nearness::{Nearness, Neighbourhood};
pub use network::{NetworkDevice, ReceiveQueue, TransmitQueue};
pub use node::{Access, HugePages, Memory, MemorySideCache, Node};
pub use numa_balancing::NumaBalancing;
pub use nvme::{AnaState, IoPolicy, NvmeController, NvmeNamespace, NvmePath, NvmeSubsystem};
pub use origin::{Origin, SourceKind};
pub use os_device::{OsDevice, OsDeviceKind};
pub use page_cache::PageCache;
pub use pci::{FirmwareLocality, FirmwareSource, HostBridge, PciDevice, RootBus};
pub use queue::queue_of;
pub use set::{CpuSet, IdSet, MAX_NUMBER, MOST_NODES, NodeSet, SetError};
pub use shell::{shell_quoted, shell_words};
pub use system::{Settings, Writer, WriterKind};
pub use task::{
    CpuTime, Cpuset, MemorySample, NodeBytes, PolicyBytes, ResidentBytes, Task, Thread,
};
pub use timing::{Latency, LineTransfer, Timing};
pub use warning::Warning;
