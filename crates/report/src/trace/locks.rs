//! Which kernel locks were waited for.

use nearfar_trace::Traced;
use nearfar_trace::locks::{LockWaits, Site};

use super::{head, percent};
use crate::amount::count;
use crate::document::{Document, Table, cells};
use crate::style::Role::Warning;

/// How many call sites a table has; JSON has all.
const MAX_SITES: usize = 12;

/// Waits by call site, the longest in all first.
pub fn locks(traced: &Traced<LockWaits>) -> Document {
    let answer = &traced.answer;
    let mut out = head(traced);
    let waits = count(answer.waits as usize, "wait");
    let time = format!(
        "{waits}, {} in all, {} of it spinning",
        ms(answer.wait_s),
        ms(answer.spin_s)
    );
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
    answer
        .sites
        .iter()
        .take(MAX_SITES)
        .for_each(|site| table.row(row(site)));
    out.table(table);
    if let more @ 1.. = answer.sites.len().saturating_sub(MAX_SITES) {
        out.remark(format!("and {more} more, see JSON"));
    }
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
    if answer.unreadable > 0 {
        let events = count(answer.unreadable as usize, "event");
        out.paragraph(Warning.text(format!("{events} could not be parsed")));
    }
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
            (None, _) => "ended",
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
        if let more @ 1.. = answer.processes.len().saturating_sub(MAX_PROCESSES) {
            out.remark(format!("and {more} more, see JSON"));
        }
    }
}

fn ms(seconds: f64) -> String {
    format!("{:.3} ms", 1e3 * seconds)
}
