//! Whether a difference is more than chance, over all numbers that are compared.
//!
//! ```text
//! A  1.0  1.1  1.2  1.3                     all runs of one side above all of the other: by chance in 2 of C(8, 4) = 70
//! B                      1.4  1.5  1.6      orders of the runs (exact permutation test, both directions)
//! ```
//!
//! Many numbers are compared at once, so each has to pass at 5 % through how many there are (Bonferroni; where all sides have as
//! many runs, Holm's steps come to the same). A number that is the same in every run of both sides cannot differ by chance and
//! does not count (Tarone 1990). So in at most 5 of 100 comparisons of a thing with itself any number at all is called different.

use serde::Serialize;

/// The chance of any false alarm among all numbers compared.
const FALSE_ALARMS: f64 = 0.05;

/// Whether a difference is more than chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every run gave the same on both sides.
    Equal,
    /// All runs of one side lie above all of the other, and they are enough for as many numbers as are compared.
    Significant,
    /// They do not.
    NotSignificant,
    /// Whatever the runs give, they are too few for as many numbers as are compared.
    TooFewRuns,
}

impl Verdict {
    /// Of the runs of one number, one of `compared` that differ between any two runs.
    pub(super) fn of(a: &[f64], b: &[f64], compared: usize) -> Self {
        let ((a_least, a_most), (b_least, b_most)) =
            (super::values::range(a), super::values::range(b));
        match () {
            () if a_least == a_most && b_least == b_most && a_least == b_least => Self::Equal,
            () if !can_tell(a.len(), b.len(), compared) => Self::TooFewRuns,
            () if a_most < b_least || b_most < a_least => Self::Significant,
            () => Self::NotSignificant,
        }
    }
}

/// Whether so many runs can give a significant difference of one of `compared` numbers.
fn can_tell(a: usize, b: usize, compared: usize) -> bool {
    2.0 / orders(a, b) <= FALSE_ALARMS / compared.max(1) as f64
}

/// In how many ways the runs of both sides can be mixed: (a + b)! / (a! b!).
fn orders(a: usize, b: usize) -> f64 {
    (1..=a).map(|one| (b + one) as f64 / one as f64).product()
}

/// The least number of runs of each side that can give a significant difference of one of `compared` numbers.
pub(super) fn runs_needed(compared: usize) -> usize {
    (1..)
        .find(|&runs| can_tell(runs, runs, compared))
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_can_tell_depends_on_how_many_numbers_are_compared() {
        let verdict = |a: &[f64], b: &[f64], compared| Verdict::of(a, b, compared);
        assert_eq!(verdict(&[1.0, 1.0], &[1.0, 1.0], 1), Verdict::Equal);
        assert_eq!(
            verdict(&[1.0, 1.0], &[2.0, 2.0], 1),
            Verdict::TooFewRuns,
            "two runs tell nothing"
        );
        assert_eq!(
            verdict(&[1.0; 3], &[2.0; 3], 1),
            Verdict::TooFewRuns,
            "by chance once in ten"
        );
        let (a, b) = ([1.0, 1.1, 1.2, 1.3], [1.4, 1.5, 1.6, 1.7]);
        assert_eq!(verdict(&a, &b, 1), Verdict::Significant);
        assert_eq!(verdict(&a, &b, 2), Verdict::TooFewRuns);
        assert_eq!(
            verdict(&[1.0, 1.1, 1.2, 1.45], &b, 1),
            Verdict::NotSignificant
        );
        // 2 / C(2n, n): 1/35, 1/126, 1/462, 1/1716, 1/6435 for 4 to 8 runs.
        assert_eq!(
            [1, 2, 6, 7, 23, 24, 85, 86].map(runs_needed),
            [4, 5, 5, 6, 6, 7, 7, 8]
        );
    }
}
