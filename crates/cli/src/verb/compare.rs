//! `nearfar compare`: is B better than A? A side is a run of the store or a file.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use nearfar_compare::{
    Columns, CompareError, Comparison, Definitions, Kind, Options, Side, compare,
};
use nearfar_runs::{Better, Filter, RunId, Store};
use serde::Deserialize;

use crate::args::{Colour, StoreArgs, of_store, one_of, runs_command};
use crate::failure::{Failure, Outcome, input};
use crate::output;
use crate::recorded::ExperimentStore;

/// Columns that a mail shows without wrapping.
const MAIL_COLUMNS: usize = 75;

/// Compare runs: differences, their intervals, and whether they are chance
///
/// The first side is the baseline. Sides that differ in machine, kernel, parameters, emulation or metrics are refused, with what
/// differs, unless --across allows it.
#[derive(Args)]
#[command(
    after_long_help = "A side is the number of a run, \"last\", a label (its newest run), STORE:RUN, or an exported file: JSON, \
                       Parquet, CSV, with :RUN behind it where it holds several. Several runs of one side are \
                       separated by commas: the interval then holds what differs from run to run.\n\nExamples:\n  \
                       nearfar compare 7 8\n  nearfar compare 7,9,11 8,10,12\n  \
                       nearfar compare before after --across kernel --fail-on regression=2%\n  nearfar compare 9 --by side\n  \
                       nearfar compare old.parquet runs.db:3 --format markdown\n  nearfar compare a.csv b.csv --metric \
                       seconds=lower --factor memory,cpus"
)]
pub struct Compare {
    /// The baseline, and what is compared with it
    #[arg(value_name = "SIDE", required = true)]
    sides: Vec<String>,
    /// Compare the levels of this factor of one run instead, round by round; the first level is the baseline
    #[arg(long, value_name = "FACTOR")]
    by: Option<String>,
    /// The level of --by that is the baseline
    #[arg(long, value_name = "LEVEL", requires = "by")]
    baseline: Option<String>,
    /// Only this metric (may be repeated); with =lower or =higher the direction that is better, for files that do not say it
    #[arg(long, value_name = "NAME[=DIRECTION]", value_parser = metric)]
    metric: Vec<(String, Option<Better>)>,
    /// A column that is a factor, for CSV, which does not say it (may be repeated)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    factor: Vec<String>,
    /// Compare although the sides differ in this (may be repeated)
    #[arg(long, value_parser = one_of(KINDS), value_name = "KIND", value_delimiter = ',')]
    across: Vec<Kind>,
    /// A change whose interval is within this share is equivalent, even if it is significant
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = share)]
    margin: f64,
    /// Exit with 1 where something is worse or more samples failed; with =PERCENT: by more than that. 125 where that cannot be judged:
    /// one run a side, too few samples
    #[arg(long, value_name = "regression[=PERCENT]")]
    fail_on: Option<FailOn>,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t = CompareFormat::Table, value_name = "FORMAT")]
    format: CompareFormat,
    #[command(flatten)]
    store: StoreArgs,
}

/// The formats.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompareFormat {
    /// For people, in at most 75 columns.
    Table,
    /// For programs; documented in docs/json.md.
    Json,
    /// For issues and commit messages.
    Markdown,
}

/// What sides may differ in.
const KINDS: &[(&str, &str, Kind)] = &[
    (
        "machine",
        "Host, nodes, distances, CPUs, caches",
        Kind::Machine,
    ),
    ("kernel", "Release, build, command line", Kind::Kernel),
    (
        "emulation",
        "The emulated machine, its delays and caches",
        Kind::Emulation,
    ),
    (
        "parameters",
        "What decides what a sample is",
        Kind::Parameters,
    ),
    (
        "metrics",
        "Units and directions; metrics of which these differ are left out",
        Kind::Metrics,
    ),
];

/// The answer to fail on: something is worse, by more than this share if there is one.
#[derive(Clone, Copy, PartialEq, Debug)]
struct FailOn {
    regression: Option<f64>,
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an answer to fail on: regression or regression=2%");
        let rest = text.strip_prefix("regression").ok_or_else(wrong)?;
        let regression = match rest.strip_prefix('=') {
            Some(limit) => Some(share(limit)?),
            None if rest.is_empty() => None,
            None => return Err(wrong()),
        };
        Ok(Self { regression })
    }
}

impl FailOn {
    fn is_met(self, comparison: &Comparison) -> bool {
        let mut regressions = comparison.regressions();
        regressions.any(|by| self.regression.is_none_or(|limit| by > limit))
    }
}

impl Compare {
    /// Reads the sides, compares and prints.
    pub fn run(self, colour: Colour) -> Outcome {
        let sides = match &self.by {
            Some(factor) => {
                let [side] = self.sides.as_slice() else {
                    return Err(input!("--by compares the levels of one run"));
                };
                let sides = read_sides(std::slice::from_ref(side), &self.store, &self.given())?;
                let levels = sides[0].by(factor, self.baseline.as_deref());
                let levels = levels.map_err(|error| of_error(side, error))?;
                if !levels[0].is_paired() {
                    output::say!(
                        "nearfar: {side} has no column `round` with each cell once per round: its levels are compared unpaired"
                    );
                }
                levels
            }
            None if self.sides.len() < 2 => {
                return Err(input!(
                    "a comparison takes two sides or more, or --by FACTOR"
                ));
            }
            None => read_sides(&self.sides, &self.store, &self.given())?,
        };
        let options = Options {
            margin: self.margin,
            metrics: self.metric.iter().map(|(name, _)| name.clone()).collect(),
            across: self.across.iter().copied().collect(),
            judges_single_runs: false,
        };
        let comparison = compare(&sides, &options).map_err(Failure::input)?;
        self.print(&comparison, colour)?;
        match self.fail_on {
            Some(fail_on) if fail_on.is_met(&comparison) => Err(Failure::Answered(1)),
            Some(_) if comparison.has_unjudged() => Err(Failure::CannotJudge(anyhow!(
                "cannot judge: one run a side or too few samples show no regression and exclude none; give several runs a side: \
                 A,A,A B,B,B"
            ))),
            _ => Ok(()),
        }
    }

    /// What the command line says of tables.
    fn given(&self) -> Definitions {
        let directed = self.metric.iter();
        let directed = directed.filter_map(|(name, better)| Some((name, (*better)?)));
        Definitions {
            metrics: directed
                .map(|(name, better)| Definitions::metric(name, better))
                .collect(),
            factors: self.factor.clone(),
        }
    }

    fn print(&self, comparison: &Comparison, colour: Colour) -> Outcome {
        let document = || nearfar_report::compare::document(comparison);
        output::print(&match self.format {
            CompareFormat::Json => output::json("compare/1", None, comparison)?,
            CompareFormat::Markdown => document().to_markdown(),
            CompareFormat::Table => {
                let mut style = output::style(colour);
                style.width = style.width.min(MAIL_COLUMNS);
                document().to_text(&style)
            }
        })
    }
}

/// What is wrong with one side, with its name.
fn of_error(side: &str, error: CompareError) -> Failure {
    Failure::Input(anyhow::Error::new(error).context(side.to_owned()))
}

/// `seconds`, `seconds=lower`.
fn metric(text: &str) -> Result<(String, Option<Better>), String> {
    match text.split_once('=') {
        None => Ok((text.to_owned(), None)),
        Some((name, "lower")) => Ok((name.to_owned(), Some(Better::Lower))),
        Some((name, "higher")) => Ok((name.to_owned(), Some(Better::Higher))),
        Some((_, other)) => Err(format!("{other:?} is not a direction: lower or higher")),
    }
}

/// A percentage above 0 and below 100, as a share: `2%`, `0.5%`, `2`.
fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent = number.parse::<f64>().ok();
    percent
        .filter(|percent| *percent > 0.0 && *percent < 100.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("{text:?} is not a percentage above 0 and below 100, such as 2%"))
}

/// How a file of each kind begins; a comma-separated one has no sign.
const SQLITE: &[u8] = b"SQLite format 3\0";
const PARQUET: &[u8] = b"PAR1";

/// A side as far as it can be read without the others.
enum Found {
    Side(Box<Side>),
    Table(String, Columns),
}

/// Reads every side. Tables that do not say which columns are metrics and factors take that from the command line, else from
/// another side.
fn read_sides(
    words: &[String],
    store: &StoreArgs,
    given: &Definitions,
) -> Result<Vec<Side>, Failure> {
    let found = words
        .iter()
        .map(|word| runs(word).map(|run| find(run, store)).collect())
        .collect::<Result<Vec<Vec<Found>>, _>>()?;
    let of_others = found.iter().flatten().find_map(|found| match found {
        Found::Side(side) => Some(side.definitions().clone()),
        Found::Table(_, columns) => columns.definitions().cloned(),
    });
    let side = |found: Found| match found {
        Found::Side(side) => Ok(*side),
        Found::Table(name, columns) => {
            let own = columns.definitions().cloned().or_else(|| of_others.clone());
            let definitions = merged(own.unwrap_or_default(), given);
            Side::of_rows(&name, &columns, &definitions).map_err(|error| {
                let hint = match error {
                    CompareError::NoMetrics => {
                        "\nname them: --metric NAME=lower (or =higher) --factor NAME,NAME"
                    }
                    _ => "",
                };
                input!("{name}: {error}{hint}")
            })
        }
    };
    let sides = words.iter().zip(found).map(|(word, found)| {
        let runs = found.into_iter().map(side).collect::<Result<_, _>>()?;
        Side::pooled(runs).map_err(|error| of_error(word, error))
    });
    sides.collect()
}

/// The runs of a side, separated by commas; the name of a file may have some.
fn runs(word: &str) -> impl Iterator<Item = &str> {
    let is_list = !Path::new(word).is_file();
    word.split(move |sign| is_list && sign == ',')
}

/// What is said on the command line comes first.
fn merged(own: Definitions, given: &Definitions) -> Definitions {
    let mut merged = own;
    if !given.metrics.is_empty() {
        merged.metrics.clone_from(&given.metrics);
    }
    if !given.factors.is_empty() {
        merged.factors.clone_from(&given.factors);
    }
    merged
}

fn find(word: &str, store: &StoreArgs) -> Result<Found, Failure> {
    if word == "last" || word.parse::<RunId>().is_ok() {
        return of_run(&store.open_existing()?, word, String::new());
    }
    if Path::new(word).is_file() {
        return of_file(Path::new(word), None);
    }
    if let Some((file, run)) = word.rsplit_once(':')
        && Path::new(file).is_file()
    {
        return of_file(Path::new(file), Some(run));
    }
    let is_file = ['/', ':'].iter().any(|sign| word.contains(*sign))
        || [".json", ".csv", ".parquet", ".db"]
            .iter()
            .any(|end| word.ends_with(end));
    if is_file {
        return Err(input!("{word}: no such file"));
    }
    of_run(&store.open_existing()?, word, String::new())
}

/// A run of a store: its number, "last", or its label.
fn of_run(store: &Store, word: &str, file: String) -> Result<Found, Failure> {
    let (run, many) = match word.parse::<RunId>() {
        Ok(run) => (run, 1),
        Err(_) => newest(store, word)?,
    };
    let whole = store.whole(run).map_err(of_store)?;
    let name = match file.as_str() {
        "" => format!("run {run}"),
        file => format!("{file}:{run}"),
    };
    if many > 1 {
        output::say!("nearfar: {word} is run {run}, the newest of {many}");
    }
    Ok(Found::Side(Box::new(Side::of_run(name, &whole))))
}

/// The newest run of a label, or of all, and how many there are.
fn newest(store: &Store, label: &str) -> Result<(RunId, usize), Failure> {
    let filter = Filter {
        label: (label != "last").then(|| label.to_owned()),
        ..Filter::default()
    };
    let runs = store.list(&filter).map_err(of_store)?;
    let newest = runs.first().map(|run| run.run);
    let place = store.path().display();
    let newest = newest.ok_or_else(|| {
        let missing = match &filter.label {
            None => format!("{place} holds no run yet"),
            Some(label) => format!(
                "{label:?} is not a run, a label or a file; {} shows the runs of {place}",
                runs_command("list", store.path())
            ),
        };
        input!(missing)
    })?;
    Ok((
        newest,
        if filter.label.is_some() {
            runs.len()
        } else {
            1
        },
    ))
}

fn of_file(path: &Path, run: Option<&str>) -> Result<Found, Failure> {
    let name = path.display().to_string();
    let reading = || format!("cannot read {name}");
    let mut file = File::open(path)
        .with_context(reading)
        .map_err(Failure::Input)?;
    let mut begin = Vec::new();
    let read = (&mut file)
        .take(SQLITE.len() as u64)
        .read_to_end(&mut begin);
    let read = read.and_then(|_| file.rewind());
    read.with_context(reading).map_err(Failure::Input)?;
    if begin == SQLITE {
        let store = Store::open_existing(path).map_err(of_store)?;
        return of_run(&store, run.unwrap_or("last"), name);
    }
    if begin.trim_ascii_start().first() == Some(&b'{') {
        return of_json(path, run, name);
    }
    let columns = match begin.starts_with(PARQUET) {
        true => Columns::of_parquet(file),
        false => Columns::of_csv(file),
    };
    let columns = columns.and_then(|columns| columns.of_run(run));
    let columns = columns.map_err(|error| of_error(&name, error))?;
    let name = run.map_or_else(|| name.clone(), |run| format!("{name}:{run}"));
    Ok(Found::Table(name, columns))
}

/// The numbers that the runs of an export have in their own store.
#[derive(Deserialize)]
struct ExportedRuns {
    runs: Vec<ExportedRun>,
}

#[derive(Deserialize)]
struct ExportedRun {
    run: RunId,
}

/// A run of an export, read by way of a store of its own: an import checks all that can be wrong with one.
fn of_json(path: &Path, run: Option<&str>, name: String) -> Result<Found, Failure> {
    let json = std::fs::read(path)
        .with_context(|| format!("cannot read {name}"))
        .map_err(Failure::Input)?;
    let mut temporary = ExperimentStore::temporary()?;
    let store = &mut temporary.store;
    let of = |error: anyhow::Error| Failure::Input(error.context(name.clone()));
    let imported = store.import(&json).map_err(|error| of(error.into()))?;
    let exported: ExportedRuns = serde_json::from_slice(&json).map_err(|error| of(error.into()))?;
    let numbers: Vec<String> = exported.runs.iter().map(|it| it.run.to_string()).collect();
    let place = match run {
        None if numbers.len() == 1 => 0,
        None => return Err(of_error(&name, CompareError::SeveralRuns { runs: numbers })),
        Some(run) => match numbers.iter().position(|number| number == run) {
            Some(place) => place,
            None => {
                let run = run.to_owned();
                return Err(of_error(
                    &name,
                    CompareError::NoSuchRun { run, runs: numbers },
                ));
            }
        },
    };
    let whole = store.whole(imported.runs[place]).map_err(of_store)?;
    let name = run.map_or_else(|| name.clone(), |run| format!("{name}:{run}"));
    Ok(Found::Side(Box::new(Side::of_run(name, &whole))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_understood_with_and_without_their_sign() {
        assert_eq!(
            ["2%", "0.5", "99"].map(share),
            [Ok(0.02), Ok(0.005), Ok(0.99)]
        );
        for wrong in ["", "0", "100%", "-1", "NaN", "two", "%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        let of = |text: &str| text.parse::<FailOn>().map(|it| it.regression);
        assert_eq!(
            [of("regression"), of("regression=5%")],
            [Ok(None), Ok(Some(0.05))]
        );
        for wrong in ["", "regressions", "regression=", "worse"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
