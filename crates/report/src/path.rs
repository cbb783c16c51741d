//! Which path of an NVMe subsystem I/O takes from a CPU.

use nearfar_machine::{IoPolicy, Known, NodeId};
use nearfar_placement::path::{NamespacePaths, PathAnswer, PathView, PolicyChoice, Standing};

use crate::amount::or;
use crate::document::{Document, Table, Text, cells};
use crate::style::Role::{Dim, Far, Heading, Local, Middling, Plain, Subject, Warning};

/// The paths to each namespace as seen from the CPU, and what each policy would choose and why.
pub fn document(answer: &PathAnswer) -> Document {
    let node = answer
        .node
        .map_or_else(|| "on no node".to_owned(), |node| format!("node {node}"));
    let policy = iopolicy(&answer.policy);
    let remark = format!("from CPU {}, {node}; {policy}", answer.cpu);
    let mut out = Document::titled(&answer.subsystem, remark);
    if answer.namespaces.is_empty() {
        out.paragraph("the subsystem has no namespaces");
    }
    for namespace in &answer.namespaces {
        out.heading(&namespace.namespace, "");
        out.table(views(namespace));
        out.gap();
        out.table(choices(&namespace.choices));
    }
    out
}

/// `iopolicy numa`, or why it is unknown.
pub(crate) fn iopolicy(policy: &Known<IoPolicy>) -> String {
    match policy {
        Known::Yes(policy) => format!("iopolicy {policy}"),
        Known::No { unknown_reason } => format!("iopolicy unknown: {unknown_reason}"),
    }
}

/// The node the kernel gives a device.
pub(crate) fn kernel_node(node: &Known<Option<NodeId>>) -> Text {
    match node {
        Known::Yes(Some(node)) => Heading.text(node),
        Known::Yes(None) => Warning.text("none"),
        Known::No { .. } => Dim.text("?"),
    }
}

fn views(namespace: &NamespacePaths) -> Table {
    let mut table = Table::of([
        "path",
        "through",
        "state",
        ">kernel node",
        ">distance",
        "where it is",
        "",
    ]);
    for path in &namespace.paths {
        table.row(view(path, namespace.nearest.contains(&path.name)));
    }
    table
}

fn view(path: &PathView, is_nearest: bool) -> [Text; 7] {
    let state = match path.standing {
        Standing::Optimized => Local.text("optimized"),
        Standing::NonOptimized => Middling.text("non-optimized"),
        Standing::Unusable => Far.text("unusable"),
    };
    let remarks = is_nearest
        .then_some("nearest")
        .into_iter()
        .chain(path.reason.as_deref());
    let remarks = remarks.collect::<Vec<_>>().join("; ");
    let (distance, remark) = if is_nearest {
        (Local, Local)
    } else {
        (Plain, Dim)
    };
    cells![
        Subject.text(&path.name),
        &path.controller,
        state,
        kernel_node(&path.kernel_node),
        distance.text(or(path.distance, "?")),
        Dim.text(or(path.locality.as_ref(), "")),
        remark.text(remarks),
    ]
}

fn choices(choices: &[PolicyChoice]) -> Table {
    let mut table = Table::of(["policy", "takes", "reason"]);
    for choice in choices {
        let (role, now) = if choice.current {
            (Heading, " (now)")
        } else {
            (Plain, "")
        };
        let takes = match (choice.paths.as_slice(), choice.certain) {
            ([], _) => "none".to_owned(),
            (paths, true) => paths.join(", "),
            (paths, false) => format!("one of {}", paths.join(", ")),
        };
        table.row(cells![
            role.text(format!("{}{now}", choice.policy)),
            Subject.text(takes),
            Dim.text(&choice.reason),
        ]);
    }
    table
}
