//! The clock of a sampling.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The flag is looked at this often.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// A clock that does not run backwards.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Waits for a time, or until the flag is set.
    fn wait(&self, until: Duration, cancel: &AtomicBool) {
        while !cancel.load(Ordering::Relaxed) {
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(MAX_WAIT));
        }
    }
}

/// The system's monotonic clock, from 0 at its creation.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Monotonic {
    /// Starts it.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// When it started.
    pub fn started(&self) -> Instant {
        self.0
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
