//! What the lab finds on a machine and how to fix what is missing, the kernels for guests, and the cache.

use std::time::SystemTime;

use nearfar_lab::cache::{CacheEntry, Kind, Trimmed};
use nearfar_lab::doctor::{Doctor, State};
use nearfar_lab::kernels::Entry;

use crate::amount::{ago, bytes, count};
use crate::document::{Document, Table, cells};
use crate::style::Role::{self, Critical, Dim, Local, Notice, Subject, Warning};

/// Every part with its state; below, for each that is missing or degraded, the consequence and the command that fixes it.
pub fn doctor(doctor: &Doctor) -> Document {
    let (missing, degraded) = (doctor.count(State::Missing), doctor.count(State::Degraded));
    let remark = match (missing, degraded) {
        (0, 0) => "everything is there".to_owned(),
        _ => {
            let (ok, all) = (doctor.count(State::Ok), count(doctor.items.len(), "part"));
            format!("{ok} of {all} ok, {degraded} degraded, {missing} missing")
        }
    };
    let mut out = Document::titled("Lab", remark);
    let mut table = Table::of(["", "part", ""]);
    for item in &doctor.items {
        let (role, word) = word(item.state);
        table.row(cells![
            role.text(word),
            Subject.text(&item.what),
            &item.detail
        ]);
    }
    out.table(table);
    if missing + degraded > 0 {
        out.heading("What to do", "");
    }
    // What is missing keeps people from more than what is degraded.
    for state in [State::Missing, State::Degraded] {
        for item in doctor.items.iter().filter(|item| item.state == state) {
            let label = word(state).0.text(format!("{}: ", item.what));
            out.labelled(label, item.consequence.as_deref().unwrap_or_default());
            item.command.iter().for_each(|command| out.command(command));
        }
    }
    out
}

fn word(state: State) -> (Role, &'static str) {
    match state {
        State::Ok => (Local, "ok"),
        State::Degraded => (Warning, "degraded"),
        State::Missing => (Critical, "missing"),
    }
}

/// One line a kernel; for one that is not cached, the command that fetches it.
pub fn kernels(kernels: &[Entry]) -> Document {
    let mut table = Table::of(["series", "for", "release", ""]).indent(0);
    for entry in kernels {
        let state = match (&entry.damage, entry.cached) {
            (Some(damage), _) => Warning.text(damage),
            (None, true) => Dim.text(entry.package.as_deref().unwrap_or_default()),
            (None, false) => Notice.text(nearfar_lab::advice::get_kernel(entry.series, entry.arch)),
        };
        let release = entry.release.as_deref().unwrap_or("not cached");
        table.row(cells![
            Subject.text(entry.series),
            entry.arch,
            release,
            state
        ]);
    }
    table.into()
}

/// A line an entry, its problem below the table, and the total with the limit. The kernel modules among the unpacked files
/// share a line.
pub fn list(entries: &[CacheEntry], limit_bytes: u64, now: SystemTime) -> Document {
    let mut table = Table::of(["kind", "name", ">size", ">last used"]).indent(0);
    // The sort is stable: within a kind the order stays that of the cache.
    let mut lines = lines_of(entries);
    lines.sort_by_key(|entry| entry.kind);
    for entry in &lines {
        table.row(cells![
            Dim.text(entry.kind.name()),
            Subject.text(&entry.name),
            bytes(entry.bytes),
            ago(now.duration_since(entry.last_used).unwrap_or_default()),
        ]);
    }
    let mut out = Document::from(table);
    for entry in entries {
        if let Some(problem) = &entry.problem {
            out.indented(0, Warning.text("! "), format!("{}: {problem}", entry.name));
        }
    }
    out.indented(0, "", of_limit(total(entries), limit_bytes));
    out
}

/// The entries that have a line each, and the modules as one entry.
fn lines_of(entries: &[CacheEntry]) -> Vec<CacheEntry> {
    let is_module = |entry: &CacheEntry| {
        entry.kind == Kind::Unpacked && entry.problem.is_none() && entry.name.contains(".ko")
    };
    let (modules, mut lines): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(is_module);
    if let Some(newest) = modules.iter().max_by_key(|entry| entry.last_used) {
        lines.push(CacheEntry {
            name: count(modules.len(), "kernel module"),
            bytes: total(&modules),
            ..newest.clone()
        });
    }
    lines
}

fn total(entries: &[CacheEntry]) -> u64 {
    let sizes = entries.iter().map(|entry| entry.bytes);
    sizes.fold(0, u64::saturating_add)
}

fn of_limit(total_bytes: u64, limit_bytes: u64) -> String {
    let (total, limit) = (bytes(total_bytes), bytes(limit_bytes));
    match total_bytes > limit_bytes {
        true => format!("total {total}, over the limit of {limit}"),
        false => format!("total {total}, limit {limit}"),
    }
}

/// A line for each entry that was removed, or with `is_dry_run` would be, and the sum; one line for all modules.
pub fn removed(entries: &[CacheEntry], is_dry_run: bool) -> Document {
    let (remove, free) = match is_dry_run {
        true => ("would remove", "would free"),
        false => ("removed", "freed"),
    };
    let mut table = Table::of(["", "", "", ">"]).indent(0);
    for entry in &lines_of(entries) {
        let (kind, name) = (Dim.text(entry.kind.name()), Subject.text(&entry.name));
        table.row(cells![remove, kind, name, bytes(entry.bytes)]);
    }
    let mut out = Document::from(table);
    out.indented(0, "", format!("{free} {}", bytes(total(entries))));
    out
}

/// What was removed for the limit, and what the cache uses now.
pub fn limit(trimmed: &Trimmed) -> Document {
    let mut out = match trimmed.removed.is_empty() {
        true => Document::new(),
        false => removed(&trimmed.removed, false),
    };
    out.indented(0, "", of_limit(trimmed.total_bytes, trimmed.limit_bytes));
    if trimmed.untrimmed_bytes > trimmed.limit_bytes {
        let fetched = bytes(trimmed.untrimmed_bytes);
        let text = "of it are kernels and other fetched files, which only `clear` removes";
        out.indented(0, "", format!("{fetched} {text}"));
    }
    out
}
