//! The runs that were made on a system.

use nearfar_apply::{Run, RunChange, RunChangeState, RunState};

use crate::amount::{count, moment};
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Most writes of a run that are shown.
const MOST_CHANGES: usize = 12;

/// Each run, newest first, with what it wrote and what has become of it.
pub fn table(runs: &[Run], style: &Style) -> String {
    if runs.is_empty() {
        return whole(heading(
            style,
            "No runs",
            "nearfar has changed nothing here",
        ));
    }
    whole(runs.iter().rev().map(|run| one(run, style)).collect())
}

fn one(run: &Run, style: &Style) -> String {
    let (state, because) = match &run.state {
        RunState::Made => (in_force(run), None),
        RunState::Interrupted => ("interrupted: nearfar rollback undoes it".to_owned(), None),
        RunState::Undone => ("undone".to_owned(), None),
        RunState::NothingMade => ("nothing made".to_owned(), None),
        RunState::GoneWithReboot => ("gone with a reboot".to_owned(), None),
        RunState::Unreadable { because } => {
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
    let mut out = heading(style, &format!("Run {}", run.run), &parts.join(", "));
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
fn in_force(run: &Run) -> String {
    let tried = run
        .changes
        .iter()
        .filter(|change| !matches!(change.state, RunChangeState::Failed { .. }))
        .count();
    if run.in_force == tried {
        return "in force".to_owned();
    }
    let of = |test: fn(&RunChangeState) -> bool| {
        run.changes
            .iter()
            .filter(|change| test(&change.state))
            .count()
    };
    let rest = [
        (
            "undone",
            of(|state| matches!(state, RunChangeState::Undone)),
        ),
        (
            "changed since",
            of(|state| matches!(state, RunChangeState::ChangedSince { .. })),
        ),
        (
            "another device's now",
            of(|state| matches!(state, RunChangeState::OtherOwner { .. })),
        ),
        (
            "gone",
            of(|state| matches!(state, RunChangeState::Gone | RunChangeState::GoneWithReboot)),
        ),
        (
            "in warning",
            of(|state| matches!(state, RunChangeState::InDoubt)),
        ),
        (
            "not read",
            of(|state| matches!(state, RunChangeState::NotRead { .. })),
        ),
    ];
    let mut text = format!("{} of {} in force", run.in_force, count(tried, "change"));
    for (word, number) in rest.into_iter().filter(|(_, number)| *number > 0) {
        text.push_str(&format!(", {number} {word}"));
    }
    text
}

fn described(change: &RunChange) -> (Role, &'static str, String) {
    let no_note = String::new();
    match &change.state {
        RunChangeState::Made => (Role::Local, "made", no_note),
        RunChangeState::ChangedSince { now, by_run } => {
            let by = by_run.map_or_else(String::new, |run| format!(" by run {run}"));
            (
                Role::Middling,
                "changed",
                format!("changed{by} since: {}", change.setting.shown(now)),
            )
        }
        RunChangeState::OtherOwner { was, now } => (
            Role::Warning,
            "another's",
            format!("it was {was}, it is {now} now"),
        ),
        RunChangeState::Gone => (Role::Dim, "gone", "the file is no longer there".to_owned()),
        RunChangeState::GoneWithReboot => (Role::Dim, "gone", "a reboot has reset it".to_owned()),
        RunChangeState::NotRead { because } => (Role::Warning, "not read", because.clone()),
        RunChangeState::InDoubt => (
            Role::Warning,
            "in warning",
            "killed around the write".to_owned(),
        ),
        RunChangeState::Failed { error } => (Role::Critical, "failed", error.clone()),
        RunChangeState::Undone => (Role::Dim, "undone", no_note),
    }
}
