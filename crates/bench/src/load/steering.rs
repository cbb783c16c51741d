//! How much a load still owes, period by period. Pure: times go in, times come out.

/// CPU time that may be made up for after the CPU was taken, in seconds.
const MOST_DEBT_S: f64 = 0.05;

/// The steering of one process. All times are in seconds since its start.
pub(super) struct Steering {
    /// The share of time it burns, 0 to 1.
    share: f64,
    /// The end of the period that is under way.
    end: f64,
    /// CPU time it should have had by then.
    owed: f64,
    /// CPU time it gave up on.
    given_up: f64,
}

/// A period: burn until that much CPU time is used, but no longer than to its end; then sleep until its end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Period {
    pub(super) end: f64,
    pub(super) burn_until_used: f64,
}

impl Steering {
    pub(super) fn new(share: f64) -> Self {
        Self {
            share,
            end: 0.0,
            owed: 0.0,
            given_up: 0.0,
        }
    }

    /// The next period of about `length`, when it is `now` and `used` CPU time has gone.
    pub(super) fn next(&mut self, now: f64, used: f64, length: f64) -> Period {
        let before = self.end;
        self.end += length;
        if self.end <= now {
            // Whole periods went by without us.
            self.end = now + length;
        }
        self.owed += self.share * (self.end - before);
        let most = used + self.share * length + MOST_DEBT_S;
        self.given_up += (self.owed - most).max(0.0);
        self.owed = self.owed.min(most);
        Period {
            end: self.end,
            burn_until_used: self.owed,
        }
    }

    /// CPU time it gave up on so far.
    pub(super) fn given_up(&self) -> f64 {
        self.given_up
    }
}

/// Looks at each second by itself.
pub(super) struct Seconds {
    share: f64,
    from: (f64, f64),
    whole: u32,
    worst_off: Option<f64>,
}

impl Seconds {
    pub(super) fn new(share: f64) -> Self {
        Self {
            share,
            from: (0.0, 0.0),
            whole: 0,
            worst_off: None,
        }
    }

    /// At the end of a period: it is `now`, and `used` CPU time has gone.
    pub(super) fn look(&mut self, now: f64, used: f64) {
        let (from, used_before) = self.from;
        if now - from < 1.0 {
            return;
        }
        let off = ((used - used_before) / (now - from) - self.share).abs();
        self.from = (now, used);
        self.whole += 1;
        self.worst_off = Some(self.worst_off.map_or(off, |worst| worst.max(off)));
    }

    /// How many there were, and how far the worst was off, 0 to 1.
    pub(super) fn worst(&self) -> (u32, Option<f64>) {
        (self.whole, self.worst_off)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A process that wakes up late by up to `late` and burns too much by up to `over`, for `periods` periods.
    fn simulate(share: f64, periods: usize, late: f64, over: f64) -> (f64, f64, Steering, Seconds) {
        let (mut steering, mut seconds) = (Steering::new(share), Seconds::new(share));
        let (mut now, mut used) = (0.0f64, 0.0f64);
        for index in 0..periods {
            let wobble = (index * 7 % 11) as f64 / 11.0;
            let period = steering.next(now, used, 0.01 * (0.9 + 0.2 * wobble));
            let burn = (period.burn_until_used - used + over * wobble)
                .max(0.0)
                .min((period.end - now).max(0.0));
            used += burn;
            now = (now + burn).max(period.end) + late * wobble;
            seconds.look(now, used);
        }
        (now, used, steering, seconds)
    }

    proptest! {
        #[test]
        fn late_wake_ups_and_overlong_burning_do_not_add_up(percent in 0u32..=95, late in 0.0..1e-4, over in 0.0..1e-4) {
            let share = f64::from(percent) / 100.0;
            let over = if percent == 0 { 0.0 } else { over };
            let (now, used, steering, seconds) = simulate(share, 2000, late, over);
            prop_assert!((used / now - share).abs() < 0.001, "{} instead of {}", used / now, share);
            let (whole, worst) = seconds.worst();
            prop_assert!(whole >= 17 && worst.unwrap() < 0.005, "{} seconds, {:?}", whole, worst);
            prop_assert_eq!(steering.given_up(), 0.0);
        }
    }

    #[test]
    fn what_a_taken_cpu_cost_is_made_up_for_in_part_only() {
        let mut steering = Steering::new(0.6);
        let period = steering.next(0.0, 0.0, 0.01);
        assert_eq!(
            period,
            Period {
                end: 0.01,
                burn_until_used: 0.006
            }
        );
        // It slept at 10 ms and got the CPU again after two seconds.
        let period = steering.next(2.0, 0.006, 0.01);
        assert_eq!(period.end, 2.01);
        assert!(
            (period.burn_until_used - (0.006 + 0.006 + MOST_DEBT_S)).abs() < 1e-9,
            "{period:?}"
        );
        assert!(
            (steering.given_up() + period.burn_until_used - 0.6 * 2.01).abs() < 1e-9,
            "nothing is lost sight of"
        );
    }

    #[test]
    fn a_short_theft_is_made_up_for_in_full() {
        let mut steering = Steering::new(0.6);
        steering.next(0.0, 0.0, 0.01);
        let period = steering.next(0.05, 0.006, 0.01);
        assert!((period.burn_until_used - 0.6 * period.end).abs() < 1e-9);
        assert_eq!(steering.given_up(), 0.0);
    }

    #[test]
    fn the_worst_second_is_remembered() {
        let mut seconds = Seconds::new(0.5);
        assert_eq!(seconds.worst(), (0, None));
        for (now, used) in [(0.5, 0.25), (1.0, 0.5), (2.0, 1.1), (3.0, 1.59)] {
            seconds.look(now, used);
        }
        let (whole, worst) = seconds.worst();
        assert_eq!(whole, 3);
        assert!((worst.unwrap() - 0.1).abs() < 1e-9);
    }
}
