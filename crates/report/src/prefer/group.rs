//! What the keeper of a control group did.

use nearfar_machine::Emulation;
use nearfar_prefer::cgroup::keeper::GroupReport;

use super::times;
use crate::layout::{heading, paragraph, whole};
use crate::style::{Role, Style};

/// How a group was kept through its cpuset, how often it was released, what that cost.
pub fn table(
    group: &str,
    how: &str,
    near: Option<&str>,
    report: &GroupReport,
    emulation: Option<&Emulation>,
    style: &Style,
) -> String {
    let remark = format!("CPUs {}; {:.1} s", report.cpus, report.seconds);
    let mut out = heading(style, &format!("Control group {group}"), &remark);
    let mut say =
        |role: Role, text: &str| out.push_str(&paragraph(style, 2, (role, ""), role, text));
    if let Some(near) = near {
        say(Role::Plain, &format!("near: {near}"));
    }
    say(Role::Plain, &format!("kept {how}"));
    say(
        Role::Plain,
        &match report.widened {
            0 => "it never had to be released".to_owned(),
            often => format!(
                "released {} while the node was full, for {:.1} s",
                times(often),
                report.wide_s
            ),
        },
    );
    let percent = 100.0 * report.cpu_s / report.seconds.max(1e-9);
    say(
        Role::Dim,
        &format!("the keeper took {percent:.2} % of a CPU"),
    );
    if let Some(ended) = &report.ended {
        say(
            Role::Warning,
            &format!("ended before it was told to: {ended}"),
        );
    }
    if let Some(emulation) = emulation {
        say(Role::Warning, &emulation.to_string());
    }
    whole(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_was_let_out_says_how_often_and_how_long() {
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
        let text = table(
            "/a",
            "through its cpuset",
            Some("node 1"),
            &report,
            None,
            &Style::default(),
        );
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
        let text = table(
            "/a",
            "through its cpuset",
            None,
            &gone,
            None,
            &Style::default(),
        );
        assert!(
            text.contains("never had to be released")
                && text.contains("told to: the group is gone"),
            "{text}"
        );
    }
}
