//! What a configuration of the preferred-node service would do now.

use nearfar_prefer::service::{Checked, CheckedTask};

use crate::document::{Document, Table, cells};
use crate::style::Role::{Plain, Subject, Warning};

/// The most tasks that a rule lists.
const MAX_LISTED: usize = 8;

/// A line a rule, then the tasks it would have.
pub fn document(rules: &[Checked]) -> Document {
    let mut table = Table::of(["rule", ">line", "place", "tasks now"]).indent(0);
    for rule in rules {
        let role = if rule.node.is_some() { Plain } else { Warning };
        let (name, place) = (Subject.text(&rule.rule), role.text(&rule.located));
        table.row(cells![name, rule.line, place, tasks(&rule.tasks)]);
    }
    table.into()
}

fn tasks(tasks: &[CheckedTask]) -> String {
    if tasks.is_empty() {
        return "none".to_owned();
    }
    let task = |task: &CheckedTask| match task.also.as_slice() {
        [] => format!("{} {}", task.name, task.pid),
        later => format!("{} {} (before {})", task.name, task.pid, later.join(", ")),
    };
    let listed: Vec<String> = tasks.iter().take(MAX_LISTED).map(task).collect();
    match tasks.len().saturating_sub(MAX_LISTED) {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}
