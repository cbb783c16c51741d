//! Journals that an earlier version wrote, whole and cut short after any line, undone by this one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::support::simulated::Simulated;
use nearfar_change::lease::Leases;
use nearfar_change::system::System as _;
use nearfar_change::{RollbackOptions, Setting, Target, UndoResult, rollback_with};
use serde_json::Value;

/// A change of every kind that is a file. The lease of format 2 sets a node twice, and was killed while it was undone.
const CHANGE_SET: &str = include_str!("journals/change-1.journal");
const LEASE_1: &str = include_str!("journals/lease-1.journal");
const LEASE_2: &str = include_str!("journals/lease-2.journal");

/// The record of a line.
fn record(line: &str) -> Value {
    let (_, json) = line.split_once(' ').expect("a checksum before each record");
    serde_json::from_str(json).unwrap()
}

/// Each beginning of a journal, with and without half of the line that follows, and with what it says was written, in this order; where
/// it ends with the record of a write, also without that write.
fn cut_short(
    journal: &str,
    writes: impl Fn(&Value) -> Option<(String, String)>,
) -> Vec<(String, Vec<(String, String)>)> {
    let lines: Vec<&str> = journal.split_inclusive('\n').collect();
    let of = |count: usize, torn: &str| {
        let lines = &lines[..count];
        let made = |lines: &[&str]| {
            lines
                .iter()
                .filter_map(|line| writes(&record(line)))
                .collect()
        };
        let journal = lines.concat() + torn;
        [made(lines), made(&lines[..count - 1])].map(|writes: Vec<_>| (journal.clone(), writes))
    };
    let torn = |count: usize| lines.get(count).map_or("", |next| &next[..next.len() / 2]);
    let counts = 1..=lines.len();
    let mut cut: Vec<_> = counts
        .flat_map(|count| [of(count, ""), of(count, torn(count))])
        .flatten()
        .collect();
    cut.dedup();
    cut
}

/// A machine on which this was written.
fn after(writes: &[(String, String)]) -> Simulated {
    let system = Simulated::machine();
    for (path, new) in writes {
        system.write(path, new.as_bytes()).unwrap();
        if let Some(function) = path.strip_suffix("/numa_node") {
            let address = function.rsplit('/').next().unwrap().as_bytes();
            for file in ["unbind", "bind"] {
                let file = format!("/sys/bus/pci/drivers/nvme/{file}");
                system.write(&file, address).unwrap();
            }
        }
    }
    system
}

fn put(directory: &Path, name: &str, text: &str) {
    fs::DirBuilder::new().mode(0o755).create(directory).unwrap();
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(directory.join(name)).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}

#[test]
fn change_sets_of_format_1_are_undone_from_every_line() {
    let intended = |record: &Value| {
        let intent = record.get("intent")?;
        let setting: Setting = serde_json::from_value(intent["setting"].clone()).unwrap();
        Some((setting.path(), intent["new"].as_str()?.to_owned()))
    };
    let before = Simulated::machine().seen();
    let mut most = 0;
    for (journal, writes) in cut_short(CHANGE_SET, intended) {
        most = most.max(writes.len());
        let system = after(&writes);
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        put(&state, "change-1.journal", &journal);
        let target = Target::live(Some(state));
        let undone = rollback_with(&target, &RollbackOptions::default(), &system).unwrap();
        assert!(undone.is_complete(), "{undone:#?}");
        assert_eq!(
            system.seen(),
            before,
            "{} writes of\n{journal}",
            writes.len()
        );
    }
    assert_eq!(most, 10, "not every kind is in it");
}

#[test]
fn leases_of_both_formats_are_undone_from_every_line() {
    for (journal, kinds) in [(LEASE_1, 9), (LEASE_2, 9)] {
        leases_are_undone_from_every_line(journal, kinds);
    }
}

fn leases_are_undone_from_every_line(journal: &str, kinds: usize) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of_intent = |line: &str| {
        let intent = record(line).get("intent")?.clone();
        let setting: Setting = serde_json::from_value(intent["setting"].clone()).unwrap();
        Some((
            intent["write"].as_u64()?,
            (setting.path(), text(&intent["old"])),
        ))
    };
    let files: BTreeMap<u64, (String, String)> = journal.lines().filter_map(of_intent).collect();
    let of_write = |record: &Value| files[&record["write"].as_u64().unwrap()].clone();
    let wrote = |record: &Value| {
        if let Some(new) = record.get("new") {
            return Some((text(&new["path"]), text(&new["new"])));
        }
        if let Some(undoing) = record.get("undoing") {
            return Some(of_write(undoing));
        }
        let intent = record.get("intent")?;
        Some((of_write(intent).0, text(&intent["new"])))
    };
    let before = Simulated::machine().seen();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut most = BTreeSet::new();
    for (journal, writes) in cut_short(journal, wrote) {
        most.extend(writes.iter().map(|(path, _)| path.clone()));
        let system = after(&writes);
        let directory = tempfile::tempdir().unwrap();
        let leases = directory.path().join("leases");
        put(
            &leases,
            "lease-4711-0.journal",
            &of_this_boot(&journal, boot.trim()),
        );
        let recovered = Leases::at(leases).recover_with(&system).unwrap();
        let undone = recovered.iter().flat_map(|it| &it.undone);
        let is_as_before =
            |it: &UndoResult| matches!(it, UndoResult::Restored { .. } | UndoResult::AlreadyBefore);
        undone.for_each(|it| assert!(is_as_before(&it.result), "{it:?}"));
        assert_eq!(
            system.seen(),
            before,
            "{} writes of\n{journal}",
            writes.len()
        );
    }
    assert_eq!(most.len(), kinds, "not every kind is in it");
}

/// The journal with this boot in place of the one in which it was written, which put everything back.
fn of_this_boot(journal: &str, boot: &str) -> String {
    let written = record(journal.lines().next().unwrap())["lease"]["boot"].clone();
    let (whole, torn) = journal.split_at(journal.rfind('\n').unwrap() + 1);
    let lines = whole.lines().map(|line| {
        let (_, json) = line.split_once(' ').unwrap();
        let json = json.replace(written.as_str().unwrap(), boot);
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    });
    lines.collect::<String>() + torn
}
