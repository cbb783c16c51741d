//! Simulated rates of `outliers`: false alarms, power, and how often intervals hold the truth. The example `outlier_rates` has more groups.

use crate::alike::{FALSE_ALARMS, Group, Planted, Random, Shape, judge};
use crate::random::in_proportion;
use nearfar_statistics::outliers::{Thresholds, common_shift};

/// The least share of intervals that have to hold the truth.
const LEAST: f64 = 0.93;

/// Whether a rate of so many trials is not significantly above the stated one (P < 0.002).
fn is_held(rate: f64, trials: usize) -> bool {
    let error = (FALSE_ALARMS * (1.0 - FALSE_ALARMS) / trials as f64).sqrt();
    rate <= FALSE_ALARMS + 2.9 * error
}

fn trials(group: &Group) -> usize {
    in_proportion((90_000 / (group.hosts * group.cells * group.samples)).clamp(8, 500))
}

/// Hosts that differ, with samples of their own noise and with one sample each, which is all the spread that the hosts have.
#[test]
fn a_host_of_an_alike_group_is_named_at_most_at_the_stated_rate() {
    let mut thresholds = Thresholds::new(11);
    for hosts in [4, 5, 8, 16, 50, 200, 1000, 10_000] {
        for cells in [1, 4, 16] {
            let group = Group {
                between: 0.01,
                ..Group::new(hosts, cells)
            };
            let single = Group {
                samples: 1,
                ..group
            };
            let shared = Group {
                samples: 1,
                noise: 0.0,
                is_shared: true,
                ..group
            };
            let identical = Group {
                between: 0.0,
                ..group
            };
            let unequal = Group {
                last_cell: 10.0,
                ..single
            };
            for group in [group, single, shared, identical, unequal] {
                let trials = trials(&group);
                let rate = group.false_alarms(trials, 11, &mut thresholds);
                assert!(is_held(rate, trials), "{rate} of {trials}: {group:?}");
            }
        }
    }
}

/// Heavy tails and different noise of the samples are seen in a host's own standard error. Skewed noise, and tails of the hosts
/// themselves, are not: the module's documentation gives their rates.
#[test]
fn noise_with_heavy_tails_does_not_raise_the_rate() {
    let mut thresholds = Thresholds::new(12);
    for hosts in [4, 16, 200, 1000] {
        let group = Group {
            between: 0.0,
            noise_shape: Shape::HeavyTails,
            ..Group::new(hosts, 4)
        };
        let trials = trials(&group);
        let rate = group.false_alarms(trials, 12, &mut thresholds);
        assert!(is_held(rate, trials), "{rate} of {trials}: {group:?}");
    }
}

#[test]
fn heavy_tails_of_many_hosts_are_reported() {
    let mut random = Random::new(13);
    for (shape, is_heavy) in [
        (Shape::Normal, false),
        (Shape::HeavyTails, true),
        (Shape::Skewed, true),
    ] {
        let group = Group {
            between: 0.02,
            between_shape: shape,
            ..Group::new(2000, 1)
        };
        for _ in 0..10 {
            let (values, _) = group.draw(&mut random, |_, _| 0.0);
            let found = judge(&values, &mut Thresholds::new(0));
            let has_heavy_tails = found.references[0].unwrap().has_heavy_tails();
            assert_eq!(has_heavy_tails, is_heavy, "{shape:?}: {found:?}");
        }
    }
}

fn planted(hosts: usize, cells: usize, ratio: f64) -> Planted {
    Planted {
        hosts,
        cells,
        ratio,
        is_two_sided: false,
    }
}

/// 5 samples with 1 % noise, 0.3 % between hosts.
#[test]
fn each_deviation_of_5_percent_among_10_000_hosts_is_found() {
    for (hosts, is_two_sided) in [(20, false), (500, true)] {
        let planted = Planted {
            is_two_sided,
            ..planted(hosts, 16, 1.05)
        };
        let power = Group::new(10_000, 16).power(planted, 8, 21);
        assert_eq!(power.found, power.planted, "{power:?}");
        assert!(is_held(power.other_hosts(), power.trials), "{power:?}");
        assert!(power.coverage() >= LEAST, "{power:?}");
    }
}

#[test]
fn one_of_four_hosts_that_is_30_percent_slower_is_found() {
    let group = Group {
        samples: 6,
        noise: 0.02,
        between: 0.0,
        ..Group::new(4, 4)
    };
    let power = group.power(planted(1, 2, 1.3), 1000, 22);
    assert!(power.all_found() >= 0.95, "{power:?}");
    assert!(power.other_hosts() <= FALSE_ALARMS, "{power:?}");
    assert!(power.coverage() >= LEAST, "{power:?}");
}

#[test]
fn a_third_of_the_hosts_that_deviates_by_10_percent_is_found() {
    for (hosts, cells) in [
        (4, 4),
        (8, 4),
        (9, 1),
        (16, 4),
        (30, 4),
        (50, 4),
        (200, 16),
        (9999, 4),
    ] {
        for is_two_sided in [false, true] {
            // The scale of four hosts is small by chance so often that 10 % is found in 91 % of such groups.
            let ratio = if hosts == 4 { 1.2 } else { 1.1 };
            let planted = Planted {
                is_two_sided,
                ..planted(hosts / 3, cells, ratio)
            };
            let group = Group::new(hosts, cells);
            let power = group.power(planted, trials(&group).min(200), 23);
            assert!(power.found() >= 0.95, "{hosts} hosts: {power:?}");
            assert!(is_held(power.other_hosts(), power.trials), "{power:?}");
            assert!(power.coverage() >= LEAST, "{hosts} hosts: {power:?}");
        }
    }
}

#[test]
fn other_cells_of_a_named_host_are_named_at_most_at_the_stated_rate() {
    for hosts in [5, 12, 40, 1000] {
        let group = Group::new(hosts, 16);
        let power = group.power(
            planted(hosts.div_ceil(100), 4, 1.15),
            trials(&group).max(60),
            24,
        );
        assert!(
            is_held(power.other_cells(), power.planted_hosts),
            "{hosts} hosts: {power:?}"
        );
    }
}

#[test]
fn intervals_hold_the_ratio_whatever_the_number_of_samples() {
    for samples in [1, 2, 3, 4, 10, 30] {
        let group = Group {
            samples,
            ..Group::new(20, 4)
        };
        let power = group.power(planted(3, 4, 1.2), 200, 25);
        assert!(power.coverage() >= LEAST, "{samples} samples: {power:?}");
    }
}

/// How often the interval of a common shift of 31 % holds it.
fn shift_coverage(hosts: usize, deviating: usize, between: f64) -> f64 {
    const TRIALS: usize = 400;
    let mut random = Random::new(26);
    let group = Group {
        between,
        ..Group::new(hosts, 4)
    };
    let chosen: Vec<usize> = (0..deviating).collect();
    let mut thresholds = Thresholds::new(0);
    let held = (0..TRIALS).filter(|_| {
        let shift = |host, _| if host < deviating { 1.31f64.ln() } else { 0.0 };
        let (values, _) = group.draw(&mut random, shift);
        let found = judge(&values, &mut thresholds);
        let shift = common_shift(&values, &found, &chosen, &[0, 1, 2, 3]).unwrap();
        assert_eq!(shift.hosts, deviating);
        shift.low <= 1.31 && 1.31 <= shift.high
    });
    held.count() as f64 / TRIALS as f64
}

#[test]
fn intervals_of_common_shifts_hold_it() {
    for (hosts, deviating) in [(4, 1), (8, 2), (12, 4), (100, 20), (1000, 10)] {
        // Of one or two hosts the shift is that of these hosts, so they have no difference of their own here.
        let between = if deviating < 3 { 0.0 } else { 0.01 };
        let coverage = shift_coverage(hosts, deviating, between);
        assert!(coverage >= LEAST, "{deviating} of {hosts}: {coverage}");
    }
}
