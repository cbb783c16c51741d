//! Case 3: allocators of tags near a device and far from it.

use super::Case;

pub(super) const CASE: Case = Case {
    number: 3,
    title: "Stealing tags from the right neighbour",
    source: "percpu_ida: Take into account CPU topology when stealing tags, linux-kernel, April 2014; the block layer later \
             moved to scalable bitmaps",
    question: "How much faster is I/O far from a device if a CPU that has no free tag steals less, or from its nearest neighbour?",
    experiment: "tags",
    page: "docs/tags.md",
    guest: &[
        ("machine", "queues-on-node-2"),
        ("scale", "cpus=2,memory=512M"),
        ("delay", "transfer=125/500/distance"),
        ("time", "simulated"),
    ],
    preparation: None,
    // The published machine has 64 possible CPUs.
    options: &["--workers=1", "--possible-cpus=64"],
    options_here: &[],
    required_here: &[],
    programs: &[],
    // With fewer than 12 none of the 60 changes of other policies can be significant (Holm).
    samples: 12,
    minutes: 12,
    effect: None,
    published: Some(("percpu_ida, April 2014", include_str!("tag_allocator.csv"))),
    limits: &[
        "Steps of the published order that need several workers per group: each has one.",
        "The cost of a line between real CPUs: transfers are delayed by distance.",
    ],
    limits_here: &[
        "The kernel's allocators: threads take tags of allocators that are written as the kernel's were.",
    ],
};
