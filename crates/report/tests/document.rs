//! One document with every kind of block, through every writer.

use crate::html;
use nearfar_report::document::{
    Align, Axis, Bars, Block, Chart, Document, Dot, Dots, DotsRow, Head, HeatCell, HeatMap, Line,
    Plot, Scale, Table, Text, Tile,
};
use nearfar_report::{Role, Style};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn table(foreign: &str) -> Table {
    let mut table = Table::new(&[
        ("device", Align::Left),
        ("IOPS", Align::Right),
        ("none", Align::Left),
    ])
    .caption("Devices");
    table.row(vec![
        Text::new(Role::Subject, foreign),
        "1200".into(),
        "".into(),
    ]);
    table.row(vec![
        "nvme1n1".into(),
        Text::from("90").then(Role::Dim, "[1]"),
    ]);
    table
}

fn heat_map() -> HeatMap {
    let cell = |heat: f64| HeatCell {
        heat,
        value: format!("{heat:.0}"),
        spread: " ±3".to_owned(),
        interval: Some((format!("{:.0}", heat - 2.0), format!("{:.0}", heat + 2.0))),
        about: format!("median {heat} ns"),
    };
    HeatMap {
        title: "Latency".to_owned(),
        remark: "ns per load".to_owned(),
        row_heads: names(&["kernel", "node"]),
        column_head: "memory_node".to_owned(),
        rows: vec![names(&["6.1", "0"]), names(&["6.12", "0"])],
        columns: names(&["0", "1"]),
        cells: vec![
            vec![Some(cell(90.0)), Some(cell(170.0))],
            vec![Some(cell(91.0)), None],
        ],
        ..HeatMap::of(Scale::over([90.0, 170.0, 91.0]), |heat| {
            format!("{heat:.0} ns")
        })
    }
}

fn charts() -> [Chart; 3] {
    let dot = |x: f64, y: f64| Dot {
        x,
        y,
        has_warning: x > 4.0,
        line: None,
    };
    let samples = [3.0, 3.1, 3.1, 3.4, 4.2];
    let chart = |title: &str, plot| Chart {
        title: title.to_owned(),
        about: "What it shows.".to_owned(),
        plot,
    };
    [
        chart(
            "Every sample",
            Plot::Dots(Dots {
                row_heads: names(&["node"]),
                axis: Axis::over("elapsed time (s)", samples),
                rows: vec![DotsRow {
                    names: names(&["0"]),
                    dots: samples.iter().map(|&it| dot(it, 0.0)).collect(),
                    median: Some(3.1),
                    interval: Some((3.05, 3.4)),
                    about: "3.1 s (3.05 to 3.4), 5 samples".to_owned(),
                }],
            }),
        ),
        chart(
            "Migrations",
            Plot::Bars(Bars {
                row_heads: names(&["node"]),
                axis: Axis::from_zero("migrations per run", [12.0]),
                classes: names(&["same core", "same node", "cross node"]),
                rows: vec![
                    (names(&["0"]), vec![2.0, 5.0, 5.0]),
                    (names(&["1"]), vec![0.0, 1.5, 0.0]),
                ],
            }),
        ),
        chart(
            "Over time",
            Plot::Lines {
                x: Axis::over("minutes", [0.0, 10.0]),
                y: Axis::over("share of the median (%)", [95.0, 108.0]),
                dots: vec![dot(0.0, 95.0), dot(5.0, 108.0), dot(10.0, 100.0)],
                lines: vec![Line {
                    name: "median of a round".to_owned(),
                    points: vec![(0.0, 95.0), (10.0, 100.0)],
                }],
            },
        ),
    ]
}

/// Every kind of block, with `foreign` wherever text of others can be.
fn everything(foreign: &str) -> Document {
    let mut document = Document::with_head(Head {
        tool: "nearfar test".to_owned(),
        title: foreign.to_owned(),
        remark: format!("as of {foreign}"),
        emulated: Some(foreign.to_owned()),
        tiles: vec![Tile {
            figure: "4".to_owned(),
            what: "nodes".to_owned(),
            remark: foreign.to_owned(),
            badges: vec![("warning".to_owned(), "2 warnings".to_owned())],
        }],
    });
    document.paragraph(
        Text::from("Read ")
            .then(Role::Code, foreign)
            .then(Role::Heading, " first"),
    );
    document.facts([("host", foreign), ("left out", "")]);
    document.heading("Figures", foreign);
    document.labelled("not measured: ", foreign);
    document.warning(foreign);
    document.warning("the CPU frequency changed");
    document.table(table(foreign));
    document.subheading(3, "Maps");
    let mut framed = Document::new();
    framed.boxed(foreign);
    document.card("warning", framed);
    document.heat_map(heat_map());
    charts().into_iter().for_each(|chart| document.chart(chart));
    document.heading("Figures", "");
    document.command("nearfar plan --rule x");
    let mut folded = Document::new();
    folded.remark(foreign);
    document.details("More", false, folded);
    document
}

const PLAIN: Style = Style {
    colour: false,
    width: 80,
};

#[test]
fn a_document_in_text_and_markdown() {
    let document = everything("nvme0n1");
    insta::assert_snapshot!("everything-text", document.to_text(&PLAIN));
    insta::assert_snapshot!("everything-markdown", document.to_markdown());
}

/// Marks of samples, of whatever shape.
fn dots(elements: &[html::Element]) -> usize {
    let is_dot = |it: &&html::Element| it.get("class").is_some_and(|it| it.starts_with("dot"));
    elements.iter().filter(is_dot).count()
}

/// Lines are told apart without their colours.
#[test]
fn the_dots_of_each_line_have_a_shape_of_their_own_and_a_warning_is_a_cross() {
    let axis = || Axis::from_zero("tasks", [1.0, 9.0]);
    let dot = |line: usize, has_warning: bool| Dot {
        x: 1.0 + line as f64,
        y: 2.0,
        has_warning,
        line: Some(line),
    };
    let mut document = Document::new();
    document.chart(Chart {
        title: "throughput".to_owned(),
        about: String::new(),
        plot: Plot::Lines {
            x: axis(),
            y: axis(),
            lines: (0..4)
                .map(|line| Line {
                    name: format!("level {line}"),
                    points: vec![(1.0, 2.0), (2.0, 3.0)],
                })
                .collect(),
            dots: (0..4)
                .map(|line| dot(line, false))
                .chain([dot(0, true)])
                .collect(),
        },
    });
    let page = html::page(&document.to_html()).unwrap();
    let picture = html::elements(&document.to_svg()).unwrap();
    for elements in [page, picture] {
        let shapes: Vec<&str> = elements
            .iter()
            .filter(|it| it.get("class").is_some_and(|it| it.starts_with("dot")))
            .map(|it| it.get("d").unwrap_or("circle"))
            .collect();
        // Four lines and a warning, and in the legend the four lines again.
        assert_eq!(shapes.len(), 5 + 4, "{shapes:?}");
        let different: std::collections::BTreeSet<&&str> = shapes.iter().collect();
        assert_eq!(different.len(), 4 + 1, "{shapes:?}");
        assert_eq!(shapes[..4], shapes[5..]);
    }
}

#[test]
fn a_page_loads_nothing_and_names_every_section_once() {
    let page = everything("<script>alert(1)</script> & \"x\"").to_html();
    assert!(!page.contains("<script") && !page.contains("://"), "{page}");
    let elements = html::page(&page).unwrap();
    let ids: Vec<&str> = elements.iter().filter_map(|it| it.get("id")).collect();
    let unique: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "{ids:?}");
    let references = elements.iter().filter_map(|it| {
        let link = it.get("href").and_then(|link| link.strip_prefix('#'));
        link.or(it.get("aria-labelledby"))
    });
    assert!(references.clone().count() >= 6);
    references.for_each(|name| assert!(unique.contains(name), "{name}"));
    for head in elements.iter().filter(|it| it.name == "th") {
        assert!(
            !head.text.is_empty() && head.get("scope").is_some(),
            "{head:?}"
        );
    }
    assert_eq!(dots(&elements), 5 + 3, "every sample is drawn");
}

#[test]
fn a_picture_has_maps_charts_and_warnings() {
    let svg = everything("<a&b>").to_svg();
    let elements = html::elements(&svg).unwrap();
    assert_eq!(dots(&elements), 5 + 3);
    assert!(
        elements
            .iter()
            .any(|it| it.text == "the CPU frequency changed")
    );
    assert!(elements.iter().any(|it| it.text == "Latency"));
}

#[test]
fn colour_is_written_only_where_it_is_wanted() {
    let coloured = Style {
        colour: true,
        width: 80,
    };
    let document = everything("x");
    assert!(document.to_text(&coloured).contains("\u{1b}["));
    assert!(!document.to_text(&PLAIN).contains('\u{1b}'));
    let blocks = Block::Warning(Text::from("x"));
    let mut other = Document::new();
    other.push(blocks);
    assert_eq!(other.to_text(&PLAIN), "  ! x\n");
}

proptest! {
    #[test]
    fn foreign_text_breaks_no_writer(foreign in "\\PC{0,60}|[\\x00-\\x7f]{0,60}", width in 60usize..200) {
        let document = everything(&foreign);
        let text = document.to_text(&Style { colour: false, width });
        prop_assert!(text.lines().all(|line| line.width() <= width && !line.ends_with(' ')), "{}", text);
        let has_escapes = [text, document.to_markdown()].iter().any(|it| it.contains('\u{1b}'));
        prop_assert!(!has_escapes);
        html::page(&document.to_html()).map_err(TestCaseError::fail)?;
        html::elements(&document.to_svg()).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_long_command_is_broken_where_a_shell_joins_it_again() {
    let command = "printf '%s\\n' 'Types: deb' 'URIs: http://mirror.example/debian' | sudo tee /etc/x && sudo apt-get update";
    let mut document = Document::new();
    document.command(command);
    let text = document.to_text(&Style { width: 48, ..PLAIN });
    assert!(text.lines().count() > 2, "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 48),
        "{text}"
    );
    assert!(
        text.contains("'URIs: http://mirror.example/debian'"),
        "{text}"
    );
    let joined = text.replace(" \\\n", " ");
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(words(&joined), words(command));
}
