//! The memory nodes of a control group: set, read back, undone; and what is refused before the write.

use std::fs::File;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use crate::support::child::{plan_file, run};
use crate::support::*;
use nearfar_change::system::{Rooted, System};
use nearfar_change::{
    Applied, ApplyOptions, Effective, RollbackOptions, UndoResult, apply, apply_with, check_plan,
    rollback, rollback_with,
};
use nearfar_change::{Change, Plan};

const GROUP: &str = "/sys/fs/cgroup/system.slice/db.service";
const FILE: &str = "/sys/fs/cgroup/system.slice/db.service/cpuset.mems";

/// Two nodes, 80 MiB free on each, and a group with 8 MiB on the first.
fn machine() -> Tree {
    let tree = Tree::machine();
    for file in ["online", "has_memory", "possible"] {
        tree.put(&format!("/sys/devices/system/node/{file}"), "0-1\n");
    }
    let cgroup = |file: &str, text: &str| tree.put(&format!("/sys/fs/cgroup/{file}"), text);
    cgroup("cgroup.controllers", "cpuset memory\n");
    cgroup("cgroup.subtree_control", "cpuset memory\n");
    cgroup("cpuset.mems.effective", "0-1\n");
    cgroup("system.slice/cgroup.subtree_control", "cpuset memory\n");
    cgroup("system.slice/cpuset.mems.effective", "0-1\n");
    tree.put(FILE, "\n");
    tree.put(&format!("{GROUP}/cpuset.mems.effective"), "1\n");
    tree.put(
        &format!("{GROUP}/memory.numa_stat"),
        "anon N0=8388608 N1=4096\nfile N0=99999999 N1=0\nfile_mapped N0=0 N1=0\n",
    );
    let zone =
        |node| format!("Node {node}, zone   Normal\n  pages free     20480\n        high     0\n");
    tree.put("/proc/zoneinfo", &(zone(0) + &zone(1)));
    tree
}

fn change(nodes: &str) -> Change {
    Change::CpusetMemory {
        group: "system.slice/db.service".into(),
        nodes: nodes.parse().unwrap(),
    }
}

fn one(nodes: &str, before: Option<&str>) -> Plan {
    plan(vec![planned(change(nodes), before)])
}

#[test]
fn nodes_are_set_and_undone_and_what_is_in_effect_is_said() {
    for before in ["\n", "0\n"] {
        let tree = machine();
        tree.put(FILE, before);
        let files = tree.files();
        let plan = one("1", Some(before.trim()));
        check_plan(&plan, &tree.target()).unwrap();
        let outcome = apply(&plan, &tree.target(), &ApplyOptions::default()).unwrap();
        let Applied::Made { effective, .. } = &outcome.changes[0].result else {
            panic!("{outcome:?}")
        };
        assert_eq!(effective, &Some(Effective::Nodes { nodes: "1".into() }));
        assert_eq!(tree.get(FILE), "1\n");
        let undone = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
        assert!(undone.is_complete(), "{undone:?}");
        assert_eq!(tree.files(), files);
    }
}

#[test]
fn a_value_that_another_program_set_is_kept() {
    let tree = machine();
    let changed = apply(
        &one("1", Some("0")),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    assert!(!changed.is_complete(), "{changed:?}");
    assert_eq!(tree.get(FILE), "\n");
    apply(
        &one("1", Some("")),
        &tree.target(),
        &ApplyOptions::default(),
    )
    .unwrap();
    tree.put(FILE, "0\n");
    let undone = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
    let now = "0".to_owned();
    let by_change_set = None;
    assert_eq!(
        undone.changes[0].result,
        UndoResult::ChangedSince { now, by_change_set }
    );
    assert_eq!(tree.get(FILE), "0\n");
}

#[test]
fn killed_at_any_step_it_is_undone() {
    let outside = tempfile::tempdir().unwrap();
    let plan = plan_file(outside.path(), &one("1", Some("")));
    for step in 1.. {
        let tree = machine();
        let before = tree.files();
        let output = run(&[Path::new("apply"), &tree.root(), &plan], Some(step));
        if output.status.signal() != Some(libc::SIGKILL) {
            assert!(output.status.success() && step > 10, "{output:?}");
            return;
        }
        let undone = rollback(&tree.target(), &RollbackOptions::default()).unwrap();
        assert!(undone.is_complete(), "step {step}: {undone:?}");
        assert_eq!(tree.files(), before, "killed at step {step}");
    }
}

/// Gives the group, or one below it, a task with a mapping of this policy.
fn task(tree: &Tree, below: &str, policy: &str) {
    tree.put(&format!("{GROUP}{below}/cgroup.procs"), "4711\n");
    tree.put(&format!("{GROUP}{below}/cgroup.threads"), "4711\n4712\n");
    let maps =
        |policy: &str| format!("1000 default file=/usr/bin/db N0=2\n7f00 {policy} anon=2 N0=2\n");
    tree.put("/proc/4711/numa_maps", &maps(policy));
    tree.put("/proc/4711/comm", "db\n");
    tree.put("/proc/4712/numa_maps", &maps("default"));
}

#[test]
fn memory_policies_that_would_not_come_back_are_refused() {
    for (policy, before, nodes, is_refused) in [
        ("interleave:0-1", "", "1", true),
        ("bind:1", "", "1", true),
        ("weighted interleave:0-1", "", "1", true),
        ("bind:1", "0-1", "1", true),
        // Without a known kernel it may be one before 5.14.
        ("prefer:1", "", "1", true),
        ("prefer (many):1", "0-1", "1", false),
        ("bind=balancing:0-1", "", "1", true),
        // By its place it goes to the other node and back.
        ("bind:0", "", "1", false),
        ("bind:0", "", "0", false),
        ("bind=static:1", "", "1", false),
        ("interleave=relative:0-1", "", "1", false),
        ("default", "", "1", false),
        ("local", "", "1", false),
        // The group's tasks have both nodes already.
        ("interleave:0-1", "", "0-1", false),
    ] {
        for below in ["", "/workers"] {
            let tree = machine();
            tree.put(FILE, &format!("{before}\n"));
            tree.put(&format!("{GROUP}/cpuset.mems.effective"), "0-1\n");
            task(&tree, below, policy);
            let plan = one(nodes, Some(before));
            let checked = check_plan(&plan, &tree.target()).map_err(|error| error.to_string());
            let outcome = apply(&plan, &tree.target(), &ApplyOptions::default()).unwrap();
            let case = format!("{policy} {nodes} {below}: {outcome:?}");
            assert_eq!(outcome.is_complete(), !is_refused, "{case}");
            let Err(error) = checked else {
                assert!(!is_refused, "{case}");
                continue;
            };
            assert!(
                error.contains(&format!("{policy} of task 4711 (db)")),
                "{error}"
            );
            assert_eq!(tree.get(FILE), format!("{before}\n"));
            let force = ApplyOptions {
                force: true,
                ..ApplyOptions::default()
            };
            assert!(apply(&plan, &tree.target(), &force).unwrap().is_complete());
        }
    }
}

/// A thread can have set its own, and numa_maps of the process does not show it.
#[test]
fn the_policy_of_a_thread_counts_as_well() {
    let tree = machine();
    tree.put(&format!("{GROUP}/cpuset.mems.effective"), "0-1\n");
    task(&tree, "", "default");
    tree.put(
        "/proc/4712/numa_maps",
        "1000 interleave:0-1 file=/usr/bin/db N0=2\n",
    );
    let error = check_plan(&one("1", None), &tree.target())
        .unwrap_err()
        .to_string();
    assert!(error.contains("interleave:0-1 of task 4712"), "{error}");
}

#[test]
fn the_undo_says_which_policies_it_rewrote() {
    let tree = machine();
    let state = tempfile::tempdir().unwrap();
    let target = nearfar_change::Target::live(Some(state.path().to_owned()));
    let kernel = crate::support::kernel::Kernel::over(&tree.root());
    tree.put("/proc/sys/kernel/random/boot_id", "boot\n");
    tree.put("/sys/fs/cgroup/cpuset.mems.effective", "0-1\n");
    task(&tree, "", "default");
    apply_with(
        &one("1", Some("")),
        &target,
        &ApplyOptions::default(),
        &kernel,
    )
    .unwrap();
    // It began after that.
    task(&tree, "", "bind:1");
    let undone = rollback_with(&target, &RollbackOptions::default(), &kernel).unwrap();
    let UndoResult::Restored {
        note: Some(note), ..
    } = &undone.changes[0].result
    else {
        panic!("{undone:?}")
    };
    assert!(
        note.contains("bind:1 of task 4711 (db) to bind:0"),
        "{note}"
    );
}

/// A group with tasks: the kernel does not take an empty list.
struct Populated(Rooted);

impl System for Populated {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        match path == FILE && content.trim_ascii().is_empty() {
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => self.0.write(path, content),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.list(path)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.0.link(path)
    }

    fn append(&self, journal: &File, line: &[u8]) -> io::Result<()> {
        self.0.append(journal, line)
    }
}

#[test]
fn where_a_group_with_tasks_had_no_list_it_gets_all_nodes_back() {
    let tree = machine();
    let system = Populated(Rooted::tree(&tree.root()).unwrap());
    let (target, options) = (tree.target(), ApplyOptions::default());
    apply_with(&one("1", Some("")), &target, &options, &system).unwrap();
    let undone = rollback_with(&target, &RollbackOptions::default(), &system).unwrap();
    let UndoResult::Restored { from, to, .. } = &undone.changes[0].result else {
        panic!("{undone:?}")
    };
    assert_eq!((from.as_str(), to.as_str()), ("1", "0-1"));
    assert_eq!(tree.get(FILE), "0-1\n");
    let again = rollback_with(&target, &RollbackOptions::default(), &system).unwrap();
    assert_eq!(again.change_set, None);

    // The same where the change set is undone because another change failed.
    tree.put(FILE, "\n");
    let atomic = ApplyOptions {
        atomic: true,
        ..options
    };
    let failing = planned(interrupt(99, "4"), None);
    let both = plan(vec![planned(change("1"), None), failing]);
    let outcome = apply_with(&both, &target, &atomic, &system).unwrap();
    let now = "0-1".to_owned();
    assert_eq!(outcome.changes[0].result, Applied::Undone { now });
}

#[test]
fn each_refusal_names_its_reason_and_writes_nothing() {
    let refused = |break_it: &dyn Fn(&Tree), nodes: &str, expected: &str| {
        let tree = machine();
        break_it(&tree);
        let before = tree.files();
        let plan = one(nodes, None);
        let error = check_plan(&plan, &tree.target()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let outcome = apply(&plan, &tree.target(), &ApplyOptions::default()).unwrap();
        let Applied::LeftAlone { reason } = &outcome.changes[0].result else {
            panic!("{outcome:?}")
        };
        assert_eq!(*reason, error);
        assert_eq!(tree.files(), before);
    };
    let remove = |tree: &Tree, path: &str| std::fs::remove_file(tree.at(path)).unwrap();
    let put = |path: &'static str, text: &'static str| move |tree: &Tree| tree.put(path, text);

    refused(&|_| {}, "1-2", "nodes 2 are not online (online: 0-1)");
    let has_memory = put("/sys/devices/system/node/has_memory", "0\n");
    refused(
        &has_memory,
        "1",
        "nodes 1 have no memory (nodes with memory: 0)",
    );
    let above = put("/sys/fs/cgroup/system.slice/cpuset.mems.effective", "0\n");
    refused(&above, "1", "the group above allows no memory on nodes 1");
    let full = put(
        "/proc/zoneinfo",
        "Node 1, zone   Normal\n  pages free     2304\n        high     100\n",
    );
    // 8.6 MiB above the watermark, 8.8 MiB needed.
    refused(
        &full,
        "1",
        "nodes 1 have 8.6 MiB above their high watermarks, and 8.8 MiB are needed",
    );
    let no_file = |tree: &Tree| remove(tree, FILE);
    refused(
        &no_file,
        "1",
        "(/sys/fs/cgroup/system.slice/cgroup.subtree_control has no cpuset;",
    );
    let not_at_all = |tree: &Tree| {
        remove(tree, FILE);
        tree.put("/sys/fs/cgroup/cgroup.subtree_control", "memory\n");
    };
    refused(
        &not_at_all,
        "1",
        "(/sys/fs/cgroup/cgroup.subtree_control has no cpuset;",
    );
    let version_1 = |tree: &Tree| {
        remove(tree, "/sys/fs/cgroup/cgroup.controllers");
        tree.put("/sys/fs/cgroup/cpuset/cpuset.mems", "0-1\n");
    };
    refused(&version_1, "1", "control groups are of version 1 here");
    let gone = |tree: &Tree| std::fs::remove_dir_all(tree.at(GROUP)).unwrap();
    refused(
        &gone,
        "1",
        "there is no control group \"system.slice/db.service\"",
    );
}

#[test]
fn groups_of_a_hostile_plan_do_not_leave_the_hierarchy() {
    for group in [
        "",
        "/",
        "/etc",
        "..",
        "a/..",
        "../../etc",
        "a//b",
        "a/./b",
        "a\nb",
        "a b",
        "a\0",
        "$(id)",
        "a'b",
    ] {
        let nodes = "1".parse().unwrap();
        let group = group.to_owned();
        let change = Change::CpusetMemory { group, nodes };
        let error = nearfar_change::check(&plan(vec![planned(change.clone(), None)])).unwrap_err();
        assert!(
            error.to_string().contains("is not a control group"),
            "{change:?}: {error}"
        );
    }
    let empty = nearfar_change::check(&one("", None)).unwrap_err();
    assert!(empty.to_string().contains("would have no node"), "{empty}");
    let twice = plan(vec![planned(change("0"), None), planned(change("1"), None)]);
    let twice = nearfar_change::check(&twice).unwrap_err().to_string();
    assert!(twice.contains("both write"), "{twice}");

    // A link out of the tree in the place of the group.
    let (outside, tree) = (machine(), machine());
    let before = outside.files();
    std::fs::remove_dir_all(tree.at(GROUP)).unwrap();
    symlink(outside.at(GROUP), tree.at(GROUP)).unwrap();
    let outcome = apply(&one("1", None), &tree.target(), &ApplyOptions::default()).unwrap();
    assert!(!outcome.is_complete(), "{outcome:?}");
    assert_eq!(outside.files(), before);
}

#[test]
fn it_is_exported_with_the_unit_it_is_of() {
    let text = nearfar_change::export::systemd(&one("1", Some("")));
    let expected = "systemctl set-property --runtime 'db.service' AllowedMemoryNodes=1";
    assert!(text.contains(expected), "{text}");
    let below = Change::CpusetMemory {
        group: "system.slice/db.service/workers".into(),
        nodes: "0-1".parse().unwrap(),
    };
    let text = nearfar_change::export::systemd(&plan(vec![planned(below, None)]));
    assert!(
        text.contains("echo '0-1' > '/sys/fs/cgroup/system.slice/db.service/workers/cpuset.mems'")
    );
    let script = nearfar_change::export::script(&one("1", Some("0")));
    assert!(
        script.contains(&format!("put '{FILE}' '1'"))
            && script.contains(&format!("put '{FILE}' '0'"))
    );
    let udev = nearfar_change::export::udev(&one("1", None));
    assert!(
        udev.contains("# left out: no event of udev is about it"),
        "{udev}"
    );
}
