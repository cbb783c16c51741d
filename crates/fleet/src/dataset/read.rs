//! What `show` needs of a dataset: the newest answer of each host.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nearfar_runs::export::{Column, Values, read_parquet};

use super::DatasetError;
use super::tables::Kind;
use super::write::parquet_error;
use crate::facts::Value;

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
    /// `answered`, `failed` or `lost`.
    pub state: String,
    pub reason: Option<String>,
    pub emulated: Option<String>,
    label: Option<String>,
    run_started_at: f64,
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
    /// By metric, then by cell (JSON), then by place in `hosts`: the values of the samples that did not fail.
    pub samples: BTreeMap<MetricKey, BTreeMap<String, BTreeMap<usize, Vec<f64>>>>,
}

/// Reads the newest answers.
///
/// # Errors
/// It is not a dataset, has no such run, or a file of it cannot be read.
pub fn load(dataset: &Path, selection: &Selection) -> Result<Loaded, DatasetError> {
    let mut rows = hosts(dataset)?;
    let order = choose(&mut rows, dataset, selection)?;
    let mut newest: BTreeMap<String, HostRow> = BTreeMap::new();
    for row in rows {
        let is_newer = newest
            .get(&row.name)
            .is_none_or(|known| known.run_started_at <= row.run_started_at);
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
    facts(dataset, &order, &places, &mut loaded)?;
    samples(dataset, &order, &places, &mut loaded)?;
    loaded.runs = order;
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
        read(&file.path, Kind::Hosts, &wanted, |mut columns| {
            let started = reals(columns.pop());
            let label = texts(columns.pop());
            let emulated = texts(columns.pop());
            let reason = texts(columns.pop());
            let state = texts(columns.pop());
            let host = texts(columns.pop());
            let run = texts(columns.pop());
            let all = run
                .into_iter()
                .zip(host)
                .zip(state)
                .zip(reason)
                .zip(emulated)
                .zip(label);
            for ((((((run, name), state), reason), emulated), label), started) in all.zip(started) {
                let (Some(run), Some(name)) = (run, name) else {
                    continue;
                };
                rows.push(HostRow {
                    name,
                    run,
                    state: state.unwrap_or_default(),
                    reason,
                    emulated,
                    label,
                    run_started_at: started.unwrap_or_default(),
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
    let known: BTreeSet<String> = rows.iter().map(|row| row.run.clone()).collect();
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

/// The facts of each host, of the newest run that has any of it.
fn facts(
    dataset: &Path,
    order: &[LoadedRun],
    places: &HashMap<String, usize>,
    loaded: &mut Loaded,
) -> Result<(), DatasetError> {
    let wanted = ["host", "fact", "value", "number", "is_size", "unknown"];
    let mut known: BTreeSet<usize> = BTreeSet::new();
    for file in newest_first(files_of(dataset, Kind::Facts)?, order) {
        let mut of_file = BTreeSet::new();
        read(&file.path, Kind::Facts, &wanted, |mut columns| {
            let unknown = texts(columns.pop());
            let is_size = wholes(columns.pop());
            let number = reals(columns.pop());
            let value = texts(columns.pop());
            let fact = texts(columns.pop());
            let host = texts(columns.pop());
            let all = host
                .into_iter()
                .zip(fact)
                .zip(value)
                .zip(number)
                .zip(is_size);
            for (((((host, fact), value), number), is_size), unknown) in all.zip(unknown) {
                let place = host.and_then(|host| places.get(&host).copied());
                let (Some(place), Some(fact)) = (place, fact) else {
                    continue;
                };
                if known.contains(&place) {
                    continue;
                }
                of_file.insert(place);
                let value = match (value, number, is_size) {
                    (Some(text), _, _) => Value::Text(text),
                    (None, Some(number), Some(1)) => Value::Bytes(number as u64),
                    (None, Some(number), _) => Value::Count(number as u64),
                    (None, None, _) => Value::Unknown(unknown.unwrap_or_default()),
                };
                loaded.facts.entry(fact).or_default().insert(place, value);
            }
        })?;
        known.append(&mut of_file);
    }
    Ok(())
}

/// The samples of each host and experiment, of the newest run that has any.
fn samples(
    dataset: &Path,
    order: &[LoadedRun],
    places: &HashMap<String, usize>,
    loaded: &mut Loaded,
) -> Result<(), DatasetError> {
    let wanted = [
        "host",
        "stored_run",
        "cell",
        "metric",
        "unit",
        "better",
        "is_primary",
        "started_at",
        "value",
    ];
    let mut known: BTreeSet<(usize, String)> = BTreeSet::new();
    for file in newest_first(files_of(dataset, Kind::Samples)?, order) {
        let mut of_file = FileSamples {
            experiment: file.experiment.clone(),
            runs: HashMap::new(),
            last: None,
        };
        read(&file.path, Kind::Samples, &wanted, |mut columns| {
            let value = reals(columns.pop());
            let started = reals(columns.pop());
            let primary = wholes(columns.pop());
            let better = texts(columns.pop());
            let unit = texts(columns.pop());
            let metric = texts(columns.pop());
            let cell = texts(columns.pop());
            let run = texts(columns.pop());
            let host = texts(columns.pop());
            let of_metric = metric.into_iter().zip(unit).zip(better).zip(primary);
            let of_sample = run.into_iter().zip(started).zip(cell).zip(value);
            for ((host, of_metric), of_sample) in host.into_iter().zip(of_metric).zip(of_sample) {
                let (((metric, unit), better), primary) = of_metric;
                let (((run, started_at), cell), value) = of_sample;
                let place = host.and_then(|host| places.get(&host).copied());
                let (Some(place), Some(value)) = (place, value) else {
                    continue;
                };
                if known.contains(&(place, file.experiment.clone())) {
                    continue;
                }
                let key = MetricKey {
                    experiment: file.experiment.clone(),
                    metric: metric.unwrap_or_default(),
                    unit: unit.unwrap_or_default(),
                    is_lower_better: better.as_deref() != Some("higher"),
                    is_primary: primary == Some(1),
                };
                let run = (run.unwrap_or_default(), started_at.unwrap_or_default());
                of_file.add(loaded, place, key, cell.unwrap_or_default(), run, value);
            }
        })?;
        let of_experiment = of_file.runs.into_keys();
        known.extend(of_experiment.map(|place| (place, file.experiment.clone())));
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
    fn add(
        &mut self,
        loaded: &mut Loaded,
        place: usize,
        key: MetricKey,
        cell: String,
        run: (String, f64),
        value: f64,
    ) {
        match self.runs.get(&place) {
            Some(known) if known.0 == run.0 => {}
            Some(known) if known.1 >= run.1 => return,
            Some(_) => {
                self.forget(loaded, place);
                self.runs.insert(place, run);
            }
            None => {
                self.runs.insert(place, run);
            }
        }
        if self
            .last
            .as_ref()
            .is_none_or(|(last, of)| *last != key || *of != cell)
        {
            self.last = Some((key, cell));
        }
        let Some((key, cell)) = &self.last else {
            return;
        };
        let of_metric = match loaded.samples.get_mut(key) {
            Some(of_metric) => of_metric,
            None => loaded.samples.entry(key.clone()).or_default(),
        };
        let of_cell = match of_metric.get_mut(cell) {
            Some(of_cell) => of_cell,
            None => of_metric.entry(cell.clone()).or_default(),
        };
        of_cell.entry(place).or_default().push(value);
    }

    /// Removes what was read of a host of this experiment.
    fn forget(&self, loaded: &mut Loaded, place: usize) {
        let all = loaded.samples.iter_mut();
        for (_, cells) in all.filter(|(key, _)| key.experiment == self.experiment) {
            for hosts in cells.values_mut() {
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

/// The entries of a directory whose names begin so, with the rest of the name; none where there is no directory.
fn entries(directory: &Path, prefix: &str) -> Result<Vec<(String, PathBuf)>, DatasetError> {
    let failed = |reason| DatasetError::File {
        action: "read",
        path: directory.display().to_string(),
        reason,
    };
    let read = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in read {
        let entry = entry.map_err(failed)?;
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
    wanted: &[&str],
    mut rows: impl FnMut(Vec<Values>),
) -> Result<(), DatasetError> {
    let all = kind.columns();
    let columns: Vec<Column> = wanted
        .iter()
        .filter_map(|name| all.iter().find(|column| column.name == *name).cloned())
        .collect();
    let failed = |reason| DatasetError::File {
        action: "read",
        path: path.display().to_string(),
        reason,
    };
    // Opening a FIFO would wait for ever.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("not a regular file")));
    }
    let file = File::open(path).map_err(failed)?;
    read_parquet::<parquet::errors::ParquetError>(file, &columns, |values| {
        rows(values);
        Ok(())
    })
    .map_err(|error| parquet_error("read", path, &error))
}

fn texts(values: Option<Values>) -> Vec<Option<String>> {
    match values {
        Some(Values::Text(values)) => values,
        _ => Vec::new(),
    }
}

fn reals(values: Option<Values>) -> Vec<Option<f64>> {
    match values {
        Some(Values::Real(values)) => values,
        _ => Vec::new(),
    }
}

fn wholes(values: Option<Values>) -> Vec<Option<i64>> {
    match values {
        Some(Values::Whole(values)) => values,
        _ => Vec::new(),
    }
}
