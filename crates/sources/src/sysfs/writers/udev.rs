//! systemd-udevd: `.link` files that spread a network card's interrupts, and rules that write what nearfar writes.
//!
//! A file in `etc` hides the one of the same name in `run`, and that the one in `usr/lib`; a link to `/dev/null` or an
//! empty file hides it altogether (systemd.link(5), udev(7)).

use std::collections::BTreeMap;

use nearfar_machine::{Known, Writer, WriterKind};

use super::{config, shorten};
use crate::tree::Tree;

/// Higher ones hide lower ones.
const PLACES: [&str; 5] = ["etc", "run", "usr/local/lib", "usr/lib", "lib"];
/// What a rule writes that nearfar writes too.
const WRITTEN: [&str; 5] = [
    "iopolicy",
    "smp_affinity",
    "xps_cpus",
    "rps_cpus",
    "xps_rxqs",
];
/// Distributions ship some hundred.
const MOST_FILES: usize = 10_000;

/// `.link` files with `IRQAffinity...=` options (systemd 260 and later).
pub(super) fn links(tree: &Tree) -> Vec<Writer> {
    let says = |line: &str| line.trim_start().starts_with("IRQAffinity");
    found(tree, "systemd/network", ".link", WriterKind::UdevLink, says)
}

/// Rules that write affinities or NVMe policies: `ATTR{iopolicy}="round-robin"`, or a program that does.
pub(super) fn rules(tree: &Tree) -> Vec<Writer> {
    found(tree, "udev/rules.d", ".rules", WriterKind::UdevRule, writes)
}

/// Whether a line assigns; a comparison (`==`, `!=`) only asks.
fn writes(line: &str) -> bool {
    WRITTEN.iter().any(|name| {
        line.match_indices(name).any(|(at, _)| {
            let after = line[at + name.len()..]
                .trim_start_matches("_list")
                .trim_start_matches('}')
                .trim_start();
            let before = &line[..at];
            let attribute = before
                .rfind("ATTR{")
                .is_some_and(|start| !before[start..].contains('}'));
            let assigned = after.starts_with('=') && !after.starts_with("==");
            let program = before.rfind("RUN").is_some() || before.rfind("PROGRAM").is_some();
            (attribute && assigned) || program
        })
    })
}

fn found(
    tree: &Tree,
    directory: &str,
    suffix: &str,
    kind: WriterKind,
    says: impl Fn(&str) -> bool,
) -> Vec<Writer> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for place in PLACES {
        let path = format!("{place}/{directory}");
        for name in tree.list(&path).unwrap_or_default() {
            if name.ends_with(suffix) && files.len() < MOST_FILES {
                files
                    .entry(name.clone())
                    .or_insert_with(|| format!("{path}/{name}"));
            }
        }
    }
    let mut writers = Vec::new();
    for path in files.values() {
        let text = config(tree, path).unwrap_or_default();
        for (number, line) in joined(&text) {
            if !line.trim_start().starts_with(['#', ';']) && says(&line) {
                writers.push(Writer {
                    kind,
                    active: Known::Yes(true),
                    evidence: format!("{}:{number}", tree.display(path)),
                    says: shorten(line.trim()),
                });
            }
        }
    }
    writers
}

/// Lines with their numbers; a backslash at the end joins a line with the next.
fn joined(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let (part, continues) = line
            .strip_suffix('\\')
            .map_or((line, false), |part| (part, true));
        match lines.last_mut() {
            Some((_, whole)) if open => whole.push_str(part),
            _ => lines.push((index + 1, part.to_owned())),
        }
        open = continues;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_assigns_counts_and_one_that_asks_does_not() {
        for line in [
            r#"ACTION=="add", SUBSYSTEM=="nvme-subsystem", ATTR{iopolicy}="round-robin""#,
            r#"ATTR{queues/tx-0/xps_cpus}="3""#,
            r#"SUBSYSTEM=="net", RUN+="/bin/sh -c 'echo 1 > /proc/irq/5/smp_affinity_list'""#,
        ] {
            assert!(writes(line), "{line}");
        }
        for line in [
            r#"ATTR{iopolicy}=="numa", TAG+="x""#,
            r#"ATTR{iopolicy}!="numa""#,
            "KERNEL==\"nvme*\"",
        ] {
            assert!(!writes(line), "{line}");
        }
    }

    #[test]
    fn a_rule_over_several_lines_is_one_line_at_its_first() {
        assert_eq!(
            joined("a\nb \\\nc\nd\\"),
            [
                (1, "a".to_owned()),
                (2, "b c".to_owned()),
                (4, "d".to_owned())
            ]
        );
    }
}
