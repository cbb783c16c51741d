//! `nearfar runs list`.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use nearfar_bench::registry::EXPERIMENTS;
use nearfar_machine::alternatives;
use nearfar_runs::{Filter, Run, Store, StoreError, now_s};
use serde::Serialize;

use crate::args::{Colour, Format, FormatArgs, StoreArgs, of_store};
use crate::failure::{Failure, Outcome};
use crate::output;

/// List stored runs, newest first
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar runs list\n  nearfar runs list --experiment probe --since 7d"
)]
pub struct List {
    /// Only runs of this experiment
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
    /// Only runs with this label
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,
    /// Only runs begun since: a day (2026-11-21, in UTC), or a time ago (90m, 12h, 7d, 2w)
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<f64>,
    /// List at most this many, the newest
    #[arg(long, value_name = "ROWS")]
    limit: Option<u32>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Serialize)]
struct Listed {
    store: PathBuf,
    runs: Vec<Run>,
}

impl List {
    /// Lists; a store that is not there has no runs.
    pub fn run(self, colour: Colour) -> Outcome {
        let Self {
            experiment,
            label,
            since,
            limit,
            store,
            format,
        } = self;
        let filter = Filter {
            experiment,
            label,
            since_s: since,
            limit,
        };
        let path = store.path()?;
        let place = path.display();
        let (runs, reason) = match Store::open_existing(&path) {
            Ok(store) => {
                let runs = store.list(&filter).map_err(of_store)?;
                let mut reason = String::new();
                if runs.is_empty() {
                    let all = store.list(&Filter::default()).map_err(of_store)?;
                    check_experiment(&all, filter.experiment.as_deref())?;
                    reason = match all.len() {
                        0 => format!("{place} holds no run yet"),
                        others => format!("none of the {others} in {place} was asked for"),
                    };
                }
                (runs, reason)
            }
            // The usual place has nothing yet; a file that was named has to be there.
            Err(error @ StoreError::Absent { .. }) if store.store.is_none() => {
                check_experiment(&[], filter.experiment.as_deref())?;
                (Vec::new(), error.to_string())
            }
            Err(error) => return Err(of_store(error)),
        };
        output::print(&match format.format {
            Format::Table => {
                nearfar_report::runs::list(&runs, &reason).to_text(&output::style(colour))
            }
            Format::Json => output::json("runs-list/1", None, &Listed { store: path, runs })?,
        })
    }
}

/// Fails for the name of an experiment that no run has and this nearfar does not make.
fn check_experiment(all: &[Run], experiment: Option<&str>) -> Outcome {
    let Some(asked) = experiment else {
        return Ok(());
    };
    let shown = EXPERIMENTS
        .iter()
        .map(|entry| &entry.declaration)
        .filter(|declaration| !declaration.is_hidden);
    let mut known: Vec<&str> = all
        .iter()
        .map(|run| run.experiment.as_str())
        .chain(shown.map(|declaration| declaration.name))
        .collect();
    known.sort_unstable();
    known.dedup();
    match known.contains(&asked) {
        true => Ok(()),
        false => Err(Failure::Input(anyhow!(
            "there is no experiment {asked:?}; {}",
            alternatives(asked, &known)
        ))),
    }
}

/// Seconds since 1970 of a day or of a time ago.
fn since(text: &str) -> Result<f64, String> {
    let ago = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let unit = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return None,
        };
        number
            .parse::<u32>()
            .ok()
            .map(|number| now_s() - f64::from(number) * unit)
    };
    ago()
        .or_else(|| day(text))
        .ok_or_else(|| "a day such as 2026-11-21, or a time ago such as 12h or 7d".to_owned())
}

/// When a day of the Gregorian calendar begins, in UTC; for years from 1970 on. Years are counted from March, so that
/// the leap day comes last.
fn day(text: &str) -> Option<f64> {
    let mut parts = text.split('-');
    let mut number = |digits: usize| {
        let part = parts.next().filter(|part| {
            part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit())
        })?;
        part.parse::<i64>().ok()
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    if parts.next().is_some() || year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1..=longest).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days as f64 * 86_400.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_times_ago_are_understood() {
        assert_eq!(since("1970-01-01"), Ok(0.0));
        assert_eq!(since("2000-02-29"), Ok(951_782_400.0));
        assert_eq!(since("2026-11-21"), Ok(1_795_219_200.0));
        assert!((since("2h").unwrap() - (now_s() - 7200.0)).abs() < 5.0);
        for wrong in [
            "",
            "d",
            "-1d",
            "7",
            "7x",
            "2026-13-01",
            "2026-02-29",
            "2026-1-1",
            "1969-12-31",
            "2026-11-21-1",
            "é",
        ] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }
}
