//! Beginning, continuing, filling and ending runs.

use nearfar_machine::Emulation;
use rusqlite::{OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Store, StoreError, keep_machine};
use crate::metric::{Metric, Values, check_metrics, check_values};
use crate::run::{
    Detail, Ending, NewRun, NewSample, Run, RunId, RunState, RunTarget, Sample, SampleResult, now_s,
};

impl Store {
    /// Begins a run, which this process owns.
    ///
    /// # Errors
    /// [`StoreError::Metrics`]; SQLite's answer.
    pub fn begin(&mut self, new: &NewRun<'_>) -> Result<RunId, StoreError> {
        let (run, detail, machine) = self.draft(new)?;
        self.write(|transaction| insert(transaction, &run, &detail, &machine, &[]))
    }

    /// Takes an interrupted or failed run over, to continue it with this many samples a cell.
    ///
    /// # Errors
    /// [`StoreError::NotOurs`] where it is complete or another process carries it out.
    pub fn resume(&mut self, run: RunId, samples_per_cell: u32) -> Result<(), StoreError> {
        let found = self.run(run)?;
        match found.state {
            RunState::Interrupted | RunState::Failed => {}
            state => {
                return Err(StoreError::NotOurs {
                    run,
                    why: format!("is {state}"),
                });
            }
        }
        let (owner, before) = (self.us.clone(), found.owner);
        let sql = "UPDATE run SET state = 'running', failure = NULL, finished_at_s = NULL, samples_per_cell = ?2,
                   pid = ?3, started_ticks = ?4, boot = ?5, pid_namespace = ?6
                   WHERE id = ?1 AND state <> 'complete' AND pid = ?7 AND started_ticks = ?8 AND boot = ?9";
        let taken = self.write(|transaction| {
            let of_owner = params![
                run.0,
                samples_per_cell,
                owner.pid,
                owner.started_ticks as i64,
                owner.boot,
                owner.pid_namespace,
                before.pid,
                before.started_ticks as i64,
                before.boot,
            ];
            transaction.execute(sql, of_owner)
        })?;
        match taken {
            0 => Err(StoreError::NotOurs {
                run,
                why: "was taken over by another process".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Adds a sample to a run of this process, durably, and gives its number.
    ///
    /// # Errors
    /// [`StoreError::NotOurs`] when the run has ended or another process took it over; SQLite's answer.
    pub fn add_sample(&mut self, run: RunId, new: &NewSample) -> Result<u64, StoreError> {
        let metrics = self.metrics(run)?;
        let mut row = self.row(&metrics, new)?;
        let (has_warnings, is_failed) = (row.has_warnings, row.failed.is_some());
        let owner = self.us.clone();
        let sql = "UPDATE run SET samples = samples + 1, with_warnings = with_warnings + ?2, failed = failed + ?3
                   WHERE id = ?1 AND state = 'running' AND pid = ?4 AND started_ticks = ?5 AND boot = ?6
                   RETURNING samples";
        let number = self.write(|transaction| {
            let of_run = params![
                run.0,
                has_warnings,
                is_failed,
                owner.pid,
                owner.started_ticks as i64,
                owner.boot
            ];
            let number: Option<i64> = transaction
                .query_row(sql, of_run, |row| row.get(0))
                .optional()?;
            if let Some(number) = number {
                row.number = number as u64;
                insert_samples(transaction, run, std::slice::from_ref(&row))?;
            }
            Ok(number)
        })?;
        number
            .map(|number| number as u64)
            .ok_or_else(|| self.not_ours(run))
    }

    /// Ends a run of this process.
    ///
    /// # Errors
    /// As [`Store::add_sample`].
    pub fn finish(&mut self, run: RunId, ending: &Ending) -> Result<(), StoreError> {
        let (state, failure) = match ending {
            Ending::Complete => ("complete", None),
            Ending::Interrupted => ("interrupted", None),
            Ending::Failed(reason) => ("failed", Some(reason)),
        };
        let owner = self.us.clone();
        let sql = "UPDATE run SET state = ?2, failure = ?3, finished_at_s = ?4
                   WHERE id = ?1 AND state = 'running' AND pid = ?5 AND started_ticks = ?6 AND boot = ?7";
        let ended = self.write(|transaction| {
            let of_run = params![
                run.0,
                state,
                failure,
                now_s(),
                owner.pid,
                owner.started_ticks as i64,
                owner.boot
            ];
            transaction.execute(sql, of_run)
        })?;
        if ended == 0 {
            Err(self.not_ours(run))
        } else {
            Ok(())
        }
    }

    /// Why a run is none of this process: it ended, was removed, or was taken over.
    fn not_ours(&self, run: RunId) -> StoreError {
        match self.run(run) {
            Err(error) => error,
            Ok(found) => {
                let why = match found.state {
                    RunState::Running => format!("was taken over by process {}", found.owner.pid),
                    state => format!("is {state}"),
                };
                StoreError::NotOurs { run, why }
            }
        }
    }

    /// One transaction that has the right to write from its start, so that it cannot fail for want of it later.
    pub(crate) fn write<T>(
        &mut self,
        what: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let sqlite = self.sqlite();
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(&sqlite)?;
        let answer = what(&transaction).map_err(&sqlite)?;
        transaction.commit().map_err(&sqlite)?;
        Ok(answer)
    }
}

/// Adds a whole run; its number becomes the next free one. `machine` is its JSON.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    run: &Run,
    detail: &Detail,
    machine: &[u8],
    samples: &[Row],
) -> rusqlite::Result<RunId> {
    let machine = keep_machine(transaction, machine)?;
    insert_run(transaction, run, machine)?;
    let id = RunId(transaction.last_insert_rowid());
    insert_detail(transaction, id, detail)?;
    insert_samples(transaction, id, samples)?;
    Ok(id)
}

fn insert_run(transaction: &Transaction<'_>, run: &Run, machine: i64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO run (uid, experiment, title, label, state, failure, started_at_s, finished_at_s, samples,
               with_warnings, failed, cells, samples_per_cell, host, kernel, emulated, nearfar, fingerprint, pid,
               started_ticks, boot, pid_namespace, machine)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
               ?22, ?23)";
    let state = match run.state {
        // Only ever true of a process that can be seen, so never stored.
        RunState::Running | RunState::OutOfSight => "running",
        RunState::Complete => "complete",
        RunState::Interrupted => "interrupted",
        RunState::Failed => "failed",
    };
    let values = params![
        run.uid,
        run.experiment,
        run.title,
        run.label,
        state,
        run.failure,
        run.started_at_s,
        run.finished_at_s,
        run.samples as i64,
        run.with_warnings as i64,
        run.failed as i64,
        run.cells as i64,
        run.samples_per_cell,
        run.host,
        run.kernel,
        run.emulation.as_ref().map(text).transpose()?,
        run.nearfar,
        run.fingerprint,
        run.owner.pid,
        run.owner.started_ticks as i64,
        run.owner.boot,
        run.owner.pid_namespace,
        machine,
    ];
    transaction.execute(sql, values).map(|_| ())
}

fn insert_detail(
    transaction: &Transaction<'_>,
    run: RunId,
    detail: &Detail,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO detail (run, parameters, factors, plan, seed, warnings, kernel_version, kernel_command_line,
               metrics, targets) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let values = params![
        run.0,
        text(&detail.parameters)?,
        text(&detail.factors)?,
        text(&detail.plan)?,
        // SQLite's whole numbers are signed; the bits are what counts.
        detail.seed as i64,
        text(&detail.warnings)?,
        detail.kernel_version,
        detail.kernel_command_line,
        text(&detail.metrics)?,
        text(&detail.targets)?,
    ];
    transaction.execute(sql, values).map(|_| ())
}

/// A sample as it is stored: what has no shape of its own as text.
#[derive(Deserialize)]
#[serde(try_from = "Sample")]
pub(crate) struct Row {
    pub(crate) number: u64,
    pub(crate) round: u32,
    cell: String,
    started_at_s: f64,
    took_s: f64,
    /// JSON of [`crate::Values`].
    pub(crate) values: String,
    pub(crate) failed: Option<String>,
    warnings: String,
    pub(crate) has_warnings: bool,
    detail: String,
}

impl TryFrom<Sample> for Row {
    type Error = serde_json::Error;

    fn try_from(sample: Sample) -> Result<Self, Self::Error> {
        Ok(Self {
            number: sample.number,
            round: sample.round,
            cell: serde_json::to_string(&sample.cell)?,
            started_at_s: sample.started_at_s,
            took_s: sample.took_s,
            values: serde_json::to_string(&sample.values)?,
            failed: sample.failed,
            warnings: serde_json::to_string(&sample.warnings)?,
            has_warnings: !sample.warnings.is_empty(),
            detail: serde_json::to_string(&sample.detail)?,
        })
    }
}

/// Sets what the samples of a run have.
fn replace_metrics(
    transaction: &Transaction<'_>,
    run: RunId,
    metrics: &[Metric],
) -> rusqlite::Result<()> {
    let sql = "UPDATE detail SET metrics = ?2 WHERE run = ?1";
    transaction
        .execute(sql, params![run.0, text(&metrics)?])
        .map(|_| ())
}

fn insert_samples(transaction: &Transaction<'_>, run: RunId, rows: &[Row]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO sample (run, number, round, cell, started_at_s, took_s, metric_values, failed, warnings, detail)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let mut statement = transaction.prepare(sql)?;
    for row in rows {
        statement.execute(params![
            run.0,
            row.number as i64,
            row.round,
            row.cell,
            row.started_at_s,
            row.took_s,
            row.values,
            row.failed,
            row.warnings,
            row.detail,
        ])?;
    }
    Ok(())
}

fn text<T: Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// A name that no other run has in any store: 128 random bits.
fn random_uid() -> String {
    let mut bytes = [0u8; 16];
    // Fails only where the kernel has no such call, which is older than any that nearfar runs on (3.17).
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

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
    fn draft(&self, new: &NewRun<'_>) -> Result<(Run, Detail, Vec<u8>), StoreError> {
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
            kernel: RunTarget::kernels(new.targets).unwrap_or_else(|| new.host.kernel.clone()),
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
    fn row(&self, metrics: &[Metric], new: &NewSample) -> Result<Row, StoreError> {
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
