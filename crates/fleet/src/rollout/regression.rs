//! Whether a host got worse by its own measurement.

use nearfar_compare::{CompareError, Comparison, Options, Side, compare};
use nearfar_runs::export::Whole;

/// What got worse on a host.
#[derive(Clone, PartialEq, Debug)]
pub struct Regression {
    /// `None` where more samples failed than before.
    pub metric: Option<String>,
    /// Whether it is the primary metric of its experiment.
    pub is_primary: bool,
    /// As a share; infinite where the value before was 0.
    pub by: f64,
}

/// Why two measurements cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum NotComparable {
    #[error("{after} after the changes and {before} before cannot be compared")]
    Number { before: String, after: String },
    #[error(transparent)]
    Compare(#[from] CompareError),
}

/// What got significantly worse by more than the margin, a share: the worst cell of the primary metric, else that of any other. The runs
/// before and after belong together by their order.
///
/// # Errors
/// There is not the same number of runs, or two have nothing in common.
pub fn worst(
    before: &[Whole],
    after: &[Whole],
    margin: f64,
) -> Result<Option<Regression>, NotComparable> {
    if before.len() != after.len() {
        let runs = |runs: &[Whole]| match runs.len() {
            1 => "1 run".to_owned(),
            number => format!("{number} runs"),
        };
        return Err(NotComparable::Number {
            before: runs(before),
            after: runs(after),
        });
    }
    let options = Options {
        margin,
        metrics: Vec::new(),
        // The changes are the point of it, and free memory is part of a machine.
        across: nearfar_compare::Kind::all().into_iter().collect(),
    };
    let mut all = Vec::new();
    for (before, after) in before.iter().zip(after) {
        let sides = [Side::of_run("before", before), Side::of_run("after", after)];
        all.extend(regressions(&compare(&sides, &options)?));
    }
    let all = all.into_iter().filter(|worse| worse.by > margin);
    Ok(all.max_by(|a, b| {
        let order = a.is_primary.cmp(&b.is_primary);
        order.then(a.by.total_cmp(&b.by))
    }))
}

fn regressions(comparison: &Comparison) -> Vec<Regression> {
    let rows = comparison.rows.iter().filter_map(|row| {
        let mut metrics = comparison.metrics.iter().enumerate();
        let (index, metric) = metrics.find(|(_, metric)| metric.name == row.metric)?;
        Some(Regression {
            metric: Some(row.metric.clone()),
            // It is the first.
            is_primary: index == 0,
            by: row.regression(metric.better)?,
        })
    });
    let failed = comparison.failed_cells.iter().filter_map(|cell| {
        Some(Regression {
            metric: None,
            is_primary: false,
            by: cell.regression?,
        })
    });
    rows.chain(failed).collect()
}
