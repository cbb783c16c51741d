//! One side of a comparison: its samples, and how they were made.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use nearfar_machine::Emulation;
use nearfar_runs::export::{DEFINITIONS, Renamed, Whole, is_column_of_run};
use nearfar_runs::{Better, Cell, Level, Metric, MetricKind, MetricValue, RunTarget};
use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};
use parquet::record::Field;
use serde::Deserialize;
use serde_json::Value;

use crate::comparison::RunWarning;
use crate::difference::{CompareError, Kind, setup};

/// Which columns of a table are what. Parquet files of nearfar hold it, CSV cannot.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub struct Definitions {
    /// Its metrics; histograms as their quantiles.
    pub metrics: Vec<Metric>,
    /// Its factors.
    pub factors: Vec<String>,
}

impl Definitions {
    /// A metric that only a direction is known of.
    pub fn metric(name: &str, better: Better) -> Metric {
        Metric::real(name, "", better)
    }
}

/// One side of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// What it is called: "run 7", "new.parquet", "side=b".
    pub name: String,
    /// The numbers of its runs in their stores; none of a table.
    pub(crate) runs: Vec<i64>,
    /// The names of its runs in every store.
    pub(crate) uids: Vec<String>,
    /// Whether it is a level of a factor, which has its runs in common with the other levels.
    pub(crate) is_level: bool,
    /// Where it has several runs, each of them, without samples.
    members: Vec<Self>,
    /// Whether it is a level of runs whose samples were taken round by round.
    is_paired: bool,
    pub(crate) label: Option<String>,
    pub(crate) experiment: Option<String>,
    pub(crate) kernel: Option<String>,
    pub(crate) emulation: Option<Emulation>,
    /// The machines that took its samples, where its run was made on another.
    targets: Vec<RunTarget>,
    pub(crate) is_complete: Option<bool>,
    /// Whether it was decided from its samples how many are taken.
    pub(crate) is_until_clear: bool,
    /// How it was made, by kind; what a file does not hold is missing.
    pub(crate) setup: BTreeMap<Kind, Value>,
    pub(crate) definitions: Definitions,
    pub(crate) samples: Vec<Sample>,
    /// The cell of each sample that failed.
    pub(crate) failed: Vec<Cell>,
    pub(crate) with_warnings: usize,
    /// Of whole runs.
    pub(crate) warnings: Vec<RunWarning>,
}

/// The values of one sample.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Which of the side's runs, from 0.
    pub run: usize,
    pub cell: Cell,
    pub round: Option<u32>,
    /// Which of the run's blocks it is in, where samples were taken in blocks with time between them.
    pub block: Option<u32>,
    pub values: BTreeMap<String, f64>,
}

impl Side {
    /// A whole run, stored or exported as JSON.
    pub fn of_run(name: impl Into<String>, whole: &Whole) -> Self {
        let (run, detail) = (&whole.run, &whole.detail);
        let (good, failed): (Vec<_>, Vec<_>) = whole
            .taken
            .iter()
            .partition(|sample| sample.failed.is_none());
        let name = name.into();
        let warnings = detail.warnings.iter().map(|warning| RunWarning {
            run: name.clone(),
            warning: warning.clone(),
        });
        let samples = good.into_iter().map(|sample| Sample {
            run: 0,
            cell: sample.cell.clone(),
            round: Some(sample.round),
            block: detail.block(sample.round),
            values: sample.values.iter().flat_map(numbers).collect(),
        });
        let factors = detail.factors.iter().map(|factor| factor.name.clone());
        Self {
            runs: vec![run.run.0],
            uids: vec![run.uid.clone()],
            label: run.label.clone(),
            experiment: Some(run.experiment.clone()),
            kernel: Some(RunTarget::kernels(&detail.targets).unwrap_or_else(|| run.kernel.clone())),
            emulation: run.emulation.clone(),
            targets: detail.targets.clone(),
            is_complete: Some(run.state == nearfar_runs::RunState::Complete),
            is_until_clear: detail.is_until_clear(),
            setup: setup(whole),
            definitions: Definitions {
                metrics: detail.metrics.iter().flat_map(expanded).collect(),
                factors: factors.collect(),
            },
            samples: samples.collect(),
            failed: failed.iter().map(|sample| sample.cell.clone()).collect(),
            with_warnings: run.with_warnings as usize,
            warnings: warnings.collect(),
            name,
            ..Self::default()
        }
    }

    /// The rows of a table.
    ///
    /// # Errors
    /// A column that the definitions name is missing, or a metric's holds text.
    pub fn of_rows(
        name: impl Into<String>,
        columns: &Columns,
        definitions: &Definitions,
    ) -> Result<Self, CompareError> {
        let definitions = &Definitions {
            metrics: definitions.metrics.iter().flat_map(expanded).collect(),
            factors: definitions.factors.clone(),
        };
        if definitions.metrics.is_empty() {
            return Err(CompareError::NoMetrics);
        }
        let mut side = Self {
            name: name.into(),
            label: columns.single("label"),
            experiment: columns.single("experiment"),
            kernel: columns.single("kernel"),
            emulation: columns.single("emulated").map(Emulation::Label),
            definitions: definitions.clone(),
            ..Self::default()
        };
        // A metric that this file has not is unknown in each of its samples; a factor it has not makes other cells.
        let factors = &definitions.factors;
        let metric = |metric: &Metric| columns.metric(&metric.name, factors);
        let metrics = &mut side.definitions.metrics;
        metrics.retain(|it| metric(it).is_some());
        let metrics: Vec<usize> = metrics.iter().filter_map(metric).collect();
        if side.definitions.metrics.is_empty() {
            return Err(columns.missing(&definitions.metrics[0].name));
        }
        let factor = |name: &String| columns.factor(name).ok_or_else(|| columns.missing(name));
        let factors = factors.iter().map(factor).collect::<Result<Vec<_>, _>>()?;
        for row in 0..columns.rows() {
            side.add_row(columns, row, &factors, &metrics)?;
        }
        Ok(side)
    }

    /// `factors` and `metrics`: the places of their columns.
    fn add_row(
        &mut self,
        columns: &Columns,
        row: usize,
        factors: &[usize],
        metrics: &[usize],
    ) -> Result<(), CompareError> {
        let text = |name: &str| columns.text(columns.find(name)?, row);
        self.with_warnings += usize::from(text("warnings").is_some());
        let factors = self.definitions.factors.iter().zip(factors);
        let cell = factors.fold(Cell::new(), |cell, (factor, &place)| {
            match columns.level(place, row) {
                Some(level) => cell.with(factor, level),
                None => cell,
            }
        });
        if text("failed").is_some() {
            self.failed.push(cell);
            return Ok(());
        }
        let mut values = BTreeMap::new();
        for (metric, &place) in self.definitions.metrics.iter().zip(metrics) {
            if let Some(number) = columns.number(place, row)? {
                values.insert(metric.name.clone(), number);
            }
        }
        let number = |name| text(name).and_then(|text| text.parse().ok());
        self.samples.push(Sample {
            run: 0,
            cell,
            round: number("round"),
            block: number("block"),
            values,
        });
        Ok(())
    }

    /// Several runs of equal conditions as one side.
    ///
    /// # Errors
    /// One run is given twice.
    pub fn pooled(mut runs: Vec<Self>) -> Result<Self, CompareError> {
        let Some(first) = runs.first().filter(|_| runs.len() > 1) else {
            return Ok(runs.pop().expect("a side has a run"));
        };
        let is_shared = |label: &&String| runs.iter().all(|it| it.label.as_ref() == Some(*label));
        let mut pooled = Self {
            name: joined(&runs),
            label: first.label.as_ref().filter(is_shared).cloned(),
            ..first.clone()
        };
        let each = runs.iter().map(|run| run.is_complete);
        pooled.is_complete = each.reduce(|one, other| Some(one? && other?)).flatten();
        for (index, run) in runs.iter_mut().enumerate() {
            let samples = std::mem::take(&mut run.samples);
            if index == 0 {
                pooled.samples.clear();
            } else if run.uids.iter().any(|uid| pooled.uids.contains(uid)) {
                return Err(CompareError::is_repeated(run));
            } else {
                pooled.runs.extend(&run.runs);
                pooled.uids.extend(run.uids.iter().cloned());
                pooled.failed.extend(run.failed.iter().cloned());
                pooled.with_warnings += run.with_warnings;
                pooled.warnings.extend(run.warnings.iter().cloned());
            }
            let of_run = |sample| Sample {
                run: index,
                ..sample
            };
            pooled.samples.extend(samples.into_iter().map(of_run));
        }
        pooled.members = runs;
        Ok(pooled)
    }

    /// Its runs, one at least.
    pub(crate) fn members(&self) -> &[Self] {
        match self.members.as_slice() {
            [] => std::slice::from_ref(self),
            members => members,
        }
    }

    /// The levels of one factor as sides, the baseline first: their samples are compared round by round, those of a table
    /// only where each cell has at most one in a round.
    ///
    /// # Errors
    /// There is no such factor or level, or only one level.
    pub fn by(&self, factor: &str, baseline: Option<&str>) -> Result<Vec<Self>, CompareError> {
        if !self.definitions.factors.iter().any(|it| it == factor) {
            let factors = self.definitions.factors.join(", ");
            return Err(CompareError::Wrong(format!(
                "the run has no factor {factor:?}; it has {factors}"
            )));
        }
        let mut levels: Vec<&Level> = Vec::new();
        for cell in self.cells() {
            if let Some(level) = cell.level(factor)
                && !levels.contains(&level)
            {
                levels.push(level);
            }
        }
        // Samples come in random order; levels in that of their names.
        levels.sort();
        let names: Vec<String> = levels.iter().map(ToString::to_string).collect();
        let wrong = |needed: &str| {
            let levels = names.join(", ");
            CompareError::Wrong(format!("{factor} has the levels {levels}: {needed}"))
        };
        if levels.len() < 2 {
            return Err(wrong("two or more are needed"));
        }
        if let Some(baseline) = baseline {
            let place = names.iter().position(|name| name == baseline);
            let place = place.ok_or_else(|| wrong(&format!("{baseline:?} is none of them")))?;
            levels[..=place].rotate_right(1);
        }
        let is_paired = !self.uids.is_empty() || self.has_rounds();
        let at = |level| Self {
            is_paired,
            ..self.at(factor, level)
        };
        Ok(levels.into_iter().map(at).collect())
    }

    /// Whether its samples are compared round by round with those of other levels.
    pub fn is_paired(&self) -> bool {
        self.is_paired
    }

    fn has_rounds(&self) -> bool {
        let mut known = BTreeSet::new();
        let mut samples = self.samples.iter();
        samples.all(|it| it.round.is_some() && known.insert((&it.cell, it.run, it.round)))
    }

    /// The samples of one level, in cells without that factor.
    fn at(&self, factor: &str, level: &Level) -> Self {
        let without = |cell: &Cell| {
            let rest = cell.levels().filter(|(name, _)| *name != factor);
            rest.fold(Cell::new(), |cell, (name, level)| {
                cell.with(name, level.clone())
            })
        };
        let is_of = |cell: &Cell| cell.level(factor) == Some(level);
        let samples = self.samples.iter().filter(|sample| is_of(&sample.cell));
        let failed = self.failed.iter().filter(|cell| is_of(cell));
        let mut side = Self {
            name: format!("{factor}={level}"),
            samples: samples
                .map(|sample| Sample {
                    cell: without(&sample.cell),
                    ..sample.clone()
                })
                .collect(),
            failed: failed.map(without).collect(),
            is_level: true,
            ..self.clone()
        };
        side.definitions.factors.retain(|name| name != factor);
        let is_of = |target: &RunTarget| match target.levels.level(factor) {
            Some(of_target) => of_target == level,
            None => true,
        };
        side.targets.retain(is_of);
        if let Some(kernel) = RunTarget::kernels(&side.targets) {
            side.kernel = Some(kernel);
        }
        if let [target] = side.targets.as_slice() {
            side.emulation = target.emulation.clone();
        }
        side
    }

    /// What it says of its metrics and factors, for tables that do not.
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// How many samples have values.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// The cell of each sample, those that failed last.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        let samples = self.samples.iter().map(|sample| &sample.cell);
        samples.chain(&self.failed)
    }
}

/// `runs 7, 9, 11`; `a.db:1, b.db:1`.
fn joined(runs: &[Side]) -> String {
    let names = runs.iter().map(|run| run.name.as_str());
    let numbers: Option<Vec<&str>> = names.clone().map(|it| it.strip_prefix("run ")).collect();
    match numbers {
        Some(numbers) => format!("runs {}", numbers.join(", ")),
        None => names.collect::<Vec<_>>().join(", "),
    }
}

/// A metric as it is compared: a histogram by its median and its 99th percentile, named as exports name them.
fn expanded(metric: &Metric) -> Vec<Metric> {
    match metric.kind {
        MetricKind::Integer | MetricKind::Real => vec![metric.clone()],
        MetricKind::Histogram => ["p50", "p99"]
            .into_iter()
            .map(|quantile| Metric {
                name: format!("{}_{quantile}", metric.name),
                primary: metric.primary && quantile == "p50",
                kind: MetricKind::Real,
                ..metric.clone()
            })
            .collect(),
    }
}

fn numbers((name, value): (&String, &MetricValue)) -> Vec<(String, f64)> {
    match value {
        MetricValue::Histogram(histogram) => {
            let quantiles = histogram.quantiles().into_iter();
            let named = |(quantile, value)| (format!("{name}_{quantile}"), value as f64);
            quantiles
                .flat_map(|it| [("p50", it.p50), ("p99", it.p99)])
                .map(named)
                .collect()
        }
        other => vec![(name.clone(), other.number())],
    }
}

/// Columns with names, each value as text, nothing for what is missing.
#[derive(Clone, PartialEq, Debug)]
pub struct Columns {
    names: Vec<String>,
    rows: Vec<CsvRow>,
    definitions: Option<Definitions>,
    renamed: Option<Renamed>,
}

#[derive(Clone, PartialEq, Debug)]
struct CsvRow {
    /// Its place in the file, from 1, without the line of names.
    number: usize,
    fields: Vec<Option<String>>,
}

impl CsvRow {
    fn number(from_0: usize, fields: Vec<Option<String>>) -> Self {
        Self {
            number: from_0 + 1,
            fields,
        }
    }
}

/// What a Parquet file says of its columns; one without `renamed` is of an older version.
#[derive(Deserialize)]
struct Written {
    #[serde(flatten)]
    definitions: Definitions,
    renamed: Option<Renamed>,
}

impl Columns {
    /// Reads CSV with a line of names (RFC 4180).
    ///
    /// # Errors
    /// It is empty or not CSV: a row of another length, a quote that is not closed, bytes that are not UTF-8.
    pub fn of_csv(input: impl Read) -> Result<Self, CompareError> {
        let mut reader = csv::Reader::from_reader(input);
        let headers = reader.headers().map_err(|error| match error.kind() {
            csv::ErrorKind::Utf8 { .. } => unknown_format(),
            _ => error.into(),
        })?;
        let is_binary = |it: char| it.is_control() && !it.is_whitespace();
        if headers.iter().any(|name| name.contains(is_binary)) {
            return Err(unknown_format());
        }
        if headers.is_empty() {
            return Err(CompareError::Wrong("it is empty".to_owned()));
        }
        let names = headers.iter().map(str::to_owned).collect();
        let field = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let mut rows = Vec::new();
        for (index, record) in reader.records().enumerate() {
            rows.push(CsvRow::number(index, record?.iter().map(field).collect()));
        }
        Ok(Self {
            names,
            rows,
            definitions: None,
            renamed: None,
        })
    }

    /// Reads Parquet.
    ///
    /// # Errors
    /// It is not Parquet, or uses a compression that is not built in.
    pub fn of_parquet(input: impl ChunkReader + 'static) -> Result<Self, CompareError> {
        let reader = SerializedFileReader::new(input)?;
        let metadata = reader.metadata().file_metadata();
        let entries = metadata.key_value_metadata().into_iter().flatten();
        let entry = entries.clone().find(|entry| entry.key == DEFINITIONS);
        let written: Option<Written> =
            entry.and_then(|entry| serde_json::from_str(entry.value.as_deref()?).ok());
        let (definitions, renamed) = written.map_or((None, None), |written| {
            (Some(written.definitions), written.renamed)
        });
        let names = metadata.schema().get_fields().iter();
        let names = names.map(|field| field.name().to_owned()).collect();
        let mut rows = Vec::new();
        for (index, row) in reader.get_row_iter(None)?.enumerate() {
            let row = row?;
            let fields = row.get_column_iter().map(|(_, field)| text(field));
            rows.push(CsvRow::number(index, fields.collect()));
        }
        Ok(Self {
            names,
            rows,
            definitions,
            renamed,
        })
    }

    /// The rows of one run: of this number, or of the only one. A table without a column `run` is one run.
    ///
    /// # Errors
    /// There is no such run, or there are several and none was chosen.
    pub fn of_run(mut self, run: Option<&str>) -> Result<Self, CompareError> {
        let Some(place) = self.find("run") else {
            return Ok(self);
        };
        let of = |row: &CsvRow| row.fields[place].clone().unwrap_or_default();
        let runs: BTreeSet<String> = self.rows.iter().map(of).collect();
        let list = || runs.iter().cloned().collect();
        match run {
            Some(run) if !runs.contains(run) => Err(CompareError::NoSuchRun {
                run: run.to_owned(),
                runs: list(),
            }),
            Some(run) => {
                self.rows.retain(|row| of(row) == run);
                Ok(self)
            }
            None if runs.len() > 1 => Err(CompareError::SeveralRuns { runs: list() }),
            None => Ok(self),
        }
    }

    /// What the file says of its columns.
    pub fn definitions(&self) -> Option<&Definitions> {
        self.definitions.as_ref()
    }

    /// How many rows.
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|it| it == name)
    }

    /// The place of a factor's column.
    fn factor(&self, name: &str) -> Option<usize> {
        let renamed = self.renamed.as_ref().map(|renamed| &renamed.factors);
        self.find_renamed(renamed, "factor_", name, is_column_of_run(name))
    }

    /// The place of a metric's column.
    fn metric(&self, name: &str, factors: &[String]) -> Option<usize> {
        let renamed = self.renamed.as_ref().map(|renamed| &renamed.metrics);
        let is_factor = factors.iter().any(|it| it.eq_ignore_ascii_case(name));
        let is_taken = is_factor || is_column_of_run(name);
        self.find_renamed(renamed, "metric_", name, is_taken)
    }

    /// Exports rename columns whose name is taken. CSV does not say which, so that there the name with the prefix is looked for.
    fn find_renamed(
        &self,
        renamed: Option<&BTreeMap<String, String>>,
        prefix: &str,
        name: &str,
        is_taken: bool,
    ) -> Option<usize> {
        match renamed {
            Some(renamed) => self.find(renamed.get(name).map_or(name, String::as_str)),
            None => is_taken
                .then(|| self.find(&format!("{prefix}{name}")))
                .flatten()
                .or_else(|| self.find(name)),
        }
    }

    fn text(&self, place: usize, row: usize) -> Option<&str> {
        let text = self.rows[row].fields.get(place)?.as_deref();
        text.filter(|text| !text.is_empty())
    }

    /// # Errors
    /// It is not a number; infinity and NaN are none.
    fn number(&self, place: usize, row: usize) -> Result<Option<f64>, CompareError> {
        let Some(text) = self.text(place, row) else {
            return Ok(None);
        };
        let number = text.trim().parse().ok().filter(|it: &f64| it.is_finite());
        number.map(Some).ok_or_else(|| {
            let (row, column) = (self.rows[row].number, &self.names[place]);
            CompareError::Wrong(format!(
                "row {row}: column {column:?} is not a finite number: {text:?}"
            ))
        })
    }

    /// A level as a table writes it.
    fn level(&self, place: usize, row: usize) -> Option<Level> {
        Some(match self.text(place, row)? {
            "true" => Level::Switch(true),
            "false" => Level::Switch(false),
            text => match text.parse::<i64>() {
                // "007" and "+7" are names: they would be written otherwise.
                Ok(number) if number.to_string() == text => Level::Number(number),
                _ => Level::Name(text.to_owned()),
            },
        })
    }

    /// What a column holds in its first row: the same in each row of a run.
    fn single(&self, name: &str) -> Option<String> {
        let first = self.rows.first()?;
        first.fields.get(self.find(name)?)?.clone()
    }

    fn missing(&self, column: &str) -> CompareError {
        let columns = self.names.join(", ");
        CompareError::Wrong(format!(
            "it has no column {column:?}; its columns are {columns}"
        ))
    }
}

fn unknown_format() -> CompareError {
    CompareError::Wrong("it is not a store, JSON, Parquet or CSV file".to_owned())
}

fn text(field: &Field) -> Option<String> {
    match field {
        Field::Null => None,
        Field::Str(text) => Some(text.clone()),
        Field::Bool(it) => Some(it.to_string()),
        Field::Long(it) => Some(it.to_string()),
        Field::Int(it) => Some(it.to_string()),
        Field::Double(it) => Some(format!("{it:?}")),
        Field::Float(it) => Some(format!("{it:?}")),
        other => Some(other.to_string()),
    }
}
