//! For any plan on any tree: apply, then rollback, is the identity.

use crate::support::*;
use nearfar_change::Change;
use nearfar_change::{ApplyOptions, RollbackOptions, apply, rollback};
use nearfar_machine::{CpuId, CpuSet, IoPolicy};
use proptest::prelude::*;

fn some_cpus() -> impl Strategy<Value = CpuSet> {
    proptest::collection::vec(0u32..200, 1..6)
        .prop_map(|numbers| numbers.into_iter().map(CpuId).collect())
}

/// A change, and what its file holds before.
fn some_change() -> impl Strategy<Value = (Change, String)> {
    let end = prop_oneof![Just("\n"), Just("")];
    let list = (some_cpus(), end.clone()).prop_map(|(cpus, end)| format!("{cpus}{end}"));
    let mask = (some_cpus(), 1u32..300, end)
        .prop_map(|(cpus, width, end)| format!("{}{end}", cpus.to_mask(width)))
        .boxed();
    let irq = (0u32..20, some_cpus()).prop_map(|(irq, cpus)| match interrupt(irq, "0") {
        Change::InterruptAffinity {
            irq, near, name, ..
        } => Change::InterruptAffinity {
            irq,
            cpus,
            near,
            name,
        },
        other => other,
    });
    let queue = |transmit: bool| {
        (0u32..4, some_cpus()).prop_map(move |(queue, cpus)| match transmit {
            true => Change::Xps {
                interface: "eth0".into(),
                queue,
                cpus,
            },
            false => Change::Rps {
                interface: "eth0".into(),
                queue,
                cpus,
            },
        })
    };
    let policies = prop_oneof![Just("numa\n"), Just("round-robin\n"), Just("queue-depth")];
    let numbers = prop_oneof![Just("-1\n"), Just("0\n"), Just("12\n")];
    prop_oneof![
        4 => (irq, list),
        2 => (queue(true), mask.clone()),
        2 => (queue(false), mask),
        1 => (Just(iopolicy(IoPolicy::RoundRobin)), policies.prop_map(str::to_owned)),
        1 => (Just(device_node(1, None)), numbers.clone().prop_map(str::to_owned)),
        1 => (Just(sysctl("kernel.numa_balancing", "3")), numbers.prop_map(str::to_owned)),
    ]
}

proptest! {
    #[test]
    fn apply_then_rollback_is_the_identity(changes in proptest::collection::vec(some_change(), 0..12)) {
        let tree = Tree::empty();
        let mut planned_changes = Vec::new();
        for (change, text) in changes {
            let path = nearfar_change::Setting::of(&change).path();
            if !tree.at(&path).exists() {
                tree.put(&path, &text);
                planned_changes.push(planned(change, Some(&text)));
            }
        }
        let before = tree.files();
        let outcome = apply(&plan(planned_changes), &tree.target(), &ApplyOptions::default()).unwrap();
        prop_assert!(outcome.is_complete(), "{:#?}", outcome);
        let undone = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
        prop_assert!(undone.is_complete(), "{:#?}", undone);
        prop_assert_eq!(tree.files(), before);
    }
}
