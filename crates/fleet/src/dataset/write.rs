//! From the folder of a run to the dataset.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;

use nearfar_placement::audit::{Audit, AuditOptions, Severity, audit};
use nearfar_runs::export::{Column, ParquetWriter, Values, Whole};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::tables::{Field, Kind, push};
use super::{DatasetError, date_of, file_of};
use crate::carry_out::Summary;
use crate::facts::{Value, facts};
use crate::folder::{Folder, Manifest};
use crate::hosts::HostName;
use crate::result::{Ended, HostResult};

/// Answers that are read before their rows are written: what is in memory at the same time.
const HOSTS_AT_ONCE: usize = 128;
/// Rows of a group of the file.
const ROWS_A_GROUP: usize = 1 << 16;
/// The experiment of a verb that is none.
const MAX_EXPERIMENT_BYTES: usize = 64;

/// What was added to a dataset.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Collected {
    pub run: String,
    pub summary: Summary,
    /// Rows by table.
    pub rows: BTreeMap<&'static str, u64>,
}

/// Adds the answers of a run to a dataset, or replaces those that were collected before.
///
/// # Errors
/// No host has answered; an answer cannot be read now that could be before; the dataset cannot be written.
pub fn collect(folder: &Folder, dataset: &Path) -> Result<Collected, DatasetError> {
    let summary = Summary::of(folder)?;
    if summary.answered.is_empty() {
        return Err(DatasetError::NoAnswers {
            path: folder.path().display().to_string(),
        });
    }
    let mut files = Files::new(dataset, &folder.manifest);
    let experiment = experiment_of(&folder.manifest.arguments);
    for hosts in summary.answered.chunks(HOSTS_AT_ONCE) {
        for read in read_all(folder, hosts) {
            let (host, read) = read;
            let Some((result, audit)) = read? else {
                continue;
            };
            add_host(&mut files, &folder.manifest, &experiment, &host, &result)?;
            add_machine(&mut files, &experiment, &host, &result, audit.as_ref())?;
            for whole in &result.runs {
                add_samples(&mut files, &host, whole)?;
            }
        }
    }
    for (state, missing) in [("failed", &summary.failed), ("lost", &summary.lost)] {
        for host in missing {
            add_missing(&mut files, &folder.manifest, &experiment, host, state)?;
        }
    }
    Ok(Collected {
        run: folder.manifest.id.clone(),
        rows: files.finish()?,
        summary,
    })
}

/// The experiment by which answers are found: that of `bench EXPERIMENT`, else the verb.
fn experiment_of(arguments: &[String]) -> String {
    let mut words = arguments.iter().map(String::as_str);
    let verb = words.next().unwrap_or("none");
    let name = match verb {
        "bench" => words.next().unwrap_or(verb),
        _ => verb,
    };
    in_a_path(name)
}

/// A name as a part of a path.
fn in_a_path(name: &str) -> String {
    let fit = |c: char| {
        if c.is_ascii_alphanumeric() || "_-".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().map(fit).take(MAX_EXPERIMENT_BYTES).collect();
    if name.is_empty() {
        "none".to_owned()
    } else {
        name
    }
}

type Read = Result<Option<(HostResult, Option<Audit>)>, DatasetError>;

/// The answers of these hosts, in their order, read on all CPUs.
fn read_all(folder: &Folder, hosts: &[HostName]) -> Vec<(HostName, Read)> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let part = hosts.len().div_ceil(threads).max(1);
    let read = |host: &HostName| {
        let result = folder.result(host).map_err(DatasetError::from);
        let read = result.map(|result| {
            result.map(|result| {
                let options = AuditOptions::default();
                let audit = result
                    .machine
                    .as_ref()
                    .map(|machine| audit(machine, &options));
                (result, audit)
            })
        });
        (host.clone(), read)
    };
    thread::scope(|scope| {
        let read = &read;
        let parts: Vec<_> = hosts
            .chunks(part)
            .map(|part| scope.spawn(move || part.iter().map(read).collect::<Vec<_>>()))
            .collect();
        let joined = parts.into_iter().map(|part| match part.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    })
}

fn add_host(
    files: &mut Files<'_>,
    manifest: &Manifest,
    experiment: &str,
    host: &HostName,
    result: &HostResult,
) -> Result<(), DatasetError> {
    let (state, reason, exit_code) = match &result.ended {
        Ended::Answered { exit_code } => ("answered", None, Some(*exit_code)),
        Ended::Failed { exit_code, reason } => ("failed", Some(reason.as_str()), *exit_code),
    };
    let origin = result.machine.as_ref().map(|machine| &machine.origin);
    let emulated = origin
        .and_then(|origin| origin.emulation.as_ref())
        .map(ToString::to_string);
    let verb = result.arguments.join(" ");
    files.row(
        Kind::Hosts,
        experiment,
        &[
            manifest.id.as_str().into(),
            host.as_str().into(),
            manifest.label.as_deref().into(),
            state.into(),
            reason.into(),
            manifest.started_at_s.into(),
            result.started_at_s.into(),
            result.took_s.into(),
            exit_code.map_or(Field::Nothing, |code| i64::from(code).into()),
            verb.as_str().into(),
            result.nearfar.as_str().into(),
            origin.and_then(|origin| origin.host.as_deref()).into(),
            emulated.as_deref().into(),
            manifest.by.as_str().into(),
        ],
    )
}

fn add_missing(
    files: &mut Files<'_>,
    manifest: &Manifest,
    experiment: &str,
    missing: &crate::carry_out::HostReason,
    state: &str,
) -> Result<(), DatasetError> {
    let verb = manifest.arguments.join(" ");
    files.row(
        Kind::Hosts,
        experiment,
        &[
            manifest.id.as_str().into(),
            missing.host.as_str().into(),
            manifest.label.as_deref().into(),
            state.into(),
            missing.reason.as_str().into(),
            manifest.started_at_s.into(),
            Field::Nothing,
            Field::Nothing,
            Field::Nothing,
            verb.as_str().into(),
            Field::Nothing,
            Field::Nothing,
            Field::Nothing,
            manifest.by.as_str().into(),
        ],
    )
}

fn add_machine(
    files: &mut Files<'_>,
    experiment: &str,
    host: &HostName,
    result: &HostResult,
    audit: Option<&Audit>,
) -> Result<(), DatasetError> {
    let (Some(machine), Some(audit)) = (&result.machine, audit) else {
        return Ok(());
    };
    let run = files.run.clone();
    for fact in facts(machine, audit) {
        let (value, number, is_size, unknown) = match &fact.value {
            Value::Text(text) => (Some(text.clone()), None, Field::Nothing, None),
            Value::Count(count) => (None, Some(*count as f64), 0.into(), None),
            Value::Bytes(bytes) => (None, Some(*bytes as f64), 1.into(), None),
            Value::Unknown(reason) => (None, None, Field::Nothing, Some(reason.as_str())),
        };
        files.row(
            Kind::Facts,
            experiment,
            &[
                run.as_str().into(),
                host.as_str().into(),
                fact.name.as_str().into(),
                value.as_deref().into(),
                number.into(),
                is_size,
                unknown.into(),
            ],
        )?;
    }
    for finding in &audit.findings {
        let device = finding.device.map(|device| device.to_string());
        files.row(
            Kind::Findings,
            experiment,
            &[
                run.as_str().into(),
                host.as_str().into(),
                finding.rule.into(),
                severity(finding.severity).into(),
                finding.subject.as_str().into(),
                finding.message.as_str().into(),
                device.as_deref().into(),
            ],
        )?;
    }
    Ok(())
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Fact => "fact",
        Severity::Notice => "notice",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

fn add_samples(files: &mut Files<'_>, host: &HostName, whole: &Whole) -> Result<(), DatasetError> {
    let experiment = in_a_path(&whole.run.experiment);
    let run = files.run.clone();
    for sample in &whole.taken {
        let cell = serde_json::to_string(&sample.cell).unwrap_or_default();
        let warnings = sample.warnings.join("; ");
        for metric in &whole.detail.metrics {
            let value = sample.number(&metric.name);
            if value.is_none() && sample.failed.is_none() {
                continue;
            }
            let better = match metric.better {
                nearfar_runs::Better::Lower => "lower",
                nearfar_runs::Better::Higher => "higher",
            };
            files.row(
                Kind::Samples,
                &experiment,
                &[
                    run.as_str().into(),
                    host.as_str().into(),
                    whole.run.uid.as_str().into(),
                    cell.as_str().into(),
                    metric.name.as_str().into(),
                    metric.unit.as_str().into(),
                    better.into(),
                    i64::from(metric.primary).into(),
                    (sample.number as i64).into(),
                    i64::from(sample.round).into(),
                    sample.started_at_s.into(),
                    value.into(),
                    sample.failed.as_deref().into(),
                    Some(warnings.as_str())
                        .filter(|text| !text.is_empty())
                        .into(),
                ],
            )?;
        }
    }
    Ok(())
}

/// The files of a run, each written next to its place and renamed when all are whole.
struct Files<'a> {
    dataset: &'a Path,
    run: String,
    date: String,
    open: BTreeMap<(Kind, String), OpenFile>,
}

struct OpenFile {
    path: PathBuf,
    writer: ParquetWriter<File>,
    file: NamedTempFile,
    columns: Vec<Column>,
    waiting: usize,
    rows: u64,
}

impl<'a> Files<'a> {
    fn new(dataset: &'a Path, manifest: &Manifest) -> Self {
        Self {
            dataset,
            run: manifest.id.clone(),
            date: date_of(manifest.started_at_s),
            open: BTreeMap::new(),
        }
    }

    fn row(&mut self, kind: Kind, experiment: &str, row: &[Field<'_>]) -> Result<(), DatasetError> {
        let key = (kind, experiment.to_owned());
        if !self.open.contains_key(&key) {
            let path = file_of(self.dataset, kind, &self.date, experiment, &self.run);
            self.open.insert(key.clone(), OpenFile::new(kind, path)?);
        }
        let Some(file) = self.open.get_mut(&key) else {
            return Ok(());
        };
        push(&mut file.columns, row);
        file.waiting += 1;
        file.rows += 1;
        match file.waiting >= ROWS_A_GROUP {
            true => file.flush(),
            false => Ok(()),
        }
    }

    fn finish(self) -> Result<BTreeMap<&'static str, u64>, DatasetError> {
        let mut rows: BTreeMap<&'static str, u64> =
            Kind::ALL.iter().map(|kind| (kind.name(), 0)).collect();
        let mut whole = Vec::new();
        for ((kind, _), file) in self.open {
            *rows.entry(kind.name()).or_default() += file.rows;
            whole.push(file.close()?);
        }
        for (path, file) in whole {
            let failed = file_error("write", &path);
            file.persist(&path).map_err(|error| failed(error.error))?;
        }
        Ok(rows)
    }
}

impl OpenFile {
    fn new(kind: Kind, path: PathBuf) -> Result<Self, DatasetError> {
        use std::os::unix::fs::PermissionsExt as _;
        let place = path.clone();
        let failed = file_error("write", &place);
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(&failed)?;
        let file = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o644))
            .prefix(".")
            .tempfile_in(directory)
            .map_err(&failed)?;
        let output = file.reopen().map_err(&failed)?;
        let columns = kind.columns();
        let metadata = [("nearfar_schema", "fleet-dataset/1")];
        let writer = ParquetWriter::new(output, kind.name(), &columns, &metadata)
            .map_err(|error| parquet_error("write", &path, &error))?;
        Ok(Self {
            path,
            writer,
            file,
            columns,
            waiting: 0,
            rows: 0,
        })
    }

    fn flush(&mut self) -> Result<(), DatasetError> {
        if self.waiting > 0 {
            self.writer
                .rows(&self.columns, 0..self.waiting)
                .map_err(|error| parquet_error("write", &self.path, &error))?;
        }
        self.waiting = 0;
        for column in &mut self.columns {
            match &mut column.values {
                Values::Text(values) => values.clear(),
                Values::Whole(values) => values.clear(),
                Values::Real(values) => values.clear(),
                Values::Switch(values) => values.clear(),
            }
        }
        Ok(())
    }

    fn close(mut self) -> Result<(PathBuf, NamedTempFile), DatasetError> {
        self.flush()?;
        self.writer
            .finish()
            .map_err(|error| parquet_error("write", &self.path, &error))?;
        Ok((self.path, self.file))
    }
}

fn file_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> DatasetError + 'a {
    move |reason| DatasetError::File {
        action,
        path: path.display().to_string(),
        reason,
    }
}

pub(super) fn parquet_error(
    action: &'static str,
    path: &Path,
    error: &parquet::errors::ParquetError,
) -> DatasetError {
    DatasetError::Parquet {
        action,
        path: path.display().to_string(),
        reason: error.to_string(),
    }
}
