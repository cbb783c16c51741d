//! The hand-over itself: one line, two threads, numbers that go up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nearfar_machine::CpuId;

use nearfar_proc::affinity;

/// Round trips before the clock starts.
const WARM_UP: u64 = 64;
/// Looks at the line between two looks at anything else, which must not be on the path.
const LOOKS_A_CLOCK: u32 = 1 << 14;

/// Why there is no time for a hand-over.
#[derive(Debug, PartialEq)]
pub enum Trouble {
    /// In words.
    Cannot(String),
    /// So many round trips were made until the time was over.
    TooSlow(u64),
    Cancelled,
}

/// Has the calling thread, pinned to `first`, hand `line` over to a thread on `second` and get it back, `trips` times;
/// gives the nanoseconds of one round trip. Gives up after `limit`.
pub fn round_trips(
    line: &AtomicU64,
    (first, second): (CpuId, CpuId),
    trips: u64,
    limit: Duration,
    cancel: &AtomicBool,
) -> Result<f64, Trouble> {
    let cannot = |cpu: CpuId| {
        move |error: std::io::Error| Trouble::Cannot(format!("cannot run on CPU {cpu}: {error}"))
    };
    affinity::pin(first).map_err(cannot(first))?;
    line.store(0, Ordering::Release);
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let partner = std::thread::Builder::new().name("nearfar-partner".to_owned());
        let (arrived, arrival) = mpsc::channel();
        let partner = partner.spawn_scoped(scope, move || {
            // It starts on the caller's CPU, whose affinity it inherits: the caller has to sleep until it has left.
            let pinned = affinity::pin(second).map_err(cannot(second));
            let is_there = pinned.is_ok();
            if arrived.send(pinned).is_ok() && is_there {
                answer(line, stop);
            }
        });
        partner.map_err(|error| Trouble::Cannot(format!("cannot start a thread: {error}")))?;
        arrival
            .recv()
            .unwrap_or_else(|_| Err(Trouble::Cannot("the other thread ended".to_owned())))?;
        let mut caller = Caller {
            line,
            number: 0,
            deadline: Instant::now() + limit,
            cancel,
        };
        let result = caller.call(WARM_UP).and_then(|()| {
            let start = Instant::now();
            caller.call(trips)?;
            Ok(start.elapsed().as_nanos() as f64 / trips.max(1) as f64)
        });
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Answers every odd number with the next even one until `stop` is set. That flag is not in the line: an answer that is
/// just being stored when the caller gives up would overwrite it there.
fn answer(line: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..LOOKS_A_CLOCK {
            let number = line.load(Ordering::Acquire);
            // No pause instruction between: it would be part of the time, and hypervisors stop a CPU that pauses.
            if number & 1 == 1 {
                line.store(number + 1, Ordering::Release);
            }
        }
    }
}

struct Caller<'a> {
    line: &'a AtomicU64,
    /// The last even number that was seen.
    number: u64,
    deadline: Instant,
    cancel: &'a AtomicBool,
}

impl Caller<'_> {
    /// What is used between two looks at the line is in registers: other loads and stores than those of the line would be part of
    /// the time, above all where each instruction takes some, as in simulated time.
    fn call(&mut self, trips: u64) -> Result<(), Trouble> {
        let (line, mut number) = (self.line, self.number);
        let end = number.wrapping_add(trips.wrapping_mul(2));
        while number < end {
            self.number = number;
            self.check()?;
            let pause = end.min(number.wrapping_add(u64::from(LOOKS_A_CLOCK)));
            while number < pause {
                line.store(number | 1, Ordering::Release);
                number = number.wrapping_add(2);
                let mut looks = LOOKS_A_CLOCK;
                while line.load(Ordering::Acquire) != number {
                    looks = looks.wrapping_sub(1);
                    if looks == 0 {
                        self.number = number;
                        self.check()?;
                        looks = LOOKS_A_CLOCK;
                    }
                }
            }
        }
        self.number = number;
        Ok(())
    }

    fn check(&self) -> Result<(), Trouble> {
        match (
            self.cancel.load(Ordering::Relaxed),
            Instant::now() >= self.deadline,
        ) {
            (true, _) => Err(Trouble::Cancelled),
            (_, true) => Err(Trouble::TooSlow((self.number / 2).saturating_sub(1))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_cpus() -> Option<(CpuId, CpuId)> {
        let allowed = affinity::get(0).unwrap();
        let mut cpus = allowed.iter();
        cpus.next().zip(cpus.next())
    }

    #[test]
    fn a_line_comes_back_as_often_as_it_was_handed_over() {
        let Some(cpus) = two_cpus() else {
            return println!("skipped: cpus: this process may use one CPU only");
        };
        let (line, begun) = (AtomicU64::new(0), Instant::now());
        let time = round_trips(
            &line,
            cpus,
            2000,
            Duration::from_secs(600),
            &AtomicBool::new(false),
        )
        .unwrap();
        let longest = begun.elapsed().as_nanos() as f64 / 2000.0;
        assert!(time > 1.0 && time <= longest, "{time} of {longest} ns");
        assert_eq!(line.load(Ordering::Relaxed), 2 * (WARM_UP + 2000));
    }

    #[test]
    fn one_cpu_cannot_hand_anything_to_itself_and_that_ends() {
        let cpu = affinity::get(0).unwrap().first().unwrap();
        let limit = Duration::from_millis(30);
        let result = round_trips(
            &AtomicU64::new(0),
            (cpu, cpu),
            u64::MAX / 4,
            limit,
            &AtomicBool::new(false),
        );
        assert!(matches!(result, Err(Trouble::TooSlow(_))), "{result:?}");
    }

    #[test]
    fn giving_up_at_any_moment_ends_both_threads() {
        let Some(cpus) = two_cpus() else {
            return println!("skipped: cpus: this process may use one CPU only");
        };
        for microseconds in 0..300 {
            let limit = Duration::from_micros(microseconds % 50);
            let result = round_trips(
                &AtomicU64::new(0),
                cpus,
                u64::MAX / 4,
                limit,
                &AtomicBool::new(false),
            );
            assert!(matches!(result, Err(Trouble::TooSlow(_))), "{result:?}");
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        let cpu = affinity::get(0).unwrap().first().unwrap();
        let cpus = (cpu, CpuId(60_000));
        let result = round_trips(
            &AtomicU64::new(0),
            cpus,
            10,
            Duration::from_secs(600),
            &AtomicBool::new(false),
        );
        assert!(
            matches!(&result, Err(Trouble::Cannot(error)) if error.contains("60000")),
            "{result:?}"
        );
    }
}
