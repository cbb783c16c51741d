//! How long a run and how many rounds a budget allows.

use super::UnboundError;

/// Below this many rounds a median has no confidence interval of 95 %.
const MIN_ROUNDS: u32 = 6;
/// Rounds that make the interval narrow; longer runs come before more rounds.
const GOOD_ROUNDS: f64 = 10.0;
/// A shorter run sees no load balancing: the scheduler looks across nodes every few dozen to hundred milliseconds.
const MIN_RUN_S: f64 = 0.3;
/// A longer one gives no narrower interval than more rounds do.
const MAX_RUN_S: f64 = 3.0;
/// Most rounds, whatever the budget: a check-up has to end.
pub(super) const MAX_ROUNDS: u32 = 60;

/// Seconds that one run's timed part should take, when it takes `overhead_s` besides and a round has `cells` runs.
///
/// # Errors
/// When not even the fewest rounds of the shortest runs fit.
pub(super) fn run_seconds(left_s: f64, cells: usize, overhead_s: f64) -> Result<f64, UnboundError> {
    let runs = cells.max(1) as f64;
    let needed_s = f64::from(MIN_ROUNDS) * runs * (MIN_RUN_S + overhead_s);
    if needed_s > left_s {
        return Err(UnboundError::TooLittleTime {
            rounds: MIN_ROUNDS,
            cells,
            needed_s,
            left_s,
        });
    }
    Ok((left_s / (GOOD_ROUNDS * runs) - overhead_s).clamp(MIN_RUN_S, MAX_RUN_S))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_a_minute_has_room_for_good_rounds_of_five_cells() {
        let seconds = run_seconds(25.0, 5, 0.05).unwrap();
        assert!((0.44..0.46).contains(&seconds), "{seconds}");
    }

    #[test]
    fn too_little_time_says_how_much_is_needed() {
        let error = run_seconds(5.0, 5, 0.1).unwrap_err().to_string();
        assert!(
            error.contains("6 rounds of 5 runs take 12 s") && error.contains("5 s are left"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn what_is_planned_fits(left_s in 0.0..200.0, cells in 1usize..9, overhead_s in 0.0..3.0) {
            if let Ok(run_s) = run_seconds(left_s, cells, overhead_s) {
                let rounds = left_s / (cells as f64 * (run_s + overhead_s));
                prop_assert!(rounds >= f64::from(MIN_ROUNDS) - 1e-6, "{rounds}");
            }
        }
    }
}
