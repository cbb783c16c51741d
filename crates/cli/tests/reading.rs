//! Verbs that only read work for every user, and create nothing.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use crate::harness::{Answer, NEARFAR, Sandbox, nearfar};
use crate::machines::Laid;

/// A user who owns nothing here.
const NOBODY: u32 = 65534;

/// The command in a directory that every user can read.
struct Reader {
    sandbox: Sandbox,
}

impl Reader {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: root: only root can start a command as another user");
            return None;
        }
        let sandbox = Sandbox::new();
        let everyone = Permissions::from_mode(0o755);
        fs::set_permissions(sandbox.root(), everyone).unwrap();
        let command = sandbox.path("nearfar");
        fs::hard_link(NEARFAR, &command)
            .or_else(|_| fs::copy(NEARFAR, &command).map(drop))
            .unwrap();
        Some(Self { sandbox })
    }

    /// Runs a verb as another user, whose directories are missing and cannot be made.
    fn run(&self, words: &[&str]) -> Answer {
        let command = self.sandbox.program(self.sandbox.path("nearfar"));
        let home = self.sandbox.path("no-home");
        command
            .args(words)
            .configure(|command| {
                command.env_clear().env("HOME", home).env("NO_COLOR", "1");
                command.uid(NOBODY).gid(NOBODY);
            })
            .run()
    }

    #[track_caller]
    fn reads(&self, words: &[&str]) -> String {
        self.run(words).succeeded().text()
    }

    fn files(&self) -> BTreeMap<PathBuf, (u64, u32, i64, i64)> {
        listing(self.sandbox.root())
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

#[test]
fn every_user_reads_the_history_that_root_made() {
    let Some(reader) = Reader::new() else { return };
    let tree = Laid::out("x86-queues-on-node-2");
    fs::set_permissions(tree.path(""), Permissions::from_mode(0o755)).unwrap();
    let root = tree.path("").display().to_string();
    assert!(
        reader
            .reads(&["rollback", "--list", "--root", &root])
            .contains("othing")
    );
    nearfar(["apply", "--root", &root, "--yes"])
        .run()
        .succeeded();
    let before = listing(&tree.path(""));
    let said = reader.reads(&["rollback", "--list", "--root", &root]);
    assert!(
        said.contains("Change set 1") && said.contains("in force"),
        "{said}"
    );
    assert_eq!(listing(&tree.path("")), before);
    reader.run(&["rollback", "--root", &root]).exited(3);
    assert_eq!(listing(&tree.path("")), before);
}

#[test]
fn a_history_that_may_not_be_read_says_so() {
    let Some(reader) = Reader::new() else { return };
    let state = reader.sandbox.path("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    let state = state.to_str().unwrap();
    reader
        .run(&["rollback", "--list", "--state", state])
        .exited(3)
        .says(&[state, "ermission denied"]);
}

#[test]
fn stored_runs_are_read_where_nothing_can_be_written() {
    let Some(reader) = Reader::new() else { return };
    let store = reader.sandbox.path("runs.db");
    let name = store.to_str().unwrap();
    nearfar([
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
        "--factor",
        "preferred_node=-1",
        "--factor",
        "numa_balancing=0",
        "--factor",
        "memory_node=F",
        "--factor",
        "cpu_node=F",
    ])
    .run()
    .succeeded();
    let before = reader.files();
    assert!(
        reader
            .reads(&["runs", "list", "--store", name])
            .contains("probe")
    );
    assert!(
        reader
            .reads(&["runs", "show", "--store", name, "last"])
            .contains("floating")
    );
    assert!(
        reader
            .reads(&["runs", "export", "--store", name, "last", "--format", "csv"])
            .contains("seconds")
    );
    assert_eq!(reader.files(), before);
    fs::set_permissions(&store, Permissions::from_mode(0o600)).unwrap();
    let answer = reader.run(&["runs", "list", "--store", name]).says(&[name]);
    assert!(matches!(answer.status.code(), Some(2 | 3)), "{answer}");
}

#[test]
fn verbs_that_read_create_nothing() {
    let Some(reader) = Reader::new() else { return };
    let before = reader.files();
    for words in [
        &["runs", "list"][..],
        &["lab", "machines"],
        &["lab", "kernels", "list"],
        &["lab", "cache", "list"],
        &["lab", "cache", "limit"],
        &["lab", "doctor"],
        &["audit", "--explain"],
        &["topo"],
        &["audit"],
        &["plan"],
        &["checkup", "--probe", "1"],
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
        reader.reads(words);
    }
    assert_eq!(reader.files(), before);
}
