//! Runs that end once their answer is clear: when they are looked at, and how much of the false alarms each look may take.
//!
//! ```text
//! rounds   10     20     40     80   ...
//! share    1/2    1/4    1/8    1/16 ...     of the chance of any false alarm: all looks together have no more than all of it
//! ```
//!
//! Bonferroni's inequality over the looks: it holds however samples of different looks depend on each other, and wherever a run ends. What
//! ends between two looks, as by Ctrl-C, has the share of the next one.

use super::{Compared, Design, FALSE_ALARMS, Verdict};

/// The rounds before the first look.
pub const FIRST_LOOK: u32 = 10;

/// The rounds after which a run ends whatever is known, unless it is asked for others: four looks.
pub const MOST_ROUNDS: u32 = 80;

/// Whether a run is looked at after so many rounds.
pub fn is_look(rounds: u32) -> bool {
    let looks = rounds / FIRST_LOOK;
    rounds.is_multiple_of(FIRST_LOOK) && looks.is_power_of_two()
}

/// The round of the last look until the end of this one; 0 before the first.
pub fn last_look(round: u32) -> u32 {
    match round / FIRST_LOOK {
        0 => 0,
        looks => FIRST_LOOK << looks.ilog2(),
    }
}

/// The fewest rounds with which any of so many comparisons can be significant, each with its share.
pub fn fewest_rounds(design: Design, comparisons: usize) -> u32 {
    let is_enough = |rounds: &u32| {
        let of_share = (1.0 / share(*rounds)).round() as usize;
        super::fewest_samples(design, comparisons * of_share) <= *rounds as usize
    };
    (1..).find(is_enough).unwrap_or(u32::MAX)
}

/// The share of the false alarms of what is known after so many rounds.
pub fn share(rounds: u32) -> f64 {
    let looks = rounds.div_ceil(FIRST_LOOK).max(1).next_power_of_two();
    0.5 / f64::from(looks)
}

/// Whether further rounds are not needed for one of so many comparisons, which had this share: it is equivalent, or significant whatever
/// the others will be.
pub fn is_clear(compared: &Compared, share: f64, comparisons: usize) -> bool {
    match compared.verdict {
        Verdict::Equivalent | Verdict::Equal => true,
        _ => compared.p * comparisons as f64 <= FALSE_ALARMS * share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_looks_have_no_more_than_all_false_alarms() {
        let looks: Vec<u32> = (0..=1280).filter(|it| is_look(*it)).collect();
        assert_eq!(looks, [10, 20, 40, 80, 160, 320, 640, 1280]);
        let shares: Vec<f64> = looks.iter().map(|it| share(*it)).collect();
        assert_eq!(shares[..3], [0.5, 0.25, 0.125]);
        assert!(shares.iter().sum::<f64>() < 1.0);
        // Between two looks, and before the first.
        assert_eq!((share(11), share(3), share(0)), (0.25, 0.5, 0.5));
        let last = [0, 9, 10, 19, 20, 39, 40, 1000].map(last_look);
        assert_eq!(last, [0, 0, 10, 10, 20, 20, 40, 640]);
    }

    #[test]
    fn the_fewest_rounds_have_the_share_of_their_own_look() {
        // 2 / 2^9 of half of 5 % for four comparisons; of a hundred ones only the share of the second look is enough.
        assert_eq!(fewest_rounds(Design::Paired, 4), 9);
        assert_eq!(fewest_rounds(Design::Paired, 100), 14);
    }
}
