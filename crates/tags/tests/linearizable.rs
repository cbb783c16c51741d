//! Histories of concurrent calls are linearizable: some order of the calls, each at a moment between its invocation and its return,
//! is one that a set of free tags could have executed. No tag is handed out twice, none is lost, and a get returns no tag only if
//! there was a moment without a free one.

use crate::variants;
mod checker;
mod faults;
mod history;
mod recorder;

use std::time::{Duration, Instant};

use crate::variants::Variant;
use checker::{Allocator, NotLinearizable, check};
use history::History;
use nearfar_tags::Policy;
use recorder::{Allocate, Plan, record};

/// How long histories of a plan are recorded; a plan has at least one.
const RECORDING: Duration = Duration::from_millis(if cfg!(miri) { 0 } else { 80 });
const CALLS: usize = if cfg!(miri) { 12 } else { 2000 };

const FIXED: Plan = Plan {
    threads: 4,
    calls: CALLS,
    most_held: usize::MAX,
    sizes: &[],
    timeouts: false,
};
/// The sizes of caches under `Auto`, which caches at least 16 tags.
const RESIZED_CACHES: Plan = Plan {
    sizes: &[5, 16, 24, 40],
    ..RESIZED
};

/// The relaxations: how many free tags a call may have in hand, so that calls of other threads miss them.
/// - A wait that ends takes a free tag and puts it for the next waiter.
/// - A get that sees another size than at its start puts a tag above it back and searches again.
/// - `Auto` moves up to half of a CPU's cache to or from the shared words, and the caches hold half of all tags at most. Without
///   caches it moves up to a sixteenth of all tags from the words of one CPU to those of another.
fn moved(variant: Variant, plan: Plan, size: u32) -> u32 {
    if variant == variants::AUTO && size >= 16 {
        size / 4 + 1
    } else {
        let in_hand = u32::from(plan.timeouts || !plan.sizes.is_empty());
        match variant.policy {
            Policy::Auto => in_hand + size / 16,
            _ => in_hand,
        }
    }
}

/// With as many tags as threads, a get never returns without one.
const ONE_EACH: Plan = Plan {
    most_held: 1,
    ..FIXED
};
const ONE_EACH_OF_TWO: Plan = Plan {
    threads: 2,
    ..ONE_EACH
};
const WAITING: Plan = Plan {
    timeouts: true,
    ..FIXED
};
const RESIZED: Plan = Plan {
    threads: 3,
    sizes: &[2, 3, 6, 8],
    ..WAITING
};

/// Records histories until the time is over or one is not linearizable. Every history starts with no tag held.
fn histories(
    allocator: &impl Allocate,
    plan: Plan,
    (size, capacity): (u32, u32),
    moved: u32,
    time: Duration,
) -> Result<(), (History, Box<NotLinearizable>)> {
    let end = Instant::now() + time;
    for seed in 0.. {
        allocator.resize(size);
        let (history, held) = record(allocator, plan, seed);
        let initial = Allocator::new(size, capacity);
        check(&history, initial, moved).map_err(|error| (history, error))?;
        held.into_iter().for_each(|tag| allocator.put(tag));
        if Instant::now() >= end {
            break;
        }
    }
    Ok(())
}

fn assert_linearizable(variant: Variant) {
    for (plan, size, capacity) in [
        (FIXED, 1, 1),
        (FIXED, 5, 5),
        (FIXED, 24, 24),
        (WAITING, 3, 3),
        (WAITING, 40, 40),
        (ONE_EACH_OF_TWO, 2, 2),
        (ONE_EACH, 4, 4),
        (RESIZED, 2, 8),
        (RESIZED_CACHES, 24, 40),
    ] {
        let tags = variant.builder(size).capacity(capacity).build();
        let tags = tags.expect("the sizes are possible");
        let moved = moved(variant, plan, capacity);
        let found = histories(&tags, plan, (size, capacity), moved, RECORDING);
        report(variant, plan, found);
    }
}

fn report(variant: Variant, plan: Plan, found: Result<(), (History, Box<NotLinearizable>)>) {
    if let Err((_, error)) = found {
        panic!("{}: {plan:?}: no order explains {error:?}", variant.name);
    }
}

macro_rules! linearizable {
    ($($name:ident: $variant:ident,)*) => {
        $(
            #[test]
            fn $name() {
                assert_linearizable(variants::$variant);
            }
        )*
    };
}

linearizable! {
    histories_of_stock: STOCK,
    histories_of_limit: LIMIT,
    histories_of_limit_topology: LIMIT_TOPOLOGY,
    histories_of_coarse_core: COARSE_CORE,
    histories_of_coarse_llc: COARSE_LLC,
    histories_of_coarse_node: COARSE_NODE,
    histories_of_bitmap: BITMAP,
    histories_of_auto: AUTO,
    histories_of_auto_without_rseq: AUTO_WITHOUT_RSEQ,
}
