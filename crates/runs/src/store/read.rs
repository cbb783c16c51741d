//! Listing and reading runs.

use nearfar_machine::Emulation;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension as _, Row};
use serde::de::DeserializeOwned;

use super::Store;
use crate::error::StoreError;
use crate::host::{Alive, Owner};
use crate::metric::Metric;
use crate::run::{Detail, Filter, Run, RunId, RunState, Sample};

const RUN: &str = "SELECT id, uid, experiment, title, label, state, failure, started_at_s, finished_at_s, samples,
    with_warnings, failed, cells, samples_per_cell, host, kernel, emulated, nearfar, fingerprint, pid, started_ticks, boot,
    pid_namespace FROM run";

/// The run of that name, which is the same in every store.
pub(crate) fn by_uid(connection: &Connection, uid: &str) -> rusqlite::Result<Option<RunId>> {
    connection
        .query_row("SELECT id FROM run WHERE uid = ?1", [uid], |row| {
            row.get(0).map(RunId)
        })
        .optional()
}

impl Store {
    /// The runs that pass a filter, newest first. Neither machines nor samples are read for it.
    ///
    /// # Errors
    /// SQLite's answer.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Run>, StoreError> {
        let (mut conditions, mut values) = (Vec::new(), Vec::new());
        let mut only = |condition: &'static str, value: Option<Sql>| {
            if let Some(value) = value {
                conditions.push(condition);
                values.push(value);
            }
        };
        only("experiment = ?", filter.experiment.clone().map(Sql::Text));
        only("label = ?", filter.label.clone().map(Sql::Text));
        only("started_at_s >= ?", filter.since_s.map(Sql::Real));
        let filtered = if conditions.is_empty() { "" } else { " WHERE " };
        let limit = filter.limit.map_or(-1, i64::from);
        let sql = format!(
            "{RUN}{filtered}{} ORDER BY id DESC LIMIT {limit}",
            conditions.join(" AND ")
        );
        let mut statement = self.connection.prepare(&sql).map_err(self.sqlite())?;
        let rows = statement.query_map(rusqlite::params_from_iter(values), |row| self.run_of(row));
        rows.and_then(Iterator::collect).map_err(self.sqlite())
    }

    /// One run.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`]; SQLite's answer.
    pub fn run(&self, run: RunId) -> Result<Run, StoreError> {
        let found = self
            .connection
            .query_row(&format!("{RUN} WHERE id = ?1"), [run.0], |row| {
                self.run_of(row)
            });
        let found = found.optional().map_err(self.sqlite())?;
        found.ok_or_else(|| StoreError::NoSuchRun {
            path: self.path.clone(),
            run,
        })
    }

    /// The rest of what is known of a run.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`]; [`StoreError::Damaged`] where it does not read as JSON.
    pub fn detail(&self, run: RunId) -> Result<Detail, StoreError> {
        let sql =
            "SELECT parameters, factors, plan, warnings, metrics, targets, seed, kernel_version, kernel_command_line
                   FROM detail WHERE run = ?1";
        let read = |row: &Row<'_>| {
            let texts: [String; 6] = [
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
            ];
            Ok((texts, row.get::<_, i64>(6)?, row.get(7)?, row.get(8)?))
        };
        let found = self
            .connection
            .query_row(sql, [run.0], read)
            .optional()
            .map_err(self.sqlite())?;
        let (texts, seed, kernel_version, kernel_command_line) =
            found.ok_or_else(|| StoreError::NoSuchRun {
                path: self.path.clone(),
                run,
            })?;
        let [parameters, factors, plan, warnings, metrics, targets] = &texts;
        Ok(Detail {
            parameters: self.parse(run, parameters)?,
            factors: self.parse(run, factors)?,
            plan: self.parse(run, plan)?,
            metrics: self.parse(run, metrics)?,
            warnings: self.parse(run, warnings)?,
            targets: self.parse(run, targets)?,
            seed: seed as u64,
            kernel_version,
            kernel_command_line,
        })
    }

    /// The metrics that the samples of a run have.
    pub(super) fn metrics(&self, run: RunId) -> Result<Vec<Metric>, StoreError> {
        let sql = "SELECT metrics FROM detail WHERE run = ?1";
        let found = self
            .connection
            .query_row(sql, [run.0], |row| row.get::<_, String>(0))
            .optional();
        let found = found.map_err(self.sqlite())?;
        let text = found.ok_or_else(|| StoreError::NoSuchRun {
            path: self.path.clone(),
            run,
        })?;
        self.parse(run, &text)
    }

    /// The samples of a run, in the order they were taken.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where one does not read as JSON. A run that does not exist has none.
    pub fn samples(&self, run: RunId) -> Result<Vec<Sample>, StoreError> {
        let sql = "SELECT number, round, started_at_s, took_s, failed, cell, metric_values, warnings, detail
                   FROM sample WHERE run = ?1 ORDER BY number";
        let mut statement = self.connection.prepare(sql).map_err(self.sqlite())?;
        let mut rows = statement.query([run.0]).map_err(self.sqlite())?;
        let mut samples = Vec::new();
        while let Some(row) = rows.next().map_err(self.sqlite())? {
            samples.push(self.sample_of(run, row)?);
        }
        Ok(samples)
    }

    fn parse<T: DeserializeOwned>(&self, run: RunId, text: &str) -> Result<T, StoreError> {
        serde_json::from_str(text).map_err(|error| self.damaged(format!("run {run}"), error))
    }

    fn sample_of(&self, run: RunId, row: &Row<'_>) -> Result<Sample, StoreError> {
        let number = row.get::<_, i64>(0).map_err(self.sqlite())? as u64;
        let json = |column: usize| -> Result<serde_json::Value, StoreError> {
            let text = row.get_ref(column).map_err(self.sqlite())?;
            let what = || format!("sample {number} of run {run}");
            let text = text.as_str().map_err(|error| self.damaged(what(), error))?;
            serde_json::from_str(text).map_err(|error| self.damaged(what(), error))
        };
        let plain =
            || -> rusqlite::Result<_> { Ok((row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)) };
        let (round, started_at_s, took_s, failed) = plain().map_err(self.sqlite())?;
        Ok(Sample {
            number,
            round,
            started_at_s,
            took_s,
            failed,
            cell: self.read(run, number, "cell", json(5)?)?,
            values: self.read(run, number, "values", json(6)?)?,
            warnings: self.read(run, number, "warnings", json(7)?)?,
            detail: json(8)?,
        })
    }

    fn read<T: DeserializeOwned>(
        &self,
        run: RunId,
        number: u64,
        field: &str,
        json: serde_json::Value,
    ) -> Result<T, StoreError> {
        let what = || format!("the field \"{field}\" of sample {number} of run {run}");
        serde_json::from_value(json).map_err(|error| self.damaged(what(), error))
    }

    fn run_of(&self, row: &Row<'_>) -> rusqlite::Result<Run> {
        let host: String = row.get(14)?;
        let owner = Owner {
            pid: row.get(19)?,
            started_ticks: row.get::<_, i64>(20)? as u64,
            boot: row.get(21)?,
            pid_namespace: row.get(22)?,
        };
        let state = match row.get_ref(5)?.as_str()? {
            "complete" => RunState::Complete,
            "interrupted" => RunState::Interrupted,
            "failed" => RunState::Failed,
            _ => match owner.alive(&host, &self.here, &self.us) {
                Alive::Yes => RunState::Running,
                Alive::No => RunState::Interrupted,
                Alive::CannotTell => RunState::OutOfSight,
            },
        };
        let count = |column| row.get::<_, i64>(column).map(|count| count as u64);
        Ok(Run {
            run: RunId(row.get(0)?),
            uid: row.get(1)?,
            experiment: row.get(2)?,
            title: row.get(3)?,
            label: row.get(4)?,
            state,
            failure: row.get(6)?,
            started_at_s: row.get(7)?,
            finished_at_s: row.get(8)?,
            samples: count(9)?,
            with_warnings: count(10)?,
            failed: count(11)?,
            cells: count(12)?,
            samples_per_cell: row.get(13)?,
            host,
            kernel: row.get(15)?,
            emulation: row.get::<_, Option<String>>(16)?.map(emulation),
            nearfar: row.get(17)?,
            fingerprint: row.get(18)?,
            owner,
        })
    }
}

/// The emulation of a run: JSON, or the label alone that an older nearfar stored.
fn emulation(stored: String) -> Emulation {
    serde_json::from_str(&stored).unwrap_or(Emulation::Label(stored))
}
