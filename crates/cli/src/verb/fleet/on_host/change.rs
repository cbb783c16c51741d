//! Changing a host: measure, apply, measure again, and undo what made it worse.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_fleet::rollout::{Regression, Rollout, RolloutOutcome, UNDO_WAIT_S, worst};
use nearfar_runs::export::Whole;
use serde_json::Value;

use super::{NOT_CANCELLED, VerbOutput, runs_of};
use crate::failure::Failure;

/// What a step does to its host.
pub struct ChangeStep<'a> {
    /// The words of apply.
    pub apply: &'a [String],
    /// The verb that measures, and its arguments.
    pub measure: Vec<String>,
    /// A host that gets worse by more than this share in any cell is undone.
    pub margin: f64,
    /// What the change set is called.
    pub label: &'a str,
    pub directory: &'a Path,
    /// Once it is set the step ends soon, with the host as it was: Slurm sends SIGTERM to a job that is over its time limit.
    pub cancel: &'a AtomicBool,
}

/// What came of it: the answer of apply, what it did, and the runs before and after.
pub struct Changed {
    pub output: VerbOutput,
    pub rollout: Rollout,
    pub runs: Vec<Whole>,
    /// What apply printed; `null` where it did not run or printed no JSON.
    answer: Value,
}

impl ChangeStep<'_> {
    /// Changes this host. Once changes may have been made, every failure ends in undoing them, and in an answer that says so.
    ///
    /// # Errors
    /// Before anything is changed.
    pub fn change(&self) -> Result<Changed, Failure> {
        if let Some(unchanged) = self.nothing_to_change()? {
            return Ok(unchanged);
        }
        let before = self.directory.join("before.db");
        let measured = self.run(&self.measure, &before)?;
        if self.is_cancelled() {
            let reason = "it was ended before the changes".to_owned();
            return Ok(Changed::untouched(measured, reason));
        }
        if !measured.is_answer() {
            let reason = format!("cannot measure before the changes: {}", measured.reason());
            return Ok(Changed::untouched(measured, reason));
        }
        let runs = runs_of(&before)?;
        if runs.is_empty() {
            let reason = format!("{} stored no run to compare", self.measure.join(" "));
            return Ok(Changed::untouched(measured, reason));
        }
        let mut words = self.apply.to_vec();
        words.extend(["--label".to_owned(), self.label.to_owned()]);
        let output = self.run(&words, &self.unused())?;
        let mut changed = Changed::by(output, runs);
        let problem = self.problem(&mut changed);
        changed.rollout.outcome = match problem {
            Ok(None) => return Ok(changed),
            Ok(Some(worst)) => RolloutOutcome::Worse {
                metric: worst.metric,
                by: worst.by.is_finite().then_some(worst.by),
                is_undone: self.undo(),
            },
            Err(reason) => RolloutOutcome::NotMade {
                reason: match self.is_cancelled() {
                    true => "it was ended before the second measurement was complete".to_owned(),
                    false => reason,
                },
                is_undone: self.undo(),
            },
        };
        Ok(changed)
    }

    /// The answer where the plan has no change: measuring could show nothing, and takes most of the time.
    fn nothing_to_change(&self) -> Result<Option<Changed>, Failure> {
        let mut words = self.apply.to_vec();
        words.push("--dry-run".to_owned());
        let output = self.run(&words, &self.unused())?;
        let plan: Value = serde_json::from_slice(&output.printed).unwrap_or_default();
        let is_empty = plan["changes"].as_array().is_some_and(Vec::is_empty);
        Ok((output.is_success() && is_empty).then(|| Changed::by(output, Vec::new())))
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::SeqCst)
    }

    fn run(&self, words: &[String], store: &Path) -> Result<VerbOutput, Failure> {
        VerbOutput::by(words, self.directory, store, self.cancel)
    }

    /// The store of verbs that store no runs.
    fn unused(&self) -> PathBuf {
        self.directory.join("unused.db")
    }

    /// What is wrong with the host now: what got worse, or why that or the changes are not known.
    fn problem(&self, changed: &mut Changed) -> Result<Option<Regression>, String> {
        if !changed.output.is_answer() {
            return Err(changed.output.reason());
        }
        let answer = &changed.answer;
        if answer["schema"] != "apply/1" || answer.get("change_set").is_none() {
            return Err("apply printed no answer that says what it changed".to_owned());
        }
        if changed.rollout.change_set.is_none() {
            return Ok(None);
        }
        let after = self.directory.join("after.db");
        let failed = |reason: String| format!("cannot measure after the changes: {reason}");
        let measured = self
            .run(&self.measure, &after)
            .map_err(|failure| failed(failure.message()))?;
        if !measured.is_answer() {
            return Err(failed(measured.reason()));
        }
        let runs = runs_of(&after).map_err(|failure| failed(failure.message()))?;
        let worst = worst(&changed.runs, &runs, self.margin).map_err(|error| error.to_string());
        changed.runs.extend(runs);
        worst
    }

    /// Undoes what apply made, also where it was killed before it answered: whether the host is as it was.
    fn undo(&self) -> bool {
        let words = [
            "rollback",
            "--label",
            self.label,
            "--if-exists",
            "--wait",
            UNDO_WAIT_S,
        ];
        let words = words.map(str::to_owned);
        VerbOutput::by(&words, self.directory, &self.unused(), &NOT_CANCELLED)
            .is_ok_and(|output| output.is_success())
    }
}

impl Changed {
    fn untouched(output: VerbOutput, reason: String) -> Self {
        let outcome = RolloutOutcome::NotMade {
            reason,
            is_undone: true,
        };
        Self {
            output,
            rollout: Rollout {
                outcome,
                change_set: None,
                changes: Vec::new(),
            },
            runs: Vec::new(),
            answer: Value::Null,
        }
    }

    /// What apply says that it did.
    fn by(output: VerbOutput, runs: Vec<Whole>) -> Self {
        let answer: Value = serde_json::from_slice(&output.printed).unwrap_or_default();
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
            output,
            answer,
        }
    }
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
