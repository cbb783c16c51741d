//! Journals of apply, as a crash or an attacker may leave them: listed, and rolled back in an empty tree.
#![no_main]
use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nearfar_change::{RollbackOptions, Target, history, rollback};

static TREE: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir_in("/dev/shm").expect("a temporary directory"));

fuzz_target!(|bytes: &[u8]| {
    let state = TREE.path().join("state");
    std::fs::create_dir_all(&state).expect("a directory");
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).expect("permissions");
    std::fs::write(state.join("change-1.journal"), bytes).expect("a file");
    let target = Target::tree(TREE.path().to_owned(), Some(state));
    let _ = history(&target);
    let _ = rollback(&target, &RollbackOptions::default());
});
