//! Waiting for what another process does.

use std::time::{Duration, Instant};

/// Waits until a condition holds. The limit is there for what never comes: a busy host needs minutes for what takes others seconds.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "{what}: not within five minutes"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
