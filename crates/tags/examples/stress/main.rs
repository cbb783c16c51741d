//! Stress of the real code: `stress [VARIANT|all] [SECONDS]`, a line for each policy, exit code 1 if a guarantee does not hold.
//!
//! 8 threads for each CPU take and put tags in every form (try, wait with and without a timeout, futures that are polled or dropped,
//! batches, guards of threads that end or panic, tags that another thread puts), move between CPUs, and are interrupted by signals
//! whose handler uses the allocator itself; other threads resize it. Checked: no tag has two owners, every tag is free at the end, no
//! wait lasts for 30 s.

#[path = "../../tests/support/system.rs"]
mod system;
#[path = "../../tests/support/variants.rs"]
mod variants;

mod owners;
mod scenario;
mod storm;
mod workers;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use scenario::{Counts, SCENARIOS, run};
use variants::{ALL, Variant};

/// The most time on one allocator.
const MAX_SCENARIO: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "all".to_owned());
    let seconds = arguments.next().unwrap_or_else(|| "8".to_owned());
    let variants: Vec<Variant> = ALL
        .into_iter()
        .filter(|variant| name == "all" || variant.name == name)
        .collect();
    let (false, Ok(seconds)) = (variants.is_empty(), seconds.parse()) else {
        let names: Vec<_> = ALL.iter().map(|variant| variant.name).collect();
        eprintln!("usage: stress [all|{}] [SECONDS]", names.join("|"));
        return ExitCode::from(2);
    };
    let is_correct = variants
        .into_iter()
        .all(|variant| stress(variant, Duration::from_secs(seconds)));
    ExitCode::from(u8::from(!is_correct))
}

fn stress(variant: Variant, length: Duration) -> bool {
    let each = (length / SCENARIOS.len() as u32).min(MAX_SCENARIO);
    let start = Instant::now();
    let mut counts = Counts::default();
    for (seed, scenario) in (0..).zip(SCENARIOS.into_iter().cycle()) {
        add(&mut counts, run(variant, scenario, each, seed));
        if !counts.is_correct() {
            eprintln!("{}: {scenario:?} {seed}: {counts:?}", variant.name);
            break;
        }
        if start.elapsed() >= length {
            break;
        }
    }
    println!(
        "{:<17} {:6.1} s  {:>12} gets  {:>9} waits, longest {:.1?}  {:>8} refills  {:>8} signals  {:>7} resizes  {} duplicates  {} lost  {} lost \
         wake-ups",
        variant.name,
        start.elapsed().as_secs_f64(),
        counts.gets,
        counts.waits,
        counts.longest_wait,
        counts.refills,
        counts.signals,
        counts.resizes,
        counts.duplicates,
        counts.lost,
        counts.lost_wake_ups.len(),
    );
    counts.is_correct()
}

fn add(counts: &mut Counts, other: Counts) {
    counts.gets += other.gets;
    counts.waits += other.waits;
    counts.refills += other.refills;
    counts.signals += other.signals;
    counts.resizes += other.resizes;
    counts.duplicates += other.duplicates;
    counts.lost += other.lost;
    counts.longest_wait = counts.longest_wait.max(other.longest_wait);
    counts.lost_wake_ups.extend(other.lost_wake_ups);
}
