//! What a side's word means: a run of the store, or a file.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use nearfar_compare::{Columns, CompareError, Definitions, Side};
use nearfar_runs::{Filter, RunId, Store};
use serde::Deserialize;

use super::of_error;
use crate::args::{StoreArgs, of_store, runs_command};
use crate::failure::Failure;
use crate::output;

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
pub fn read(
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
                Failure::Input(anyhow!("{name}: {error}{hint}"))
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
        return Err(Failure::Input(anyhow!("{word}: no such file")));
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
        Failure::Input(anyhow!(missing))
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
struct Exported {
    runs: Vec<Numbered>,
}

#[derive(Deserialize)]
struct Numbered {
    run: RunId,
}

/// A run of an export, read by way of a store of its own: an import checks all that can be wrong with one.
fn of_json(path: &Path, run: Option<&str>, name: String) -> Result<Found, Failure> {
    let refused = |error: std::io::Error| Failure::refused(error);
    let json = std::fs::read(path)
        .with_context(|| format!("cannot read {name}"))
        .map_err(Failure::Input)?;
    let directory = tempfile::tempdir().map_err(refused)?;
    let mut store = Store::open(&directory.path().join("runs.db")).map_err(of_store)?;
    let of = |error: anyhow::Error| Failure::Input(error.context(name.clone()));
    let imported = store.import(&json).map_err(|error| of(error.into()))?;
    let exported: Exported = serde_json::from_slice(&json).map_err(|error| of(error.into()))?;
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
