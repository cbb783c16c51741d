//! Which tasks were moved how far, and on which nodes they spent their time.

use std::borrow::Cow;
use std::collections::BTreeSet;

use nearfar_machine::{Known, NodeId};
use nearfar_trace::Traced;
use nearfar_trace::migrations::{ClassCounts, Migrations, NodeTime, NumaBalancing, TaskMoves};

use super::{MAX_NAMED, head, not_named, percent, place};
use crate::amount::count;
use crate::document::{Align, Document, Table, Text, cells};
use crate::style::Role::{Dim, Far, Heading, Local, Middling, Near, Subject, Warning};

/// Above so many nodes a matrix no longer fits a line.
const MAX_MATRIX_NODES: usize = 9;

/// Migrations by class, by pair of nodes and by task, and where tasks spent their time.
pub fn migrations(traced: &Traced<Migrations>) -> Document {
    let found = &traced.answer;
    let mut out = head(traced);
    if found.gaps > 0 {
        let gaps = count(found.gaps as usize, "migration");
        let text = "did not begin where the task was last seen: moves in between are missing";
        out.paragraph(Warning.text(format!("{gaps} {text}")));
    }
    out.heading("migrations", count(found.tasks.len(), "task"));
    out.table(classes(&found.migrations, found.caches_known));
    out.heading("from, to", "");
    matrix(found, &mut out);
    out.heading("time", "on CPUs of each node: running, waiting or asleep");
    for (place, text) in times(&found.time) {
        item(&mut out, &place, text.into());
    }
    out.heading("NUMA balancing", "what it did meanwhile");
    balancing(&found.numa_balancing, found.migrations.cross_node, &mut out);
    out.heading("tasks", not_named(found.tasks.len()));
    out.table(tasks(&found.tasks));
    out
}

/// What it did to the tasks, and what the whole machine shows, which is not theirs alone.
fn balancing(found: &NumaBalancing, cross_node: u64, out: &mut Document) {
    let pages = |pages: u64| count(pages as usize, "page");
    let unknown = |reason: &Cow<'_, str>| Warning.text(format!("unknown: {reason}"));
    let tasks = match &found.tasks {
        Known::Yes(balanced) => Text::from(format!(
            "ordered {} of the {cross_node} cross-node migrations; moved {} to where they were used",
            balanced.task_moves,
            pages(balanced.pages_migrated)
        )),
        Known::No { unknown_reason } => unknown(unknown_reason),
    };
    let machine = match &found.machine {
        Known::Yes(counts) => Dim.text(format!(
            "{}, {} of them local; {} moved; {} marked for a hint fault",
            count(counts.hint_faults as usize, "hint fault"),
            counts.hint_faults_local,
            pages(counts.pages_migrated),
            pages(counts.pte_updates)
        )),
        Known::No { unknown_reason } => unknown(unknown_reason),
    };
    item(out, "these tasks", tasks);
    item(out, "the whole machine", machine);
}

fn classes(counts: &ClassCounts, caches_known: bool) -> Table {
    let (cache, remark) = match caches_known {
        true => (Near, ""),
        false => (Dim, "unknown here; counted as same node"),
    };
    let rows = [
        (Local, "same core", counts.same_core, ""),
        (cache, "same last-level cache", counts.same_cache, remark),
        (Middling, "same node", counts.same_node, ""),
        (Far, "cross node", counts.cross_node, ""),
        (
            Warning,
            "unknown",
            counts.unknown,
            "a CPU's node is unknown",
        ),
        (Heading, "all", counts.total(), ""),
    ];
    let mut table = Table::of(["", ">", ""]);
    for (role, class, number, remark) in rows {
        if role != Warning || number > 0 {
            table.row(cells![class, role.text(number), Dim.text(remark)]);
        }
    }
    table
}

fn matrix(found: &Migrations, out: &mut Document) {
    let nodes: BTreeSet<Option<NodeId>> = found
        .matrix
        .iter()
        .flat_map(|cell| [cell.from, cell.to])
        .collect();
    if nodes.is_empty() {
        return out.paragraph("no task was moved");
    }
    let figure = |from, to, number: u64| if from == to { Local } else { Far }.text(number);
    if nodes.len() > MAX_MATRIX_NODES {
        let mut table = Table::of(["from", "to", ">migrations"]);
        for cell in &found.matrix {
            let number = figure(cell.from, cell.to, cell.migrations);
            table.row(cells![place(cell.from), place(cell.to), number]);
        }
        return out.table(table);
    }
    let at = |from, to| {
        let cell = found
            .matrix
            .iter()
            .find(|cell| (cell.from, cell.to) == (from, to));
        figure(from, to, cell.map_or(0, |cell| cell.migrations))
    };
    let mut columns = vec![(String::new(), Align::Left)];
    columns.extend(
        nodes
            .iter()
            .map(|to| (format!("to {}", place(*to)), Align::Right)),
    );
    let mut table = Table::new(&columns);
    for &from in &nodes {
        let figures = nodes.iter().map(|&to| at(from, to));
        table.row([Text::from(place(from))].into_iter().chain(figures));
    }
    out.table(table);
}

/// Place and text, node by node.
fn times(time: &[NodeTime]) -> Vec<(String, String)> {
    let all: f64 = time.iter().map(|spent| spent.seconds).sum();
    let text = |spent: &NodeTime| {
        let share = percent(spent.seconds / all.max(1e-9));
        (
            place(spent.node),
            format!("{:.3} s, {share}", spent.seconds),
        )
    };
    time.iter().map(text).collect()
}

fn tasks(tasks: &[TaskMoves]) -> Table {
    let mut table = Table::of(["task", ">tid", ">moved", ">cross node", "time on"]);
    for task in tasks.iter().take(MAX_NAMED) {
        let time = times(&task.time)
            .into_iter()
            .map(|(place, text)| format!("{place} {text}"));
        table.row(cells![
            Subject.text(&task.name),
            task.tid,
            task.migrations.total(),
            task.migrations.cross_node,
            Dim.text(time.collect::<Vec<_>>().join("; ")),
        ]);
    }
    table
}

fn item(out: &mut Document, name: &str, text: Text) {
    out.labelled(Subject.text(format!("{name}: ")), text);
}
