//! What an experiment says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::ops::RangeInclusive;

use clap::{Arg, ArgMatches, Command};
use nearfar_experiment::{Cell, Factor, Level};
use nearfar_machine::{Emulation, alternatives, seconds};
use nearfar_runs::{Detail, Run, RunTarget, UNTIL_CLEAR};
use nearfar_statistics::compare::sequential::MOST_ROUNDS;
use serde_json::Value;

use super::arguments::{ArgumentError, Arguments, Own, behind_dashes, named_options, word_of};

/// Longest word of a command with several levels.
const MAX_WORD_BYTES: usize = 56;
/// Most cells that a command names one by one, where they are not every combination of levels.
const MAX_NAMED_CELLS: usize = 10;
/// How much of the time that a sample takes elsewhere it takes in simulated time: figures hardly differ there, and the host is
/// slower by as much.
const SIMULATED_SHARE: f64 = 0.01;
/// The name of the value of an option that is a time.
pub(crate) const SECONDS: &str = "SECONDS";

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
    /// Whether cells depend on the machine, so that each machine has a run of its own and no target takes its samples.
    pub is_of_machine: bool,
    /// Whether it looks at devices and their interrupts, which take longer to read than the topology.
    pub needs_devices: bool,
    /// Whether guests that take its samples have simulated time unless they are to have the host's. Not for what takes seconds of
    /// a scheduler's work, or depends on devices of the host.
    pub is_simulated: bool,
    /// Samples of each cell unless others are asked for.
    pub samples: u32,
    pub factors: &'static [Varied],
    /// Adds the options that only it has: what clap derives for the structure of its parameters, which serde stores under the
    /// options' ids. A time's value is named `SECONDS`.
    pub options: fn(Command) -> Command,
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
    /// Whole numbers in a range.
    Number {
        range: RangeInclusive<i64>,
        default: &'static [i64],
    },
    /// Nodes: `near`, `far` or a number.
    Node { default: &'static [&'static str] },
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

    /// A factor whose levels are whole numbers, and those that it has by default.
    pub const fn numbers(
        name: &'static str,
        range: RangeInclusive<i64>,
        default: &'static [i64],
    ) -> Self {
        let levels = Levels::Number { range, default };
        Self { name, levels }
    }

    /// A factor whose levels are nodes near the device, far from it, or by number.
    pub const fn node(name: &'static str, default: &'static [&'static str]) -> Self {
        let levels = Levels::Node { default };
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
                let chosen = match all == default {
                    true => "all".to_owned(),
                    false => default.join(","),
                };
                format!("{} [default: {chosen}]", all.join(", "))
            }
            Levels::Number { range, default } => {
                let default: Vec<String> = default.iter().map(i64::to_string).collect();
                let (least, most) = (range.start(), range.end());
                format!("{least} to {most} [default: {}]", default.join(","))
            }
            Levels::Node { default } => {
                format!(
                    "near, far or a node's number [default: {}]",
                    default.join(",")
                )
            }
            Levels::OfMachine { help, .. } if help.contains("[default: ") => (*help).to_owned(),
            Levels::OfMachine { help, .. } => format!("{help} [default: all]"),
        }
    }

    /// What follows the name of a level that it does not have.
    fn alternatives(&self, level: &str) -> String {
        match &self.levels {
            Levels::Named { all, .. } => alternatives(level, all),
            _ => format!("expected {}", self.help()),
        }
    }

    fn level(&self, text: &str) -> Result<Level, String> {
        let none = || {
            format!(
                "{} has no level {text:?}: {}",
                self.name,
                self.alternatives(text)
            )
        };
        self.read(text).ok_or_else(none)
    }

    fn read(&self, text: &str) -> Option<Level> {
        match &self.levels {
            Levels::Named { all, .. } => all.contains(&text).then(|| text.into()),
            Levels::Number { range, .. } => {
                let number = text.parse().ok().filter(|number| range.contains(number));
                number.map(Level::Number)
            }
            Levels::Node { .. } => match text {
                "near" | "far" => Some(text.into()),
                number => Some(number.parse::<u16>().ok()?.to_string().as_str().into()),
            },
            Levels::OfMachine { read, .. } => read(text),
        }
    }

    fn default(&self) -> Vec<Level> {
        match &self.levels {
            Levels::Named { default, .. } | Levels::Node { default } => {
                default.iter().map(|&level| level.into()).collect()
            }
            Levels::Number { default, .. } => default.iter().map(|&level| level.into()).collect(),
            Levels::OfMachine { .. } => Vec::new(),
        }
    }
}

/// A time's default for samples that are taken in simulated time; `None` for an option that is no time, or has no default.
pub fn simulated_default(option: &Arg) -> Option<String> {
    let is_time = option.get_value_names()?.iter().any(|it| it == SECONDS);
    let default = option.get_default_values().first()?.to_str()?;
    let seconds = seconds::parse(default).filter(|_| is_time)?;
    Some((seconds * SIMULATED_SHARE).to_string())
}

/// Whether an option has this value anyway: a stored 20.0 is the default 20.
fn is_default(option: &Arg, value: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    let defaults = option.get_default_values().iter();
    defaults.filter_map(|it| it.to_str()).any(|default| {
        default == value || number(default).is_some_and(|it| number(value) == Some(it))
    })
}

/// The word of an option with a stored value, unless a condition says otherwise; `None` where none was given.
fn stored_word(option: &Arg, value: &Value, is_wanted: fn(&Arg, &str) -> bool) -> Option<OsString> {
    let name = option.get_long()?;
    let value = match value {
        Value::Null => return None,
        &Value::Bool(is_given) => return is_given.then(|| word_of(name, None)),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    is_wanted(option, &value).then(|| word_of(name, Some(value.as_ref())))
}

/// The words of the command that an experiment runs, behind `--`; none of one that runs none.
fn stored_command(options: &Command, parameters: &Value) -> Vec<OsString> {
    let Some(positional) = options.get_positionals().next() else {
        return Vec::new();
    };
    let stored = parameters
        .get(positional.get_id().as_str())
        .and_then(Value::as_array);
    behind_dashes(stored.into_iter().flatten().filter_map(Value::as_str))
}

impl Declaration {
    /// The options that only it has, in a command without a first word. Times have other defaults where samples are taken in
    /// simulated time.
    pub fn own_options(&self, is_simulated: bool) -> Command {
        let command = Command::new(self.name).no_binary_name(true);
        (self.options)(command).mut_args(|option| match simulated_default(&option) {
            Some(default) if is_simulated => option.default_value(default),
            _ => option,
        })
    }

    /// The samples of each cell where `--samples` does not say it: the most of a run that ends once its answer is clear.
    pub fn samples_without_option(&self, matches: &ArgMatches) -> u32 {
        match matches.try_get_one::<bool>(UNTIL_CLEAR) {
            Ok(Some(true)) => MOST_ROUNDS,
            _ => self.samples,
        }
    }

    /// The arguments as they were typed: `factors` as `NAME=LEVEL,LEVEL`, several of one factor together, `cells` as `NAME=LEVEL,NAME=LEVEL`, `words`
    /// of its own options. Times that were not typed depend on whether samples are taken in simulated time.
    ///
    /// # Errors
    /// A factor or level that is not declared, or a word that is no option.
    pub fn arguments(
        &self,
        factors: &[String],
        cells: &[String],
        is_simulated: bool,
        words: Vec<OsString>,
    ) -> Result<Arguments, ArgumentError> {
        let mut chosen: BTreeMap<&str, Vec<Level>> = BTreeMap::new();
        for given in factors {
            let (name, levels) = self.levels(given)?;
            let chosen = chosen.entry(name).or_default();
            let new = levels.into_iter().filter(|level| !chosen.contains(level));
            chosen.extend(new.collect::<Vec<_>>());
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
            own: Ok(Own::parse(self.own_options(is_simulated), words)?),
            continued: None,
        })
    }

    /// The arguments of a stored run that is to be continued: an option's value is the parameter of its id. One without a
    /// parameter has no value, not its default: to read the options is an error.
    pub fn arguments_of(&self, run: Run, detail: Detail) -> Arguments {
        let options = self.own_options(false);
        let word = |option: &Arg| {
            let key = option.get_id().as_str();
            let not_stored = || ArgumentError::NotStored {
                name: option.get_long().unwrap_or_default().to_owned(),
                run: run.run,
                key: key.to_owned(),
            };
            let value = detail.parameters.get(key).ok_or_else(not_stored)?;
            Ok(stored_word(option, value, |_, _| true))
        };
        let words = named_options(&options).map(word);
        let words: Result<Vec<_>, _> = words.filter_map(Result::transpose).collect();
        let words =
            words.map(|words| [words, stored_command(&options, &detail.parameters)].concat());
        // The targets join theirs again.
        let (factors, cells) = detail.without_targets();
        Arguments {
            factors,
            cells,
            own: words.and_then(|words| {
                let refused = |error| {
                    let run = run.run;
                    ArgumentError::Option(format!("cannot continue run {run}: {error}"))
                };
                Own::parse(options, words).map_err(refused)
            }),
            continued: Some((run, detail)),
        }
    }

    /// The words of the command that makes a run as a stored one: its levels, its values and its order, where they are not those
    /// that are taken by default. The machines of targets are not in it.
    pub fn command(&self, run: &Run, detail: &Detail) -> Vec<String> {
        let mut words = ["nearfar", "bench", self.name].map(str::to_owned).to_vec();
        let (factors, cells) = detail.without_targets();
        let is_simulated = match detail.targets.as_slice() {
            [] => run.emulation.as_ref().is_some_and(Emulation::is_simulated),
            targets => targets.iter().all(RunTarget::is_simulated),
        };
        let all: BTreeSet<Cell> = Cell::all(&factors).into_iter().collect();
        // What others leave out of all combinations, they leave out again.
        let is_named = self.is_of_machine && cells.len() <= MAX_NAMED_CELLS;
        if !is_named || all == cells.iter().cloned().collect() {
            for factor in factors {
                let default = self.factor(&factor.name).map(Varied::default);
                if default.as_ref() != Some(&factor.levels) {
                    words.extend(factor_words(&factor));
                }
            }
        } else {
            words.extend(cells.iter().map(cell_word));
        }
        let own = self.own_options(is_simulated);
        for option in named_options(&own) {
            let stored = detail.parameters.get(option.get_id().as_str());
            let word = |value| stored_word(option, value, |it, value| !is_default(it, value));
            // Stored values are texts.
            words.extend(stored.and_then(word).and_then(|it| it.into_string().ok()));
        }
        if run.samples_per_cell != self.samples {
            words.push(format!("--samples={}", run.samples_per_cell));
        }
        words.push(format!("--seed={}", detail.seed));
        let command = stored_command(&own, &detail.parameters).into_iter();
        words.extend(command.filter_map(|it| it.into_string().ok()));
        words
    }

    fn levels(&self, given: &str) -> Result<(&'static str, Vec<Level>), ArgumentError> {
        let (name, levels) = given.split_once('=').unwrap_or((given, ""));
        let wrong = |expected| wrong("factor", given, expected);
        let factor = self
            .factor(name)
            .ok_or_else(|| wrong(self.no_factor(name)))?;
        let mut chosen: Vec<Level> = Vec::new();
        for text in levels.split(',') {
            let level = factor.level(text).map_err(wrong)?;
            if chosen.contains(&level) {
                return Err(wrong(format!("level {level} is there twice")));
            }
            chosen.push(level);
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
            let factor = factor.ok_or_else(|| wrong(self.no_factor(name)))?;
            let level = factor.level(text).map_err(wrong)?;
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

    /// The levels that are declared for a factor; none for one that is not, or whose levels are numbers or depend on the machine.
    pub fn levels_of(&self, factor: &str) -> &'static [&'static str] {
        match self.factor(factor).map(|it| &it.levels) {
            Some(Levels::Named { all, .. }) => all,
            _ => &[],
        }
    }

    fn factor(&self, name: &str) -> Option<&'static Varied> {
        self.factors.iter().find(|factor| factor.name == name)
    }

    fn no_factor(&self, name: &str) -> String {
        let names: Vec<&str> = self.factors.iter().map(|factor| factor.name).collect();
        format!(
            "there is no factor {name:?}: {}",
            alternatives(name, &names)
        )
    }
}

pub(super) fn cell_word(cell: &Cell) -> String {
    format!("--cell={}", cell.to_string().replace(' ', ","))
}

/// `--factor=NAME=LEVEL,LEVEL`, several times where one would be longer than a line of a mail.
pub(super) fn factor_words(factor: &Factor) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for level in &factor.levels {
        let level = level.to_string();
        match words.last_mut() {
            Some(word) if word.len() + 1 + level.len() <= MAX_WORD_BYTES => {
                word.push(',');
                word.push_str(&level);
            }
            _ => words.push(format!("--factor={}={level}", factor.name)),
        }
    }
    words
}

fn wrong(option: &'static str, given: &str, expected: String) -> ArgumentError {
    ArgumentError::Factor {
        option,
        given: given.to_owned(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_levels_of_a_factor_are_several_words() {
        let words = |levels: &[&str]| factor_words(&Factor::new("policy", levels.iter().copied()));
        assert_eq!(words(&["stock", "auto"]), ["--factor=policy=stock,auto"]);
        let many = [
            "stock",
            "limit",
            "limit_topology",
            "coarse_llc",
            "coarse_node",
        ];
        assert_eq!(
            words(&many),
            [
                "--factor=policy=stock,limit,limit_topology,coarse_llc",
                "--factor=policy=coarse_node"
            ]
        );
    }
}
