//! A document as one page that stands alone: no network, no script, legible on light, dark and paper.

use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{
    self, Axis, Bars, Chart, Dots, Plot, STRIP_HEIGHT, TICKS_HEIGHT, WHOLE_PLOT_HEIGHT, Y_LABELS,
};
use super::heat_map::spread_over_scale;
use super::{
    Align, Block, HOTTEST, Head, Heading, HeatCell, HeatMap, Paragraph, Table, Text, clean,
};
use crate::style::Role;
use crate::topo::theme::THEME;

/// Type and layout of the page.
const STYLE: &str = include_str!("page.css");

/// Names of elements, each given once.
#[derive(Default)]
struct Ids {
    taken: BTreeSet<String>,
}

impl Ids {
    /// A name like the text: `run-times`, the second time `run-times-2`.
    fn make(&mut self, text: &str) -> String {
        let words = text.to_lowercase();
        let words = words
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty());
        let name = match words.collect::<Vec<_>>().join("-") {
            name if name.is_empty() => "part".to_owned(),
            name => name,
        };
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        let free = names.find(|name| !self.taken.contains(name));
        let free = free.unwrap_or(name);
        self.taken.insert(free.clone());
        free
    }
}

/// A section: its heading, the name of its element, its blocks.
struct Section<'a> {
    id: String,
    heading: &'a Heading,
    blocks: Vec<&'a Block>,
}

/// The whole page.
pub(super) fn page(head: &Head, blocks: &[Block]) -> String {
    let mut ids = Ids::default();
    let (before, sections) = sections(blocks, &mut ids);
    let title = clean(&head.title);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (head.tool) ": " (title) }
                style { (PreEscaped(THEME)) (PreEscaped(STYLE)) }
            }
            body class="nearfar-map" {
                (header(head, &title))
                (contents(&sections))
                main {
                    (parts(before, &mut ids))
                    @for section in &sections { (self::section(section, &mut ids)) }
                }
            }
        }
    };
    page.into_string()
}

/// The blocks before the first heading, and the sections.
fn sections<'a>(blocks: &'a [Block], ids: &mut Ids) -> (Vec<&'a Block>, Vec<Section<'a>>) {
    let (mut before, mut sections): (Vec<&Block>, Vec<Section<'_>>) = (Vec::new(), Vec::new());
    for block in blocks {
        match (block, sections.last_mut()) {
            (Block::Heading(heading), _) if heading.level <= 2 => {
                let id = ids.make(heading.id.unwrap_or(&heading.title.plain()));
                sections.push(Section {
                    id,
                    heading,
                    blocks: Vec::new(),
                });
            }
            (block, Some(section)) => section.blocks.push(block),
            (block, None) => before.push(block),
        }
    }
    (before, sections)
}

fn header(head: &Head, title: &str) -> Markup {
    html! {
        header {
            p.tool { (head.tool) }
            h1 { (title) }
            @if !head.remark.is_empty() { p.about { (clean(&head.remark)) } }
            @if let Some(label) = &head.emulated { p.emulated { (clean(label)) } }
            @if !head.tiles.is_empty() {
                ul.tiles {
                    @for tile in &head.tiles {
                        li class=[(!tile.badges.is_empty()).then_some("verdict")] {
                            @if !tile.figure.is_empty() { strong { (clean(&tile.figure)) } }
                            @if !tile.what.is_empty() { span { (tile.what) } }
                            @for (class, text) in &tile.badges { span class={ "badge " (class) } { (text) } }
                            @if !tile.remark.is_empty() { small { (clean(&tile.remark)) } }
                        }
                    }
                }
            }
        }
    }
}

fn contents(sections: &[Section<'_>]) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul { @for section in sections { li { a href={ "#" (section.id) } { (section.heading.title.plain()) } } } }
        }
    }
}

fn section(section: &Section<'_>, ids: &mut Ids) -> Markup {
    let title = format!("{}-title", section.id);
    html! {
        section id=(section.id) aria-labelledby=(title) {
            h2 id=(title) { (inline(&section.heading.title)) }
            @if !section.heading.remark.is_empty() { p.hint { (inline(&section.heading.remark)) } }
            (parts(section.blocks.iter().copied(), ids))
        }
    }
}

/// Blocks in order; warnings that follow each other are one list, heat maps one row.
fn parts<'b>(blocks: impl IntoIterator<Item = &'b Block>, ids: &mut Ids) -> Markup {
    let kind = |block: &Block| match block {
        Block::Warning(_) => 1,
        Block::HeatMap(_) => 2,
        _ => 0,
    };
    let blocks: Vec<&Block> = blocks.into_iter().collect();
    let groups = blocks.chunk_by(|a, b| kind(a) == kind(b));
    html! {
        @for group in groups {
            @match group.first().map_or(0, |block| kind(block)) {
                1 => { ul.warnings { @for block in group { li { (block_of(block, ids)) } } } }
                2 => { div.maps { @for block in group { (block_of(block, ids)) } } }
                _ => { @for block in group { (block_of(block, ids)) } }
            }
        }
    }
}

fn block_of(block: &Block, ids: &mut Ids) -> Markup {
    match block {
        Block::Heading(heading) => subheading(heading),
        Block::Paragraph(paragraph) => paragraph_of(paragraph),
        Block::Warning(text) => inline(text),
        Block::Facts(facts) => html! {
            dl.facts { @for (name, value) in facts { dt { (inline(name)) } dd { (inline(value)) } } }
        },
        Block::Table(table) => table_of(table, ids),
        Block::HeatMap(map) => heat_map(map, ids),
        Block::Chart(chart) => chart_of(chart, ids),
        Block::Command { command: line, .. } => {
            html! { pre tabindex="0" aria-label="command" role="group" { code.command { (line) } } }
        }
        Block::Details {
            summary,
            is_open,
            blocks,
        } => html! {
            details open[*is_open] {
                summary { (inline(summary)) }
                div.folded { (parts(blocks, ids)) }
            }
        },
        Block::Card { class, blocks } => {
            html! { div class={ "card " (class) } { (parts(blocks, ids)) } }
        }
        Block::Picture(picture) => picture.clone(),
        Block::Gap => html! {},
    }
}

fn subheading(heading: &Heading) -> Markup {
    let title = html! {
        @if let Some((class, text)) = &heading.badge { span class={ "badge " (class) } { (text) } " " }
        (inline(&heading.title))
        @if !heading.remark.is_empty() { " " small { (inline(&heading.remark)) } }
    };
    match heading.level {
        ..=3 => html! { h3 { (title) } },
        _ => html! { h4 { (title) } },
    }
}

fn paragraph_of(paragraph: &Paragraph) -> Markup {
    let spans = paragraph.text.spans();
    let is_dim = !spans.is_empty() && spans.iter().all(|span| span.role == Role::Dim);
    let class = match paragraph.is_boxed {
        true => Some("note"),
        false => is_dim.then_some("hint"),
    };
    html! { p class=[class] { (inline(&paragraph.label)) (inline(&paragraph.text)) } }
}

/// Text with its roles.
fn inline(text: &Text) -> Markup {
    html! {
        @for span in text.spans() {
            @match span.role {
                Role::Heading => b { (span.text) },
                Role::Code => code { (span.text) },
                Role::Dim => span.dim { (span.text) },
                Role::Value => code.value { (span.text) },
                Role::Warning | Role::Critical | Role::Far => span.warn { (span.text) },
                _ => { (span.text) }
            }
        }
    }
}

/// Of a cell with sentences, which are wrapped.
fn long(cell: &Text) -> Option<&'static str> {
    const MOST_ON_A_LINE: usize = 72;
    (cell.plain().chars().count() > MOST_ON_A_LINE).then_some("long")
}

fn table_of(table: &Table, ids: &mut Ids) -> Markup {
    let used = table.used();
    let caption = match table.caption.as_str() {
        "" => "Table",
        caption => caption,
    };
    let id = ids.make(caption);
    let unseen = table.caption.is_empty().then_some("unseen");
    let has_heads = used
        .iter()
        .any(|&column| !table.columns[column].0.is_empty());
    let right = |column: usize| (table.columns[column].1 == Align::Right).then_some("right");
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby=(id) {
            table.runs {
                caption id=(id) { span class=[unseen] { b { (caption) } } }
                @if has_heads {
                    thead { tr {
                        @for &column in &used {
                            @let head = &table.columns[column].0;
                            @if head.is_empty() { td {} } @else { th scope="col" class=[right(column)] { (head) } }
                        }
                    } }
                }
                tbody {
                    @for row in &table.rows {
                        tr { @for &column in &used { td class=[right(column).or_else(|| long(row.get(column)?))] { @if let Some(cell) = row.get(column) { (inline(cell)) } } } }
                    }
                }
            }
        }
    }
}

fn heat_map(map: &HeatMap, ids: &mut Ids) -> Markup {
    let id = ids.make(&map.title);
    let size = match map.columns.len() {
        0..=8 => "heat",
        9..=24 => "heat dense",
        _ => "heat dense tiny",
    };
    html! {
        div {
            div.scroll tabindex="0" role="region" aria-labelledby=(id) {
                table class=(size) {
                    caption id=(id) { b { (map.title) } " " span { (clean(&map.remark)) } }
                    thead {
                        @if !map.column_head.is_empty() {
                            tr { td colspan=(map.row_heads.len()) {} th scope="colgroup" colspan=(map.columns.len()) { (clean(&map.column_head)) } }
                        }
                        tr {
                            @for head in &map.row_heads { td.corner { (clean(head)) } }
                            @for column in &map.columns { th scope="col" { (clean(column)) } }
                        }
                    }
                    tbody {
                        @for (names, cells) in map.rows.iter().zip(&map.cells) {
                            tr {
                                @for name in names { th scope="row" { (clean(name)) } }
                                @for cell in cells { (heat_cell(map, cell.as_ref())) }
                            }
                        }
                    }
                }
            }
            (legend(map))
        }
    }
}

fn heat_cell(map: &HeatMap, cell: Option<&HeatCell>) -> Markup {
    let Some(cell) = cell else {
        return html! { td.hole { "–" } };
    };
    let about = (!cell.about.is_empty()).then(|| clean(&cell.about));
    let class = match cell.heat.is_finite() {
        true => format!("h{}", map.scale.step(cell.heat)),
        false => "hole".to_owned(),
    };
    html! {
        td class=(class) title=[about] {
            (clean(&cell.value))
            @if let Some((low, high)) = &cell.interval { small { (low) "–" (high) } }
            @else if !cell.spread.is_empty() { small { (clean(cell.spread.trim())) } }
        }
    }
}

/// The steps between the figures of the first and the last; nothing where all figures are the same.
fn legend(map: &HeatMap) -> Markup {
    let name = map.scale.name();
    let Some(name) = name.filter(|_| map.columns.len() * map.rows.len() > 1) else {
        return html! {};
    };
    let figure = |step: u8| map.legend.get(usize::from(step)).map_or("", String::as_str);
    html! {
        p.legend {
            span.scale {
                (figure(0))
                @for step in 0..=HOTTEST { i class={ "h" (step) } title=(figure(step)) {} }
                (figure(HOTTEST))
            }
            span { (name) (map.scale_of) }
        }
    }
}

/// The chart with its title.
fn chart_of(chart: &Chart, ids: &mut Ids) -> Markup {
    match &chart.plot {
        Plot::Dots(dots) => dots_table(chart, dots, ids),
        Plot::Bars(bars) => bars_table(chart, bars, ids),
        Plot::Lines { x, y, dots, lines } => html! {
            figure.plot {
                figcaption { b { (chart.title) } " " (chart.about) }
                p.axis { (y.title) }
                div style={ "padding-left:" (Y_LABELS) "px" } {
                    svg width="100%" height=(WHOLE_PLOT_HEIGHT) role="img" {
                        title { (chart.title) }
                        desc { (chart.about) }
                        (chart::plot(x, y, dots, lines))
                    }
                }
                p.axis.below { (x.title) }
                @if lines.iter().any(|line| !line.name.is_empty()) {
                    ul.legend {
                        @for (number, line) in lines.iter().enumerate() {
                            li { svg.key aria-hidden="true" width="22" height="8" { (chart::key(number, chart::is_marked(dots))) } " " (line.name) }
                        }
                    }
                }
            }
        },
    }
}

/// A row of the table: its names, the figures in words, the drawing.
type Strip<'a> = (&'a [String], String, Markup);

fn strips<'a>(
    chart: &Chart,
    heads: &[String],
    axis: &Axis,
    rows: impl Iterator<Item = Strip<'a>>,
    ids: &mut Ids,
) -> Markup {
    let id = ids.make(&chart.title);
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby=(id) {
            table.runs.strips {
                caption id=(id) { b { (chart.title) } " " (chart.about) }
                thead {
                    tr {
                        @for head in heads { th scope="col" { (head) } }
                        th.strip scope="col" { (axis.title) (ticks(axis)) }
                    }
                }
                tbody {
                    @for (names, about, drawing) in rows {
                        tr {
                            @for name in names { th scope="row" { (name) } }
                            td.strip title=(about) {
                                span.unseen { (about) }
                                svg aria-hidden="true" width="100%" height=(STRIP_HEIGHT) { (drawing) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn ticks(axis: &Axis) -> Markup {
    html! { svg aria-hidden="true" width="100%" height=(TICKS_HEIGHT) { (chart::tick_labels(axis, TICKS_HEIGHT - 4)) } }
}

fn dots_table(chart: &Chart, dots: &Dots, ids: &mut Ids) -> Markup {
    let rows = dots.rows.iter().map(|row| {
        let drawing = chart::dots(row, &dots.axis);
        (&row.names[..], row.about.clone(), drawing)
    });
    strips(chart, &dots.row_heads, &dots.axis, rows, ids)
}

fn bars_table(chart: &Chart, bars: &Bars, ids: &mut Ids) -> Markup {
    let about = |amounts: &[f64]| {
        let parts = bars.classes.iter().zip(amounts);
        let parts = parts.map(|(class, amount)| format!("{class}: {amount}"));
        parts.collect::<Vec<_>>().join(", ")
    };
    let rows = bars.rows.iter();
    let rows = rows.map(|(names, amounts)| (&names[..], about(amounts), chart::bar(bars, amounts)));
    let step = spread_over_scale(bars.classes.len());
    html! {
        (strips(chart, &bars.row_heads, &bars.axis, rows, ids))
        ul.legend {
            @for (number, class) in bars.classes.iter().enumerate() {
                li { i class={ "key h" (step(number)) } {} " " (class) }
            }
        }
    }
}
