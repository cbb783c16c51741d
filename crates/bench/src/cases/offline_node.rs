//! Case 1: an NVMe controller on a node that is not online.

use super::{Case, Effect, PublishedChange};

pub(super) const CASE: Case = Case {
    number: 1,
    title: "A device on a node that is not online",
    source: "powerpc/numa: Make cpu/memory less numa-node online, linuxppc-dev, May 2024; in Linux since 6.11",
    question: "How much faster is I/O if the kernel knows that one of a disk's two controllers is on a distant node?",
    experiment: "io",
    page: "docs/case-1.md",
    guest: &[
        ("machine", "x86-case1"),
        ("scale", "cpus=1,memory=512M"),
        ("kernel", "6.12"),
        // An emulated I/O takes a vCPU some 100 us: a delay of memory's size does not show.
        ("delay", "device=0/60000"),
    ],
    preparation: Some(include_str!("offline_node.sh")),
    options: &[
        "--device=nvme0n1",
        "--override-device-node",
        "--factor=plan=before,after",
        "--factor=iopolicy=numa",
        "--factor=cpu_node=0",
        "--factor=depth=512",
        "--seconds=1",
    ],
    options_here: &[
        "--factor=plan=before,after",
        "--factor=iopolicy=numa",
        "--factor=depth=512",
        "--jobs=4",
        "--seconds=60",
    ],
    required_here: &["--device"],
    programs: &["fio", "numactl"],
    samples: 12,
    minutes: 2,
    effect: Some(Effect {
        factor: "plan",
        baseline: "before",
        figures: &[
            PublishedChange::new("iops", &[], [632e3, 715e3], "1/s"),
            PublishedChange::new("bytes_per_s", &[], [2589e6, 2928e6], "B/s"),
            PublishedChange::new("latency_mean_ns", &[], [3238e3, 2864e3], "ns"),
            PublishedChange::new("latency_p99_ns", &[], [5735e3, 2966e3], "ns"),
        ],
    }),
    published: None,
    limits: &[
        "The cost of a distant controller: a delay of each submission stands in for it (docs/delays.md). Which path the \
         kernel takes is its own choice.",
        "The kernel's fix, which is of powerpc: here a plan overrides the controller's node.",
        "Four jobs: a host of two CPUs runs one, on one vCPU.",
    ],
    limits_here: &[],
};
