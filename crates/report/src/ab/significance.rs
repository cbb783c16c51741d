//! Whether a difference is more than chance, over all numbers that are compared: the engine of `nearfar compare` says it.
//!
//! A number that is the same in every run of both sides cannot differ by chance and does not count.

use nearfar_statistics::compare::{self, Compared, DEFAULT_MARGIN, Design, Question, compare};
use serde::Serialize;

use super::values::{Value, numbers};

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
        .map(|(_, a, b)| Question {
            a: vec![std::mem::take(a)],
            b: vec![std::mem::take(b)],
            design: Design::Independent,
            better: None,
        })
        .collect();
    let answers = compare(&questions, DEFAULT_MARGIN);
    for ((change, ..), answer) in judged.into_iter().zip(answers) {
        change.verdict = answer.map_or(Verdict::TooFewRuns, Verdict::from);
    }
}

/// The least number of runs of each side that can give a significant difference of one of `compared` numbers.
pub(super) fn runs_needed(compared: usize) -> usize {
    compare::fewest_samples(Design::Independent, compared)
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
        for (a, b) in [(&[1.0, 1.0][..], &[2.0, 2.0][..]), (&[1.0; 3], &[2.0; 3])] {
            assert_eq!(verdicts(&[(a, b)]), [Verdict::TooFewRuns]);
        }
        let (a, b) = ([1.0, 1.1, 1.2, 1.3], [1.4, 1.5, 1.6, 1.7]);
        assert_eq!(verdicts(&[(&a, &b)]), [Verdict::Significant]);
        assert_eq!(verdicts(&[(&a, &b), (&a, &b)]), [Verdict::TooFewRuns; 2]);
        assert_eq!(
            verdicts(&[(&[1.0, 1.1, 1.2, 1.45], &b)]),
            [Verdict::NotSignificant]
        );
        // 2 / C(2n, n): 1/35, 1/126, 1/462, 1/1716, 1/6435 for 4 to 8 runs.
        assert_eq!(
            [1, 2, 6, 7, 23, 24, 85, 86].map(runs_needed),
            [4, 5, 5, 6, 6, 7, 7, 8]
        );
    }
}
