//! `nearfar compare`: is B better than A?

mod sides;

use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use nearfar_compare::{CompareError, Comparison, Definitions, Kind, Options, compare};
use nearfar_runs::Better;

use crate::args::{Colour, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

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
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    across: Vec<Across>,
    /// A change whose interval is within this share is equivalent, even if it is significant
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = share)]
    margin: f64,
    /// Exit with 1 where something is worse or more samples failed; with =PERCENT: by more than that. 125 where that cannot be judged:
    /// one run a side, too few samples
    #[arg(long, value_name = "regression[=PERCENT]")]
    fail_on: Option<FailOn>,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t = Form::Table, value_name = "FORMAT")]
    format: Form,
    #[command(flatten)]
    store: StoreArgs,
}

/// The formats.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people, in at most 75 columns.
    Table,
    /// For programs; documented in docs/json.md.
    Json,
    /// For issues and commit messages.
    Markdown,
}

/// What sides may differ in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Across {
    /// Host, nodes, distances, CPUs, caches.
    Machine,
    /// Release, build, command line.
    Kernel,
    /// The emulated machine, its delays and caches.
    Emulation,
    /// What decides what a sample is.
    Parameters,
    /// Units and directions; metrics of which these differ are left out.
    Metrics,
}

impl From<Across> for Kind {
    fn from(across: Across) -> Self {
        match across {
            Across::Machine => Self::Machine,
            Across::Kernel => Self::Kernel,
            Across::Emulation => Self::Emulation,
            Across::Parameters => Self::Parameters,
            Across::Metrics => Self::Metrics,
        }
    }
}

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
                    return Err(Failure::Input(anyhow!(
                        "--by compares the levels of one run"
                    )));
                };
                let sides = sides::read(std::slice::from_ref(side), &self.store, &self.given())?;
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
                return Err(Failure::Input(anyhow!(
                    "a comparison takes two sides or more, or --by FACTOR"
                )));
            }
            None => sides::read(&self.sides, &self.store, &self.given())?,
        };
        let options = Options {
            margin: self.margin,
            metrics: self.metric.iter().map(|(name, _)| name.clone()).collect(),
            across: self
                .across
                .iter()
                .map(|&across| across.into())
                .collect::<BTreeSet<Kind>>(),
            judges_single_runs: false,
        };
        let comparison = compare(&sides, &options).map_err(Failure::input)?;
        self.print(&comparison, colour)?;
        match self.fail_on {
            Some(fail_on) if fail_on.is_met(&comparison) => Err(Failure::AskedToFail),
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
            Form::Json => output::json("compare/1", None, comparison)?,
            Form::Markdown => document().to_markdown(),
            Form::Table => {
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
