//! Whether a difference is more than chance, over all numbers that are compared: the engine of `nearfar compare` says it.
//!
//! A number that is the same in every run of both sides cannot differ by chance and does not count.

use nearfar_statistics::compare::{self, Compared, DEFAULT_MARGIN, Design, Question, compare};
use serde::Serialize;

use super::values::{Value, numbers};

/// The runs of both sides alternate, so that what drifts on the host is common to both runs of a round. `nearfar compare`
/// takes the same rounds.
const DESIGN: Design = Design::Paired;

/// Whether a difference is more than chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every run gave the same on both sides.
    Equal,
    /// The runs of both sides differ by more than chance, as one of so many numbers.
    Significant,
    /// They do not.
    NotSignificant,
    /// Whatever the runs give, they are too few for as many numbers as are compared.
    TooFewRuns,
}

impl From<Compared> for Verdict {
    /// The engine also says whether sides are equivalent, which this answer does not show.
    fn from(compared: Compared) -> Self {
        match compared.verdict {
            _ if compared.is_significant => Self::Significant,
            compare::Verdict::Equal => Self::Equal,
            compare::Verdict::TooFewSamples => Self::TooFewRuns,
            _ => Self::NotSignificant,
        }
    }
}

/// Says of each number whether its difference is more than chance.
pub(super) fn judge<'a>(values: impl Iterator<Item = &'a mut Value>) {
    let mut judged: Vec<_> = values
        .filter_map(|value| {
            let (a, b) = (numbers(&value.a)?, numbers(&value.b)?);
            Some((value.change.as_mut()?, a, b))
        })
        .collect();
    let questions: Vec<Question> = judged
        .iter_mut()
        .map(|(_, a, b)| {
            // Of a comparison that was interrupted one side may have a run more.
            let rounds = a.len().min(b.len());
            a.truncate(rounds);
            b.truncate(rounds);
            Question {
                a: vec![std::mem::take(a)],
                b: vec![std::mem::take(b)],
                design: DESIGN,
                better: None,
            }
        })
        .collect();
    let answers = compare(&questions, DEFAULT_MARGIN);
    for ((change, ..), answer) in judged.into_iter().zip(answers) {
        change.verdict = answer.map_or(Verdict::TooFewRuns, Verdict::from);
    }
}

/// The least number of runs of each side that can give a significant difference of one of `compared` numbers.
pub(super) fn runs_needed(compared: usize) -> usize {
    compare::fewest_samples(DESIGN, compared)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The verdicts on numbers, each of the runs of A and of B.
    fn verdicts(numbers: &[(&[f64], &[f64])]) -> Vec<Verdict> {
        let of = |side: &[f64]| side.iter().map(|number| json!(number)).collect();
        let value = |(a, b): &(&[f64], &[f64])| Value::new("n".to_owned(), of(a), of(b));
        let mut values: Vec<Value> = numbers.iter().map(value).collect();
        judge(values.iter_mut());
        let verdicts = values.iter().filter_map(|value| value.change);
        verdicts.map(|change| change.verdict).collect()
    }

    #[test]
    fn what_runs_can_show_depends_on_how_many_numbers_are_compared() {
        assert_eq!(
            verdicts(&[(&[1.0, 1.0], &[1.0, 1.0])]),
            [Verdict::Equal],
            "it does not count either"
        );
        for runs in [2, 5] {
            let (a, b) = ([1.0; 5], [2.0, 3.0, 4.0, 5.0, 6.0]);
            let found = verdicts(&[(&a[..runs], &b[..runs])]);
            assert_eq!(found, [Verdict::TooFewRuns]);
        }
        let (a, b) = (
            [1.0, 1.3, 1.1, 1.5, 1.2, 1.4],
            [2.1, 1.9, 2.5, 1.7, 2.7, 2.3],
        );
        assert_eq!(verdicts(&[(&a, &b)]), [Verdict::Significant]);
        assert_eq!(verdicts(&[(&a, &b), (&a, &b)]), [Verdict::TooFewRuns; 2]);
        assert_eq!(
            verdicts(&[(&[1.0, 1.3, 1.1, 2.8, 1.2, 1.4], &b)]),
            [Verdict::NotSignificant]
        );
        // 2 / 2^n: 1/32, 1/64 ... 1/1024 for 6 to 11 runs.
        assert_eq!(
            [1, 2, 3, 4, 6, 7, 12, 13, 25, 26, 51].map(runs_needed),
            [6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]
        );
    }

    #[test]
    fn what_drifts_over_the_rounds_is_common_to_both_sides() {
        let a = [10.0, 11.3, 12.1, 13.4, 14.2, 15.5, 16.1, 17.3];
        let noise = [1.01, 1.03, 1.02, 1.04, 1.015, 1.035, 1.012, 1.025];
        let b: Vec<f64> = a.iter().zip(noise).map(|(it, noise)| it * noise).collect();
        assert_eq!(verdicts(&[(&a, &b)]), [Verdict::Significant]);
    }
}
