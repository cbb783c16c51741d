//! The experiment as `nearfar bench io` declares it: verb, factors and arguments.

use super::EXPERIMENT;
use crate::planned;
use crate::registry::{Argument, Declaration, Kind, Varied};

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
    arguments: &[
        Argument::optional(
            "device",
            "The block device: nvme0n1, sda, a path, an NVMe controller or subsystem, a PCI address",
            Kind::Text,
        ),
        Argument::optional(
            "file",
            "A regular file instead, or a directory: a file is made there and removed",
            Kind::Text,
        ),
        Argument::optional(
            "null",
            "A null block device instead, with its structures in memory of this node; it is removed afterwards",
            Kind::Text,
        ),
        Argument::optional(
            "device-node",
            "The device's node [default: by the model]",
            Kind::Text,
        ),
        Argument::seconds("seconds", "Seconds a sample takes", "2"),
        Argument::seconds("ramp-seconds", "Seconds of I/O before that", "0.2"),
        Argument::new("jobs", "Jobs of fio, each with the depth", "1"),
        Argument {
            kind: Kind::OneOf(&["auto", "io_uring", "libaio"]),
            ..Argument::new(
                "engine",
                "How fio submits: io_uring, or libaio where the kernel refuses that",
                "auto",
            )
        },
        Argument {
            kind: Kind::Size,
            ..Argument::new("size", "Size of a file that is made in a directory", "256M")
        },
        Argument::optional(
            "buffered",
            "Through the page cache, for file systems that have no direct I/O",
            Kind::Flag,
        ),
        Argument {
            kind: Kind::OneOf(&["auto", "off"]),
            ..Argument::new(
                "trace",
                "Trace which path NVMe commands take, where the disk has several paths",
                "auto",
            )
        },
        Argument::optional(
            "locks",
            "Trace which kernel locks are waited for on the CPUs of fio; this costs time where waits are many",
            Kind::Flag,
        ),
        Argument::new(
            "null-queues",
            "Submission queues of the null block device",
            "1",
        ),
        Argument::new(
            "null-delay-us",
            "Microseconds after which the null block device completes an I/O",
            "0",
        ),
        Argument::optional(
            "destroy",
            "Write to this device or file although something is on it",
            Kind::Text,
        ),
        planned::OVERRIDE_DEVICE_NODE,
    ],
};
