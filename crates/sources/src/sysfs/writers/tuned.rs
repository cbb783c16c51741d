//! tuned: a daemon that applies a profile, and profiles that include others.

use nearfar_machine::{Known, Writer, WriterKind};

use super::{Process, config, shorten, word};
use crate::tree::Tree;

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

pub(super) fn read(tree: &Tree, running: Option<&[Process]>) -> Vec<Writer> {
    let Some(active) = word(tree, "etc/tuned/active_profile") else {
        return Vec::new();
    };
    let is_running = match running {
        Some(running) => Known::Yes(running.iter().any(|process| process.name == "tuned")),
        None => Known::no(format!("{} was not gathered", tree.display("proc/*/comm"))),
    };
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
    let paths = PROFILES
        .iter()
        .map(|place| format!("{place}/{profile}/tuned.conf"));
    paths
        .into_iter()
        .find_map(|path| config(tree, &path).map(|text| (path, text)))
}

fn included(text: &str) -> Vec<String> {
    let includes = text.lines().filter_map(|line| value_of(line, "include"));
    includes
        .flat_map(|names| {
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect::<Vec<_>>()
        })
        .collect()
}

fn value_of<'a>(line: &'a str, option: &str) -> Option<&'a str> {
    let (name, value) = line.split_once('=')?;
    (name.trim() == option).then(|| value.trim())
}

fn lines(tree: &Tree, path: &str, text: &str, profile: &str, active: &Known<bool>) -> Vec<Writer> {
    let places = |line: &str| {
        OPTIONS
            .iter()
            .any(|option| value_of(line, option).is_some_and(|value| !value.is_empty()))
    };
    let writer = |(index, line): (usize, &str)| Writer {
        kind: WriterKind::Tuned,
        active: active.clone(),
        evidence: format!("{}:{}", tree.display(path), index + 1),
        says: format!("profile {profile}: {}", shorten(line.trim())),
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| places(line))
        .map(writer)
        .collect()
}

/// `etc/tuned/cpu-partitioning-variables.conf` holds what an administrator fills into a profile.
fn variables(tree: &Tree, profile: &str, active: &Known<bool>) -> Vec<Writer> {
    let path = format!("etc/tuned/{profile}-variables.conf");
    config(tree, &path).map_or_else(Vec::new, |text| lines(tree, &path, &text, profile, active))
}
