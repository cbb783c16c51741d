//! The memory of a control group in a guest with two nodes: moved process by process, and by the kernel where the nodes of the
//! group change. Read with move_pages(2), page by page.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes. The
//! part named `inside_...` is this very program once more, started in the guest.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::guests;
use crate::holding;
use crate::holding::{Holder, Part};
use serde_json::Value;

const MOUNT: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/work.slice";

/// Runs nearfar with the state directory behind its words: the answer, its exit code, what it says.
fn nearfar(state: &Path, words: &str) -> (Value, i32, String) {
    let mut command = Command::new(guests::NEARFAR);
    command.args(words.split(' ')).args(["--format", "json"]);
    if !words.starts_with("plan") {
        command.arg("--state").arg(state);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("# nearfar {words}: {}\n{text}{errors}", output.status);
    let answer = serde_json::from_str(&text).unwrap_or(Value::Null);
    (answer, output.status.code().unwrap(), errors)
}

/// Starts something whose memory counts for the group.
fn in_the_group<T>(start: impl FnOnce() -> T) -> T {
    let own = std::process::id().to_string();
    fs::write(format!("{GROUP}/cgroup.procs"), &own).unwrap();
    let started = start();
    fs::write(format!("{MOUNT}/cgroup.procs"), &own).unwrap();
    started
}

fn mems() -> String {
    fs::read_to_string(format!("{GROUP}/cpuset.mems")).unwrap()
}

/// The change of this process in a plan or an answer.
fn change_of(answer: &Value, pid: i32) -> Value {
    let changes = answer["changes"].as_array().unwrap();
    let is_it = |it: &&Value| it["change"]["pid"] == pid;
    changes.iter().find(is_it).cloned().unwrap_or(Value::Null)
}

#[test]
#[ignore = "runs in the guest"]
fn inside_a_group_moves() {
    assert!(
        guests::is_inside(),
        "this part moves memory between nodes: it runs in a guest"
    );
    fs::write("/proc/sys/kernel/numa_balancing", "0").unwrap();
    fs::write(format!("{MOUNT}/cgroup.subtree_control"), "+cpuset +memory").unwrap();
    fs::create_dir(GROUP).unwrap();
    let state = tempfile::tempdir().unwrap();
    let nearfar = |words: &str| nearfar(state.path(), words);
    let (_, code, said) = nearfar("plan --memory work.slice --to-node 1");
    assert!(
        code == 2 && said.contains("no process is in control group"),
        "{said}"
    );

    let holder = in_the_group(|| Holder::start(0));
    processes_move_one_by_one(&nearfar, &holder, state.path());
    the_kernel_moves_them(&nearfar, &holder);
}

fn processes_move_one_by_one(
    nearfar: &dyn Fn(&str) -> (Value, i32, String),
    holder: &Holder,
    folder: &Path,
) {
    let (pid, before) = (holder.pid, holder.nodes());
    let short_lived = in_the_group(|| holding::fill(0, 1 << 20));
    let (plan, code, _) = nearfar("plan --memory /work.slice --to-node 1");
    assert_eq!(code, 0);
    for pid in [pid, short_lived.pid] {
        let reason = change_of(&plan, pid)["reason"].to_string();
        assert!(
            reason.contains("Processes that begin after this plan"),
            "{reason}"
        );
        assert!(reason.contains("--shared moves them"), "{reason}");
    }
    // One process ends before its turn.
    let file = folder.join("plan.json");
    fs::write(&file, plan.to_string()).unwrap();
    let ended = short_lived.pid;
    short_lived.end();
    let (applied, code, _) = nearfar(&format!("apply {}", file.display()));
    assert_eq!(code, 0);
    assert_eq!(
        change_of(&applied, ended)["result"]["result"],
        "process-gone"
    );
    let moved = holder.nodes();
    for part in [Part::Small, Part::Huge, Part::Locked] {
        assert!(
            holder.of(&moved, part).iter().all(|&node| node == 1),
            "{part:?}"
        );
    }
    // Its child maps these as well.
    assert!(
        holder
            .of(&moved, Part::Shared)
            .iter()
            .all(|&node| node == 0)
    );
    let result = change_of(&applied, pid)["result"].clone();
    assert!(
        result["memory"]["shared_bytes"].as_u64().unwrap() >= 1 << 20,
        "{result}"
    );
    assert_eq!(nearfar("rollback").1, 0);
    assert_eq!(holder.nodes(), before);

    assert_eq!(
        nearfar("apply --memory work.slice --to-node 1 --shared --yes").1,
        0
    );
    assert!(holder.nodes().iter().all(|&node| node == 1));
    assert_eq!(nearfar("rollback").1, 0);
    assert_eq!(holder.nodes(), before);
}

fn the_kernel_moves_them(nearfar: &dyn Fn(&str) -> (Value, i32, String), holder: &Holder) {
    assert_eq!(mems(), "\n");
    let (applied, code, _) = nearfar("apply --cpuset-mems work.slice=1 --yes");
    let result = &applied["changes"][0]["result"];
    assert_eq!(
        (code, &result["effective"]["nodes"]),
        (0, &Value::from("1")),
        "{applied}"
    );
    assert_eq!(mems(), "1\n");
    assert!(holder.nodes().iter().all(|&node| node == 1));

    // The group has tasks, so the list cannot be empty again; and widening it moves nothing.
    let (undone, code, _) = nearfar("rollback");
    let note = undone["changes"][0]["result"]["note"].to_string();
    assert_eq!(code, 0, "{undone}");
    assert!(
        note.contains("cannot be so again") && note.contains("--memory /work.slice"),
        "{note}"
    );
    assert_eq!(mems(), "0-1\n");
    assert!(holder.nodes().iter().all(|&node| node == 1));

    // Another program sets it meanwhile.
    assert_eq!(nearfar("apply --cpuset-mems work.slice=0 --yes").1, 0);
    assert!(holder.nodes().iter().all(|&node| node == 0));
    fs::write(format!("{GROUP}/cpuset.mems"), "1").unwrap();
    let (undone, code, _) = nearfar("rollback");
    let result = &undone["changes"][0]["result"]["result"];
    assert_eq!((code, result), (3, &Value::from("changed-since")));
    assert_eq!(mems(), "1\n");
    assert_eq!(nearfar("rollback --force").1, 0);
    assert_eq!(mems(), "0-1\n");

    // The other node has no room.
    fs::write(format!("{GROUP}/cpuset.mems"), "0").unwrap();
    let hogs = holding::fill_up(1);
    let (_, code, said) = nearfar("plan --cpuset-mems work.slice=1");
    drop(hogs);
    assert!(code == 3 && said.contains("10 % to spare"), "{said}");
    let (_, code, said) = nearfar("plan --cpuset-mems nothing.slice=1");
    assert!(
        code == 2 && said.contains("there is no control group"),
        "{said}"
    );
}

#[test]
fn the_memory_of_a_group_goes_to_a_node_and_back() {
    if guests::skipped() {
        return;
    }
    guests::part(
        "two-node",
        &["--scale", "cpus=2,memory=512M"],
        "move_group::inside_a_group_moves",
    );
}
