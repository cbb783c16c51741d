//! Which hosts deviate, as text.

use nearfar_fleet::survey::{Group, Measured, NotJudged, Split, Survey};
use nearfar_report::{Style, fleet};

const PLAIN: Style = Style {
    colour: false,
    width: 200,
};

fn group() -> Group {
    Group {
        common: Vec::new(),
        hosts: (0..8).map(|host| format!("n{host}")).collect(),
        deviations: Vec::new(),
        divided: Vec::new(),
        split: Vec::new(),
        unknown: Vec::new(),
        measured: Vec::new(),
        not_judged: Vec::new(),
    }
}

fn text(group: Group) -> String {
    let survey = Survey {
        runs: Vec::new(),
        hosts: 8,
        missing: Vec::new(),
        without_facts: Vec::new(),
        emulated: Vec::new(),
        false_alarms: 0.05,
        min_effect: 0.02,
        groups: vec![group],
    };
    fleet::survey(&survey).to_text(&PLAIN)
}

#[test]
fn a_group_that_is_divided_is_not_all_alike() {
    assert!(text(group()).contains("all alike"));
    let hosts = |numbers: std::ops::Range<u32>| numbers.map(|host| format!("n{host}")).collect();
    let split = Split {
        experiment: "latency".to_owned(),
        metric: "latency_ns".to_owned(),
        cells: "memory_node=1".to_owned(),
        below: hosts(0..4),
        above: hosts(4..8),
        ratio: 1.3,
        also: vec!["kernel 6.12 above, 6.8 below".to_owned()],
    };
    let text = text(Group {
        split: vec![split],
        ..group()
    });
    assert!(!text.contains("all alike"), "{text}");
    let line = "latency latency_ns, memory_node=1: +30.0 % on 4 hosts (n4, n5, n6, n7) over 4 hosts (n0, n1, n2, n3): which of them are \
                as they should be is unknown; possible cause: kernel 6.12 above, 6.8 below";
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains(line), "{text}");
}

/// An answer can declare any number of metrics.
#[test]
fn a_host_that_declares_thousands_of_metrics_does_not_fill_the_terminal() {
    let metric = |number: u32| format!("metric_{number}");
    let measured = (0..20_000).map(|number| Measured {
        experiment: "latency".to_owned(),
        metric: metric(number),
        unit: "ns".to_owned(),
        cells: 1,
        hosts: 8,
        spread: 0.01,
        critical: 4.0,
        has_heavy_tails: false,
        runs: Vec::new(),
    });
    let not_judged = (0..20_000).map(|number| NotJudged {
        experiment: "latency".to_owned(),
        metric: metric(number),
        reason: "1 host is too few".to_owned(),
    });
    let text = text(Group {
        measured: measured.collect(),
        not_judged: not_judged.collect(),
        ..group()
    });
    assert!(text.lines().count() < 100, "{}", text.lines().count());
    assert!(text.contains("and 19980 more metrics compared"), "{text}");
}
