//! From the folder of a run to the dataset.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;

use nearfar_placement::audit::{Audit, AuditOptions, Finding, Severity, audit};
use nearfar_runs::Better;
use nearfar_runs::export::{Column, ColumnValues, ParquetWriter, Whole};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::read::files_of_run;
use super::{
    DatasetError, Kind, NOT_ASKED, Named, date_of, file_error, file_of, parquet_error, push,
};
use crate::carry_out::{HostReason, LastEvents, Summary};
use crate::facts::{Fact, Value, facts};
use crate::folder::{Folder, HostEvent, Manifest, outcome_of};
use crate::hosts::HostName;
use crate::result::{Ended, HostResult};

/// Rows of a group of the file.
const ROWS_A_GROUP: usize = 1 << 16;
/// Experiments of an answer: each is an open file.
const MAX_EXPERIMENTS: usize = 64;
/// The longest name of an experiment in a path.
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
/// The dataset cannot be written.
pub fn collect(folder: &Folder, dataset: &Path) -> Result<Collected, DatasetError> {
    let manifest = &folder.manifest;
    let events = LastEvents::of(folder)?;
    let mut summary = Summary::default();
    let mut files = Files::new(dataset, manifest);
    let experiment = experiment_of(&manifest.arguments);
    // As many answers are in memory at the same time.
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    for hosts in manifest.hosts.chunks(at_once) {
        for read in read_all(folder, hosts) {
            let event = events.with_answer(&read.host, read.outcome.clone());
            summary.add(&read.host, event);
            let Some(answer) = &read.answer else { continue };
            files.add_answer(&experiment, &read.host, answer)?;
        }
    }
    let verb = manifest.arguments.join(" ");
    let not_asked = summary.not_asked.iter().map(|host| (host, NOT_ASKED, None));
    let failed = without_answer("failed", &summary.failed);
    let lost = without_answer("lost", &summary.lost);
    for (host, state, reason) in failed.chain(lost).chain(not_asked) {
        let row = [
            ("state", state.into()),
            ("reason", reason.into()),
            ("verb", verb.as_str().into()),
        ];
        files.host(&experiment, host, &row)?;
    }
    Ok(Collected {
        run: manifest.id.clone(),
        rows: files.finish()?,
        summary,
    })
}

/// Hosts with their state and reason.
fn without_answer<'a>(
    state: &'static str,
    missing: &'a [HostReason],
) -> impl Iterator<Item = (&'a HostName, &'static str, Option<&'a str>)> {
    let row = move |it: &'a HostReason| (&it.host, state, Some(it.reason.as_str()));
    missing.iter().map(row)
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

/// What was read of a host.
struct Read {
    host: HostName,
    /// What its answer says of its step; `None` without one.
    outcome: Option<HostEvent>,
    /// Where the step answered.
    answer: Option<(HostResult, Option<Audit>)>,
}

impl Read {
    fn of(folder: &Folder, host: &HostName) -> Self {
        let result = folder.result(host);
        let mut outcome = outcome_of(&result, |it| &it.ended);
        let runs = result.iter().flatten().flat_map(|result| &result.runs);
        let experiments: BTreeSet<&String> = runs.map(|whole| &whole.run.experiment).collect();
        if experiments.len() > MAX_EXPERIMENTS {
            outcome = Some(HostEvent::Lost {
                reason: format!("its answer has runs of more than {MAX_EXPERIMENTS} experiments"),
                is_not_begun: false,
            });
        }
        let answered = outcome == Some(HostEvent::Answered);
        let result = result.ok().flatten().filter(|_| answered);
        let answer = result.map(|result| {
            let machine = result.machine.as_ref();
            let audit = machine.map(|machine| audit(machine, &AuditOptions::default()));
            (result, audit)
        });
        Self {
            host: host.clone(),
            outcome,
            answer,
        }
    }
}

/// The answers of these hosts, in their order, each read by a thread.
fn read_all(folder: &Folder, hosts: &[HostName]) -> Vec<Read> {
    thread::scope(|scope| {
        let read = |host| scope.spawn(move || Read::of(folder, host));
        let all: Vec<_> = hosts.iter().map(read).collect();
        let joined = all.into_iter().map(|one| match one.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Fact => "fact",
        Severity::Notice => "notice",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

/// The files of a run, each written next to its place and renamed when all are whole.
struct Files<'a> {
    dataset: &'a Path,
    manifest: &'a Manifest,
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
    fn new(dataset: &'a Path, manifest: &'a Manifest) -> Self {
        Self {
            dataset,
            manifest,
            date: date_of(manifest.started_at_s),
            open: BTreeMap::new(),
        }
    }

    fn add_answer(
        &mut self,
        experiment: &str,
        host: &HostName,
        (result, audit): &(HostResult, Option<Audit>),
    ) -> Result<(), DatasetError> {
        let exit_code = match &result.ended {
            Ended::Answered { exit_code } => Some(*exit_code),
            Ended::Failed { exit_code, .. } => *exit_code,
        };
        let origin = result.machine.as_ref().map(|machine| &machine.origin);
        let emulated = origin
            .and_then(|origin| origin.emulation.as_ref())
            .map(ToString::to_string);
        let machine_host = origin.and_then(|origin| origin.host.as_deref());
        let verb = result.arguments.join(" ");
        let row = [
            ("state", "answered".into()),
            ("started_at", result.started_at_s.into()),
            ("took_s", result.took_s.into()),
            ("exit_code", exit_code.map(i64::from).into()),
            ("verb", verb.as_str().into()),
            ("nearfar", result.nearfar.as_str().into()),
            ("machine_host", machine_host.into()),
            ("emulated", emulated.as_deref().into()),
        ];
        self.host(experiment, host, &row)?;
        if let (Some(machine), Some(audit)) = (&result.machine, audit) {
            for fact in facts(machine, audit) {
                self.fact(experiment, host, &fact)?;
            }
            for finding in &audit.findings {
                self.finding(experiment, host, finding)?;
            }
        }
        for whole in &result.runs {
            self.samples(host, whole)?;
        }
        Ok(())
    }

    /// A row of the table of hosts, with what is the same for all hosts of the run.
    fn host(
        &mut self,
        experiment: &str,
        host: &HostName,
        row: &[Named<'_>],
    ) -> Result<(), DatasetError> {
        let manifest = self.manifest;
        let mut row = row.to_vec();
        row.extend([
            ("label", manifest.label.as_deref().into()),
            ("run_started_at", manifest.started_at_s.into()),
            ("by", manifest.by.as_str().into()),
        ]);
        self.row(Kind::Hosts, experiment, host, &row)
    }

    fn fact(&mut self, experiment: &str, host: &HostName, fact: &Fact) -> Result<(), DatasetError> {
        let (value, number, is_size, unknown) = match &fact.value {
            Value::Text(text) => (Some(text.as_str()), None, None, None),
            Value::Count(count) => (None, Some(*count as f64), Some(0), None),
            Value::Bytes(bytes) => (None, Some(*bytes as f64), Some(1), None),
            Value::Unknown(reason) => (None, None, None, Some(reason.as_str())),
        };
        let row = [
            ("fact", fact.name.as_str().into()),
            ("value", value.into()),
            ("number", number.into()),
            ("is_size", is_size.into()),
            ("unknown", unknown.into()),
        ];
        self.row(Kind::Facts, experiment, host, &row)
    }

    fn finding(
        &mut self,
        experiment: &str,
        host: &HostName,
        finding: &Finding,
    ) -> Result<(), DatasetError> {
        let device = finding.device.map(|device| device.to_string());
        let row = [
            ("rule", finding.rule.into()),
            ("severity", severity(finding.severity).into()),
            ("subject", finding.subject.as_str().into()),
            ("message", finding.message.as_str().into()),
            ("device", device.as_deref().into()),
        ];
        self.row(Kind::Findings, experiment, host, &row)
    }

    fn samples(&mut self, host: &HostName, whole: &Whole) -> Result<(), DatasetError> {
        let experiment = in_a_path(&whole.run.experiment);
        let parameters = whole.detail.parameters.to_string();
        for sample in &whole.taken {
            let cell = serde_json::to_string(&sample.cell).unwrap_or_default();
            let warnings = sample.warnings.join("; ");
            let warnings = Some(warnings.as_str()).filter(|text| !text.is_empty());
            for metric in &whole.detail.metrics {
                let value = sample.number(&metric.name);
                if value.is_none() && sample.failed.is_none() {
                    continue;
                }
                let better = match metric.better {
                    Better::Lower => "lower",
                    Better::Higher => "higher",
                };
                let row = [
                    ("stored_run", whole.run.uid.as_str().into()),
                    ("parameters", parameters.as_str().into()),
                    ("cell", cell.as_str().into()),
                    ("metric", metric.name.as_str().into()),
                    ("unit", metric.unit.as_str().into()),
                    ("better", better.into()),
                    ("is_primary", i64::from(metric.primary).into()),
                    ("sample", (sample.number as i64).into()),
                    ("round", i64::from(sample.round).into()),
                    ("started_at", sample.started_at_s.into()),
                    ("value", value.into()),
                    ("failed", sample.failed.as_deref().into()),
                    ("warnings", warnings.into()),
                ];
                self.row(Kind::Samples, &experiment, host, &row)?;
            }
        }
        Ok(())
    }

    /// A row, with the run and the host.
    fn row(
        &mut self,
        kind: Kind,
        experiment: &str,
        host: &HostName,
        row: &[Named<'_>],
    ) -> Result<(), DatasetError> {
        let run = self.manifest.id.as_str();
        let key = (kind, experiment.to_owned());
        if !self.open.contains_key(&key) {
            let path = file_of(self.dataset, kind, &self.date, experiment, run);
            self.open.insert(key.clone(), OpenFile::new(kind, path)?);
        }
        let Some(file) = self.open.get_mut(&key) else {
            return Ok(());
        };
        let mut named = vec![("run", run.into()), ("host", host.as_str().into())];
        named.extend_from_slice(row);
        push(&mut file.columns, &named);
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
        let mut earlier = files_of_run(self.dataset, &self.manifest.id)?;
        for ((kind, _), file) in self.open {
            *rows.entry(kind.name()).or_default() += file.rows;
            whole.push(file.close()?);
        }
        for (path, file) in whole {
            let failed = file_error("write", &path);
            file.persist(&path).map_err(|error| failed(error.error))?;
            earlier.remove(&path);
        }
        // What an earlier collection of this run had, and it has no more.
        for path in earlier {
            fs::remove_file(&path).map_err(file_error("remove", &path))?;
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
                ColumnValues::Text(values) => values.clear(),
                ColumnValues::Whole(values) => values.clear(),
                ColumnValues::Real(values) => values.clear(),
                ColumnValues::Switch(values) => values.clear(),
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
