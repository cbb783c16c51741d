//! A short stress of every policy: `examples/stress` is the long one, and says what is done and checked.

#![cfg(not(miri))] // Signals and affinities.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::scenario::{SCENARIOS, run};
use crate::variants;
use crate::variants::Variant;

const LENGTH: Duration = Duration::from_millis(90);

fn assert_correct(variant: Variant) {
    // The signal handler works on one allocator at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (seed, scenario) in (0..).zip(SCENARIOS) {
        let counts = run(variant, scenario, LENGTH, seed);
        assert!(
            counts.is_correct(),
            "{}: {scenario:?}: {counts:?}",
            variant.name
        );
        assert!(
            counts.gets > 0,
            "{}: {scenario:?}: {counts:?}",
            variant.name
        );
    }
}

macro_rules! stress {
    ($($name:ident: $variant:ident,)*) => {
        $(
            #[test]
            fn $name() {
                assert_correct(variants::$variant);
            }
        )*
    };
}

stress! {
    stock: STOCK,
    limit: LIMIT,
    limit_topology: LIMIT_TOPOLOGY,
    coarse_core: COARSE_CORE,
    coarse_llc: COARSE_LLC,
    coarse_node: COARSE_NODE,
    bitmap: BITMAP,
    auto: AUTO,
    auto_without_rseq: AUTO_WITHOUT_RSEQ,
}
