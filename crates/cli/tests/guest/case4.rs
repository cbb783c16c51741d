//! Case 4 end to end in a guest with a real kernel: a network card with eight queues on node 2, two of its interrupts on CPUs far
//! away, XPS off. Read from the kernel's files before, after `apply` and after `rollback`.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes.
//! `cargo test -p nearfar --test guest case4:: -- --nocapture` prints the conversation that docs/case-4.md shows.

use std::collections::BTreeMap;

use crate::guests;
use serde_json::Value;

/// What the kernel's files said in one state: value by kind and name.
type Files<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

fn files<'a>(said: &'a str, state: &str) -> Files<'a> {
    let words = said.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    words
        .filter_map(|words| match words[..] {
            [of, kind @ ("irq" | "xps" | "other"), name, value] if of == state => {
                Some(((kind, name), value))
            }
            _ => None,
        })
        .collect()
}

/// What nearfar said to a command, its lines joined.
fn answer(said: &str, command: &str) -> String {
    let (_, rest) = said.split_once(&format!("# nearfar {command}\n")).unwrap();
    let lines = rest
        .lines()
        .take_while(|line| !line.starts_with("# ") && !line.starts_with("after "));
    lines
        .flat_map(str::split_whitespace)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Whether all CPUs of a list are on node 2 (4-5) or node 3 (6-7), the two nearest to the card.
fn near(list: &str) -> bool {
    list.split([',', '-'])
        .all(|cpu| (4..8).contains(&cpu.parse::<u32>().unwrap()))
}

#[test]
fn misplaced_queues_go_near_their_card_and_back_and_managed_ones_stay() {
    if guests::skipped() {
        return;
    }
    let said = guests::script("queues-on-node-2", &[], include_str!("../scripts/case4.sh"));
    let [before, after, rollback] =
        ["before", "after", "rollback"].map(|state| files(&said, state));

    assert_eq!(
        (
            before[&("irq", "eth0-TxRx-1")],
            before[&("irq", "eth0-TxRx-2")]
        ),
        ("0", "3")
    );
    let audit = answer(&said, "audit");
    for says in [
        "(eth0-TxRx-1): It is served by CPU 0, at 25 from its device on node 2",
        "nvme0q1 to nvme0q8",
    ] {
        assert!(
            audit.contains(says),
            "the audit does not say {says:?}: {audit}"
        );
    }
    let plan = answer(&said, "plan");
    assert!(
        plan.contains("managed-interrupt: 0000:22:00.0 (nvme), 0000:23:00.0 (virtio-pci)"),
        "{plan}"
    );

    let of = |files: &Files<'_>, kind: &str| files.keys().filter(|key| key.0 == kind).count();
    assert_eq!(
        (of(&after, "irq"), of(&after, "xps"), of(&after, "other")),
        (9, 8, 18)
    );
    let mut serving = 0_u32;
    for (&(kind, name), &value) in &after {
        match kind {
            "irq" => assert!(near(value), "{name} {value}"),
            "xps" => {
                assert_eq!(before[&(kind, name)], "00");
                serving |= u32::from_str_radix(value, 16).unwrap();
                assert_ne!(value, "00", "{name}");
            }
            _ => assert_eq!(
                before[&(kind, name)],
                value,
                "{name} is the kernel's to place"
            ),
        }
    }
    assert_eq!(serving, 0xff, "every CPU has a queue to send through");
    let audit: Value = serde_json::from_str(&answer(&said, "audit --format json")).unwrap();
    let rules: Vec<_> = audit["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| &finding["rule"])
        .collect();
    assert!(
        rules
            .iter()
            .all(|rule| *rule != "interrupt-far" && *rule != "xps-mismatch"),
        "{rules:?}"
    );
    assert!(rules.iter().any(|rule| *rule == "managed-interrupt"));
    assert_eq!(rollback, before);
}
