//! How fast the host's time stamp counter counts, which under software emulation is an x86 guest's own.
//!
//! A guest's kernel that measures it while the host does other work may find a tenth of it, and its clocks are then ten times too fast:
//! a second measurement corrects up to 1 % (`tsc_refine_calibration_work` in arch/x86/kernel/tsc.c). So the kernel gets it
//! (`tsc_early_khz`), and corrects that.

#[cfg(target_arch = "x86_64")]
use std::{sync::LazyLock, thread, time::Duration, time::Instant};

/// In MHz, so that it is the same each time: it is part of what a saved guest is found by. `None` where the host has no such counter.
#[cfg(target_arch = "x86_64")]
pub(super) fn mhz() -> Option<u64> {
    /// A reading is exact to some 100 ns.
    const PERIOD: Duration = Duration::from_millis(20);
    static MHZ: LazyLock<u64> = LazyLock::new(|| {
        let (from, ticks_from) = reading();
        thread::sleep(PERIOD);
        let (to, ticks_to) = reading();
        let us = (to - from).as_nanos() as f64 / 1000.0;
        (ticks_to.wrapping_sub(ticks_from) as f64 / us).round() as u64
    });
    Some(*MHZ)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn mhz() -> Option<u64> {
    None
}

/// A moment and the counter then: of several attempts the one that took the shortest time.
#[cfg(target_arch = "x86_64")]
fn reading() -> (Instant, u64) {
    const ATTEMPTS: usize = 16;
    let attempts = (0..ATTEMPTS).map(|_| {
        let before = Instant::now();
        // SAFETY: every x86-64 processor has the counter, and reading it touches no memory.
        let ticks = unsafe { core::arch::x86_64::_rdtsc() };
        (before.elapsed(), before, ticks)
    });
    let shortest = attempts.min_by_key(|(took, ..)| *took);
    let (took, before, ticks) = shortest.expect("there are attempts");
    (before + took / 2, ticks)
}
