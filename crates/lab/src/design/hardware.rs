//! Virtual hardware as types: what a machine becomes before arguments are written for it.
//!
//! ```text
//! Hardware
//! ├─ nodes       0, 1, 2 ...          vCPUs and bytes; QEMU wants no gaps, so some may be there only to fill one
//! ├─ topology    sockets x dies x cores x threads
//! ├─ distances   a full matrix, or nothing
//! ├─ performance latencies and bandwidths (HMAT), or nothing
//! ├─ subsystems  NVMe: namespaces, each a disk, shared by the controllers
//! └─ bridges     a host bridge on a node
//!    └─ devices  NVMe controllers, NICs, block devices, stand-ins; each on a port of its own
//! ```

use nearfar_machine::{CpuSet, Distance, NodeId, RootBus};

/// All of a guest's hardware that decides over locality.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hardware {
    /// Nodes by QEMU's number, from 0 without gaps.
    pub nodes: Vec<GuestNode>,
    /// How vCPUs make cores and packages.
    pub topology: Topology,
    /// Row: from; column: to; as many rows as nodes. Empty where nothing is known and the kernel's defaults hold.
    pub distances: Vec<Vec<u8>>,
    /// What ACPI's HMAT says; empty for a guest without one.
    pub performance: Vec<Performance>,
    /// NVMe subsystems, by their number.
    pub subsystems: Vec<Subsystem>,
    /// Host bridges besides the first one of the board, by root bus.
    pub bridges: Vec<Bridge>,
}

impl Hardware {
    /// The distance between two nodes: the firmware's, or what the kernel assumes where it gives none.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Distance {
        let row = self.distances.get(from.0 as usize);
        let told = row.and_then(|row| row.get(to.0 as usize));
        match told {
            Some(&told) => Distance(told.into()),
            None if from == to => Distance::LOCAL,
            None => Distance::REMOTE,
        }
    }
}

/// A node as QEMU's arguments describe it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GuestNode {
    /// Its vCPUs.
    pub cpus: CpuSet,
    /// Its memory; 0 for none.
    pub bytes: u64,
}

/// QEMU's `-smp`: the product of the rest is `cpus`, and numbers count through threads first, sockets last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    /// vCPUs.
    pub cpus: usize,
    /// Packages.
    pub sockets: usize,
    /// Dies (on arm64: clusters) of a package, which are its nodes; 1 where a board has none.
    pub dies: usize,
    /// Cores of a die.
    pub cores: usize,
    /// vCPUs of a core.
    pub threads: usize,
}

/// One node's memory as seen from the CPUs of one node (`-numa hmat-lb`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Performance {
    /// The node of the CPUs.
    pub initiator: NodeId,
    /// The node of the memory.
    pub target: NodeId,
    /// What is measured.
    pub what: Measured,
    /// Nanoseconds, or MiB per second.
    pub value: u64,
}

/// The figures of an HMAT that the kernel shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Measured {
    /// Latency of reads, in nanoseconds.
    ReadLatency,
    /// Latency of writes, in nanoseconds.
    WriteLatency,
    /// Bandwidth of reads, in MiB per second.
    ReadBandwidth,
    /// Bandwidth of writes, in MiB per second.
    WriteBandwidth,
}

/// An NVMe subsystem, `subsystem0`, `subsystem1` and so on by position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subsystem {
    /// The disks of its namespaces, by namespace number from 1.
    pub disks: Vec<String>,
}

/// A host bridge. QEMU knows it as `bridge0`, `bridge1` and so on by position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// QEMU's id.
    pub id: String,
    /// Its root bus in the guest.
    pub root: RootBus,
    /// The node the firmware gives it, by the guest's number.
    pub node: Option<NodeId>,
    /// What sits behind it.
    pub devices: Vec<Device>,
}

/// A device behind a host bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// A controller of an NVMe subsystem.
    Nvme {
        /// QEMU's id, also the name of the bus its namespaces are on: `nvme0`.
        id: String,
        /// Position in [`Hardware::subsystems`].
        subsystem: usize,
        /// The most I/O queue pairs; QEMU's default where the description does not tell.
        io_queues: Option<u32>,
    },
    /// A network card.
    Nic {
        /// QEMU's id, `nic0`.
        id: String,
        /// Whether it has more than one queue.
        multi_queue: bool,
    },
    /// A multi-queue disk that is not NVMe.
    Block {
        /// Its disk.
        disk: String,
        /// Queues.
        queues: usize,
    },
    /// A device that does nothing but be there.
    StandIn(StandIn),
}

/// What stands in for devices that cannot be emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StandIn {
    /// A frame buffer for graphics cards.
    Display,
    /// QEMU's test device for accelerators and other processing functions.
    Other,
}

impl StandIn {
    /// QEMU's name for it.
    pub fn qemu(self) -> &'static str {
        match self {
            Self::Display => "bochs-display",
            Self::Other => "pci-testdev",
        }
    }
}
