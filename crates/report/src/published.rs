//! Whether a run ranks its cells as published figures do.

use std::error::Error;

use nearfar_bench::published::{Agreement, Between, LeftOut, Pair, PublishedLaw};
use nearfar_machine::Known;

use crate::amount::{count, decimals, figure, or};
use crate::document::{Align, Document, Table, Text};
use crate::runs::Against;
use crate::style::Role;

/// The rank correlations with a table, and what they leave out. `name`: where the table is from; `levels`: the names of a cell's
/// levels, in the order of columns.
///
/// # Errors
/// When they cannot be JSON.
pub(crate) fn against(
    agreements: &[Agreement],
    name: &str,
    levels: &[&str],
) -> Result<Against, Box<dyn Error + Send + Sync>> {
    Ok(Against {
        document: document(agreements, name, levels),
        json: serde_json::to_value(agreements)?,
    })
}

fn document(agreements: &[Agreement], name: &str, levels: &[&str]) -> Document {
    let mut out = Document::titled("Published figures", name);
    let varies = |it: &Agreement| it.conditions != agreements[0].conditions;
    let has_conditions = agreements.iter().any(varies);
    for agreement in agreements {
        let label = label(agreement, has_conditions);
        out.labelled(Role::Subject.text(label), correlation(agreement));
    }
    if let Some(first) = agreements.first() {
        out.table(pairs(first, levels));
        left_out(first, &mut out);
    }
    if let Some(first) = agreements.first() {
        laws(&first.laws, &mut out);
    }
    out.remark(
        "Spearman's rank correlation of the published figures with the medians of the same cells; by round: with the samples of each \
         round, the median and its 95 % interval. It is of these cells: other cells may rank otherwise.",
    );
    out
}

/// `kiops, completion any: `.
fn label(agreement: &Agreement, has_conditions: bool) -> String {
    let levels = agreement.conditions.levels().filter(|_| has_conditions);
    let levels: String = levels.map(|(name, it)| format!(", {name} {it}")).collect();
    format!("{}{levels}: ", agreement.column)
}

fn correlation(agreement: &Agreement) -> Text {
    let value = match &agreement.correlation {
        Known::Yes(value) => value,
        Known::No { unknown_reason } => {
            return Role::Dim.text(format!("unknown: {unknown_reason}"));
        }
    };
    let by_round = agreement.by_round.map_or_else(String::new, |it| {
        let interval = it.confidence.map_or_else(String::new, |it| {
            format!(" ({:.2} to {:.2})", it.low, it.high)
        });
        let rounds = count(it.rounds, "round");
        format!("; by round {:.2}{interval}, {rounds}", it.median)
    });
    let cells = count(agreement.cells.len(), "cell");
    Role::Plain.text(format!(
        "{value:.2} over {cells}, with {}{by_round}",
        agreement.metric
    ))
}

fn pairs(agreement: &Agreement, levels: &[&str]) -> Table {
    let names = levels.iter().map(|name| (*name, Align::Left));
    let figures = [&agreement.column, &agreement.metric].map(|it| (it.as_str(), Align::Right));
    let columns: Vec<_> = names.chain(figures).collect();
    let mut table = Table::new(&columns).caption("The cells of both");
    let largest =
        |of: fn(&Pair) -> f64| decimals(agreement.cells.iter().map(of).fold(0.0, f64::max));
    let (published, measured) = (largest(|it| it.published), largest(|it| it.measured));
    for pair in &agreement.cells {
        let level = |name: &&str| Role::Subject.text(pair.levels.text(name));
        let figures = [
            figure(pair.published, published),
            figure(pair.measured, measured),
        ];
        let cells = levels.iter().map(level);
        table.row(cells.chain(figures.map(Text::from)));
    }
    table
}

/// The law of each published curve, and its throughputs between those that are published.
fn laws(laws: &[PublishedLaw], out: &mut Document) {
    for PublishedLaw {
        nodes,
        law,
        peak,
        between,
    } in laws
    {
        let peak = peak.map_or_else(
            || "no peak".to_owned(),
            |peak| format!("highest at {peak:.0} tasks"),
        );
        let most = decimals(law.lambda);
        let at = |it: &Between| format!("{} tasks {}", it.tasks, figure(it.throughput, most));
        let between: Vec<String> = between.iter().map(at).collect();
        let lambda = figure(law.lambda, most);
        let (sigma, kappa) = (law.sigma, law.kappa);
        out.labelled(
            Role::Subject.text(format!("law of {}: ", count(*nodes as usize, "node"))),
            format!(
                "lambda {lambda}/s, sigma {sigma:.4}, kappa {kappa:.5}; {peak}; not published: {}",
                or((!between.is_empty()).then(|| between.join(", ")), "nothing")
            ),
        );
    }
}

/// Cells by the reason why they are left out.
fn left_out(agreement: &Agreement, out: &mut Document) {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for LeftOut { cell, reason } in &agreement.left_out {
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, cells)) => cells.push(cell),
            None => reasons.push((reason, vec![cell])),
        }
    }
    for (reason, cells) in reasons {
        out.labelled(
            Role::Dim.text("left out: "),
            format!("{} ({reason})", cells.join(", ")),
        );
    }
}
