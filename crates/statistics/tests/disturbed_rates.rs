//! How often comparisons of quick measurements err on a machine whose load comes and goes within seconds. The example
//! `disturbed_rates` prints the rates, of which docs/compare.md has the highest.

use nearfar_statistics::compare::Verdict;

use crate::disturbed::{LOADS, Trial};
use crate::random::{Random, in_proportion};

/// The stated rate of false alarms.
const RATE: f64 = 0.05;

fn trial(load: usize, runs: usize, ratio: f64) -> Trial {
    Trial {
        load: LOADS[load],
        run_s: 2.0,
        runs,
        ratio,
    }
}

/// Whether a rate of so many trials is not significantly above the stated one (P < 0.002).
fn is_held(rate: f64, trials: usize) -> bool {
    rate <= RATE + 2.9 * (RATE * (1.0 - RATE) / trials as f64).sqrt()
}

fn false_alarms(trials: usize) {
    let mut random = Random(21);
    for load in 0..LOADS.len() {
        for runs in [3, 5, 8, 12] {
            let rate = trial(load, runs, 1.0).judged(trials, &mut random);
            assert!(is_held(rate, trials), "{runs} runs, load {load}: {rate}");
        }
    }
}

#[test]
fn load_that_comes_and_goes_raises_no_alarm_over_several_runs() {
    false_alarms(in_proportion(200));
}

#[test]
fn a_thousand_pairs_of_equal_sides_under_load_hold_the_stated_rate() {
    false_alarms(1000);
}

/// Two runs of the same thing differ by more than their own intervals say, which is why there is no verdict.
#[test]
fn one_run_a_side_is_never_judged() {
    let mut random = Random(22);
    let equal = trial(1, 1, 1.0);
    let trials = in_proportion(400);
    for _ in 0..trials {
        let found = equal.compared(&mut random);
        assert_eq!(found.verdict, Verdict::OneRunASide);
        assert!(!found.is_significant && found.p_adjusted.is_none());
    }
    let wrong = equal.beyond_two_runs(trials, &mut random);
    assert!(!is_held(wrong, trials), "a verdict would alarm in {wrong}");
}

#[test]
fn a_change_of_5_percent_is_found_under_load_by_twenty_runs_a_side() {
    let mut random = Random(23);
    let trials = in_proportion(200);
    let found = trial(0, 20, 1.05).judged(trials, &mut random);
    assert!(found >= 0.85, "{found}");
}
