//! Case 5: more nodes than the machine has.

use super::{Case, Effect, Levels, PublishedChange};

/// One task, some, and as many as CPUs.
const ONE: Levels = &[("tasks", "1")];
const SOME: Levels = &[("tasks", "12")];
const ALL: Levels = &[("tasks", "24")];

pub(super) const CASE: Case = Case {
    number: 5,
    title: "More nodes than the machine has",
    source: "support NUMA emulation for arm64, RFC, linux-arm-kernel, October 2023; generic since Linux 6.12",
    question: "Do processes that all want one lock of their node get further if the machine is divided into more nodes?",
    experiment: "scale",
    page: "docs/scale.md",
    // The kernel traces waits for spinlocks only where it sees no hypervisor (docs/trace.md).
    guest: &[
        ("machine", "node:1 core:24"),
        ("scale", "memory=2G"),
        ("kernel", "6.12"),
        ("time", "simulated"),
        ("append", "numa=fake=1 clearcpuid=hypervisor"),
        ("append", "numa=fake=2 clearcpuid=hypervisor"),
    ],
    preparation: None,
    options: &[
        "--factor=memory=spread",
        "--factor=tasks=1,12,24",
        "--seconds=0.005",
    ],
    options_here: &["--factor=workload=tlb_flush,lru", "--sweep=full"],
    required_here: &[],
    programs: &[],
    // With fewer than 6 none of the changes can be significant (Holm); two may fail.
    samples: 8,
    minutes: 25,
    effect: Some(Effect {
        factor: "append",
        baseline: "numa=fake=1 clearcpuid=hypervisor",
        // One node and two.
        figures: &[
            PublishedChange::new("operations_per_s", ONE, [141_122.0, 141_168.0], "1/s"),
            PublishedChange::new("operations_per_s", SOME, [1_105_372.0, 1_444_848.0], "1/s"),
            PublishedChange::new(
                "operations_per_s",
                ALL,
                [724_516.0, 1_423_968.0],
                "1/s, 96 processes",
            ),
            PublishedChange::new("hot_lock_share", ALL, [0.24, 0.0], "24 processes"),
        ],
    }),
    published: None,
    limits: &[
        "How long memory takes: it is equally fast everywhere in these guests, and a line that another CPU has written costs \
         nothing. One node therefore gets no slower with more tasks, as the published one does.",
        "96 CPUs: the guests have 24.",
        "arm64: the guests are x86-64, whose kernel divides nodes in the same way.",
    ],
    limits_here: &[
        "More nodes than this machine has: a kernel splits its memory only at boot (numa=fake=2).",
    ],
};
