//! How often a look is affordable.

use std::time::Duration;

/// Of one CPU, that looking may take on average.
const MAX_CPU_SHARE: f64 = 0.015;
/// Weight of the last look. A look that reads memory takes many times as long as the others; one pause for all of it would be minutes.
const LAST_WEIGHT: f64 = 0.2;

/// The weighted mean of what looks cost, the last ones most.
#[derive(Default)]
pub(crate) struct Pace {
    cost_s: f64,
}

impl Pace {
    /// A look took so many CPU seconds.
    pub fn add(&mut self, cost_s: f64) {
        self.cost_s += LAST_WEIGHT * (cost_s - self.cost_s);
    }

    /// How long to wait: what was asked for, or longer where looking would take more than its share.
    pub fn rest(&self, wanted: Duration) -> Duration {
        wanted.max(Duration::from_secs_f64(self.cost_s / MAX_CPU_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_costly_look_is_followed_by_long_rests() {
        let mut pace = Pace::default();
        pace.add(2.0);
        assert!(pace.rest(Duration::ZERO).as_secs() < 30);
        let mut rests = pace.rest(Duration::ZERO);
        for _ in 0..100 {
            pace.add(0.0);
            rests += pace.rest(Duration::ZERO);
        }
        let share = 2.0 / rests.as_secs_f64();
        assert!((share / MAX_CPU_SHARE - 1.0).abs() < 1e-3, "{share}");
        assert_eq!(pace.rest(Duration::from_secs(1)), Duration::from_secs(1));
    }
}
