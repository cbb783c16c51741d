//! What an experiment shows of its runs beyond what runs of all experiments do, and whether a run ranks its cells as published figures
//! do.
//!
//! ```text
//! OWN ─► OfExperiment (own, against)    one for each experiment that shows more
//! run ─► own ───────► Own               text, page, mail, JSON
//! published figures ─► against ─► appended to each of them
//! ```

use std::error::Error;
use std::io::Read;

use nearfar_bench::published::{Agreement, Between, LeftOut, Pair, PublishedLaw, PublishedTable};
use nearfar_bench::{command, io, matrix, rps, scale, tags};
use nearfar_machine::Known;
use nearfar_runs::RunId;
use serde::Serialize;
use serde_json::Value;

use super::{Shown, warnings_of};
use crate::amount::{count, decimals, figure, or};
use crate::document::{Align, Document, Table, Text};
use crate::style::Role;

/// What an experiment shows of a run.
pub struct Own {
    /// Instead of a table a metric.
    pub text: Document,
    /// On the page, below its metrics.
    pub page: Document,
    /// In a mail, instead of a table a metric.
    pub mail: Document,
    pub json: Value,
    /// How published figures compare with the run, where there are such figures.
    pub published: Option<Value>,
}

impl Own {
    /// Tables of cells, then what is found; on the page what is found stands first.
    pub(crate) fn of(
        shown: &Shown<'_>,
        tables: Document,
        findings: Document,
        json: &impl Serialize,
    ) -> Result<Self, BoxError> {
        let (mut mail, mut page) = (tables.clone(), findings.clone());
        mail.append(findings);
        page.append(tables);
        let mut text = mail.clone();
        warnings_of(shown, &mut text);
        Ok(Self {
            text,
            page,
            mail,
            json: serde_json::to_value(json)?,
            published: None,
        })
    }
}

/// Figures of others.
pub struct PublishedFile<'a> {
    pub name: &'a str,
    pub input: &'a mut dyn Read,
}

#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// The run can be shown as one of any experiment.
    #[error(transparent)]
    Unreadable(BoxError),
    #[error("{name}")]
    Published {
        name: String,
        #[source]
        error: BoxError,
    },
    #[error(
        "{name}: run {run} is of {experiment}; published figures are compared with runs of {}",
        with_published()
    )]
    NotPublished {
        name: String,
        run: RunId,
        experiment: String,
    },
}

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

type OwnOf = fn(&Shown<'_>) -> Result<Own, BoxError>;

type AgainstOf = fn(&Shown<'_>, PublishedFile<'_>) -> Result<(Document, Value), BoxError>;

/// An experiment that shows more: its name, what it shows, and how published figures are compared with its runs, if any are.
type OfExperiment = (&'static str, OwnOf, Option<AgainstOf>);

const OWN: [OfExperiment; 6] = [
    (
        matrix::EXPERIMENT,
        crate::probe::own,
        Some(against::<matrix::Published>),
    ),
    (io::EXPERIMENT, crate::io::own, None),
    (command::EXPERIMENT, crate::command::own, None),
    (rps::EXPERIMENT, crate::rps::own, None),
    (
        tags::EXPERIMENT,
        crate::tags::own,
        Some(against::<tags::Published>),
    ),
    (
        scale::EXPERIMENT,
        crate::scale::own,
        Some(against::<scale::Published>),
    ),
];

/// The experiments that published figures are compared with.
fn with_published() -> String {
    let names = OWN.iter().filter(|(.., against)| against.is_some());
    names.map(|(name, ..)| *name).collect::<Vec<_>>().join(", ")
}

impl Shown<'_> {
    /// What the run's experiment shows of it; `None` for one that shows nothing of its own.
    ///
    /// # Errors
    /// Published figures that are not understood, or that the experiment has no use for; a run that a newer nearfar wrote.
    pub fn own(&self, published: Option<PublishedFile<'_>>) -> Result<Option<Own>, OwnError> {
        let run = self.run;
        let of = OWN.iter().find(|(name, ..)| *name == run.experiment);
        let against = match published {
            None => None,
            Some(file) => {
                let name = file.name.to_owned();
                let Some(against) = of.and_then(|(.., against)| *against) else {
                    return Err(OwnError::NotPublished {
                        name,
                        run: run.run,
                        experiment: run.experiment.clone(),
                    });
                };
                let found = against(self, file);
                Some(found.map_err(|error| OwnError::Published { name, error })?)
            }
        };
        let own = of.map(|(_, own, _)| own(self)).transpose();
        let mut own = own.map_err(OwnError::Unreadable)?;
        if let (Some(own), Some((compared, json))) = (&mut own, against) {
            for document in [&mut own.text, &mut own.page, &mut own.mail] {
                document.append(compared.clone());
            }
            own.published = Some(json);
        }
        Ok(own)
    }
}

/// The rank correlations with a table, and what they leave out.
fn against<T: PublishedTable>(
    shown: &Shown<'_>,
    file: PublishedFile<'_>,
) -> Result<(Document, Value), BoxError> {
    let agreements = T::read(file.input)?.agreement(shown.detail, shown.samples);
    let mut out = Document::titled("Published figures", file.name);
    let varies = |it: &Agreement| it.conditions != agreements[0].conditions;
    let has_conditions = agreements.iter().any(varies);
    for agreement in &agreements {
        let label = label(agreement, has_conditions);
        out.labelled(Role::Subject.text(label), correlation(agreement));
    }
    if let Some(first) = agreements.first() {
        out.table(pairs(first, T::LEVELS));
        left_out(first, &mut out);
        laws(&first.laws, &mut out);
    }
    out.remark(
        "Spearman's rank correlation of the published figures with the medians of the same cells (with means where means are published); \
         by round: with the samples of each round, the median and its 95 % interval. It is of these cells: other cells may rank otherwise.",
    );
    Ok((out, serde_json::to_value(agreements)?))
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
