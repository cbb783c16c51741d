//! What an experiment says of itself, and what was asked of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use nearfar_experiment::{Cell, Factor, Level};
use nearfar_runs::{Detail, Run};

use super::ONE_SAMPLE;

/// What an experiment says of itself.
pub struct Declaration {
    /// The verb below `bench`, and the experiment's name in lists of runs.
    pub name: &'static str,
    /// One line for the list of verbs; the help also shows the paragraphs below it.
    pub about: &'static str,
    /// Commands that the help shows, without `nearfar bench NAME`.
    pub examples: &'static [&'static str],
    /// Whether no list and no page names it.
    pub is_hidden: bool,
    /// Samples of each cell unless others are asked for.
    pub samples: u32,
    pub factors: &'static [Varied],
    /// Arguments other than factors.
    pub arguments: &'static [Argument],
}

/// A factor, settable as `--factor NAME=LEVEL,LEVEL`.
pub struct Varied {
    /// In snake_case.
    pub name: &'static str,
    pub levels: Levels,
}

/// The levels that a factor may have.
pub enum Levels {
    /// These, in the order of tables.
    Named {
        all: &'static [&'static str],
        default: &'static [&'static str],
    },
    /// Those of the machine; all of them unless some are named.
    OfMachine {
        help: &'static str,
        /// `None` for a text that is no level.
        read: fn(&str) -> Option<Level>,
    },
}

impl Varied {
    /// A factor with these levels, and those that it has by default.
    pub const fn new(
        name: &'static str,
        all: &'static [&'static str],
        default: &'static [&'static str],
    ) -> Self {
        let levels = Levels::Named { all, default };
        Self { name, levels }
    }

    /// A factor whose levels depend on the machine.
    pub const fn of_machine(
        name: &'static str,
        help: &'static str,
        read: fn(&str) -> Option<Level>,
    ) -> Self {
        let levels = Levels::OfMachine { help, read };
        Self { name, levels }
    }

    /// What may be typed, and what is taken by default.
    pub fn help(&self) -> String {
        match &self.levels {
            Levels::Named { all, default } => {
                format!("{} [default: {}]", all.join(", "), default.join(","))
            }
            Levels::OfMachine { help, .. } => format!("{help} [default: all]"),
        }
    }

    fn read(&self, text: &str) -> Option<Level> {
        match &self.levels {
            Levels::Named { all, .. } => all.contains(&text).then(|| text.into()),
            Levels::OfMachine { read, .. } => read(text),
        }
    }

    fn default(&self) -> Vec<Level> {
        match &self.levels {
            Levels::Named { default, .. } => default.iter().map(|&level| level.into()).collect(),
            Levels::OfMachine { .. } => Vec::new(),
        }
    }
}

/// An argument `--name VALUE`, or `--name` for a flag.
pub struct Argument {
    /// In kebab-case.
    pub name: &'static str,
    /// One line, with the unit.
    pub help: &'static str,
    pub kind: Kind,
    /// Its value unless another is given.
    pub default: Option<&'static str>,
}

/// What may follow an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A text, which the experiment reads.
    Text,
    /// A size such as 256M; the experiment gets bytes.
    Size,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Nothing.
    Flag,
}

impl Argument {
    /// An argument with its default.
    pub const fn new(name: &'static str, help: &'static str, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..Self::optional(name, help, Kind::Text)
        }
    }

    /// An argument without a default.
    pub const fn optional(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Self {
            name,
            help,
            kind,
            default: None,
        }
    }
}

/// What was asked for: the levels of each declared factor, and the value of each declared argument.
#[derive(Clone)]
pub struct Arguments {
    factors: Vec<Factor>,
    cells: Vec<Cell>,
    values: BTreeMap<&'static str, String>,
    continued: Option<(Run, Detail)>,
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
}

impl Declaration {
    /// Whether cells depend on the machine, so that each machine has a run of its own.
    pub fn is_of_machine(&self) -> bool {
        let of_machine = |factor: &Varied| matches!(factor.levels, Levels::OfMachine { .. });
        self.factors.iter().any(of_machine)
    }

    /// The arguments as they were typed: `factors` as `NAME=LEVEL,LEVEL`, `cells` as `NAME=LEVEL,NAME=LEVEL`, `values`
    /// by argument.
    ///
    /// # Errors
    /// A factor or level that is not declared.
    pub fn arguments(
        &self,
        factors: &[String],
        cells: &[String],
        values: impl Fn(&Argument) -> Option<String>,
    ) -> Result<Arguments, ArgumentError> {
        let mut chosen: BTreeMap<&str, Vec<Level>> = BTreeMap::new();
        for given in factors {
            let (name, levels) = self.levels(given)?;
            chosen.insert(name, levels);
        }
        let of = |factor: &Varied| Factor {
            name: factor.name.to_owned(),
            levels: chosen
                .remove(factor.name)
                .unwrap_or_else(|| factor.default()),
        };
        let cells = cells.iter().map(|cell| self.cell(cell));
        Ok(Arguments {
            factors: self.factors.iter().map(of).collect(),
            cells: cells.collect::<Result<_, _>>()?,
            values: self.values(values),
            continued: None,
        })
    }

    /// The arguments of a stored run that is to be continued.
    pub fn arguments_of(&self, run: Run, detail: Detail) -> Arguments {
        let value = |argument: &Argument| {
            let name = argument.name.replace('-', "_");
            detail.parameters.get(&name).map(|value| match value {
                serde_json::Value::String(text) => text.clone(),
                value => value.to_string(),
            })
        };
        Arguments {
            factors: detail.factors.clone(),
            cells: detail.plan.clone(),
            values: self.values(value),
            continued: Some((run, detail)),
        }
    }

    fn values(
        &self,
        values: impl Fn(&Argument) -> Option<String>,
    ) -> BTreeMap<&'static str, String> {
        let given = |argument: &Argument| {
            let value = values(argument).or_else(|| argument.default.map(str::to_owned));
            Some((argument.name, value?))
        };
        self.arguments.iter().filter_map(given).collect()
    }

    fn levels(&self, given: &str) -> Result<(&'static str, Vec<Level>), ArgumentError> {
        let (name, levels) = given.split_once('=').unwrap_or((given, ""));
        let wrong = |expected| wrong("factor", given, expected);
        let factor = self.factor(name).ok_or_else(|| wrong(self.names()))?;
        let mut chosen: Vec<Level> = Vec::new();
        for text in levels.split(',') {
            match factor.read(text) {
                Some(level) if !chosen.contains(&level) => chosen.push(level),
                _ => {
                    let help = factor.help();
                    return Err(wrong(format!("the levels of {name} are {help}, each once")));
                }
            }
        }
        Ok((factor.name, chosen))
    }

    /// A cell as it is typed: `NAME=LEVEL,NAME=LEVEL`, each factor once.
    ///
    /// # Errors
    /// A factor that is missing, there twice or not declared; a level it cannot have.
    pub fn cell(&self, given: &str) -> Result<Cell, ArgumentError> {
        let wrong = |expected| wrong("cell", given, expected);
        let mut cell = Cell::new();
        for part in given.split(',') {
            let (name, text) = part.split_once('=').unwrap_or((part, ""));
            let factor = self.factor(name.trim());
            let factor = factor.ok_or_else(|| wrong(self.names()))?;
            let level = factor.read(text).ok_or_else(|| {
                wrong(format!(
                    "the levels of {} are {}",
                    factor.name,
                    factor.help()
                ))
            })?;
            if cell.level(factor.name).is_some() {
                return Err(wrong(format!("{name} is there twice")));
            }
            cell = cell.with(factor.name, level);
        }
        let missing = |factor: &&Varied| cell.level(factor.name).is_none();
        match self.factors.iter().find(missing) {
            Some(factor) => Err(wrong(format!("{} is missing", factor.name))),
            None => Ok(cell),
        }
    }

    fn factor(&self, name: &str) -> Option<&'static Varied> {
        self.factors.iter().find(|factor| factor.name == name)
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.factors.iter().map(|factor| factor.name).collect();
        format!("the factors are {}", names.join(", "))
    }
}

fn wrong(option: &'static str, given: &str, expected: String) -> ArgumentError {
    ArgumentError::Factor {
        option,
        given: given.to_owned(),
        expected,
    }
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

    /// The arguments of `nearfar` that take and print one sample of this cell.
    pub(super) fn of_one_sample(&self, experiment: &str, cell: &Cell) -> Vec<OsString> {
        let verb = ["bench", experiment, ONE_SAMPLE].map(str::to_owned);
        let factor = |(name, level): (&str, &Level)| format!("--factor={name}={level}");
        let value = |(name, value): (&&str, &String)| format!("--{name}={value}");
        let words = verb.into_iter().chain(cell.levels().map(factor));
        let words = words.chain(self.values.iter().map(value));
        words.map(OsString::from).collect()
    }

    /// The stored run that is to be continued.
    pub fn continued(&self) -> Option<&(Run, Detail)> {
        self.continued.as_ref()
    }

    /// Whether an argument has a value; of a flag, whether it was given.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The value of a declared argument that has a default.
    ///
    /// # Errors
    /// When it is not of that type, or has none.
    pub fn get<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T, ArgumentError> {
        let value = self.values.get(name).map_or("", String::as_str);
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
        let Some(value) = self.values.get(name) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(self.wrong(
                name,
                format!("expected {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// The error of an argument whose value is wrong.
    pub fn wrong(&self, name: &str, reason: String) -> ArgumentError {
        ArgumentError::Value {
            name: name.to_owned(),
            value: self.values.get(name).cloned().unwrap_or_default(),
            reason,
        }
    }
}
