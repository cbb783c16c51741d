//! Case 2: a preferred node for a task under load.

use super::Case;

pub(super) const CASE: Case = Case {
    number: 2,
    title: "How good is a preferred node?",
    source: "How effective is numa_preferred_nid w.r.t. NUMA performance?, RFC, linux-kernel, December 2023; its kernel \
             interface was not merged",
    question: "Is a task that prefers a node, and is not bound to it, as fast as a bound one on a machine under load?",
    experiment: "probe",
    page: "docs/case-2.md",
    guest: &[
        ("machine", "two-node"),
        ("scale", "cpus=2,memory=512M"),
        ("kernel", "6.12"),
        // The published ratio of remote to local memory, and a line that was changed on the other node.
        ("delay", "near=400,far=507,cache=384K/16,transfer=100/5000"),
    ],
    preparation: Some(include_str!("preferred_node.sh")),
    // A run is a hundredth of a published one, and NUMA balancing scans as many times as often.
    options: &[
        "--bytes=1M",
        "--counts=150",
        "--steps=30000",
        "--load=10",
        "--scan-delay-ms=400",
        "--scan-period-ms=20",
    ],
    options_here: &["--load=60"],
    required_here: &[],
    programs: &[],
    samples: 5,
    minutes: 13,
    effect: None,
    published: None,
    limits: &[
        "How fast memory of a real machine is: delays are set to the published ratio.",
        "Runs are a hundredth as long as the published ones, and numbers of migrations are smaller by that.",
    ],
    limits_here: &[
        "The published machine and load: this machine has its own nodes, CPUs and other work.",
    ],
};
