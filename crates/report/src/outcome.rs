//! What applying a plan changed, what undoing it changed, and the change sets that were made on a system.

use nearfar_change::{
    Applied, ChangeSet, ChangeSetState, ChangeSetWrite, Effective, LeftAlone, Outcome,
    RollbackOutcome, Setting, UndoResult, WriteState,
};

use crate::amount::{count, moment, or};
use crate::document::{Document, Table, Text, cells};
use crate::plan::{self, GONE, GONE_WITH_REBOOT, PROCESS_GONE, other_owner};
use crate::style::Role::{Critical, Dim, Local, Middling, Notice, Subject, Warning};

/// What a change or its undoing came to: the word for it, the value of the setting, a remark.
type ResultTexts = (Text, String, String);

/// Every change of the plan with its result: what was made, what was so before, what was left alone, what failed.
/// `left_alone` is the plan's. `options`: those that name the target, as they are typed, each with a space before it; `rollback` needs the same.
pub fn document(outcome: &Outcome, left_alone: &[LeftAlone], options: &str) -> Document {
    let made = outcome.changes.iter().filter(|it| it.result.is_made());
    let made = made.count();
    let title = match outcome.change_set {
        Some(number) => format!("Change set {number}"),
        None => "Nothing was written".to_owned(),
    };
    let all = count(outcome.changes.len(), "change");
    let mut out = Document::titled(title, format!("{made} of {all} made"));
    out.table(results(outcome.changes.iter().map(|tried| {
        let shown = applied(&Setting::of(&tried.change), &tried.result);
        (tried.change.subject(), shown)
    })));
    for (what, reason) in [
        ("undone again: ", &outcome.undone_reason),
        ("stopped early: ", &outcome.stopped_reason),
    ] {
        if let Some(reason) = reason {
            out.labelled(Warning.text(what), reason);
        }
    }
    plan::left_alone(left_alone, &mut out);
    notes(&outcome.notes, &mut out);
    if made > 0 && outcome.undone_reason.is_none() {
        let number = outcome.change_set;
        let number = or(number.map(|number| format!(" --change {number}")), "");
        out.remark(format!("to undo: nearfar rollback{options}{number}"));
    }
    out
}

/// A row a setting.
fn results(all: impl Iterator<Item = (String, ResultTexts)>) -> Table {
    let mut table = Table::of(["", "what", "value", ""]);
    for (what, (word, value, note)) in all {
        table.row(cells![word, Subject.text(what), value, Dim.text(note)]);
    }
    table
}

fn applied(setting: &Setting, result: &Applied) -> ResultTexts {
    let shown = |value: &str| setting.shown(value);
    let none = String::new;
    match result {
        Applied::Made {
            before,
            after,
            effective,
            note,
        } => {
            let effect = effective.as_ref().map(in_effect);
            let notes: Vec<String> = note.iter().cloned().chain(effect).collect();
            let value = format!("{} -> {}", shown(before), shown(after));
            (Local.text("made"), value, notes.join("; "))
        }
        Applied::Moved {
            before,
            after,
            memory,
        } => {
            let word = match memory.is_as_planned() {
                true => Local.text("moved"),
                false => Middling.text("moved in part"),
            };
            let value = format!("{} -> {}", shown(before), shown(after));
            (word, value, memory.described())
        }
        Applied::ProcessGone { reason } => (Dim.text("gone"), none(), reason.clone()),
        Applied::AlreadySo { now } => (Dim.text("so before"), shown(now), none()),
        Applied::LeftAlone { reason } => (Middling.text("left alone"), none(), reason.clone()),
        Applied::Failed { error } => (Critical.text("failed"), none(), error.clone()),
        Applied::Undone { now } => (Middling.text("undone"), shown(now), none()),
        Applied::NotUndone { undo } => {
            let (_, value, note) = undone(setting, undo);
            (Critical.text("not undone"), value, note)
        }
    }
}

fn in_effect(effective: &Effective) -> String {
    match effective {
        Effective::Now { cpus } => format!("in effect on {cpus}"),
        Effective::WithTheNextInterrupt { cpus } => {
            format!("still on {cpus} until the next interrupt")
        }
        Effective::Nodes { nodes } => format!("in effect on nodes {nodes}"),
        Effective::NotKnown { reason } => format!("whether it is in effect is unknown: {reason}"),
    }
}

/// What a rollback changed: each write, newest first.
pub fn rollback(outcome: &RollbackOutcome) -> Document {
    let title = match outcome.change_set {
        Some(number) => format!("Change set {number} undone"),
        None => "Nothing to undo".to_owned(),
    };
    let part = match outcome.is_complete() {
        true => "",
        false => " in part",
    };
    let mut out = Document::titled(title + part, count(outcome.changes.len(), "write"));
    out.table(results(outcome.changes.iter().map(|reverted| {
        let shown = undone(&reverted.setting, &reverted.result);
        (reverted.file.clone(), shown)
    })));
    notes(&outcome.notes, &mut out);
    out
}

fn undone(setting: &Setting, result: &UndoResult) -> ResultTexts {
    let none = String::new;
    match result {
        UndoResult::Restored { from, to, note } => {
            let value = format!("{} -> {}", setting.shown(from), setting.shown(to));
            (Local.text("restored"), value, or(note.as_ref(), ""))
        }
        UndoResult::AlreadyBefore => (Dim.text("as before"), none(), none()),
        UndoResult::Gone => (Dim.text("gone"), none(), GONE.to_owned()),
        UndoResult::GoneWithReboot => (Dim.text("gone"), none(), GONE_WITH_REBOOT.to_owned()),
        UndoResult::ChangedSince { now, by_change_set } => {
            let by = by_change_set
                .map(|number| format!("change set {number} changed it since: undo that first"));
            let by = or(by, "changed since by another program");
            (Warning.text("not undone"), setting.shown(now), by)
        }
        UndoResult::OtherOwner { was, now, .. } => {
            (Warning.text("refused"), none(), other_owner(was, now))
        }
        UndoResult::PagesBack { memory } => {
            let word = match result.is_settled() {
                true => Local.text("restored"),
                false => Warning.text("restored in part"),
            };
            (word, none(), memory.described())
        }
        // Of leases, which have no table.
        UndoResult::MasksBack | UndoResult::Removed => (Local.text("restored"), none(), none()),
        UndoResult::ProcessGone { reason } => (Dim.text("gone"), none(), reason.clone()),
        UndoResult::Failed { error } => (Critical.text("failed"), none(), error.clone()),
    }
}

fn notes(notes: &[String], out: &mut Document) {
    for note in notes {
        out.labelled(Notice.text("note: "), note);
    }
}

/// Most writes of a change set that are shown.
const MAX_WRITES: usize = 12;

/// Each change set, newest first, with what it wrote and whether that is still in force. `options`: those that name the target, as
/// they are typed, each with a space before it.
pub fn history(sets: &[ChangeSet], options: &str) -> Document {
    let mut out = Document::new();
    if sets.is_empty() {
        out.heading("No change sets", "nearfar has changed nothing here");
    }
    let newest_first = sets.iter().rev();
    newest_first.for_each(|set| one(set, options, &mut out));
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
        ChangeSetState::Undone => (undone_set(set), None),
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
    out.more(
        set.changes.len(),
        MAX_WRITES,
        "; --format json has all of them",
    );
}

/// "undone", and how many of its writes had nothing left to undo.
fn undone_set(set: &ChangeSet) -> String {
    let gone = set.changes.iter().filter(|it| it.state == WriteState::Gone);
    match gone.count() {
        0 => "undone".to_owned(),
        gone => format!("undone, {gone} gone"),
    }
}

/// "in force"; where not all of it is, how much, and the state of the rest.
fn in_force(set: &ChangeSet) -> String {
    let of = |test: fn(&WriteState) -> bool| {
        let changes = set.changes.iter();
        changes.filter(|write| test(&write.state)).count()
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
    let (in_force, tried) = (set.in_force, count(tried, "change"));
    format!("{in_force} of {tried} in force{rest}")
}

fn described(write: &ChangeSetWrite) -> (Text, String) {
    match &write.state {
        WriteState::Made => (Local.text("made"), String::new()),
        WriteState::ChangedSince { now, by_change_set } => {
            let by = or(by_change_set.map(|it| format!(" by change set {it}")), "");
            let now = write.setting.shown(now);
            let since = format!("changed{by} since: {now}");
            (Middling.text("changed"), since)
        }
        WriteState::OtherOwner { was, now } => (Warning.text("another's"), other_owner(was, now)),
        WriteState::Gone => {
            let what = match write.setting.is_written() {
                true => GONE,
                false => PROCESS_GONE,
            };
            (Dim.text("gone"), what.to_owned())
        }
        WriteState::GoneWithReboot => (Dim.text("gone"), GONE_WITH_REBOOT.to_owned()),
        WriteState::NotRead { reason } => (Warning.text("not read"), reason.clone()),
        WriteState::Uncertain => {
            let note = "killed around the write".to_owned();
            (Warning.text("uncertain"), note)
        }
        WriteState::Failed { error } => (Critical.text("failed"), error.clone()),
        WriteState::Undone => (Dim.text("undone"), String::new()),
    }
}
