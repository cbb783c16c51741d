//! The survey as one page: a map of hosts by deviation, and what each host deviates in.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use nearfar_fleet::some_of;
use nearfar_fleet::survey::{Deviation, DeviationKind, Group, Survey};

use super::{SHOWN_RUNS, deviation, method, remarks, run_line, title, without_answer};
use crate::document::{Document, Head, Table, Tile, cells};
use crate::style::Role;
use crate::{clean, count};

/// Cells of the map in a row.
const COLUMNS: usize = 100;
/// Pixels of a cell, with its gap.
const CELL: usize = 9;
/// Hosts of a group whose deviations are listed host by host.
const SHOWN_DEVIANTS: usize = 1000;
/// Deviations of one host that are listed.
const SHOWN_OF_HOST: usize = 30;
/// Names in a line of the table of deviations; each host has its own part below.
const SHOWN_NAMES: usize = 3;
/// Hosts without an answer that are listed.
const SHOWN_MISSING: usize = 2000;

/// How far a host is from its group: what colours it on the map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Degree {
    Alike,
    /// The only host of its group.
    NotCompared,
    /// In a measurement, for the better.
    Better,
    /// In a fact.
    Different,
    /// For the worse by less than 10 %, 25 %, or more.
    Slow,
    Slower,
    Slowest,
}

impl Degree {
    const ALL: [Self; 7] = [
        Self::Alike,
        Self::NotCompared,
        Self::Better,
        Self::Different,
        Self::Slow,
        Self::Slower,
        Self::Slowest,
    ];

    fn of(deviation: &Deviation) -> Self {
        match deviation.kind {
            DeviationKind::Metric {
                is_worse: true,
                ratio,
                ..
            } => {
                // Twice as slow and half the bandwidth are the same.
                match ratio.max(1.0 / ratio) - 1.0 {
                    0.25.. => Self::Slowest,
                    0.10.. => Self::Slower,
                    _ => Self::Slow,
                }
            }
            DeviationKind::Metric { .. } => Self::Better,
            DeviationKind::Fact { .. } => Self::Different,
            // Nothing is measured of it, which is worse than slow.
            DeviationKind::NotMeasured { .. } | DeviationKind::FailedSamples { .. } => {
                Self::Slowest
            }
        }
    }

    /// Its colour, and what that means.
    fn legend(self) -> (&'static str, &'static str) {
        match self {
            Self::Alike => ("var(--h0)", "alike"),
            Self::NotCompared => ("var(--wall)", "not compared: the only host of its group"),
            Self::Better => ("var(--mem)", "better"),
            Self::Different => ("var(--cpu-edge)", "another fact"),
            Self::Slow => ("var(--h3)", "worse by less than 10 %"),
            Self::Slower => ("var(--h6)", "worse by 10 % or more"),
            Self::Slowest => ("var(--h9)", "worse by 25 % or more, or values are missing"),
        }
    }
}

/// The survey as a whole page.
pub fn page(survey: &Survey) -> Document {
    let deviants = survey.groups.iter().map(|group| group.deviants().len());
    let deviants: usize = deviants.sum();
    let groups = match survey.groups.len() {
        1 => "group",
        _ => "groups",
    };
    let mut out = Document::with_head(Head {
        tool: "nearfar fleet show".to_owned(),
        title: count(survey.hosts, "host"),
        remark: runs(survey),
        emulated: (!survey.emulated.is_empty()).then(|| some_of(&survey.emulated, 4)),
        tiles: vec![
            Tile::new(
                deviants.to_string(),
                "deviate",
                "from the hosts that should be like them",
            ),
            Tile::new(
                survey.groups.len().to_string(),
                groups,
                "of hosts that should be alike",
            ),
            Tile::new(survey.missing.len().to_string(), "without an answer", ""),
        ],
    });
    for (index, group) in survey.groups.iter().enumerate() {
        group_section(index, group, &mut out);
    }
    missing(survey, &mut out);
    out.section("method", "How deviations are found");
    out.paragraph(method(survey));
    out
}

/// The newest first.
fn runs(survey: &Survey) -> String {
    let newest = survey.runs.iter().rev().map(run_line);
    some_of(&newest.collect::<Vec<_>>(), SHOWN_RUNS)
}

fn group_section(index: usize, group: &Group, out: &mut Document) {
    out.heading(title(group), count(group.hosts.len(), "host"));
    let by_host = by_host(group);
    out.picture(map(index, group, &by_host));
    let mut table = Table::of([">number", "hosts", "deviate in", "how"]).caption("Deviations");
    for it in &group.deviations {
        let (what, how) = deviation(it, group.hosts.len());
        table.row(cells![
            it.hosts.len(),
            some_of(&it.hosts, SHOWN_NAMES),
            what,
            how
        ]);
    }
    out.table(table);
    remarks(group, out);
    for (host, deviations) in by_host.iter().take(SHOWN_DEVIANTS) {
        out.picture(html! { span id=(anchor(index, host)) {} });
        let mut facts = Document::new();
        let shown = deviations.iter().take(SHOWN_OF_HOST);
        facts.facts(shown.map(|it| deviation(it, group.hosts.len())));
        facts.more(deviations.len(), SHOWN_OF_HOST, "");
        let number = count(deviations.len(), "deviation");
        let summary = Role::Subject
            .text(host)
            .then(Role::Plain, format!(": {number}"));
        out.details(summary, false, facts);
    }
    out.more(
        by_host.len(),
        SHOWN_DEVIANTS,
        " that deviate; --format json has all",
    );
}

fn by_host(group: &Group) -> BTreeMap<&str, Vec<&Deviation>> {
    let mut found: BTreeMap<&str, Vec<&Deviation>> = BTreeMap::new();
    for it in &group.deviations {
        for host in &it.hosts {
            found.entry(host).or_default().push(it);
        }
    }
    found
}

fn anchor(group: usize, host: &str) -> String {
    format!("g{group}-{host}")
}

/// A cell for each host, in the order of names. Hosts that are alike are one path, so that ten thousand take a few hundred kilobytes;
/// the others are links to what they deviate in.
fn map(index: usize, group: &Group, by_host: &BTreeMap<&str, Vec<&Deviation>>) -> Markup {
    let columns = COLUMNS.min(group.hosts.len());
    let (width, height) = (columns * CELL, group.hosts.len().div_ceil(COLUMNS) * CELL);
    let place = |at: usize| ((at % COLUMNS) * CELL, (at / COLUMNS) * CELL);
    let side = CELL - 1;
    let mut alike = String::new();
    let mut others = Vec::new();
    for (at, host) in group.hosts.iter().enumerate() {
        let (x, y) = place(at);
        match by_host.get(host.as_str()) {
            None => {
                let _ = write!(alike, "M{x} {y}h{side}v{side}h-{side}z");
            }
            Some(deviations) => {
                let degree = deviations.iter().map(|it| Degree::of(it)).max();
                let degree = degree.unwrap_or(Degree::Different);
                others.push((x, y, host, degree, deviations.len()));
            }
        }
    }
    let without = match group.hosts.len() {
        1 => Degree::NotCompared,
        _ => Degree::Alike,
    };
    let has_alike = !alike.is_empty();
    let legend = Degree::ALL.into_iter().filter(|degree| match degree {
        degree if *degree == without => has_alike,
        Degree::Alike | Degree::NotCompared => false,
        degree => others.iter().any(|it| it.3 == *degree),
    });
    html! {
        svg role="img" aria-label=(format!("map of {}: {} deviate", count(group.hosts.len(), "host"), others.len()))
            viewBox=(format!("0 0 {width} {height}")) style=(format!("width:100%;max-width:{}px;height:auto", width.max(CELL) * 2)) {
            path d=(PreEscaped(alike)) fill=(without.legend().0) {}
            @for (x, y, host, degree, deviations) in &others {
                a href=(format!("#{}", anchor(index, host))) {
                    rect x=(x) y=(y) width=(side) height=(side) fill=(degree.legend().0) {
                        title { (clean(host)) ": " (count(*deviations, "deviation")) }
                    }
                }
            }
        }
        p class="dim" {
            @for (colour, means) in legend.map(Degree::legend) {
                svg width="10" height="10" aria-hidden="true" { rect width="10" height="10" fill=(colour) {} }
                " " (means) "   "
            }
        }
    }
}

fn missing(survey: &Survey, out: &mut Document) {
    if survey.missing.is_empty() {
        return;
    }
    out.section("missing", "Without an answer");
    out.details(
        count(survey.missing.len(), "host"),
        survey.missing.len() <= 20,
        without_answer(survey, SHOWN_MISSING).into(),
    );
    out.more(survey.missing.len(), SHOWN_MISSING, "");
}
