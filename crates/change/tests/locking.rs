//! Two at once, and runs that were interrupted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::child::{plan_file, run};
use crate::support::examples::example;
use crate::support::*;
use nearfar_change::StateError;
use nearfar_change::{
    ApplyError, ApplyOptions, ChangeSetId, ChangeSetState, RollbackOptions, apply, history,
    rollback,
};

/// Holds the lock as another nearfar would.
fn hold(tree: &Tree) -> std::fs::File {
    use std::io::Write;
    let mut file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(tree.at("/var/lib/nearfar/lock"))
        .unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    writeln!(file, "4711").unwrap();
    file
}

#[test]
fn the_second_refuses_and_names_the_first() {
    let tree = Tree::machine();
    apply(
        &plan(vec![planned(interrupt(10, "4"), None)]),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    let before = tree.files();
    let _held = hold(&tree);
    let refused = apply(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap_err();
    assert!(refused.to_string().contains("process 4711"), "{refused}");
    let wait = Some(Duration::from_millis(60));
    let options = RollbackOptions {
        wait,
        ..RollbackOptions::default()
    };
    assert!(matches!(
        rollback(&tree.target(), &options),
        Err(ApplyError::State(StateError::Locked { .. }))
    ));
    assert_eq!(tree.files(), before);
    assert_eq!(
        history(&tree.target()).unwrap().len(),
        1,
        "history needs no lock"
    );
}

#[test]
fn the_second_waits_when_told_to() {
    let tree = Tree::machine();
    std::fs::create_dir_all(tree.at("/var/lib/nearfar")).unwrap();
    let held = hold(&tree);
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(held);
    });
    let options = ApplyOptions {
        wait: Some(Duration::from_secs(30)),
        ..ApplyOptions::default()
    };
    assert!(
        apply(&plan_of_all_kinds(), &tree.target(), &options)
            .unwrap()
            .is_complete()
    );
    release.join().unwrap();
}

#[test]
fn many_at_once_leave_a_consistent_history() {
    let tree = Tree::machine();
    let before = tree.files();
    let outside_dir = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..8)
        .map(|number| {
            let directory = outside_dir.path().join(number.to_string());
            std::fs::create_dir(&directory).unwrap();
            let cpu = number.to_string();
            let changes = [10, 11, 12].map(|irq| planned(interrupt(irq, &cpu), None));
            let mut command = Command::new(example("in_tree"));
            command
                .arg("apply")
                .arg(tree.root())
                .arg(plan_file(&directory, &plan(changes.into())));
            command.arg("--wait").stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let values = [10, 11, 12].map(|irq| tree.get(&format!("/proc/irq/{irq}/smp_affinity_list")));
    assert!(
        values.iter().all(|value| *value == values[0]),
        "runs were not mixed: {values:?}"
    );
    let runs = history(&tree.target()).unwrap();
    assert!(
        runs.len() == 8 && runs.iter().all(|run| run.state == ChangeSetState::Made),
        "{runs:?}"
    );
    for _ in 0..8 {
        assert!(
            rollback(&tree.target(), &RollbackOptions::default())
                .unwrap()
                .is_complete()
        );
    }
    assert_eq!(tree.files(), before);
}

#[test]
fn an_interrupted_run_stands_in_the_way_until_rolled_back_or_forced() {
    let tree = Tree::machine();
    let before = tree.files();
    let outside_dir = tempfile::tempdir().unwrap();
    let file = plan_file(outside_dir.path(), &plan_of_all_kinds());
    run(&[Path::new("apply"), &tree.root(), &file], Some(20));
    assert_eq!(
        history(&tree.target()).unwrap()[0].state,
        ChangeSetState::Interrupted
    );
    let refused = apply(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap_err();
    assert!(
        matches!(
            refused,
            ApplyError::Unfinished {
                run: ChangeSetId(1)
            }
        ),
        "{refused}"
    );
    let force = ApplyOptions {
        force: true,
        ..ApplyOptions::default()
    };
    let outcome = apply(&plan_of_all_kinds(), &tree.target(), &force).unwrap();
    assert!(
        outcome.notes[0].contains("change set 1 was interrupted"),
        "{outcome:?}"
    );
    for run in [2, 1] {
        assert_eq!(
            rollback(&tree.target(), &RollbackOptions::default())
                .unwrap()
                .change_set,
            Some(ChangeSetId(run))
        );
    }
    assert_eq!(tree.files(), before);
}
