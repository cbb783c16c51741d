//! What keepers and the configuration of the service say, as text.

use nearfar_machine::NodeId;
use nearfar_prefer::cgroup::GroupReport;
use nearfar_prefer::service::{Checked, CheckedTask};
use nearfar_report::Style;
use nearfar_report::prefer::{check, group};

const PLAIN: Style = Style {
    colour: false,
    width: 100,
};

#[test]
fn rules_stand_with_their_node_and_tasks_and_those_without_with_the_reason() {
    let task = |pid, also: &[&str]| CheckedTask {
        pid,
        name: "redis".into(),
        also: also.iter().map(|name| (*name).to_owned()).collect(),
    };
    let rule = |rule: &str, node, located: &str, tasks| Checked {
        rule: rule.into(),
        line: 3,
        place: "node 1".into(),
        node,
        located: located.into(),
        tasks,
    };
    let rules = [
        rule(
            "cache",
            Some(NodeId(1)),
            "node 1",
            vec![task(11, &[]), task(12, &["all"])],
        ),
        rule("web", None, "there is no node 7; online are 0-1", vec![]),
        rule(
            "many",
            Some(NodeId(0)),
            "node 0",
            (0..10).map(|pid| task(pid, &[])).collect(),
        ),
    ];
    let text = check(&rules).to_text(&PLAIN);
    assert!(
        text.contains(
            "cache     3  node 1                              redis 11, redis 12 (before all)\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("web       3  there is no node 7; online are 0-1  none\n"),
        "{text}"
    );
    assert!(text.contains("redis 7 and 2 more"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}

#[test]
fn a_group_that_was_released_says_how_often_and_how_long() {
    let cpus = "0-3".parse().unwrap();
    let report = GroupReport {
        cpus,
        seconds: 10.0,
        cpu_s: 0.02,
        widened: 2,
        narrowed: 2,
        wide_s: 4.0,
        ended: None,
    };
    let text = group("/a", "through its cpuset", Some("node 1"), &report, None).to_text(&PLAIN);
    assert!(
        text.contains("released 2 times while the node was full, for 4.0 s"),
        "{text}"
    );
    assert!(text.contains("the keeper took 0.20 % of a CPU"), "{text}");
    let gone = GroupReport {
        ended: Some("the group is gone".into()),
        widened: 0,
        ..report
    };
    let text = group("/a", "through its cpuset", None, &gone, None).to_text(&PLAIN);
    assert!(
        text.contains("never had to be released")
            && text.contains("ended early: the group is gone"),
        "{text}"
    );
}
