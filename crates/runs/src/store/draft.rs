//! What is about to be stored, checked and in the shape of the tables; and runs that are stored whole.

use nearfar_machine::Emulation;
use serde_json::Value;

use super::Store;
use super::write::{Row, insert, random_uid, replace_metrics};
use crate::error::StoreError;
use crate::metric::{Metric, Values, check_metrics, check_values};
use crate::run::{
    Detail, NewRun, NewSample, Run, RunId, RunState, RunTarget, Sample, SampleResult, now_s,
};

impl Store {
    /// Stores a run that is already measured, with all its samples, in one transaction. For measurements that a write
    /// to a disk between two samples would disturb.
    ///
    /// # Errors
    /// [`StoreError::Metrics`]; SQLite's answer.
    pub fn add_complete(
        &mut self,
        new: &NewRun<'_>,
        samples: &[NewSample],
    ) -> Result<RunId, StoreError> {
        let (mut run, detail, machine) = self.draft(new)?;
        let mut rows = Vec::with_capacity(samples.len());
        for (number, sample) in (1..).zip(samples) {
            let mut row = self.row(new.metrics, sample)?;
            row.number = number;
            rows.push(row);
        }
        let first = samples.iter().map(|sample| sample.started_at_s);
        run.started_at_s = first.fold(run.started_at_s, f64::min);
        run.finished_at_s = Some(now_s());
        run.state = RunState::Complete;
        run.samples = rows.len() as u64;
        run.with_warnings = rows.iter().filter(|row| row.has_warnings).count() as u64;
        run.failed = rows.iter().filter(|row| row.failed.is_some()).count() as u64;
        self.write(|transaction| insert(transaction, &run, &detail, &machine, &rows))
    }

    /// Declares further metrics of a run: those that its first samples showed. A metric that is declared already stays
    /// as it is.
    ///
    /// # Errors
    /// [`StoreError::Metrics`] where one is primary or has an impossible name; SQLite's answer.
    pub fn add_metrics(&mut self, run: RunId, more: &[Metric]) -> Result<(), StoreError> {
        let mut metrics = self.metrics(run)?;
        for metric in more {
            if metrics.iter().all(|known| known.name != metric.name) {
                metrics.push(metric.clone());
            }
        }
        check_metrics(&metrics).map_err(|error| StoreError::Metrics {
            experiment: format!("of run {run}"),
            error,
        })?;
        self.write(|transaction| replace_metrics(transaction, run, &metrics))
    }

    /// A run as it begins, its detail, and the machine as JSON.
    pub(super) fn draft(&self, new: &NewRun<'_>) -> Result<(Run, Detail, Vec<u8>), StoreError> {
        check_metrics(new.metrics).map_err(|error| StoreError::Metrics {
            experiment: new.experiment.to_owned(),
            error,
        })?;
        let machine =
            serde_json::to_vec(new.machine).map_err(|error| self.damaged("the machine", error))?;
        let run = Run {
            run: RunId(0),
            uid: random_uid(),
            experiment: new.experiment.to_owned(),
            title: new.title.to_owned(),
            label: new.label.map(str::to_owned),
            state: RunState::Running,
            failure: None,
            started_at_s: now_s(),
            finished_at_s: None,
            samples: 0,
            with_warnings: 0,
            failed: 0,
            cells: new.cells.len() as u64,
            samples_per_cell: new.samples_per_cell,
            host: new.host.name.clone(),
            kernel: kernel(new),
            emulation: emulation(new),
            nearfar: env!("CARGO_PKG_VERSION").to_owned(),
            fingerprint: new.fingerprint.to_owned(),
            owner: self.us.clone(),
        };
        let detail = Detail {
            parameters: new.parameters.clone(),
            factors: new.factors.to_vec(),
            plan: new.cells.to_vec(),
            metrics: new.metrics.to_vec(),
            seed: new.seed,
            warnings: new.warnings.to_vec(),
            kernel_version: new.host.kernel_version.clone(),
            kernel_command_line: new.host.kernel_command_line.clone(),
            targets: new.targets.to_vec(),
        };
        Ok((run, detail, machine))
    }

    /// An attempt at a sample as it is stored; one whose values do not fit the metrics is a failed one.
    pub(super) fn row(&self, metrics: &[Metric], new: &NewSample) -> Result<Row, StoreError> {
        let (values, failed, warnings, detail) = match new.result.clone() {
            SampleResult::Measured {
                values,
                warnings,
                detail,
            } => match check_values(metrics, &values) {
                Ok(()) => (values, None, warnings, detail),
                // NaN, for example, has no JSON.
                Err(error) => (
                    Values::new(),
                    Some(error.to_string()),
                    Vec::new(),
                    Value::Null,
                ),
            },
            SampleResult::Failed(reason) => (Values::new(), Some(reason), Vec::new(), Value::Null),
        };
        let row = Row::try_from(Sample {
            number: 0,
            round: new.round,
            cell: new.cell.clone(),
            started_at_s: new.started_at_s,
            took_s: new.took_s,
            values,
            failed,
            warnings,
            detail,
        });
        row.map_err(|error| self.damaged("the sample", error))
    }
}

/// The kernel release of the systems that took the samples; of several targets each release once.
fn kernel(new: &NewRun<'_>) -> String {
    let mut kernels: Vec<&str> = Vec::new();
    for target in new.targets {
        if !kernels.contains(&target.host.kernel.as_str()) {
            kernels.push(&target.host.kernel);
        }
    }
    match kernels.as_slice() {
        [] => new.host.kernel.clone(),
        kernels => kernels.join(", "),
    }
}

/// What was emulated of the machines that took the samples; of several guests all, as a label.
fn emulation(new: &NewRun<'_>) -> Option<Emulation> {
    match new.targets {
        [] => new.machine.origin.emulation.clone(),
        [target] => target.emulation.clone(),
        targets => {
            let label = |target: &RunTarget| {
                Some(format!("{}: {}", target.levels, target.emulation.as_ref()?))
            };
            let labels: Vec<String> = targets.iter().filter_map(label).collect();
            (!labels.is_empty()).then(|| Emulation::Label(labels.join("; ")))
        }
    }
}
