//! Programs that write placement of their own accord, and would undo or be undone by what nearfar writes.
//!
//! ```text
//! irqbalance   proc/*/comm, or enabled: etc/systemd/system/*.wants/irqbalance.service
//! numad        the same
//! tuned        etc/tuned/active_profile, and that profile's tuned.conf with the profiles it includes
//! udev links   */systemd/network/*.link with IRQAffinity...=
//! udev rules   */udev/rules.d/*.rules that write iopolicy, smp_affinity, xps_cpus or rps_cpus
//! ```
//!
//! Of udev's files one in `etc` hides the one of the same name in `run`, and that the one in `usr/lib`; a link to `/dev/null` or an
//! empty file hides it altogether (systemd.link(5), udev(7)).

use std::collections::BTreeMap;

use nearfar_machine::{Known, Writer, WriterKind};

use crate::tree::Tree;
use crate::value;

const MOST_PROCESSES: usize = 100_000;
/// Configuration files are small; a larger one is something else.
const LARGEST_CONFIG: usize = 1 << 20;

/// Reads who else writes placement. Unknown where there is neither a list of processes nor any configuration, as in a
/// tree that was gathered for its topology.
pub(crate) fn read(tree: &Tree) -> Known<Vec<Writer>> {
    let running = running(tree);
    let configured = tree.exists("etc");
    if running.is_none() && !configured {
        return Known::no(format!(
            "neither {} nor {} was gathered",
            tree.display("proc/*/comm"),
            tree.display("etc")
        ));
    }
    let mut writers = Vec::new();
    let running = running.as_deref();
    let config = "etc/default/irqbalance";
    writers.extend(service(
        tree,
        WriterKind::Irqbalance,
        "irqbalance",
        config,
        running,
    ));
    let config = "etc/numad.conf";
    writers.extend(service(tree, WriterKind::Numad, "numad", config, running));
    writers.extend(tuned(tree, running));
    writers.extend(udev_links(tree));
    writers.extend(udev_rules(tree));
    Known::Yes(writers)
}

/// A process and the file that names it.
struct Process {
    name: &'static str,
    file: String,
}

/// The processes that can be one of the writers; `None` where no process can be seen.
fn running(tree: &Tree) -> Option<Vec<Process>> {
    const WANTED: [&str; 3] = ["irqbalance", "numad", "tuned"];
    let names = tree.list("proc").ok()?;
    let mut seen = false;
    let mut found = Vec::new();
    let is_process = |name: &&String| name.bytes().all(|b| b.is_ascii_digit());
    for pid in names.iter().filter(is_process).take(MOST_PROCESSES) {
        let file = format!("proc/{pid}/comm");
        let name = tree.with_bytes(&file, |comm| {
            let is_it = |name: &&str| comm.trim_ascii_end() == name.as_bytes();
            WANTED.into_iter().find(is_it)
        });
        seen |= name.is_ok();
        if let Ok(Some(name)) = name {
            found.push(Process { name, file });
        }
    }
    seen.then_some(found)
}

/// A service that is running, or enabled, or neither (then it is not mentioned).
fn service(
    tree: &Tree,
    kind: WriterKind,
    name: &str,
    config: &str,
    running: Option<&[Process]>,
) -> Option<Writer> {
    let options = options(tree, config).unwrap_or_default();
    let mut processes = running.into_iter().flatten();
    let (file, says) = match processes.find(|process| process.name == name) {
        Some(process) => (process.file.clone(), "running"),
        None => (enabled(tree, name)?, "enabled at boot"),
    };
    Some(Writer {
        kind,
        active: is_running(tree, name, running),
        evidence: tree.display(&file),
        says: format!("{says}{options}"),
    })
}

fn is_running(tree: &Tree, name: &str, running: Option<&[Process]>) -> Known<bool> {
    let is_among = running.map(|all| all.iter().any(|process| process.name == name));
    let reason = || format!("{} was not gathered", tree.display("proc/*/comm"));
    Known::from_option(is_among, reason)
}

/// The link that makes systemd start a service.
fn enabled(tree: &Tree, name: &str) -> Option<String> {
    let unit = format!("{name}.service");
    let units = "etc/systemd/system";
    let entries = tree.list(units).ok()?.into_iter();
    let wants = entries.filter(|entry| entry.ends_with(".wants"));
    let mut links = wants.map(|wants| format!("{units}/{wants}/{unit}"));
    // The link's target lies outside what is usually gathered, so the link itself counts.
    links.find(|link| tree.link(link).is_ok() || tree.exists(link))
}

/// The settings of a shell-like file in short: `, IRQBALANCE_ARGS="--hintpolicy=exact"`.
fn options(tree: &Tree, path: &str) -> Option<String> {
    let text = config(tree, path)?;
    let lines = text.lines().map(str::trim);
    let set: Vec<&str> = lines
        .filter(|it| !it.is_empty() && !it.starts_with('#'))
        .collect();
    (!set.is_empty()).then(|| format!(", {} says {}", tree.display(path), shorten(&set.join("; "))))
}

fn config(tree: &Tree, path: &str) -> Option<String> {
    let text = |bytes: &[u8]| {
        let is_small = bytes.len() <= LARGEST_CONFIG;
        is_small.then(|| String::from_utf8_lossy(bytes).into_owned())
    };
    tree.with_bytes(path, text).ok()?
}

/// Foreign text cut to what fits into a message.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 160;
    let text = text.replace(char::is_control, " ");
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The word in a file of one word.
fn word(tree: &Tree, path: &str) -> Option<String> {
    tree.value(path, value::word)
        .filter(|text| !text.is_empty())
}

/// Where profiles lie; an administrator's own come first.
const PROFILES: [&str; 4] = [
    "etc/tuned/profiles",
    "etc/tuned",
    "usr/lib/tuned/profiles",
    "usr/lib/tuned",
];
/// What in a profile places interrupts, tasks or memory.
const OPTIONS: [&str; 7] = [
    "isolated_cores",
    "no_balance_cores",
    "default_irq_smp_affinity",
    "irq_process",
    "kernel.numa_balancing",
    "ps_whitelist",
    "affinity",
];
/// How many profiles are followed from one to the next.
const MOST_PROFILES: usize = 32;

fn tuned(tree: &Tree, running: Option<&[Process]>) -> Vec<Writer> {
    let Some(active) = word(tree, "etc/tuned/active_profile") else {
        return Vec::new();
    };
    let is_running = is_running(tree, "tuned", running);
    let mut writers = Vec::new();
    let mut left: Vec<String> = active.split_whitespace().map(str::to_owned).collect();
    let mut read = Vec::new();
    while let Some(profile) = left.pop() {
        if read.len() >= MOST_PROFILES || read.contains(&profile) || !is_plain(&profile) {
            continue;
        }
        if let Some((path, text)) = find(tree, &profile) {
            left.extend(included(&text));
            writers.extend(lines(tree, &path, &text, &profile, &is_running));
            writers.extend(variables(tree, &profile, &is_running));
        }
        read.push(profile);
    }
    writers.sort_by(|a, b| a.evidence.cmp(&b.evidence));
    writers
}

/// A profile's name becomes part of a path.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != ".."
}

fn find(tree: &Tree, profile: &str) -> Option<(String, String)> {
    PROFILES.iter().find_map(|place| {
        let path = format!("{place}/{profile}/tuned.conf");
        config(tree, &path).map(|text| (path, text))
    })
}

fn included(text: &str) -> Vec<String> {
    let includes = text.lines().filter_map(|line| value_of(line, "include"));
    let names = includes.flat_map(|names| names.split(','));
    names.map(|name| name.trim().to_owned()).collect()
}

fn value_of<'a>(line: &'a str, option: &str) -> Option<&'a str> {
    let (name, value) = line.split_once('=')?;
    (name.trim() == option).then(|| value.trim())
}

fn lines(tree: &Tree, path: &str, text: &str, profile: &str, active: &Known<bool>) -> Vec<Writer> {
    let places = |line: &str| {
        let mut values = OPTIONS.iter().filter_map(|option| value_of(line, option));
        values.any(|value| !value.is_empty())
    };
    let writer = |(index, line): (usize, &str)| Writer {
        kind: WriterKind::Tuned,
        active: active.clone(),
        evidence: format!("{}:{}", tree.display(path), index + 1),
        says: format!("profile {profile}: {}", shorten(line.trim())),
    };
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| places(line));
    lines.map(writer).collect()
}

/// `etc/tuned/cpu-partitioning-variables.conf` holds what an administrator fills into a profile.
fn variables(tree: &Tree, profile: &str, active: &Known<bool>) -> Vec<Writer> {
    let path = format!("etc/tuned/{profile}-variables.conf");
    config(tree, &path).map_or_else(Vec::new, |text| lines(tree, &path, &text, profile, active))
}

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
fn udev_links(tree: &Tree) -> Vec<Writer> {
    let says = |line: &str| line.trim_start().starts_with("IRQAffinity");
    found(tree, "systemd/network", ".link", WriterKind::UdevLink, says)
}

/// Rules that write affinities or NVMe policies: `ATTR{iopolicy}="round-robin"`, or a program that does.
fn udev_rules(tree: &Tree) -> Vec<Writer> {
    found(tree, "udev/rules.d", ".rules", WriterKind::UdevRule, writes)
}

/// Whether a line assigns; a comparison (`==`, `!=`) only asks.
fn writes(line: &str) -> bool {
    WRITTEN.iter().any(|name| {
        line.match_indices(name).any(|(at, _)| {
            let after = line[at + name.len()..].trim_start_matches("_list");
            let after = after.trim_start_matches('}').trim_start();
            let before = &line[..at];
            let attribute = before.rfind("ATTR{");
            let attribute = attribute.is_some_and(|start| !before[start..].contains('}'));
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
                let file = format!("{path}/{name}");
                files.entry(name).or_insert(file);
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
