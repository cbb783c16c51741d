//! Samples that depend on their predecessors: a machine that grows warm, a neighbour that stays busy for minutes.
//!
//! Such samples say less than as many independent ones. Their variance is inflated by (1 + r) / (1 - r), where r is the correlation of a
//! sample with the next one (an autoregressive process of order 1). Few samples estimate r poorly, and too small an estimate raises
//! false alarms: where sides are separate runs, r is taken one standard error larger. Where samples look independent nothing is
//! inflated, so that the exact distributions stay exact.

use crate::rank::ranks;

/// Fewer pairs of neighbours than this say nothing of their correlation.
const MIN_NEIGHBOURS: usize = 12;
/// A correlation above this is not told from a trend.
const MAX_CORRELATION: f64 = 0.95;

/// How cautious an estimate is, in standard errors of the correlation.
pub(super) struct Caution {
    /// By which it has to exceed that of independent samples.
    min_excess: f64,
    /// Which are added.
    added: f64,
}

/// Rounds have taken off what both sides share: a correlation that 5 % of independent samples exceed.
pub(super) const OF_PAIRS: Caution = Caution {
    min_excess: 1.645,
    added: 0.0,
};
/// Whatever lasts longer than a sample differs between separate runs: a correlation that 30 % of independent samples exceed.
pub(super) const OF_RUNS: Caution = Caution {
    min_excess: 0.5,
    added: 1.0,
};

/// How many times as large the variance of a mean is as that of as many independent samples; 1 where no dependence is found. Each
/// series is in the order in which it was measured.
pub(super) fn inflation(series: &[&[f64]], caution: &Caution) -> f64 {
    let (mut products, mut squares, mut neighbours, mut bias) = (0.0, 0.0, 0, 0.0);
    for series in series.iter().filter(|series| series.len() > 2) {
        // Ranks, so that a single outlier does not decide.
        let ranks = ranks(series);
        let middle = (ranks.len() as f64 + 1.0) / 2.0;
        let around: Vec<f64> = ranks.into_iter().map(|rank| rank - middle).collect();
        let own: f64 = around.iter().map(|it| it * it).sum();
        products += around.windows(2).map(|two| two[0] * two[1]).sum::<f64>();
        squares += own;
        neighbours += around.len() - 1;
        // The mean was taken off the same samples, which makes neighbours look opposed.
        bias += own / around.len() as f64;
    }
    if neighbours < MIN_NEIGHBOURS || squares <= 0.0 {
        return 1.0;
    }
    let excess = (products + bias) / squares;
    let error = 1.0 / (neighbours as f64).sqrt();
    if excess < caution.min_excess * error {
        return 1.0;
    }
    // The estimate is too small by some four times itself through the number of samples (Kendall 1954).
    let correlation = excess * (1.0 + 3.0 / neighbours as f64) + caution.added * error;
    let correlation = correlation.min(MAX_CORRELATION);
    (1.0 + correlation) / (1.0 - correlation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_inflates_and_alternation_does_not() {
        let rising: Vec<f64> = (0..20).map(f64::from).collect();
        assert!(inflation(&[&rising], &OF_PAIRS) > 5.0);
        let alternating: Vec<f64> = (0..20).map(|it| f64::from(it % 2)).collect();
        assert_eq!(inflation(&[&alternating], &OF_RUNS), 1.0);
        assert_eq!(
            inflation(&[&[1.0, 2.0, 3.0], &[]], &OF_RUNS),
            1.0,
            "too few to say"
        );
        assert_eq!(inflation(&[&[1.0; 30]], &OF_RUNS), 1.0);
    }
}
