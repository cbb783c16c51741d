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
        ("delay", "transfer=500/2000/distance"),
    ],
    preparation: None,
    // A host of two CPUs runs two workers side by side. The published machine has 64 possible CPUs.
    options: &["--workers=1", "--possible-cpus=64"],
    options_here: &[],
    required_here: &[],
    programs: &[],
    samples: 20,
    minutes: 12,
    effect: None,
    published: Some(("percpu_ida, April 2014", include_str!("tag_allocator.csv"))),
    limits: &[
        "Steps of the published order that need several workers per group: a host of two CPUs runs one each.",
        "The cost of a line between real CPUs: transfers are delayed by distance.",
    ],
    limits_here: &[
        "The kernel's allocators: threads take tags of allocators that are written as the kernel's were.",
    ],
};
