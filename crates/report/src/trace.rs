//! What a trace saw: whose NVMe commands took which path, and who was moved where.

use std::collections::BTreeSet;

use nearfar_machine::{Known, NodeId};
use nearfar_trace::migrations::{ClassCounts, Migrations, NodeTime, NumaBalancing, TaskMoves};
use nearfar_trace::nvme::{Namespace, NodeTraffic, NvmeAnswer, Submitter, Through};
use nearfar_trace::{Ended, Traced};

use crate::amount::count;
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// How many processes or tasks a table names; JSON has all.
const NAMED: usize = 8;
/// Above so many nodes a matrix no longer fits a line.
const WIDEST_MATRIX: usize = 9;

/// Who submitted NVMe commands where, which controller served them, and whether that was the nearest.
pub fn nvme(traced: &Traced<NvmeAnswer>, style: &Style) -> String {
    let answer = &traced.answer;
    let mut out = head(traced, style);
    for namespace in &answer.namespaces {
        out.push_str(&of_namespace(namespace, style));
    }
    if answer.namespaces.is_empty() {
        out.push_str(&line(
            style,
            Role::Plain,
            "The machine has no NVMe namespace to trace.",
        ));
    }
    if !answer.unplaced.is_empty() {
        out.push_str(&heading(
            style,
            "elsewhere",
            "disks that the machine's description does not have",
        ));
        let mut grid = Grid::new(&[
            ("disk", Side::Left),
            ("through", Side::Left),
            ("commands", Side::Right),
        ]);
        for unplaced in &answer.unplaced {
            let disk = if unplaced.disk.is_empty() {
                "none"
            } else {
                &unplaced.disk
            };
            grid.row(vec![
                disk.into(),
                (&unplaced.controller).into(),
                number(unplaced.commands.total()),
            ]);
        }
        out.push_str(&grid.render(style));
    }
    if !answer.submitters.is_empty() {
        out.push_str(&submitters(&answer.submitters, style));
    }
    if answer.unreadable > 0 {
        let text = format!(
            "{} could not be understood",
            count(answer.unreadable as usize, "event")
        );
        out.push_str(&line(style, Role::Warning, &text));
    }
    whole(out)
}

fn of_namespace(namespace: &Namespace, style: &Style) -> String {
    let policy = match &namespace.policy {
        Known::Yes(policy) => format!("iopolicy {policy}"),
        Known::No { unknown_reason } => format!("iopolicy unknown: {unknown_reason}"),
    };
    let mut out = heading(
        style,
        &namespace.namespace,
        &format!("{}; {policy}", namespace.subsystem),
    );
    let columns = [
        ("submitted on", Side::Left),
        ("CPUs", Side::Left),
        ("served by", Side::Left),
        ("path", Side::Left),
        ("distance", Side::Right),
        ("reads", Side::Right),
        ("writes", Side::Right),
        ("flushes", Side::Right),
        ("others", Side::Right),
        ("", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    for node in &namespace.nodes {
        rows(&mut grid, node);
    }
    out.push_str(&grid.render(style));
    out.push('\n');
    for controller in &namespace.controllers {
        let place = controller
            .locality
            .as_ref()
            .map_or_else(|| "node unknown".to_owned(), ToString::to_string);
        let kernel = match &controller.kernel_node {
            Known::Yes(None) => "; for the kernel on no node (-1)",
            _ => "",
        };
        out.push_str(&item(
            style,
            &controller.controller,
            Role::Plain,
            &format!("{place}{kernel}"),
        ));
    }
    for node in namespace
        .nodes
        .iter()
        .filter(|node| node.commands.total() > 0)
    {
        let (role, text) = share(&node.nearest_share, node.commands.total());
        out.push_str(&item(style, &place(node.node), role, &text));
    }
    if namespace
        .nodes
        .iter()
        .filter(|node| node.commands.total() > 0)
        .count()
        != 1
    {
        let (role, text) = share(&namespace.nearest_share, namespace.commands.total());
        out.push_str(&item(style, "all", role, &text));
    }
    out
}

/// A row for each path that a node used or should have used.
fn rows(grid: &mut Grid, node: &NodeTraffic) {
    if node.commands.total() == 0 {
        grid.row(vec![
            place(node.node).into(),
            "".into(),
            Cell::new(Role::Dim, "nothing"),
        ]);
        return;
    }
    let nearest = |through: &Through| {
        node.nearest
            .get()
            .is_some_and(|nearest| nearest.contains(&through.path))
    };
    let shown = node
        .through
        .iter()
        .filter(|through| through.commands.total() > 0 || nearest(through));
    for (row, through) in shown.enumerate() {
        let first = |text: String| if row == 0 { text } else { String::new() };
        let (near, remark) = match (&node.nearest, nearest(through)) {
            (Known::Yes(_), true) => (Role::Local, "nearest"),
            (Known::Yes(_), false) => (Role::Far, ""),
            (Known::No { .. }, _) => (Role::Plain, ""),
        };
        let kinds = through.commands;
        let distance = through
            .distance
            .map_or_else(|| "?".to_owned(), |distance| distance.to_string());
        grid.row(vec![
            first(place(node.node)).into(),
            first(node.cpus.to_string()).into(),
            Cell::new(Role::Subject, &through.controller),
            (&through.path).into(),
            Cell::new(near, distance),
            number(kinds.reads),
            number(kinds.writes),
            some(kinds.flushes),
            some(kinds.others),
            Cell::new(near, remark),
        ]);
    }
}

fn share(share: &Known<f64>, commands: u64) -> (Role, String) {
    let commands = count(commands as usize, "command");
    match share {
        Known::Yes(share) => {
            let role = if *share > 0.99 {
                Role::Local
            } else {
                Role::Far
            };
            (
                role,
                format!("{} of {commands} took the nearest path", percent(*share)),
            )
        }
        Known::No { unknown_reason } => (
            Role::Warning,
            format!(
                "the share of {commands} that took the nearest path is unknown: {unknown_reason}"
            ),
        ),
    }
}

fn submitters(submitters: &[Submitter], style: &Style) -> String {
    let left_out = submitters.len().saturating_sub(NAMED);
    let remark = if left_out > 0 {
        format!("and {left_out} more, see JSON")
    } else {
        String::new()
    };
    let mut out = heading(style, "submitted by", &remark);
    let columns = [
        ("process", Side::Left),
        ("pid", Side::Right),
        ("commands", Side::Right),
        ("on CPUs", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    for submitter in submitters.iter().take(NAMED) {
        let name = submitter.name.as_deref().unwrap_or("(ended)");
        let cpus = submitter.cpus.to_string();
        grid.row(vec![
            name.into(),
            submitter.pid.to_string().into(),
            number(submitter.commands.total()),
            cpus.into(),
        ]);
    }
    out.push_str(&grid.render(style));
    out
}

/// Who was moved how far, and where tasks spent their time.
pub fn migrations(traced: &Traced<Migrations>, style: &Style) -> String {
    let found = &traced.answer;
    let mut out = head(traced, style);
    if found.gaps > 0 {
        let text = format!(
            "{} not begin where the task was last seen: moves in between are missing",
            if found.gaps == 1 {
                "1 migration did".to_owned()
            } else {
                format!("{} migrations did", found.gaps)
            }
        );
        out.push_str(&line(style, Role::Warning, &text));
    }
    let tasks = count(found.tasks.len(), "task");
    out.push_str(&heading(style, "migrations", &tasks));
    out.push_str(&classes(&found.migrations, found.caches_known, style));
    out.push_str(&heading(style, "from, to", ""));
    out.push_str(&matrix(found, style));
    out.push_str(&heading(
        style,
        "time",
        "on CPUs of each node: running, waiting or asleep",
    ));
    for (place, text) in times(&found.time) {
        out.push_str(&item(style, &place, Role::Plain, &text));
    }
    out.push_str(&heading(style, "NUMA balancing", "what it did meanwhile"));
    out.push_str(&balancing(
        &found.numa_balancing,
        found.migrations.cross_node,
        style,
    ));
    let left_out = found.tasks.len().saturating_sub(NAMED);
    let remark = if left_out > 0 {
        format!("and {left_out} more, see JSON")
    } else {
        String::new()
    };
    out.push_str(&heading(style, "tasks", &remark));
    out.push_str(&of_tasks(&found.tasks, style));
    whole(out)
}

/// What it did to the tasks, and what the whole machine shows, which is not theirs alone.
fn balancing(found: &NumaBalancing, cross_node: u64, style: &Style) -> String {
    let pages = |pages: u64| count(pages as usize, "page");
    let tasks = match &found.tasks {
        Known::Yes(balanced) => (
            Role::Plain,
            format!(
                "ordered {} of the {cross_node} cross-node migrations; moved {} to where they were used",
                balanced.task_moves,
                pages(balanced.pages_migrated)
            ),
        ),
        Known::No { unknown_reason } => (Role::Warning, format!("unknown: {unknown_reason}")),
    };
    let machine = match &found.machine {
        Known::Yes(counts) => (
            Role::Dim,
            format!(
                "{}, {} of them local; {} moved; {} marked for a hint fault",
                count(counts.hint_faults as usize, "hint fault"),
                counts.hint_faults_local,
                pages(counts.pages_migrated),
                pages(counts.pte_updates)
            ),
        ),
        Known::No { unknown_reason } => (Role::Warning, format!("unknown: {unknown_reason}")),
    };
    item(style, "these tasks", tasks.0, &tasks.1)
        + &item(style, "the whole machine", machine.0, &machine.1)
}

fn classes(counts: &ClassCounts, caches_known: bool, style: &Style) -> String {
    let mut grid = Grid::new(&[("", Side::Left), ("", Side::Right), ("", Side::Left)]);
    let ClassCounts {
        same_core,
        same_cache,
        same_node,
        cross_node,
        unknown,
    } = *counts;
    let mut row = |role, what: &str, number_of: u64, remark: &str| {
        grid.row(vec![
            what.into(),
            Cell::new(role, number_of.to_string()),
            Cell::new(Role::Dim, remark),
        ]);
    };
    row(Role::Local, "same core", same_core, "");
    match caches_known {
        true => row(Role::Near, "same last-level cache", same_cache, ""),
        false => row(
            Role::Dim,
            "same last-level cache",
            same_cache,
            "unknown here; counted as same node",
        ),
    }
    row(Role::Middling, "same node", same_node, "");
    row(Role::Far, "cross node", cross_node, "");
    if unknown > 0 {
        row(Role::Warning, "unknown", unknown, "a CPU's node is unknown");
    }
    row(Role::Heading, "all", counts.total(), "");
    grid.render(style)
}

fn matrix(found: &Migrations, style: &Style) -> String {
    let nodes: BTreeSet<Option<NodeId>> = found
        .matrix
        .iter()
        .flat_map(|cell| [cell.from, cell.to])
        .collect();
    if nodes.is_empty() {
        return line(style, Role::Plain, "no task was moved");
    }
    let at = |from, to| {
        found
            .matrix
            .iter()
            .find(|cell| (cell.from, cell.to) == (from, to))
            .map_or(0, |c| c.migrations)
    };
    let role = |from, to| if from == to { Role::Local } else { Role::Far };
    if nodes.len() > WIDEST_MATRIX {
        let mut grid = Grid::new(&[
            ("from", Side::Left),
            ("to", Side::Left),
            ("migrations", Side::Right),
        ]);
        for cell in &found.matrix {
            let migrations = Cell::new(role(cell.from, cell.to), cell.migrations.to_string());
            grid.row(vec![
                place(cell.from).into(),
                place(cell.to).into(),
                migrations,
            ]);
        }
        return grid.render(style);
    }
    let titles: Vec<String> = nodes
        .iter()
        .map(|to| format!("to {}", place(*to)))
        .collect();
    let mut columns = vec![("", Side::Left)];
    columns.extend(titles.iter().map(|title| (title.as_str(), Side::Right)));
    let mut grid = Grid::new(&columns);
    for &from in &nodes {
        let mut row = vec![Cell::from(place(from))];
        row.extend(
            nodes
                .iter()
                .map(|&to| Cell::new(role(from, to), at(from, to).to_string())),
        );
        grid.row(row);
    }
    grid.render(style)
}

/// Place and text, node by node.
fn times(time: &[NodeTime]) -> Vec<(String, String)> {
    let all: f64 = time.iter().map(|spent| spent.seconds).sum();
    let text = |spent: &NodeTime| {
        format!(
            "{:.3} s, {}",
            spent.seconds,
            percent(spent.seconds / all.max(1e-9))
        )
    };
    time.iter()
        .map(|spent| (place(spent.node), text(spent)))
        .collect()
}

fn of_tasks(tasks: &[TaskMoves], style: &Style) -> String {
    let columns = [
        ("task", Side::Left),
        ("tid", Side::Right),
        ("moved", Side::Right),
        ("cross node", Side::Right),
        ("time on", Side::Left),
    ];
    let mut grid = Grid::new(&columns);
    for task in tasks.iter().take(NAMED) {
        let time: Vec<String> = times(&task.time)
            .into_iter()
            .map(|(place, text)| format!("{place} {text}"))
            .collect();
        grid.row(vec![
            Cell::new(Role::Subject, &task.name),
            task.tid.to_string().into(),
            number(task.migrations.total()),
            number(task.migrations.cross_node),
            Cell::new(Role::Dim, time.join("; ")),
        ]);
    }
    grid.render(style)
}

/// How it was obtained, and whether anything is missing.
fn head<T>(traced: &Traced<T>, style: &Style) -> String {
    let meanwhile = traced
        .command
        .as_ref()
        .map_or_else(String::new, |command| format!(", {}", ended(command)));
    let losses = &traced.losses;
    let events = count(losses.occurred as usize, "event");
    let read = if losses.is_whole() {
        "none lost"
    } else {
        "not all read"
    };
    let mut out = heading(
        style,
        "traced",
        &format!("{:.1} s{meanwhile}; {events}, {read}", traced.seconds),
    );
    if let Some(emulation) = &traced.emulation {
        out.push_str(&line(style, Role::Warning, &emulation.to_string()));
    }
    if !losses.is_whole() {
        let mut text = format!("{} of {events} are missing", losses.lost);
        if let Some(unwritten @ 1..) = losses.unwritten {
            text += &format!(
                ", {unwritten} of them not for want of room (this kernel counted and did not write them)"
            );
        }
        if losses.damaged + losses.throttled > 0 {
            text += &format!(
                "; {} damaged, paused {} times by the kernel",
                losses.damaged, losses.throttled
            );
        }
        out.push_str(&line(
            style,
            Role::Warning,
            &format!("{text}: the counts below are too low"),
        ));
    }
    if !traced.cpus_not_traced.is_empty() {
        let text = format!(
            "not traced, because offline: CPUs {}",
            traced.cpus_not_traced
        );
        out.push_str(&line(style, Role::Warning, &text));
    }
    out
}

fn ended(command: &Ended) -> String {
    let how = match (command.exit_code, command.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "end unknown".to_owned(),
    };
    format!("{how} of: {}", command.command.join(" "))
}

fn place(node: Option<NodeId>) -> String {
    node.map_or_else(|| "no known node".to_owned(), |node| format!("node {node}"))
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    // 99.97 must not read as all of it.
    match percent {
        _ if share >= 1.0 => "100 %".to_owned(),
        0.0 => "0 %".to_owned(),
        99.0..100.0 => format!("{:.2} %", (percent * 100.0).floor() / 100.0),
        _ => format!("{percent:.1} %"),
    }
}

fn number(number: u64) -> Cell {
    number.to_string().into()
}

/// A number, or nothing for none, so that a column without any is left out.
fn some(number: u64) -> Cell {
    if number == 0 {
        "".into()
    } else {
        number.to_string().into()
    }
}

fn line(style: &Style, role: Role, text: &str) -> String {
    paragraph(style, 2, (Role::Plain, ""), role, text)
}

fn item(style: &Style, name: &str, role: Role, text: &str) -> String {
    paragraph(style, 2, (Role::Subject, &format!("{name}: ")), role, text)
}
