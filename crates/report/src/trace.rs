//! What a trace saw: which path NVMe commands took, which tasks were moved where, and what waited for locks.

use std::borrow::Cow;
use std::collections::BTreeSet;

use nearfar_machine::{Known, NodeId};
use nearfar_trace::kernel::{ActivityKind, KernelActivity};
use nearfar_trace::lines::{HotLines, TransferSum};
use nearfar_trace::locks::{LockWaits, Site};
use nearfar_trace::migrations::{ClassCounts, Migrations, NodeTime, NumaBalancing, TaskMoves};
use nearfar_trace::nvme::{Namespace, NodeTraffic, NvmeAnswer, Submitter, Through, Unplaced};
use nearfar_trace::{Ended, Traced};

use crate::amount::{count, first_of, or};
use crate::document::{Align, Document, Table, Text, cells};
use crate::path::iopolicy;
use crate::style::Role::{self, Dim, Far, Heading, Local, Middling, Near, Plain, Subject, Warning};

/// How many processes or tasks a table names; JSON has all.
const MAX_NAMED: usize = 8;

/// How it was obtained, and whether anything is missing.
fn head<T>(traced: &Traced<T>) -> Document {
    let command = traced.command.as_ref();
    let command = command.map_or_else(String::new, |command| format!(", {}", ended(command)));
    let losses = &traced.losses;
    let events = count(losses.occurred as usize, "event");
    let read = match losses.is_whole() {
        true => "none lost",
        false => "not all read",
    };
    let seconds = match traced.seconds {
        short if short < 1.0 => format!("{short:.3} s"),
        long => format!("{long:.1} s"),
    };
    let remark = format!("{seconds}{command}; {events}, {read}");
    let mut out = Document::titled("traced", remark);
    if let Some(emulation) = &traced.emulation {
        out.paragraph(Warning.text(emulation));
    }
    if !losses.is_whole() {
        let mut text = format!("{} of {events} are missing", losses.lost);
        if let Some(unwritten @ 1..) = losses.unwritten {
            text += &format!(", {unwritten} of them not recorded by the kernel");
        }
        if losses.damaged + losses.throttled > 0 {
            let (damaged, paused) = (losses.damaged, losses.throttled);
            text += &format!("; {damaged} damaged, paused {paused} times by the kernel");
        }
        out.paragraph(Warning.text(text + ": counts of events below are too low"));
    }
    if !traced.cpus_not_traced.is_empty() {
        let cpus = &traced.cpus_not_traced;
        out.paragraph(Warning.text(format!("not traced, offline: CPUs {cpus}")));
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

/// How many of a list a table does not name.
fn not_named(all: usize) -> String {
    match all.saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!("and {more} more, see JSON"),
    }
}

fn item(out: &mut Document, name: &str, text: impl Into<Text>) {
    out.labelled(Subject.text(format!("{name}: ")), text);
}

fn not_parsed(events: u64, out: &mut Document) {
    if events > 0 {
        let events = count(events as usize, "event");
        out.paragraph(Warning.text(format!("{events} could not be parsed")));
    }
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

/// How many call sites a table has; JSON has all.
const MAX_SITES: usize = 12;

/// Transfers by function and by line, the longest waits first.
pub fn lines(traced: &Traced<HotLines>) -> Document {
    let answer = &traced.answer;
    let mut out = head(traced);
    let all = &answer.all;
    let of = |part: f64, whole: f64| percent(part / whole.max(f64::MIN_POSITIVE));
    let lines = count(all.count() as usize, "line");
    let remote = of(all.other_node as f64, all.count() as f64);
    let wait = ms(all.wait_s);
    out.heading(
        "line transfers",
        format!("{lines} from other CPUs, {remote} of them from another node; {wait} of waiting"),
    );
    let sums = |sum: &TransferSum| {
        [
            sum.same_node.to_string(),
            sum.other_node.to_string(),
            ms(sum.wait_s),
            of(sum.wait_s, all.wait_s),
        ]
    };
    let mut table = Table::of([
        "function",
        "of",
        ">same node",
        ">other node",
        ">waited",
        ">share",
    ]);
    for it in answer.functions.iter().take(MAX_SITES) {
        let file = it.file.as_deref().unwrap_or("unknown");
        let file = file.rsplit('/').next().unwrap_or(file);
        let [same_node, other_node, wait, share] = sums(&it.sum);
        table.row(cells![
            it.name.clone(),
            file,
            same_node,
            other_node,
            wait,
            share
        ]);
    }
    out.table(table);
    out.more(answer.functions.len(), MAX_SITES, ", see JSON");
    let mut table = Table::of([
        "line",
        ">memory",
        ">same node",
        ">other node",
        ">waited",
        ">share",
        "got by",
    ]);
    for line in answer.lines.iter().take(MAX_NAMED) {
        let mut names = match line.variables.is_empty() {
            true => line.address.clone(),
            false => line.variables.join(", "),
        };
        if let Some(lock) = line.locks.first() {
            names += &format!(": {} of {}", lock.kind.name(), lock.call_site);
        }
        let [same_node, other_node, wait, share] = sums(&line.sum);
        table.row(cells![
            names,
            place(Some(line.node)),
            same_node,
            other_node,
            wait,
            share,
            first_of(&line.functions, MAX_FUNCTIONS)
        ]);
    }
    out.table(table);
    out.more(answer.lines.len(), MAX_NAMED, ", see JSON");
    if let Some(reason) = &answer.no_names_reason {
        out.paragraph(Warning.text(format!("the kernel's functions have no names: {reason}")));
    }
    if answer.without_line.count() > 0 {
        let lines = count(answer.without_line.count() as usize, "transfer");
        let share = of(answer.without_line.wait_s, all.wait_s);
        let text =
            format!("{lines} ({share} of the waiting) are of lines that there was no room for");
        out.paragraph(Warning.text(text));
    }
    if answer.lost > 0 {
        let lost = count(answer.lost as usize, "transfer");
        out.remark(format!(
            "{lost} more, of instructions that there was no room for"
        ));
    }
    out
}

/// How many functions of a line a table names; JSON has all.
const MAX_FUNCTIONS: usize = 3;

/// What the kernel did, by kind.
pub fn kernel(traced: &Traced<KernelActivity>) -> Document {
    let answer = &traced.answer;
    let mut out = head(traced);
    if answer.samples > 0 {
        let samples = count(answer.samples as usize, "sample");
        out.remark(format!("of {samples} that the command took"));
    }
    for kind in ActivityKind::ALL {
        if let Some(reason) = answer.unknown_reasons.get(&kind) {
            item(
                &mut out,
                kind.name(),
                Dim.text(format!("unknown: {reason}")),
            );
        }
        let all = Vec::from_iter(answer.of_kind(kind));
        if all.is_empty() {
            continue;
        }
        let mut table = Table::of([kind.name(), ">count", ">time"]);
        for it in all.iter().take(MAX_NAMED) {
            table.row(cells![
                it.name.clone(),
                or(it.count, ""),
                or(it.time_s.map(ms), "")
            ]);
        }
        out.table(table);
        out.more(all.len(), MAX_NAMED, ", see JSON");
    }
    out
}

/// Waits by call site, the longest in all first.
pub fn locks(traced: &Traced<LockWaits>) -> Document {
    let answer = &traced.answer;
    let mut out = head(traced);
    let waits = count(answer.waits as usize, "wait");
    let (all, spinning) = (ms(answer.wait_s), ms(answer.spin_s));
    let time = format!("{waits}, {all} in all, {spinning} of it spinning");
    out.heading("lock contention", time);
    let mut table = Table::of([
        "call site",
        "lock",
        ">waits",
        ">waited",
        ">share",
        ">longest",
    ]);
    let row = |site: &Site| {
        cells![
            site.call_site.clone(),
            site.kind.name(),
            site.waits.to_string(),
            ms(site.wait_s),
            percent(site.wait_s / answer.wait_s.max(f64::MIN_POSITIVE)),
            ms(site.longest_s)
        ]
    };
    let sites = answer.sites.iter().take(MAX_SITES);
    sites.for_each(|site| table.row(row(site)));
    out.table(table);
    out.more(answer.sites.len(), MAX_SITES, ", see JSON");
    processes(answer, &mut out);
    if let Some(reason) = &answer.no_names_reason {
        out.paragraph(Warning.text(format!("call sites have no names: {reason}")));
    }
    if let Some(reason) = &answer.no_spin_reason {
        out.paragraph(Warning.text(reason.clone()));
    }
    if answer.incomplete > 0 {
        let waits = count(answer.incomplete as usize, "wait");
        out.remark(format!(
            "{waits} more, of which the begin or the end is not in the trace"
        ));
    }
    not_parsed(answer.unreadable, &mut out);
    out
}

/// Which processes waited, the longest in all first.
fn processes(answer: &LockWaits, out: &mut Document) {
    const MAX_PROCESSES: usize = 8;
    let mut table = Table::of([">pid", "process", ">waits", ">waited"]);
    for process in answer.processes.iter().take(MAX_PROCESSES) {
        let name = match (&process.name, process.pid) {
            (_, 0) => "idle CPUs: interrupts",
            (Some(name), _) => name,
            (None, _) => "(ended)",
        };
        table.row(cells![
            process.pid.to_string(),
            name,
            process.waits.to_string(),
            ms(process.wait_s)
        ]);
    }
    if answer.processes.len() > 1 {
        out.table(table);
        out.more(answer.processes.len(), MAX_PROCESSES, ", see JSON");
    }
}

fn ms(seconds: f64) -> String {
    format!("{:.3} ms", 1e3 * seconds)
}

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
        item(&mut out, &place, text);
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
    let looks = [
        (Local, ""),
        (cache, remark),
        (Middling, ""),
        (Far, ""),
        (Warning, "a CPU's node is unknown"),
    ];
    let all = ((Heading, ""), ("all", counts.total()));
    let rows = looks.into_iter().zip(counts.by_class()).chain([all]);
    let mut table = Table::of(["", ">", ""]);
    for ((role, remark), (class, number)) in rows {
        if role != Warning || number > 0 {
            table.row(cells![class, role.text(number), Dim.text(remark)]);
        }
    }
    table
}

fn matrix(found: &Migrations, out: &mut Document) {
    let nodes = found.matrix.iter().flat_map(|cell| [cell.from, cell.to]);
    let nodes: BTreeSet<Option<NodeId>> = nodes.collect();
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
        let mut cells = found.matrix.iter();
        let cell = cells.find(|cell| (cell.from, cell.to) == (from, to));
        figure(from, to, cell.map_or(0, |cell| cell.migrations))
    };
    let columns = nodes
        .iter()
        .map(|to| (format!("to {}", place(*to)), Align::Right));
    let columns: Vec<_> = [(String::new(), Align::Left)]
        .into_iter()
        .chain(columns)
        .collect();
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
        let time = times(&task.time).into_iter();
        let time = time.map(|(place, text)| format!("{place} {text}"));
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

/// Where NVMe commands were submitted, which controller served them, and whether that was the nearest.
pub fn nvme(traced: &Traced<NvmeAnswer>) -> Document {
    let answer = &traced.answer;
    let mut out = head(traced);
    let namespaces = answer.namespaces.iter();
    namespaces.for_each(|it| namespace(it, &mut out));
    if answer.namespaces.is_empty() {
        out.paragraph("The machine has no NVMe namespace to trace.");
    }
    unplaced(&answer.unplaced, &mut out);
    submitters(&answer.submitters, &mut out);
    not_parsed(answer.unreadable, &mut out);
    out
}

fn namespace(namespace: &Namespace, out: &mut Document) {
    let remark = format!("{}; {}", namespace.subsystem, iopolicy(&namespace.policy));
    out.heading(&namespace.namespace, remark);
    let mut table = Table::of([
        "submitted on",
        "CPUs",
        "served by",
        "path",
        ">distance",
        ">reads",
        ">writes",
        ">flushes",
        ">others",
        "",
    ]);
    let nodes = namespace.nodes.iter();
    nodes.for_each(|node| rows(&mut table, node));
    out.table(table);
    out.gap();
    for controller in &namespace.controllers {
        let node = or(controller.locality.as_ref(), "node unknown");
        let kernel = match &controller.kernel_node {
            Known::Yes(None) => "; for the kernel on no node (-1)",
            _ => "",
        };
        item(out, &controller.controller, Text::from(node + kernel));
    }
    let busy = namespace.nodes.iter();
    let busy: Vec<&NodeTraffic> = busy.filter(|it| it.commands.total() > 0).collect();
    for node in &busy {
        let share = share(&node.nearest_share, node.commands.total());
        item(out, &place(node.node), share);
    }
    if busy.len() != 1 {
        let share = share(&namespace.nearest_share, namespace.commands.total());
        item(out, "all", share);
    }
}

/// A row for each path that a node used or should have used.
fn rows(table: &mut Table, node: &NodeTraffic) {
    if node.commands.total() == 0 {
        table.row(cells![place(node.node), "", Dim.text("nothing")]);
        return;
    }
    let nearest = node.nearest.get();
    let is_nearest =
        |through: &Through| nearest.is_some_and(|nearest| nearest.contains(&through.path));
    let is_shown = |through: &&Through| through.commands.total() > 0 || is_nearest(through);
    for (row, through) in node.through.iter().filter(is_shown).enumerate() {
        let first = |text: String| if row == 0 { text } else { String::new() };
        let (role, remark) = match (&node.nearest, is_nearest(through)) {
            (Known::Yes(_), true) => (Local, "nearest"),
            (Known::Yes(_), false) => (Far, ""),
            (Known::No { .. }, _) => (Plain, ""),
        };
        let kinds = through.commands;
        table.row(cells![
            first(place(node.node)),
            first(node.cpus.to_string()),
            Subject.text(&through.controller),
            &through.path,
            role.text(or(through.distance, "?")),
            kinds.reads,
            kinds.writes,
            unless_zero(kinds.flushes),
            unless_zero(kinds.others),
            role.text(remark),
        ]);
    }
}

fn share(share: &Known<f64>, commands: u64) -> Text {
    let commands = count(commands as usize, "command");
    match share {
        Known::Yes(share) => {
            let role = if *share > 0.99 { Local } else { Far };
            let share = percent(*share);
            role.text(format!("{share} of {commands} took the nearest path"))
        }
        Known::No { unknown_reason } => Role::Warning.text(format!(
            "the share of {commands} that took the nearest path is unknown: {unknown_reason}"
        )),
    }
}

fn unplaced(unplaced: &[Unplaced], out: &mut Document) {
    if unplaced.is_empty() {
        return;
    }
    out.heading(
        "elsewhere",
        "disks that the machine's description does not have",
    );
    let mut table = Table::of(["disk", "through", ">commands"]);
    for it in unplaced {
        let disk = Some(&it.disk).filter(|disk| !disk.is_empty());
        let disk = or(disk, "none");
        table.row(cells![disk, &it.controller, it.commands.total()]);
    }
    out.table(table);
}

fn submitters(submitters: &[Submitter], out: &mut Document) {
    if submitters.is_empty() {
        return;
    }
    out.heading("submitted by", not_named(submitters.len()));
    let mut table = Table::of(["process", ">pid", ">commands", "on CPUs"]);
    for it in submitters.iter().take(MAX_NAMED) {
        let name = it.name.as_deref().unwrap_or("(ended)");
        table.row(cells![name, it.pid, it.commands.total(), &it.cpus]);
    }
    out.table(table);
}

/// A number, or nothing for none, so that a column without any is left out.
fn unless_zero(number: u64) -> String {
    or(Some(number).filter(|number| *number > 0), "")
}
