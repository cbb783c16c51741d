//! The runs that were made on a system.

use nearfar_apply::{Run, RunChangeState, RunState};

use crate::amount::{count, moment};
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Most writes of a run that are shown.
const MOST_CHANGES: usize = 12;

/// Each run, newest first, with what it wrote and what has become of it.
pub fn table(runs: &[Run], style: &Style) -> String {
    if runs.is_empty() {
        return whole(heading(style, "No runs", "nearfar has changed nothing here"));
    }
    whole(runs.iter().rev().map(|run| one(run, style)).collect())
}

fn one(run: &Run, style: &Style) -> String {
    let (state, because) = match &run.state {
        RunState::Made => ("in force", None),
        RunState::Interrupted => ("interrupted: nearfar rollback undoes it", None),
        RunState::Undone => ("undone", None),
        RunState::NothingMade => ("nothing made", None),
        RunState::GoneWithReboot => ("gone with a reboot", None),
        RunState::Unreadable { because } => ("its journal cannot be read", Some(because)),
    };
    let mut parts = vec![state.to_owned()];
    if run.at_s > 0 {
        parts.push(moment(run.at_s));
    }
    parts.extend(run.host.iter().map(|host| format!("on {host}")));
    parts.push(count(run.changes.len(), "write"));
    let mut out = heading(style, &format!("Run {}", run.run), &parts.join(", "));
    if let Some(because) = because {
        out.push_str(&paragraph(style, 2, (Role::Warning, "! "), Role::Plain, because));
    }
    let mut grid = Grid::new(&[
        ("", Side::Left),
        ("file", Side::Left),
        ("before", Side::Left),
        ("after", Side::Left),
        ("", Side::Left),
    ]);
    for change in run.changes.iter().take(MOST_CHANGES) {
        let (role, word, note) = match &change.state {
            RunChangeState::Made => (Role::Local, "made", ""),
            RunChangeState::InDoubt => (Role::Warning, "in doubt", "killed around the write"),
            RunChangeState::Failed { error } => (Role::Critical, "failed", error.as_str()),
            RunChangeState::Undone => (Role::Dim, "undone", ""),
        };
        grid.row(vec![
            Cell::new(role, word),
            Cell::new(Role::Subject, &change.file),
            Cell::new(Role::Dim, &change.old),
            Cell::from(&change.new),
            Cell::new(Role::Dim, note),
        ]);
    }
    out.push_str(&grid.render(style));
    if run.changes.len() > MOST_CHANGES {
        let more = format!("and {} more; --format json has all of them", run.changes.len() - MOST_CHANGES);
        out.push_str(&paragraph(style, 2, (Role::Dim, ""), Role::Dim, &more));
    }
    out
}
