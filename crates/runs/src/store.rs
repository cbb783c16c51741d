//! The file that runs are kept in.
//!
//! ```text
//!  machine (sha256, zlib)  ◄──  run  ──►  detail (parameters, plan, seed, warnings: not read by lists)
//!                                └────►  sample, sample, ... (run, number)
//! ```
//!
//! Every sample is a transaction of its own and on disk when [`Store::add_sample`] returns (`synchronous=FULL`), so a
//! kill loses nothing that was stored, and neither does a power cut on a disk that keeps its word.

mod open;
mod schema;
mod write;

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use nearfar_machine::{Emulation, Machine};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::metric::{Metric, MetricError};
use crate::run::{Alive, Detail, Filter, Host, Owner, Run, RunId, RunState, Sample};

pub use open::Journal;

pub(crate) use schema::RENAME_PROBE_FACTORS;
pub(crate) use write::{Row, insert};

#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    journal: Journal,
    /// This system and this process, looked at once: a list asks for each run whether its process is alive.
    here: Host,
    us: Owner,
}

impl Store {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the file keeps what is being written; its words are a remark for the user where it is not the usual way.
    pub fn journal(&self) -> Journal {
        self.journal
    }

    fn sqlite(&self) -> impl Fn(rusqlite::Error) -> StoreError + use<> {
        at(&self.path)
    }

    fn damaged(&self, what: impl Into<String>, reason: impl ToString) -> StoreError {
        StoreError::Damaged {
            path: self.path.clone(),
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

/// An answer of SQLite about this file as our error.
fn at(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::ReadOnly) => StoreError::ReadOnly { path: path.clone() },
        _ => StoreError::Sqlite {
            path: path.clone(),
            error,
        },
    }
}

/// Where runs are kept unless the user says otherwise: `$XDG_DATA_HOME/nearfar/runs.db`, else
/// `~/.local/share/nearfar/runs.db` (XDG Base Directory Specification: a relative XDG_DATA_HOME is ignored).
///
/// # Errors
/// [`StoreError::NoPlace`] when neither variable is set.
pub fn default_path() -> Result<PathBuf, StoreError> {
    let directory = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let data = directory("XDG_DATA_HOME").or_else(|| Some(directory("HOME")?.join(".local/share")));
    Ok(data.ok_or(StoreError::NoPlace)?.join("nearfar/runs.db"))
}

const RUN: &str = "SELECT id, uid, experiment, title, label, state, failure, started_at_s, finished_at_s, samples,
    with_warnings, failed, cells, samples_per_cell, host, kernel, emulated, nearfar, fingerprint, pid, started_ticks, boot,
    pid_namespace FROM run";

/// The run of that name, which is the same in every store.
pub(crate) fn by_uid(connection: &Connection, uid: &str) -> rusqlite::Result<Option<RunId>> {
    let sql = "SELECT id FROM run WHERE uid = ?1";
    let found = connection.query_row(sql, [uid], |row| row.get(0).map(RunId));
    found.optional()
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
        self.find(run, &format!("{RUN} WHERE id = ?1"), |row| self.run_of(row))
    }

    /// The rest of what is known of a run.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`]; [`StoreError::Damaged`] where it does not read as JSON.
    pub fn detail(&self, run: RunId) -> Result<Detail, StoreError> {
        let sql =
            "SELECT parameters, factors, plan, warnings, metrics, targets, seed, kernel_version, kernel_command_line
                   FROM detail WHERE run = ?1";
        let read = |row: &rusqlite::Row<'_>| {
            let mut texts: [String; 6] = Default::default();
            for (column, text) in texts.iter_mut().enumerate() {
                *text = row.get(column)?;
            }
            Ok((texts, row.get::<_, i64>(6)?, row.get(7)?, row.get(8)?))
        };
        let (texts, seed, kernel_version, kernel_command_line) = self.find(run, sql, read)?;
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

    /// The row of a run that a statement gives.
    fn find<T>(
        &self,
        run: RunId,
        sql: &str,
        read: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let found = self.connection.query_row(sql, [run.0], read).optional();
        let found = found.map_err(self.sqlite())?;
        found.ok_or_else(|| StoreError::NoSuchRun {
            path: self.path.clone(),
            run,
        })
    }

    /// The metrics that the samples of a run have.
    pub(super) fn metrics(&self, run: RunId) -> Result<Vec<Metric>, StoreError> {
        let sql = "SELECT metrics FROM detail WHERE run = ?1";
        let text: String = self.find(run, sql, |row| row.get(0))?;
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

    fn sample_of(&self, run: RunId, row: &rusqlite::Row<'_>) -> Result<Sample, StoreError> {
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

    fn run_of(&self, row: &rusqlite::Row<'_>) -> rusqlite::Result<Run> {
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

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Removed {
    pub runs: Vec<Run>,
    pub samples: u64,
    /// How many machines went that no other run was made on.
    pub machines: u64,
}

impl Store {
    /// Removes runs with their samples, and machines that no other run has: all of them or none.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`]; [`StoreError::StillRunning`]; SQLite's answer.
    pub fn remove(&mut self, runs: &[RunId]) -> Result<Removed, StoreError> {
        let mut wanted = runs.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let runs = wanted
            .iter()
            .map(|&run| self.run(run))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(running) = runs.iter().find(|run| run.state == RunState::Running) {
            return Err(StoreError::StillRunning {
                run: running.run,
                pid: running.owner.pid,
            });
        }
        let (samples, machines) = self.write(|transaction| {
            let mut samples = 0;
            for run in &runs {
                samples += transaction.execute("DELETE FROM sample WHERE run = ?1", [run.run.0])?;
                transaction.execute("DELETE FROM run WHERE id = ?1", [run.run.0])?;
            }
            let unused = "DELETE FROM machine WHERE id NOT IN (SELECT machine FROM run)";
            Ok((samples as u64, transaction.execute(unused, [])? as u64))
        })?;
        // Gives the room back to the file system, a page a row of its answer: all have to be fetched. Where that fails the file
        // merely stays larger.
        let _ = self
            .connection
            .pragma_query(None, "incremental_vacuum", |_| Ok(()));
        Ok(Removed {
            runs,
            samples,
            machines,
        })
    }
}

/// The most that a machine may inflate to, in bytes: what a snapshot's limit is.
const MOST_INFLATED: u64 = 1 << 30;

impl Store {
    /// The machine that a run was made on.
    ///
    /// # Errors
    /// No such run; a damaged machine, or one that a newer nearfar described.
    pub fn machine(&self, run: RunId) -> Result<Machine, StoreError> {
        serde_json::from_value(self.machine_json(run)?)
            .map_err(|error| self.damaged(machine_of(run), error))
    }

    /// The same as it was stored, whatever this nearfar makes of it.
    ///
    /// # Errors
    /// No such run, or a damaged machine.
    pub fn machine_json(&self, run: RunId) -> Result<Value, StoreError> {
        let sql =
            "SELECT json_zlib FROM machine WHERE id = (SELECT machine FROM run WHERE id = ?1)";
        let compressed: Vec<u8> = self.find(run, sql, |row| row.get(0))?;
        let mut text = Vec::new();
        let inflated = ZlibDecoder::new(&compressed[..])
            .take(MOST_INFLATED)
            .read_to_end(&mut text);
        inflated.map_err(|error| self.damaged(machine_of(run), error))?;
        serde_json::from_slice(&text).map_err(|error| self.damaged(machine_of(run), error))
    }
}

fn machine_of(run: RunId) -> String {
    format!("the machine of run {run}")
}

/// The row of a machine, which is added where it is not there yet. `text` is its JSON.
fn keep_machine(transaction: &Transaction<'_>, text: &[u8]) -> rusqlite::Result<i64> {
    let digest = Sha256::digest(text);
    let find = "SELECT id FROM machine WHERE sha256 = ?1";
    if let Some(id) = transaction
        .query_row(find, [digest.as_slice()], |row| row.get(0))
        .optional()?
    {
        return Ok(id);
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let compressed = encoder.write_all(text).and_then(|()| encoder.finish());
    let compressed =
        compressed.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let add = "INSERT INTO machine (sha256, json_zlib) VALUES (?1, ?2)";
    transaction.execute(add, params![digest.as_slice(), compressed])?;
    Ok(transaction.last_insert_rowid())
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "no place for stored runs: HOME and XDG_DATA_HOME are not set; name a file with --store FILE"
    )]
    NoPlace,
    #[error("{}: no runs are stored there", path.display())]
    Absent { path: PathBuf },
    #[error("cannot {doing} {}: {error}", path.display())]
    File {
        /// What was tried: "read", "create the directory".
        doing: &'static str,
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{} is {what}, not a store of runs; it was not touched. Name another file with --store", path.display())]
    Foreign { path: PathBuf, what: &'static str },
    #[error(
        "{} has layout {found}, and this nearfar ({}) knows up to {known}; use a newer nearfar, or another file with \
         --store", path.display(), env!("CARGO_PKG_VERSION")
    )]
    Newer {
        path: PathBuf,
        found: i64,
        /// The newest this program knows.
        known: i64,
    },
    #[error(
        "{} has the older layout {found} and cannot be written, so it cannot be upgraded; copy it to a place that \
         can be written and open the copy", path.display()
    )]
    OlderReadOnly { path: PathBuf, found: i64 },
    #[error("{} cannot be written; name another file with --store", path.display())]
    ReadOnly { path: PathBuf },
    #[error("{} holds no run {run}", path.display())]
    NoSuchRun {
        path: PathBuf,
        /// The number asked for.
        run: RunId,
    },
    #[error("run {run} is being carried out by process {pid}; interrupt that first")]
    StillRunning { run: RunId, pid: i32 },
    #[error("run {run} {why}, so no sample can be added to it by this process")]
    NotOurs { run: RunId, why: String },
    #[error("{}: {what} is damaged ({reason}); other runs may still be readable", path.display())]
    Damaged {
        path: PathBuf,
        /// Which part.
        what: String,
        reason: String,
    },
    #[error(
        "{} is damaged: it has {found} of its {should} bytes, and was not touched; copy it again from where it came \
         from, or name another file with --store", path.display()
    )]
    CutOff {
        path: PathBuf,
        found: u64,
        should: u64,
    },
    #[error("cannot store the experiment {experiment}: {error}")]
    Metrics {
        experiment: String,
        #[source]
        error: MetricError,
    },
    #[error("{}: {}{}", path.display(), error, advice(error))]
    Sqlite {
        path: PathBuf,
        error: rusqlite::Error,
    },
}

impl StoreError {
    fn foreign(path: &Path, what: &'static str) -> Self {
        Self::Foreign {
            path: path.to_owned(),
            what,
        }
    }

    fn file(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self::File {
            doing,
            path: path.to_owned(),
            error,
        }
    }

    /// Whether the file is at fault and not the system: part of it is missing or makes no sense.
    pub fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match self {
            Self::Damaged { .. } | Self::CutOff { .. } => true,
            Self::Sqlite { error, .. } => {
                matches!(
                    error.sqlite_error_code(),
                    Some(DatabaseCorrupt | NotADatabase)
                )
            }
            _ => false,
        }
    }
}

/// What to do about an answer of SQLite.
fn advice(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "; another program has kept it locked for half a minute: let that end first"
        }
        Some(ErrorCode::DiskFull) => "; make room on its disk, what was stored before is unharmed",
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "; the file is damaged: `sqlite3 FILE .recover` saves what can be read, or name another file with --store"
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "; may this user read and write it and its directory?"
        }
        _ => "",
    }
}
