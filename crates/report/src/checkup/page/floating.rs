//! Whether the scheduler hurts floating tasks: the verdicts, and the runs below them.

use maud::{Markup, html};
use nearfar_bench::floating::Floating;
use nearfar_bench::matrix::Row;
use nearfar_bench::probe::Where;

use super::{Checkup, titled};
use crate::floating;
use crate::wrapping::clean;

/// The section; none where nothing was measured at all, which another section says.
pub(super) fn section(checkup: &Checkup) -> Markup {
    html! {
        @match (checkup.floating.get(), checkup.not_floated()) {
            (Some(found), _) => { (titled("floating", "Floating tasks", &answer(found))) }
            (None, Some(because)) => {
                (titled("floating", "Floating tasks", &html! { p.note { "Not probed: " (clean(because)) } }))
            }
            (None, None) => {}
        }
    }
}

fn answer(found: &Floating) -> Markup {
    let warnings = floating::warnings(found);
    html! {
        p.legend { (clean(&floating::remark(found))) }
        div.note { @for verdict in floating::verdicts(found) { p { b { (verdict.what) } ": " (clean(&verdict.text)) } } }
        div.scroll tabindex="0" role="region" aria-labelledby="floating-runs" {
            table.runs {
                caption id="floating-runs" { "Runs by where memory and CPUs were bound" }
                thead { tr { @for title in ["memory", "CPUs", "runs", "median", "95 % interval", "cross-node migrations a run"] { th scope="col" { (title) } } } }
                tbody { @for row in &found.rows { (run(row)) } }
            }
        }
        @if !warnings.is_empty() { ul.warnings { @for warning in warnings { li { (clean(&warning)) } } } }
    }
}

fn run(row: &Row) -> Markup {
    let place = |place: Where| {
        place
            .node()
            .map_or_else(|| "floating".to_owned(), |node| format!("node {node}"))
    };
    let figures = row.seconds.as_ref();
    let median = figures.map_or_else(
        || "-".to_owned(),
        |figures| format!("{:.3} s", figures.median),
    );
    let interval = figures.and_then(|figures| figures.confidence);
    let interval = interval.map_or_else(
        || "-".to_owned(),
        |it| format!("{:.3} to {:.3} s", it.low, it.high),
    );
    let moves = row.migrations.get().map_or_else(
        || "-".to_owned(),
        |migrated| format!("{:.0}", migrated.cross_node),
    );
    html! {
        tr {
            td { (place(row.cell.memory)) }
            td { (place(row.cell.cpus)) }
            td { (figures.map_or(0, |figures| figures.samples.len())) }
            td { (median) }
            td { (interval) }
            td { (moves) }
        }
    }
}
