//! What a keeper did.

pub mod check;
pub mod group;

use nearfar_machine::Emulation;
use nearfar_prefer::KeeperReport;
use nearfar_prefer::keeper::MovedMemory;

use crate::amount::count;
use crate::document::{Document, Table, cells};
use crate::style::Role::{Subject, Warning};

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
    near.into_iter()
        .for_each(|near| out.paragraph(format!("near: {near}")));
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
    emulation
        .into_iter()
        .for_each(|it| out.paragraph(Warning.text(it)));
    out
}

fn kept(report: &KeeperReport) -> String {
    let threads = count(report.threads as usize, "thread");
    let processes = match report.processes {
        1 => "1 process".to_owned(),
        number => format!("{number} processes"),
    };
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
    let pause = match report.longest_pause_s {
        pause if pause > MIN_NAMED_PAUSE_S => {
            format!(", up to {pause:.2} s apart so as not to cost more")
        }
        _ => String::new(),
    };
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
    let refused = memory
        .refused
        .as_ref()
        .map(|why| format!("; refused: {why}"));
    format!(
        "memory moved to the node {}: {}, {left}{interrupted}{}",
        times(memory.moves),
        count(memory.pages_moved as usize, "page"),
        refused.unwrap_or_default()
    )
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
        table.row(cells![
            task.tid,
            task.pid,
            Subject.text(&task.name),
            &task.cpus
        ]);
    }
    out.table(table);
    out.more(report.skipped_count as usize - report.skipped.len(), "");
}

fn times(often: u64) -> String {
    match often {
        1 => "once".to_owned(),
        often => format!("{often} times"),
    }
}
