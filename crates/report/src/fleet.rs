//! Reports about many hosts: what became of a run, which hosts deviate.

mod page;
mod wording;

use std::collections::BTreeSet;

use nearfar_fleet::dataset::Collected;
use nearfar_fleet::rollout::RolledOut;
use nearfar_fleet::survey::{Group, Survey};
use nearfar_fleet::{HostName, HostReason, Summary, some_of};

use crate::count;
use crate::document::{Document, Table, Text, cells};
use crate::style::Role;
use wording::{deviation, share, spread};

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
        document.labelled(
            "not asked, or interrupted: ",
            some_of(&summary.not_asked, SHOWN_HOSTS),
        );
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
            table.row(cells![name_some(hosts), hosts.len(), what]);
        }
    };
    let stopped: BTreeSet<&HostName> = rolled_out.stopped_at.iter().map(|it| &it.host).collect();
    let (undone, rolled_back): (Vec<HostName>, Vec<HostName>) = rolled_out
        .rolled_back
        .iter()
        .cloned()
        .partition(|host| stopped.contains(host));
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
        table.row(cells![
            name(host),
            1,
            format!("stopped here: {reason}{then}")
        ]);
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

fn name_some(hosts: &[HostName]) -> Text {
    Role::Subject.text(some_of(hosts, SHOWN_HOSTS))
}

/// Which hosts deviate.
pub fn survey(survey: &Survey) -> Document {
    let mut document = Document::new();
    document.paragraph(headline(survey));
    for run in survey.runs.iter().rev().take(SHOWN_RUNS) {
        document.remark(wording::run(run));
    }
    document.more(survey.runs.len().saturating_sub(SHOWN_RUNS), " runs before");
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
            survey.missing.len().saturating_sub(SHOWN_MISSING),
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
        table.row(cells![
            Role::Subject.text(&host.host),
            host.state.as_str(),
            host.reason.as_str()
        ]);
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
    let alone = survey
        .groups
        .iter()
        .filter(|group| group.hosts.len() == 1)
        .count();
    let role = match deviants {
        0 => Role::Local,
        _ => Role::Warning,
    };
    let verb = if deviants == 1 { "deviates" } else { "deviate" };
    let mut rest = format!(" from their group; {}", count(survey.groups.len(), "group"));
    for (number, what) in [
        (alone, "the only host of its group"),
        (survey.missing.len(), "without an answer"),
        (
            survey.without_facts.len(),
            "without a machine in the answer",
        ),
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
        table.row(cells![
            Role::Subject.text(some_of(&it.hosts, SHOWN_HOSTS)),
            what,
            how
        ]);
    }
    document.table(table);
    document.more(
        group.deviations.len().saturating_sub(SHOWN_DEVIATIONS),
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
        document.labelled(
            format!("{}: no value has a majority: ", it.fact),
            wording::divided(it),
        );
    }
    document.more(
        group.divided.len().saturating_sub(SHOWN_UNKNOWN),
        " facts without a majority; --format json has all",
    );
    for it in group.split.iter().take(SHOWN_SPLITS) {
        document.warning(format!(
            "{} {}, {}: {}",
            it.experiment,
            it.metric,
            it.cells,
            wording::split(it)
        ));
    }
    document.more(
        group.split.len().saturating_sub(SHOWN_SPLITS),
        " such divisions; --format json has all",
    );
    for it in group.unknown.iter().take(SHOWN_UNKNOWN) {
        document.labelled(format!("{} unknown: ", it.fact), wording::unknown(it));
    }
    document.more(
        group.unknown.len().saturating_sub(SHOWN_UNKNOWN),
        " unknown facts; --format json has all",
    );
    for it in group.measured.iter().take(SHOWN_METRICS) {
        document.remark(spread(it));
        if it.has_heavy_tails {
            document.warning(HEAVY_TAILS);
        }
    }
    document.more(
        group.measured.len().saturating_sub(SHOWN_METRICS),
        " metrics compared; --format json has all",
    );
    for it in group.not_judged.iter().take(SHOWN_METRICS) {
        document.labelled(
            format!("not compared: {} {}: ", it.experiment, it.metric),
            it.reason.as_str(),
        );
    }
    document.more(
        group.not_judged.len().saturating_sub(SHOWN_METRICS),
        " metrics not compared; --format json has all",
    );
}

fn title(group: &Group) -> String {
    let values: Vec<String> = group
        .common
        .iter()
        .map(|common| match common.fact.as_str() {
            // These values say what they are.
            "product" | "cpu_model" if common.value != "unknown" => common.value.clone(),
            fact => format!("{fact} {}", common.value),
        })
        .collect();
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
