//! Waiting for what another process does.

use std::time::{Duration, Instant};

/// Waits until a condition holds, at most a minute: more than anything takes that tests wait for.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what}: not within a minute"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
