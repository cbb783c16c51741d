//! The experiment as `nearfar bench io` declares it: verb, factors and options.

use std::fmt;
use std::path::PathBuf;

use clap::Args as _;
use nearfar_machine::{NodeId, seconds};
use serde::Serialize;

use super::EXPERIMENT;
use crate::planned;
use crate::registry::{Declaration, Entry, RunError, SECONDS, Varied, node, number, size, within};

pub(super) const PATTERN: &str = "pattern";
pub(super) const BLOCK_SIZE: &str = "block_size";
pub(super) const DEPTH: &str = "depth";
pub(super) const MEMORY_NODE: &str = "memory_node";
pub(super) const CPU_NODE: &str = "cpu_node";
pub(super) const IOPOLICY: &str = "iopolicy";
pub(super) const KEEP: &str = "keep";

pub const DECLARATION: Declaration = Declaration {
    name: EXPERIMENT,
    about: "Measure I/O with fio from near and far CPUs: node of CPUs and memory x depth x I/O policy x plan\n\n\
            Runs fio on a device, a file or a null block device, from the CPUs nearest to it and those most distant, with \
            its memory near or far. near and far follow nearfar's model, also for a device that the kernel has no node \
            for. A device is only read unless a pattern that writes is asked for; one that is mounted, has partitions, a \
            signature or holders, or is in use is not written to unless --destroy names it again.",
    examples: &[
        "--device nvme0n1",
        "--device nvme0n1 --factor iopolicy=numa,round-robin --factor plan=before,after --override-device-node",
        "--null 0 --factor depth=1,32",
        "--file /var/tmp --factor pattern=randread,randwrite",
    ],
    is_hidden: false,
    is_of_machine: false,
    needs_devices: true,
    is_simulated: false,
    samples: 10,
    factors: &[
        Varied::new(
            PATTERN,
            &["randread", "randwrite", "randrw", "read", "write", "rw"],
            &["randread"],
        ),
        Varied::numbers(BLOCK_SIZE, 512..=16 << 20, &[4096]),
        Varied::numbers(DEPTH, 1..=4096, &[32]),
        Varied::new(
            IOPOLICY,
            &[KEEP, "numa", "round-robin", "queue-depth"],
            &[KEEP],
        ),
        planned::FACTOR,
        Varied::node(MEMORY_NODE, &["near"]),
        Varied::node(CPU_NODE, &["near", "far"]),
    ],
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(super::prepare::make),
};

/// Its own options, as they are stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub(super) struct Parameters {
    /// The block device: nvme0n1, sda, a path, an NVMe controller or subsystem, a PCI address
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// A regular file instead, or a directory: a file is made there and removed
    #[arg(long, value_name = "FILE-OR-DIRECTORY")]
    file: Option<String>,
    /// A null block device instead, with its structures in memory of this node; it is removed afterwards
    #[arg(long, value_name = "NODE", value_parser = node)]
    null: Option<NodeId>,
    /// The device's node [default: by the model]
    #[arg(long, value_name = "NODE", value_parser = node)]
    pub(super) device_node: Option<NodeId>,
    /// Seconds a sample takes
    #[arg(long, value_name = SECONDS, default_value = "2", value_parser = within(0.01..=3600.0, seconds::parse))]
    pub(super) seconds: f64,
    /// Seconds of I/O before that
    #[arg(long, value_name = SECONDS, default_value = "0.2", value_parser = within(0.0..=3600.0, seconds::parse))]
    pub(super) ramp_seconds: f64,
    /// Jobs of fio, each with the depth
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=1024, number::<u32>))]
    pub(super) jobs: u32,
    /// How fio submits: io_uring, or libaio where the kernel refuses that
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "io_uring", "libaio"])]
    pub(super) engine: String,
    /// Size of a file that is made in a directory
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size(1 << 20..=1 << 50))]
    pub(super) size: u64,
    /// Through the page cache, for file systems that have no direct I/O
    #[arg(long)]
    pub(super) buffered: bool,
    /// Trace which path NVMe commands take, where the disk has several paths
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "off"])]
    pub(super) trace: String,
    /// Trace which kernel locks are waited for on the CPUs of fio; this costs time where waits are many
    #[arg(long)]
    pub(super) locks: bool,
    /// Submission queues of the null block device
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=4096, number::<u32>))]
    pub(super) null_queues: u32,
    /// Microseconds after which the null block device completes an I/O
    #[arg(long, value_name = "N", default_value = "0", value_parser = within(0.0..=1e6, number))]
    pub(super) null_delay_us: f64,
    /// Write to this device or file although something is on it
    #[arg(long, value_name = "NAME")]
    pub(super) destroy: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) planned: planned::Parameters,
}

/// What is to be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// A block device by any of its names.
    Device(String),
    /// A regular file, or a directory for one.
    File(PathBuf),
    /// A null block device on a node.
    Null(NodeId),
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
            Self::Null(node) => write!(f, "a null block device on node {node}"),
        }
    }
}

impl Parameters {
    /// The one target that was named.
    ///
    /// # Errors
    /// When there is none, or another one.
    pub(super) fn asked(&self) -> Result<Asked, RunError> {
        let device = self.device.clone().map(Asked::Device);
        let file = self.file.clone().map(|path| Asked::File(path.into()));
        let null = self.null.map(Asked::Null);
        let mut given = [device, file, null].into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(asked), None) => Ok(asked),
            (None, _) => Err(RunError::Target(
                "what to measure is missing: --device NAME, --file FILE-OR-DIRECTORY or --null NODE\na machine without a \
                 device to spare has --file with a directory, and --null 0 for root where the kernel has null_blk; both only read \
                 and write what nearfar makes"
                    .into(),
            )),
            _ => Err(RunError::Target(
                "only one of --device, --file and --null can be measured".into(),
            )),
        }
    }
}
