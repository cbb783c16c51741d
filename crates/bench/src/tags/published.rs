//! Figures of others, read from a file, and whether they rank the cells of a run the same way.
//!
//! ```text
//! # a comment
//! scenario,variant,kiops,sys_percent
//! near-low,limit+topology,1058.1,52.42      the variant is the policy limit_topology
//! ```
//!
//! Absolute figures of another machine cannot be compared with those of a run; their order can.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use nearfar_machine::Known;
use nearfar_runs::{Cell, Detail, Sample};
use nearfar_statistics::{Interval, Summary, spearman};
use serde::{Deserialize, Serialize};

use super::scenario::{Scenario, policies, scenarios};
use super::{OPERATIONS, SYSTEM_SHARE};

const SCENARIO: &str = "scenario";
const VARIANT: &str = "variant";
/// The columns of figures: whether a file has to have it, and the metric of a run that it is.
const FIGURES: [(&str, bool, &str); 2] = [
    ("kiops", true, OPERATIONS),
    ("sys_percent", false, SYSTEM_SHARE),
];

/// A file of published figures.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    rows: Vec<Row>,
}

/// A cell of a published table.
#[derive(Clone, PartialEq, Debug)]
struct Row {
    scenario: String,
    variant: String,
    /// As [`FIGURES`].
    figures: [Option<f64>; FIGURES.len()],
}

impl Row {
    fn policy(&self) -> String {
        self.variant.replace(['+', '-'], "_")
    }

    fn name(&self) -> String {
        format!("{} {}", self.scenario, self.variant)
    }
}

/// What is wrong with a file of published figures. Lines are counted from 1, with comments.
#[derive(Debug, thiserror::Error)]
pub enum PublishedError {
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    #[error("line {line}: it is not UTF-8")]
    Utf8 { line: u64 },
    #[error("it is empty: expected a line of columns, {}", columns())]
    Empty,
    #[error("line {line}: it has {fields} fields instead of {expected}")]
    Fields {
        line: u64,
        fields: usize,
        expected: usize,
    },
    #[error(
        "line {line}: there is no column {column:?}; the columns are {}",
        columns()
    )]
    MissingColumn { line: u64, column: &'static str },
    #[error(
        "line {line}: unknown or repeated column {column:?}; the columns are {}",
        columns()
    )]
    Column { line: u64, column: String },
    #[error("line {line}: {column} is empty")]
    EmptyField { line: u64, column: &'static str },
    #[error("line {line}: {column} is not a number of at least 0: {text:?}")]
    NotANumber {
        line: u64,
        column: &'static str,
        text: String,
    },
    #[error("line {line}: {name:?} is also on line {first}")]
    Twice { line: u64, first: u64, name: String },
}

fn columns() -> String {
    let of = |(name, is_needed, _): (&str, bool, _)| match is_needed {
        true => name.to_owned(),
        false => format!("{name} (optional)"),
    };
    let names = [SCENARIO, VARIANT].map(str::to_owned);
    let names: Vec<String> = names.into_iter().chain(FIGURES.map(of)).collect();
    names.join(", ")
}

/// Where the columns of a file are.
struct Places {
    scenario: usize,
    variant: usize,
    figures: [Option<usize>; FIGURES.len()],
}

impl Places {
    fn of(line: u64, heads: &csv::StringRecord) -> Result<Self, PublishedError> {
        let mut known = BTreeSet::new();
        for head in heads {
            let is_column =
                head == SCENARIO || head == VARIANT || FIGURES.iter().any(|it| it.0 == head);
            if !is_column || !known.insert(head) {
                let column = head.to_owned();
                return Err(PublishedError::Column { line, column });
            }
        }
        let place = |name: &str| heads.iter().position(|head| head == name);
        let needed = |column| place(column).ok_or(PublishedError::MissingColumn { line, column });
        for (name, ..) in FIGURES.iter().filter(|it| it.1) {
            needed(name)?;
        }
        Ok(Self {
            scenario: needed(SCENARIO)?,
            variant: needed(VARIANT)?,
            figures: FIGURES.map(|(name, ..)| place(name)),
        })
    }

    fn row(&self, line: u64, record: &csv::StringRecord) -> Result<Row, PublishedError> {
        let text = |place: usize, column| match record.get(place) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(PublishedError::EmptyField { line, column }),
        };
        let mut figures = [None; FIGURES.len()];
        for ((figure, place), (column, is_needed, _)) in
            figures.iter_mut().zip(self.figures).zip(FIGURES)
        {
            let Some(place) = place else { continue };
            let is_missing = record.get(place).is_none_or(str::is_empty);
            if is_missing && !is_needed {
                continue;
            }
            let text = text(place, column)?;
            let number = text.parse().ok();
            let number = number.filter(|it: &f64| it.is_finite() && *it >= 0.0);
            *figure = Some(number.ok_or_else(|| PublishedError::NotANumber {
                line,
                column,
                text: text.to_owned(),
            })?);
        }
        Ok(Row {
            scenario: text(self.scenario, SCENARIO)?.to_owned(),
            variant: text(self.variant, VARIANT)?.to_owned(),
            figures,
        })
    }
}

impl Published {
    /// Reads CSV with a line of columns; lines that begin with `#` are comments.
    ///
    /// # Errors
    /// The first line that is wrong, with its number.
    pub fn read(input: impl BufRead) -> Result<Self, PublishedError> {
        let mut places = None;
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        let mut rows = Vec::new();
        for (bytes, line) in input.split(b'\n').zip(1..) {
            let Some(record) = record(&bytes?, line)? else {
                continue;
            };
            let Some((places, expected)) = &places else {
                places = Some((Places::of(line, &record)?, record.len()));
                continue;
            };
            if record.len() != *expected {
                return Err(PublishedError::Fields {
                    line,
                    fields: record.len(),
                    expected: *expected,
                });
            }
            let row: Row = places.row(line, &record)?;
            let name = row.name();
            if let Some(first) = lines.insert(format!("{} {}", row.scenario, row.policy()), line) {
                return Err(PublishedError::Twice { line, first, name });
            }
            rows.push(row);
        }
        match rows.is_empty() {
            true => Err(PublishedError::Empty),
            false => Ok(Self { rows }),
        }
    }
}

/// The fields of a line; `None` for one without any. Each line is read by itself: the positions of a csv reader do not count the
/// comments before a record.
fn record(bytes: &[u8], line: u64) -> Result<Option<csv::StringRecord>, PublishedError> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() || bytes.starts_with(b"#") {
        return Ok(None);
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(csv::Trim::All)
        .from_reader(bytes);
    match reader.records().next() {
        None => Ok(None),
        Some(Ok(record)) => Ok(Some(record)),
        Some(Err(_)) => Err(PublishedError::Utf8 { line }),
    }
}

/// Whether a run ranks its cells as a published table does, for one metric and one set of levels that the table does not have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Agreement {
    pub metric: String,
    /// The published column.
    pub column: String,
    /// The levels of the other factors.
    pub conditions: Cell,
    /// Spearman's rank correlation of the published figures and the medians, -1 to 1.
    pub correlation: Known<f64>,
    /// The same of the samples of one round, over the rounds that have all of the cells.
    pub by_round: Option<ByRound>,
    pub cells: Vec<Pair>,
    /// Published cells that the run has no sample of, and cells of the run that are not published, each with the reason.
    pub left_out: Vec<LeftOut>,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ByRound {
    pub median: f64,
    /// The 95 % interval of the median; `None` below six rounds.
    pub confidence: Option<Interval>,
    pub rounds: usize,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    pub scenario: String,
    pub policy: String,
    /// In the unit of the published column.
    pub published: f64,
    /// The median, in the unit of the metric.
    pub measured: f64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub cell: String,
    pub reason: String,
}

/// Compares the ranks of a run's cells with those of a published table: once for each column and each combination of the levels of
/// the other factors.
pub fn agreement(detail: &Detail, samples: &[Sample], published: &Published) -> Vec<Agreement> {
    let all = scenarios(detail);
    let (alone, others): (Vec<_>, Vec<_>) = all.iter().partition(|it| it.is_alone());
    let conditions: BTreeSet<Cell> = all.iter().map(Scenario::conditions).collect();
    let mut found = Vec::new();
    for conditions in conditions {
        let of_these = others.iter().filter(|it| it.conditions() == conditions);
        let scenarios: Vec<&Scenario> = of_these.copied().collect();
        for (place, (column, _, metric)) in FIGURES.into_iter().enumerate() {
            if published
                .rows
                .iter()
                .any(|row| row.figures[place].is_some())
            {
                let ranked = Ranked {
                    detail,
                    samples,
                    published,
                    scenarios: &scenarios,
                    metric,
                    place,
                };
                let mut agreement = ranked.agreement(column, &conditions);
                agreement.left_out.extend(alone.iter().map(|it| LeftOut {
                    cell: it.name.clone(),
                    reason: NOT_PUBLISHED.to_owned(),
                }));
                found.push(agreement);
            }
        }
    }
    found
}

const NOT_PUBLISHED: &str = "not in the published table";

/// One column of a published table and one metric of a run.
struct Ranked<'a> {
    detail: &'a Detail,
    samples: &'a [Sample],
    published: &'a Published,
    scenarios: &'a [&'a Scenario],
    metric: &'static str,
    place: usize,
}

impl Ranked<'_> {
    fn agreement(&self, column: &str, conditions: &Cell) -> Agreement {
        let (mut pairs, mut by_cell, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for row in &self.published.rows {
            match self.pair(row) {
                Ok((pair, rounds)) => {
                    pairs.push(pair);
                    by_cell.push(rounds);
                }
                Err(reason) => left_out.push(LeftOut {
                    cell: row.name(),
                    reason: reason.to_owned(),
                }),
            }
        }
        left_out.extend(self.not_published());
        let figures = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
        let published = figures(|pair| pair.published);
        let correlation = spearman(&published, &figures(|pair| pair.measured));
        let correlation = correlation.map_or_else(
            || Known::no(format!("{} cells have no order", pairs.len())),
            Known::Yes,
        );
        Agreement {
            metric: self.metric.to_owned(),
            column: column.to_owned(),
            conditions: conditions.clone(),
            correlation,
            by_round: by_round(&published, &by_cell),
            cells: pairs,
            left_out,
        }
    }

    /// The figures of a published cell, and its samples by round; else why there are none.
    fn pair(&self, row: &Row) -> Result<(Pair, BTreeMap<u32, f64>), &'static str> {
        let published = row.figures[self.place].ok_or("the published table has no figure")?;
        let policy = row.policy();
        let of_name = |it: &&&Scenario| it.published_name == row.scenario;
        let scenarios = self.scenarios.iter().filter(of_name);
        let cells: Vec<Cell> = scenarios.map(|it| it.cell(&policy)).collect();
        let in_plan = cells.iter().filter(|cell| self.detail.plan.contains(cell));
        let cell = match in_plan.collect::<Vec<_>>().as_slice() {
            [] => return Err("the run does not have it"),
            [cell] => *cell,
            _ => return Err("the run has it at several depths"),
        };
        let good = self.samples.iter();
        let good = good.filter(|it| it.failed.is_none() && it.cell == *cell);
        let values = good.filter_map(|it| Some((it.round, it.values.get(self.metric)?.number())));
        let rounds: BTreeMap<u32, f64> = values.collect();
        let summary = Summary::of(&rounds.values().copied().collect::<Vec<_>>());
        let measured = summary.ok_or("the run has no sample of it")?.median;
        let pair = Pair {
            scenario: row.scenario.clone(),
            policy,
            published,
            measured,
        };
        Ok((pair, rounds))
    }

    /// The run's cells that the published table does not have: policies that it does not have at all by name.
    fn not_published(&self) -> Vec<LeftOut> {
        let rows = &self.published.rows;
        let left_out = |cell: String| LeftOut {
            cell,
            reason: NOT_PUBLISHED.to_owned(),
        };
        let mut found = Vec::new();
        for policy in policies(self.detail) {
            if rows.iter().all(|row| row.policy() != policy) {
                found.push(left_out(policy));
                continue;
            }
            for scenario in self.scenarios {
                let is_it =
                    |row: &Row| row.scenario == scenario.published_name && row.policy() == policy;
                let is_measured = self.detail.plan.contains(&scenario.cell(&policy));
                if is_measured && !rows.iter().any(is_it) {
                    found.push(left_out(format!("{} {policy}", scenario.published_name)));
                }
            }
        }
        found
    }
}

/// The correlation within each round that has all cells.
fn by_round(published: &[f64], by_cell: &[BTreeMap<u32, f64>]) -> Option<ByRound> {
    let rounds: BTreeSet<u32> = by_cell.iter().flat_map(BTreeMap::keys).copied().collect();
    let of_round = |round: &u32| {
        let values: Option<Vec<f64>> = by_cell.iter().map(|it| it.get(round).copied()).collect();
        spearman(published, &values?)
    };
    let correlations: Vec<f64> = rounds.iter().filter_map(of_round).collect();
    let summary = Summary::of(&correlations)?;
    Some(ByRound {
        median: summary.median,
        confidence: summary.confidence,
        rounds: correlations.len(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tags::findings::tests::{cell, run};

    const TABLE: &str = "# two machines\n# of one kind\nscenario,variant,kiops,sys_percent\n\
        near-low,stock,1009.5,55\nnear-low,limit+topology,1058.1,52\n\n# far\nfar-low,stock,600.0,72\n\
        far-low,limit,761.7,\nfar-high,stock,400,80\n";

    fn read(text: &str) -> Result<Published, String> {
        Published::read(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        let table = read(TABLE).unwrap();
        let names: Vec<_> = table.rows.iter().map(Row::name).collect();
        assert_eq!(names[1..3], ["near-low limit+topology", "far-low stock"]);
        assert_eq!(table.rows[1].policy(), "limit_topology");
        assert_eq!(table.rows[3].figures, [Some(761.7), None]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let head = "# note\nscenario,variant,kiops\n";
        let cases = [
            (
                "",
                "it is empty: expected a line of columns, scenario, variant, kiops, sys_percent (optional)",
            ),
            ("# only\n", "it is empty"),
            (head, "it is empty"),
            (
                "scenario,kiops\nnear-low,1\n",
                "line 1: there is no column \"variant\"",
            ),
            (
                "# note\nscenario,variant,kips\n",
                "line 2: unknown or repeated column \"kips\"",
            ),
            (
                "scenario,variant,kiops,kiops\n",
                "line 1: unknown or repeated column \"kiops\"",
            ),
            (
                "# note\nscenario,variant,kiops\nnear-low,stock\n",
                "line 3: it has 2 fields instead of 3",
            ),
            (
                "# note\nscenario,variant,kiops\n# more\nnear-low,stock,fast\n",
                "line 4: kiops is not a number of at least 0: \"fast\"",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock,-1\n",
                "line 2: kiops is not a number",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock,inf\n",
                "line 2: kiops is not a number",
            ),
            (
                "scenario,variant,kiops\nnear-low,stock,\n",
                "line 2: kiops is empty",
            ),
            (
                "scenario,variant,kiops\nnear-low,,1\n",
                "line 2: variant is empty",
            ),
            (
                "scenario,variant,kiops\nfar-low,limit+topology,1\n\nfar-low,limit-topology,2\n",
                "line 4: \"far-low limit-topology\" is also on line 2",
            ),
        ];
        for (text, message) in cases {
            let found = read(text).unwrap_err();
            assert!(found.starts_with(message), "{text:?}: {found}");
        }
        let bytes = b"scenario,variant,kiops\nnear-low,st\xffck,1\n".as_slice();
        let found = Published::read(bytes).unwrap_err().to_string();
        assert_eq!(found, "line 2: it is not UTF-8");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Published::read(bytes.as_slice());
        }

        #[test]
        fn any_fields_are_read_or_refused(rows in prop::collection::vec("[a-z#\"0-9+., -]{0,20}", 0..6)) {
            let text = format!("scenario,variant,kiops\n{}", rows.join("\n"));
            let _ = read(&text);
        }
    }

    fn of_run(medians: [f64; 4]) -> Vec<Agreement> {
        let cells = [
            cell("stock", "near", 248),
            cell("limit_topology", "near", 248),
            cell("stock", "far", 248),
            cell("limit", "far", 248),
        ];
        let mut cells: Vec<_> = cells.into_iter().zip(medians).collect();
        cells.push((cell("auto", "far", 248), 900.0));
        cells.push((cell("limit", "near", 248), 900.0));
        cells.push((cell("stock", "alone", 248), 900.0));
        let (detail, samples) = run(&cells, 8);
        agreement(&detail, &samples, &read(TABLE).unwrap())
    }

    #[test]
    fn the_same_order_has_a_correlation_of_one_and_the_reverse_of_minus_one() {
        let same = &of_run([50.0, 60.0, 10.0, 30.0])[0];
        assert_eq!(same.correlation, Known::Yes(1.0));
        let by_round = same.by_round.unwrap();
        assert_eq!((by_round.median, by_round.rounds), (1.0, 8));
        assert!(by_round.confidence.is_some());
        let reverse = &of_run([30.0, 10.0, 60.0, 50.0])[0];
        assert_eq!(reverse.correlation, Known::Yes(-1.0));
    }

    #[test]
    fn cells_that_only_one_side_has_are_left_out_with_the_reason() {
        let found = &of_run([50.0, 60.0, 10.0, 30.0])[0];
        assert_eq!(found.cells.len(), 4);
        let left_out: Vec<_> = found
            .left_out
            .iter()
            .map(|it| (it.cell.as_str(), it.reason.as_str()))
            .collect();
        assert_eq!(
            left_out,
            [
                ("far-high stock", "the run does not have it"),
                ("near-low limit", NOT_PUBLISHED),
                ("auto", NOT_PUBLISHED),
                ("alone", NOT_PUBLISHED),
            ]
        );
    }

    #[test]
    fn a_column_that_the_run_has_no_metric_for_has_no_correlation() {
        let found = &of_run([50.0, 60.0, 10.0, 30.0])[1];
        assert_eq!(
            (found.metric.as_str(), found.cells.len()),
            (SYSTEM_SHARE, 0)
        );
        assert!(found.correlation.get().is_none());
        assert!(found.by_round.is_none());
    }
}
