//! A plan: what would be changed, and what is left alone; a typed change in words.

use std::collections::BTreeMap;
use std::fmt::Display;

use nearfar_change::{Change, DistanceChange, LeftAlone, Plan, Planned, Setting};

use crate::amount::{count, first_of, or};
use crate::document::{Document, Table, cells};
use crate::style::Role::{Dim, Local, Subject};

/// Most subjects named for one reason.
const MAX_SUBJECTS: usize = 6;

/// The changes by the rule they fix, each with the file, the value now and after, and the distance; then what is
/// left alone and why.
pub fn document(plan: &Plan) -> Document {
    let title = match plan.changes.len() {
        0 => "Nothing to change".to_owned(),
        number => count(number, "change"),
    };
    let host = plan.host.as_ref().map(|host| format!("for {host}"));
    let mut out = Document::titled(title, host.unwrap_or_default());
    if plan.changes.is_empty() && !plan.not_checked.is_empty() {
        let rules = plan.not_checked.join(", ");
        out.remark(format!("Not checked for want of input: {rules}"));
    }
    for changes in plan.changes.chunk_by(|a, b| a.rule == b.rule) {
        out.heading(&changes[0].rule, count(changes.len(), "change"));
        changes_of(changes, &mut out);
    }
    left_alone(&plan.left_alone, &mut out);
    out
}

/// One reason and all the changes: where each has a reason of its own, the first stands for its likes.
fn changes_of(changes: &[Planned], out: &mut Document) {
    let reason = &changes[0].reason;
    out.paragraph(reason);
    if changes.iter().any(|planned| planned.reason != *reason) {
        out.remark(
            "The others have reasons of their own; --format script and --format json name them.",
        );
    }
    if let Some(caution) = changes.iter().find_map(|planned| planned.change.caution()) {
        out.warning(caution);
    }
    let mut table = Table::of(["what", "now", "then", "distance", "file"]).indent(4);
    for planned in changes {
        let setting = Setting::of(&planned.change);
        let before = planned
            .before
            .as_deref()
            .map(|before| setting.shown(before));
        table.row(cells![
            Subject.text(planned.change.subject()),
            Dim.text(before.as_deref().unwrap_or("not seen")),
            Local.text(value(&planned.change)),
            distance(planned.distance),
            Dim.text(setting.path()),
        ]);
    }
    out.table(table);
}

pub(crate) fn left_alone(all: &[LeftAlone], out: &mut Document) {
    if all.is_empty() {
        return;
    }
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for left in all {
        let subjects = reasons.entry((&left.rule, &left.reason)).or_default();
        subjects.push(&left.subject);
    }
    out.heading("Left alone", all.len());
    for ((rule, reason), subjects) in reasons {
        let named = first_of(&subjects, MAX_SUBJECTS);
        out.labelled(Dim.text(format!("{rule}: ")), format!("{named}: {reason}"));
    }
}

/// Why a setting is not undone: its file is gone.
pub(crate) const GONE: &str = "the file is no longer there";
/// The same of the memory of a process.
pub(crate) const PROCESS_GONE: &str = "the process has ended or runs another program";
/// Why a setting is not undone: the kernel that had it has ended.
pub(crate) const GONE_WITH_REBOOT: &str = "a reboot has reset it";

/// Why a setting is not undone: its file belongs to another device now.
pub(crate) fn other_owner(was: impl Display, now: impl Display) -> String {
    format!("it was {was}, it is {now} now")
}

/// The value it writes, as a person would write it: CPU sets as lists.
pub(crate) fn value(change: &Change) -> String {
    match change {
        Change::TaskMemory {
            from, to, shared, ..
        } => {
            let shared = if *shared { ", shared pages too" } else { "" };
            format!("nodes {from} to node {to}{shared}")
        }
        _ => or(Some(change.value()).filter(|it| !it.is_empty()), "none"),
    }
}

/// `21 -> 10`; empty where both are unknown.
pub(crate) fn distance(change: Option<DistanceChange>) -> String {
    let Some(DistanceChange { now, after }) = change else {
        return String::new();
    };
    match (now, after) {
        (None, None) => String::new(),
        _ => format!("{} -> {}", or(now, "?"), or(after, "?")),
    }
}
