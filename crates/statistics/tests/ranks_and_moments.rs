//! Rank correlation and moments against worked examples and laws.

use nearfar_statistics::{Moments, spearman};
use proptest::prelude::*;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12 * (1.0 + a.abs().max(b.abs()))
}

#[test]
fn the_textbooks_examples() {
    // Hours of television and intelligence, the example of Wikipedia's "Spearman's rank correlation coefficient": -29/165.
    let iq = [106., 100., 86., 101., 99., 103., 97., 113., 112., 110.];
    let hours = [7., 27., 2., 50., 28., 29., 20., 12., 6., 17.];
    assert!(close(spearman(&iq, &hours).unwrap(), -29.0 / 165.0));
    // Ties, worked by hand: ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4; sums of products 4.5 / sqrt(4.5 * 5).
    assert!(close(
        spearman(&[1., 2., 2., 3.], &[10., 30., 20., 40.]).unwrap(),
        4.5 / 22.5f64.sqrt()
    ));
    let runs = Moments::of(&[2., 4., 4., 4., 5., 5., 7., 9.]).unwrap();
    assert_eq!(
        (runs.count, runs.mean, runs.max, runs.min),
        (8, 5.0, 9.0, 2.0)
    );
    assert!(close(runs.stdev.unwrap(), (32.0f64 / 7.0).sqrt()));
}

#[test]
fn what_has_no_order_has_no_correlation() {
    assert_eq!(spearman(&[1., 1., 1.], &[1., 2., 3.]), None);
    assert_eq!(spearman(&[1.], &[1.]), None);
    assert_eq!(spearman(&[], &[]), None);
    assert_eq!(spearman(&[1., 2.], &[1., 2., 3.]), None);
    assert_eq!(spearman(&[1., f64::NAN], &[1., 2.]), None);
    assert_eq!(
        spearman(&[0.0, -0.0], &[1., 2.]),
        None,
        "0 and -0 are equal"
    );
}

#[test]
fn one_sample_has_a_mean_and_no_deviation_and_none_has_neither() {
    assert_eq!(Moments::of(&[f64::NAN]), None);
    let one = Moments::of(&[3.5, f64::INFINITY]).unwrap();
    assert_eq!((one.count, one.mean, one.stdev), (1, 3.5, None));
}

#[test]
fn a_large_common_part_takes_no_digits_from_the_deviation() {
    let near = Moments::of(&[1.0, 2.0, 3.0]).unwrap();
    let far = Moments::of(&[1e9 + 1.0, 1e9 + 2.0, 1e9 + 3.0]).unwrap();
    assert_eq!(near.stdev, far.stdev);
}

proptest! {
    #[test]
    fn correlation_depends_on_order_alone(values in prop::collection::vec((0u8..12, 0u8..12), 2..40)) {
        let (a, b): (Vec<f64>, Vec<f64>) = values.iter().map(|&(a, b)| (f64::from(a), f64::from(b))).unzip();
        let stretched: Vec<f64> = a.iter().map(|a| a.exp() * 3.0 - 7.0).collect();
        let mirrored: Vec<f64> = b.iter().map(|b| -b).collect();
        let found = spearman(&a, &b);
        prop_assert_eq!(found, spearman(&stretched, &b));
        prop_assert_eq!(found, spearman(&b, &a));
        prop_assert!(found.is_none_or(|r| (-1.0..=1.0).contains(&r)));
        if let (Some(r), Some(opposite)) = (found, spearman(&a, &mirrored)) {
            prop_assert!(close(r, -opposite));
        }
        prop_assert!(spearman(&a, &a).is_none_or(|r| close(r, 1.0)));
    }

    #[test]
    fn moments_lie_where_samples_do(samples in prop::collection::vec(-1e6..1e6f64, 1..40)) {
        let found = Moments::of(&samples).unwrap();
        prop_assert!(found.min <= found.mean + 1e-6 && found.mean <= found.max + 1e-6);
        prop_assert!(found.stdev.is_none_or(|stdev| stdev <= (found.max - found.min) * 1.000_001));
    }
}
