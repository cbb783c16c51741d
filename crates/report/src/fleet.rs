//! Reports about many hosts: what became of a run, which hosts deviate.

mod page;

use std::collections::BTreeSet;

use nearfar_fleet::dataset::{Collected, run_name};
use nearfar_fleet::rollout::RolledOut;
use nearfar_fleet::survey::{
    Deviation, DeviationKind, Divided, Group, Measured, MeasuredRun, Split, Survey, SurveyedRun,
    UnknownFact, ValueCount,
};
use nearfar_fleet::{HostName, HostReason, Summary, some_of};

use crate::amount::{count, decimals, figure, moment, scaled};
use crate::document::{Document, Table, Text, cells};
use crate::style::Role;

pub use page::page;

/// Names of hosts that a line shows.
const SHOWN_HOSTS: usize = 8;
/// The newest runs, which are listed.
const SHOWN_RUNS: usize = 3;
/// Facts of a group that are not known of all its hosts.
const SHOWN_UNKNOWN: usize = 8;
/// Measurements that divide the hosts of a group.
const SHOWN_SPLITS: usize = 8;
/// Metrics of a group that are listed.
const SHOWN_METRICS: usize = 20;
/// Deviations of a group that a terminal shows.
const SHOWN_DEVIATIONS: usize = 40;
/// Hosts without an answer that a terminal shows.
const SHOWN_MISSING: usize = 20;

/// What is said of hosts that differ otherwise than the threshold allows for.
const HEAVY_TAILS: &str = "these hosts do not scatter normally: more alike hosts than stated may be named; look at the intervals";

/// What became of the hosts of a run in this folder.
pub fn run(summary: &Summary, folder: &str) -> Document {
    let mut document = Document::new();
    document.paragraph(outcome(summary));
    document.table(missing(summary));
    if !summary.not_asked.is_empty() {
        let hosts = some_of(&summary.not_asked, SHOWN_HOSTS);
        document.labelled("not asked, or interrupted: ", hosts);
    }
    if !summary.failed.is_empty() || !summary.lost.is_empty() {
        document.labelled("what steps wrote: ", format!("{folder}/logs/HOST.err"));
    }
    if !summary.is_complete() {
        let folder = shell_word(folder);
        document.command(format!("nearfar fleet run --resume --results {folder}"));
    }
    if !summary.answered.is_empty() {
        let folder = shell_word(folder);
        document.command(format!("nearfar fleet collect {folder} --dataset fleet"));
    }
    document
}

/// A word as a shell takes it.
fn shell_word(word: &str) -> String {
    nearfar_lab::shell::word(word.as_ref())
}

fn outcome(summary: &Summary) -> String {
    let not_asked = match summary.not_asked.len() {
        0 => String::new(),
        number => format!(", {number} not asked"),
    };
    format!(
        "{} answered, {} failed, {} lost{not_asked}",
        count(summary.answered.len(), "host"),
        summary.failed.len(),
        summary.lost.len(),
    )
}

fn missing(summary: &Summary) -> Table {
    let mut table = Table::of(["host", "state", "reason"]);
    let mut rows = |state: &str, missing: &[HostReason]| {
        for HostReason { host, reason } in missing {
            table.row(cells![name(host), state, reason.as_str()]);
        }
    };
    rows("failed", &summary.failed);
    rows("lost", &summary.lost);
    table
}

fn name(host: &HostName) -> Text {
    Role::Subject.text(host)
}

/// What was put into a dataset.
pub fn collected(collected: &[Collected], dataset: &str) -> Document {
    let mut document = Document::new();
    let mut table = Table::of([
        "run",
        ">answered",
        ">failed",
        ">lost",
        ">not asked",
        ">facts",
        ">findings",
        ">samples",
    ]);
    for it in collected {
        let rows = |name: &str| it.rows.get(name).copied().unwrap_or_default();
        table.row(cells![
            Role::Subject.text(&it.run),
            it.summary.answered.len(),
            it.summary.failed.len(),
            it.summary.lost.len(),
            it.summary.not_asked.len(),
            rows("facts"),
            rows("findings"),
            rows("samples"),
        ]);
    }
    document.table(table);
    for it in collected.iter().filter(|it| !it.summary.is_complete()) {
        document.heading(format!("Without an answer in {}", it.run), "");
        document.table(missing(&it.summary));
    }
    let dataset = shell_word(dataset);
    document.command(format!("nearfar fleet show --dataset {dataset}"));
    document
}

/// What became of hosts that were to be changed, and the command that undoes it, if one does.
pub fn rolled_out(rolled_out: &RolledOut, undo: &str) -> Document {
    let mut document = Document::new();
    let mut table = Table::of(["hosts", ">number", "state"]);
    let mut row = |hosts: &[HostName], what: &str| {
        if !hosts.is_empty() {
            let names = Role::Subject.text(some_of(hosts, SHOWN_HOSTS));
            table.row(cells![names, hosts.len(), what]);
        }
    };
    let stopped: BTreeSet<&HostName> = rolled_out.stopped_at.iter().map(|it| &it.host).collect();
    let rolled_back = rolled_out.rolled_back.iter().cloned();
    let (undone, rolled_back): (Vec<HostName>, Vec<HostName>) =
        rolled_back.partition(|host| stopped.contains(host));
    row(&rolled_out.kept, "changed");
    row(&rolled_out.nothing_to_change, "nothing to change");
    row(&rolled_back, "rolled back");
    row(&rolled_out.as_before, "as before, by the audit log");
    row(&rolled_out.untouched, "not touched");
    for HostReason { host, reason } in &rolled_out.stopped_at {
        let then = match undone.contains(host) {
            true => "; rolled back",
            false => "",
        };
        let state = format!("stopped here: {reason}{then}");
        table.row(cells![name(host), 1, state]);
    }
    for HostReason { host, reason } in &rolled_out.not_rolled_back {
        table.row(cells![name(host), 1, format!("not rolled back: {reason}")]);
    }
    match table.is_empty() {
        true => document.paragraph("nothing to do"),
        false => document.table(table),
    }
    if !rolled_out.kept.is_empty() && !undo.is_empty() {
        document.labelled("to undo: ", undo);
    }
    document
}

/// Which hosts deviate.
pub fn survey(survey: &Survey) -> Document {
    let mut document = Document::new();
    document.paragraph(headline(survey));
    for run in survey.runs.iter().rev().take(SHOWN_RUNS) {
        document.remark(run_line(run));
    }
    document.more(survey.runs.len(), SHOWN_RUNS, " runs before");
    for label in &survey.emulated {
        document.remark(format!("emulated: {label}"));
    }
    for group in &survey.groups {
        group_section(group, &mut document);
    }
    if !survey.missing.is_empty() {
        document.heading("Without an answer", "in the newest run that asked them");
        document.table(without_answer(survey, SHOWN_MISSING));
        document.more(
            survey.missing.len(),
            SHOWN_MISSING,
            "; --format json has all",
        );
    }
    document.gap();
    document.remark(method(survey));
    document
}

/// The first hosts that gave no answer.
fn without_answer(survey: &Survey, most: usize) -> Table {
    let mut table = Table::of(["host", "state", "reason"]).caption("Hosts without an answer");
    for host in survey.missing.iter().take(most) {
        let name = Role::Subject.text(&host.host);
        table.row(cells![name, &host.state, &host.reason]);
    }
    table
}

/// `3 of 4 hosts deviate, in 1 group`.
fn headline(survey: &Survey) -> Text {
    let (mut deviants, mut compared) = (0, 0);
    for group in survey.groups.iter().filter(|group| group.hosts.len() > 1) {
        deviants += group.deviants().len();
        compared += group.hosts.len();
    }
    let alone = survey.groups.iter().filter(|group| group.hosts.len() == 1);
    let without_facts = survey.without_facts.len();
    let role = match deviants {
        0 => Role::Local,
        _ => Role::Warning,
    };
    let verb = if deviants == 1 { "deviates" } else { "deviate" };
    let mut rest = format!(" from their group; {}", count(survey.groups.len(), "group"));
    for (number, what) in [
        (alone.count(), "the only host of its group"),
        (survey.missing.len(), "without an answer"),
        (without_facts, "without a machine in the answer"),
    ] {
        if number > 0 {
            rest += &format!(", {number} {what}");
        }
    }
    let compared = count(compared, "compared host");
    Text::new(role, format!("{deviants} of {compared} {verb}")).then(Role::Plain, rest)
}

fn group_section(group: &Group, document: &mut Document) {
    document.heading(title(group), count(group.hosts.len(), "host"));
    let mut table = Table::of(["hosts", "deviate in", "how"]);
    for it in group.deviations.iter().take(SHOWN_DEVIATIONS) {
        let (what, how) = deviation(it, group.hosts.len());
        let hosts = Role::Subject.text(some_of(&it.hosts, SHOWN_HOSTS));
        table.row(cells![hosts, what, how]);
    }
    document.table(table);
    document.more(
        group.deviations.len(),
        SHOWN_DEVIATIONS,
        "; --html and --format json have all",
    );
    if group.deviations.is_empty() {
        document.paragraph(match group.hosts.len() {
            1 => "not compared: the only host of its group",
            _ if !group.split.is_empty() => "two groups of hosts: none is named",
            _ => "all alike",
        });
    }
    remarks(group, document);
}

/// What was compared, what could not be, and why.
fn remarks(group: &Group, document: &mut Document) {
    for it in group.divided.iter().take(SHOWN_UNKNOWN) {
        let label = format!("{}: no value has a majority: ", it.fact);
        document.labelled(label, divided(it));
    }
    document.more(
        group.divided.len(),
        SHOWN_UNKNOWN,
        " facts without a majority; --format json has all",
    );
    for it in group.split.iter().take(SHOWN_SPLITS) {
        let (experiment, metric, cells) = (&it.experiment, &it.metric, &it.cells);
        document.warning(format!("{experiment} {metric}, {cells}: {}", split(it)));
    }
    document.more(
        group.split.len(),
        SHOWN_SPLITS,
        " such divisions; --format json has all",
    );
    for it in group.unknown.iter().take(SHOWN_UNKNOWN) {
        document.labelled(format!("{} unknown: ", it.fact), unknown(it));
    }
    document.more(
        group.unknown.len(),
        SHOWN_UNKNOWN,
        " unknown facts; --format json has all",
    );
    for it in group.measured.iter().take(SHOWN_METRICS) {
        document.remark(spread(it));
        if it.has_heavy_tails {
            document.warning(HEAVY_TAILS);
        }
    }
    document.more(
        group.measured.len(),
        SHOWN_METRICS,
        " metrics compared; --format json has all",
    );
    for it in group.not_judged.iter().take(SHOWN_METRICS) {
        let label = format!("not compared: {} {}: ", it.experiment, it.metric);
        document.labelled(label, &it.reason);
    }
    document.more(
        group.not_judged.len(),
        SHOWN_METRICS,
        " metrics not compared; --format json has all",
    );
}

fn title(group: &Group) -> String {
    let values = group
        .common
        .iter()
        .map(|common| match common.fact.as_str() {
            // These values say what they are.
            "product" | "cpu_model" if common.value != "unknown" => common.value.clone(),
            fact => format!("{fact} {}", common.value),
        });
    let values: Vec<String> = values.collect();
    match values.is_empty() {
        true => "All hosts".to_owned(),
        false => values.join(", "),
    }
}

fn method(survey: &Survey) -> String {
    let of_facts = "A fact deviates if more than half of the group has another value.";
    if survey.groups.iter().all(|group| group.measured.is_empty()) {
        return of_facts.to_owned();
    }
    format!(
        "{of_facts} A measurement deviates by {} or more, and further than chance allows: if all hosts were alike, the probability that \
         any is named is {} at most. Intervals are of 95 %.",
        share(survey.min_effect),
        share(survey.false_alarms),
    )
}

/// Differences of a table that are listed.
const SHOWN_DIFFERENCES: usize = 4;

/// What hosts deviate in, and how.
fn deviation(deviation: &Deviation, group: usize) -> (Text, Text) {
    let (what, how) = match &deviation.kind {
        DeviationKind::Fact {
            fact,
            usual,
            value,
            differences,
        } => {
            let how = match differences.is_empty() {
                true => format!("{value} instead of {usual}"),
                false => some_of(differences, SHOWN_DIFFERENCES),
            };
            (Text::from(fact), Text::from(how))
        }
        DeviationKind::Metric { .. } => metric(deviation),
        DeviationKind::NotMeasured { metric, cells, .. } => (
            Text::from(format!("{metric}, {cells}")),
            Text::new(Role::Warning, "no value").then(Role::Plain, ": most hosts have one"),
        ),
        DeviationKind::FailedSamples {
            metric,
            failed,
            samples,
            ..
        } => (
            Text::from(metric),
            Role::Warning
                .text(format!("{failed} of {samples} samples failed"))
                .then(Role::Plain, ": of most hosts none"),
        ),
    };
    let of = match deviation.hosts.len() {
        1 => String::new(),
        number => format!(" ({number} of {group})"),
    };
    let causes = match deviation.also.is_empty() {
        true => String::new(),
        false => format!(
            "; possible cause, in the same hosts: {}",
            deviation.also.join(", ")
        ),
    };
    (what, how.then(Role::Plain, causes).then(Role::Dim, of))
}

fn metric(deviation: &Deviation) -> (Text, Text) {
    let DeviationKind::Metric {
        metric,
        unit,
        cells,
        ratio,
        low,
        high,
        is_worse,
        usual,
        value,
        ..
    } = &deviation.kind
    else {
        return (Text::default(), Text::default());
    };
    let what = match cells.as_str() {
        "all" => metric.clone(),
        cells => format!("{metric}, {cells}"),
    };
    let role = if *is_worse {
        Role::Warning
    } else {
        Role::Local
    };
    let (scale, unit) = scaled(unit, usual.max(*value));
    let digits = decimals(usual.max(*value) / scale);
    let [value, usual] = [value, usual].map(|it| figure(it / scale, digits));
    let instead = format!(": {value} instead of {usual} {unit}");
    let how = role.text(change(*ratio, *low, *high));
    (what.into(), how.then(Role::Plain, instead))
}

/// `+31 % (+26 to +36)`.
fn change(ratio: f64, low: f64, high: f64) -> String {
    // As many decimals as it takes to see the interval.
    let decimals = match 100.0 * (high - low) {
        4.0.. => 0,
        0.4.. => 1,
        _ => 2,
    };
    let percent = |ratio: f64| format!("{:+.decimals$}", 100.0 * (ratio - 1.0));
    let [ratio, low, high] = [ratio, low, high].map(percent);
    format!("{ratio} % ({low} to {high})")
}

/// `0.5 %`, `5 %`.
fn share(share: f64) -> String {
    let text = format!("{:.3}", 100.0 * share);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

fn divided(divided: &Divided) -> String {
    let one = |it: &ValueCount| format!("{} ({})", it.value, count(it.hosts, "host"));
    let values: Vec<String> = divided.values.iter().map(one).collect();
    values.join(", ")
}

/// `+30 % on 20 hosts (n1, n2, ...) over 20 others (n3, ...): which are as they should be is unknown`.
fn split(split: &Split) -> String {
    let hosts = |hosts: &[String]| {
        let names = some_of(hosts, SHOWN_HOSTS);
        format!("{} ({names})", count(hosts.len(), "host"))
    };
    let also = match split.also.is_empty() {
        true => String::new(),
        false => format!("; possible cause: {}", split.also.join(", ")),
    };
    format!(
        "{:+.1} % on {} over {}: which of them are as they should be is unknown{also}",
        100.0 * (split.ratio - 1.0),
        hosts(&split.above),
        hosts(&split.below),
    )
}

/// The hosts of which a fact is not known, and why.
fn unknown(unknown: &UnknownFact) -> String {
    let hosts = some_of(&unknown.hosts, SHOWN_HOSTS);
    match unknown.reason.as_str() {
        "" => format!("{hosts}: not in the answer"),
        reason => format!("{hosts}: {reason}"),
    }
}

/// `run week-47 (3f524cdc07a11d7c) of 2026-11-25 08:10 UTC: the newest of 90 hosts`.
fn run_line(run: &SurveyedRun) -> String {
    let name = run_name(run.label.as_deref(), &run.run);
    let hosts = match run.hosts {
        0 => "of no host the newest".to_owned(),
        number => format!("the newest of {}", count(number, "host")),
    };
    let at = moment(run.started_at_s as u64);
    format!("run {name} of {at}: {hosts}")
}

/// What was compared, and how much hosts differ anyway.
fn spread(measured: &Measured) -> String {
    let cells = count(measured.cells, "cell");
    let of = |it: &MeasuredRun| {
        let name = run_name(it.label.as_deref(), &it.run);
        let at = moment(it.started_at_s as u64);
        format!("{} from run {name} of {at}", count(it.hosts, "host"))
    };
    // Values of different days: the machine, its firmware or its load can have changed between.
    let runs = match measured.runs.len() {
        0 | 1 => String::new(),
        _ => {
            let runs: Vec<String> = measured.runs.iter().map(of).collect();
            format!("; {}", some_of(&runs, SHOWN_RUNS))
        }
    };
    format!(
        "compared: {} {} of {} hosts in {cells}; alike hosts differ by {} (one standard deviation); threshold: {:.1} standard deviations{runs}",
        measured.experiment,
        measured.metric,
        measured.hosts,
        share((1000.0 * measured.spread).round() / 1000.0),
        measured.critical,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign_and_an_interval() {
        assert_eq!(change(1.31, 1.26, 1.36), "+31 % (+26 to +36)");
        assert_eq!(change(0.95, 0.94, 0.96), "-5.0 % (-6.0 to -4.0)");
        assert_eq!(
            (share(0.05), share(0.0025)),
            ("5 %".to_owned(), "0.25 %".to_owned())
        );
    }
}
