//! Whether a host got worse by its own measurement.

use nearfar_compare::{CompareError, Comparison, OneSided, Options, Side, compare};
use nearfar_runs::export::Whole;
use nearfar_statistics::compare::Verdict;

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
    #[error("{cells} have too few samples to tell whether {metric} got worse: measure more")]
    TooFewSamples { cells: String, metric: String },
    #[error("the measurement after the changes has no {metric} of the cell {cell}")]
    CellIsGone { cell: String, metric: String },
    #[error(transparent)]
    Compare(#[from] CompareError),
}

/// What got significantly worse by more than the margin, a share: the worst cell of the primary metric, else that of any other. The runs
/// before and after belong together by their order.
///
/// # Errors
/// There is not the same number of runs, two have nothing in common, or they cannot tell.
pub fn worst(
    before: &[Whole],
    after: &[Whole],
    margin: f64,
) -> Result<Option<Regression>, NotComparable> {
    if before.len() != after.len() {
        return Err(NotComparable::Number {
            before: count(before.len(), "run"),
            after: count(after.len(), "run"),
        });
    }
    let options = Options {
        margin,
        metrics: Vec::new(),
        // The changes are the point of it, and free memory is part of a machine.
        across: nearfar_compare::Kind::all().into_iter().collect(),
        // One measurement before and one after is all there is; a false alarm undoes a change, which harms nothing.
        judges_single_runs: true,
    };
    let mut all = Vec::new();
    for (before, after) in before.iter().zip(after) {
        let sides = [Side::of_run("before", before), Side::of_run("after", after)];
        let comparison = compare(&sides, &options)?;
        check(&comparison)?;
        all.extend(regressions(&comparison));
    }
    let all = all.into_iter().filter(|worse| worse.by > margin);
    Ok(all.max_by(|a, b| {
        let order = a.is_primary.cmp(&b.is_primary);
        order.then(a.by.total_cmp(&b.by))
    }))
}

/// Fails where the primary metric could not have got worse, whatever was measured.
fn check(comparison: &Comparison) -> Result<(), NotComparable> {
    let Some(metric) = comparison.metrics.first().map(|metric| &metric.name) else {
        return Ok(());
    };
    let is_gone = |it: &&OneSided| it.only_in == "before" && it.metrics.contains(metric);
    if let Some(gone) = comparison.one_sided.iter().find(is_gone) {
        return Err(NotComparable::CellIsGone {
            cell: gone.cell.to_string(),
            metric: metric.clone(),
        });
    }
    let rows = comparison.rows.iter().filter(|row| row.metric == *metric);
    let too_few = rows.filter(|row| row.compared.verdict == Verdict::TooFewSamples);
    match too_few.count() {
        0 => Ok(()),
        cells => Err(NotComparable::TooFewSamples {
            cells: count(cells, "cell"),
            metric: metric.clone(),
        }),
    }
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
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
