//! A document as Markdown with pipe tables, for mails, issues and commit messages.

use super::{Align, Block, Chart, Head, HeatMap, Plot, Table, Text, cells};
use crate::style::Role;

/// The whole document.
pub(super) fn whole(head: &Head, blocks: &[Block]) -> String {
    let mut out = String::new();
    if !head.title.is_empty() {
        heading(
            &mut out,
            1,
            &Text::from(&head.title),
            &Text::from(&head.remark),
        );
    }
    write(&mut out, blocks);
    out.trim().to_owned() + "\n"
}

fn write(out: &mut String, blocks: &[Block]) {
    for block in blocks {
        match block {
            Block::Heading(it) => heading(out, it.level, &it.title, &it.remark),
            Block::Paragraph(it) => line(out, &(inline(&it.label) + &inline(&it.text))),
            Block::Warning(text) => line(out, &format!("> **Warning:** {}", inline(text))),
            Block::Facts(facts) => {
                let facts = facts.iter();
                let facts = facts
                    .map(|(name, value)| format!("- **{}**: {}\n", inline(name), inline(value)));
                line(out, &facts.collect::<String>());
            }
            Block::Table(it) => table(out, it),
            Block::HeatMap(map) => heat_map(out, map),
            Block::Chart(it) => chart(out, it),
            Block::Command { command, .. } => line(out, &format!("    {command}")),
            Block::Details {
                summary, blocks, ..
            } => {
                line(out, &inline(summary));
                write(out, blocks);
            }
            Block::Card { blocks, .. } => write(out, blocks),
            Block::Picture(_) | Block::Gap => {}
        }
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push_str("\n\n");
}

fn heading(out: &mut String, level: u8, title: &Text, remark: &Text) {
    line(
        out,
        &format!("{} {}", "#".repeat(usize::from(level)), inline(title)),
    );
    if !remark.is_empty() {
        line(out, &inline(remark));
    }
}

/// Text with what Markdown reads as markup escaped.
fn inline(text: &Text) -> String {
    let span = |role: Role, text: &str| match role {
        Role::Code => format!("`{}`", text.replace('`', "'")),
        _ => escaped(text),
    };
    text.spans()
        .iter()
        .map(|it| span(it.role, &it.text))
        .collect()
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if matches!(
            c,
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#'
        ) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn table(out: &mut String, table: &Table) {
    let used = table.used();
    let mut row = |cells: &mut dyn Iterator<Item = String>| {
        out.push_str(&format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    };
    let columns = || used.iter().map(|&column| &table.columns[column]);
    row(&mut columns().map(|(head, _)| escaped(head)));
    row(&mut columns().map(|(_, align)| match align {
        Align::Right => "---:".to_owned(),
        Align::Left => "---".to_owned(),
    }));
    for cells in &table.rows {
        let cells = used.iter().map(|&column| cells.get(column));
        row(&mut cells.map(|cell| cell.map(inline).unwrap_or_default()));
    }
    out.push('\n');
}

fn heat_map(out: &mut String, map: &HeatMap) {
    heading(out, 3, &Text::from(&map.title), &Text::from(&map.remark));
    table(out, &map.table(0..map.columns.len()));
}

/// The figures of a chart.
fn chart(out: &mut String, chart: &Chart) {
    heading(out, 3, &Text::from(&chart.title), &Text::from(&chart.about));
    let with_heads = |heads: &[String], figures: &[&String]| {
        let heads = heads.iter().map(|head| (head, Align::Left));
        let figures = figures.iter().map(|&head| (head, Align::Right));
        Table::new(&heads.chain(figures).collect::<Vec<_>>())
    };
    let figures = match &chart.plot {
        Plot::Dots(dots) => {
            let mut figures = with_heads(&dots.row_heads, &[&dots.axis.title]);
            for row in &dots.rows {
                figures.row(row.names.iter().chain([&row.about]).map(Text::from));
            }
            figures
        }
        Plot::Bars(bars) => {
            let classes: Vec<&String> = bars.classes.iter().collect();
            let mut figures = with_heads(&bars.row_heads, &classes);
            for (names, amounts) in &bars.rows {
                let names = names.iter().map(Text::from);
                figures.row(names.chain(amounts.iter().map(Text::from)));
            }
            figures
        }
        Plot::Lines { x, y, lines, .. } => {
            let mut figures = with_heads(&[String::new()], &[&x.title, &y.title]);
            for line in lines {
                for (x, y) in &line.points {
                    figures.row(cells![&line.name, format!("{x:.4}"), format!("{y:.4}")]);
                }
            }
            figures
        }
    };
    table(out, &figures);
}
