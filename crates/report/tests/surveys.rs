//! What `bench latency` prints and draws of surveys of several shapes.

use crate::samples;
use nearfar_machine::Emulation;
use nearfar_report::Style;
use nearfar_report::latency::survey;
use unicode_width::UnicodeWidthStr;

const PLAIN: Style = Style {
    colour: false,
    width: 100,
};

#[test]
fn surveys_of_machines_of_several_shapes() {
    for (name, machine) in samples::all() {
        if name != "large" {
            let survey_of = samples::surveys::survey(&machine);
            let document = survey(&survey_of, &machine, false);
            insta::assert_snapshot!(format!("survey-{name}"), document.to_text(&PLAIN));
        }
    }
}

#[test]
fn details_say_everything_of_each_pair() {
    let machine = samples::two_sockets();
    let document = survey(&samples::surveys::survey(&machine), &machine, true);
    insta::assert_snapshot!(document.to_text(&PLAIN));
}

#[test]
fn nothing_measured_is_said_with_the_reason() {
    let text = survey(&samples::surveys::nothing(), &samples::two_sockets(), false).to_text(&PLAIN);
    assert!(
        text.starts_with("Nothing was measured") && text.contains("one CPU"),
        "{text}"
    );
}

#[test]
fn no_line_is_too_long_and_none_ends_in_spaces() {
    for (name, machine) in samples::all() {
        for all_below in [None, Some(16)] {
            let mut sample = samples::surveys::survey(&machine);
            sample.transfer = all_below
                .map(|end| samples::surveys::transfer(&machine, Some(end)))
                .or(sample.transfer);
            for width in [100, 60] {
                let text = survey(&sample, &machine, name != "large").to_text(&Style {
                    colour: false,
                    width,
                });
                let longest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
                assert!(longest <= width, "{name}: {longest} columns");
                assert!(text.lines().all(|line| line.trim_end() == line), "{name}");
                assert!(
                    !text.contains('\u{1b}') && !text.contains('\u{202e}'),
                    "{name}: foreign text got through"
                );
            }
        }
    }
}

#[test]
fn every_heading_of_an_emulated_machine_carries_its_label() {
    let mut machine = samples::kunpeng();
    let label = "emulated machine, delays 90/140 ns";
    machine.origin.emulation = Some(Emulation::Label(label.to_owned()));
    let sample = samples::surveys::survey(&machine);
    let text = survey(&sample, &machine, false)
        .to_text(&PLAIN)
        .replace('\n', " ");
    let text = text.split_whitespace().collect::<String>();
    let (without, headings) = (label.replace(' ', ""), 7);
    assert_eq!(text.matches(&without).count(), headings, "{text}");
    let text = text.replace("measuredinthisrun", "measured in this run");
    assert!(!text.contains("measured in this run"));
    assert!(survey(&sample, &machine, false).to_svg().contains(label));
}

#[test]
fn distances_stand_beside_what_was_measured() {
    let text = survey(
        &samples::surveys::survey(&samples::kunpeng()),
        &samples::kunpeng(),
        false,
    )
    .to_text(&PLAIN);
    let mut below = text
        .lines()
        .skip_while(|line| !line.starts_with("Latency, relative"));
    let row = below
        .find(|line| line.trim_start().starts_with("0 "))
        .unwrap();
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>(),
        ["0", "1.00/1.0", "1.60/1.6", "3.20/3.2", "3.30/3.3"]
    );
}

#[test]
fn pictures_are_well_formed_and_fetch_nothing() {
    for (name, machine) in samples::all() {
        let mut sample = samples::surveys::survey(&machine);
        for all_below in [None, Some(64)] {
            sample.transfer = Some(samples::surveys::transfer(&machine, all_below));
            let svg = survey(&sample, &machine, false).to_svg();
            let mut reader = quick_xml::Reader::from_str(&svg);
            reader.config_mut().check_end_names = true;
            loop {
                match reader.read_event() {
                    Ok(quick_xml::events::Event::Eof) => break,
                    Ok(quick_xml::events::Event::Start(tag)) => {
                        let tag = tag.name();
                        assert!(
                            !["script", "image", "a", "foreignObject"].contains(&tag.as_ref()),
                            "{name}"
                        );
                    }
                    Ok(_) => {}
                    Err(error) => panic!("{name}: {error}"),
                }
            }
            assert_eq!(
                svg.matches("http").count(),
                svg.matches("http://www.w3.org/2000/svg").count(),
                "{name}"
            );
            if let Some(folder) = std::env::var_os("NEARFAR_PICTURES") {
                let all = if all_below.is_some() { "-all" } else { "" };
                std::fs::write(
                    std::path::Path::new(&folder).join(format!("{name}{all}.svg")),
                    &svg,
                )
                .unwrap();
            }
        }
    }
}

#[test]
fn one_sample_is_called_that_and_has_no_spread() {
    let machine = samples::two_sockets();
    let mut sample = samples::surveys::survey(&machine);
    for pair in &mut sample.latency.as_mut().unwrap().pairs {
        (pair.samples_ns, pair.confidence_ns) = (vec![pair.median_ns], None);
        (pair.low_ns, pair.high_ns) = (pair.median_ns, pair.median_ns);
    }
    let once = |figures: &mut nearfar_statistics::Figures| {
        *figures = nearfar_statistics::Figures::of(vec![figures.median]).unwrap();
    };
    sample
        .bandwidth
        .as_mut()
        .unwrap()
        .pairs
        .iter_mut()
        .for_each(|pair| once(&mut pair.bytes_per_s));
    sample
        .transfer
        .as_mut()
        .unwrap()
        .pairs
        .iter_mut()
        .for_each(|pair| once(&mut pair.round_trip_ns));
    for text in [
        survey(&sample, &machine, false).to_text(&PLAIN),
        survey(&sample, &machine, true).to_text(&PLAIN),
        survey(&sample, &machine, false).to_svg(),
    ] {
        assert!(!text.contains('±'), "{text}");
    }
    let details = survey(&sample, &machine, true).to_text(&PLAIN);
    assert!(
        details.contains("one sample") && !details.contains("quartiles"),
        "{details}"
    );
}

#[test]
fn near_and_interleaved_memory_are_a_table() {
    let machine = samples::two_sockets();
    let document = survey(&samples::surveys::interleaved(&machine), &machine, false);
    let text = document.to_text(&PLAIN);
    let table: Vec<&str> = text.lines().filter(|line| line.contains(" ±")).collect();
    let first = |line: &&str| {
        line.split("  ")
            .find(|word| !word.is_empty())
            .map(str::to_owned)
    };
    let memory: Vec<_> = table.iter().filter_map(first).collect();
    assert_eq!(
        memory,
        ["near", "node 0", "node 1", "interleaved"],
        "{text}"
    );
    assert!(
        table[3].contains("181") && table[3].contains("110"),
        "{text}"
    );
    assert!(
        text.contains("Interleaved: all CPUs read parts of half of 1 GiB"),
        "{text}"
    );
}

#[test]
fn latency_under_load_is_a_table_and_a_curve_for_each_node() {
    let machine = samples::two_sockets();
    let document = survey(&samples::surveys::loaded(&machine), &machine, false);
    let text = document.to_text(&PLAIN);
    for expected in [
        "Near and far memory",
        "Loaded latency",
        "steps after a line",
        "idle",
        "Loaded: dependent loads over one random cycle through half of 1 GiB",
        "other processes kept 80 %",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
    // A line a node and load.
    let rows = text.lines().filter(|line| line.contains(" ±")).count();
    assert_eq!(rows, 8, "{text}");
    let svg = document.to_svg();
    assert_eq!(
        svg.matches("line line0").count(),
        svg.matches("line line1").count(),
        "{svg}"
    );
    assert!(
        svg.contains("ns per load") && svg.contains("node 1"),
        "{svg}"
    );
}
