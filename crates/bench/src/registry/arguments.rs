//! What was asked of an experiment.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use nearfar_experiment::{Cell, Factor, Level};
use nearfar_machine::seconds;
use nearfar_runs::{Detail, Run, RunId};

use super::ONE_SAMPLE;
use super::declaration::{Argument, Kind};

/// What was asked for: the levels of each declared factor, and the value of each declared argument.
#[derive(Clone)]
pub struct Arguments {
    pub(super) factors: Vec<Factor>,
    pub(super) cells: Vec<Cell>,
    /// Of each declared argument; `None` for one without, an error where a stored run does not say.
    pub(super) values: Vec<(&'static Argument, Result<Option<String>, ArgumentError>)>,
    pub(super) continued: Option<(Run, Detail)>,
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
    #[error("cannot continue run {run}: its parameters have no \"{key}\", which is --{name}")]
    NotStored {
        name: String,
        run: RunId,
        key: String,
    },
}

impl Arguments {
    /// The factors with the levels that were asked for; without levels for all of the machine.
    pub fn factors(&self) -> Vec<Factor> {
        self.factors.clone()
    }

    /// The levels of a factor that were asked for.
    pub fn levels(&self, name: &str) -> &[Level] {
        let found = self.factors.iter().find(|factor| factor.name == name);
        found.map_or(&[], |factor| &factor.levels)
    }

    /// The cells that were asked for one by one.
    pub fn named_cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The cells that were asked for one by one, else every combination of levels.
    pub fn cells(&self) -> Vec<Cell> {
        match self.cells.as_slice() {
            [] => Cell::all(&self.factors),
            cells => cells.to_vec(),
        }
    }

    /// The arguments of `nearfar` that take and print one sample, without the levels of its cell.
    ///
    /// # Errors
    /// When the stored run that is to be continued does not have one of them.
    pub(super) fn of_one_sample(&self, experiment: &str) -> Result<Vec<OsString>, ArgumentError> {
        let mut words = ["bench", experiment, ONE_SAMPLE]
            .map(OsString::from)
            .to_vec();
        for (Argument { name, kind, .. }, value) in &self.values {
            match (kind, value.as_ref().map_err(Clone::clone)?) {
                (_, None) => {}
                (Kind::Flag, Some(_)) => words.push(format!("--{name}").into()),
                (_, Some(value)) => words.push(format!("--{name}={value}").into()),
            }
        }
        Ok(words)
    }

    /// The stored run that is to be continued.
    pub fn continued(&self) -> Option<&(Run, Detail)> {
        self.continued.as_ref()
    }

    /// Whether an argument has a value; of a flag, whether it was given.
    ///
    /// # Errors
    /// When the stored run that is to be continued does not say.
    pub fn has(&self, name: &str) -> Result<bool, ArgumentError> {
        Ok(self.value(name)?.is_some())
    }

    /// The value of a declared argument; `None` for one without.
    ///
    /// # Errors
    /// When the stored run that is to be continued does not say.
    pub fn text(&self, name: &str) -> Result<Option<String>, ArgumentError> {
        Ok(self.value(name)?.map(str::to_owned))
    }

    fn value(&self, name: &str) -> Result<Option<&str>, ArgumentError> {
        let found = self.values.iter().find(|(it, _)| it.name == name);
        let value = found.map_or(Ok(None), |(_, value)| value.as_ref().map(Option::as_deref));
        value.map_err(Clone::clone)
    }

    /// The value of a declared argument that has a default.
    ///
    /// # Errors
    /// When it is not of that type, or has none.
    pub fn get<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T, ArgumentError> {
        let value = self.value(name)?.unwrap_or_default();
        value
            .parse()
            .map_err(|error: T::Err| self.wrong(name, error.to_string()))
    }

    /// The value of a declared argument in a range; `None` for one without.
    ///
    /// # Errors
    /// When it is not of that type, or outside.
    pub fn within<T>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, ArgumentError>
    where
        T: FromStr + PartialOrd + Display,
    {
        self.read(name, range, |value| value.parse().ok())
    }

    /// A time in seconds in a range, as [`seconds::parse`] takes it.
    ///
    /// # Errors
    /// As [`Arguments::within`].
    pub fn seconds(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ArgumentError> {
        self.read(name, range, seconds::parse)
    }

    fn read<T: PartialOrd + Display>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, ArgumentError> {
        let Some(value) = self.value(name)? else {
            return Ok(None);
        };
        let read = parse(value).filter(|value| range.contains(value));
        let expected = || format!("expected {} to {}", range.start(), range.end());
        read.map(Some).ok_or_else(|| self.wrong(name, expected()))
    }

    /// The value of an argument with a default, in a range.
    ///
    /// # Errors
    /// As [`Arguments::within`].
    pub fn within_or_default<T>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Result<T, ArgumentError>
    where
        T: FromStr + PartialOrd + Display,
    {
        self.needed(name, self.within(name, range)?)
    }

    /// The same for a time in seconds.
    ///
    /// # Errors
    /// As [`Arguments::within`].
    pub fn seconds_or_default(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<f64, ArgumentError> {
        self.needed(name, self.seconds(name, range)?)
    }

    fn needed<T>(&self, name: &str, value: Option<T>) -> Result<T, ArgumentError> {
        value.ok_or_else(|| self.wrong(name, "expected a value".to_owned()))
    }

    /// The error of an argument whose value is wrong.
    pub fn wrong(&self, name: &str, reason: String) -> ArgumentError {
        ArgumentError::Value {
            name: name.to_owned(),
            value: self
                .value(name)
                .ok()
                .flatten()
                .unwrap_or_default()
                .to_owned(),
            reason,
        }
    }
}
