//! Pictures and pages: well formed, escaped and small.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::html;
use crate::html::as_xml;
use crate::random;
use crate::samples;
use nearfar_machine::{Known, Machine};
use nearfar_report::{checkup, latency, topo};
use proptest::prelude::*;

/// The names of all elements, or what is wrong with the document.
fn elements(xml: &str) -> Result<Vec<String>, String> {
    Ok(html::elements(xml)?
        .into_iter()
        .map(|element| element.name)
        .collect())
}

#[test]
fn pictures_of_all_samples_are_well_formed_and_run_nothing() {
    for (name, machine) in samples::all() {
        let svg = topo::svg(&machine);
        let names = elements(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            names.iter().filter(|name| *name == "g").count() >= machine.nodes.len(),
            "{name}: a box is missing"
        );
        assert!(
            names
                .iter()
                .all(|name| !matches!(name.as_str(), "script" | "foreignObject" | "image" | "a")),
            "{name}"
        );
        assert!(
            !svg.contains("http")
                || svg.matches("http").count() == svg.matches("http://www.w3.org/2000/svg").count()
        );
    }
}

/// librsvg and what uses it know no `var()` and no media queries, other viewers no style sheets: what has no colour is black.
#[test]
fn pictures_have_their_colours_without_a_style_sheet() {
    let maps = |machine: &Machine| {
        latency::survey(&samples::surveys::survey(machine), machine, false).to_svg()
    };
    let pictures = samples::all()
        .into_iter()
        .flat_map(|(name, machine)| [(name, topo::svg(&machine)), (name, maps(&machine))]);
    for (name, svg) in pictures {
        assert!(!svg.contains("var("), "{name}");
        for element in html::elements(&svg).unwrap() {
            if !["rect", "path", "circle", "line", "text"].contains(&element.name.as_str()) {
                continue;
            }
            let painted = element.get("fill").or(element.get("stroke"));
            assert!(painted.is_some(), "{name}: {element:?}");
            let is_text = element.name == "text";
            assert!(
                !is_text || element.get("stroke").is_none(),
                "{name}: {element:?}"
            );
        }
    }
    let svg = topo::svg(&samples::laptop());
    assert!(svg.contains("<rect class=\"paper\" width=\"960\" height=\""));
    assert!(svg.contains(" fill=\"#fff\"></rect>"));
    let dark = "@media (prefers-color-scheme:dark){.nearfar-map{font-family:";
    assert!(svg.contains(dark) && svg.contains(".nearfar-map .paper{fill:#11161c}"));
}

#[test]
fn distances_of_a_machine_have_different_colours() {
    let rows = [
        [10, 16, 22, 42],
        [16, 10, 32, 22],
        [22, 32, 10, 16],
        [42, 22, 16, 10],
    ];
    let machine = samples::machine("far", 4, 2, 2, |a, b| rows[a as usize][b as usize]);
    let elements = html::elements(&topo::svg(&machine)).unwrap();
    let cells = elements.windows(2).filter(|pair| pair[0].name == "rect");
    let cells = cells.filter(|pair| pair[0].get("class").is_some_and(|it| it.starts_with('h')));
    let colours: BTreeMap<&str, &str> = cells
        .filter(|pair| {
            pair[1]
                .get("class")
                .is_some_and(|it| it.contains("middle "))
        })
        .map(|pair| (pair[1].text.as_str(), pair[0].get("fill").unwrap()))
        .collect();
    assert_eq!(
        colours.keys().copied().collect::<Vec<_>>(),
        ["10", "16", "22", "32", "42"]
    );
    let different: BTreeSet<&str> = colours.into_values().collect();
    assert_eq!(different.len(), 5);
}

#[test]
fn pages_of_all_samples_are_well_formed_load_nothing_and_run_nothing() {
    for (name, machine) in samples::all() {
        let page = checkup::page(&samples::checkup(machine, 8)).to_html();
        let names = elements(&as_xml(&page)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for forbidden in ["script", "link", "img", "iframe", "object"] {
            assert!(
                names.iter().all(|name| name != forbidden),
                "{name} has <{forbidden}>"
            );
        }
        let loads = page.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !loads.contains("://") && !loads.contains("url(") && !loads.contains("@import"),
            "{name} loads something"
        );
    }
}

#[test]
fn markup_in_names_is_shown_and_not_obeyed() {
    let checkup = samples::checkup(samples::hostile(), 2);
    for text in [
        checkup::page(&checkup).to_html(),
        topo::svg(&checkup.machine),
    ] {
        assert!(!text.contains("<script"), "a script got through");
        assert!(text.contains("&lt;script&gt;alert"), "the name is missing");
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{0}']));
    }
    let dot = topo::dot(&checkup.machine);
    // Whatever stands between quotes, an unescaped quote ends it: there must be an even number of them a line.
    for line in dot.lines() {
        let quotes = line
            .replace("\\\\", "")
            .replace("\\\"", "")
            .matches('"')
            .count();
        assert!(quotes.is_multiple_of(2), "{line}");
    }
}

#[test]
fn a_page_says_what_was_not_measured_and_why() {
    let mut checkup = samples::checkup(samples::two_sockets(), 1);
    checkup.probe = Known::no("--no-probe was given");
    let page = checkup::page(&checkup).to_html();
    assert!(page.contains("--no-probe was given"));
    for part in [
        "task-memory-far",
        "tasks were not read",
        "nearfar checkup",
        "/proc/irq/40/effective_affinity_list",
        "21 → 10",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn a_page_says_what_unbound_tasks_cost_with_its_interval_and_under_which_load() {
    let mut checkup = samples::checkup(samples::two_sockets(), 1);
    let page = checkup::page(&checkup).to_html();
    for part in [
        "<b>CPUs unbound</b>: 9.0 % slower (4.0 to 13 %) than bound; 31 cross-node migrations in 12 s",
        "<b>all unbound</b>: no significant difference (-3.0 to 2.0 %)",
        "7 cross-node migrations in 12 s",
        "each had a load of 5 %",
        "Nothing was set: NUMA balancing was off",
        "2 runs with warnings: something else ran",
    ] {
        assert!(page.contains(part), "{part:?} is missing");
    }
    let rows = page
        .split("<table class=\"runs\">")
        .nth(1)
        .and_then(|rest| rest.split("</table>").next())
        .unwrap();
    assert_eq!(rows.matches("<tr>").count(), 1 + 5);
    assert!(
        rows.contains("<td>node 0</td><td>unbound</td><td class=\"right\">9</td>"),
        "{rows}"
    );
    checkup.unbound = Known::no("only <one> node");
    assert!(
        checkup::page(&checkup)
            .to_html()
            .contains("Not probed: only &lt;one&gt; node")
    );
    // What was not measured for the same reason as everything else is said once.
    checkup.probe = Known::no("only <one> node");
    assert!(!checkup::page(&checkup).to_html().contains("Unbound tasks"));
}

#[test]
fn one_node_is_said_plainly() {
    let page = checkup::page(&samples::checkup(samples::laptop(), 0)).to_html();
    assert!(page.contains("One node. Every CPU has the same distance"));
}

#[test]
fn a_page_of_the_largest_machine_is_small() {
    let page = checkup::page(&samples::checkup(samples::large(), 500)).to_html();
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

/// In the slow tier: it compares times. 200 ms is the aim of a release build on an idle machine.
#[test]
fn a_page_takes_time_in_proportion_to_its_size() {
    let ns_per_byte = |machine: Machine| {
        let checkup = samples::checkup(machine, 500);
        let timed = |_| {
            let start = Instant::now();
            let page = checkup::page(&checkup).to_html();
            start.elapsed().as_nanos() as f64 / page.len() as f64
        };
        (0..5).map(timed).fold(f64::INFINITY, f64::min)
    };
    let [two, many] = [samples::two_sockets(), samples::large()].map(ns_per_byte);
    println!("{two:.0} ns a byte for two sockets, {many:.0} for the largest machine");
    assert!(many < 5.0 * two, "{many} and {two} ns a byte");
}

#[test]
fn dot_names_nodes_devices_and_distances() {
    let dot = topo::dot(&samples::two_sockets());
    for part in [
        "graph machine {",
        "n0 -- n1 [label=\"21\"",
        "\"0000:3b:00.0\"",
        "n0 -- \"0000:3b:00.0\"",
    ] {
        assert!(dot.contains(part), "{part} is missing in\n{dot}");
    }
    assert!(
        !dot.contains("-- \"0000:d8:00.0\""),
        "a device without a node hangs on none"
    );
    let asymmetric = topo::dot(&samples::eight());
    assert!(
        asymmetric.contains("16/17"),
        "both directions are named where they differ"
    );
}

proptest! {
    #[test]
    fn no_machine_breaks_a_picture_or_a_page(machine in random::machine()) {
        let ends = topo::dot(&machine).trim_end().ends_with('}');
        prop_assert!(ends);
        elements(&topo::svg(&machine)).map_err(TestCaseError::fail)?;
        let page = checkup::page(&samples::checkup(machine, 3)).to_html();
        elements(&as_xml(&page)).map_err(TestCaseError::fail)?;
    }
}
