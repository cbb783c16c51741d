// SPDX-License-Identifier: GPL-2.0-or-later
//! Waiting for some hundred nanoseconds without a system call.

use std::cell::Cell;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

/// What a vCPU waits by.
pub trait Clock {
    /// Now, in ticks.
    fn now(&self) -> u64;
    /// Picoseconds in ticks.
    fn ticks(&self, ps: u64) -> u64;
    /// Returns when it is `until`, in ticks.
    fn wait(&self, until: u64);
    /// Now, in picoseconds of simulated time, which only waiting makes pass; `None` in the host's time.
    fn simulated_ps(&self) -> Option<u64>;
}

/// The host's time stamp counter, or its monotonic clock where there is none that can be read cheaply.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    ticks_per_ns: f64,
}

impl HostClock {
    /// Measures how fast the counter runs; takes ten milliseconds.
    pub fn calibrated() -> Self {
        let mut clock = Self { ticks_per_ns: 1.0 };
        let (time, ticks) = (Instant::now(), clock.now());
        while time.elapsed() < Duration::from_millis(10) {
            spin_loop();
        }
        clock.ticks_per_ns = (clock.now() - ticks) as f64 / time.elapsed().as_nanos() as f64;
        clock
    }

    #[cfg(target_arch = "x86_64")]
    fn counter(&self) -> u64 {
        // SAFETY: reading the time stamp counter touches no memory, and every x86-64 processor has one.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn counter(&self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to the value above; the monotonic clock exists on every Linux.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

impl Clock for HostClock {
    fn now(&self) -> u64 {
        self.counter()
    }

    fn ticks(&self, ps: u64) -> u64 {
        (ps as f64 / 1000.0 * self.ticks_per_ns) as u64
    }

    fn wait(&self, until: u64) {
        while self.counter() < until {
            spin_loop();
        }
    }

    fn simulated_ps(&self) -> Option<u64> {
        None
    }
}

/// Waiting that only counts, in picoseconds of a vCPU's local time.
#[derive(Debug)]
pub struct Charged(Cell<u64>);

impl Charged {
    /// From a local time on.
    pub fn from(local_ps: u64) -> Self {
        Self(Cell::new(local_ps))
    }
}

impl Clock for Charged {
    fn now(&self) -> u64 {
        self.0.get()
    }

    fn ticks(&self, ps: u64) -> u64 {
        ps
    }

    fn wait(&self, until: u64) {
        self.0.set(until.max(self.0.get()));
    }

    fn simulated_ps(&self) -> Option<u64> {
        Some(self.0.get())
    }
}
