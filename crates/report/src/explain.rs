//! What the documentation says of an audit rule.

use nearfar_placement::audit::Rule;

use crate::audit;
use crate::document::{Align, Document, Table, Text, cells};
use crate::style::Role::Subject;

/// Every rule with the severity that its findings usually have.
pub fn rules(rules: &[Rule]) -> Document {
    let mut table = Table::of(["rule", "severity", "finds"]).indent(0);
    for rule in rules {
        let severity = audit::role(rule.severity).text(rule.severity);
        table.row(cells![Subject.text(rule.id), severity, rule.title]);
    }
    table.into()
}

/// One rule: its title, and the Markdown of its section without the heading.
pub fn rule(rule: &Rule, section: &str) -> Document {
    let mut out = Document::titled(rule.id, rule.title);
    let blocks = section.split("\n\n");
    for block in blocks.filter(|block| !block.trim().is_empty()) {
        out.gap();
        if block.starts_with('|') {
            out.table(table(block));
        } else {
            let lines: Vec<&str> = block.lines().map(str::trim).collect();
            out.paragraph(inline(&lines.join(" ")));
        }
    }
    out
}

/// A Markdown table: the row of dashes below its headings is left out.
fn table(block: &str) -> Table {
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_start_matches('|').trim_end_matches('|');
        line.split('|').map(|cell| inline(cell.trim())).collect()
    };
    let mut lines = block.lines();
    let headings = lines.next().map(cells).unwrap_or_default();
    let columns: Vec<_> = headings
        .iter()
        .map(|heading| (heading, Align::Left))
        .collect();
    let mut table = Table::new(&columns);
    for line in lines.filter(|line| !line.trim_matches(['|', '-', ' ', ':']).is_empty()) {
        table.row(cells(line).into_iter().map(Text::from));
    }
    table
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
