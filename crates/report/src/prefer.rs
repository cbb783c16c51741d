//! What a keeper did.

pub mod check;
pub mod group;

use nearfar_machine::Emulation;
use nearfar_prefer::KeeperReport;
use nearfar_prefer::keeper::MovedMemory;

use crate::amount::count;
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Who was kept where, how often somebody was released, who was skipped, and what it cost.
pub fn table(
    report: &KeeperReport,
    near: Option<&str>,
    emulation: Option<&Emulation>,
    style: &Style,
) -> String {
    let remark = format!("CPUs {}; {:.1} s", report.cpus, report.seconds);
    let mut out = heading(style, &format!("Preferred node {}", report.node), &remark);
    let mut say =
        |role: Role, text: &str| out.push_str(&paragraph(style, 2, (role, ""), role, text));
    if let Some(near) = near {
        say(Role::Plain, &format!("near: {near}"));
    }
    let threads = count(report.threads as usize, "thread");
    let processes = if report.processes == 1 {
        "1 process".to_owned()
    } else {
        format!("{} processes", report.processes)
    };
    let verb = if report.threads == 1 { "is" } else { "are" };
    let node = report.node;
    let kept = match report.nothing_to_narrow {
        true => format!(
            "{threads} of {processes} {verb} confined to node {node} already: nothing was changed"
        ),
        false => format!("kept {threads} of {processes}"),
    };
    say(Role::Plain, &kept);
    let released_now = match report.out_now {
        0 => String::new(),
        now => format!("; {now} still released at the end"),
    };
    let widened = match report.widened {
        0 => "no thread was released".to_owned(),
        often => format!(
            "released {} while the node was full{released_now}",
            times(often)
        ),
    };
    say(Role::Plain, &widened);
    say(
        Role::Dim,
        &format!(
            "the keeper took {:.2} % of a CPU: {}{}",
            100.0 * report.cpu_share(),
            count(report.looks as usize, "look"),
            if report.longest_pause_s > 0.25 {
                format!(
                    ", up to {:.2} s apart so as not to cost more",
                    report.longest_pause_s
                )
            } else {
                String::new()
            }
        ),
    );
    if let Some(memory) = &report.memory {
        let text = memory_moved(memory);
        say(Role::Plain, &text);
    }
    if !report.guarded {
        say(
            Role::Warning,
            "There was no guard: had this been killed, the next nearfar would have put masks back.",
        );
    }
    out.push_str(&skipped(report, style));
    if let Some(emulation) = emulation {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Warning, ""),
            Role::Warning,
            &emulation.to_string(),
        ));
    }
    whole(out)
}

/// What became of the pages, and why some were left.
fn memory_moved(memory: &MovedMemory) -> String {
    let reasons = [
        (memory.left_shared, "mapped by other processes too"),
        (memory.left_busy, "busy"),
        (memory.left_no_memory, "no memory on the node"),
        (memory.left_other, "not movable or unmapped"),
    ];
    let reasons: Vec<_> = reasons
        .iter()
        .filter(|(pages, _)| *pages > 0)
        .map(|(pages, why)| format!("{pages} {why}"))
        .collect();
    let left = if reasons.is_empty() {
        "none left".to_owned()
    } else {
        format!("left: {}", reasons.join(", "))
    };
    let interrupted = if memory.is_interrupted {
        "; ended before all pages were looked at"
    } else {
        ""
    };
    let refused = memory
        .refused
        .as_ref()
        .map_or(String::new(), |why| format!("; refused: {why}"));
    let moved = count(memory.pages_moved as usize, "page");
    format!(
        "memory moved to the node {}: {moved}, {left}{interrupted}{refused}",
        times(memory.moves)
    )
}

fn skipped(report: &KeeperReport, style: &Style) -> String {
    if report.skipped.is_empty() {
        return String::new();
    }
    let remark = "set their own affinity, or had it set, while they were kept";
    let mut out = heading(style, "Skipped", remark);
    let mut grid = Grid::new(&[
        ("thread", Side::Right),
        ("process", Side::Right),
        ("name", Side::Left),
        ("CPUs", Side::Left),
    ]);
    for left in &report.skipped {
        grid.row(vec![
            left.tid.to_string().into(),
            left.pid.to_string().into(),
            Cell::new(Role::Subject, &left.name),
            left.cpus.to_string().into(),
        ]);
    }
    out.push_str(&grid.render(style));
    let more = report.skipped_count - report.skipped.len() as u64;
    if more > 0 {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Dim, ""),
            Role::Dim,
            &format!("and {more} more"),
        ));
    }
    out
}

fn times(often: u64) -> String {
    match often {
        1 => "once".to_owned(),
        often => format!("{often} times"),
    }
}
