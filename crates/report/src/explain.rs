//! What the documentation says of an audit rule, as text for a terminal.

use nearfar_placement::audit::Rule;

use crate::audit;
use crate::layout::{Cell, Grid, Side, heading, paragraph, whole};
use crate::style::{Role, Style};

/// Every rule with the severity that its findings usually have.
pub fn rules(rules: &[Rule], style: &Style) -> String {
    let mut grid = Grid::new(&[
        ("rule", Side::Left),
        ("severity", Side::Left),
        ("finds", Side::Left),
    ])
    .indent(0);
    for rule in rules {
        grid.row(vec![
            Cell::new(Role::Subject, rule.id),
            Cell::new(audit::role(rule.severity), rule.severity.to_string()),
            rule.title.into(),
        ]);
    }
    grid.render(style)
}

/// One rule: its title, and the Markdown of its section without the heading.
pub fn rule(rule: &Rule, section: &str, style: &Style) -> String {
    let mut out = heading(style, rule.id, rule.title);
    for block in section
        .split("\n\n")
        .filter(|block| !block.trim().is_empty())
    {
        out.push('\n');
        if block.starts_with('|') {
            out.push_str(&table(block, style));
        } else {
            let text = block.lines().map(str::trim).collect::<Vec<_>>().join(" ");
            out.push_str(&paragraph(
                style,
                2,
                (Role::Plain, ""),
                Role::Plain,
                &inline(&text),
            ));
        }
    }
    whole(out)
}

/// A Markdown table: the row of dashes below its headings is left out.
fn table(block: &str, style: &Style) -> String {
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_start_matches('|').trim_end_matches('|');
        line.split('|').map(|cell| inline(cell.trim())).collect()
    };
    let mut lines = block.lines();
    let headings = lines.next().map(cells).unwrap_or_default();
    let columns: Vec<(&str, Side)> = headings
        .iter()
        .map(|heading| (heading.as_str(), Side::Left))
        .collect();
    let mut grid = Grid::new(&columns);
    for line in lines.filter(|line| !line.trim_matches(['|', '-', ' ', ':']).is_empty()) {
        grid.row(cells(line).into_iter().map(Cell::from).collect());
    }
    grid.render(style)
}

/// Text without its marks for emphasis and code; of a link, its words.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        out.push_str(&rest[..at]);
        let (mark, after) = rest[at..].split_at(1);
        rest = after;
        let close = if mark == "[" { "](" } else { mark };
        // A star before a space is one: "2 * 3".
        let end = after
            .find(close)
            .filter(|_| mark != "*" || !after.starts_with(' '));
        let Some(end) = end else {
            out.push_str(mark);
            continue;
        };
        out.push_str(&after[..end]);
        rest = &after[end + close.len()..];
        if mark == "[" {
            rest = rest.split_once(')').map_or("", |(_, rest)| rest);
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_off_and_what_they_mark_is_kept() {
        assert_eq!(
            inline("*Fact.* `numa_node` is -1, see [json](json.md)"),
            "Fact. numa_node is -1, see json"
        );
        assert_eq!(inline("2 * 3, a[0], `x*y`"), "2 * 3, a[0], x*y");
    }

    #[test]
    fn tables_become_columns() {
        let text = table(
            "| policy | finding |\n|---|---|\n| `numa` | far |\n",
            &Style::default(),
        );
        assert_eq!(text, "  policy  finding\n  numa    far\n");
    }
}
