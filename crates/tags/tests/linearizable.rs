//! Histories of concurrent calls are linearizable: some order of the calls, each at a moment between its invocation and its return,
//! is one that a set of free tags could have executed. No tag is handed out twice, none is lost, and a get returns no tag only if
//! there was a moment without a free one.

#[path = "linearizable/checker.rs"]
mod checker;
#[path = "linearizable/faults.rs"]
mod faults;
#[path = "linearizable/history.rs"]
mod history;
#[path = "linearizable/recorder.rs"]
mod recorder;
#[path = "support/system.rs"]
mod system;
#[path = "support/variants.rs"]
mod variants;

use std::time::{Duration, Instant};

use checker::{Allocator, NotLinearizable, check};
use history::History;
use recorder::{Allocate, Plan, record};
use variants::Variant;

/// How long histories of a plan are recorded; a plan has at least one.
const RECORDING: Duration = Duration::from_millis(if cfg!(miri) { 0 } else { 200 });
const CALLS: usize = if cfg!(miri) { 12 } else { 2000 };

const FIXED: Plan = Plan {
    threads: 4,
    calls: CALLS,
    most_held: usize::MAX,
    sizes: &[],
    timeouts: false,
};
/// The relaxation where calls wait or the size changes: other threads miss a tag that a call has in hand. A wait that ends takes a free
/// tag and puts it for the next waiter. A get that sees another size than at its start puts a tag above it back and searches again.
const MOVED: u32 = 1;

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
    for (size, plan) in [
        (1, FIXED),
        (5, FIXED),
        (3, WAITING),
        (2, ONE_EACH_OF_TWO),
        (4, ONE_EACH),
        (40, FIXED),
    ] {
        let tags = variant.builder(size).build().expect("the size is possible");
        let moved = if plan.timeouts { MOVED } else { 0 };
        let found = histories(&tags, plan, (size, size), moved, RECORDING);
        report(variant, plan, found);
    }
    let tags = variant.builder(2).capacity(8).build();
    let tags = tags.expect("the sizes are possible");
    let found = histories(&tags, RESIZED, (2, 8), MOVED, RECORDING);
    report(variant, RESIZED, found);
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
