//! Shares of categories, from one random draw of each stratum of a population.
//!
//! Strata are equal and in order, such as address ranges of a process; a draw may find nothing. The share of a category is the
//! number of its draws over the number of those that found something (a ratio estimate). Its error is that of the differences
//! between neighbouring strata (W. G. Cochran, Sampling Techniques, 3rd edition, section 5A.11 on one unit per stratum, with
//! overlapping pairs): where whole ranges are alike, hardly any two neighbours differ. It is too large rather than too small.

use crate::CONFIDENCE;

/// Quantile of the normal distribution for [`CONFIDENCE`].
const NORMAL_QUANTILE: f64 = 1.96;

/// The shares of the categories that were found, which add up to 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Shares {
    /// By category, from 0 to 1.
    pub shares: Vec<f64>,
    /// Half the width of the 95 % interval of each share.
    pub errors: Vec<f64>,
    /// Draws that found something.
    pub found: usize,
}

impl Shares {
    /// The largest error of a share.
    pub fn error(&self) -> f64 {
        self.errors.iter().copied().fold(0.0, f64::max)
    }
}

/// The shares of `categories` categories. A draw is the category that it found, or `None`; one beyond `categories` counts as
/// nothing. `None` when no draw found anything.
pub fn shares(draws: &[Option<usize>], categories: usize) -> Option<Shares> {
    let draws: Vec<Option<usize>> = draws
        .iter()
        .map(|draw| draw.filter(|it| *it < categories))
        .collect();
    let found = draws.iter().flatten().count();
    let mut counts = vec![0_usize; categories];
    for &category in draws.iter().flatten() {
        counts[category] += 1;
    }
    let shares: Vec<f64> = counts
        .iter()
        .map(|&count| count as f64 / found as f64)
        .collect();
    let errors = shares.iter().enumerate();
    let errors = errors
        .map(|(category, &share)| error(&draws, category, share, found))
        .collect();
    (found > 0).then_some(Shares {
        shares,
        errors,
        found,
    })
}

fn error(draws: &[Option<usize>], category: usize, share: f64, found: usize) -> f64 {
    // What a draw says beyond the share: of something that is not in the category, and of nothing.
    let residual = |draw: &Option<usize>| match draw {
        Some(it) if *it == category => 1.0 - share,
        Some(_) => -share,
        None => 0.0,
    };
    let squares: f64 = draws
        .windows(2)
        .map(|pair| (residual(&pair[1]) - residual(&pair[0])).powi(2))
        .sum();
    let (count, found) = (draws.len() as f64, found as f64);
    let pairs = (count - 1.0).max(1.0);
    let standard = (squares * count / (2.0 * pairs)).sqrt() / found;
    // What no draw of so many found has at most this share, with the same confidence (the rule of three).
    let unseen = -(1.0 - CONFIDENCE).ln() / found;
    (NORMAL_QUANTILE * standard).max(unseen).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws from a population of `pages`, of which a function tells the category.
    fn draws(
        rng: &mut fastrand::Rng,
        pages: u64,
        count: u64,
        at: &dyn Fn(u64) -> Option<usize>,
    ) -> Vec<Option<usize>> {
        let bound = |stratum: u64| stratum * pages / count;
        (0..count)
            .map(|stratum| at(rng.u64(bound(stratum)..bound(stratum + 1))))
            .collect()
    }

    /// A number that looks random and is always the same for a page.
    fn hash(page: u64) -> u64 {
        page.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) >> 11
    }

    #[test]
    fn the_interval_holds_the_true_share_in_95_percent() {
        const PAGES: u64 = 100_000;
        type Layout = Box<dyn Fn(u64) -> Option<usize>>;
        let layouts: [(&str, Layout); 8] = [
            (
                "halves",
                Box::new(|page| Some(usize::from(page > PAGES / 2))),
            ),
            (
                "a third and a bit",
                Box::new(|page| Some(usize::from(page < 33_357))),
            ),
            ("interleaved", Box::new(|page| Some((page % 2) as usize))),
            (
                "interleaved by 512",
                Box::new(|page| Some((page / 512 % 2) as usize)),
            ),
            (
                "random, a tenth",
                Box::new(|page| Some(usize::from(hash(page).is_multiple_of(10)))),
            ),
            (
                "a page of a thousand",
                Box::new(|page| Some(usize::from(hash(page).is_multiple_of(1000)))),
            ),
            (
                "a tenth in memory, in runs",
                Box::new(|page| {
                    (hash(page / 64).is_multiple_of(10))
                        .then_some((hash(page / 64) / 10 % 2) as usize)
                }),
            ),
            (
                "half in memory",
                Box::new(|page| {
                    (hash(page).is_multiple_of(2)).then_some(usize::from(page < 20_000))
                }),
            ),
        ];
        let mut rng = fastrand::Rng::with_seed(7);
        for (name, at) in &layouts {
            let all: Vec<usize> = (0..PAGES).filter_map(at).collect();
            let truth = all.iter().sum::<usize>() as f64 / all.len() as f64;
            for count in [601, 2401] {
                let holds = |rng: &mut fastrand::Rng| {
                    let found = shares(&draws(rng, PAGES, count, at), 2).unwrap();
                    (found.shares[1] - truth).abs() <= found.errors[1]
                };
                let held = (0..1000).filter(|_| holds(&mut rng)).count();
                // 95 % of 1000, less 2.9 standard deviations.
                assert!(held >= 930, "{name}, {count} draws: {held} of 1000");
            }
        }
    }

    #[test]
    fn blocks_have_a_small_error_and_interleaved_pages_a_large_one() {
        let blocks: Vec<_> = (0..2400).map(|at| Some(usize::from(at >= 1200))).collect();
        let mut rng = fastrand::Rng::with_seed(7);
        let mixed: Vec<_> = (0..2400).map(|_| Some(usize::from(rng.bool()))).collect();
        assert!(shares(&blocks, 2).unwrap().error() < 0.002);
        let error = shares(&mixed, 2).unwrap().error();
        assert!((0.018..0.022).contains(&error), "{error}");
    }

    #[test]
    fn nothing_found_has_no_shares() {
        assert_eq!(shares(&[None, None], 2), None);
        assert_eq!(shares(&[], 2), None);
        assert_eq!(shares(&[Some(7)], 2), None);
        let one = shares(&[Some(1)], 2).unwrap();
        assert_eq!((one.shares, one.found), (vec![0.0, 1.0], 1));
        assert_eq!(one.errors, [1.0, 1.0]);
    }

    proptest::proptest! {
        #[test]
        fn shares_add_up_and_errors_are_shares(draws: Vec<Option<usize>>, categories in 0_usize..5) {
            if let Some(found) = shares(&draws, categories) {
                proptest::prop_assert!((found.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                proptest::prop_assert!(found.errors.iter().all(|it| (0.0..=1.0).contains(it)));
            }
        }
    }
}
