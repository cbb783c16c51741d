//! Whether a host got worse, from simulated measurements before and after a change.

use crate::simulated::{fill, latency_run, machine};
use fastrand::Rng;
use nearfar_fleet::rollout::{NotComparable, worst};
use nearfar_runs::export::Whole;

const MARGIN: f64 = 0.05;
const METRIC: &str = "latency_ns";

/// A run whose memory of node 1 is so many times as slow.
fn run(seed: u64, factor: f64) -> Whole {
    let mut run = latency_run(&machine());
    let of = |_, memory_node| if memory_node == 1 { factor } else { 1.0 };
    fill(&mut run, &mut Rng::with_seed(seed), of);
    run
}

#[test]
fn a_host_is_worse_by_its_worst_cell() {
    let worse = worst(&[run(1, 1.0)], &[run(2, 1.31)], MARGIN).unwrap();
    let worse = worse.unwrap();
    assert_eq!(worse.metric.as_deref(), Some(METRIC));
    assert!(worse.is_primary);
    assert!((worse.by - 0.31).abs() < 0.02, "{worse:?}");
}

#[test]
fn what_is_better_alike_or_within_the_margin_is_not_worse() {
    for factor in [0.7, 1.0, 1.02] {
        let worse = worst(&[run(3, 1.0)], &[run(4, factor)], MARGIN).unwrap();
        assert_eq!(worse, None, "{factor}");
    }
    let worse = worst(&[run(3, 1.0)], &[run(4, 1.31)], 0.5).unwrap();
    assert_eq!(worse, None, "the margin is wider");
}

/// Two measurements of one verb, the second of which got worse.
#[test]
fn runs_belong_together_by_their_order() {
    let before = [run(5, 1.0), run(6, 2.0)];
    let after = [run(7, 1.0), run(8, 2.0)];
    assert_eq!(worst(&before, &after, MARGIN).unwrap(), None);
    let after = [run(7, 1.0), run(8, 2.4)];
    let worse = worst(&before, &after, MARGIN).unwrap().unwrap();
    assert!((worse.by - 0.2).abs() < 0.02, "{worse:?}");
    let error = worst(&before, &after[..1], MARGIN).unwrap_err();
    assert!(matches!(error, NotComparable::Number { .. }));
    assert_eq!(
        error.to_string(),
        "1 run after the changes and 2 runs before cannot be compared"
    );
}

#[test]
fn samples_that_fail_are_worse_where_nothing_else_is() {
    let mut after = run(10, 1.0);
    for sample in after.taken.iter_mut().filter(|it| it.number % 2 == 0) {
        sample.failed = Some("no memory".to_owned());
        sample.values.clear();
    }
    let worse = worst(&[run(9, 1.0)], &[after], MARGIN).unwrap().unwrap();
    assert_eq!((worse.metric, worse.is_primary), (None, false));
}

/// What cannot find a regression does not say that there is none.
#[test]
fn measurements_that_cannot_tell_are_refused() {
    let few = |seed, factor| {
        let mut run = run(seed, factor);
        run.taken.retain(|sample| sample.round <= 2);
        run
    };
    let error = worst(&[few(11, 1.0)], &[few(12, 2.0)], MARGIN).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("16 cells have too few samples to tell whether {METRIC} got worse: measure more")
    );
    let mut after = run(14, 1.0);
    let gone = after.taken[0].cell.clone();
    after.taken.retain(|sample| sample.cell != gone);
    let error = worst(&[run(13, 1.0)], &[after], MARGIN).unwrap_err();
    assert!(matches!(error, NotComparable::CellIsGone { .. }), "{error}");
}
