//! A document for a terminal.

use nearfar_machine::shell_words;

use super::super::{Block, Head, Text};
use super::text_chart;
use super::text_table;
use crate::style::{Role, Style};
use crate::wrapping::columns;

/// The whole document, without an empty line at its start.
pub(in super::super) fn whole(head: &Head, blocks: &[Block], style: &Style) -> String {
    let mut out = String::new();
    if !head.title.is_empty() {
        out.push_str(&heading(style, &head.title, &head.remark));
    }
    write(&mut out, blocks, style);
    out.strip_prefix('\n').map(str::to_owned).unwrap_or(out)
}

fn write(out: &mut String, blocks: &[Block], style: &Style) {
    for block in blocks {
        match block {
            Block::Heading(it) => {
                out.push_str(&heading(style, it.title.clone(), it.remark.clone()))
            }
            Block::Paragraph(it) => out.push_str(&paragraph(style, it.indent, &it.label, &it.text)),
            Block::Warning(text) => {
                out.push_str(&paragraph(style, 2, &Text::new(Role::Warning, "! "), text));
            }
            Block::Facts(facts) => out.push_str(&text_table::facts(facts, style)),
            Block::Table(it) => out.push_str(&text_table::table(it, style)),
            Block::HeatMap(map) => {
                out.push_str(&heading(style, &map.title, &map.remark));
                out.push_str(&text_table::heat_map(map, style));
            }
            Block::Chart(chart) => {
                out.push_str(&heading(style, &chart.title, ""));
                out.push_str(&text_chart::chart(chart, style));
            }
            Block::Command { label, command } => pasted(out, label, command, style),
            Block::Details(details) => {
                out.push_str(&paragraph(style, 2, &Text::default(), &details.summary));
                write(out, &details.blocks, style);
            }
            Block::Card(card) => write(out, &card.blocks, style),
            Block::Gap => out.push('\n'),
            Block::Picture(_) => {}
        }
    }
}

/// A command in lines that can be pasted: broken between words with a backslash, never within quotation marks. A word
/// that is longer than a line stays whole, since a broken one would be another command.
fn pasted(out: &mut String, label: &str, command: &str, style: &Style) {
    let before = match label {
        "" => "    ".to_owned(),
        label => format!("      {label:<10}"),
    };
    let room = style.columns().saturating_sub(columns(&before) + 4);
    let mut lines: Vec<String> = Vec::new();
    for word in shell_words(command) {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            Some(line) => {
                line.push_str(" \\");
                lines.push(format!("  {word}"));
            }
            None => lines.push(word.to_owned()),
        }
    }
    for (number, line) in lines.iter().enumerate() {
        let before = match (number, label) {
            (0, "") => before.clone(),
            (0, _) => style.paint(Role::Dim, &before).to_string(),
            _ => " ".repeat(columns(&before)),
        };
        out.push_str(&format!("{before}{}\n", style.paint(Role::Subject, line)));
    }
}

/// A title behind an empty line, with a remark.
fn heading(style: &Style, title: impl Into<Text>, remark: impl Into<Text>) -> String {
    let (title, remark): (Text, Text) = (title.into(), remark.into());
    let gap = if remark.is_empty() { "" } else { "  " };
    let label = Text::new(Role::Heading, title.plain() + gap);
    let remark = remark.in_role(Role::Dim);
    format!("\n{}", paragraph(style, 0, &label, &remark))
}

/// Text wrapped below itself: the label before the first line, as many spaces before the others. A label that takes more than
/// half of the width is on lines of its own.
pub(super) fn paragraph(style: &Style, indent: usize, label: &Text, text: &Text) -> String {
    let mut out = String::new();
    let mut line = |indent: usize, parts: &[&Text]| {
        let parts = parts.iter().map(|part| paint(part, style));
        let line = " ".repeat(indent) + &parts.collect::<String>();
        out.push_str(line.trim_end());
        out.push('\n');
    };
    let hang = indent + label.columns();
    if hang > style.columns() / 2 {
        for part in label.lines(style.columns().saturating_sub(indent)) {
            line(indent, &[&part]);
        }
        let below = text.lines(style.columns().saturating_sub(indent + 2));
        for part in below.iter().filter(|part| !part.is_empty()) {
            line(indent + 2, &[part]);
        }
        return out;
    }
    let lines = text.lines(style.columns().saturating_sub(hang));
    for (number, part) in lines.iter().enumerate() {
        match number {
            0 => line(indent, &[label, part]),
            _ => line(hang, &[part]),
        }
    }
    out
}

/// A line in the colours of its roles.
pub(super) fn paint(text: &Text, style: &Style) -> String {
    let parts = text.spans().iter();
    parts.map(|it| style.paint(it.role, &it.text)).collect()
}
