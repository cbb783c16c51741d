//! Changing a host: measure, apply, measure again, and undo what made it worse.

use std::path::Path;

use nearfar_compare::{Comparison, Options, Side, compare};
use nearfar_fleet::rollout::{Rollout, RolloutOutcome};
use nearfar_runs::export::Whole;
use serde_json::Value;

use super::{Said, runs_of};
use crate::failure::Failure;

/// What is measured, and what a host may lose.
pub struct Measure {
    /// The verb and its arguments.
    pub arguments: Vec<String>,
    /// A host that gets worse by more than this share in any cell is undone.
    pub margin: f64,
}

/// What came of it: the answer of apply, what it did, and the runs before and after.
pub struct Changed {
    pub said: Said,
    pub rollout: Rollout,
    pub runs: Vec<Whole>,
}

/// Changes this host. Once changes may have been made, every failure ends in undoing them, and in an answer that says so.
///
/// # Errors
/// Before anything is changed.
pub fn change(
    arguments: &[String],
    measure: &Measure,
    directory: &Path,
) -> Result<Changed, Failure> {
    let before = directory.join("before.db");
    let measured = Said::by(&measure.arguments, directory, &before)?;
    if !measured.is_answer() {
        let reason = format!("cannot measure before the changes: {}", measured.reason());
        return Ok(Changed::untouched(measured, reason));
    }
    let runs = runs_of(&before)?;
    let said = Said::by(arguments, directory, &directory.join("unused.db"))?;
    let mut changed = Changed::by(said, runs);
    let problem = changed.problem(measure, directory);
    changed.rollout.outcome = match problem {
        Ok(None) => return Ok(changed),
        Ok(Some(worst)) => RolloutOutcome::Worse {
            metric: worst.metric,
            by: worst.by.is_finite().then_some(worst.by),
            is_undone: changed.undo(directory),
        },
        Err(reason) => RolloutOutcome::NotMade {
            reason,
            is_undone: changed.undo(directory),
        },
    };
    Ok(changed)
}

impl Changed {
    fn untouched(said: Said, reason: String) -> Self {
        let outcome = RolloutOutcome::NotMade {
            reason,
            is_undone: true,
        };
        Self {
            said,
            rollout: Rollout {
                outcome,
                change_set: None,
                changes: Vec::new(),
            },
            runs: Vec::new(),
        }
    }

    /// What apply says that it did.
    fn by(said: Said, runs: Vec<Whole>) -> Self {
        let answer: Value = serde_json::from_slice(&said.printed).unwrap_or_default();
        let change_set = answer["change_set"].as_u64();
        Self {
            rollout: Rollout {
                outcome: match change_set {
                    None => RolloutOutcome::NothingToChange,
                    Some(_) => RolloutOutcome::Kept,
                },
                change_set,
                changes: changes(&answer),
            },
            runs,
            said,
        }
    }

    /// What is wrong with the host now: what got worse, or why that or the changes are not known.
    fn problem(&mut self, measure: &Measure, directory: &Path) -> Result<Option<Worse>, String> {
        if !self.said.is_answer() {
            return Err(self.said.reason());
        }
        if !self.said.is_json() {
            return Err("apply did not say what it changed".to_owned());
        }
        if self.rollout.change_set.is_none() {
            return Ok(None);
        }
        let after = directory.join("after.db");
        let failed = |failure: Failure| format!("cannot measure after the changes: {failure:?}");
        let measured = Said::by(&measure.arguments, directory, &after).map_err(failed)?;
        if !measured.is_answer() {
            return Err(format!(
                "cannot measure after the changes: {}",
                measured.reason()
            ));
        }
        let runs = runs_of(&after).map_err(failed)?;
        let worst = worst(&self.runs, &runs, measure.margin);
        self.runs.extend(runs);
        worst
    }

    /// Undoes the change set, and says whether the host is as it was. Without a number it is if apply refused the whole plan, which it
    /// says in words of its own; what was killed says nothing.
    fn undo(&self, directory: &Path) -> bool {
        let Some(number) = self.rollout.change_set else {
            return self.said.was_refused();
        };
        let words = [
            "rollback",
            "--change",
            &number.to_string(),
            "--format",
            "json",
        ];
        let words = words.map(str::to_owned);
        Said::by(&words, directory, &directory.join("unused.db"))
            .is_ok_and(|said| said.is_success())
    }
}

/// What got worse.
struct Worse {
    /// `None` where more samples failed than before.
    metric: Option<String>,
    is_primary: bool,
    /// As a share; infinite where the value before was 0.
    by: f64,
}

/// What got significantly worse by more than the margin: the worst cell of the primary metric, else that of any other.
fn worst(before: &[Whole], after: &[Whole], margin: f64) -> Result<Option<Worse>, String> {
    if before.is_empty() || before.len() != after.len() {
        return Err(
            "the measurement stored no run, or not the same number of runs each time".to_owned(),
        );
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
        let comparison = compare(&sides, &options).map_err(|error| error.to_string())?;
        all.extend(regressions(&comparison));
    }
    let all = all.into_iter().filter(|worse| worse.by > margin);
    Ok(all.max_by(|a, b| {
        let order = a.is_primary.cmp(&b.is_primary);
        order.then(a.by.total_cmp(&b.by))
    }))
}

fn regressions(comparison: &Comparison) -> Vec<Worse> {
    let rows = comparison.rows.iter().filter_map(|row| {
        let mut metrics = comparison.metrics.iter().enumerate();
        let (index, metric) = metrics.find(|(_, metric)| metric.name == row.metric)?;
        Some(Worse {
            metric: Some(row.metric.clone()),
            // It is the first.
            is_primary: index == 0,
            by: row.regression(metric.better)?,
        })
    });
    let failed = comparison.failed_cells.iter().filter_map(|cell| {
        Some(Worse {
            metric: None,
            is_primary: false,
            by: cell.regression?,
        })
    });
    rows.chain(failed).collect()
}

/// The files that were written: `FILE: BEFORE -> AFTER`.
fn changes(outcome: &Value) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let made = |tried: &Value| {
        let result = &tried["result"];
        let value = |key: &str| result.get(key).or_else(|| tried.get(key)).map(text);
        let file = text(tried.get("file")?);
        Some(format!(
            "{file}: {} -> {}",
            value("before")?,
            value("after")?
        ))
    };
    let all = outcome["changes"].as_array();
    all.into_iter().flatten().filter_map(made).collect()
}
