//! What a keeper did, of tasks or of a control group; what a configuration of the preferred-node service would do now.

use nearfar_machine::Emulation;
use nearfar_prefer::KeeperReport;
use nearfar_prefer::cgroup::GroupReport;
use nearfar_prefer::keeper::MovedMemory;
use nearfar_prefer::service::{Checked, CheckedTask};

use crate::amount::{count, first_of, or};
use crate::document::{Document, Table, cells};
use crate::style::Role::{Plain, Subject, Warning};

/// A longer pause between two looks is named, in seconds.
const MIN_NAMED_PAUSE_S: f64 = 0.25;

/// Which tasks were kept where, how often some were released, which were skipped, and what it cost.
pub fn document(
    report: &KeeperReport,
    near: Option<&str>,
    emulation: Option<&Emulation>,
) -> Document {
    let remark = format!("CPUs {}; {:.1} s", report.cpus, report.seconds);
    let mut out = Document::titled(format!("Preferred node {}", report.node), remark);
    near_to(near, &mut out);
    out.paragraph(kept(report));
    out.paragraph(match (report.widened, report.out_now) {
        (0, _) => "no thread was released".to_owned(),
        (often, 0) => format!("released {} while the node was full", times(often)),
        (often, now) => {
            let often = times(often);
            format!("released {often} while the node was full; {now} still released at the end")
        }
    });
    out.remark(cost(report));
    if let Some(memory) = &report.memory {
        out.paragraph(memory_moved(memory));
    }
    if !report.guarded {
        let text =
            "There was no guard: had this been killed, the next nearfar would have put masks back.";
        out.paragraph(Warning.text(text));
    }
    skipped(report, &mut out);
    emulated(emulation, &mut out);
    out
}

fn near_to(near: Option<&str>, out: &mut Document) {
    if let Some(near) = near {
        out.paragraph(format!("near: {near}"));
    }
}

fn emulated(emulation: Option<&Emulation>, out: &mut Document) {
    if let Some(emulation) = emulation {
        out.paragraph(Warning.text(emulation));
    }
}

fn kept(report: &KeeperReport) -> String {
    let threads = count(report.threads as usize, "thread");
    let processes = count(report.processes as usize, "process");
    let verb = if report.threads == 1 { "is" } else { "are" };
    let node = report.node;
    match report.nothing_to_narrow {
        true => format!(
            "{threads} of {processes} {verb} confined to node {node} already: nothing was changed"
        ),
        false => format!("kept {threads} of {processes}"),
    }
}

fn cost(report: &KeeperReport) -> String {
    let (percent, looks) = (
        100.0 * report.cpu_share(),
        count(report.looks as usize, "look"),
    );
    let pause = Some(report.longest_pause_s).filter(|pause| *pause > MIN_NAMED_PAUSE_S);
    let pause = pause.map(|pause| format!(", up to {pause:.2} s apart so as not to cost more"));
    let pause = or(pause, "");
    format!("the keeper took {percent:.2} % of a CPU: {looks}{pause}")
}

/// How many pages were moved, and why some were left.
fn memory_moved(memory: &MovedMemory) -> String {
    let reasons = [
        (memory.left_shared, "mapped by other processes too"),
        (memory.left_busy, "busy"),
        (memory.left_no_memory, "no memory on the node"),
        (memory.left_other, "not movable or unmapped"),
    ];
    let reasons = reasons.iter().filter(|(pages, _)| *pages > 0);
    let reasons: Vec<_> = reasons
        .map(|(pages, why)| format!("{pages} {why}"))
        .collect();
    let left = match reasons.is_empty() {
        true => "none left".to_owned(),
        false => format!("left: {}", reasons.join(", ")),
    };
    let interrupted = match memory.is_interrupted {
        true => "; ended before all pages were looked at",
        false => "",
    };
    let refused = memory.refused.as_ref();
    let refused = or(refused.map(|why| format!("; refused: {why}")), "");
    let (times, pages) = (
        times(memory.moves),
        count(memory.pages_moved as usize, "page"),
    );
    format!("memory moved to the node {times}: {pages}, {left}{interrupted}{refused}")
}

fn skipped(report: &KeeperReport, out: &mut Document) {
    if report.skipped.is_empty() {
        return;
    }
    out.heading(
        "Skipped",
        "set their own affinity, or had it set, while they were kept",
    );
    let mut table = Table::of([">thread", ">process", "name", "CPUs"]);
    for task in &report.skipped {
        let name = Subject.text(&task.name);
        table.row(cells![task.tid, task.pid, name, &task.cpus]);
    }
    out.table(table);
    let all = report.skipped_count as usize;
    out.more(all, report.skipped.len(), "");
}

fn times(often: u64) -> String {
    match often {
        1 => "once".to_owned(),
        often => format!("{often} times"),
    }
}

/// How a group was kept through its cpuset, how often it was released, what that cost.
pub fn group(
    group: &str,
    how: &str,
    near: Option<&str>,
    report: &GroupReport,
    emulation: Option<&Emulation>,
) -> Document {
    let remark = format!("CPUs {}; {:.1} s", report.cpus, report.seconds);
    let mut out = Document::titled(format!("Control group {group}"), remark);
    near_to(near, &mut out);
    out.paragraph(format!("kept {how}"));
    out.paragraph(match report.widened {
        0 => "it never had to be released".to_owned(),
        often => {
            let (times, seconds) = (times(often), report.wide_s);
            format!("released {times} while the node was full, for {seconds:.1} s")
        }
    });
    let percent = 100.0 * report.cpu_s / report.seconds.max(1e-9);
    out.remark(format!("the keeper took {percent:.2} % of a CPU"));
    if let Some(ended) = &report.ended {
        out.paragraph(Warning.text(format!("ended early: {ended}")));
    }
    emulated(emulation, &mut out);
    out
}

/// The most tasks that a rule lists.
const MAX_LISTED: usize = 8;

/// A line a rule, then the tasks it would have.
pub fn check(rules: &[Checked]) -> Document {
    let mut table = Table::of(["rule", ">line", "place", "tasks now"]).indent(0);
    for rule in rules {
        let role = if rule.node.is_some() { Plain } else { Warning };
        let (name, place) = (Subject.text(&rule.rule), role.text(&rule.located));
        table.row(cells![name, rule.line, place, tasks_of(&rule.tasks)]);
    }
    table.into()
}

fn tasks_of(tasks: &[CheckedTask]) -> String {
    if tasks.is_empty() {
        return "none".to_owned();
    }
    let task = |task: &CheckedTask| match task.also.as_slice() {
        [] => format!("{} {}", task.name, task.pid),
        later => format!("{} {} (before {})", task.name, task.pid, later.join(", ")),
    };
    first_of(&Vec::from_iter(tasks.iter().map(task)), MAX_LISTED)
}
