//! What rollback undoes, and what it lets be.

use std::path::PathBuf;

use crate::support::kernel::Kernel;
use crate::support::*;
use nearfar_change::{
    Applied, ApplyError, ApplyOptions, ChangeSetId, ChangeSetState, RollbackOptions, Selection,
    Target, UndoResult, WriteState, apply, apply_with, history, rollback, rollback_with,
};

const IRQ_10: &str = "/proc/irq/10/smp_affinity_list";
const NODE: &str = "/sys/bus/pci/devices/0000:3b:00.0/numa_node";

fn apply_to(tree: &Tree, changes: Vec<nearfar_change::Planned>) {
    assert!(
        apply(&plan(changes), &tree.target(), &ApplyOptions::default())
            .unwrap()
            .is_complete()
    );
}

#[test]
fn undoing_twice_says_there_is_nothing_to_do() {
    let tree = Tree::machine();
    let before = tree.files();
    assert_eq!(
        rollback(&tree.target(), &RollbackOptions::default())
            .unwrap()
            .change_set,
        None,
        "nothing was made yet"
    );
    apply(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    let first = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert_eq!(
        (first.change_set, first.changes.len()),
        (Some(ChangeSetId(1)), 8)
    );
    assert!(
        first.changes[0].file.contains("numa_balancing"),
        "newest first"
    );
    assert_eq!(tree.files(), before);
    let second = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert_eq!((second.change_set, second.changes.len()), (None, 0));
    assert_eq!(
        history(&tree.target()).unwrap()[0].state,
        ChangeSetState::Undone
    );
}

#[test]
fn what_another_program_changed_since_is_kept_unless_forced() {
    let tree = Tree::machine();
    apply_to(
        &tree,
        vec![
            planned(interrupt(10, "4"), None),
            planned(interrupt(11, "5"), None),
        ],
    );
    tree.put(IRQ_10, "2\n");
    let outcome = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert!(!outcome.is_complete());
    assert_eq!(
        outcome.changes[1].result,
        UndoResult::ChangedSince {
            now: "2".into(),
            by_change_set: None
        }
    );
    assert!(
        matches!(outcome.changes[0].result, UndoResult::Restored { .. }),
        "the others are undone"
    );
    assert_eq!(tree.get(IRQ_10), "2\n");
    let force = RollbackOptions {
        force: true,
        ..RollbackOptions::default()
    };
    assert!(rollback(&tree.target(), &force).unwrap().is_complete());
    assert_eq!(tree.get(IRQ_10), "0-7\n");
}

#[test]
fn runs_on_top_of_each_other_are_undone_in_reverse() {
    let tree = Tree::machine();
    for cpu in ["4", "5", "6"] {
        apply_to(&tree, vec![planned(interrupt(10, cpu), None)]);
    }
    let oldest = RollbackOptions {
        selection: Selection::Number(ChangeSetId(1)),
        ..RollbackOptions::default()
    };
    let refused = rollback(&tree.target(), &oldest).unwrap();
    let by_change_set = Some(ChangeSetId(3));
    assert_eq!(
        refused.changes[0].result,
        UndoResult::ChangedSince {
            now: "6".into(),
            by_change_set
        }
    );
    for (run, value) in [(3, "5\n"), (2, "4\n"), (1, "0-7\n")] {
        let outcome = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
        assert_eq!(outcome.change_set, Some(ChangeSetId(run)));
        assert_eq!(tree.get(IRQ_10), value);
    }
}

/// Two change sets wrote the same value, because another program wrote in between; or the later one wrote the old value back.
#[test]
fn what_a_later_change_set_wrote_is_its_own_also_where_the_value_is_equal() {
    for (between, later) in [("6\n", "4"), ("4\n", "0-7")] {
        let tree = Tree::machine();
        apply_to(&tree, vec![planned(interrupt(10, "4"), None)]);
        tree.put(IRQ_10, between);
        apply_to(&tree, vec![planned(interrupt(10, later), None)]);
        let of = |run| RollbackOptions {
            selection: Selection::Number(ChangeSetId(run)),
            ..RollbackOptions::default()
        };
        let refused = rollback(&tree.target(), &of(1)).unwrap();
        assert_eq!(
            refused.changes[0].result,
            UndoResult::ChangedSince {
                now: later.into(),
                by_change_set: Some(ChangeSetId(2)),
            }
        );
        assert_eq!(tree.get(IRQ_10), format!("{later}\n"));
        assert!(rollback(&tree.target(), &of(2)).unwrap().is_complete());
        assert_eq!(tree.get(IRQ_10), between);
        let force = RollbackOptions {
            force: true,
            ..of(1)
        };
        assert!(rollback(&tree.target(), &force).unwrap().is_complete());
        assert_eq!(tree.get(IRQ_10), "0-7\n");
    }
}

#[test]
fn a_label_selects_change_sets() {
    let tree = Tree::machine();
    for (irq, label) in [(10, Some("mine")), (11, None), (12, Some("mine"))] {
        let options = ApplyOptions {
            label: label.map(str::to_owned),
            ..ApplyOptions::default()
        };
        let plan = plan(vec![planned(interrupt(irq, "4"), None)]);
        assert!(
            apply(&plan, &tree.target(), &options)
                .unwrap()
                .is_complete()
        );
    }
    let labels: Vec<_> = history(&tree.target()).unwrap();
    let labels: Vec<_> = labels.iter().map(|set| set.label.as_deref()).collect();
    assert_eq!(labels, [Some("mine"), None, Some("mine")]);
    let of_label = |label: &str| RollbackOptions {
        selection: Selection::Label(label.to_owned()),
        ..RollbackOptions::default()
    };
    for expected in [Some(ChangeSetId(3)), Some(ChangeSetId(1)), None] {
        let outcome = rollback(&tree.target(), &of_label("mine")).unwrap();
        assert_eq!(outcome.change_set, expected);
    }
    assert!(matches!(
        rollback(&tree.target(), &of_label("yours")),
        Err(ApplyError::NoSuchLabel { label, .. }) if label == "yours"
    ));
    let last = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert_eq!(last.change_set, Some(ChangeSetId(2)), "it has no label");
}

/// Only one that may have the label itself is an error, once those that have it are undone.
#[test]
fn a_damaged_journal_of_another_label_does_not_keep_a_label_from_being_undone() {
    for (label, is_header_damaged, is_error) in [
        ("theirs", false, false),
        ("mine", false, true),
        ("theirs", true, true),
    ] {
        let tree = Tree::machine();
        for (irq, label) in [(10, "mine"), (11, label)] {
            let options = ApplyOptions {
                label: Some(label.to_owned()),
                ..ApplyOptions::default()
            };
            let plan = plan(vec![planned(interrupt(irq, "4"), None)]);
            apply(&plan, &tree.target(), &options).unwrap();
        }
        let journal = tree.journal(2);
        let mut bytes = std::fs::read(&journal).unwrap();
        let line = bytes.iter().position(|&byte| byte == b'\n').unwrap();
        let at = if is_header_damaged { 20 } else { line + 20 };
        bytes[at] ^= 1;
        std::fs::write(&journal, bytes).unwrap();
        let of_label = RollbackOptions {
            selection: Selection::Label("mine".to_owned()),
            ..RollbackOptions::default()
        };
        let first = rollback(&tree.target(), &of_label).unwrap();
        assert_eq!(first.change_set, Some(ChangeSetId(1)));
        assert_eq!(tree.get(IRQ_10), "0-7\n");
        let second = rollback(&tree.target(), &of_label);
        assert_eq!(second.is_err(), is_error, "{label}: {second:?}");
    }
}

#[test]
fn a_run_that_does_not_exist_is_named() {
    let tree = Tree::machine();
    let options = RollbackOptions {
        selection: Selection::Number(ChangeSetId(7)),
        ..RollbackOptions::default()
    };
    assert!(matches!(
        rollback(&tree.target(), &options),
        Err(ApplyError::NoSuchChangeSet {
            run: ChangeSetId(7),
            ..
        })
    ));
    apply_to(&tree, vec![planned(interrupt(10, "4"), None)]);
    assert!(matches!(
        rollback(&tree.target(), &options),
        Err(ApplyError::NoSuchChangeSet {
            run: ChangeSetId(7),
            ..
        })
    ));
}

#[test]
fn a_file_that_is_gone_went_with_its_device() {
    let tree = Tree::machine();
    apply_to(&tree, vec![planned(interrupt(10, "4"), None)]);
    std::fs::remove_dir_all(tree.at("/proc/irq/10")).unwrap();
    let outcome = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert_eq!(outcome.changes[0].result, UndoResult::Gone);
    assert!(outcome.is_complete());
    let sets = nearfar_change::history(&tree.target()).unwrap();
    assert_eq!(sets[0].state, ChangeSetState::Gone, "nothing was put back");
    assert_eq!(sets[0].changes[0].state, WriteState::Gone);
}

#[test]
fn the_history_counts_what_a_rollback_found_gone() {
    let tree = Tree::machine();
    let changes = vec![
        planned(interrupt(10, "4"), None),
        planned(interrupt(11, "5"), None),
    ];
    apply_to(&tree, changes);
    std::fs::remove_dir_all(tree.at("/proc/irq/10")).unwrap();
    assert!(
        rollback(&tree.target(), &RollbackOptions::default())
            .unwrap()
            .is_complete()
    );
    let sets = nearfar_change::history(&tree.target()).unwrap();
    assert_eq!(sets[0].state, ChangeSetState::Undone);
    let states: Vec<&WriteState> = sets[0].changes.iter().map(|it| &it.state).collect();
    assert_eq!(states, [&WriteState::Gone, &WriteState::Undone]);
    let again = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert_eq!(again.change_set, None, "nothing is left to undo");
}

/// The live system's rules (boots, drivers) over a tree's files.
fn live(tree: &Tree) -> (Target, Kernel, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    tree.put("/proc/sys/kernel/random/boot_id", "first-boot\n");
    tree.put(
        "/proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
    );
    let target = Target::live(Some(PathBuf::from(state.path())));
    (target, Kernel::over(&tree.root()), state)
}

#[test]
fn a_reboot_has_undone_what_is_not_written_again() {
    let tree = Tree::machine();
    let (target, kernel, _state) = live(&tree);
    apply_with(
        &plan_of_all_kinds(),
        &target,
        &ApplyOptions::default(),
        &kernel,
    )
    .unwrap();
    let made = tree.files();
    tree.put("/proc/sys/kernel/random/boot_id", "second-boot\n");
    let outcome = rollback_with(&target, &RollbackOptions::default(), &kernel).unwrap();
    assert_eq!(outcome.change_set, None);
    assert!(
        outcome.notes[0].contains("before the last reboot"),
        "{outcome:?}"
    );
    let asked = RollbackOptions {
        selection: Selection::Number(ChangeSetId(1)),
        ..RollbackOptions::default()
    };
    let outcome = rollback_with(&target, &asked, &kernel).unwrap();
    assert!(
        outcome
            .changes
            .iter()
            .all(|it| it.result == UndoResult::GoneWithReboot)
            && outcome.changes.len() == 8
    );
    tree.put("/proc/sys/kernel/random/boot_id", "first-boot\n");
    assert_eq!(tree.files(), made, "nothing was written");
}

#[test]
fn a_driver_is_bound_again_after_the_node_and_after_its_undoing() {
    let tree = Tree::machine();
    let (target, kernel, _state) = live(&tree);
    let plan = plan(vec![planned(device_node(1, Some("nvme")), Some("-1"))]);
    assert!(
        apply_with(&plan, &target, &ApplyOptions::default(), &kernel)
            .unwrap()
            .is_complete()
    );
    let bind =
        ["unbind", "bind"].map(|it| format!("/sys/bus/pci/drivers/nvme/{it} <- 0000:3b:00.0"));
    let mut expected = vec![format!("{NODE} <- 1"), bind[0].clone(), bind[1].clone()];
    assert_eq!(kernel.log(), expected);
    rollback_with(&target, &RollbackOptions::default(), &kernel).unwrap();
    expected.extend([format!("{NODE} <- -1"), bind[0].clone(), bind[1].clone()]);
    assert_eq!(kernel.log(), expected);
    assert_eq!(tree.get(NODE), "-1\n");
}

#[test]
fn a_driver_that_cannot_be_bound_to_the_new_node_gets_the_old_one_back() {
    let tree = Tree::machine();
    let (target, kernel, _state) = live(&tree);
    kernel.bind_fails.set(1);
    let plan = plan(vec![planned(device_node(1, Some("nvme")), None)]);
    let outcome = apply_with(&plan, &target, &ApplyOptions::default(), &kernel).unwrap();
    let Applied::Failed { error } = &outcome.changes[0].result else {
        panic!("{outcome:?}")
    };
    assert!(
        error.contains("could not be bound again") && error.contains("old value is back"),
        "{error}"
    );
    assert_eq!(tree.get(NODE), "-1\n");
    assert_eq!(kernel.driver.borrow().as_deref(), Some("nvme"));
}

#[test]
fn a_driver_left_unbound_by_a_kill_is_bound_by_rollback() {
    let tree = Tree::machine();
    let (target, kernel, _state) = live(&tree);
    let plan = plan(vec![planned(device_node(1, Some("nvme")), None)]);
    kernel.bind_fails.set(2);
    // Both the binding and its undoing fail: the device is left without a driver, as after a kill.
    let outcome = apply_with(&plan, &target, &ApplyOptions::default(), &kernel).unwrap();
    assert!(
        matches!(outcome.changes[0].result, Applied::Failed { .. }),
        "{outcome:?}"
    );
    assert_eq!(*kernel.driver.borrow(), None);
    assert!(
        rollback_with(&target, &RollbackOptions::default(), &kernel)
            .unwrap()
            .is_complete()
    );
    assert_eq!(kernel.driver.borrow().as_deref(), Some("nvme"));
    assert_eq!(tree.get(NODE), "-1\n");
}

#[test]
fn devices_in_use_keep_their_driver() {
    let disk = "/sys/devices/pci0000:3a/0000:3b:00.0/nvme/nvme0/nvme0n1";
    type Prepare = fn(&Tree, &Kernel);
    let cases: [(&str, Prepare); 6] = [
        ("mounted on /data", |tree, _| {
            tree.put(
                "/proc/self/mountinfo",
                "30 1 259:0 / /data rw - xfs /dev/nvme0n1 rw\n",
            );
        }),
        ("swap space", |tree, _| {
            tree.put(
                "/proc/swaps",
                "Filename Type\n/dev/nvme0n1 partition 8 0 -2\n",
            )
        }),
        ("held by dm-0", |tree, _| {
            tree.put("/sys/class/block/nvme0n1/holders/dm-0", "")
        }),
        ("interface eth9", |tree, _| {
            let device = "/sys/devices/pci0000:3a/0000:3b:00.0/net/eth9";
            tree.put(&format!("{device}/flags"), "0x1003\n");
            std::os::unix::fs::symlink(format!("../../..{device}"), tree.at("/sys/class/net/eth9"))
                .unwrap();
        }),
        ("bound to driver vmd", |_, kernel| {
            *kernel.driver.borrow_mut() = Some("vmd".into())
        }),
        ("is a bridge", |tree, _| {
            tree.put("/sys/bus/pci/devices/0000:3b:00.0/class", "0x060400\n")
        }),
    ];
    for (said, prepare) in cases {
        let tree = Tree::machine();
        let (target, kernel, _state) = live(&tree);
        tree.put(&format!("{disk}/dev"), "259:0\n");
        std::fs::create_dir_all(tree.at(&format!("{disk}/holders"))).unwrap();
        std::fs::create_dir_all(tree.at("/sys/class/block")).unwrap();
        std::os::unix::fs::symlink(
            format!("../../..{disk}"),
            tree.at("/sys/class/block/nvme0n1"),
        )
        .unwrap();
        prepare(&tree, &kernel);
        let plan = plan(vec![planned(device_node(1, Some("nvme")), None)]);
        let outcome = apply_with(&plan, &target, &ApplyOptions::default(), &kernel).unwrap();
        let Applied::LeftAlone { reason } = &outcome.changes[0].result else {
            panic!("{said}: {outcome:?}")
        };
        assert!(reason.contains(said), "{reason}");
        assert!(kernel.log().is_empty(), "{said}");
    }
}

/// Earlier versions called a change set a run.
#[test]
fn a_journal_of_the_earlier_name_is_undone() {
    let tree = Tree::machine();
    let before = tree.files();
    apply(&plan_of_all_kinds(), &tree.target(), &Default::default()).unwrap();
    let earlier = tree.journal(1).with_file_name("run-1.journal");
    std::fs::rename(tree.journal(1), &earlier).unwrap();
    let outcome = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert!(outcome.is_complete());
    assert_eq!(tree.files(), before);
    assert!(earlier.exists() && !tree.journal(1).exists());
}
