//! Which tasks have memory on other nodes than they run on.

use nearfar_machine::{Known, NodeId, PageCache, UseKind, UsedFiles};
use nearfar_placement::tasks::{
    Action, GroupPlacement, Holder, HolderKind, Placement, Remedy, Remote, TaskPlacement, Tasks,
    ThreadPlacement,
};

use crate::amount::{self, bytes, count, or};
use crate::document::{Document, Table, Text, cells};
use crate::style::Role;
use crate::style::Role::{Dim, Far, Heading, Local, Middling, Plain, Subject};

/// Nodes that one cell names.
const MAX_NODES: usize = 4;
/// Shares of remote memory from which the text is coloured; the number stands next to it.
const MIDDLING_SHARE: f64 = 0.05;
const FAR_SHARE: f64 = 0.5;
const LOCAL_DISTANCE: f64 = 10.0;

/// At most `rows` tasks, the costliest first, and what to do about those that are far.
pub fn document(tasks: &Tasks, rows: usize) -> Document {
    let mut out = header(tasks, count(tasks.tasks.len(), "task"));
    let shown = &tasks.tasks[..rows.min(tasks.tasks.len())];
    let mut table = columns("pid", "task").indent(0);
    for task in shown {
        let (pid, name) = (Dim.text(task.pid), Subject.text(&task.name));
        let device = device_cells(tasks, task);
        table.row(row(pid, name, &task.at, &task.held_by, device, used(task)));
        for thread in task.threads.iter().take(rows) {
            table.row(thread_row(thread));
        }
    }
    finish(&mut out, table, tasks, shown.len(), tasks.tasks.len());
    remedies(&mut out, shown);
    out
}

/// What of a file is in the page cache, by node.
pub fn page_cache(file: &str, cache: &PageCache) -> Document {
    // The last page may go beyond the file's end.
    let (cached, all) = (cache.cached_bytes().min(cache.file_bytes), cache.file_bytes);
    let cached = format!("{} of {} cached", bytes(cached), bytes(all));
    let mut out = Document::titled(format!("Page cache of {file}"), cached);
    let mut table = Table::of([">node", ">cached", ">share"]);
    for on in &cache.nodes {
        let share = 100.0 * on.bytes as f64 / cache.cached_bytes() as f64;
        table.row(cells![on.node, bytes(on.bytes), format!("{share:.0} %")]);
    }
    out.table(table);
    if cache.unknown_bytes > 0 {
        out.remark(format!("node unknown: {}", bytes(cache.unknown_bytes)));
    }
    out
}

/// The same by control group.
pub fn groups(tasks: &Tasks, groups: &[GroupPlacement], rows: usize) -> Document {
    let mut out = header(tasks, count(groups.len(), "control group"));
    let shown = &groups[..rows.min(groups.len())];
    let mut table = columns("tasks", "group").indent(0);
    for group in shown {
        let (number, name) = (Dim.text(group.tasks), group_name(group));
        table.row(row(
            number,
            name,
            &group.at,
            &[],
            Default::default(),
            Default::default(),
        ));
    }
    finish(&mut out, table, tasks, shown.len(), groups.len());
    out
}

fn header(tasks: &Tasks, what: String) -> Document {
    let since = match tasks.seconds {
        Some(seconds) => format!("CPU time of {seconds:.1} s"),
        None => "CPU time since each started".to_owned(),
    };
    let title = match &tasks.device {
        Some(used) => format!("Tasks that use {}", used.device),
        None => "Memory and CPU time by node".to_owned(),
    };
    let mut out = Document::titled(title, format!("{what}; {since}"));
    for locality in tasks.device.iter().flat_map(|used| &used.localities) {
        out.remark(format!("device: {locality}"));
    }
    out
}

/// The nodes of the device with the distance to it, and what is open of it.
fn device_cells(tasks: &Tasks, task: &TaskPlacement) -> [Text; 2] {
    let (Some(used), Some(open)) = (&tasks.device, &task.device) else {
        return Default::default();
    };
    let node = |node: Option<NodeId>| node.map_or("N?".to_owned(), |node| format!("N{node}"));
    let mut nodes: Vec<String> = used.localities.iter().map(|at| node(at.node)).collect();
    nodes.sort();
    nodes.dedup();
    let nodes = nodes.join(" ");
    let distance = match &open.distance {
        Known::Yes(distance) if *distance > LOCAL_DISTANCE => {
            Far.text(format!("{nodes} at {distance:.0}"))
        }
        Known::Yes(distance) => Local.text(format!("{nodes} at {distance:.0}")),
        Known::No { .. } => Dim.text(format!("{nodes} at ?")),
    };
    let files: Vec<String> = open.files.iter().map(used_files).collect();
    [distance, Plain.text(files.join(", "))]
}

/// How much of its memory was used, and on which nodes.
fn used(task: &TaskPlacement) -> [Text; 2] {
    match &task.used {
        None => Default::default(),
        Some(Known::No { .. }) => [Dim.text("?"), Dim.text("?")],
        Some(Known::Yes(used)) => {
            let on = used.nodes.iter().map(|it| (it.node, it.bytes as f64));
            [
                Plain.text(bytes(used.bytes)),
                nodes(Known::Yes(on.collect())),
            ]
        }
    }
}

/// `nvme0n1`, `12 files on nvme0n1p2`.
fn used_files(used: &UsedFiles) -> String {
    let UsedFiles { name, kind, count } = used;
    let number = *count as usize;
    match kind {
        UseKind::Device => name.clone(),
        UseKind::File => format!("{} on {name}", amount::count(number, "file")),
        UseKind::Mapping => format!("{} of {name}", amount::count(number, "mapping")),
    }
}

fn columns(number: &str, name: &str) -> Table {
    let number = format!(">{number}");
    Table::of([
        &number, name, ">CPU s", "runs on", "device", "has open", ">memory", "is on", ">used",
        "of it on", ">remote", ">cost s", "kept by",
    ])
}

fn finish(out: &mut Document, table: Table, tasks: &Tasks, shown: usize, all: usize) {
    match table.is_empty() {
        true => out.paragraph("no task matches"),
        false => out.table(table),
    }
    out.more(all, shown, "; --limit 0 shows all");
    if tasks.min_bytes > 0 {
        out.remark(format!(
            "tasks with less than {} are left out; --min-memory 0 shows all",
            bytes(tasks.min_bytes)
        ));
    }
    let of_files = tasks.device.iter().flat_map(|used| &used.unknown);
    let of_files = of_files.map(|unknown| ("open files", unknown));
    let of_memory = tasks.unknown.iter().map(|unknown| ("memory", unknown));
    for (what, unknown) in of_files.chain(of_memory) {
        let (tasks, reason) = (count(unknown.tasks, "task"), &unknown.unknown_reason);
        out.remark(format!("{what} unknown of {tasks}: {reason}"));
    }
    if !tasks.latency_sources.is_empty() {
        let sources = tasks.latency_sources.join("; ");
        out.remark(format!("costs follow from latencies: {sources}"));
    }
    let watched = tasks
        .tasks
        .iter()
        .filter_map(|task| Some((task, task.used.as_ref()?)));
    for (task, used) in watched.clone() {
        if let Some(reason) = used.unknown_reason() {
            out.remark(format!(
                "used memory unknown of task {}: {reason}",
                task.pid
            ));
        }
    }
    if let Some(used) = watched.clone().find_map(|(_, used)| used.get()) {
        let seconds = used.watched_ms as f64 / 1000.0;
        out.remark(format!(
            "used: memory with accesses in {seconds:.1} s, from a sample of pages; remote of these tasks weighs each page by how many \
             looks found it accessed"
        ));
    }
    out.remark(match watched.count() {
        0 => {
            "remote: the share of accesses to other nodes if all pages are used alike; cost: CPU time lost at most, if it only waits \
             for memory. Both follow from where pages are, not from which are used."
        }
        _ => {
            "remote: the share of accesses to other nodes; of other tasks as if all their pages were used alike. cost: CPU time lost \
             at most, if it only waits for memory."
        }
    });
}

fn row(
    number: Text,
    name: Text,
    at: &Placement,
    held_by: &[Holder],
    [distance, files]: [Text; 2],
    [used, of_it_on]: [Text; 2],
) -> [Text; 13] {
    let [memory, is_on] = memory(at);
    cells![
        number,
        name,
        seconds(at.cpu_s.get().copied()),
        runs_on(at),
        distance,
        files,
        memory,
        is_on,
        used,
        of_it_on,
        remote(&at.remote),
        seconds(cost_s(&at.remote)),
        held(held_by),
    ]
}

/// A group by its unit or container.
pub(crate) fn group_name(group: &GroupPlacement) -> Text {
    match (&group.service, &group.group) {
        (Some(name), _) | (None, Known::Yes(name)) => Subject.text(name),
        (None, Known::No { .. }) => Dim.text("unknown"),
    }
}

/// The nodes where CPU time was spent.
pub(crate) fn runs_on(at: &Placement) -> Text {
    nodes(at.cpu_nodes.as_ref().map(|all| {
        let seconds = all.iter().map(|it| (it.node, it.seconds));
        seconds.collect()
    }))
}

/// How much memory there is, and on which nodes.
pub(crate) fn memory(at: &Placement) -> [Text; 2] {
    let size = match &at.memory {
        Known::Yes(_) => Plain.text(bytes(at.memory_bytes())),
        Known::No { .. } => Dim.text("?"),
    };
    let is_on = at.memory.as_ref().map(|all| {
        let bytes = all.iter().map(|it| (it.node, it.bytes as f64));
        bytes.collect()
    });
    [size, nodes(is_on)]
}

fn seconds(seconds: Option<f64>) -> Text {
    match seconds {
        Some(seconds) => Plain.text(format!("{seconds:.1}")),
        None => Dim.text("?"),
    }
}

pub(crate) fn cost_s(remote: &Known<Remote>) -> Option<f64> {
    remote.get().and_then(|remote| remote.cost_s)
}

fn thread_row(thread: &ThreadPlacement) -> [Text; 13] {
    let node = or(thread.node.map(|node| format!("N{node}")), "?");
    cells![
        Dim.text(thread.tid),
        Dim.text(format!("  {}", thread.name)),
        format!("{:.1}", thread.cpu_s),
        Heading.text(node),
        "",
        "",
        "",
        "",
        "",
        "",
        remote(&thread.remote),
        seconds(cost_s(&thread.remote)),
        "",
    ]
}

pub(crate) fn remote(remote: &Known<Remote>) -> Text {
    let Known::Yes(remote) = remote else {
        return Dim.text("?");
    };
    let role: Role = match remote.share {
        FAR_SHARE.. => Far,
        MIDDLING_SHARE.. => Middling,
        _ => Local,
    };
    let share = format!("{:.0} %", 100.0 * remote.share);
    match remote.error {
        0.0 => role.text(share),
        error => role.text(format!("{share} +-{:.1}", 100.0 * error)),
    }
}

/// `N0`, or the share of each: `N0 75 % N1 25 %`.
fn nodes(parts: Known<Vec<(NodeId, f64)>>) -> Text {
    let Known::Yes(mut parts) = parts else {
        return Dim.text("?");
    };
    let sum: f64 = parts.iter().map(|part| part.1).sum();
    if let [(node, _)] = parts[..] {
        return Heading.text(format!("N{node}"));
    }
    if sum == 0.0 {
        return Dim.text("-");
    }
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let share = |(node, part): &(NodeId, f64)| format!("N{node} {:.0} %", 100.0 * part / sum);
    let mut shares: Vec<String> = parts.iter().take(MAX_NODES).map(share).collect();
    if parts.len() > MAX_NODES {
        shares.push(format!("and {} more", parts.len() - MAX_NODES));
    }
    Heading.text(shares.join(" "))
}

/// What keeps a task where it is.
pub(crate) fn held(held_by: &[Holder]) -> Text {
    let holder = |holder: &Holder| match holder.kind {
        HolderKind::Affinity => format!("affinity {}", holder.detail),
        HolderKind::CpusetCpus | HolderKind::CpusetMems => format!("cpuset: {}", holder.detail),
        HolderKind::Policy => format!("policy {}", holder.detail),
        HolderKind::Pinned | HolderKind::PreferredNode => holder.detail.clone(),
    };
    let all: Vec<String> = held_by.iter().map(holder).collect();
    Dim.text(all.join(", "))
}

/// `move its memory to node 0`
pub(crate) fn action(remedy: &Remedy) -> String {
    let to = or(remedy.node.map(|node| format!(" to node {node}")), "");
    let action = match remedy.action {
        Action::MoveMemory => "move its memory",
        Action::MoveTask => "move the task",
        Action::MoveBoth => "move both",
        Action::Nothing => "none",
    };
    format!("{action}{to}")
}

fn remedies(out: &mut Document, tasks: &[TaskPlacement]) {
    let mut table = Table::of([">pid", "task", "remedy", "reason"]);
    for task in tasks {
        let Some(remedy) = &task.remedy else { continue };
        table.row(cells![
            Dim.text(task.pid),
            Subject.text(&task.name),
            action(remedy),
            Dim.text(&remedy.reason),
        ]);
    }
    if !table.is_empty() {
        out.heading("Remedies", "");
        out.table(table);
    }
}
