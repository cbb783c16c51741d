//! The step that was manual: run time explained by cross-node migrations and by the share of far accesses.
//!
//! Least squares over all samples: seconds = what its round took + a x migrations from node to node + b x share of far
//! accesses. Each round, apart for NUMA balancing on and off, has a level of its own, so that neither drift nor the cost of
//! hint faults looks like a cost of being far. The runs of a cell share whatever is special to it, so intervals count cells
//! (clusters), not runs. Runs whose memory NUMA balancing may move are left out: moving it costs time
//! that neither of the two explains, and how long it was far is not known exactly.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::Known;
use nearfar_statistics::Interval;
use nearfar_statistics::regression::{Baseline, CannotTell, Coefficient, Fit, Row, Share, fit};
use serde::{Deserialize, Serialize};

use super::cell::MatrixCell;
use super::sample::Taken;
use crate::probe::Where;

const MIGRATIONS: &str = "the number of cross-node migrations";
const FAR: &str = "the share of far accesses";

/// What makes a run long.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// Seconds that each cross-node migration cost; or why the data cannot tell.
    pub migration_s: Known<Estimate>,
    /// How much longer a run takes that is far all the time than one that never is, as a share of the latter; or why the
    /// data cannot tell.
    pub far_share: Known<Estimate>,
    /// The share of the variation of run times within rounds that both explain together, 0 to 1.
    pub r2: Option<f64>,
    /// Whether each round had a level of its own; otherwise the rounds were too small for that.
    pub within_rounds: bool,
    /// Samples that went in.
    pub samples: usize,
}

/// A figure with its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub confidence: Interval,
}

impl Estimate {
    /// Whether the interval leaves no warning that it is not 0.
    pub fn is_significant(&self) -> bool {
        self.confidence.low > 0.0 || self.confidence.high < 0.0
    }

    fn of(found: &Coefficient) -> Self {
        Self {
            value: found.value,
            confidence: Interval {
                low: found.low,
                high: found.high,
            },
        }
    }

    /// Of its share of what the runs would have taken without any migration and always near: the measure of "24 % longer".
    fn share_of(found: &Coefficient) -> Option<Self> {
        found
            .share
            .map(|Share { value, confidence }| Self { value, confidence })
    }
}

/// Explains the run times, as far as the samples allow.
pub fn explain(taken: &[Taken]) -> Explained {
    let rows = rows(taken);
    if rows.is_empty() {
        let reason =
            "no sample has both a trace of its migrations and the places of its pages".to_owned();
        return nothing(reason.clone(), reason, 0);
    }
    match in_rounds([MIGRATIONS, FAR], &rows) {
        Ok((fit, baseline)) => of_fit(&fit, baseline, None),
        // One of the two never changes: the other one may still be told, and alone.
        Err(CannotTell::NoVariation { column, baseline }) => {
            let (kept, index) = if column == MIGRATIONS {
                (FAR, 1)
            } else {
                (MIGRATIONS, 0)
            };
            let alone: Vec<Row<1>> = rows
                .iter()
                .map(|row| Row {
                    group: row.group,
                    cluster: row.cluster,
                    outcome: row.outcome,
                    columns: [row.columns[index]],
                })
                .collect();
            let reason = in_words(CannotTell::NoVariation { column, baseline });
            match in_rounds([kept], &alone) {
                Ok((fit, baseline)) => of_fit(&fit, baseline, Some(&reason)),
                Err(error) if kept == FAR => nothing(reason, in_words(error), rows.len()),
                Err(error) => nothing(in_words(error), reason, rows.len()),
            }
        }
        Err(error) => nothing(in_words(error.clone()), in_words(error), rows.len()),
    }
}

/// Why not, in the words of a matrix: its groups are rounds.
fn in_words(error: CannotTell) -> String {
    match error {
        CannotTell::NoVariation {
            column,
            baseline: Baseline::PerGroup,
        } => {
            format!("{column} is the same in every sample of a round")
        }
        CannotTell::TooFewClusters { clusters, .. } => {
            format!("{clusters} cells are too few to say how much cells differ in other ways")
        }
        CannotTell::OneDecides { column } => format!("{column} differs in one cell only"),
        error => error.to_string(),
    }
}

fn rows(taken: &[Taken]) -> Vec<Row<2>> {
    let cells: BTreeSet<MatrixCell> = taken.iter().map(|taken| taken.cell).collect();
    let clusters: BTreeMap<MatrixCell, u32> = cells.into_iter().zip(0..).collect();
    let row = |taken: &Taken| {
        let cell = taken.cell;
        let sample = taken
            .good()
            .filter(|_| !cell.policy.numa_balancing || cell.memory_node != Where::Floating)?;
        // Rounds are few; one that a foreign file makes up must not be too large to double.
        let group = taken
            .round
            .wrapping_mul(2)
            .wrapping_add(cell.policy.numa_balancing.into());
        let columns = [sample.cross_node()? as f64, *sample.far_share().get()?];
        Some(Row {
            group,
            cluster: *clusters.get(&cell)?,
            outcome: sample.probe.seconds,
            columns,
        })
    };
    taken.iter().filter_map(row).collect()
}

/// With a level for each round; with one for all where the rounds are too small for that.
fn in_rounds<const N: usize>(
    names: [&str; N],
    rows: &[Row<N>],
) -> Result<(Fit, Baseline), CannotTell> {
    let by = |baseline| fit(names, rows, baseline).map(|fit| (fit, baseline));
    match by(Baseline::PerGroup) {
        Err(CannotTell::TooFew { .. }) => by(Baseline::Common),
        answer => answer,
    }
}

fn of_fit(fit: &Fit, baseline: Baseline, why_not_both: Option<&str>) -> Explained {
    let reason = || Known::no(why_not_both.unwrap_or("it was not estimated").to_owned());
    let cost = |name| fit.coefficients.iter().find(|found| found.name == name);
    Explained {
        migration_s: cost(MIGRATIONS).map_or_else(reason, |found| Known::Yes(Estimate::of(found))),
        far_share: cost(FAR).map_or_else(reason, |found| match Estimate::share_of(found) {
            Some(estimate) => Known::Yes(estimate),
            None => Known::no("the fit leaves no time for runs that are near"),
        }),
        r2: Some(fit.r2),
        within_rounds: baseline == Baseline::PerGroup,
        samples: fit.samples,
    }
}

fn nothing(why_not_migrations: String, why_not_far: String, samples: usize) -> Explained {
    let (migration_s, far_share) = (Known::no(why_not_migrations), Known::no(why_not_far));
    Explained {
        migration_s,
        far_share,
        r2: None,
        within_rounds: false,
        samples,
    }
}
