//! What the running system does, look by look: the tables of `nearfar top`.
//!
//! ```text
//! Look, Tasks ──► summary, nodes, pairs, tasks, services, devices ──┬─► a screen, which scrolls and marks a row
//!                                                                   └─► document, for logs
//! ```

use nearfar_live::{Look, Numastat};
use nearfar_machine::{Known, Machine, NodeId, NumaBalancing};
use nearfar_placement::tasks::{
    Action, GroupPlacement, NodePair, Placement, Remedy, TaskPlacement, Tasks, by_node_pair,
};

use crate::amount::{bytes, count, or, time_of_day};
use crate::document::{Align, Document, Table, Text, cells};
use crate::style::Role::{Dim, Far, Heading, Local, Middling, Notice, Plain, Subject};
use crate::tasks::{action, cost_s, group_name, held, memory, remote, runs_on};

/// Columns of the map: more nodes do not fit a terminal.
const MAX_MAP_NODES: usize = 16;
/// A bar of load has so many steps.
const BAR: usize = 10;
/// Shares of interrupts and faults from which the text is coloured; the number stands next to it.
const MIDDLING_SHARE: f64 = 0.05;
const FAR_SHARE: f64 = 0.5;
/// Threads of the details of a task.
const MAX_THREADS: usize = 200;

/// What is shown of one look.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub machine: &'a Machine,
    pub look: &'a Look,
    pub tasks: &'a Tasks,
}

impl View<'_> {
    /// How many times something happened, by second.
    fn rate(&self, times: u64) -> String {
        rate(times as f64 / self.look.seconds.max(1e-9))
    }

    /// CPU seconds as percent of one CPU.
    fn percent(&self, cpu_s: f64) -> String {
        format!("{:.1}", 100.0 * cpu_s / self.look.seconds.max(1e-9))
    }

    /// When it was looked, as the time of day.
    pub fn time(&self) -> String {
        time_of_day(self.look.at_s as u64)
    }

    /// Lines above all tables: how much there is, what NUMA balancing does, what is not known.
    pub fn summary(&self) -> Vec<Text> {
        let look = self.look;
        let threads = usize::try_from(look.threads).unwrap_or(usize::MAX);
        let mut lines = vec![
            Text::from(format!(
                "{}, {}; {}; looking: {} % of a CPU",
                count(look.processes, "process"),
                count(threads, "thread"),
                self.migrations(),
                self.percent(look.cost.cpu_s)
            )),
            self.balancing(),
        ];
        if let Some(emulation) = &self.machine.origin.emulation {
            lines.push(Notice.text(format!("emulated: {emulation}")));
        }
        lines.extend(self.tasks.unknown.iter().map(|unknown| {
            let tasks = count(unknown.tasks, "task");
            Dim.text(format!(
                "memory unknown of {tasks}: {}",
                unknown.unknown_reason
            ))
        }));
        lines
    }

    /// Of all tasks where the kernel counts them; else those that the looks show.
    fn migrations(&self) -> String {
        match self.look.node_migrations {
            Known::Yes(moves) => format!("{} node migrations/s", self.rate(moves)),
            Known::No { .. } => format!("{}+ node migrations/s", self.rate(self.look.node_changes)),
        }
    }

    fn balancing(&self) -> Text {
        let label = Text::from("NUMA balancing: ");
        let mode = match &self.machine.settings.numa_balancing {
            Known::Yes(mode) if NumaBalancing(*mode).is_normal() => "on",
            Known::Yes(0) => "off",
            Known::Yes(_) => "memory tiering",
            Known::No { unknown_reason } => {
                return label.then(Dim, format!("unknown: {unknown_reason}"));
            }
        };
        let label = label.then(Plain, mode);
        let Known::Yes(counts) = self.look.balancing_since else {
            return label;
        };
        let local = match counts.hint_faults {
            0 => String::new(),
            all => format!(
                ", {:.0} % local",
                100.0 * counts.hint_faults_local as f64 / all as f64
            ),
        };
        label.then(
            Plain,
            format!(
                "; {} hint faults/s{local}; {} pages moved/s",
                self.rate(counts.hint_faults),
                self.rate(counts.pages_migrated)
            ),
        )
    }

    /// A row a node: load, memory, and where memory was allocated.
    pub fn nodes(&self) -> Table {
        let mut table = Table::of([
            ">node",
            ">CPUs",
            "busy",
            ">",
            ">memory",
            ">free",
            ">cache",
            ">alloc/s",
            ">other/s",
            ">miss/s",
            ">foreign/s",
        ])
        .indent(0);
        for node in &self.look.nodes {
            let all = node.cpus as f64 * self.look.seconds;
            let busy = if all > 0.0 {
                (node.busy_s / all).min(1.0)
            } else {
                0.0
            };
            let size = |size: Option<u64>| size.map_or(Dim.text("?"), |it| bytes(it).into());
            let pages = |get: fn(&Numastat) -> u64| {
                let allocated = node.allocated.as_ref();
                allocated.map_or(Dim.text("-"), |it| self.rate(get(it)).into())
            };
            table.row(cells![
                Heading.text(format!("N{}", node.node)),
                node.cpus,
                match node.cpus {
                    0 => Dim.text("no CPUs"),
                    _ => Plain.text(bar(busy)),
                },
                match node.cpus {
                    0 => Text::default(),
                    _ => Plain.text(format!("{:.0} %", 100.0 * busy)),
                },
                size(node.total_bytes),
                size(node.free_bytes),
                size(node.file_bytes),
                pages(|it| it.local.saturating_add(it.other)),
                pages(|it| it.other),
                pages(|it| it.miss),
                pages(|it| it.foreign),
            ]);
        }
        table
    }

    /// Where CPU time is and where the memory is that it would access, with the distance between both.
    pub fn map(&self) -> Table {
        let pairs = by_node_pair(self.tasks);
        let online = || self.machine.online_nodes();
        let with_cpus = online().filter(|it| !it.known_cpus().is_empty());
        let memory = online().filter(|node| node.has_memory() != Some(false));
        let memory = memory.map(|node| node.id).take(MAX_MAP_NODES);
        let memory: Vec<NodeId> = memory.collect();
        let heads = memory.iter().map(|node| format!("memory N{node}"));
        let heads = ["CPU time of".to_owned()].into_iter().chain(heads);
        let columns: Vec<_> = heads.map(|head| (head, Align::Right)).collect();
        let mut table = Table::new(&columns).indent(0);
        for from in with_cpus.map(|node| node.id) {
            let cells = memory.iter().map(|&to| self.pair(&pairs, from, to));
            let name = Heading.text(format!("N{from}"));
            table.row([name].into_iter().chain(cells));
        }
        table
    }

    fn pair(&self, pairs: &[NodePair], from: NodeId, to: NodeId) -> Text {
        let distance = match self.machine.distance(from, to) {
            Some(distance) => format!("at {}: ", distance.0),
            None => "at ?: ".to_owned(),
        };
        let found = pairs
            .iter()
            .find(|pair| (pair.cpus, pair.memory) == (from, to));
        let seconds = found.map_or(0.0, |pair| pair.seconds);
        let percent = 100.0 * seconds / self.look.seconds.max(1e-9);
        let role = match (from == to, percent) {
            (true, _) => Local,
            (false, 1.0..) => Far,
            (false, _) => Plain,
        };
        Dim.text(distance).then(role, format!("{percent:.0} %"))
    }

    /// A row a task, in this order.
    pub fn tasks<'t>(&self, tasks: impl IntoIterator<Item = &'t TaskPlacement>) -> Table {
        let mut table = placement_table("pid", "task");
        for task in tasks {
            let (pid, name) = (Dim.text(task.pid), Subject.text(&task.name));
            table.row(self.row(pid, name, &task.at, held(&task.held_by)));
        }
        table
    }

    /// A row a control group, by the name of its unit or container.
    pub fn groups<'t>(&self, groups: impl IntoIterator<Item = &'t GroupPlacement>) -> Table {
        let mut table = placement_table("tasks", "group");
        for group in groups {
            let (number, name) = (Dim.text(group.tasks), group_name(group));
            table.row(self.row(number, name, &group.at, Text::default()));
        }
        table
    }

    fn row(&self, number: Text, name: Text, at: &Placement, held: Text) -> [Text; 9] {
        let percent = |seconds: Option<f64>| match seconds {
            Some(seconds) => Plain.text(self.percent(seconds)),
            None => Dim.text("?"),
        };
        let [memory, is_on] = memory(at);
        cells![
            number,
            name,
            percent(at.cpu_s.get().copied()),
            runs_on(at),
            memory,
            is_on,
            remote(&at.remote),
            percent(cost_s(&at.remote)),
            held,
        ]
    }

    /// A row a device whose interrupts fired, and a row a path of NVMe namespaces with several.
    pub fn devices(&self) -> Table {
        let mut table = Table::of(["device", "is", ">on", ">near/s", ">far/s", ">far"]).indent(0);
        for device in self.look.devices.get().into_iter().flatten() {
            let all = device.near + device.far;
            let share = device.far as f64 / all.max(1) as f64;
            let role = match (device.node, share) {
                (None, _) => Dim,
                (_, FAR_SHARE..) => Far,
                (_, MIDDLING_SHARE..) => Middling,
                _ => Local,
            };
            // Near or far to what?
            let count = |times: u64| match device.node {
                Some(_) => self.rate(times),
                None => "-".to_owned(),
            };
            table.row(cells![
                Subject.text(device.device),
                device.names.join(", "),
                on(device.node),
                count(device.near),
                count(device.far),
                role.text(match device.node {
                    Some(_) => format!("{:.0} %", 100.0 * share),
                    None => format!("node unknown: {}/s", self.rate(all)),
                }),
            ]);
        }
        table
    }

    /// A row a path of NVMe namespaces with several paths.
    pub fn nvme_paths(&self) -> Table {
        let mut table = Table::of(["path", "controller", ">on", ">requests/s"]).indent(0);
        for path in &self.look.nvme_paths {
            table.row(cells![
                Subject.text(&path.path),
                &path.controller,
                on(path.node),
                self.rate(path.requests),
            ]);
        }
        table
    }

    /// Everything known of a task, and the command that brings it near.
    pub fn details(&self, task: &TaskPlacement) -> Document {
        let mut out = Document::titled(Subject.text(&task.name), format!("process {}", task.pid));
        let unknown = |reason: &str| Dim.text(format!("unknown: {reason}"));
        let resident = match &task.resident {
            Known::Yes(it) => Text::from(format!(
                "{}: anonymous {}, file {}, shared {}, huge {}; pinned {}",
                bytes(it.total()),
                bytes(it.anonymous),
                bytes(it.file),
                bytes(it.shared),
                bytes(it.huge),
                bytes(it.pinned)
            )),
            Known::No { unknown_reason } => unknown(unknown_reason),
        };
        let mut ages = self.look.memory_ages.iter();
        let age = ages.find(|age| age.pid == task.pid);
        let age = age.map(|age| format!("{:.0} s ago", age.seconds));
        out.facts([
            ("service", or(task.service.as_ref(), "").into()),
            ("group", known(&task.group)),
            ("user", known(&task.user)),
            ("memory", resident),
            ("on nodes", self.memory_by_node(task)),
            ("memory read", or(age, "").into()),
            ("kept by", held(&task.held_by)),
        ]);
        if let Some(remedy) = &task.remedy {
            out.labelled("remedy: ", format!("{}: {}", action(remedy), remedy.reason));
            for command in commands(task.pid, remedy) {
                out.command(command);
            }
        }
        let mut table = Table::of([">tid", "thread", ">CPU %", "runs on", ">remote"]);
        for thread in task.threads.iter().take(MAX_THREADS) {
            table.row(cells![
                Dim.text(thread.tid),
                &thread.name,
                self.percent(thread.cpu_s),
                on(thread.node),
                remote(&thread.remote),
            ]);
        }
        out.table(table);
        out
    }

    fn memory_by_node(&self, task: &TaskPlacement) -> Text {
        let Known::Yes(memory) = &task.at.memory else {
            return known(&task.at.memory.as_ref().map(|_| ""));
        };
        let parts = memory.iter();
        let parts = parts.map(|on| format!("N{} {}", on.node, bytes(on.bytes)));
        let parts: Vec<String> = parts.collect();
        let error = task.sample.map(|sample| bytes(sample.error_bytes));
        let error = error.map(|error| format!(" (sampled, +-{error})"));
        (parts.join(", ") + &or(error, "")).into()
    }

    /// All of it, for logs: at most `rows` tasks.
    pub fn document(&self, rows: usize) -> Document {
        let mut out = Document::titled(
            "nearfar top",
            format!("{}; {:.1} s", self.time(), self.look.seconds),
        );
        for line in self.summary() {
            out.paragraph(line);
        }
        out.table(self.nodes());
        if self.machine.online_nodes().count() > 1 {
            out.subheading(3, "CPU time by where its memory is, in percent of a CPU");
            out.table(self.map());
        }
        let devices = self.devices();
        if !devices.is_empty() {
            out.subheading(3, "Interrupts");
            out.table(devices);
        }
        let paths = self.nvme_paths();
        if !paths.is_empty() {
            out.subheading(3, "NVMe paths");
            out.table(paths);
        }
        out.subheading(3, "Tasks");
        let all = &self.tasks.tasks;
        let table = self.tasks(all.iter().take(rows));
        match table.is_empty() {
            true => out.paragraph("no task matches"),
            false => out.table(table),
        }
        out.more(all.len(), rows, "");
        if self.tasks.min_bytes > 0 {
            let least = bytes(self.tasks.min_bytes);
            out.remark(format!("tasks with less than {least} are left out"));
        }
        out
    }
}

/// What brings a task and its memory together.
fn commands(pid: i32, remedy: &Remedy) -> Vec<String> {
    let Some(node) = remedy.node else {
        return Vec::new();
    };
    let memory = format!("nearfar apply --memory {pid} --to-node {node}");
    let task = format!("nearfar prefer --pid {pid} --node {node}");
    match remedy.action {
        Action::MoveMemory => vec![memory],
        Action::MoveTask => vec![task],
        Action::MoveBoth => vec![task, memory],
        Action::Nothing => Vec::new(),
    }
}

fn placement_table(number: &str, name: &str) -> Table {
    let number = format!(">{number}");
    Table::of([
        &number, name, ">CPU %", "runs on", ">memory", "is on", ">remote", ">cost %", "kept by",
    ])
    .indent(0)
}

fn on(node: Option<NodeId>) -> Text {
    match node {
        Some(node) => Heading.text(format!("N{node}")),
        None => Dim.text("?"),
    }
}

fn known<T: std::fmt::Display>(value: &Known<T>) -> Text {
    match value {
        Known::Yes(value) => Text::from(value),
        Known::No { unknown_reason } => Dim.text(format!("unknown: {unknown_reason}")),
    }
}

/// `#####.....`
fn bar(share: f64) -> String {
    let full = (share * BAR as f64).round() as usize;
    let full = full.min(BAR);
    "#".repeat(full) + &".".repeat(BAR - full)
}

/// `0`, `0.4`, `17`, `12.3k`, `4.0M`
fn rate(by_second: f64) -> String {
    match by_second {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{by_second:.1}"),
        ..10_000.0 => format!("{by_second:.0}"),
        ..1e6 => format!("{:.1}k", by_second / 1e3),
        _ => format!("{:.1}M", by_second / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_digits_that_mean_something() {
        let texts = [0.0, 0.44, 17.2, 9_999.0, 12_345.0, 4e6].map(rate);
        assert_eq!(texts, ["0", "0.4", "17", "9999", "12.3k", "4.0M"]);
    }

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        assert_eq!(
            [0.0, 0.52, 1.0, 7.0].map(bar),
            ["..........", "#####.....", "##########", "##########"]
        );
    }
}
