//! What a configuration of the preferred-node service would do now.

use nearfar_prefer::service::{Checked, CheckedTask};

use crate::layout::{Cell, Grid, Side};
use crate::style::{Role, Style};

/// The most tasks that a rule lists.
const LISTED: usize = 8;

/// A line a rule, then the tasks it would have.
pub fn table(rules: &[Checked], style: &Style) -> String {
    let columns = [
        ("rule", Side::Left),
        ("line", Side::Right),
        ("place", Side::Left),
        ("tasks now", Side::Left),
    ];
    let mut grid = Grid::new(&columns).indent(0);
    for rule in rules {
        let role = if rule.node.is_some() {
            Role::Plain
        } else {
            Role::Warning
        };
        grid.row(vec![
            Cell::new(Role::Subject, &rule.rule),
            rule.line.to_string().into(),
            Cell::new(role, &rule.located),
            tasks(&rule.tasks).into(),
        ]);
    }
    grid.render(style)
}

fn tasks(tasks: &[CheckedTask]) -> String {
    if tasks.is_empty() {
        return "none".to_owned();
    }
    let task = |task: &CheckedTask| {
        let late = if task.also.is_empty() {
            String::new()
        } else {
            format!(" (before {})", task.also.join(", "))
        };
        format!("{} {}{late}", task.name, task.pid)
    };
    let mut text = tasks
        .iter()
        .take(LISTED)
        .map(task)
        .collect::<Vec<_>>()
        .join(", ");
    if tasks.len() > LISTED {
        text += &format!(" and {} more", tasks.len() - LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use nearfar_machine::NodeId;

    use super::*;

    #[test]
    fn rules_stand_with_their_node_and_tasks_and_those_without_with_the_reason() {
        let task = |pid, also: &[&str]| CheckedTask {
            pid,
            name: "redis".into(),
            also: also.iter().map(|name| (*name).to_owned()).collect(),
        };
        let rule = |rule: &str, node, located: &str, tasks| Checked {
            rule: rule.into(),
            line: 3,
            place: "node 1".into(),
            node,
            located: located.into(),
            tasks,
        };
        let rules = [
            rule(
                "cache",
                Some(NodeId(1)),
                "node 1",
                vec![task(11, &[]), task(12, &["all"])],
            ),
            rule("web", None, "there is no node 7; online are 0-1", vec![]),
            rule(
                "many",
                Some(NodeId(0)),
                "node 0",
                (0..10).map(|pid| task(pid, &[])).collect(),
            ),
        ];
        let text = table(&rules, &Style::default());
        assert!(
            text.contains(
                "cache     3  node 1                              redis 11, redis 12 (before all)\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("web       3  there is no node 7; online are 0-1  none\n"),
            "{text}"
        );
        assert!(text.contains("redis 7 and 2 more"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
}
