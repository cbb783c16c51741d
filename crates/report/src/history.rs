//! The change sets that were made on a system.

use nearfar_apply::{ChangeSet, ChangeSetState, ChangeSetWrite, WriteState};

use crate::amount::{count, moment};
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Most writes of a change set that are shown.
const MOST_CHANGES: usize = 12;

/// Each change set, newest first, with what it wrote and what has become of it.
pub fn table(runs: &[ChangeSet], style: &Style) -> String {
    if runs.is_empty() {
        return whole(heading(
            style,
            "No runs",
            "nearfar has changed nothing here",
        ));
    }
    whole(runs.iter().rev().map(|run| one(run, style)).collect())
}

fn one(run: &ChangeSet, style: &Style) -> String {
    let (state, because) = match &run.state {
        ChangeSetState::Made => (in_force(run), None),
        ChangeSetState::Interrupted => ("interrupted: nearfar rollback undoes it".to_owned(), None),
        ChangeSetState::Undone => ("undone".to_owned(), None),
        ChangeSetState::NothingMade => ("nothing made".to_owned(), None),
        ChangeSetState::GoneWithReboot => ("gone with a reboot".to_owned(), None),
        ChangeSetState::Unreadable { because } => {
            ("its journal cannot be read".to_owned(), Some(because))
        }
    };
    let mut parts = vec![state];
    if run.at_s > 0 {
        parts.push(moment(run.at_s));
    }
    parts.extend(run.host.iter().map(|host| format!("on {host}")));
    if because.is_none() {
        parts.push(count(run.changes.len(), "write"));
    }
    let mut out = heading(
        style,
        &format!("Change set {}", run.change_set),
        &parts.join(", "),
    );
    if let Some(because) = because {
        out.push_str(&paragraph(
            style,
            2,
            (Role::Warning, "! "),
            Role::Plain,
            because,
        ));
    }
    let mut grid = Grid::new(&[
        ("", Side::Left),
        ("file", Side::Left),
        ("before", Side::Left),
        ("after", Side::Left),
        ("", Side::Left),
    ]);
    for change in run.changes.iter().take(MOST_CHANGES) {
        let (role, word, note) = described(change);
        grid.row(vec![
            Cell::new(role, word),
            Cell::new(Role::Subject, &change.file),
            Cell::new(Role::Dim, change.setting.shown(&change.old)),
            Cell::from(change.setting.shown(&change.new)),
            Cell::new(Role::Dim, note),
        ]);
    }
    out.push_str(&grid.render(style));
    if run.changes.len() > MOST_CHANGES {
        let more = format!(
            "and {} more; --format json has all of them",
            run.changes.len() - MOST_CHANGES
        );
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, &more));
    }
    out
}

/// "in force"; where not all of it is, how much, and what became of the rest.
fn in_force(run: &ChangeSet) -> String {
    let tried = run
        .changes
        .iter()
        .filter(|change| !matches!(change.state, WriteState::Failed { .. }))
        .count();
    if run.in_force == tried {
        return "in force".to_owned();
    }
    let of = |test: fn(&WriteState) -> bool| {
        run.changes
            .iter()
            .filter(|change| test(&change.state))
            .count()
    };
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
    let mut text = format!("{} of {} in force", run.in_force, count(tried, "change"));
    for (word, number) in rest.into_iter().filter(|(_, number)| *number > 0) {
        text.push_str(&format!(", {number} {word}"));
    }
    text
}

fn described(change: &ChangeSetWrite) -> (Role, &'static str, String) {
    let no_note = String::new();
    match &change.state {
        WriteState::Made => (Role::Local, "made", no_note),
        WriteState::ChangedSince { now, by_change_set } => {
            let by = by_change_set.map_or_else(String::new, |run| format!(" by change set {run}"));
            (
                Role::Middling,
                "changed",
                format!("changed{by} since: {}", change.setting.shown(now)),
            )
        }
        WriteState::OtherOwner { was, now } => (
            Role::Warning,
            "another's",
            format!("it was {was}, it is {now} now"),
        ),
        WriteState::Gone => (Role::Dim, "gone", "the file is no longer there".to_owned()),
        WriteState::GoneWithReboot => (Role::Dim, "gone", "a reboot has reset it".to_owned()),
        WriteState::NotRead { because } => (Role::Warning, "not read", because.clone()),
        WriteState::Uncertain => (
            Role::Warning,
            "uncertain",
            "killed around the write".to_owned(),
        ),
        WriteState::Failed { error } => (Role::Critical, "failed", error.clone()),
        WriteState::Undone => (Role::Dim, "undone", no_note),
    }
}
