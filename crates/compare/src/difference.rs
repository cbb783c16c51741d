//! What differs in how two runs were made, and why sides cannot be compared.

use std::collections::BTreeMap;
use std::fmt;

use nearfar_runs::export::Whole;
use nearfar_runs::{Cell, Host, Metric, RunTarget};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::side::Side;

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

/// How a run was made, by kind.
///
/// Machine, kernel and emulation are those of the systems that took the samples: of the targets where there are any, by
/// their levels, else of the host.
pub(crate) fn setup(whole: &Whole) -> BTreeMap<Kind, Value> {
    let detail = &whole.detail;
    let host;
    let systems = match detail.targets.as_slice() {
        [] => {
            host = [host_of(whole)];
            &host[..]
        }
        targets => targets,
    };
    let of_systems = |of: fn(&RunTarget) -> Value| match systems {
        [system] if system.levels == Cell::new() => of(system),
        systems => {
            let of_levels = |it: &RunTarget| (it.levels.to_string(), of(it));
            Value::Object(systems.iter().map(of_levels).collect())
        }
    };
    [
        (Kind::Machine, of_systems(machine)),
        (Kind::Kernel, of_systems(kernel)),
        (Kind::Emulation, of_systems(emulation)),
        (Kind::Parameters, detail.parameters.clone()),
    ]
    .into()
}

/// The host of a run that took its samples itself, as the target of all cells.
fn host_of(whole: &Whole) -> RunTarget {
    let (run, detail) = (&whole.run, &whole.detail);
    RunTarget {
        levels: Cell::new(),
        fingerprint: run.fingerprint.clone(),
        host: Host {
            name: run.host.clone(),
            kernel: run.kernel.clone(),
            kernel_version: detail.kernel_version.clone(),
            kernel_command_line: detail.kernel_command_line.clone(),
        },
        emulation: run.emulation.clone(),
        machine: whole.machine.clone(),
    }
}

fn machine(system: &RunTarget) -> Value {
    let of_machine = |key: &str| system.machine.get(key).cloned().unwrap_or_default();
    let origin = of_machine("origin");
    json!({
        "host": system.host.name,
        "architecture": origin.get("architecture"),
        "product": origin.get("product"),
        "overlays": origin.get("overlays"),
        "nodes": nodes(&of_machine("nodes")),
        "distances": of_machine("distances"),
        "cpus": of_machine("cpus"),
        "caches": of_machine("caches"),
    })
}

fn kernel(system: &RunTarget) -> Value {
    json!({
        "release": system.host.kernel,
        "build": system.host.kernel_version,
        "command_line": command_line(&system.host.kernel_command_line),
    })
}

/// Nodes without what changes as they are used.
fn nodes(nodes: &Value) -> Value {
    let one = |node: &Value| {
        let of = |key: &str| node.get(key).cloned().unwrap_or_default();
        json!({"id": of("id"), "online": of("online"), "cpus": of("cpus")})
    };
    match nodes {
        Value::Array(nodes) => nodes.iter().map(one).collect(),
        other => other.clone(),
    }
}

/// The words that the kernel obeys: those of the lab describe the emulation, which is a kind of its own, and the image is named
/// by its release.
fn command_line(text: &str) -> String {
    let words = text.split_whitespace();
    let words = words.filter(|word| {
        !["nearfar.", "BOOT_IMAGE="]
            .iter()
            .any(|it| word.starts_with(it))
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The emulation without its kernel, which is a kind of its own, and without the label, which says the same as the other fields.
fn emulation(system: &RunTarget) -> Value {
    let mut emulation = serde_json::to_value(&system.emulation).unwrap_or_default();
    if let Value::Object(fields) = &mut emulation {
        fields.remove("kernel");
        fields.remove("kernel_arguments");
        if fields.contains_key("machine") {
            fields.remove("label");
        }
    }
    emulation
}

/// What differs in how both were made. Of a table only the kernel and the label of the emulated machine are known.
pub(crate) fn setup_differences(a: &Side, b: &Side) -> Vec<Difference> {
    let mut found = Vec::new();
    let difference = |kind, (name, of_a, of_b): (String, Value, Value)| Difference {
        side: b.name.clone(),
        kind,
        name,
        a: of_a,
        b: of_b,
    };
    for kind in Kind::OF_SETUP {
        let mut of_kind = Vec::new();
        match (a.setup.get(&kind), b.setup.get(&kind)) {
            (Some(of_a), Some(of_b)) => leaves("", of_a, of_b, &mut of_kind),
            _ if kind == Kind::Kernel => {
                if let (Some(of_a), Some(of_b)) = (&a.kernel, &b.kernel) {
                    leaves("release", &json!(of_a), &json!(of_b), &mut of_kind);
                }
            }
            _ if kind == Kind::Emulation => {
                let label = |side: &Side| json!(side.emulation.as_ref().map(ToString::to_string));
                leaves("", &label(a), &label(b), &mut of_kind);
            }
            _ => {}
        }
        found.extend(of_kind.into_iter().map(|it| difference(kind, it)));
    }
    found
}

/// Metrics of one name whose unit or direction differ. A table that names only directions has no units.
pub(crate) fn metric_differences(a: &Side, b: &Side) -> Vec<Difference> {
    let mut found = Vec::new();
    for of_a in &a.definitions.metrics {
        let metrics = b.definitions.metrics.iter();
        for of_b in metrics.filter(|it| it.name == of_a.name) {
            let has_units = !of_a.unit.is_empty() && !of_b.unit.is_empty();
            if of_a.better != of_b.better || (has_units && of_a.unit != of_b.unit) {
                let of = |it: &Metric| json!({"unit": it.unit, "better": it.better});
                found.push(Difference {
                    side: b.name.clone(),
                    kind: Kind::Metrics,
                    name: of_a.name.clone(),
                    a: of(of_a),
                    b: of(of_b),
                });
            }
        }
    }
    found
}

/// What is wrong with a file, or with the choice of sides.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A CSV file that does not read as one.
    #[error("cannot read it as CSV: {0}")]
    Csv(#[from] csv::Error),
    /// A Parquet file that does not read as one.
    #[error("cannot read it as Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A table says nothing of the direction of its metrics, and no other side does.
    #[error("it does not say which columns are metrics and which are factors")]
    NoMetrics,
    /// A table with several runs, of which none was chosen.
    #[error("it holds the runs {}; choose one with FILE:RUN", .runs.join(", "))]
    SeveralRuns { runs: Vec<String> },
    /// A run that is not in the file.
    #[error("it holds no run {run}; it has {}", .runs.join(", "))]
    NoSuchRun { run: String, runs: Vec<String> },
    /// Anything else that is wrong with a file, or with the choice of sides.
    #[error("{0}")]
    Wrong(String),
    /// Differences that are not the point of the comparison.
    #[error("{}", refusal(.0))]
    Differ(Vec<Difference>),
}

impl CompareError {
    pub(crate) fn is_repeated(run: &Side) -> Self {
        Self::Wrong(format!("{} is given twice", run.name))
    }
}

/// At most so many differences of one kind are named in a message.
const MAX_NAMED: usize = 6;

fn refusal(differences: &[Difference]) -> String {
    let mut lines = vec!["the sides differ in more than what was measured:".to_owned()];
    let mut kinds: Vec<_> = differences.iter().map(|it| it.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in &kinds {
        let of_kind: Vec<_> = differences.iter().filter(|it| it.kind == *kind).collect();
        lines.extend(of_kind.iter().take(MAX_NAMED).map(|it| format!("  {it}")));
        if let more @ 1.. = of_kind.len().saturating_sub(MAX_NAMED) {
            lines.push(format!("  {kind}: {more} more"));
        }
    }
    let is_steps = |it: &&Difference| it.kind == Kind::Parameters && it.name == "steps";
    if let Some(steps) = differences.iter().find(is_steps) {
        lines.push(format!(
            "for a run of bench probe with as many steps as the baseline: --steps {}",
            steps.a
        ));
    }
    let options: Vec<String> = kinds
        .iter()
        .map(|kind| format!("--across {kind}"))
        .collect();
    lines.push(format!(
        "to compare them all the same: {}",
        options.join(" ")
    ));
    lines.join("\n")
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
