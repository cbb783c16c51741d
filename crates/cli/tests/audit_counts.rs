//! The figures of an audit: whatever the machine, each rule is in exactly one state and the states add up.

use crate::machines;
use nearfar_machine::Machine;
use nearfar_placement::audit::{AuditOptions, RULES, State, audit};
use nearfar_report::Style;
use nearfar_sources::{Request, Want, gallery, read};

const RECORDED: [&str; 4] = [
    "pseries-after-6.11",
    "pseries-before-6.11",
    "x86-queues-on-node-2",
    "x86-third-node-offline",
];

fn check(name: &str, machine: &Machine) {
    let found = audit(machine, &AuditOptions::default());
    let number = |state| found.number(state);
    let states = [
        State::Found,
        State::NothingFound,
        State::NotChecked,
        State::NotApplicable,
    ];
    assert_eq!(
        states.into_iter().map(number).sum::<usize>(),
        RULES.len(),
        "{name}"
    );
    let listed: Vec<&str> = found.rules.iter().map(|rule| rule.rule).collect();
    assert_eq!(
        listed,
        RULES.iter().map(|rule| rule.id).collect::<Vec<_>>(),
        "{name}"
    );
    for rule in &found.rules {
        let findings = found
            .findings
            .iter()
            .filter(|finding| finding.rule == rule.rule)
            .count();
        assert_eq!(
            (rule.findings, rule.state == State::Found),
            (findings, findings > 0),
            "{name}: {rule:?}"
        );
        let lacks = found.not_checked.iter().any(|not| not.rule == rule.rule);
        assert_eq!(
            lacks,
            rule.in_part || rule.state == State::NotChecked,
            "{name}: {rule:?}"
        );
    }
    // What is printed has these figures and no others.
    let text = nearfar_report::audit::document(&found).to_text(&Style {
        colour: false,
        width: 10_000,
    });
    let rules = format!(
        "{} rules: {} with findings, {} without",
        RULES.len(),
        number(State::Found),
        number(State::NothingFound)
    );
    assert!(
        text.lines()
            .nth(1)
            .is_some_and(|line| line.contains(&rules)),
        "{name}: {text}"
    );
}

#[test]
fn the_figures_of_every_gallery_machine_add_up() {
    for entry in gallery() {
        check(
            entry.name,
            &read(&Request::source(entry.name, Want::all())).unwrap(),
        );
    }
}

#[test]
fn the_figures_of_every_recording_add_up() {
    for name in RECORDED {
        let laid = machines::Laid::out(name);
        for want in [Want::all(), Want::topology()] {
            check(name, &laid.read(&want));
        }
    }
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mails/case-1.txt");
    check("mail", &read(&Request::source(here, Want::all())).unwrap());
}
