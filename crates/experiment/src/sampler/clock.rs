//! The clock of a sampling.

use std::time::{Duration, Instant};

/// A clock that does not run backwards.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
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
