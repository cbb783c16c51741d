//! The journal's disk is full: what cannot be recorded is not written.

use std::process::Command;

use crate::support::child::plan_file;
use crate::support::examples::example;
use crate::support::kernel::Kernel;
use crate::support::*;
use nearfar_change::{
    Applied, ApplyError, ApplyOptions, ChangeSetState, RollbackOptions, apply_with, history,
    rollback, rollback_with,
};

#[test]
fn full_from_the_first_record_nothing_happens_at_all() {
    let tree = Tree::machine();
    let before = tree.files();
    let kernel = Kernel::over(&tree.root());
    kernel.disk_full_from.set(Some(0));
    let refused = apply_with(
        &plan_of_all_kinds(),
        &tree.target(),
        &ApplyOptions::default(),
        &kernel,
    )
    .unwrap_err();
    assert!(matches!(refused, ApplyError::Journal { .. }));
    let message = refused.to_string();
    assert!(
        message.contains("No space left on device") && message.contains("nothing was changed"),
        "{message}"
    );
    assert!(kernel.log().is_empty());
    assert_eq!(tree.files(), before);
    assert!(!tree.journal(1).exists(), "no half a journal stays behind");
}

#[test]
fn full_at_any_record_what_was_made_stays_recorded_and_can_be_undone() {
    for from in 1.. {
        let tree = Tree::machine();
        let before = tree.files();
        let kernel = Kernel::over(&tree.root());
        kernel.disk_full_from.set(Some(from));
        let outcome = apply_with(
            &plan_of_all_kinds(),
            &tree.target(),
            &ApplyOptions::default(),
            &kernel,
        )
        .unwrap();
        let made = outcome
            .changes
            .iter()
            .filter(|it| matches!(it.result, Applied::Made { .. }))
            .count();
        // Records: the change set, two for each change, the end.
        assert_eq!(made, (from as usize / 2).min(8), "full from record {from}");
        assert_eq!(
            kernel.log().len(),
            made,
            "only what was recorded was written"
        );
        if outcome.stopped_reason.is_none() {
            assert_eq!(from, 18);
            break;
        }
        let reason = outcome.stopped_reason.unwrap();
        assert!(
            reason.contains("change-1.journal: No space left on device"),
            "{reason}"
        );
        // Rollback restores on the full disk already, and again when there is room.
        assert!(
            rollback_with(&tree.target(), &RollbackOptions::default(), &kernel)
                .unwrap()
                .is_complete()
        );
        assert_eq!(tree.files(), before, "full from record {from}");
        kernel.free_the_disk();
        assert!(
            rollback_with(&tree.target(), &RollbackOptions::default(), &kernel)
                .unwrap()
                .is_complete()
        );
        assert_eq!(tree.files(), before);
        assert_ne!(
            history(&tree.target()).unwrap()[0].state,
            ChangeSetState::Interrupted
        );
    }
}

#[test]
fn full_with_atomic_everything_is_undone() {
    for from in 1..18 {
        let tree = Tree::machine();
        let before = tree.files();
        let kernel = Kernel::over(&tree.root());
        kernel.disk_full_from.set(Some(from));
        let atomic = ApplyOptions {
            atomic: true,
            ..ApplyOptions::default()
        };
        let outcome = apply_with(&plan_of_all_kinds(), &tree.target(), &atomic, &kernel).unwrap();
        assert_eq!(
            outcome.undone_reason.is_some(),
            from < 17,
            "full from record {from}"
        );
        if from < 17 {
            assert_eq!(tree.files(), before, "full from record {from}");
        }
    }
}

/// A real full disk: a tmpfs of a few pages in a mount namespace of its own.
#[test]
fn on_a_full_tmpfs_nothing_is_written() {
    let tree = Tree::machine();
    let before = tree.files();
    let outside_dir = tempfile::tempdir().unwrap();
    let state = outside_dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let plan = plan_file(outside_dir.path(), &plan_of_all_kinds());
    let script = "mount -t tmpfs -o size=8k,mode=700 none \"$1\" || exit 77
        : > \"$1/lock\"; head -c 100000 /dev/zero > \"$1/filler\" 2>/dev/null
        STATE_DIR=$1 \"$2\" apply \"$3\" \"$4\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([&state, &example("in_tree"), &tree.root(), &plan])
        .output();
    let output = match output {
        Ok(output)
            if output.status.code() != Some(77) && !error_of(&output).contains("unshare") =>
        {
            output
        }
        other => return println!("skipped: root: no mount namespace to be had here: {other:?}"),
    };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        error_of(&output).contains("Journal") && error_of(&output).contains("No space left"),
        "{output:?}"
    );
    assert_eq!(tree.files(), before);
}

fn error_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A limit on file sizes that bites in the middle of the change set (EFBIG; the signal is ignored as a daemon would).
#[test]
fn a_journal_that_may_not_grow_ends_the_run_and_can_be_rolled_back() {
    let outside_dir = tempfile::tempdir().unwrap();
    let plan = plan_file(outside_dir.path(), &plan_of_all_kinds());
    let mut stopped = 0;
    for blocks in 1..6 {
        let tree = Tree::machine();
        let before = tree.files();
        // dash counts in 512 bytes.
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$1\" apply \"$2\" \"$3\"");
        let output = Command::new("sh")
            .args(["-c", &script, "sh"])
            .args([&example("in_tree"), &tree.root(), &plan])
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        stopped += usize::from(text.contains("File too large"));
        assert!(
            rollback(&tree.target(), &RollbackOptions::default())
                .unwrap()
                .is_complete()
        );
        assert_eq!(tree.files(), before, "limit of {blocks} blocks");
    }
    assert!(stopped >= 2, "the limit did not bite");
}
