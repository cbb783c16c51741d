//! The same command under A and under B: what it answered, side by side.
//!
//! ```text
//! runs of A ─┐    all JSON ──► values: path, A's values, B's values, ratio and verdict of numbers
//!            ├──►
//! runs of B ─┘    other text ► lines that differ, and how far each side agrees with itself
//! ```

mod lines;
mod significance;
mod table;
mod values;

use nearfar_machine::Emulation;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use lines::{Line, LineDiff};
pub use significance::Verdict;
pub use table::document;
pub use values::{Change, Selection, SelectionError, Value, numbers_of};

/// One run of the command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// How long the command took, in seconds of the host's clock, without the boot.
    pub elapsed_s: f64,
    /// Its exit code; 128 and the signal's number for one that was killed.
    pub exit_code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
}

/// All runs of one side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Side {
    /// What was varied, by name: `kernel`, `append`, `delay`, `machine`.
    pub settings: BTreeMap<String, String>,
    /// The label of the machine it ran on.
    pub emulation: Option<Emulation>,
    /// Its runs, in order.
    pub runs: Vec<Run>,
}

impl Side {
    /// `kernel=6.1 append="numa=fake=4"`: what makes this side.
    pub fn name(&self) -> String {
        let quoted = |value: &str| {
            if value.contains(' ') {
                format!("\"{value}\"")
            } else {
                value.to_owned()
            }
        };
        let parts: Vec<String> = self
            .settings
            .iter()
            .map(|(key, value)| format!("{key}={}", quoted(value)))
            .collect();
        parts.join(" ")
    }
}

/// What two sides answered.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    pub command: Vec<String>,
    /// The first side.
    pub a: Side,
    /// The second side.
    pub b: Side,
    /// The commands' run time, compared.
    pub elapsed: Value,
    /// The values in the answers, where every run printed JSON; those that differ first. Without a selection equal
    /// values are only counted.
    pub values: Vec<Value>,
    /// How many numbers differ between any two runs, the run time among them: each is one of so many that may differ by chance.
    pub compared_numbers: usize,
    /// The least number of runs of each side that can give a significant difference of one of so many numbers.
    pub runs_needed: usize,
    /// Values that are equal in all runs.
    pub equal_values: usize,
    /// The lines of the answers, where they are not JSON.
    pub lines: Option<LineDiff>,
}

impl Comparison {
    /// Compares. `selection` names the values to be shown, equal ones too; an empty one shows what differs.
    pub fn of(command: Vec<String>, a: Side, b: Side, selection: &Selection) -> Self {
        let times = |side: &Side| {
            side.runs
                .iter()
                .map(|run| serde_json::json!(run.elapsed_s))
                .collect()
        };
        let mut elapsed = Value::new("elapsed_s".to_owned(), times(&a), times(&b));
        let (mut values, equal_values, lines) = match values::compare(&a, &b, selection) {
            Some((values, equal)) => (values, equal, None),
            None => (Vec::new(), 0, Some(lines::compare(&a, &b))),
        };
        let compared_numbers = values
            .iter()
            .chain([&elapsed])
            .filter(|value| value.is_compared())
            .count();
        significance::judge(values.iter_mut().chain([&mut elapsed]));
        let runs_needed = significance::runs_needed(compared_numbers);
        Self {
            command,
            a,
            b,
            elapsed,
            values,
            compared_numbers,
            runs_needed,
            equal_values,
            lines,
        }
    }
}
