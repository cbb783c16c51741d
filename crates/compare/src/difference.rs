//! What differs in how two runs were made.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Kinds of differences. Each has to be allowed, or the sides are not compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The host, its nodes, distances, CPUs or caches.
    Machine,
    /// The kernel's release, build or command line.
    Kernel,
    /// The emulated machine, its delays or its cache; or emulated and not.
    Emulation,
    /// What decides what a sample is.
    Parameters,
    /// A metric's unit or direction.
    Metrics,
}

impl Kind {
    pub fn all() -> [Self; 5] {
        [
            Self::Machine,
            Self::Kernel,
            Self::Emulation,
            Self::Parameters,
            Self::Metrics,
        ]
    }

    /// Those that are compared as values.
    pub(crate) const OF_SETUP: [Self; 4] = [
        Self::Machine,
        Self::Kernel,
        Self::Emulation,
        Self::Parameters,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "machine",
            Self::Kernel => "kernel",
            Self::Emulation => "emulation",
            Self::Parameters => "parameters",
            Self::Metrics => "metrics",
        })
    }
}

/// One difference between the baseline and another side.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Difference {
    /// The other side's name.
    pub side: String,
    /// Its kind.
    pub kind: Kind,
    /// What differs, as a path: `command_line`, `delays.pairs[1].delay_ns`.
    pub name: String,
    /// What the baseline has; `null` for nothing.
    pub a: Value,
    /// What the other side has.
    pub b: Value,
}

impl fmt::Display for Difference {
    /// `kernel release: "6.1.0" in the baseline, "6.12.0" in run 8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            side,
            kind,
            name,
            a,
            b,
        } = self;
        let space = if name.is_empty() { "" } else { " " };
        let (a, b) = (Short(a), Short(b));
        write!(f, "{kind}{space}{name}: {a} in the baseline, {b} in {side}")
    }
}

/// A value on one line, cut where it is long.
struct Short<'a>(&'a Value);

/// Characters of a value that a sentence shows.
const MAX_SHOWN: usize = 60;

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            Value::Null => "nothing".to_owned(),
            other => other.to_string(),
        };
        match text.char_indices().nth(MAX_SHOWN) {
            Some((end, _)) => write!(f, "{}...", &text[..end]),
            None => f.write_str(&text),
        }
    }
}

/// Every leaf in which two values differ, by its path.
pub fn leaves(path: &str, a: &Value, b: &Value, found: &mut Vec<(String, Value, Value)>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let only_b = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(only_b) {
                let below = match path {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                let of = |side: &serde_json::Map<String, Value>| {
                    side.get(key).cloned().unwrap_or(Value::Null)
                };
                leaves(&below, &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                leaves(&format!("{path}[{index}]"), a, b, found);
            }
        }
        // A number that was written as 2.0 and read as 2 is the same.
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => {}
        (a, b) if a == b => {}
        (a, b) => found.push((path.to_owned(), counted(a), counted(b))),
    }
}

/// A list by its length: its elements cannot be matched with those of one of another length.
fn counted(value: &Value) -> Value {
    match value {
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            Value::String(format!("{} entries", items.len()))
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_leaves_with_their_paths() {
        let a = json!({"load": 60, "cells": [{"cpu": 0}, {"cpu": 1}], "steps": 2.0, "old": 1});
        let b = json!({"load": 80, "cells": [{"cpu": 0}, {"cpu": 2}], "steps": 2, "cpus": [1]});
        let mut found = Vec::new();
        leaves("", &a, &b, &mut found);
        let paths: Vec<&str> = found.iter().map(|(path, ..)| path.as_str()).collect();
        assert_eq!(paths, ["cells[1].cpu", "load", "old", "cpus"]);
        found.clear();
        leaves("nodes", &json!([{"id": 0}]), &json!([{}, {}]), &mut found);
        assert_eq!(
            found,
            [("nodes".to_owned(), json!("1 entries"), json!("2 entries"))]
        );
    }
}
