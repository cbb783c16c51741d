//! The page of a stored run: of the published matrix, and of any experiment.

use crate::html;
use crate::html::Element;
use crate::stored;
use nearfar_bench::matrix::stored_answer as answer;
use nearfar_report::document::Document;
use nearfar_report::{Style, probe, runs};

/// Most bytes of the page of 36 cells with 16 samples each.
const MAX_PAGE_BYTES: usize = 2_000_000;

fn elements(page: &str) -> Vec<Element> {
    let elements = html::page(page).unwrap();
    let names = elements.iter().map(|it| it.name.as_str());
    assert!(
        names
            .clone()
            .all(|name| !["script", "link", "img"].contains(&name))
    );
    assert!(!page.contains("://"));
    elements
}

fn count(elements: &[Element], class: &str) -> usize {
    let has = |it: &&Element| {
        it.get("class")
            .is_some_and(|it| it.split(' ').any(|it| it == class))
    };
    elements.iter().filter(has).count()
}

fn text_of(elements: &[Element], name: &str) -> String {
    let all = elements.iter().filter(|it| it.name == name);
    all.map(|it| it.text.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_page_of_case_2_shows_every_sample_in_less_than_two_megabytes() {
    let stored = stored::case_2();
    let answer = answer(&stored.run, &stored.detail, &stored.samples).unwrap();
    let page = runs::page(&stored.shown(), probe::of_page(&answer)).to_html();
    if let Some(folder) = std::env::var_os("NEARFAR_PICTURES") {
        std::fs::write(std::path::Path::new(&folder).join("case-2.html"), &page).unwrap();
    }
    println!("{} bytes", page.len());
    assert!(page.len() < MAX_PAGE_BYTES, "{} bytes", page.len());
    let elements = elements(&page);
    // Once by cell, once over time.
    assert_eq!(count(&elements, "dot"), 2 * 576);
    assert_eq!(
        (count(&elements, "interval"), count(&elements, "median")),
        (36, 36)
    );
    assert_eq!(
        count(&elements, "line0"),
        15 + 1,
        "16 rounds, and the legend"
    );
    let headings = text_of(&elements, "h2");
    for heading in [
        "elapsed_s (s)",
        "Findings",
        "Migrations",
        "Over time",
        "Machine",
    ] {
        assert!(
            headings.contains(heading),
            "{heading} is missing in {headings}"
        );
    }
    let heat = elements
        .iter()
        .filter(|it| it.name == "td" && it.is_in("table"));
    let heat = heat.filter(|it| it.text.starts_with("2.931"));
    assert!(heat.count() >= 1, "the first cell of the published table");
}

#[test]
fn the_page_of_any_experiment_has_its_metrics_and_warnings() {
    let stored = stored::two_metrics();
    let page = runs::page(&stored.shown(), Document::new()).to_html();
    if let Some(folder) = std::env::var_os("NEARFAR_PICTURES") {
        std::fs::write(
            std::path::Path::new(&folder).join("two-metrics.html"),
            &page,
        )
        .unwrap();
    }
    let elements = elements(&page);
    // One sample failed; one has a warning.
    assert_eq!(
        (count(&elements, "dot"), count(&elements, "warned")),
        (2 * 23, 2)
    );
    let headings = text_of(&elements, "h2");
    assert!(
        headings.contains("throughput (GB/s)") && headings.contains("Warnings"),
        "{headings}"
    );
    assert!(page.contains("Higher is better") && page.contains("out of memory &lt;b&gt;"));
    // More is better: the cell with the largest figure is the green one.
    let best = elements
        .iter()
        .find(|it| it.name == "td" && it.get("class") == Some("h0"))
        .unwrap();
    assert!(best.text.starts_with("52"), "{}", best.text);
}

#[test]
fn a_run_of_any_experiment_as_text() {
    let stored = stored::two_metrics();
    insta::assert_snapshot!(runs::show(&stored.shown()).to_text(&Style::default()));
}

#[test]
fn a_small_figure_next_to_a_large_one_keeps_three_digits() {
    let stored = stored::one_metric(
        "wait",
        "us",
        &[("a", &[1.5, 1.5, 1.5, 1.5, 1.6, 1.6]), ("b", &[5000.0; 6])],
    );
    let text = runs::show(&stored.shown()).to_text(&Style::default());
    assert!(text.contains("1.50 to 1.60"), "{text}");
    let page = runs::page(&stored.shown(), Document::new()).to_html();
    let elements = elements(&page);
    let cell = |start: &str| {
        elements
            .iter()
            .any(|it| it.name == "td" && it.text.starts_with(start))
    };
    assert!(cell("1.50") && cell("5000"));
    assert!(page.contains("1.50 to 5000"), "the tile");
    assert!(page.contains("small: the 95 % interval"));
    // 5000 is the worst of all.
    assert!(page.contains("5000 us"));
}

#[test]
fn bytes_a_second_are_written_in_a_larger_unit_and_one_cell_has_one_figure() {
    let stored = stored::one_metric("bandwidth", "B/s", &[("a", &[26_672_961_733.0])]);
    let text = runs::show(&stored.shown()).to_text(&Style::default());
    assert!(
        text.contains("GB/s; lower is better\n") && text.contains("26.67"),
        "{text}"
    );
    let page = runs::page(&stored.shown(), Document::new()).to_html();
    assert!(page.contains("bandwidth (GB/s)"));
    assert!(!page.contains("2667296") && !page.contains("26.67 to"));
    assert!(page.contains("no interval below 6 samples") && !page.contains("confidence:"));
}

#[test]
fn a_run_that_is_not_kept_has_no_number() {
    let stored = stored::two_metrics();
    let shown = runs::Shown {
        is_kept: false,
        ..stored.shown()
    };
    let text = runs::show(&shown).to_text(&Style::default());
    assert!(
        text.starts_with("random read-then-write, 36 cells, load 10 % (not stored)\n"),
        "{text}"
    );
}

#[test]
fn warnings_about_the_run_are_counted_with_its_samples() {
    let mut stored = stored::two_metrics();
    stored.detail.warnings = vec!["a".to_owned(), "b".to_owned()];
    let text = runs::header(&stored.shown()).to_text(&Style::default());
    assert!(
        text.contains("1 with warnings, 1 failed; 2 warnings about the run\n"),
        "{text}"
    );
}
