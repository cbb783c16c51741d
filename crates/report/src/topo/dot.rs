//! The machine as graphviz text: nodes, the devices on them, and an edge a pair of nodes with its distance.

use std::fmt::Write as _;

use nearfar_machine::{Machine, Node};

use super::distances::both_ways;
use super::{node_of, notable};
use crate::amount::{bytes, or};
use crate::document::clean;
use crate::summary::{self, Packages};

/// The machine for `dot -Tsvg`. Both directions of a distance are one edge when they agree.
pub fn dot(machine: &Machine) -> String {
    let mut out = String::from("graph machine {\n");
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "  label={};", quoted(&summary::name(machine)));
    out.push_str("  layout=neato; overlap=false; splines=true; fontname=\"sans-serif\";\n");
    out.push_str("  node [shape=box, style=\"rounded,filled\", fillcolor=\"#eef3f8\", fontname=\"sans-serif\"];\n");
    out.push_str("  edge [fontname=\"sans-serif\", fontsize=10, color=\"#8899aa\"];\n");
    let packages = Packages::of(machine);
    for node in &machine.nodes {
        let dashed = if node.online {
            ""
        } else {
            ", style=\"rounded,dashed\""
        };
        let _ = writeln!(
            out,
            "  n{} [label={}{dashed}];",
            node.id,
            quoted(&label(machine, &packages, node))
        );
    }
    let devices = machine.pci.get().into_iter().flatten();
    for device in devices.filter(|device| notable(device)) {
        let what = device.driver.as_ref().or(device.class_name.as_ref());
        let names = machine.names_on(device.address).join(" ");
        let mut lines = vec![device.address.to_string(), names, or(what, "")];
        lines.retain(|line| !line.is_empty());
        let (id, name) = (quoted(&lines[0]), quoted(&lines.join("\n")));
        let _ = writeln!(
            out,
            "  {id} [shape=component, style=filled, fillcolor=\"#fff4dd\", fontsize=9, label={name}];"
        );
        if let Some(node) = node_of(device).filter(|&node| machine.node(node).is_some()) {
            let _ = writeln!(out, "  n{node} -- {id} [style=bold];");
        }
    }
    edges(machine, &mut out);
    out.push_str("}\n");
    out
}

fn label(machine: &Machine, packages: &Packages, node: &Node) -> String {
    let mut label = format!("node {}", node.id);
    let _ = match node.cpus.get() {
        None => write!(label, "\nCPUs unknown"),
        Some(cpus) if cpus.is_empty() => write!(label, "\nno CPUs"),
        Some(cpus) => write!(label, "\nCPUs {cpus}"),
    };
    let package = packages.on(machine, node);
    if !package.is_empty() {
        let _ = write!(label, "\npackage {package}");
    }
    let _ = match node.total_bytes() {
        Some(0) => write!(label, "\nno memory"),
        Some(size) => write!(label, "\n{}", bytes(size)),
        None => Ok(()),
    };
    label
}

fn edges(machine: &Machine, out: &mut String) {
    let ids: Vec<_> = machine.nodes.iter().map(|node| node.id).collect();
    for (index, &from) in ids.iter().enumerate() {
        for &to in &ids[index + 1..] {
            let Some(label) = both_ways(machine, from, to) else {
                continue;
            };
            let distance = machine.distance(from, to).or(machine.distance(to, from));
            let length = distance.map_or(2.0, |it| f64::from(it.0.min(255)) / 10.0);
            let label = quoted(&label);
            let _ = writeln!(out, "  n{from} -- n{to} [label={label}, len={length:.1}];");
        }
    }
}

/// A quoted string of the DOT language: backslashes and quotes escaped, lines separated by `\n`.
fn quoted(text: &str) -> String {
    let lines = text
        .split('\n')
        .map(|line| clean(line).replace('\\', "\\\\").replace('"', "\\\""));
    format!("\"{}\"", lines.collect::<Vec<_>>().join("\\n"))
}
