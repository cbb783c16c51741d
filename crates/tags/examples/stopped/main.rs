//! No tag is stuck: `stopped [SECONDS [VARIANT]]` stops a thread whose CPU's cache is full, and measures how long another thread needs to get
//! every free tag while a thread for each CPU takes and puts. A line for each policy, exit code 1 if a tag was not reached.
//!
//! A round counts its longest time for one tag. Rounds in which the scheduler preempted the measuring thread are not counted.

#[path = "../../tests/support/system.rs"]
mod system;
#[path = "../../tests/support/variants.rs"]
mod variants;

mod reach;
mod tracer;

use std::process::ExitCode;
use std::time::Duration;

use reach::{Moment, measure, quantile};
use variants::{ALL, Variant};

const TAGS: u32 = 255;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(Ok(2), |value| value.parse());
    let name = arguments.next();
    let Ok(seconds) = seconds else {
        eprintln!("usage: stopped [SECONDS [VARIANT]]");
        return ExitCode::from(2);
    };
    println!(
        "{:<17} {:<8} {:>7} {:>12} {:>12} {:>12} {:>12} {:>7} {:>9}",
        "policy",
        "stopped",
        "rounds",
        "one, p50",
        "one, p99",
        "all, p50",
        "all, p99",
        "misses",
        "preempted"
    );
    let mut is_correct = true;
    let is_wanted = |variant: &Variant| name.as_deref().is_none_or(|name| name == variant.name);
    for variant in ALL.into_iter().filter(is_wanted) {
        let moments = match variant.is_async_signal_safe() {
            true => [Moment::Outside, Moment::Inside].as_slice(),
            // A thread that is stopped while it has locked a cache stops all that need the lock.
            false => &[Moment::Outside],
        };
        for &moment in moments {
            is_correct &= line(variant, moment, Duration::from_secs(seconds));
        }
    }
    ExitCode::from(u8::from(!is_correct))
}

fn line(variant: Variant, moment: Moment, length: Duration) -> bool {
    let reached = match measure(variant, TAGS, moment, length) {
        Ok(reached) => reached,
        Err(error) => {
            eprintln!("stopped: cannot stop a thread: {error}");
            return false;
        }
    };
    let (longest, all) = (&reached.longest, &reached.all);
    println!(
        "{:<17} {:<8} {:>7} {:>12.1?} {:>12.1?} {:>12.1?} {:>12.1?} {:>7} {:>9}",
        variant.name,
        format!("{moment:?}").to_lowercase(),
        longest.len(),
        quantile(longest, 0.5),
        quantile(longest, 0.99),
        quantile(all, 0.5),
        quantile(all, 0.99),
        reached.misses,
        reached.preempted,
    );
    if reached.fewest < reached.expected {
        println!(
            "{}: reached {} of {} free tags",
            variant.name, reached.fewest, reached.expected
        );
    }
    reached.fewest == reached.expected
}
