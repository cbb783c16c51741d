//! Least squares: known coefficients are found, intervals hold what they promise, and unidentifiable coefficients are not reported.

use crate::random::Random;
use nearfar_statistics::regression::{Baseline, CannotTell, Fit, Row, fit};
use proptest::prelude::*;

const NAMES: [&str; 2] = ["far share", "migrations"];

/// Runs of cells with bases of their own: 14.2 s for all of the time far, 12.8 ms a migration, and noise.
fn runs(
    random: &mut Random,
    cells: u32,
    of_each: usize,
    noise: impl Fn(f64) -> f64,
) -> Vec<Row<2>> {
    let mut rows = Vec::new();
    for group in 0..cells {
        // The base goes with what explains, so that one base for all would be misled.
        let base = 60.0 + 5.0 * f64::from(group);
        for _ in 0..of_each {
            let far = (random.unit() + f64::from(group)) / f64::from(cells);
            let migrations = (random.unit() * 200.0).floor();
            let outcome =
                base + 14.2 * far + 0.0128 * migrations + noise(migrations) * random.normal();
            rows.push(Row {
                group,
                cluster: rows.len() as u32,
                outcome,
                columns: [far, migrations],
            });
        }
    }
    rows
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-7 * (1.0 + a.abs().max(b.abs()))
}

fn same(a: &Fit, b: &Fit) -> bool {
    let coefficients = a.coefficients.iter().zip(&b.coefficients);
    coefficients
        .clone()
        .all(|(a, b)| close(a.value, b.value) && close(a.low, b.low) && close(a.high, b.high))
        && close(a.r2, b.r2)
        && close(a.residual_stdev, b.residual_stdev)
}

#[test]
fn exact_data_give_exact_coefficients_whatever_the_cells_bases() {
    let rows = runs(&mut Random(1), 4, 16, |_| 0.0);
    let fit = fit(NAMES, &rows, Baseline::PerGroup).unwrap();
    assert!(
        close(fit.coefficients[0].value, 14.2) && close(fit.coefficients[1].value, 0.0128),
        "{fit:?}"
    );
    assert!(fit.r2 > 0.999_999 && fit.residual_stdev < 1e-9);
    assert_eq!((fit.samples, fit.groups, fit.left_out), (64, 4, 0));
    assert!(
        fit.coefficients
            .iter()
            .all(|coefficient| coefficient.is_significant())
    );
}

#[test]
fn one_base_for_cells_that_differ_misleads_and_a_base_for_each_does_not() {
    let rows = runs(&mut Random(2), 4, 64, |_| 0.5);
    let common = fit(NAMES, &rows, Baseline::Common).unwrap();
    let per_group = fit(NAMES, &rows, Baseline::PerGroup).unwrap();
    assert!(
        common.coefficients[0].low > 20.0,
        "the cells' own difference is taken for the time far: {common:?}"
    );
    let far = &per_group.coefficients[0];
    assert!(
        far.low < 14.2 && 14.2 < far.high && far.high - far.low < 5.0,
        "{per_group:?}"
    );
}

/// Motor Trend's cars of 1974, R's data set `mtcars`; `summary(lm(mpg ~ wt + hp))` says -3.87783, -0.03177, R2 0.8268 and a
/// residual error of 2.593. The intervals, each car a cluster and cars in six made-up ones, are those of numpy with
/// the formulae of tools/check-intervals, which was written apart from this crate.
#[test]
fn the_textbooks_cars_get_the_textbooks_figures() {
    const CARS: [(f64, f64, f64); 32] = [
        (21.0, 2.620, 110.0),
        (21.0, 2.875, 110.0),
        (22.8, 2.320, 93.0),
        (21.4, 3.215, 110.0),
        (18.7, 3.440, 175.0),
        (18.1, 3.460, 105.0),
        (14.3, 3.570, 245.0),
        (24.4, 3.190, 62.0),
        (22.8, 3.150, 95.0),
        (19.2, 3.440, 123.0),
        (17.8, 3.440, 123.0),
        (16.4, 4.070, 180.0),
        (17.3, 3.730, 180.0),
        (15.2, 3.780, 180.0),
        (10.4, 5.250, 205.0),
        (10.4, 5.424, 215.0),
        (14.7, 5.345, 230.0),
        (32.4, 2.200, 66.0),
        (30.4, 1.615, 52.0),
        (33.9, 1.835, 65.0),
        (21.5, 2.465, 97.0),
        (15.5, 3.520, 150.0),
        (15.2, 3.435, 150.0),
        (13.3, 3.840, 245.0),
        (19.2, 3.845, 175.0),
        (27.3, 1.935, 66.0),
        (26.0, 2.140, 91.0),
        (30.4, 1.513, 113.0),
        (15.8, 3.170, 264.0),
        (19.7, 2.770, 175.0),
        (15.0, 3.570, 335.0),
        (21.4, 2.780, 109.0),
    ];
    let rows: Vec<_> = CARS
        .iter()
        .zip(0..)
        .map(|(&(mpg, wt, hp), cluster)| Row {
            group: 0,
            cluster,
            outcome: mpg,
            columns: [wt, hp],
        })
        .collect();
    let fit = fit(["wt", "hp"], &rows, Baseline::Common).unwrap();
    let [wt, hp] = &fit.coefficients[..] else {
        panic!("{fit:?}")
    };
    assert!(
        (wt.value + 3.87783).abs() < 1e-5 && (hp.value + 0.03177).abs() < 1e-5,
        "{fit:?}"
    );
    assert!(
        (fit.r2 - 0.8268).abs() < 1e-4 && (fit.residual_stdev - 2.593).abs() < 1e-3,
        "{fit:?}"
    );
    for (found, exact) in [
        (wt.low, -5.418_493_833),
        (wt.high, -2.337_167_652),
        (hp.low, -0.052_346_273),
        (hp.high, -0.011_199_621),
    ] {
        assert!((found - exact).abs() < 1e-8, "{found}, {exact}");
    }
    let cars = |(number, row): (usize, &Row<2>)| Row {
        group: number as u32 / 8,
        cluster: number as u32 % 6,
        ..*row
    };
    let rows: Vec<_> = rows.iter().enumerate().map(cars).collect();
    let fit = nearfar_statistics::regression::fit(["wt", "hp"], &rows, Baseline::PerGroup).unwrap();
    let [wt, hp] = &fit.coefficients[..] else {
        panic!("{fit:?}")
    };
    let (of_wt, of_hp) = (wt.share.unwrap(), hp.share.unwrap());
    for (found, exact) in [
        (
            (wt.value, wt.low, wt.high),
            (-3.415_496_987, -7.091_437_982, 0.260_444_009),
        ),
        (
            (hp.value, hp.low, hp.high),
            (-0.037_001_181, -0.062_196_117, -0.011_806_245),
        ),
        (
            (of_wt.value, of_wt.confidence.low, of_wt.confidence.high),
            (-0.093_557_975, -0.153_095_766, -0.034_020_185),
        ),
        (
            (of_hp.value, of_hp.confidence.low, of_hp.confidence.high),
            (-0.001_013_544, -0.001_935_082, -0.000_092_006),
        ),
    ] {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-8;
        assert!(
            near(found.0, exact.0) && near(found.1, exact.1) && near(found.2, exact.2),
            "{found:?}, {exact:?}"
        );
    }
}

/// What an interval of 95 % promises, also with noise that grows with the migrations.
#[test]
fn intervals_hold_the_truth_as_often_as_they_say_even_when_the_noise_is_uneven() {
    for (seed, noise) in [(3, 0.0), (4, 0.02)] {
        let mut random = Random(seed);
        let (mut held, rounds) = ([0; 2], 1000);
        for _ in 0..rounds {
            let rows = runs(&mut random, 4, 8, |migrations| 0.5 + noise * migrations);
            let fit = fit(NAMES, &rows, Baseline::PerGroup).unwrap();
            for (held, (coefficient, truth)) in held
                .iter_mut()
                .zip(fit.coefficients.iter().zip([14.2, 0.0128]))
            {
                *held += i32::from(coefficient.low <= truth && truth <= coefficient.high);
            }
        }
        // 95 % of 1000 with three deviations of the count itself;.
        assert!(
            held.iter().all(|&held| (930..=985).contains(&held)),
            "{held:?} of {rounds} with noise {noise}"
        );
    }
}

#[test]
fn what_has_no_influence_is_as_good_as_never_told() {
    let mut random = Random(5);
    let told = (0..400).filter(|_| {
        let rows: Vec<Row<1>> = (0..24)
            .map(|number| Row {
                group: number % 3,
                cluster: number,
                outcome: random.normal(),
                columns: [random.unit()],
            })
            .collect();
        fit(["nothing"], &rows, Baseline::PerGroup)
            .unwrap()
            .coefficients[0]
            .is_significant()
    });
    let told = told.count();
    assert!(told < 36, "{told} of 400; 20 are expected");
}

#[test]
fn what_cannot_be_told_is_said_with_its_reason() {
    let row = |group, outcome, a, b| Row {
        group,
        cluster: 0,
        outcome,
        columns: [a, b],
    };
    let many = |row: &dyn Fn(u32) -> Row<2>| {
        (0..24)
            .map(|n| Row {
                cluster: n,
                ..row(n)
            })
            .collect::<Vec<_>>()
    };
    let wavy = |number: u32| f64::from(number * 7 % 11);
    let cases = [
        (
            many(&|n| row(n % 4, wavy(n), 0.5, wavy(n + 1))),
            "far share is the same in every sample of its group",
        ),
        (
            many(&|n| row(n % 4, 7.0, wavy(n), wavy(n + 3))),
            "the outcome is the same in every sample of its group",
        ),
        (
            many(&|n| row(0, wavy(n), f64::from(n), 3.0 * f64::from(n) + 1.0)),
            "goes together with the other columns",
        ),
        (
            many(&|n| row(0, wavy(n), f64::from(u8::from(n == 9)), f64::from(n))),
            "a single cluster decides what far share costs",
        ),
        (
            many(&|n| row(n, wavy(n), wavy(n + 1), wavy(n + 2))),
            "0 usable samples are too few",
        ),
        (
            vec![],
            "0 usable samples are too few for 2 estimated figures: it takes 7 or more",
        ),
        (many(&|n| row(0, f64::NAN, wavy(n), 1.0)), "too few"),
    ];
    for (rows, says) in cases {
        let error = fit(NAMES, &rows, Baseline::PerGroup).unwrap_err();
        assert!(error.to_string().contains(says), "{says:?}: {error}");
    }
}

#[test]
fn a_column_that_differs_only_between_cells_tells_nothing_within_them() {
    let rows: Vec<Row<1>> = (0..32)
        .map(|n| Row {
            group: n % 4,
            cluster: n,
            outcome: f64::from(n * 5 % 7),
            columns: [f64::from(n % 4) * 0.1],
        })
        .collect();
    let error = fit(["far share"], &rows, Baseline::PerGroup).unwrap_err();
    assert_eq!(
        error,
        CannotTell::NoVariation {
            column: "far share".to_owned(),
            baseline: Baseline::PerGroup
        }
    );
    assert!(fit(["far share"], &rows, Baseline::Common).is_ok());
}

#[test]
fn what_is_no_number_or_alone_in_its_cell_is_left_out_and_counted() {
    let mut rows = runs(&mut Random(6), 3, 12, |_| 0.2);
    let whole = fit(NAMES, &rows, Baseline::PerGroup).unwrap();
    rows.insert(
        5,
        Row {
            group: 0,
            cluster: 0,
            outcome: f64::NAN,
            columns: [0.0, 1.0],
        },
    );
    rows.push(Row {
        group: 1,
        cluster: 0,
        outcome: 3.0,
        columns: [f64::INFINITY, 1.0],
    });
    rows.push(Row {
        group: 77,
        cluster: 0,
        outcome: 1e9,
        columns: [0.3, 1e9],
    });
    let with = fit(NAMES, &rows, Baseline::PerGroup).unwrap();
    assert!(same(&whole, &with) && with.left_out == 3, "{with:?}");
}

proptest! {
    #[test]
    fn the_order_of_samples_does_not_matter(seed: u64, turn in 0usize..48) {
        let mut rows = runs(&mut Random(seed), 4, 12, |_| 0.5);
        let before = fit(NAMES, &rows, Baseline::PerGroup).unwrap();
        rows.rotate_left(turn);
        rows.swap(0, 20);
        prop_assert!(same(&before, &fit(NAMES, &rows, Baseline::PerGroup).unwrap()));
    }

    #[test]
    fn other_units_and_zeros_change_coefficients_as_units_do_and_nothing_else(
        seed: u64, power in -9i32..9, shift in -1e3..1e3f64,
    ) {
        let (rows, unit) = (runs(&mut Random(seed), 4, 12, |_| 0.5), 10f64.powi(power));
        let before = fit(NAMES, &rows, Baseline::PerGroup).unwrap();
        let other: Vec<_> = rows
            .iter()
            .map(|row| Row { columns: [row.columns[0] * unit, row.columns[1] + shift], outcome: row.outcome - shift, ..*row })
            .collect();
        let mut after = fit(NAMES, &other, Baseline::PerGroup).unwrap();
        let far = &mut after.coefficients[0];
        (far.value, far.low, far.high) = (far.value * unit, far.low * unit, far.high * unit);
        prop_assert!(same(&before, &after), "{before:?} {after:?}");
    }

    #[test]
    fn the_truth_is_found_to_the_precision_of_exact_data(a in -1e3..1e3f64, b in -1e3..1e3f64, seed: u64) {
        let mut random = Random(seed);
        let rows: Vec<_> = (0..30)
            .map(|n| {
                let columns = [random.unit(), random.unit() * 100.0];
                Row { group: n % 3, cluster: n, outcome: f64::from(n % 3) + a * columns[0] + b * columns[1], columns }
            })
            .collect();
        if let Ok(fit) = fit(NAMES, &rows, Baseline::PerGroup) {
            prop_assert!((fit.coefficients[0].value - a).abs() < 1e-6 * (1.0 + a.abs() + b.abs() * 100.0));
            prop_assert!((fit.coefficients[1].value - b).abs() < 1e-6 * (1.0 + a.abs() + b.abs()));
        }
    }

    #[test]
    fn whatever_comes_in_is_answered(
        rows in prop::collection::vec((0u32..4, any::<f64>(), any::<f64>(), prop::sample::select(vec![0.0, 1.0, -1e308, f64::MAX])), 0..40),
    ) {
        let rows: Vec<_> = rows.into_iter().zip(0u32..).map(|((group, outcome, a, b), n)| Row { group, cluster: n % 7, outcome, columns: [a, b] }).collect();
        for baseline in [Baseline::Common, Baseline::PerGroup] {
            if let Ok(fit) = fit(NAMES, &rows, baseline) {
                prop_assert!(fit.samples + fit.left_out == rows.len());
                prop_assert!(fit.coefficients.iter().all(|c| c.low.is_finite() && c.high.is_finite()), "{fit:?}");
            }
        }
    }
}
