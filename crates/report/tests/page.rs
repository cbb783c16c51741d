//! The page of a checkup: landmarks, labels, one scale, lines that unfold, commands to paste, and its size.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::html;
use crate::html::Element;
use crate::samples;
use nearfar_machine::{DistanceOrigin, Distances, Known, Machine, NodeId};
use nearfar_report::checkup::{self, Checkup};
use nearfar_report::{Style, topo};

fn elements(checkup: &Checkup) -> Vec<Element> {
    html::page(&checkup::page(checkup).to_html()).unwrap()
}

fn all_pages() -> Vec<(&'static str, Vec<Element>)> {
    let page = |(name, machine)| (name, elements(&samples::checkup(machine, 8)));
    samples::all().into_iter().map(page).collect()
}

fn named<'a>(elements: &'a [Element], name: &'a str) -> impl Iterator<Item = &'a Element> {
    elements.iter().filter(move |element| element.name == name)
}

#[test]
fn a_page_has_landmarks_one_title_and_headings_in_order() {
    for (name, page) in all_pages() {
        for landmark in ["header", "nav", "main", "h1"] {
            assert_eq!(named(&page, landmark).count(), 1, "{name}: <{landmark}>");
        }
        assert_eq!(named(&page, "html").next().unwrap().get("lang"), Some("en"));
        let levels = page
            .iter()
            .filter_map(|element| match element.name.as_bytes() {
                [b'h', digit @ b'1'..=b'6'] => Some(digit - b'0'),
                _ => None,
            });
        levels.fold(0, |last, level| {
            assert!(level <= last + 1, "{name}: h{level} after h{last}");
            level
        });
        assert!(
            named(&page, "section")
                .all(|section| section.is_in("main") && section.get("aria-labelledby").is_some())
        );
    }
}

#[test]
fn what_is_referred_to_exists_once() {
    for (name, page) in all_pages() {
        let ids: Vec<&str> = page
            .iter()
            .filter_map(|element| element.get("id"))
            .collect();
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids.len(), unique.len(), "{name}: {ids:?}");
        let links = page
            .iter()
            .filter_map(|element| element.get("href")?.strip_prefix('#'));
        let labels = page
            .iter()
            .filter_map(|element| element.get("aria-labelledby"));
        assert!(links.clone().count() >= 5, "{name}");
        for target in links.chain(labels) {
            assert!(unique.contains(target), "{name}: #{target}");
        }
    }
}

#[test]
fn pictures_and_tables_say_what_they_are() {
    let huge = samples::huge(|a, b| if a == b { 10 } else { 20 });
    let huge = (
        "huge",
        elements(&Checkup {
            probe: Known::no("the sample has none"),
            ..samples::checkup(huge, 8)
        }),
    );
    for (name, page) in all_pages().into_iter().chain([huge]) {
        for svg in named(&page, "svg").filter(|svg| svg.get("aria-hidden") != Some("true")) {
            assert_eq!(
                (
                    svg.get("role"),
                    svg.children[0].as_str(),
                    svg.children[1].as_str()
                ),
                (Some("img"), "title", "desc")
            );
        }
        for (index, table) in page
            .iter()
            .enumerate()
            .filter(|(_, element)| element.name == "table")
        {
            assert_eq!(table.children[0], "caption", "{name}");
            let caption = page[index..]
                .iter()
                .find(|element| element.name == "caption")
                .unwrap();
            assert!(!caption.text.trim().is_empty());
        }
        for head in named(&page, "th") {
            assert!(
                matches!(head.get("scope"), Some("col" | "row")) && !head.text.is_empty(),
                "{name}: {head:?}"
            );
        }
        // What scrolls by itself can be reached with the keyboard, and has a name.
        for scrolls in page
            .iter()
            .filter(|element| element.name == "pre" || element.get("class") == Some("scroll"))
        {
            let labelled = scrolls
                .get("aria-label")
                .or(scrolls.get("aria-labelledby"))
                .is_some();
            assert!(
                labelled && scrolls.get("tabindex") == Some("0") && scrolls.get("role").is_some(),
                "{name}"
            );
        }
    }
    for (name, machine) in samples::all() {
        let svg = html::elements(&topo::svg(&machine)).unwrap();
        let said = [&svg[0].children[0], &svg[0].children[1]];
        assert_eq!(said, ["title", "desc"], "{name}");
    }
}

#[test]
fn a_distance_has_one_colour_on_a_page_and_the_farthest_is_red() {
    let mut seen = BTreeSet::new();
    for (name, page) in all_pages() {
        let tables = page.split(|element| element.name == "table").skip(1);
        let cells = tables
            .filter(|table| table[0].text.starts_with("Distances"))
            .flatten();
        let mut classes: BTreeMap<u32, &str> = BTreeMap::new();
        for cell in cells.filter(|element| element.name == "td" && element.is_in("tbody")) {
            let Ok(distance) = cell.text.parse::<u32>() else {
                continue;
            };
            let class = cell.get("class").unwrap_or_default();
            let of_distance = *classes.entry(distance).or_insert(class);
            assert_eq!(of_distance, class, "{name}: distance {distance}");
        }
        seen.extend(classes.keys().copied());
        assert!(classes.remove(&255).is_none_or(|class| class == "hole"));
        assert!(
            classes
                .first_key_value()
                .is_none_or(|(_, &class)| class == "h0")
        );
        let farthest = classes
            .last_key_value()
            .filter(|(distance, _)| **distance >= 20);
        assert!(
            farthest.is_none_or(|(_, &class)| class == "h9"),
            "{name}: {classes:?}"
        );
    }
    assert!(
        [10, 16, 21, 25, 33, 255]
            .iter()
            .all(|distance| seen.contains(distance)),
        "{seen:?}"
    );
}

/// Without the theme, the picture has the colours of the page.
#[test]
fn a_picture_has_the_colours_of_the_page() {
    let machine = samples::kunpeng();
    let svg = html::elements(&topo::svg(&machine)).unwrap();
    let cells: Vec<&Element> = svg
        .iter()
        .skip_while(|element| element.text != "Distances")
        .collect();
    let pairs = cells
        .windows(2)
        .filter(|pair| pair[0].name == "rect" && pair[1].text.parse::<u32>().is_ok());
    let classes: BTreeSet<(&str, &str)> = pairs
        .filter_map(|pair| Some((pair[1].text.as_str(), pair[0].get("class")?)))
        .collect();
    let expected = [
        ("10", "h0"),
        ("16", "h2"),
        ("25", "h6"),
        ("32", "h9"),
        ("33", "h9"),
    ];
    assert_eq!(classes, BTreeSet::from(expected));
}

#[test]
fn far_queues_of_a_card_are_one_line_that_unfolds() {
    let page = elements(&samples::checkup(samples::two_sockets(), 8));
    let lines: Vec<&str> = named(&page, "summary")
        .map(|summary| summary.text.as_str())
        .collect();
    let line = "8 queues of ens5f0 (interrupts 40-47) on node 1, device on node 0 distance 21 → 10";
    assert_eq!(
        lines.iter().filter(|text| **text == line).count(),
        1,
        "{lines:?}"
    );
    let below = named(&page, "h4")
        .filter(|heading| heading.text.starts_with("interrupt 4"))
        .count();
    assert_eq!(below, 8, "each of them is below the line");
    let open = page
        .iter()
        .find(|element| element.name == "details" && element.text.starts_with("8 queues"))
        .unwrap();
    assert_eq!(open.get("open"), None);
}

#[test]
fn interrupts_and_findings_are_marked_on_the_map() {
    let machine = samples::two_sockets();
    let mut checkup = samples::checkup(machine, 8);
    for finding in checkup
        .audit
        .findings
        .iter_mut()
        .filter(|finding| finding.rule == "interrupt-far")
    {
        finding.device = Some("0000:5e:00.0".parse().unwrap());
    }
    let page = elements(&checkup);
    let map: Vec<&Element> = page.iter().filter(|element| element.is_in("svg")).collect();
    let marks = |class: &str| {
        map.iter()
            .filter(|element| element.get("class") == Some(class))
            .count()
    };
    // Two CPUs a core: 8 far interrupts on the 4 cores of CPUs 16-23, 4 near ones on those of CPUs 0-3; one of each in the legend.
    assert_eq!((marks("far-mark"), marks("near-mark")), (4 + 1, 2 + 1));
    let flag = map
        .iter()
        .find(|element| element.get("class") == Some("flagged warning"))
        .unwrap();
    assert_eq!(flag.text, "!8");
    let said = named(&page, "desc")
        .find(|desc| desc.text.starts_with("CPUs 16-31"))
        .unwrap();
    assert!(
        said.text.contains("8 interrupts of ens5f0, on node 0 (21)"),
        "{}",
        said.text
    );
    assert!(map.iter().any(|element| element.name == "text"
        && element.text == "8 interrupts of ens5f0, on node 0 (21)"));
}

#[test]
fn the_commands_are_for_the_machine_of_the_page() {
    let mut checkup = samples::checkup(samples::two_sockets(), 2);
    checkup.made = samples::made(
        "nearfar checkup --source 'it is <b>.toml'",
        "--source 'it is <b>.toml'",
    );
    let page = elements(&checkup);
    let commands: Vec<&str> = page
        .iter()
        .filter(|element| element.get("class") == Some("command"))
        .map(|element| element.text.as_str())
        .collect();
    for command in [
        "nearfar audit",
        "nearfar plan",
        "nearfar topo",
        "nearfar plan --rule interrupt-far",
    ] {
        let whole = format!("{command} --source 'it is <b>.toml'");
        assert!(
            commands.contains(&whole.as_str()),
            "{whole} is missing in {commands:?}"
        );
    }
    let screen = checkup::screen(&checkup, 100).to_text(&Default::default());
    assert!(
        screen.contains("nearfar audit --source 'it is <b>.toml'"),
        "{screen}"
    );
}

#[test]
fn names_in_other_alphabets_are_shown_as_they_are() {
    let mut machine = samples::two_sockets();
    machine.origin.host = Some("сервер-日本-é".to_owned());
    let page = elements(&samples::checkup(machine, 1));
    assert_eq!(named(&page, "h1").next().unwrap().text, "сервер-日本-é");
}

fn size_of(machine: Machine, range: Range<usize>) -> Vec<Element> {
    let checkup = Checkup {
        probe: Known::no("the sample has none"),
        ..samples::checkup(machine, 64)
    };
    let page = checkup::page(&checkup).to_html();
    println!("{} bytes", page.len());
    assert!(range.contains(&page.len()), "{} bytes", page.len());
    html::page(&page).unwrap()
}

#[test]
fn a_thousand_nodes_are_a_small_page_whatever_their_distances() {
    let ring = |a: u32, b: u32| 10 + 2 * a.abs_diff(b).min(1024 - a.abs_diff(b)).min(100);
    let page = size_of(samples::huge(ring), 50_000..1_000_000);
    let others = page
        .iter()
        .filter(|element| element.name == "summary" && element.text.contains("other nodes"));
    assert_eq!(
        others
            .map(|summary| &summary.text[..15])
            .collect::<Vec<_>>(),
        ["960 other nodes"]
    );
    let classes = named(&page, "path").filter(|path| {
        path.get("class")
            .is_some_and(|class| class.starts_with('h'))
    });
    // Each step from 10 to 210.
    assert_eq!(classes.count(), 10);
    let random =
        |a: u32, b: u32| 10 + (a.wrapping_mul(2_654_435_761) ^ b.wrapping_mul(40_503_001)) % 245;
    let mut machine = samples::huge(random);
    let other = |a: u32, b: u32| {
        Some(nearfar_machine::Distance(
            10 + (a.wrapping_mul(97) ^ b.wrapping_mul(2_246_822_519)) % 11,
        ))
    };
    let rows = (0..1024)
        .map(|a| (0..1024).map(|b| other(a, b)).collect())
        .collect();
    let table =
        Distances::from_rows(DistanceOrigin::Slit, (0..1024).map(NodeId).collect(), rows).unwrap();
    machine.firmware_distances = Known::Yes(table);
    size_of(machine, 50_000..3_000_000);
}

#[test]
fn nothing_is_called_far_that_may_be_near() {
    for machine in [samples::laptop(), samples::two_sockets()] {
        let html = checkup::page(&samples::checkup(machine, 8)).to_html();
        assert!(html.contains(">Findings (") && !html.contains("What is far"));
    }
}

#[test]
fn nodes_are_in_rows_of_equal_length() {
    for (nodes, columns) in [(1, 1), (2, 2), (4, 2), (9, 3), (12, 4), (16, 4), (32, 8)] {
        let machine = samples::machine("rows", nodes, 2, 2, |a, b| if a == b { 10 } else { 20 });
        let html = checkup::page(&samples::checkup(machine, 0)).to_html();
        assert!(
            html.contains(&format!("<ul class=\"nodes in{columns}\">")),
            "{nodes}"
        );
    }
}

#[test]
fn the_mark_of_findings_is_explained_where_a_device_has_it() {
    let mut checkup = samples::checkup(samples::two_sockets(), 8);
    // An NVMe disk, and a host bridge, which is in no picture.
    for (device, is_drawn) in [("0000:d8:00.0", true), ("0000:00:00.0", false)] {
        for finding in &mut checkup.audit.findings {
            finding.device = Some(device.parse().unwrap());
        }
        let html = checkup::page(&checkup).to_html();
        assert_eq!(html.contains("class=\"flagged "), is_drawn, "{device}");
        assert_eq!(html.contains("! before a device"), is_drawn, "{device}");
    }
}

#[test]
fn a_latency_of_few_samples_is_not_a_headline() {
    let mut checkup = samples::checkup(samples::laptop(), 8);
    for (number, is_figure) in [(1, false), (5, false), (6, true)] {
        let mut matrix = samples::latencies(&checkup.machine);
        matrix.pairs[0].samples_ns = vec![2691.0; number];
        matrix.pairs[0].median_ns = 2691.0;
        checkup.probe = Known::Yes(matrix);
        let too_few = format!("too few samples ({number})");
        let screen = checkup::screen(&checkup, 100).to_text(&Style::default());
        assert_eq!(screen.contains("local memory: 2691"), is_figure);
        assert_eq!(screen.contains(&too_few), !is_figure, "{screen}");
        let html = checkup::page(&checkup).to_html();
        let tiles = &html[..html.find("<main").unwrap_or(html.len())];
        assert_eq!(tiles.contains(&too_few), !is_figure, "{tiles}");
        assert_eq!(tiles.contains("2691"), is_figure, "{tiles}");
    }
}
