//! What `show` needs of a dataset: the newest answer of each host.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use nearfar_runs::export::{Column, read_parquet};
use rustix::fs::OFlags;

use super::{DatasetError, Kind, NOT_ASKED, Rows, file_error, parquet_error, run_name};
use crate::facts::Value;
use crate::folder::open_regular;

/// Which runs count; all of the dataset by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// A run by its name or its label.
    pub run: Option<String>,
}

/// A host as it is in the newest run that asked it.
#[derive(Clone, PartialEq, Debug)]
pub struct HostRow {
    pub name: String,
    pub run: String,
    /// `answered`, `failed`, `lost` or `not_asked`.
    pub state: String,
    pub reason: Option<String>,
    pub emulated: Option<String>,
    label: Option<String>,
    run_started_at: f64,
    /// What its run measured, or its verb.
    experiment: String,
}

/// A fleet run that is in the dataset.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadedRun {
    pub run: String,
    /// What the user calls it.
    pub label: Option<String>,
    /// When it began, in seconds since 1970.
    pub started_at: f64,
}

/// A metric of an experiment.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MetricKey {
    pub experiment: String,
    pub metric: String,
    pub unit: String,
    /// Whether less is better.
    pub is_lower_better: bool,
    /// Whether its experiment declares it as the one that counts most.
    pub is_primary: bool,
    /// What decides what a sample is (JSON): values of other parameters are not compared. Empty where the dataset does not have it.
    pub parameters: String,
}

impl MetricKey {
    /// Whether it is the same metric, whatever the parameters are.
    pub fn is_same_metric(&self, other: &Self) -> bool {
        let of = |it: &Self| Self {
            parameters: String::new(),
            ..it.clone()
        };
        of(self) == of(other)
    }
}

/// What hosts measured of a metric, by cell (JSON), then by place of the host.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Samples {
    /// The values of the samples that did not fail.
    pub values: BTreeMap<String, BTreeMap<usize, Vec<f64>>>,
    /// How many samples failed, by place of the host.
    pub failed: BTreeMap<usize, usize>,
}

/// The newest answers of all hosts.
#[derive(Debug, Default)]
pub struct Loaded {
    /// By name.
    pub hosts: Vec<HostRow>,
    /// Oldest first.
    pub runs: Vec<LoadedRun>,
    /// By fact, then by place in `hosts`.
    pub facts: BTreeMap<String, BTreeMap<usize, Value>>,
    pub samples: BTreeMap<MetricKey, Samples>,
    /// By experiment, then by place in `hosts`: the newest run that asked the host for it, as its place in `runs`. A host has values of
    /// no other.
    pub measured_in: BTreeMap<String, BTreeMap<usize, usize>>,
}

/// Reads the newest answers.
///
/// # Errors
/// It is not a dataset, has no such run, or a file of it cannot be read.
pub fn load(dataset: &Path, selection: &Selection) -> Result<Loaded, DatasetError> {
    let mut rows = hosts(dataset)?;
    let order = choose(&mut rows, dataset, selection)?;
    let samples = newest_first(files_of(dataset, Kind::Samples)?, &order);
    let measured_in = measured_in(&rows, &samples, &order);
    let mut newest: BTreeMap<String, HostRow> = BTreeMap::new();
    for row in rows {
        // That a host was not asked says nothing of it.
        let rank = |row: &HostRow| (row.state != NOT_ASKED, row.run_started_at);
        let is_newer = newest
            .get(&row.name)
            .is_none_or(|known| rank(known) <= rank(&row));
        if is_newer {
            newest.insert(row.name.clone(), row);
        }
    }
    let mut loaded = Loaded {
        hosts: newest.into_values().collect(),
        ..Loaded::default()
    };
    let places: HashMap<String, usize> = loaded
        .hosts
        .iter()
        .enumerate()
        .map(|(place, host)| (host.name.clone(), place))
        .collect();
    for (experiment, of_host) in measured_in {
        let of_host = of_host.into_iter();
        let of_host = of_host.filter_map(|(host, run)| Some((*places.get(&host)?, run)));
        loaded.measured_in.insert(experiment, of_host.collect());
    }
    loaded.runs = order;
    read_facts(dataset, &places, &mut loaded)?;
    read_samples(samples, &places, &mut loaded)?;
    Ok(loaded)
}

/// Every row of the table of hosts.
fn hosts(dataset: &Path) -> Result<Vec<HostRow>, DatasetError> {
    let files = files_of(dataset, Kind::Hosts)?;
    if files.is_empty() {
        return Err(DatasetError::NotADataset {
            path: dataset.display().to_string(),
            expected: "hosts/date=.../experiment=.../*.parquet".to_owned(),
        });
    }
    let mut rows = Vec::new();
    let wanted = [
        "run",
        "host",
        "state",
        "reason",
        "emulated",
        "label",
        "run_started_at",
    ];
    for file in files {
        read(&file.path, Kind::Hosts, &wanted, |group| {
            for row in 0..group.count() {
                let text = |name| group.text(name, row).map(str::to_owned);
                let (Some(run), Some(name)) = (text("run"), text("host")) else {
                    continue;
                };
                rows.push(HostRow {
                    name,
                    run,
                    state: text("state").unwrap_or_default(),
                    reason: text("reason"),
                    emulated: text("emulated"),
                    label: text("label"),
                    run_started_at: group.real("run_started_at", row).unwrap_or_default(),
                    experiment: file.experiment.clone(),
                });
            }
        })?;
    }
    Ok(rows)
}

/// Leaves the rows of the chosen runs, and gives these runs, oldest first.
fn choose(
    rows: &mut Vec<HostRow>,
    dataset: &Path,
    selection: &Selection,
) -> Result<Vec<LoadedRun>, DatasetError> {
    let known = rows
        .iter()
        .map(|row| run_name(row.label.as_deref(), &row.run));
    let known: BTreeSet<String> = known.collect();
    if let Some(wanted) = &selection.run {
        rows.retain(|row| row.run == *wanted || row.label.as_deref() == Some(wanted));
        if rows.is_empty() {
            return Err(DatasetError::NoRun {
                run: wanted.clone(),
                path: dataset.display().to_string(),
                known: known.into_iter().collect::<Vec<_>>().join(", "),
            });
        }
    }
    let mut runs: BTreeMap<&String, LoadedRun> = BTreeMap::new();
    for row in rows.iter() {
        runs.entry(&row.run).or_insert_with(|| LoadedRun {
            run: row.run.clone(),
            label: row.label.clone(),
            started_at: row.run_started_at,
        });
    }
    let mut order: Vec<LoadedRun> = runs.into_values().collect();
    order.sort_by(|a, b| a.started_at.total_cmp(&b.started_at));
    Ok(order)
}

/// By experiment and host, the newest run that asked it, as a place in `order`. A run asks all of its hosts for what any of them
/// measured. That of a host which has no values counts as well: those of an earlier run would be of another state of the host.
fn measured_in(
    rows: &[HostRow],
    samples: &[DatasetFile],
    order: &[LoadedRun],
) -> BTreeMap<String, HashMap<String, usize>> {
    let mut hosts: HashMap<&str, Vec<&HostRow>> = HashMap::new();
    for row in rows.iter().filter(|row| row.state != NOT_ASKED) {
        hosts.entry(&row.run).or_default().push(row);
    }
    let mut newest: BTreeMap<String, HashMap<String, usize>> = BTreeMap::new();
    for (place, run) in order.iter().enumerate() {
        let of_run = hosts.get(run.run.as_str()).map_or(&[][..], Vec::as_slice);
        let measured = samples.iter().filter(|file| file.run == run.run);
        let measured = measured.map(|file| file.experiment.as_str());
        let asked = of_run.iter().map(|row| row.experiment.as_str());
        let experiments: BTreeSet<&str> = measured.chain(asked).collect();
        for experiment in experiments {
            let of_experiment = newest.entry(experiment.to_owned()).or_default();
            of_experiment.extend(of_run.iter().map(|row| (row.name.clone(), place)));
        }
    }
    newest
}

/// The facts of each host, of the newest run that asked it.
fn read_facts(
    dataset: &Path,
    places: &HashMap<String, usize>,
    loaded: &mut Loaded,
) -> Result<(), DatasetError> {
    let wanted = ["host", "fact", "value", "number", "is_size", "unknown"];
    let mut files = files_of(dataset, Kind::Facts)?;
    files.retain(|file| loaded.hosts.iter().any(|host| host.run == file.run));
    for file in files {
        read(&file.path, Kind::Facts, &wanted, |group| {
            for row in 0..group.count() {
                let text = |name| group.text(name, row);
                let place = text("host").and_then(|host| places.get(host).copied());
                let (Some(place), Some(fact)) = (place, text("fact")) else {
                    continue;
                };
                if loaded.hosts[place].run != file.run {
                    continue;
                }
                let number = group.real("number", row);
                let value = match (text("value"), number, group.whole("is_size", row)) {
                    (Some(text), _, _) => Value::Text(text.to_owned()),
                    (None, Some(number), Some(1)) => Value::Bytes(number as u64),
                    (None, Some(number), _) => Value::Count(number as u64),
                    (None, None, _) => {
                        Value::Unknown(text("unknown").unwrap_or_default().to_owned())
                    }
                };
                let of_fact = match loaded.facts.get_mut(fact) {
                    Some(of_fact) => of_fact,
                    None => loaded.facts.entry(fact.to_owned()).or_default(),
                };
                of_fact.insert(place, value);
            }
        })?;
    }
    Ok(())
}

/// The samples of each host and experiment, of the newest run that asked the host for it.
fn read_samples(
    files: Vec<DatasetFile>,
    places: &HashMap<String, usize>,
    loaded: &mut Loaded,
) -> Result<(), DatasetError> {
    let wanted = [
        "host",
        "stored_run",
        "parameters",
        "cell",
        "metric",
        "unit",
        "better",
        "is_primary",
        "started_at",
        "value",
        "failed",
    ];
    for file in files {
        let run = loaded.runs.iter().position(|run| run.run == file.run);
        let of_experiment = loaded.measured_in.get(&file.experiment);
        let of_experiment = of_experiment.into_iter().flatten();
        let newest = of_experiment.filter(|(_, newest)| Some(**newest) == run);
        let newest: BTreeSet<usize> = newest.map(|(place, _)| *place).collect();
        if newest.is_empty() {
            continue;
        }
        let mut of_file = FileSamples {
            experiment: file.experiment.clone(),
            runs: HashMap::new(),
            last: None,
        };
        read(&file.path, Kind::Samples, &wanted, |group| {
            for row in 0..group.count() {
                let place = group.text("host", row);
                let place = place.and_then(|host| places.get(host).copied());
                if let Some(place) = place.filter(|place| newest.contains(place)) {
                    of_file.add(loaded, place, &group, row);
                }
            }
        })?;
    }
    Ok(())
}

/// What was read of a file of samples.
struct FileSamples {
    experiment: String,
    /// The stored run of each host that counts, and when its first sample began: an answer may have several of one experiment, before
    /// and after a change for example. The newest counts.
    runs: HashMap<usize, (String, f64)>,
    /// The metric and cell of the row before, which are those of most rows.
    last: Option<(MetricKey, String)>,
}

impl FileSamples {
    /// Adds a row, if it is of the newest run of its host so far.
    fn add(&mut self, loaded: &mut Loaded, place: usize, group: &Rows, row: usize) {
        let text = |name| group.text(name, row).unwrap_or_default();
        let (run, started_at) = (text("stored_run"), group.real("started_at", row));
        let started_at = started_at.unwrap_or_default();
        match self.runs.get(&place) {
            Some((known, _)) if known == run => {}
            Some((_, since)) if *since >= started_at => return,
            known => {
                if known.is_some() {
                    self.forget(loaded, place);
                }
                self.runs.insert(place, (run.to_owned(), started_at));
            }
        }
        let is_last = |(key, cell): &(MetricKey, String)| {
            key.metric == text("metric")
                && key.unit == text("unit")
                && cell == text("cell")
                && key.parameters == text("parameters")
        };
        if !self.last.as_ref().is_some_and(is_last) {
            let key = MetricKey {
                experiment: self.experiment.clone(),
                metric: text("metric").to_owned(),
                unit: text("unit").to_owned(),
                is_lower_better: text("better") != "higher",
                is_primary: group.whole("is_primary", row) == Some(1),
                parameters: text("parameters").to_owned(),
            };
            self.last = Some((key, text("cell").to_owned()));
        }
        let Some((key, cell)) = &self.last else {
            return;
        };
        let of_metric = match loaded.samples.get_mut(key) {
            Some(of_metric) => of_metric,
            None => loaded.samples.entry(key.clone()).or_default(),
        };
        let Some(value) = group.real("value", row) else {
            let is_failed = group.text("failed", row).is_some();
            *of_metric.failed.entry(place).or_default() += usize::from(is_failed);
            return;
        };
        let of_cell = match of_metric.values.get_mut(cell) {
            Some(of_cell) => of_cell,
            None => of_metric.values.entry(cell.clone()).or_default(),
        };
        of_cell.entry(place).or_default().push(value);
    }

    /// Removes what was read of a host of this experiment.
    fn forget(&self, loaded: &mut Loaded, place: usize) {
        let all = loaded.samples.iter_mut();
        for (_, samples) in all.filter(|(key, _)| key.experiment == self.experiment) {
            samples.failed.remove(&place);
            for hosts in samples.values.values_mut() {
                hosts.remove(&place);
            }
        }
    }
}

struct DatasetFile {
    path: PathBuf,
    experiment: String,
    run: String,
}

/// The files of a table: `date=D/experiment=E/RUN.parquet`.
fn files_of(dataset: &Path, kind: Kind) -> Result<Vec<DatasetFile>, DatasetError> {
    let mut files = Vec::new();
    let root = dataset.join(kind.name());
    for (_, date) in entries(&root, "date=")? {
        for (experiment, directory) in entries(&date, "experiment=")? {
            for (name, path) in entries(&directory, "")? {
                if let Some(run) = name
                    .strip_suffix(".parquet")
                    .filter(|run| !run.starts_with('.'))
                {
                    files.push(DatasetFile {
                        path,
                        experiment: experiment.clone(),
                        run: run.to_owned(),
                    });
                }
            }
        }
    }
    Ok(files)
}

/// The files of a run in all tables.
pub(super) fn files_of_run(dataset: &Path, run: &str) -> Result<BTreeSet<PathBuf>, DatasetError> {
    let mut found = BTreeSet::new();
    for kind in Kind::ALL {
        let files = files_of(dataset, kind)?.into_iter();
        found.extend(files.filter(|file| file.run == run).map(|file| file.path));
    }
    Ok(found)
}

/// The entries of a directory whose names begin so, with the rest of the name; none where there is no directory.
fn entries(directory: &Path, prefix: &str) -> Result<Vec<(String, PathBuf)>, DatasetError> {
    let failed = file_error("read", directory);
    let read = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(&failed)?,
    };
    let mut found = Vec::new();
    for entry in read {
        let entry = entry.map_err(&failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(rest) = name.strip_prefix(prefix) {
            found.push((rest.to_owned(), entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Files of the chosen runs, the newest run first.
fn newest_first(files: Vec<DatasetFile>, order: &[LoadedRun]) -> Vec<DatasetFile> {
    let names = order.iter().rev().map(|run| &run.run);
    let age: HashMap<&String, usize> = names.zip(0..).collect();
    let mut chosen: Vec<DatasetFile> = files
        .into_iter()
        .filter(|file| age.contains_key(&file.run))
        .collect();
    chosen.sort_by_key(|file| age.get(&file.run).copied());
    chosen
}

/// Reads some columns of a file, group by group.
fn read(
    path: &Path,
    kind: Kind,
    wanted: &[&'static str],
    mut rows: impl FnMut(Rows),
) -> Result<(), DatasetError> {
    let mut columns: Vec<Column> = Vec::new();
    for name in wanted {
        let column = kind.columns().into_iter().find(|it| it.name == *name);
        debug_assert!(column.is_some(), "{} has no column {name}", kind.name());
        columns.extend(column);
    }
    let file = open_regular(path, OFlags::empty()).map_err(file_error("read", path))?;
    read_parquet::<parquet::errors::ParquetError>(file, &columns, |values| {
        rows(Rows::new(wanted, values));
        Ok(())
    })
    .map_err(|error| parquet_error("read", path, &error))
}
