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
    let text = nearfar_report::audit::document(machine, &found, false, "").to_text(&Style {
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

fn run(arguments: &[&str]) -> (String, Option<i32>) {
    let answer = crate::harness::nearfar(arguments).run();
    (answer.text() + &answer.errors(), answer.status.code())
}

#[test]
fn the_queues_of_a_card_are_one_line_and_all_shows_each() {
    let (text, code) = run(&["audit", "--source", "kunpeng"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.lines().count() <= 40, "{text}");
    assert!(text.contains("24 queues of "), "{text}");
    assert!(
        text.contains("plan      nearfar plan --rule interrupt-far --source kunpeng\n"),
        "{text}"
    );
    let (all, _) = run(&["audit", "--source", "kunpeng", "--all"]);
    let each = |text: &str| text.matches("It is served by CPU").count();
    assert_eq!((each(&text), each(&all)), (1, 24), "{all}");
    assert!(!all.contains("and 23 more"), "{all}");
}

#[test]
fn a_rule_and_a_device_narrow_what_is_reported() {
    let found = |options: &[&str]| {
        let words = [
            &["audit", "--source", "kunpeng", "--format", "json"],
            options,
        ]
        .concat();
        let (text, code) = run(&words);
        assert_eq!(code, Some(0), "{text}");
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        let findings = answer["findings"].as_array().unwrap().clone();
        let rules = answer["rules"].as_array().unwrap().len();
        (findings, rules)
    };
    let (all, rules) = found(&[]);
    assert_eq!(rules, RULES.len());
    let (far, rules) = found(&["--rule", "interrupt-far"]);
    assert_eq!(rules, 1);
    assert!(
        !far.is_empty()
            && far.len() <= all.len()
            && far.iter().all(|it| it["rule"] == "interrupt-far")
    );
    let device = far[0]["device"].as_str().unwrap().to_owned();
    let (of_device, _) = found(&["--rule", "interrupt-far", "--device", &device]);
    assert_eq!(of_device, far);
    let (text, code) = run(&["audit", "--source", "kunpeng", "--rule", "interupt-far"]);
    assert!(
        code == Some(2) && text.contains("there is no audit rule \"interupt-far\""),
        "{text}"
    );
    let (text, code) = run(&["audit", "--source", "kunpeng", "--device", "eth77"]);
    assert!(
        code == Some(2) && text.contains("there is no device \"eth77\""),
        "{text}"
    );
    // What is asked for decides over the exit code, too.
    let fails = |rule| {
        run(&[
            "audit",
            "--source",
            "kunpeng",
            "--rule",
            rule,
            "--fail-on",
            "notice",
        ])
        .1
    };
    assert_eq!(
        (fails("interrupt-far"), fails("flat-distances")),
        (Some(1), Some(0))
    );
}

#[test]
fn each_gpu_and_disk_has_its_nearest_card() {
    let (text, code) = run(&["topo", "--source", "kunpeng", "--pairs"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Nearest network cards"), "{text}");
    let (text, code) = run(&["topo", "--source", "kunpeng", "--pairs", "--format", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&answer["schema"], code),
        (&"pairs/1".into(), Some(0)),
        "{text}"
    );
    let (text, code) = run(&["topo", "--source", "kunpeng", "--pairs", "--format", "svg"]);
    assert!(
        code == Some(2) && text.contains("--pairs is a table or JSON"),
        "{text}"
    );
}
