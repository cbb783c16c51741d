//! The change sets that were made on a system.

use nearfar_change::{ChangeSet, ChangeSetState, ChangeSetWrite, WriteState};

use crate::amount::{count, moment};
use crate::change::{self, GONE, GONE_WITH_REBOOT, PROCESS_GONE};
use crate::document::{Document, Table, Text, cells};
use crate::style::Role::{Critical, Dim, Local, Middling, Subject, Warning};

/// Most writes of a change set that are shown.
const MAX_WRITES: usize = 12;

/// Each change set, newest first, with what it wrote and whether that is still in force. `options`: those that name the target, as
/// they are typed, each with a space before it.
pub fn document(sets: &[ChangeSet], options: &str) -> Document {
    let mut out = Document::new();
    if sets.is_empty() {
        out.heading("No change sets", "nearfar has changed nothing here");
    }
    sets.iter()
        .rev()
        .for_each(|set| one(set, options, &mut out));
    out
}

fn one(set: &ChangeSet, options: &str, out: &mut Document) {
    let (state, reason) = match &set.state {
        ChangeSetState::Made => (in_force(set), None),
        ChangeSetState::Interrupted => {
            let command = format!("nearfar rollback{options} --change {}", set.change_set);
            (format!("interrupted: `{command}` undoes it"), None)
        }
        ChangeSetState::InProgress => ("in progress: its process is making it".to_owned(), None),
        ChangeSetState::Undone => (undone(set), None),
        ChangeSetState::Gone => ("gone: there was nothing left to undo".to_owned(), None),
        ChangeSetState::NothingMade => ("nothing made".to_owned(), None),
        ChangeSetState::GoneWithReboot => ("gone with a reboot".to_owned(), None),
        ChangeSetState::Unreadable { reason } => {
            ("its journal cannot be read".to_owned(), Some(reason))
        }
    };
    let mut parts = vec![state];
    parts.extend(set.label.iter().map(|label| format!("label {label:?}")));
    if set.at_s > 0 {
        parts.push(moment(set.at_s));
    }
    parts.extend(set.host.iter().map(|host| format!("on {host}")));
    if reason.is_none() {
        parts.push(count(set.changes.len(), "write"));
    }
    out.heading(format!("Change set {}", set.change_set), parts.join(", "));
    if let Some(reason) = reason {
        out.warning(reason);
    }
    let mut table = Table::of(["", "file", "before", "after", ""]);
    for write in set.changes.iter().take(MAX_WRITES) {
        let (word, note) = described(write);
        table.row(cells![
            word,
            Subject.text(&write.file),
            Dim.text(write.setting.shown(&write.old)),
            write.setting.shown(&write.new),
            Dim.text(note),
        ]);
    }
    out.table(table);
    let hidden = set.changes.len().saturating_sub(MAX_WRITES);
    out.more(hidden, "; --format json has all of them");
}

/// "undone", and how many of its writes had nothing left to undo.
fn undone(set: &ChangeSet) -> String {
    let gone = set.changes.iter().filter(|it| it.state == WriteState::Gone);
    match gone.count() {
        0 => "undone".to_owned(),
        gone => format!("undone, {gone} gone"),
    }
}

/// "in force"; where not all of it is, how much, and the state of the rest.
fn in_force(set: &ChangeSet) -> String {
    let of = |test: fn(&WriteState) -> bool| {
        set.changes
            .iter()
            .filter(|write| test(&write.state))
            .count()
    };
    let tried = of(|state| !matches!(state, WriteState::Failed { .. }));
    if set.in_force == tried {
        return "in force".to_owned();
    }
    let rest = [
        ("undone", of(|state| matches!(state, WriteState::Undone))),
        (
            "changed since",
            of(|state| matches!(state, WriteState::ChangedSince { .. })),
        ),
        (
            "another device's now",
            of(|state| matches!(state, WriteState::OtherOwner { .. })),
        ),
        (
            "gone",
            of(|state| matches!(state, WriteState::Gone | WriteState::GoneWithReboot)),
        ),
        (
            "uncertain",
            of(|state| matches!(state, WriteState::Uncertain)),
        ),
        (
            "not read",
            of(|state| matches!(state, WriteState::NotRead { .. })),
        ),
    ];
    let rest = rest.iter().filter(|(_, number)| *number > 0);
    let rest: String = rest
        .map(|(word, number)| format!(", {number} {word}"))
        .collect();
    format!(
        "{} of {} in force{rest}",
        set.in_force,
        count(tried, "change")
    )
}

fn described(write: &ChangeSetWrite) -> (Text, String) {
    match &write.state {
        WriteState::Made => (Local.text("made"), String::new()),
        WriteState::ChangedSince { now, by_change_set } => {
            let by =
                by_change_set.map_or_else(String::new, |number| format!(" by change set {number}"));
            let now = write.setting.shown(now);
            (
                Middling.text("changed"),
                format!("changed{by} since: {now}"),
            )
        }
        WriteState::OtherOwner { was, now } => {
            (Warning.text("another's"), change::other_owner(was, now))
        }
        WriteState::Gone => {
            let what = match write.setting.is_written() {
                true => GONE,
                false => PROCESS_GONE,
            };
            (Dim.text("gone"), what.to_owned())
        }
        WriteState::GoneWithReboot => (Dim.text("gone"), GONE_WITH_REBOOT.to_owned()),
        WriteState::NotRead { reason } => (Warning.text("not read"), reason.clone()),
        WriteState::Uncertain => (
            Warning.text("uncertain"),
            "killed around the write".to_owned(),
        ),
        WriteState::Failed { error } => (Critical.text("failed"), error.clone()),
        WriteState::Undone => (Dim.text("undone"), String::new()),
    }
}
