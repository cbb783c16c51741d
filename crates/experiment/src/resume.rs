//! Finding the run that was interrupted, and what it already has.

use std::collections::BTreeSet;

use nearfar_runs::{Cell, Detail, Filter, Metric, Run, RunId, RunState, RunTarget, Sample, Store};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{ExperimentError, named};
use crate::outcome::Sampled;
use crate::sampler::Slot;

/// What a run has to have in common with the experiment for its samples to count.
pub(crate) struct Same<'a> {
    pub experiment: &'a str,
    pub parameters: &'a Value,
    pub plan: &'a [Cell],
    pub metrics: &'a [Metric],
    pub fingerprint: &'a str,
    pub targets: &'a [RunTarget],
    pub label: Option<&'a str>,
    /// Where the user wants a certain one.
    pub seed: Option<u64>,
}

impl Same<'_> {
    /// What of a run differs, for the sentence "its ...".
    fn difference(&self, run: &Run, detail: &Detail) -> Option<String> {
        let names = |metrics: &[Metric]| {
            let names = metrics.iter().map(|metric| metric.name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let differences = [
            (
                "experiment is another one",
                run.experiment != self.experiment,
            ),
            (
                "machine is another one",
                run.fingerprint != self.fingerprint,
            ),
            ("label is another one", run.label.as_deref() != self.label),
            ("parameters differ", detail.parameters != *self.parameters),
            ("cells differ", detail.plan != self.plan),
            (
                "seed differs",
                self.seed.is_some_and(|seed| seed != detail.seed),
            ),
        ];
        let found = differences.into_iter().find(|(_, differs)| *differs);
        let metrics = || {
            // Samples may have shown more.
            (!detail.metrics.starts_with(self.metrics)).then(|| {
                let (has, wanted) = (names(&detail.metrics), names(self.metrics));
                format!(
                    "samples, by nearfar {}, have other metrics ({has}) than this version's ({wanted})",
                    run.nearfar
                )
            })
        };
        let found = found.map(|(what, _)| what.to_owned());
        self.other_target(detail).or(found).or_else(metrics)
    }

    /// A target that is another one than in the run, or that only one of both has.
    fn other_target(&self, detail: &Detail) -> Option<String> {
        let same = |target: &RunTarget, other: &RunTarget| {
            target.levels == other.levels && target.fingerprint == other.fingerprint
        };
        let differs = |one: &[RunTarget], other: &[RunTarget]| {
            let mut one = one.iter();
            let differs = one.find(|target| !other.iter().any(|other| same(target, other)));
            differs.map(|target| {
                format!(
                    "target of {} is another machine or kernel",
                    named(&target.levels)
                )
            })
        };
        differs(self.targets, &detail.targets).or_else(|| differs(&detail.targets, self.targets))
    }
}

/// The newest run of the same, where it was interrupted or failed. One that is complete, or still going on, means that
/// nothing is to be continued.
pub(crate) fn find(
    store: &Store,
    same: &Same<'_>,
) -> Result<Option<(Run, Detail)>, ExperimentError> {
    let filter = Filter {
        experiment: Some(same.experiment.to_owned()),
        label: same.label.map(str::to_owned),
        ..Filter::default()
    };
    for run in store.list(&filter)? {
        // Its detail costs a look into the file, which most runs of a long list are not worth.
        if run.fingerprint != same.fingerprint {
            continue;
        }
        let detail = store.detail(run.run)?;
        if same.difference(&run, &detail).is_none() {
            let can_go_on = matches!(run.state, RunState::Interrupted | RunState::Failed);
            return Ok(can_go_on.then_some((run, detail)));
        }
    }
    Ok(None)
}

/// This run, if it is of the same. Whether it may be continued now is the store's to say, which lets only one process.
pub(crate) fn this(
    store: &Store,
    run: RunId,
    same: &Same<'_>,
) -> Result<(Run, Detail), ExperimentError> {
    let (found, detail) = (store.run(run)?, store.detail(run)?);
    match same.difference(&found, &detail) {
        None => Ok((found, detail)),
        Some(differs) => Err(ExperimentError::Other { run, differs }),
    }
}

/// Fails where each cell is to get fewer samples than the run was planned with: it would be complete with more than all.
pub(crate) fn check_samples(run: &Run, asked: u32) -> Result<(), ExperimentError> {
    match run.samples_per_cell {
        planned if asked < planned => Err(ExperimentError::Fewer {
            run: run.run,
            planned,
            asked,
        }),
        _ => Ok(()),
    }
}

/// The places in the order for which there is a sample. A failed one leaves its place open, to be tried again.
pub(crate) fn taken(plan: &[Cell], samples: &[Sample]) -> BTreeSet<Slot> {
    let place = |sample: &Sample| {
        let item = plan.iter().position(|cell| *cell == sample.cell)?;
        let round = sample.round;
        Some(Slot { round, item })
    };
    samples
        .iter()
        .filter(|sample| sample.failed.is_none())
        .filter_map(place)
        .collect()
}

/// Stored samples as the experiment's own.
pub(crate) fn read<S: DeserializeOwned>(
    run: &Run,
    samples: &[Sample],
) -> Result<Vec<Sampled<S>>, ExperimentError> {
    let one = |stored: &Sample| {
        if stored.failed.is_some() {
            return None;
        }
        let unreadable = |error| ExperimentError::Stored {
            run: run.run,
            number: stored.number,
            error,
        };
        Some(
            serde_json::from_value(stored.detail.clone())
                .map_err(unreadable)
                .map(|sample| Sampled {
                    number: stored.number,
                    round: stored.round,
                    cell: stored.cell.clone(),
                    values: stored.values.clone(),
                    warnings: stored.warnings.clone(),
                    sample,
                }),
        )
    };
    samples.iter().filter_map(one).collect()
}
