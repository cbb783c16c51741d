//! Case 5: more nodes than the machine has.

use super::{Case, Effect, PublishedChange};

const fn published(
    tasks: &'static [(&'static str, &'static str)],
    values: [f64; 2],
    unit: &'static str,
) -> PublishedChange {
    PublishedChange {
        metric: "operations_per_s",
        cell: tasks,
        values,
        unit,
    }
}

pub(super) const CASE: Case = Case {
    number: 5,
    title: "More nodes than the machine has",
    source: "support NUMA emulation for arm64, RFC, linux-arm-kernel, October 2023; generic since Linux 6.12",
    question: "Do processes that all want one lock of their node get further if the machine is divided into more nodes?",
    experiment: "scale",
    page: "docs/scale.md",
    guest: &[
        ("machine", "node:1 core:4"),
        ("scale", "memory=1G"),
        ("kernel", "6.12"),
        ("append", "numa=fake=1"),
        ("append", "numa=fake=2"),
        ("append", "numa=fake=4"),
    ],
    preparation: None,
    options: &[
        "--factor=workload=tlb_flush",
        "--factor=memory=spread",
        "--factor=tasks=1,2,3,4",
        "--memory-size=4M",
    ],
    options_here: &["--factor=workload=tlb_flush", "--sweep=full"],
    required_here: &[],
    programs: &[],
    samples: 6,
    minutes: 9,
    effect: Some(Effect {
        factor: "append",
        baseline: "numa=fake=1",
        // One node and two.
        figures: &[
            published(&[("tasks", "1")], [141_122.0, 141_168.0], "1/s"),
            published(
                &[("tasks", "4")],
                [724_516.0, 1_423_968.0],
                "1/s, 96 processes on 96 CPUs",
            ),
        ],
    }),
    published: None,
    limits: &[
        "Whether the lock is hot: an emulated CPU takes so long for the rest of an operation that two of them, as many as a host of          two CPUs runs at a time, seldom meet in the lock. Published were 24 to 96 processes.",
        "arm64: the guests are x86-64, whose kernel divides nodes in the same way.",
    ],
};
