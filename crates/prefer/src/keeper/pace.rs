//! When to look again: often where tasks wait, rarely where none does, and never for more than a small part of a CPU.
//!
//! ```text
//!  credit (CPU time)  ▲ a part of all time that passes, up to what one look by accident costs
//!                     ▼ what each look took; the first ones, of code that never ran, have a gift to spend
//!  in debt ──► no look until it is paid, two seconds at most
//! ```

use std::time::Duration;

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// All threads are on the node and none waits.
    Idle,
    /// Some thread is released and may be confined again.
    Spilled,
    /// Some thread waits and may have to be released.
    Contended,
}

/// When looks are due.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    /// CPU time, in seconds.
    credit: f64,
    looks: u32,
    calm: u32,
    waiting: u32,
}

/// The part of a CPU that looks may take.
const MAX_CPU_PART: f64 = 1.0 / 120.0;
/// The same in the seconds in which it matters most.
const MAX_CPU_PART_CONTENDED: f64 = 1.0 / 30.0;
/// Now and then a look is expensive by accident (a hypervisor takes the CPU away): in seconds.
const MAX_CREDIT_S: f64 = 0.03;
/// The first looks are, and they matter: who is too many at the start leaves after the fourth. In an emulated guest of four
/// busy CPUs on a host of two they took more than 0.2 s together, on hardware a hundredth of that. In seconds.
const START_CREDIT_S: f64 = 0.5;
/// So many are the first.
const START_LOOKS: u32 = 20;
/// So many calm looks, and they become rarer.
const IDLE_LOOKS: u32 = 10;
/// After so many looks that found a task waiting, haste has not helped.
const MAX_CONTENDED_LOOKS: u32 = 20;
/// A keeper that looks more rarely keeps no task in place.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(2);

impl Pace {
    /// Looks that are cheap are so far apart, and twice as far where all is calm.
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            credit: START_CREDIT_S,
            looks: 0,
            calm: 0,
            waiting: 0,
        }
    }

    /// How long to wait after a look that took `cost` of CPU time and began `passed` after the one before.
    pub(super) fn after(&mut self, load: Load, passed: Duration, cost: Duration) -> Duration {
        self.calm = if load == Load::Idle {
            self.calm.saturating_add(1)
        } else {
            0
        };
        self.waiting = if load == Load::Contended {
            self.waiting.saturating_add(1)
        } else {
            0
        };
        let part = if (1..=MAX_CONTENDED_LOOKS).contains(&self.waiting) {
            MAX_CPU_PART_CONTENDED
        } else {
            MAX_CPU_PART
        };
        self.looks = self.looks.saturating_add(1);
        if self.looks == START_LOOKS {
            self.credit = self.credit.min(MAX_CREDIT_S);
        }
        let earned = (passed.as_secs_f64() * part).min((MAX_CREDIT_S - self.credit).max(0.0));
        self.credit += earned - cost.as_secs_f64();
        let interval = if self.calm > IDLE_LOOKS {
            2 * self.interval
        } else {
            self.interval
        };
        let paid = Duration::try_from_secs_f64(-self.credit / part).unwrap_or_default();
        interval.max(paid.min(MAX_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    #[test]
    fn cheap_looks_keep_to_the_interval_and_calm_ones_to_twice_as_much() {
        let mut pace = Pace::new(INTERVAL);
        let look = |pace: &mut Pace, load| pace.after(load, INTERVAL, Duration::from_micros(100));
        assert_eq!(
            (0..10).map(|_| look(&mut pace, Load::Idle)).max(),
            Some(INTERVAL)
        );
        assert_eq!(look(&mut pace, Load::Idle), 2 * INTERVAL);
        assert_eq!(look(&mut pace, Load::Contended), INTERVAL);
    }

    #[test]
    fn dear_looks_at_the_start_and_one_by_accident_are_spared() {
        let mut pace = Pace::new(INTERVAL);
        for _ in 0..9 {
            assert_eq!(
                pace.after(Load::Contended, INTERVAL, Duration::from_millis(50)),
                INTERVAL
            );
        }
        for _ in 0..1000 {
            pace.after(Load::Idle, INTERVAL, Duration::ZERO);
        }
        assert_eq!(
            pace.after(Load::Spilled, INTERVAL, Duration::from_millis(25)),
            INTERVAL
        );
        assert!(
            pace.after(Load::Spilled, INTERVAL, Duration::from_millis(25)) > Duration::from_secs(1)
        );
    }

    proptest! {
        #[test]
        fn looks_never_take_more_than_their_part(costs in prop::collection::vec(0_u64..16_000, 100..200), load in 0..3_u8) {
            let load = [Load::Idle, Load::Spilled, Load::Contended][usize::from(load)];
            let mut pace = Pace::new(INTERVAL);
            let (mut passed, mut all, mut spent) = (INTERVAL, Duration::ZERO, Duration::ZERO);
            for cost in costs.iter().map(|&cost| Duration::from_micros(cost)) {
                all += passed;
                spent += cost;
                passed = pace.after(load, passed, cost);
                prop_assert!(passed >= INTERVAL && passed <= MAX_PAUSE.max(2 * INTERVAL));
            }
            let contended = if load == Load::Contended { f64::from(MAX_CONTENDED_LOOKS) * 0.5 * MAX_CPU_PART_CONTENDED } else { 0.0 };
            let most = (all + passed).as_secs_f64() * MAX_CPU_PART + START_CREDIT_S + contended;
            prop_assert!(spent.as_secs_f64() <= most + 1e-6, "{spent:?} of {all:?}");
        }
    }
}
