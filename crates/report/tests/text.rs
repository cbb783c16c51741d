//! Text output: what it says of a few machines, and what holds for all of them.

use crate::random;
use crate::samples;
use nearfar_machine::{Cache, CacheKind, CpuId, Emulation, Known, Machine, NodeId};
use nearfar_placement::spread::{SpreadRequest, spread};
use nearfar_report::{Style, audit, checkup, latency, path, spread as report_spread, topo};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

const PLAIN: Style = Style {
    colour: false,
    width: 100,
};

/// Every text that can be made of a machine.
fn all_texts(machine: &Machine, style: &Style) -> Vec<String> {
    let checkup = samples::checkup(machine.clone(), 20);
    vec![
        topo::document(machine).to_text(style),
        latency::survey(&samples::surveys::survey(machine), machine, false).to_text(style),
        audit::document(machine, &checkup.audit, false, "").to_text(style),
        audit::document(machine, &checkup.audit, true, "").to_text(style),
        checkup::screen(&checkup, style.width).to_text(style),
    ]
}

fn longest_line(text: &str) -> usize {
    text.lines().map(UnicodeWidthStr::width).max().unwrap_or(0)
}

#[test]
fn topology_of_machines_of_several_shapes() {
    for (name, machine) in samples::all() {
        if name != "large" {
            insta::assert_snapshot!(
                format!("topo-{name}"),
                topo::document(&machine).to_text(&PLAIN)
            );
        }
    }
}

#[test]
fn checkups_of_machines_of_several_shapes() {
    for (name, machine) in samples::all() {
        let checkup = samples::checkup(machine, 8);
        insta::assert_snapshot!(
            format!("checkup-{name}"),
            checkup::screen(&checkup, 100).to_text(&PLAIN)
        );
    }
}

#[test]
fn an_audit_names_evidence_cost_and_fix() {
    let (_, machine) = samples::all().remove(0);
    let audit = samples::findings::audit(2);
    insta::assert_snapshot!(audit::document(&machine, &audit, true, "").to_text(&PLAIN));
}

#[test]
fn findings_that_say_the_same_are_one_line_as_on_the_page() {
    let checkup = samples::checkup(samples::two_sockets(), 8);
    let text = |is_all| {
        let document = audit::document(&checkup.machine, &checkup.audit, is_all, "");
        document.to_text(&PLAIN)
    };
    let folded = text(false);
    for says in [
        "8 queues of ens5f0 (interrupts 40-47) on node 1, device on node 0.",
        "first     interrupt 40 (ens5f0-0): is served by CPU 16",
        ", and 7 more\n",
        "plan      nearfar plan --rule interrupt-far",
    ] {
        assert!(folded.contains(says), "{folded}");
    }
    assert!(!folded.contains("interrupt 41"), "{folded}");
    let all = text(true);
    assert_eq!(all.matches("is served by CPU").count(), 8, "{all}");
}

#[test]
fn figures_of_an_emulated_machine_are_labelled_as_such() {
    let mut machine = samples::two_sockets();
    let label = "emulated machine, delays 90/140 ns";
    machine.origin.emulation = Some(Emulation::Label(label.to_owned()));
    for text in all_texts(&machine, &PLAIN)
        .iter()
        .take(2)
        .chain(all_texts(&machine, &PLAIN).last())
    {
        assert!(text.contains(label), "{text}");
        assert!(!text.contains("measured in this run"), "{text}");
    }
}

#[test]
fn the_spread_of_case_4_as_list_mask_and_table() {
    let machine = samples::kunpeng();
    let request = SpreadRequest {
        node: Some(NodeId(2)),
        count: 49,
        ..SpreadRequest::default()
    };
    let slots = spread(&machine, &request).unwrap();
    let list = report_spread::list(&slots);
    for line in ["0 48", "24 72", "48 24"] {
        assert!(
            list.lines().any(|other| other == line),
            "{line:?} is missing in\n{list}"
        );
    }
    let mask = report_spread::mask(&slots, machine.mask_width());
    assert_eq!(mask.lines().nth(24), Some("24 00000100,00000000,00000000"));
    insta::assert_snapshot!(report_spread::document(&machine, &slots, None, None).to_text(&PLAIN), @"
    queues  CPUs   count  node  distance
    0-23    48-71     24     2        10
    24-47   72-95     24     3        16
    48      24         1     1        25
    ");
    assert_eq!(
        (
            report_spread::list(&[]),
            report_spread::document(&machine, &[], None, None).to_text(&PLAIN)
        ),
        (String::new(), String::new())
    );
}

#[test]
fn a_spread_says_in_how_many_caches_of_a_node_it_is() {
    let mut machine = samples::kunpeng();
    machine.caches = (0..12)
        .map(|number| Cache {
            level: 3,
            kind: CacheKind::Unified,
            cpus: (8 * number..8 * number + 8).map(CpuId).collect(),
            size_bytes: Known::Yes(32 << 20),
            line_bytes: Some(64),
            ways: None,
        })
        .collect();
    let request = SpreadRequest {
        node: Some(NodeId(2)),
        count: 34,
        ..SpreadRequest::default()
    };
    let slots = spread(&machine, &request).unwrap();
    let document = report_spread::document(&machine, &slots, None, None);
    insta::assert_snapshot!(document.to_text(&PLAIN), @"
    queues  CPUs   count  node  distance  caches
    0-23    48-71     24     2        10  3 of 3
    24-33   72-81     10     3        16  2 of 3
    ");
}

#[test]
fn paths_from_both_nodes_of_case_1() {
    let machine = samples::two_sockets();
    for cpu in [0, 16] {
        let answer = nearfar_placement::path::paths(&machine, "nvme-subsys0", CpuId(cpu)).unwrap();
        insta::assert_snapshot!(
            format!("path-from-cpu-{cpu}"),
            path::document(&answer).to_text(&PLAIN)
        );
    }
}

#[test]
fn a_checkup_fits_one_screen() {
    for (name, machine) in samples::all() {
        let screen = checkup::screen(&samples::checkup(machine, 300), 100).to_text(&PLAIN);
        assert!(
            screen.lines().count() <= 57,
            "{name} has {} lines",
            screen.lines().count()
        );
    }
}

#[test]
fn colour_changes_nothing_but_colour() {
    for (name, machine) in samples::all() {
        let plain = all_texts(&machine, &PLAIN).concat();
        let coloured = all_texts(
            &machine,
            &Style {
                colour: true,
                ..PLAIN
            },
        )
        .concat();
        assert_ne!(plain, coloured, "{name}");
        let mut uncoloured = String::new();
        for part in coloured.split('\u{1b}') {
            let text = part
                .strip_prefix('[')
                .and_then(|part| part.split_once('m'))
                .map_or(part, |(_, text)| text);
            uncoloured.push_str(text);
        }
        assert_eq!(uncoloured, plain, "{name}");
    }
}

#[test]
fn terminal_escapes_in_names_do_not_reach_the_terminal() {
    for text in all_texts(&samples::hostile(), &PLAIN) {
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{0}']), "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_machine_panics_and_no_line_is_too_wide(machine in random::machine(), width in prop_oneof![Just(100usize), 1usize..200]) {
        for text in all_texts(&machine, &Style { colour: false, width }) {
            prop_assert!(longest_line(&text) <= width.max(40), "{} columns of {width}:\n{text}", longest_line(&text));
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
