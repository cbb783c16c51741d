//! What is varied: factors, their levels, and a cell, which is one level of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// One value that a factor takes. Whole numbers, names and switches; a fraction is written as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Level {
    Switch(bool),
    /// A whole number: a node, a percentage, a size in bytes.
    Number(i64),
    /// A name, such as "floating".
    Name(String),
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(on) => f.write_str(if *on { "on" } else { "off" }),
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl From<bool> for Level {
    fn from(on: bool) -> Self {
        Self::Switch(on)
    }
}

impl From<i64> for Level {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Level {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for Level {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for Level {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

/// What is varied, and the levels it takes, in the order in which tables show them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Factor {
    /// Its name in snake_case; a column of tables and exports.
    pub name: String,
    pub levels: Vec<Level>,
}

impl Factor {
    pub fn new<L: Into<Level>>(
        name: impl Into<String>,
        levels: impl IntoIterator<Item = L>,
    ) -> Self {
        Self {
            name: name.into(),
            levels: levels.into_iter().map(Into::into).collect(),
        }
    }

    /// The factors of these cells, each with the levels that occur, in ascending order.
    pub fn of_cells(cells: &[Cell]) -> Vec<Self> {
        let mut levels: BTreeMap<&str, BTreeSet<&Level>> = BTreeMap::new();
        for (factor, level) in cells.iter().flat_map(Cell::levels) {
            levels.entry(factor).or_default().insert(level);
        }
        let factor = |(name, levels): (&str, BTreeSet<&Level>)| Self {
            name: name.to_owned(),
            levels: levels.into_iter().cloned().collect(),
        };
        levels.into_iter().map(factor).collect()
    }
}

/// One combination: the level of each factor, by the factor's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cell(BTreeMap<String, Level>);

impl Cell {
    /// A cell without factors.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with one more factor at a level.
    #[must_use]
    pub fn with(mut self, factor: impl Into<String>, level: impl Into<Level>) -> Self {
        self.0.insert(factor.into(), level.into());
        self
    }

    pub fn level(&self, factor: &str) -> Option<&Level> {
        self.0.get(factor)
    }

    /// The level of a factor as text; empty where the cell does not have the factor.
    pub fn text(&self, factor: &str) -> String {
        self.level(factor)
            .map_or_else(String::new, Level::to_string)
    }

    /// Factors and levels, by the factor's name.
    pub fn levels(&self) -> impl Iterator<Item = (&str, &Level)> {
        self.0
            .iter()
            .map(|(factor, level)| (factor.as_str(), level))
    }

    /// The same with those of its factors only.
    #[must_use]
    pub fn only(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let wanted = self.levels().filter(|(factor, _)| is_wanted(factor));
        wanted.fold(Self::new(), |cell, (factor, level)| {
            cell.with(factor, level.clone())
        })
    }

    /// Every combination of the factors' levels; the last factor varies fastest.
    pub fn all(factors: &[Factor]) -> Vec<Self> {
        factors.iter().fold(vec![Self::new()], |cells, factor| {
            let with_each = |cell: &Self| -> Vec<Self> {
                factor
                    .levels
                    .iter()
                    .map(|level| cell.clone().with(&factor.name, level.clone()))
                    .collect()
            };
            cells.iter().flat_map(with_each).collect()
        })
    }
}

impl fmt::Display for Cell {
    /// `cpus=floating memory=0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (factor, level)) in self.levels().enumerate() {
            write!(f, "{}{factor}={level}", if index > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cells_are_every_combination_with_the_last_factor_fastest() {
        let factors = [
            Factor::new("balancing", [false, true]),
            Factor::new("memory", ["0", "1", "floating"]),
        ];
        let cells: Vec<String> = Cell::all(&factors)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(cells.len(), 6);
        assert_eq!(cells[0], "balancing=off memory=0");
        assert_eq!(cells[1], "balancing=off memory=1");
        assert_eq!(cells[5], "balancing=on memory=floating");
        assert_eq!(
            Cell::all(&[]),
            [Cell::new()],
            "an experiment that varies nothing has one cell"
        );
    }

    #[test]
    fn a_level_keeps_its_type_in_json() {
        let cell = Cell::new().with("a", true).with("b", 3u32).with("c", "3");
        let text = serde_json::to_string(&cell).unwrap();
        assert_eq!(text, r#"{"a":true,"b":3,"c":"3"}"#);
        assert_eq!(serde_json::from_str::<Cell>(&text).unwrap(), cell);
    }
}
