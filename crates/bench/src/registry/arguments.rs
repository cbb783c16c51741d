//! What was asked of an experiment.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use nearfar_experiment::{Cell, Factor, Level, RunPlan};
use nearfar_machine::{NodeId, size};
use nearfar_runs::{Detail, Run, RunId};
use serde::Serialize;

use super::declaration::{cell_word, factor_words};
use super::{ONE_SAMPLE, PLAN};

/// What was asked for: the levels of each declared factor, and the values of the experiment's own options.
#[derive(Clone)]
pub struct Arguments {
    pub(super) factors: Vec<Factor>,
    pub(super) cells: Vec<Cell>,
    /// An error where a stored run does not say.
    pub(super) own: Result<Own, ArgumentError>,
    pub(super) continued: Option<(Run, Detail)>,
}

/// Options that only one experiment has, and what was given for them.
#[derive(Clone)]
pub(super) struct Own {
    options: Command,
    matches: ArgMatches,
}

/// What is wrong with the arguments of an experiment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArgumentError {
    #[error("--{option} {given}: {expected}")]
    Factor {
        /// "factor" or "cell".
        option: &'static str,
        /// As it was typed.
        given: String,
        expected: String,
    },
    #[error("--{name} {value}: {reason}")]
    Value {
        name: String,
        /// As it was typed.
        value: String,
        reason: String,
    },
    /// In clap's words.
    #[error("{0}")]
    Option(String),
    #[error("cannot continue run {run}: its parameters have no \"{key}\", which is --{name}")]
    NotStored {
        name: String,
        run: RunId,
        key: String,
    },
}

impl Arguments {
    /// The levels of a factor that were asked for.
    pub fn levels(&self, name: &str) -> &[Level] {
        let found = self.factors.iter().find(|factor| factor.name == name);
        found.map_or(&[], |factor| &factor.levels)
    }

    /// The cells that were asked for one by one.
    pub fn named_cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The run of these parameters: the factors with the levels that were asked for, without levels for all of the machine, and the
    /// cells that were asked for one by one, else every combination of levels.
    pub fn plan(&self, parameters: &impl Serialize) -> RunPlan {
        // Numbers and texts always are JSON.
        let parameters = serde_json::to_value(parameters).unwrap_or_default();
        let mut plan = RunPlan::of_factors(parameters, self.factors.clone());
        if !self.cells.is_empty() {
            plan.cells.clone_from(&self.cells);
        }
        plan
    }

    /// The arguments of `nearfar` that take and print one sample: those before the levels of its cell, and those behind them.
    ///
    /// # Errors
    /// When the stored run that is to be continued does not have one of them.
    pub(super) fn of_one_sample(
        &self,
        experiment: &str,
    ) -> Result<[Vec<OsString>; 2], ArgumentError> {
        self.on_target(experiment, ONE_SAMPLE)
    }

    /// The arguments of `nearfar` that print which of these cells are measured where it runs.
    ///
    /// # Errors
    /// As [`Arguments::of_one_sample`].
    pub(super) fn of_plan(&self, experiment: &str) -> Result<Vec<OsString>, ArgumentError> {
        let [words, own] = self.on_target(experiment, PLAN)?;
        let cells: Vec<String> = match self.cells.is_empty() {
            true => self.factors.iter().flat_map(factor_words).collect(),
            false => self.cells.iter().map(cell_word).collect(),
        };
        let cells = cells.into_iter().map(OsString::from).collect();
        Ok([words, cells, own].concat())
    }

    fn on_target(&self, experiment: &str, flag: &str) -> Result<[Vec<OsString>; 2], ArgumentError> {
        let own = self.own()?;
        let words = ["bench", experiment, flag].map(OsString::from).to_vec();
        Ok([words, given(&own.options, &own.matches, |_| true)])
    }

    /// The stored run that is to be continued.
    pub fn continued(&self) -> Option<&(Run, Detail)> {
        self.continued.as_ref()
    }

    /// The experiment's parameters, from its own options.
    ///
    /// # Errors
    /// When the stored run that is to be continued does not say, or says what the options do not take.
    pub fn parameters<P: Args>(&self) -> Result<P, ArgumentError> {
        P::from_arg_matches(&self.own()?.matches).map_err(ArgumentError::from)
    }

    fn own(&self) -> Result<&Own, ArgumentError> {
        self.own.as_ref().map_err(Clone::clone)
    }

    /// The error of an option whose value is wrong.
    pub fn wrong(&self, name: &str, reason: String) -> ArgumentError {
        let id = name.replace('-', "_");
        let own = self.own.as_ref().ok();
        let mut values = own.and_then(|own| own.matches.get_raw(&id)).into_iter();
        let value = values.find_map(|mut values| values.next());
        let value = value.unwrap_or_default().to_string_lossy().into_owned();
        let name = name.to_owned();
        ArgumentError::Value {
            name,
            value,
            reason,
        }
    }
}

impl Own {
    pub(super) fn parse(options: Command, words: Vec<OsString>) -> Result<Self, ArgumentError> {
        let matches = options.clone().try_get_matches_from(words)?;
        Ok(Self { options, matches })
    }
}

impl From<clap::Error> for ArgumentError {
    fn from(error: clap::Error) -> Self {
        let text = error.to_string();
        // Usage and advice follow, which are of the verb.
        let said = text.split("\n\n").next().unwrap_or_default();
        Self::Option(said.trim_start_matches("error: ").to_owned())
    }
}

/// The words of the options that have their value from a source which is wanted; last, behind `--`, those of the command that some
/// experiments run.
pub fn given(
    options: &Command,
    matches: &ArgMatches,
    is_wanted: impl Fn(ValueSource) -> bool,
) -> Vec<OsString> {
    let words = |option: &Arg| {
        let id = option.get_id().as_str();
        if !matches.value_source(id).is_some_and(&is_wanted) {
            return Vec::new();
        }
        let Some(name) = option.get_long() else {
            return behind_dashes(matches.get_raw(id).into_iter().flatten());
        };
        match option.get_action().takes_values() {
            false => Vec::from_iter(matches.get_flag(id).then(|| word_of(name, None))),
            true => {
                let values = matches.get_raw(id).into_iter().flatten();
                values.map(|value| word_of(name, Some(value))).collect()
            }
        }
    };
    let named = named_options(options);
    let all = named.chain(options.get_positionals());
    all.flat_map(words).collect()
}

/// Options with a name, flags as well (clap's `get_opts` is without these).
pub(super) fn named_options(options: &Command) -> impl Iterator<Item = &Arg> {
    options.get_arguments().filter(|it| !it.is_positional())
}

/// The words of a command behind `--`.
pub(super) fn behind_dashes<T: AsRef<OsStr>>(words: impl IntoIterator<Item = T>) -> Vec<OsString> {
    let words = words.into_iter().map(|word| word.as_ref().to_owned());
    std::iter::once("--".into()).chain(words).collect()
}

/// The word of an option with a value, or of a flag.
pub(super) fn word_of(name: &str, value: Option<&OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}"));
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

/// A parser of an option's value: what `read` makes of the text, where it is in a range.
pub(crate) fn within<T>(
    range: RangeInclusive<T>,
    read: fn(&str) -> Option<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let value = read(text).filter(|value| range.contains(value));
        value.ok_or_else(|| format!("expected {} to {}", range.start(), range.end()))
    }
}

/// A number, for [`within`].
pub(crate) fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// A parser of a size in a range of bytes.
pub(crate) fn size(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let bytes = size::parse(text, 1).filter(|bytes| range.contains(bytes));
        let [least, most] = [range.start(), range.end()].map(|&bytes| size::render(bytes));
        bytes.ok_or_else(|| format!("expected a size of {least} to {most}, such as 256M"))
    }
}

/// The value of an option that is a node's number.
pub(crate) fn node(text: &str) -> Result<NodeId, String> {
    let node = text.parse().map(NodeId);
    node.map_err(|_| "expected a node's number".to_owned())
}
