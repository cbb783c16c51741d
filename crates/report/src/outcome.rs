//! What came of carrying a plan out, and of undoing it.

use nearfar_apply::{Applied, Effective, Outcome, Reverted, RollbackOutcome, Setting, UndoResult};

use crate::amount::count;
use crate::change;
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

const COLUMNS: [(&str, Side); 4] = [
    ("", Side::Left),
    ("what", Side::Left),
    ("value", Side::Left),
    ("", Side::Left),
];

/// Every change of the plan with its result: what was made, what was so before, what was left alone, what failed.
/// `options`: those that name the target, as they are typed, each with a space before it; `rollback` needs the same.
pub fn table(outcome: &Outcome, options: &str, style: &Style) -> String {
    let made = outcome
        .changes
        .iter()
        .filter(|tried| matches!(tried.result, Applied::Made { .. }))
        .count();
    let title = match outcome.change_set {
        Some(run) => format!("Change set {run}"),
        None => "Nothing was written".to_owned(),
    };
    let mut out = heading(
        style,
        &title,
        &format!("{made} of {} made", count(outcome.changes.len(), "change")),
    );
    let mut grid = Grid::new(&COLUMNS);
    for tried in &outcome.changes {
        let (role, word, value, note) = applied(&Setting::of(&tried.change), &tried.result);
        grid.row(vec![
            Cell::new(role, word),
            Cell::new(Role::Subject, change::subject(&tried.change)),
            Cell::from(value),
            Cell::new(Role::Dim, note),
        ]);
    }
    out.push_str(&grid.render(style));
    for (what, because) in [
        ("undone again", &outcome.undone_because),
        ("stopped early", &outcome.stopped_because),
    ] {
        if let Some(because) = because {
            out.push_str(&paragraph(
                style,
                2,
                (Role::Warning, &format!("{what}: ")),
                Role::Plain,
                because,
            ));
        }
    }
    out.push_str(&notes(&outcome.notes, style));
    if made > 0 && outcome.undone_because.is_none() {
        let run = outcome
            .change_set
            .map_or_else(String::new, |run| format!(" --change {run}"));
        out.push_str(&paragraph(
            style,
            2,
            (Role::Dim, ""),
            Role::Dim,
            &format!("to undo: nearfar rollback{options}{run}"),
        ));
    }
    whole(out)
}

fn applied(setting: &Setting, result: &Applied) -> (Role, &'static str, String, String) {
    match result {
        Applied::Made {
            before,
            after,
            effective,
            note,
        } => {
            let effective = effective.as_ref().map(|effective| match effective {
                Effective::Now { cpus } => format!("in effect on {cpus}"),
                Effective::WithTheNextInterrupt { cpus } => {
                    format!("still on {cpus} until the next interrupt")
                }
                Effective::NotKnown { because } => {
                    format!("whether it is in effect is unknown: {because}")
                }
            });
            let notes = note
                .iter()
                .cloned()
                .chain(effective)
                .collect::<Vec<_>>()
                .join("; ");
            (
                Role::Local,
                "made",
                format!("{} -> {}", setting.shown(before), setting.shown(after)),
                notes,
            )
        }
        Applied::AlreadySo { now } => (Role::Dim, "so before", setting.shown(now), String::new()),
        Applied::LeftAlone { because } => {
            (Role::Middling, "left alone", String::new(), because.clone())
        }
        Applied::Failed { error } => (Role::Critical, "failed", String::new(), error.clone()),
        Applied::Undone { now } => (Role::Middling, "undone", setting.shown(now), String::new()),
        Applied::NotUndone { undo } => {
            let (.., value, note) = undone(setting, undo);
            (Role::Critical, "not undone", value, note)
        }
    }
}

/// What came of a rollback: each write, newest first.
pub fn rollback(outcome: &RollbackOutcome, style: &Style) -> String {
    let title = match outcome.change_set {
        Some(run) => format!("Change set {run} undone"),
        None => "Nothing to undo".to_owned(),
    };
    let title = if outcome.is_complete() {
        title
    } else {
        format!("{title} in part")
    };
    let mut out = heading(style, &title, &count(outcome.changes.len(), "write"));
    let mut grid = Grid::new(&COLUMNS);
    for Reverted {
        setting,
        file,
        result,
    } in &outcome.changes
    {
        let (role, word, value, note) = undone(setting, result);
        grid.row(vec![
            Cell::new(role, word),
            Cell::new(Role::Subject, file),
            Cell::from(value),
            Cell::new(Role::Dim, note),
        ]);
    }
    out.push_str(&grid.render(style));
    out.push_str(&notes(&outcome.notes, style));
    whole(out)
}

fn undone(setting: &Setting, result: &UndoResult) -> (Role, &'static str, String, String) {
    match result {
        UndoResult::Restored { from, to, note } => (
            Role::Local,
            "restored",
            format!("{} -> {}", setting.shown(from), setting.shown(to)),
            note.clone().unwrap_or_default(),
        ),
        UndoResult::AlreadyBefore => (Role::Dim, "as before", String::new(), String::new()),
        UndoResult::Gone => (
            Role::Dim,
            "gone",
            String::new(),
            "the file is no longer there".to_owned(),
        ),
        UndoResult::GoneWithReboot => (
            Role::Dim,
            "gone",
            String::new(),
            "a reboot has reset it".to_owned(),
        ),
        UndoResult::ChangedSince { now, by_change_set } => {
            let by = by_change_set.map_or("changed since by another program".to_owned(), |run| {
                format!("change set {run} changed it since: undo that first")
            });
            (Role::Warning, "let be", setting.shown(now), by)
        }
        UndoResult::OtherOwner { was, now, .. } => (
            Role::Warning,
            "refused",
            String::new(),
            format!("it was {was}, it is {now} now"),
        ),
        UndoResult::Failed { error } => (Role::Critical, "failed", String::new(), error.clone()),
    }
}

fn notes(notes: &[String], style: &Style) -> String {
    notes
        .iter()
        .map(|note| paragraph(style, 2, (Role::Notice, "note: "), Role::Plain, note))
        .collect()
}
