//! Verbs that only read work for every user, and create nothing.

#[path = "../../sources/tests/machines/mod.rs"]
mod machines;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use machines::Laid;
use tempfile::TempDir;

const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");
/// A user who owns nothing here.
const NOBODY: u32 = 65534;

/// The command in a folder that every user can reach, next to what a reader may look at.
struct Reader {
    folder: TempDir,
}

impl Reader {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: root: only root can start a command as another user");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let command = folder.path().join("nearfar");
        fs::hard_link(NEARFAR, &command)
            .or_else(|_| fs::copy(NEARFAR, &command).map(drop))
            .unwrap();
        Some(Self { folder })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a verb as another user, whose folders are missing and cannot be made.
    fn unprivileged(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.at("nearfar"));
        command
            .args(words)
            .env_clear()
            .env("HOME", self.at("no-home"))
            .env("NO_COLOR", "1");
        command
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .uid(NOBODY)
            .gid(NOBODY);
        command.output().unwrap()
    }

    #[track_caller]
    fn answer(&self, words: &[&str]) -> String {
        let output = self.unprivileged(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{words:?} ended with {}: {errors}",
            output.status
        );
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refusal(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = self.unprivileged(words);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }
}

/// Every file below a folder with its size, mode and time of change.
fn listing(folder: &Path) -> BTreeMap<PathBuf, (u64, u32, i64, i64)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, seen) = (entry.path(), entry.metadata().unwrap());
        if seen.is_dir() {
            found.extend(listing(&path));
        }
        found.insert(
            path,
            (seen.len(), seen.mode(), seen.mtime(), seen.mtime_nsec()),
        );
    }
    found
}

fn as_root(words: &[&str]) {
    let output = Command::new(NEARFAR)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn every_user_reads_the_history_that_root_made() {
    let Some(reader) = Reader::new() else { return };
    let tree = Laid::out("x86-queues-on-node-2");
    fs::set_permissions(tree.path(""), Permissions::from_mode(0o755)).unwrap();
    let root = tree.path("").display().to_string();
    assert!(
        reader
            .answer(&["history", "--root", &root])
            .contains("othing")
    );
    as_root(&["apply", "--root", &root, "--yes"]);
    let before = listing(&tree.path(""));
    let said = reader.answer(&["history", "--root", &root]);
    assert!(
        said.contains("Change set 1") && said.contains("in force"),
        "{said}"
    );
    assert_eq!(listing(&tree.path("")), before);
    let (code, error) = reader.refusal(&["rollback", "--root", &root]);
    assert_eq!(code, Some(3), "{error}");
    assert_eq!(listing(&tree.path("")), before);
}

#[test]
fn a_history_that_may_not_be_read_says_so() {
    let Some(reader) = Reader::new() else { return };
    let state = reader.at("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    let (code, error) = reader.refusal(&["history", "--state", state.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{error}");
    assert!(
        error.contains(state.to_str().unwrap()) && error.contains("ermission denied"),
        "{error}"
    );
}

#[test]
fn stored_runs_are_read_where_nothing_can_be_written() {
    let Some(reader) = Reader::new() else { return };
    let store = reader.at("runs.db");
    let name = store.to_str().unwrap();
    as_root(&[
        "bench",
        "probe",
        "--store",
        name,
        "--bytes",
        "4M",
        "--counts",
        "4",
        "--steps",
        "20000",
        "--load",
        "0",
        "--samples",
        "1",
        "--policies",
        "off",
        "--memory",
        "F",
        "--cpus",
        "F",
    ]);
    let before = listing(reader.folder.path());
    assert!(
        reader
            .answer(&["runs", "list", "--store", name])
            .contains("probe")
    );
    assert!(
        reader
            .answer(&["runs", "show", "--store", name, "last"])
            .contains("floating")
    );
    assert!(
        reader
            .answer(&["runs", "export", "--store", name, "last", "--format", "csv"])
            .contains("seconds")
    );
    assert_eq!(listing(reader.folder.path()), before);
    fs::set_permissions(&store, Permissions::from_mode(0o600)).unwrap();
    let (code, error) = reader.refusal(&["runs", "list", "--store", name]);
    assert!(
        matches!(code, Some(2 | 3)) && error.contains(name),
        "{code:?}: {error}"
    );
}

#[test]
fn verbs_that_read_create_nothing() {
    let Some(reader) = Reader::new() else { return };
    let before = listing(reader.folder.path());
    for words in [
        &["runs", "list"][..],
        &["lab", "machines"],
        &["lab", "kernels", "list"],
        &["lab", "cache", "list"],
        &["lab", "cache", "limit"],
        &["lab", "doctor"],
        &["explain"],
        &["topo"],
        &["audit"],
        &["plan"],
        &["checkup", "--no-html", "--probe", "1"],
        &["spread", "--node", "0", "--count", "2"],
        &[
            "path",
            "--source",
            "nvme-two-controllers",
            "--cpu",
            "0",
            "--subsystem",
            "nvme-subsys0",
        ],
    ] {
        reader.answer(words);
    }
    assert_eq!(listing(reader.folder.path()), before);
}
