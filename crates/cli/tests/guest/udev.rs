//! The udev rules of a plan under a real systemd-udevd in a guest: an igb card, whose handlers are called after the interface,
//! and a virtio card, whose are not (`virtio0-input.0`). The values are read after the events.
//!
//! `cargo test -p nearfar --test guest udev:: -- --nocapture` prints the rules and the values.

use std::path::PathBuf;

use crate::guests;
use nearfar_lab::shell::word;

const MACHINE: &str = r#"
description = "two nodes, two network cards on the second"
architecture = "x86_64"
distances = [[10, 21], [21, 10]]
node = [{ cpus = 2, memory = "512M" }, { cpus = 2, memory = "512M" }]
bridge = [{ root = "0000:20", firmware_node = 1 }]
nic = [{ name = "eth0", bridge = "0000:20", queues = 4 }, { name = "eth1", bridge = "0000:20", queues = 1 }]
"#;

/// Debian's package `udev` has it; started as `systemd-udevd` it is the daemon.
fn udevadm() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join("udevadm"))
        .find(|program| program.is_file());
    if found.is_none() {
        println!("skipped: tools: there is no udevadm here");
    }
    found
}

#[test]
fn the_rules_put_igb_and_virtio_queues_near_when_their_events_arrive() {
    let Some(udevadm) = udevadm() else { return };
    if guests::skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("cards.toml");
    std::fs::write(&machine, MACHINE).unwrap();
    let script = format!(
        "UDEVADM={}\n{}",
        word(udevadm.as_os_str()),
        include_str!("../scripts/udev.sh")
    );
    let said = guests::script(machine.to_str().unwrap(), &[], &script);

    let values = |state: &str, kind: &str| -> Vec<(String, String)> {
        let words = said.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let of = words.filter(|words| words.len() == 4 && words[..2] == [state, kind]);
        of.map(|words| (words[2].to_owned(), words[3].to_owned()))
            .collect()
    };
    let before = values("before", "irq");
    assert!(
        before.iter().any(|(name, _)| name.starts_with("virtio")),
        "{before:?}"
    );
    assert!(
        before
            .iter()
            .filter(|(name, _)| name.starts_with("eth"))
            .count()
            > 1,
        "{before:?}"
    );
    assert!(before.iter().all(|(_, cpus)| cpus == "0"), "{before:?}");
    // Nearest first from node 1 (CPUs 2-3): of four queues the last two are on node 0.
    let order = ["2", "3", "0", "1"];
    for state in ["change", "add"] {
        let after = values(state, "irq");
        assert_eq!(after.len(), before.len());
        for (name, cpu) in &after {
            let queue: usize = name.rsplit(['-', '.']).next().unwrap().parse().unwrap();
            // igb has a handler a direction where it has few queues.
            assert!(
                name.ends_with(&format!("input.{queue}")) || name.starts_with("eth"),
                "{name}"
            );
            assert_eq!(cpu, order[queue], "{state}: {name}");
        }
        let xps: Vec<String> = values(state, "xps")
            .into_iter()
            .map(|(_, mask)| mask)
            .collect();
        assert!(
            xps.ends_with(&["4", "8", "1", "2"].map(str::to_owned))
                || xps.starts_with(&["4", "8", "1", "2"].map(str::to_owned)),
            "{state}: {xps:?}"
        );
    }
}
