//! What history says of change sets that are in force only in part.

use std::fs;

use crate::support::kernel::Kernel;
use crate::support::*;
use nearfar_change::{
    ChangeSetId, ChangeSetState, RollbackOptions, Target, WriteState, apply, history, history_with,
    rollback,
};
use nearfar_machine::IoPolicy;

#[test]
fn a_run_says_how_much_of_it_is_in_force() {
    let tree = Tree::machine();
    let run = |tree: &Tree| history(&tree.target()).unwrap().remove(0);
    apply(&plan_of_all_kinds(), &tree.target(), &Default::default()).unwrap();
    assert_eq!(
        (run(&tree).state, run(&tree).in_force),
        (ChangeSetState::Made, 8)
    );
    // One program writes one in other words, another with the value it had, a third with a value of their own; a device goes.
    tree.put("/proc/irq/12/smp_affinity_list", "6,6\n");
    tree.put("/proc/sys/kernel/numa_balancing", "1\n");
    tree.put(
        "/sys/class/net/eth0/queues/tx-0/xps_cpus",
        "00000000,00000001\n",
    );
    fs::remove_dir_all(tree.at("/sys/bus/pci")).unwrap();
    tree.put("/sys/kernel/irq/11/actions", "nvme0q3\n");
    let now = run(&tree);
    assert_eq!((now.state, now.in_force), (ChangeSetState::Made, 4));
    let state = |file: &str| {
        now.changes
            .iter()
            .find(|change| change.file.ends_with(file))
            .unwrap()
            .state
            .clone()
    };
    let since = |now: &str| WriteState::ChangedSince {
        now: now.into(),
        by_change_set: None,
    };
    assert_eq!(state("/12/smp_affinity_list"), WriteState::Made);
    assert_eq!(state("numa_balancing"), since("1"));
    assert_eq!(state("xps_cpus"), since("00000000,00000001"));
    assert_eq!(state("numa_node"), WriteState::Gone);
    let other = WriteState::OtherOwner {
        was: "eth0-TxRx-11".into(),
        now: "nvme0q3".into(),
    };
    assert_eq!(state("/11/smp_affinity_list"), other);

    let outcome = rollback(&tree.target(), &Default::default()).unwrap();
    assert!(!outcome.is_complete());
    let now = run(&tree);
    assert_eq!(
        (now.state, now.in_force),
        (ChangeSetState::Made, 0),
        "what is left was changed by others: {:?}",
        now.changes
    );
    let undone = now
        .changes
        .iter()
        .filter(|change| change.state == WriteState::Undone)
        .count();
    assert_eq!(undone, 5);
    let mut gone = now.changes.iter().filter(|it| it.state == WriteState::Gone);
    assert!(gone.next().unwrap().file.ends_with("numa_node"));
    assert_eq!(gone.count(), 0);
}

#[test]
fn a_later_run_is_named() {
    let tree = Tree::machine();
    for cpu in ["4", "5"] {
        apply(
            &plan(vec![
                planned(interrupt(10, cpu), None),
                planned(iopolicy(IoPolicy::RoundRobin), None),
            ]),
            &tree.target(),
            &Default::default(),
        )
        .unwrap();
    }
    let runs = history(&tree.target()).unwrap();
    assert_eq!((runs[0].in_force, runs[1].in_force), (1, 1));
    let by_change_set = Some(ChangeSetId(2));
    assert_eq!(
        runs[0].changes[0].state,
        WriteState::ChangedSince {
            now: "5".into(),
            by_change_set
        }
    );
    rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert_eq!(history(&tree.target()).unwrap()[0].in_force, 2);
}

#[test]
fn after_a_reboot_nothing_is_in_force() {
    let tree = Tree::machine();
    tree.put("/proc/sys/kernel/random/boot_id", "first-boot\n");
    let state = tempfile::tempdir().unwrap();
    let target = Target::live(Some(state.path().to_owned()));
    let kernel = Kernel::over(&tree.root());
    nearfar_change::apply_with(
        &plan(vec![planned(interrupt(10, "4"), None)]),
        &target,
        &Default::default(),
        &kernel,
    )
    .unwrap();
    assert_eq!(history_with(&target, &kernel).unwrap()[0].in_force, 1);
    // By chance the file says the same.
    tree.put("/proc/sys/kernel/random/boot_id", "second-boot\n");
    let run = history_with(&target, &kernel).unwrap().remove(0);
    assert_eq!(
        (run.state, run.in_force),
        (ChangeSetState::GoneWithReboot, 0)
    );
    assert_eq!(run.changes[0].state, WriteState::GoneWithReboot);
}
