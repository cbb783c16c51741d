//! Shares of categories, from one random draw of each stratum of a population.
//!
//! Strata are equal and in order, such as address ranges of a process; a draw may find nothing. The share of a category is the
//! weight of its draws over the weight of all (a ratio estimate). Its error is that of the differences between neighbouring strata
//! (W. G. Cochran, Sampling Techniques, 3rd edition, section 5A.11 on one unit per stratum, with overlapping pairs): where whole
//! ranges are alike, hardly any two neighbours differ. It is too large rather than too small.

use crate::CONFIDENCE;

/// Quantile of the normal distribution for [`CONFIDENCE`].
const NORMAL_QUANTILE: f64 = 1.96;

/// What a draw found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Draw {
    pub category: usize,
    /// How much it counts: 1 where all count alike. Not negative.
    pub weight: f64,
}

impl Draw {
    /// One that counts as any other.
    pub fn of(category: usize) -> Self {
        Self {
            category,
            weight: 1.0,
        }
    }
}

/// The shares of the categories that were found, which add up to 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Shares {
    /// By category, from 0 to 1.
    pub shares: Vec<f64>,
    /// Half the width of the 95 % interval of each share.
    pub errors: Vec<f64>,
    /// Draws that found something with a weight.
    pub found: usize,
}

impl Shares {
    /// The largest error of a share.
    pub fn error(&self) -> f64 {
        self.errors.iter().copied().fold(0.0, f64::max)
    }
}

/// The shares of `categories` categories. A draw is what it found, or `None`; one beyond `categories` or without a weight counts as
/// nothing. `None` when no draw found anything.
pub fn shares(draws: &[Option<Draw>], categories: usize) -> Option<Shares> {
    let counts = |draw: &Draw| draw.category < categories && draw.weight > 0.0;
    let draws: Vec<Option<Draw>> = draws.iter().map(|draw| draw.filter(counts)).collect();
    let (mut weights, mut squares) = (vec![0.0; categories], 0.0);
    for draw in draws.iter().flatten() {
        weights[draw.category] += draw.weight;
        squares += draw.weight * draw.weight;
    }
    let all: f64 = weights.iter().sum();
    let shares: Vec<f64> = weights.iter().map(|weight| weight / all).collect();
    // What no draw of so many found has at most this share, with the same confidence (the rule of three). Draws of unequal weight
    // tell as much as fewer that are equal (L. Kish, Survey Sampling, section 11.7).
    let unseen = -(1.0 - CONFIDENCE).ln() * squares / (all * all);
    let errors = shares.iter().enumerate();
    let errors = errors.map(|(category, &share)| {
        let standard = standard_error(&draws, category, share, all);
        (NORMAL_QUANTILE * standard).max(unseen).min(1.0)
    });
    let errors = errors.collect();
    let found = draws.iter().flatten().count();
    (found > 0).then_some(Shares {
        shares,
        errors,
        found,
    })
}

fn standard_error(draws: &[Option<Draw>], category: usize, share: f64, all: f64) -> f64 {
    // What a draw says beyond the share: of something that is not in the category, and of nothing.
    let residual = |draw: &Option<Draw>| match draw {
        Some(it) if it.category == category => it.weight * (1.0 - share),
        Some(it) => it.weight * -share,
        None => 0.0,
    };
    let squares: f64 = draws
        .windows(2)
        .map(|pair| (residual(&pair[1]) - residual(&pair[0])).powi(2))
        .sum();
    let count = draws.len() as f64;
    let pairs = (count - 1.0).max(1.0);
    (squares * count / (2.0 * pairs)).sqrt() / all
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
    ) -> Vec<Option<Draw>> {
        let bound = |stratum: u64| stratum * pages / count;
        (0..count)
            .map(|stratum| at(rng.u64(bound(stratum)..bound(stratum + 1))).map(Draw::of))
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

    /// Memory of which a part is used: how often an access is seen of a page in so many looks.
    #[test]
    fn the_interval_holds_the_share_of_what_is_used_in_95_percent() {
        const PAGES: u64 = 100_000;
        const LOOKS: u32 = 40;
        /// The category of a page, and the chance that a look finds it used.
        type Layout = Box<dyn Fn(u64) -> (usize, f64)>;
        let layouts: [(&str, Layout); 6] = [
            (
                "a tenth is used, on the second",
                Box::new(|page| match page {
                    60_000..70_000 => (1, 1.0),
                    _ => (usize::from(page > 50_000), 0.0),
                }),
            ),
            (
                "a twentieth, half on each",
                Box::new(|page| match page % 50_000 {
                    30_000..32_500 => (usize::from(page > 50_000), 0.9),
                    _ => (usize::from(page > 50_000), 0.0),
                }),
            ),
            (
                "scattered pages, interleaved",
                Box::new(|page| {
                    let is_used = hash(page).is_multiple_of(5);
                    ((page % 2) as usize, if is_used { 0.7 } else { 0.01 })
                }),
            ),
            (
                "scattered, a third far",
                Box::new(|page| {
                    let is_used = hash(page).is_multiple_of(10);
                    (usize::from(page < 33_357), if is_used { 1.0 } else { 0.0 })
                }),
            ),
            (
                "hot near, warm far",
                Box::new(|page| match page {
                    0..50_000 => (0, if page < 5_000 { 1.0 } else { 0.0 }),
                    _ => (1, 0.05),
                }),
            ),
            (
                "all alike",
                Box::new(|page| (usize::from(page > 80_000), 0.5)),
            ),
        ];
        let mut rng = fastrand::Rng::with_seed(7);
        for (name, at) in &layouts {
            let all = || (0..PAGES).map(at);
            let far: f64 = all().filter(|it| it.0 == 1).map(|it| it.1).sum();
            let truth = far / all().map(|it| it.1).sum::<f64>();
            for count in [1201, 2401] {
                let bound = |stratum: u64| stratum * PAGES / count;
                let holds = |rng: &mut fastrand::Rng| {
                    let draw = |stratum| {
                        let (category, chance) = at(rng.u64(bound(stratum)..bound(stratum + 1)));
                        let seen = (0..LOOKS).filter(|_| rng.f64() < chance).count();
                        Some(Draw {
                            category,
                            weight: seen as f64,
                        })
                    };
                    let draws: Vec<_> = (0..count).map(draw).collect();
                    let found = shares(&draws, 2).unwrap();
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
        let blocks: Vec<_> = (0..2400)
            .map(|at| Some(Draw::of(usize::from(at >= 1200))))
            .collect();
        let mut rng = fastrand::Rng::with_seed(7);
        let mixed: Vec<_> = (0..2400)
            .map(|_| Some(Draw::of(usize::from(rng.bool()))))
            .collect();
        assert!(shares(&blocks, 2).unwrap().error() < 0.002);
        let error = shares(&mixed, 2).unwrap().error();
        assert!((0.018..0.022).contains(&error), "{error}");
    }

    #[test]
    fn nothing_found_has_no_shares() {
        assert_eq!(shares(&[None, None], 2), None);
        assert_eq!(shares(&[], 2), None);
        assert_eq!(shares(&[Some(Draw::of(7))], 2), None);
        let idle = Draw {
            weight: 0.0,
            ..Draw::of(1)
        };
        assert_eq!(shares(&[Some(idle)], 2), None);
        let one = shares(&[Some(Draw::of(1)), Some(idle)], 2).unwrap();
        assert_eq!((one.shares, one.found), (vec![0.0, 1.0], 1));
        assert_eq!(one.errors, [1.0, 1.0]);
    }

    proptest::proptest! {
        #[test]
        fn shares_add_up_and_errors_are_shares(draws: Vec<Option<(usize, u8)>>, categories in 0_usize..5) {
            let draw = |(category, weight): (usize, u8)| Draw { category, weight: f64::from(weight) };
            let draws: Vec<_> = draws.into_iter().map(|it| it.map(draw)).collect();
            if let Some(found) = shares(&draws, categories) {
                proptest::prop_assert!((found.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                proptest::prop_assert!(found.errors.iter().all(|it| (0.0..=1.0).contains(it)));
            }
        }
    }
}
