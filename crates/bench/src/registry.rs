//! The experiments that `nearfar bench` has, as data: verb, help, arguments and output come from here.
//!
//! ```text
//!  EXPERIMENTS ─► Entry {declaration, make} ─► cli: a verb, --help, --factor NAME=LEVELS, own arguments
//!                                  │
//!                  Arguments ──────┴─► Experiment ─► nearfar_experiment::carry_out ─► store
//!                                       └─ with --guest: OnTargets, which takes each sample with the same verb in a guest
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nearfar_experiment::{
    Cell, Ended, Experiment, ExperimentError, Factor, Level, OnTargets, Options, RunId, Targets,
    carry_out,
};
use nearfar_machine::Machine;
use nearfar_runs::Store;

use crate::mock;

/// The experiments that are carried out as they declare.
pub const EXPERIMENTS: &[Entry] = &[Entry {
    declaration: mock::DECLARATION,
    carry_out: |request| request.carry_out(mock::Mock::new),
}];

/// One experiment.
pub struct Entry {
    /// What the command shows of it.
    pub declaration: Declaration,
    /// Carries it out.
    pub carry_out: fn(Request<'_>) -> Result<Done, RunError>,
}

/// The hidden option of every experiment's verb that takes one sample and prints it as JSON, without storing it.
pub const ONE_SAMPLE: &str = "--one-sample";

/// What an experiment says of itself.
pub struct Declaration {
    /// The verb below `bench`, and the experiment's name in lists of runs.
    pub name: &'static str,
    /// One line for the list of verbs.
    pub about: &'static str,
    /// Whether no list and no page names it.
    pub is_hidden: bool,
    /// What is varied.
    pub factors: &'static [Varied],
    /// Arguments other than factors.
    pub arguments: &'static [Argument],
}

/// A factor, settable as `--factor NAME=LEVEL,LEVEL`.
pub struct Varied {
    /// In snake_case.
    pub name: &'static str,
    /// All levels it may have, in the order of tables.
    pub levels: &'static [&'static str],
    /// The levels it has unless others are named.
    pub default: &'static [&'static str],
}

/// An argument `--name VALUE`.
pub struct Argument {
    /// In kebab-case.
    pub name: &'static str,
    /// One line, with the unit.
    pub help: &'static str,
    /// Its value unless another is given.
    pub default: &'static str,
}

impl Varied {
    /// A factor with these levels, and those that it has by default.
    pub const fn new(
        name: &'static str,
        levels: &'static [&'static str],
        default: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            levels,
            default,
        }
    }
}

impl Argument {
    /// An argument with its default.
    pub const fn new(name: &'static str, help: &'static str, default: &'static str) -> Self {
        Self {
            name,
            help,
            default,
        }
    }
}

/// What was asked for: the levels of each declared factor, and the value of each declared argument.
#[derive(Clone)]
pub struct Arguments {
    factors: Vec<Factor>,
    values: BTreeMap<&'static str, String>,
}

/// What is wrong with the arguments of an experiment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArgumentError {
    /// No such factor, or a level it cannot have.
    #[error("--factor {given}: {expected}")]
    Factor {
        /// As it was typed.
        given: String,
        /// What may be typed.
        expected: String,
    },
    /// A value that is not of the argument's type.
    #[error("--{name} {value}: {reason}")]
    Value {
        /// The argument.
        name: String,
        /// As it was typed.
        value: String,
        /// What is wrong.
        reason: String,
    },
}

impl Declaration {
    /// The arguments as they were typed: `factors` as `NAME=LEVEL,LEVEL`, `values` by the argument's name.
    ///
    /// # Errors
    /// A factor or level that is not declared.
    pub fn arguments(
        &self,
        factors: &[String],
        values: impl Fn(&str) -> Option<String>,
    ) -> Result<Arguments, ArgumentError> {
        let mut chosen: BTreeMap<&str, Vec<Level>> = BTreeMap::new();
        for given in factors {
            let (name, levels) = self.factor(given)?;
            chosen.insert(name, levels);
        }
        let of = |factor: &Varied| Factor {
            name: factor.name.to_owned(),
            levels: chosen
                .remove(factor.name)
                .unwrap_or_else(|| factor.default.iter().map(|&level| level.into()).collect()),
        };
        let given = |argument: &Argument| {
            let value = values(argument.name).unwrap_or_else(|| argument.default.to_owned());
            (argument.name, value)
        };
        Ok(Arguments {
            factors: self.factors.iter().map(of).collect(),
            values: self.arguments.iter().map(given).collect(),
        })
    }

    fn factor(&self, given: &str) -> Result<(&'static str, Vec<Level>), ArgumentError> {
        let wrong = |expected: String| ArgumentError::Factor {
            given: given.to_owned(),
            expected,
        };
        let names: Vec<&str> = self.factors.iter().map(|factor| factor.name).collect();
        let (name, levels) = given.split_once('=').unwrap_or((given, ""));
        let factor = self.factors.iter().find(|factor| factor.name == name);
        let factor =
            factor.ok_or_else(|| wrong(format!("the factors are {}", names.join(", "))))?;
        let mut chosen: Vec<Level> = Vec::new();
        for level in levels.split(',') {
            if !factor.levels.contains(&level) || chosen.contains(&level.into()) {
                let all = factor.levels.join(", ");
                return Err(wrong(format!("the levels of {name} are {all}, each once")));
            }
            chosen.push(level.into());
        }
        Ok((factor.name, chosen))
    }
}

impl Arguments {
    /// The factors with the levels that were asked for.
    pub fn factors(&self) -> Vec<Factor> {
        self.factors.clone()
    }

    /// The arguments of `nearfar` that take and print one sample of this cell.
    fn of_one_sample(&self, experiment: &str, cell: &Cell) -> Vec<OsString> {
        let verb = ["bench", experiment, ONE_SAMPLE].map(str::to_owned);
        let factor = |(name, level): (&str, &Level)| format!("--factor={name}={level}");
        let value = |(name, value): (&&str, &String)| format!("--{name}={value}");
        let words = verb.into_iter().chain(cell.levels().map(factor));
        let words = words.chain(self.values.iter().map(value));
        words.map(OsString::from).collect()
    }

    /// The value of a declared argument.
    ///
    /// # Errors
    /// When it is not of that type, or not declared.
    pub fn get<T: std::str::FromStr>(&self, name: &str) -> Result<T, ArgumentError>
    where
        T::Err: std::fmt::Display,
    {
        let value = self.values.get(name).cloned().unwrap_or_default();
        value.parse().map_err(|error: T::Err| ArgumentError::Value {
            name: name.to_owned(),
            value: value.clone(),
            reason: error.to_string(),
        })
    }
}

/// A run that is asked for.
pub struct Request<'a> {
    /// As the experiment declares them.
    pub arguments: Arguments,
    /// How it is carried out.
    pub options: Options,
    /// Where it is kept.
    pub store: &'a mut Store,
    /// The machine it is made on.
    pub machine: &'a Machine,
    /// Ends it when set.
    pub cancel: &'a AtomicBool,
    /// The machines that take the samples, and the path of `nearfar` there; `None` for this one.
    pub targets: Option<(Targets, PathBuf)>,
}

/// A run that was carried out.
pub struct Done {
    /// Its number.
    pub run: RunId,
    /// How it ended.
    pub ended: Ended,
}

/// Why a run was not carried out to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What was typed.
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    /// The run.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
}

impl Request<'_> {
    /// Makes the experiment and carries it out.
    fn carry_out<E: Experiment>(
        mut self,
        make: impl FnOnce(&Arguments) -> Result<E, ArgumentError>,
    ) -> Result<Done, RunError> {
        let experiment = make(&self.arguments)?;
        let Some((targets, program)) = self.targets.take() else {
            return self.done(experiment);
        };
        let (arguments, name) = (self.arguments.clone(), experiment.name().to_owned());
        let command = move |cell: &Cell| {
            let mut words = arguments.of_one_sample(&name, cell);
            words.insert(0, program.clone().into());
            words
        };
        self.done(OnTargets::new(experiment, targets, command))
    }

    fn done<E: Experiment>(self, mut experiment: E) -> Result<Done, RunError> {
        let (store, machine, cancel) = (self.store, self.machine, self.cancel);
        let outcome = carry_out(&mut experiment, self.options, store, machine, cancel)?;
        Ok(Done {
            run: outcome.run,
            ended: outcome.ended,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(factors: &[&str]) -> Result<Arguments, ArgumentError> {
        let factors: Vec<String> = factors.iter().map(|&factor| factor.to_owned()).collect();
        mock::DECLARATION.arguments(&factors, |_| None)
    }

    #[test]
    fn factors_have_the_levels_that_were_asked_for() {
        let factors = arguments(&["speed=slow,fast"]).unwrap().factors();
        assert_eq!(factors[0], Factor::new("speed", ["slow", "fast"]));
        for wrong in [
            "speed",
            "speed=",
            "speed=quick",
            "speed=slow,slow",
            "sped=slow",
        ] {
            let error = arguments(&[wrong]).err().expect(wrong).to_string();
            assert!(error.contains(wrong) && error.contains("are"), "{error}");
        }
    }

    #[test]
    fn names_are_unique_and_defaults_are_levels() {
        let mut names = std::collections::BTreeSet::new();
        for Entry { declaration, .. } in EXPERIMENTS {
            assert!(names.insert(declaration.name));
            for factor in declaration.factors {
                let known = |level: &&str| factor.levels.contains(level);
                assert!(factor.default.iter().all(known), "{}", factor.name);
            }
            assert!(declaration.arguments(&[], |_| None).is_ok());
        }
    }
}
