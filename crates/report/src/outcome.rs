//! What applying a plan changed, and what undoing it changed.

use nearfar_change::LeftAlone;
use nearfar_change::{Applied, Effective, Outcome, RollbackOutcome, Setting, UndoResult};

use crate::amount::count;
use crate::document::{Document, Table, Text, cells};
use crate::style::Role::{Critical, Dim, Local, Middling, Notice, Subject, Warning};
use crate::{change, plan};

/// What a change or its undoing came to: the word for it, the value of the setting, a remark.
type Shown = (Text, String, String);

/// Every change of the plan with its result: what was made, what was so before, what was left alone, what failed.
/// `left_alone` is the plan's. `options`: those that name the target, as they are typed, each with a space before it; `rollback` needs the same.
pub fn document(outcome: &Outcome, left_alone: &[LeftAlone], options: &str) -> Document {
    let made = outcome
        .changes
        .iter()
        .filter(|tried| tried.result.is_made())
        .count();
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
        let number = outcome
            .change_set
            .map(|number| format!(" --change {number}"));
        let number = number.unwrap_or_default();
        out.remark(format!("to undo: nearfar rollback{options}{number}"));
    }
    out
}

/// A row a setting.
fn results(all: impl Iterator<Item = (String, Shown)>) -> Table {
    let mut table = Table::of(["", "what", "value", ""]);
    for (what, (word, value, note)) in all {
        table.row(cells![word, Subject.text(what), value, Dim.text(note)]);
    }
    table
}

fn applied(setting: &Setting, result: &Applied) -> Shown {
    let shown = |value: &str| setting.shown(value);
    let none = String::new;
    match result {
        Applied::Made {
            before,
            after,
            effective,
            note,
        } => {
            let notes: Vec<String> = note
                .iter()
                .cloned()
                .chain(effective.as_ref().map(in_effect))
                .collect();
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
    let part = if outcome.is_complete() {
        ""
    } else {
        " in part"
    };
    let mut out = Document::titled(title + part, count(outcome.changes.len(), "write"));
    out.table(results(outcome.changes.iter().map(|reverted| {
        let shown = undone(&reverted.setting, &reverted.result);
        (reverted.file.clone(), shown)
    })));
    notes(&outcome.notes, &mut out);
    out
}

fn undone(setting: &Setting, result: &UndoResult) -> Shown {
    let none = String::new;
    match result {
        UndoResult::Restored { from, to, note } => {
            let value = format!("{} -> {}", setting.shown(from), setting.shown(to));
            (
                Local.text("restored"),
                value,
                note.clone().unwrap_or_default(),
            )
        }
        UndoResult::AlreadyBefore => (Dim.text("as before"), none(), none()),
        UndoResult::Gone => (Dim.text("gone"), none(), change::GONE.to_owned()),
        UndoResult::GoneWithReboot => (
            Dim.text("gone"),
            none(),
            change::GONE_WITH_REBOOT.to_owned(),
        ),
        UndoResult::ChangedSince { now, by_change_set } => {
            let by = by_change_set
                .map_or("changed since by another program".to_owned(), |number| {
                    format!("change set {number} changed it since: undo that first")
                });
            (Warning.text("not undone"), setting.shown(now), by)
        }
        UndoResult::OtherOwner { was, now, .. } => (
            Warning.text("refused"),
            none(),
            change::other_owner(was, now),
        ),
        UndoResult::PagesBack { memory } => {
            let word = match result.is_settled() {
                true => Local.text("restored"),
                false => Warning.text("restored in part"),
            };
            (word, none(), memory.described())
        }
        UndoResult::ProcessGone { reason } => (Dim.text("gone"), none(), reason.clone()),
        UndoResult::Failed { error } => (Critical.text("failed"), none(), error.clone()),
    }
}

fn notes(notes: &[String], out: &mut Document) {
    for note in notes {
        out.labelled(Notice.text("note: "), note);
    }
}
