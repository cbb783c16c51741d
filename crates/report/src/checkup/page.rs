//! One page that stands alone: no network, no script, legible on light, dark and paper.

mod findings;
mod floating;
mod map;
mod matrices;
mod method;
mod next;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use nearfar_machine::Machine;
use nearfar_placement::audit::Severity;

use super::Checkup;
use crate::amount::{bytes, count, moment, nanoseconds};
use crate::audit;
use crate::latency;
use crate::summary::{self, Summary};
use crate::topo;
use crate::wrapping::clean;

/// Type and layout of the page.
const STYLE: &str = include_str!("../document/write/page.css");
/// Most warnings shown.
const MOST_DIAGNOSTICS: usize = 200;

/// The checkup as a whole HTML document. All foreign text is escaped; the page loads nothing and runs nothing.
pub fn page(checkup: &Checkup) -> String {
    let name = clean(&summary::name(&checkup.machine));
    let sections = [
        map::section(checkup),
        findings::section(checkup),
        next::section(checkup),
        matrices::section(checkup),
        floating::section(checkup),
        findings::not_checked(&checkup.audit, &checkup.machine),
        warnings(&checkup.machine),
        method::section(checkup),
    ];
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { "nearfar checkup: " (name) }
                style { (PreEscaped(topo::SVG_THEME)) (PreEscaped(STYLE)) }
            }
            body class="nearfar-map" {
                (header(checkup, &name))
                main { @for section in &sections { (section) } }
            }
        }
    };
    page.into_string()
}

fn header(checkup: &Checkup, name: &str) -> Markup {
    let machine = &checkup.machine;
    html! {
        header {
            p.tool { "nearfar checkup" }
            h1 { (name) }
            p.about { (clean(&summary::circumstances(machine).join(" · "))) }
            @if let Some(emulation) = &machine.origin.emulation { p.emulated { (clean(&emulation.to_string())) } }
            (tiles(checkup))
        }
        (contents(checkup))
    }
}

/// The parts of the page that every page has.
fn contents(checkup: &Checkup) -> Markup {
    let number = checkup.audit.findings.len();
    html! {
        nav aria-label="Contents" {
            ul {
                li { a href="#machine" { "The machine" } }
                li { a href="#findings" { "What is far (" (number) ")" } }
                li { a href="#next" { "Next" } }
                li { a href="#distances" { "Distances and latencies" } }
                li { a href="#method" { "How each number was made" } }
            }
        }
    }
}

/// A section with its heading, as a part of the page that can be jumped to.
fn titled(id: &str, title: &str, content: &Markup) -> Markup {
    html! {
        section id=(id) aria-labelledby={ (id) "-title" } {
            h2 id={ (id) "-title" } { (title) }
            (content)
        }
    }
}

/// The figures that sum the machine up.
fn tiles(checkup: &Checkup) -> Markup {
    let summary = Summary::of(&checkup.machine);
    let cpus = match (summary.cores, summary.packages) {
        (Some(cores), Some(packages)) => {
            format!("{}, {}", count(cores, "core"), count(packages, "package"))
        }
        (Some(cores), None) => count(cores, "core"),
        _ => String::new(),
    };
    let memory = summary.memory_bytes.map_or_else(|| "?".to_owned(), bytes);
    let offline = checkup.machine.nodes.len() - summary.nodes_online;
    let offline = if offline > 0 {
        format!("{offline} more not online")
    } else {
        "online".to_owned()
    };
    html! {
        ul.tiles {
            (tile(&summary.nodes_online.to_string(), if summary.nodes_online == 1 { "node" } else { "nodes" }, &offline))
            (tile(&summary.cpus_online.to_string(), "CPUs", &cpus))
            (tile(&memory, "memory", ""))
            @if let Some((figure, remark)) = measured(checkup) { (tile(&figure, "ns a load", &remark)) }
            li.verdict {
                @let groups = severities(checkup);
                @if groups.is_empty() { strong { "0" } span { "findings" } }
                @for (severity, number) in groups { span class={ "badge " (severity) } { (audit::number(severity, number)) } }
                small { (audit::rules(&checkup.audit)) }
            }
        }
    }
}

fn tile(figure: &str, what: &str, remark: &str) -> Markup {
    html! { li { strong { (figure) } span { (what) } @if !remark.is_empty() { small { (remark) } } } }
}

/// Findings by severity, gravest first.
fn severities(checkup: &Checkup) -> Vec<(Severity, usize)> {
    let mut numbers: Vec<(Severity, usize)> = Vec::new();
    for group in audit::groups(&checkup.audit) {
        let findings = group.findings.len();
        match numbers
            .last_mut()
            .filter(|(last, _)| *last == group.severity)
        {
            Some((_, number)) => *number += findings,
            None => numbers.push((group.severity, findings)),
        }
    }
    numbers
}

/// The local latency, and the farthest.
fn measured(checkup: &Checkup) -> Option<(String, String)> {
    let pairs = &checkup.probe.get()?.pairs;
    let by_median = |a: &f64, b: &f64| a.total_cmp(b);
    let medians = |local: bool| {
        let of_kind = pairs
            .iter()
            .filter(move |pair| (pair.cpu_node == pair.memory_node) == local);
        of_kind.map(|pair| pair.median_ns)
    };
    let local = medians(true).min_by(by_median)?;
    let remark = match medians(false).max_by(by_median) {
        Some(far) => format!("local; {} farthest", nanoseconds(far)),
        None => "local".to_owned(),
    };
    Some((nanoseconds(local), remark))
}

fn warnings(machine: &Machine) -> Markup {
    let all = &machine.warnings;
    if all.is_empty() {
        return html! {};
    }
    titled(
        "input",
        "Warnings about the input",
        &html! {
            details open[all.len() <= 10] {
                summary { (count(all.len(), "remark")) " on what contradicts itself or is odd; it was read as far as it goes" }
                dl.facts {
                    @for warning in all.iter().take(MOST_DIAGNOSTICS) {
                        dt { code { (clean(&warning.place)) } }
                        dd { (clean(&warning.message)) }
                    }
                }
                @if all.len() > MOST_DIAGNOSTICS { p.more { "and " (all.len() - MOST_DIAGNOSTICS) " more" } }
            }
        },
    )
}

/// When the checkup was made, as text.
fn made_at(checkup: &Checkup) -> Option<String> {
    checkup.made.at_s.map(moment)
}

/// What the figures of a measurement are, as text.
fn latency_label(checkup: &Checkup) -> Option<String> {
    checkup.probe.get().map(latency::label)
}
