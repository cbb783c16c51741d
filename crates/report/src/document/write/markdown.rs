//! A document as Markdown with pipe tables, for mails, issues and commit messages.

use super::super::{Align, Bars, Block, Chart, Dots, Head, HeatMap, Plot, Table, Text};
use crate::style::Role;

/// The whole document.
pub(in super::super) fn whole(head: &Head, blocks: &[Block]) -> String {
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
            Block::Command(command) => line(out, &format!("    {command}")),
            Block::Details(details) => {
                line(out, &inline(&details.summary));
                write(out, &details.blocks);
            }
            Block::Card(card) => write(out, &card.blocks),
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

fn rows(out: &mut String, heads: &[(String, Align)], rows: impl Iterator<Item = Vec<String>>) {
    let mut row = |cells: Vec<String>| out.push_str(&format!("| {} |\n", cells.join(" | ")));
    row(heads.iter().map(|(head, _)| escaped(head)).collect());
    let mark = |align: &Align| {
        if *align == Align::Right {
            "---:"
        } else {
            "---"
        }
    };
    row(heads
        .iter()
        .map(|(_, align)| mark(align).to_owned())
        .collect());
    rows.for_each(row);
    out.push('\n');
}

fn table(out: &mut String, table: &Table) {
    let used = table.used();
    let heads: Vec<_> = used
        .iter()
        .map(|&column| table.columns[column].clone())
        .collect();
    let cells = |row: &Vec<Text>| {
        used.iter()
            .map(|&column| row.get(column).map(inline).unwrap_or_default())
            .collect()
    };
    rows(out, &heads, table.rows.iter().map(cells));
    for (number, note) in (1..).zip(&table.footnotes) {
        line(out, &format!("\\[{number}\\] {}", inline(note)));
    }
}

fn heat_map(out: &mut String, map: &HeatMap) {
    heading(out, 3, &Text::from(&map.title), &Text::from(&map.remark));
    let heads = map
        .row_heads
        .iter()
        .chain(&map.columns)
        .map(|head| (head.clone(), Align::Right));
    let cells = map.rows.iter().zip(&map.cells).map(|(names, cells)| {
        let figures = cells.iter().map(|cell| {
            cell.as_ref()
                .map_or("-".to_owned(), |it| it.value.clone() + &it.spread)
        });
        names
            .iter()
            .cloned()
            .chain(figures)
            .map(|text| escaped(&text))
            .collect()
    });
    rows(out, &heads.collect::<Vec<_>>(), cells);
}

/// The figures of a chart.
fn chart(out: &mut String, chart: &Chart) {
    heading(out, 3, &Text::from(&chart.title), &Text::from(&chart.about));
    let figures =
        |heads: &[String], figures: &[String], lines: Vec<Vec<String>>, out: &mut String| {
            let heads = heads.iter().map(|head| (head.clone(), Align::Left));
            let figures = figures.iter().map(|head| (head.clone(), Align::Right));
            rows(
                out,
                &heads.chain(figures).collect::<Vec<_>>(),
                lines.into_iter(),
            );
        };
    match &chart.plot {
        Plot::Dots(Dots {
            row_heads,
            axis,
            rows,
        }) => {
            let line = |row: &super::super::DotsRow| {
                let names = row.names.iter().map(|name| escaped(name));
                names.chain([escaped(&row.about)]).collect()
            };
            let lines = rows.iter().map(line).collect();
            figures(row_heads, std::slice::from_ref(&axis.title), lines, out);
        }
        Plot::Bars(Bars {
            row_heads,
            classes,
            rows,
            ..
        }) => {
            let line = |(names, amounts): &(Vec<String>, Vec<f64>)| {
                let names = names.iter().map(|name| escaped(name));
                names
                    .chain(amounts.iter().map(ToString::to_string))
                    .collect()
            };
            figures(row_heads, classes, rows.iter().map(line).collect(), out);
        }
        Plot::Lines { x, y, lines, .. } => {
            let points = lines
                .iter()
                .flat_map(|line| line.points.iter().map(move |point| (line, point)));
            let line = points.map(|(line, (x, y))| {
                vec![escaped(&line.name), format!("{x:.4}"), format!("{y:.4}")]
            });
            figures(
                &[String::new()],
                &[x.title.clone(), y.title.clone()],
                line.collect(),
                out,
            );
        }
    }
}
