//! How a run was made, and what differs in that between two.

use std::collections::BTreeMap;

use nearfar_runs::export::Whole;
use nearfar_runs::{Cell, Host, Metric, RunTarget};
use serde_json::{Value, json};

use crate::difference::{Difference, Kind, leaves};
use crate::side::Side;

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
