//! Charts on a page: rows of dots and bars are tables whose last column is drawn.

use maud::{Markup, html};

use super::super::{Axis, Bars, Chart, Dots, Plot};
use super::html::Ids;
use super::plot::{self, STRIP_HEIGHT, TICKS_HEIGHT, WHOLE_PLOT_HEIGHT, Y_LABELS};
use super::spread_over_scale;

/// The chart with its title.
pub(super) fn chart(chart: &Chart, ids: &mut Ids) -> Markup {
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
                        (plot::plot(x, y, dots, lines))
                    }
                }
                p.axis.below { (x.title) }
                @if lines.iter().any(|line| !line.name.is_empty()) {
                    ul.legend {
                        @for (number, line) in lines.iter().enumerate() {
                            li { svg.key aria-hidden="true" width="22" height="8" { (plot::key(number, plot::is_marked(dots))) } " " (line.name) }
                        }
                    }
                }
            }
        },
    }
}

/// A row of the table: its names, the figures in words, the drawing.
type Row<'a> = (&'a [String], String, Markup);

fn strips<'a>(
    chart: &Chart,
    heads: &[String],
    axis: &Axis,
    rows: impl Iterator<Item = Row<'a>>,
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
    html! { svg aria-hidden="true" width="100%" height=(TICKS_HEIGHT) { (plot::tick_labels(axis, TICKS_HEIGHT - 4)) } }
}

fn dots_table(chart: &Chart, dots: &Dots, ids: &mut Ids) -> Markup {
    let rows = dots.rows.iter().map(|row| {
        (
            &row.names[..],
            row.about.clone(),
            plot::dots(row, &dots.axis),
        )
    });
    strips(chart, &dots.row_heads, &dots.axis, rows, ids)
}

fn bars_table(chart: &Chart, bars: &Bars, ids: &mut Ids) -> Markup {
    let about = |amounts: &[f64]| {
        let parts = bars.classes.iter().zip(amounts);
        let parts = parts.map(|(class, amount)| format!("{class}: {amount}"));
        parts.collect::<Vec<_>>().join(", ")
    };
    let rows = bars
        .rows
        .iter()
        .map(|(names, amounts)| (&names[..], about(amounts), plot::bar(bars, amounts)));
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
