//! SIGKILL at every point of apply and of rollback: afterwards rollback leaves every file as it was, byte for byte.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::child::{plan_file, run};
use crate::support::examples::{example, writes_and_early_ones};
use crate::support::*;
use nearfar_change::{RollbackOptions, RollbackOutcome, rollback};
use proptest::prelude::ProptestConfig;

fn died(output: &Output) -> bool {
    match output.status.signal() {
        Some(libc::SIGKILL) => true,
        None if output.status.success() => false,
        _ => panic!("{output:?}"),
    }
}

fn roll_back(tree: &Tree) -> RollbackOutcome {
    let outcome = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:#?}");
    outcome
}

/// Two steps a write, four a record; three records a change, and the change set's begin and end.
const STEPS_OF_APPLY: u64 = 8 * (2 + 2 * 4) + 2 * 4;

#[test]
fn killed_at_any_step_of_apply_rollback_restores_every_byte() {
    let outside_dir = tempfile::tempdir().unwrap();
    let plan = plan_file(outside_dir.path(), &plan_of_all_kinds());
    for step in 1.. {
        let tree = Tree::machine();
        let before = tree.files();
        let output = run(&[Path::new("apply"), &tree.root(), &plan], Some(step));
        if !died(&output) {
            assert_eq!(step, STEPS_OF_APPLY + 1, "a step was not tried");
            assert_ne!(tree.files(), before);
            break;
        }
        roll_back(&tree);
        assert_eq!(tree.files(), before, "killed at step {step}");
        assert_eq!(
            roll_back(&tree).change_set,
            None,
            "a second rollback finds nothing to do, step {step}"
        );
        let again = run(&[Path::new("apply"), &tree.root(), &plan], None);
        assert!(
            again.status.success(),
            "apply works again after step {step}: {again:?}"
        );
    }
}

#[test]
fn killed_at_any_step_of_rollback_another_rollback_completes_it() {
    let outside_dir = tempfile::tempdir().unwrap();
    let plan = plan_file(outside_dir.path(), &plan_of_all_kinds());
    // Apply complete, killed early, and killed in a write: from each, rollback killed everywhere.
    for apply_dies in [None, Some(23), Some(46)] {
        for step in 1.. {
            let tree = Tree::machine();
            let before = tree.files();
            assert_eq!(
                died(&run(&[Path::new("apply"), &tree.root(), &plan], apply_dies)),
                apply_dies.is_some()
            );
            let killed = died(&run(&[Path::new("rollback"), &tree.root()], Some(step)));
            roll_back(&tree);
            assert_eq!(
                tree.files(),
                before,
                "apply killed at {apply_dies:?}, rollback at {step}"
            );
            if !killed {
                assert!(step > 20, "rollback had only {step} steps");
                break;
            }
        }
    }
}

#[test]
fn two_change_sets_killed_on_top_of_each_other_are_undone_in_turn() {
    let outside_dir = tempfile::tempdir().unwrap();
    let first = plan(vec![
        planned(interrupt(10, "4"), None),
        planned(interrupt(11, "5"), None),
    ]);
    let first = plan_file(outside_dir.path(), &first);
    for step in (1..=STEPS_OF_APPLY).step_by(3) {
        let tree = Tree::machine();
        let before = tree.files();
        assert!(
            run(&[Path::new("apply"), &tree.root(), &first], None)
                .status
                .success()
        );
        let between = tree.files();
        let other = tempfile::tempdir().unwrap();
        let mut second = plan_of_all_kinds();
        second
            .changes
            .iter_mut()
            .for_each(|planned| planned.before = None);
        run(
            &[
                Path::new("apply"),
                &tree.root(),
                &plan_file(other.path(), &second),
            ],
            Some(step),
        );
        let undone = roll_back(&tree);
        if undone.change_set == Some(nearfar_change::ChangeSetId(2)) {
            assert_eq!(tree.files(), between, "killed at step {step}");
            roll_back(&tree);
        }
        assert_eq!(tree.files(), before, "killed at step {step}");
    }
}

/// The same from outside, at the level of system calls: whatever the program does between its own steps counts too.
#[test]
fn killed_at_any_system_call_that_writes_rollback_restores_every_byte() {
    if Command::new("strace")
        .args(["-qq", "-e", "trace=none", "true"])
        .status()
        .map_or(true, |it| !it.success())
    {
        println!(
            "skipped: tools: strace is not installed or may not trace here; DIE_AT steps were tested without it"
        );
        return;
    }
    let outside_dir = tempfile::tempdir().unwrap();
    let plan = plan_file(outside_dir.path(), &plan_of_all_kinds());
    let calls = [
        "write",
        "fdatasync",
        "fsync",
        "ftruncate",
        "mkdirat",
        "openat",
        "openat2",
        "flock",
    ];
    // Each of them where PROPTEST_CASES is not set or more than usual, one of four in `make test`.
    let stride = (256 / ProptestConfig::default().cases).max(1) as usize;
    for verb in ["apply", "rollback"] {
        for call in calls {
            let mut deaths = 0;
            for when in (1..400).step_by(stride) {
                let tree = Tree::machine();
                let before = tree.files();
                if verb == "rollback" {
                    assert!(
                        run(&[Path::new("apply"), &tree.root(), &plan], None)
                            .status
                            .success()
                    );
                }
                let mut command = Command::new("strace");
                let inject = format!("inject={call}:signal=SIGKILL:when={when}");
                command.args([
                    "-qq",
                    "-o",
                    "/dev/null",
                    "-e",
                    &format!("trace={call}"),
                    "-e",
                    &inject,
                ]);
                command.arg(example("in_tree")).arg(verb).arg(tree.root());
                let output = if verb == "apply" {
                    command.arg(&plan)
                } else {
                    &mut command
                }
                .output()
                .unwrap();
                if !died(&output) {
                    break;
                }
                deaths += 1;
                roll_back(&tree);
                assert_eq!(
                    tree.files(),
                    before,
                    "{verb} killed at {call} number {when}"
                );
            }
            println!("{verb}: killed at {deaths} {call}, one of {stride}");
            assert!(
                deaths > 0 || verb == "rollback" || call == "mkdirat" || call == "fsync",
                "{verb} makes no {call}"
            );
        }
    }
}

#[test]
fn no_setting_is_written_before_its_record_is_on_disk() {
    let outside = tempfile::tempdir().unwrap();
    let plan = plan_file(outside.path(), &plan_of_all_kinds());
    let tree = Tree::machine();
    for verb in ["apply", "rollback"] {
        let mut command = Command::new(example("in_tree"));
        command.arg(verb).arg(tree.root());
        if verb == "apply" {
            command.arg(&plan);
        }
        let Some((writes, early)) = writes_and_early_ones(&command, &tree.root()) else {
            return;
        };
        assert!(writes >= 8, "{verb}: {writes} writes");
        assert_eq!(early, 0, "{verb}: of {writes} writes");
    }
}
