//! Case 0, to test the command with: no list has it.

use super::{Case, Effect, PublishedChange};

pub(super) const CASE: Case = Case {
    number: 0,
    title: "Is slow slower than fast?",
    source: "not published",
    question: "Is the slow level slower than the fast one?",
    experiment: "mock",
    page: "docs/cases.md",
    guest: &[
        ("machine", "two-node"),
        ("scale", "cpus=1,memory=256M"),
        ("append", "quiet"),
        ("append", "nokaslr"),
    ],
    preparation: None,
    options: &["--slow-ms=1"],
    options_here: &["--slow-ms=1"],
    required_here: &[],
    programs: &["sh"],
    samples: 6,
    minutes: 1,
    effect: Some(Effect {
        factor: "speed",
        baseline: "fast",
        figures: &[PublishedChange {
            metric: "latency_us",
            cell: &[],
            values: [1.5, 1000.0],
            unit: "us",
        }],
    }),
    published: None,
    limits: &["Anything: nothing is measured."],
    limits_here: &["Anything: nothing is measured."],
};
