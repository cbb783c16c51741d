//! Case 4: a network card's interrupts near its servers.

use super::{Case, Effect, Levels, PublishedChange};

const REQUESTS: &str = "requests_per_s";
const CARD: Levels = &[("server_node", "card")];
const ADJACENT: Levels = &[("server_node", "adjacent")];

pub(super) const CASE: Case = Case {
    number: 4,
    title: "Interrupts spread nearest first",
    source: "lib: optimize cpumask_local_spread(), linux-kernel, November 2019; in Linux since 6.3",
    question: "Does a server on the node next to a network card's node catch up with one on the card's node if the card's \
               interrupts are spread over the nearest nodes?",
    experiment: "rps",
    page: "docs/case-4.md",
    guest: &[
        ("machine", "cards-back-to-back"),
        ("scale", "cpus=2,memory=512M"),
        ("kernel", "6.12"),
        ("delay", "auto"),
    ],
    // The emulated cards' drivers hold interrupts back by default, which hides who serves them.
    preparation: Some("ethtool -C eth0 rx-usecs 0 && ethtool -C eth1 rx-usecs 0 && exec \"$@\""),
    options: &[
        "--device=eth0",
        "--client-device=eth1",
        "--factor=server_node=card,adjacent,together",
        "--factor=interrupts=kernel_pre_6_3,nearest_first",
        "--seconds=1",
    ],
    options_here: &[
        "--factor=interrupts=kernel_pre_6_3,nearest_first",
        "--servers=24",
    ],
    required_here: &["--device", "--client-device"],
    programs: &["redis-server", "ip", "ethtool"],
    samples: 20,
    minutes: 6,
    effect: Some(Effect {
        factor: "interrupts",
        baseline: "kernel_pre_6_3",
        figures: &[
            PublishedChange::new(REQUESTS, CARD, [260e3, 260e3], "1/s"),
            PublishedChange::new(REQUESTS, ADJACENT, [220e3, 260e3], "1/s"),
        ],
    }),
    published: None,
    limits: &[
        "DMA of the card and the cost of an interrupt between real CPUs: memory and lines between CPUs are delayed by distance.",
        "24 servers per node: a host of two CPUs runs one server and one client.",
    ],
    limits_here: &[],
};
