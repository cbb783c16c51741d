//! `outliers` with values that are equal, rounded, missing or no values at all, and what must not change its answer.

use crate::alike::{FALSE_ALARMS, Group, Random, judge};
use nearfar_statistics::outliers::{
    CannotJudge, Location, MIN_SCALE, Outliers, Thresholds, Values, common_shift, outliers,
};
use proptest::prelude::*;

/// Of one cell and one sample for each host.
fn single(samples: &[f64]) -> Values {
    Values::from_fn(1, samples.len(), |_, host| {
        Location::of(&samples[host..=host])
    })
}

fn judged(values: &Values) -> Outliers {
    let found = judge(values, &mut Thresholds::new(0));
    for it in &found.deviations {
        let figures = [it.z, it.ratio, it.low, it.high];
        assert!(figures.iter().all(|figure| figure.is_finite()), "{it:?}");
        assert!(it.low <= it.ratio && it.ratio <= it.high, "{it:?}");
    }
    found
}

fn named(found: &Outliers) -> Vec<(usize, usize)> {
    let places = found.deviations.iter().map(|it| (it.host, it.cell));
    places.collect()
}

#[test]
fn a_location_is_the_median_of_the_valid_samples() {
    let location = Location::of(&[4.0, f64::NAN, 1.0, 0.0, -3.0, 16.0, f64::INFINITY]).unwrap();
    assert!((location.log_median - 4f64.ln()).abs() < 1e-12);
    assert_eq!((location.samples, location.step), (3, None));
    assert_eq!(Location::of(&[0.0, -1.0, f64::NAN]), None);
    assert_eq!(Location::of(&[]), None);
    assert_eq!(Location::of(&[7.0]).unwrap().standard_error, None);
    assert_eq!(Location::of(&[7.0, 7.0]).unwrap().standard_error, Some(0.0));
    let step = Location::of(&[100.0, 110.0, 100.0]).unwrap().step.unwrap();
    assert!((step - 1.1f64.ln()).abs() < 1e-12);
}

/// Of normal noise the mean of the error is that of the median, within 10 %.
#[test]
fn the_standard_error_is_that_of_the_median() {
    const TRIALS: usize = 10_000;
    let mut random = Random::new(1);
    for count in [2, 3, 4, 5, 6, 9, 10, 15, 30] {
        let (mut errors, mut squares) = (0.0, 0.0);
        for _ in 0..TRIALS {
            let samples: Vec<f64> = (0..count).map(|_| (0.1 * random.normal()).exp()).collect();
            let location = Location::of(&samples).unwrap();
            errors += location.standard_error.unwrap();
            squares += location.log_median.powi(2);
        }
        let ratio = errors / TRIALS as f64 / (squares / TRIALS as f64).sqrt();
        assert!((0.9..1.1).contains(&ratio), "{count} samples: {ratio}");
    }
}

#[test]
fn too_few_hosts_and_impossible_rates_are_refused() {
    let refused = |values: &Values, rate| outliers(values, rate, 0).unwrap_err();
    assert_eq!(
        refused(&single(&[1.0, 1.0, 2.0]), 0.05),
        CannotJudge::TooFewHosts(3)
    );
    let two = single(&[1.0, f64::NAN, 2.0, 0.0]);
    assert_eq!(refused(&two, 0.05), CannotJudge::TooFewHosts(2));
    let none = Values::from_fn(0, 0, |_, _| None);
    assert_eq!(refused(&none, 0.05), CannotJudge::TooFewHosts(0));
    assert_eq!(refused(&none, 0.0), CannotJudge::FalseAlarms(0.0));
    assert!(matches!(
        refused(&none, f64::NAN),
        CannotJudge::FalseAlarms(_)
    ));
}

#[test]
fn equal_values_have_the_least_scale() {
    let mut samples = vec![100.0; 12];
    assert_eq!(named(&judged(&single(&samples))), []);
    assert_eq!(
        judged(&single(&samples)).references[0].unwrap().scale,
        MIN_SCALE
    );
    samples[3] = 100.01;
    samples[7] = 150.0;
    let found = judged(&single(&samples));
    assert_eq!(named(&found), [(7, 0)]);
    assert!((found.deviations[0].ratio - 1.5).abs() < 0.01, "{found:?}");
}

/// Values differ by a step of the clock and no more: where both values are common, where samples have both, and where the step is
/// given.
#[test]
fn a_step_of_the_clock_is_not_a_deviation() {
    let common: Vec<f64> = (0..40)
        .map(|it| if it % 5 == 0 { 110.0 } else { 100.0 })
        .collect();
    assert_eq!(named(&judged(&single(&common))), []);
    let few = [100.0, 100.0, 100.0, 110.0];
    assert_eq!(named(&judged(&single(&few))), [(3, 0)]);
    assert_eq!(named(&judged(&single(&few).with_resolution(10.0))), []);
    let within = [[100.0; 3], [100.0, 110.0, 100.0], [100.0; 3], [110.0; 3]];
    let values = Values::from_fn(1, 4, |_, host| Location::of(&within[host]));
    assert_eq!(named(&judged(&values)), []);
}

/// Noise and differences of hosts below the step of the clock.
/// Two equal samples of one host by chance are no clock of 30 % steps.
#[test]
fn equal_samples_of_one_host_hide_no_other() {
    let mut random = Random::new(3);
    let values = Values::from_fn(1, 20, |_, host| {
        let level = if host == 7 { 1.1 } else { 1.0 };
        let mut samples: Vec<f64> = (0..6)
            .map(|_| level * (0.002 * random.normal()).exp())
            .collect();
        if host == 3 {
            samples.copy_from_slice(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.3]);
        }
        Location::of(&samples)
    });
    assert_eq!(named(&judged(&values)), [(7, 0)]);
}

#[test]
fn rounded_values_are_named_at_most_at_the_stated_rate() {
    const TRIALS: usize = 200;
    let mut random = Random::new(2);
    for hosts in [4, 8, 16, 50, 200] {
        let mut thresholds = Thresholds::new(2);
        let count = (0..TRIALS).filter(|_| {
            let centre = 100.0 + 10.0 * random.unit();
            let values = Values::from_fn(2, hosts, |_, _| {
                let host = centre * (1.0 + 0.01 * random.normal());
                let samples: Vec<f64> = (0..5)
                    .map(|_| 10.0 * (host * (1.0 + 0.01 * random.normal()) / 10.0).round())
                    .collect();
                Location::of(&samples)
            });
            !judge(&values, &mut thresholds).deviations.is_empty()
        });
        let rate = count.count() as f64 / TRIALS as f64;
        assert!(rate < FALSE_ALARMS + 0.045, "{hosts} hosts: {rate}");
    }
}

#[test]
fn extreme_values_have_finite_figures() {
    let found = judged(&single(&[
        f64::MIN_POSITIVE,
        1.0,
        1.0,
        1.0,
        1.0,
        f64::MAX,
        1.0,
    ]));
    assert_eq!(named(&found), [(0, 0), (5, 0)]);
    judged(&single(&[
        f64::MIN_POSITIVE,
        f64::MAX,
        1.0,
        1e-300,
        1e300,
        5.0,
    ]));
}

#[test]
fn cells_with_few_hosts_are_not_judged_and_others_are() {
    let mut random = Random::new(3);
    let (full, _) = Group::new(40, 3).draw(&mut random, |host, _| f64::from(host == 5) * 0.2);
    let values = Values::from_fn(3, 40, |cell, host| {
        let is_measured = cell == 0 || (cell == 1 && host < 8) || (cell == 2 && host < 3);
        full.get(cell, host).copied().filter(|_| is_measured)
    });
    let found = judged(&values);
    let hosts: Vec<Option<usize>> = found
        .references
        .iter()
        .map(|it| Some(it.as_ref()?.hosts))
        .collect();
    assert_eq!(hosts, [Some(40), Some(8), None]);
    assert_eq!(named(&found), [(5, 0), (5, 1)]);
    assert_eq!(values.get(3, 0), None);
    assert_eq!(values.get(0, 40), None);
}

#[test]
fn a_common_shift_needs_a_host_and_a_cell() {
    let (values, _) =
        Group::new(10, 2).draw(&mut Random::new(4), |host, _| f64::from(host < 2) * 0.27);
    let found = judged(&values);
    for (hosts, cells) in [
        (&[][..], &[0][..]),
        (&[0], &[]),
        (&[99], &[0]),
        (&[0], &[99]),
    ] {
        assert_eq!(common_shift(&values, &found, hosts, cells), None);
    }
    let shift = common_shift(&values, &found, &[0, 1, 1], &[0, 1, 0]).unwrap();
    assert_eq!(shift.hosts, 2);
    assert!(
        shift.low < shift.ratio && shift.ratio < shift.high,
        "{shift:?}"
    );
    assert!((shift.ratio - 1.31).abs() < 0.02, "{shift:?}");
}

/// A group of which some hosts deviate and some values are missing.
fn group() -> impl Strategy<Value = Vec<Vec<Option<f64>>>> {
    let value = prop_oneof![
        8 => (95.0..105.0f64).prop_map(Some),
        1 => (50.0..200.0f64).prop_map(Some),
        1 => Just(None),
    ];
    (1..4usize, 1..40usize).prop_flat_map(move |(cells, hosts)| {
        prop::collection::vec(prop::collection::vec(value.clone(), hosts), cells)
    })
}

fn values_of(rows: &[Vec<Option<f64>>], host_of: impl Fn(usize) -> usize, scale: f64) -> Values {
    Values::from_fn(rows.len(), rows[0].len(), |cell, host| {
        let value = scale * rows[cell][host_of(host)]?;
        Location::of(&[value, 1.01 * value, 0.99 * value])
    })
}

/// Deviations with the figures rounded, hosts named by `host_of`.
fn rounded(
    values: &Values,
    host_of: impl Fn(usize) -> usize,
) -> Option<Vec<(usize, usize, i64, i64)>> {
    let found = outliers(values, 0.05, 3).ok()?;
    let round = |figure: f64| (figure * 1e6).round() as i64;
    let mut all: Vec<_> = found
        .deviations
        .iter()
        .map(|it| (host_of(it.host), it.cell, round(it.ratio), round(it.low)))
        .collect();
    all.sort_unstable();
    Some(all)
}

proptest! {
    // Each case simulates thresholds.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(8), ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_hosts_does_not_matter(rows in group(), by in 0..40usize) {
        let hosts = rows[0].len();
        let moved = |host: usize| (host + by) % hosts;
        let mirrored = |host: usize| hosts - 1 - host;
        let plain = rounded(&values_of(&rows, |host| host, 1.0), |host| host);
        prop_assert_eq!(&plain, &rounded(&values_of(&rows, moved, 1.0), moved));
        prop_assert_eq!(&plain, &rounded(&values_of(&rows, mirrored, 1.0), mirrored));
    }

    #[test]
    fn the_unit_of_the_values_does_not_matter(rows in group(), scale in 1e-6..1e6f64) {
        let plain = rounded(&values_of(&rows, |host| host, 1.0), |host| host);
        let scaled = rounded(&values_of(&rows, |host| host, scale), |host| host);
        let places = |it: Option<Vec<(usize, usize, i64, i64)>>| it.map(|all| all.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>());
        prop_assert_eq!(places(plain), places(scaled));
    }

    #[test]
    fn a_host_without_values_does_not_matter(rows in group()) {
        let plain = rounded(&values_of(&rows, |host| host, 1.0), |host| host);
        let more: Vec<Vec<Option<f64>>> = rows.iter().map(|row| [&[None], &row[..], &[None]].concat()).collect();
        prop_assert_eq!(plain, rounded(&values_of(&more, |host| host, 1.0), |host| host - 1));
    }

    #[test]
    fn any_values_are_judged_without_panic(samples in prop::collection::vec(prop::collection::vec(any::<f64>(), 0..5), 0..30), resolution in any::<f64>()) {
        let values = Values::from_fn(1, samples.len(), |_, host| Location::of(&samples[host]));
        for values in [values.clone(), values.with_resolution(resolution)] {
            if let Ok(found) = outliers(&values, 0.05, 0) {
                for it in found.deviations {
                    prop_assert!([it.z, it.ratio, it.low, it.high].iter().all(|it| it.is_finite()), "{:?}", it);
                }
            }
        }
    }
}
