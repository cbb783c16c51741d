//! Moving the memory of a process in a guest with two nodes: every page goes where it should, and back to where it was, also
//! after a kill in the middle. Read with move_pages(2) and from numa_maps, page by page.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes. The
//! parts named `inside_...` are this very program once more, started in the guest.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::guests;
use crate::holding;
use crate::holding::{Holder, Part};
use crate::moving::{SLOW, begin, command, nearfar, run};
use nearfar_proc::{maps, tasks};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const GUEST: [&str; 2] = ["--scale", "cpus=2,memory=512M"];

fn write_plan(folder: &Path, plan: &Value) -> String {
    let file = folder.join("plan.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Bytes in huge pages of the part that asked for them.
fn huge_bytes(holder: &Holder) -> Option<u64> {
    let smaps = std::fs::read(format!("/proc/{}/smaps", holder.pid)).unwrap();
    maps::huge_bytes(&smaps, holder.range(Part::Huge))
}

#[test]
#[ignore = "runs in the guest"]
fn inside_there_and_back() {
    begin();
    let state = tempfile::tempdir().unwrap();
    let holder = Holder::start(0);
    let (pid, before) = (holder.pid, holder.nodes());
    let huge = huge_bytes(&holder);
    assert!(
        huge.is_some_and(|bytes| bytes >= 2 << 20),
        "no huge page: {huge:?}"
    );

    let (plan, _) = nearfar(
        state.path(),
        &format!("plan --memory {pid} --to-node 1 --format json"),
    );
    run(state.path(), &format!("plan --memory {pid} --to-node 1"));
    let script = run(
        state.path(),
        &format!("plan --memory {pid} --to-node 1 --format script"),
    );
    assert!(String::from_utf8_lossy(&script.stdout).contains("# left out: change 1: memory of"));
    let file = write_plan(state.path(), &plan);

    let (applied, code) = nearfar(state.path(), &format!("apply {file} --format json"));
    let result = &applied["changes"][0]["result"];
    assert_eq!((code, &result["result"]), (0, &Value::from("moved")));
    let moved = holder.nodes();
    for part in [Part::Small, Part::Huge, Part::Locked] {
        assert!(
            holder.of(&moved, part).iter().all(|&node| node == 1),
            "{part:?}"
        );
    }
    assert!(
        holder
            .of(&moved, Part::Shared)
            .iter()
            .all(|&node| node == 0)
    );
    let shared = result["memory"]["shared_bytes"].as_u64().unwrap();
    assert!(shared >= 1 << 20, "{result}");
    assert_eq!(huge_bytes(&holder), huge, "huge pages were split");
    assert_eq!(holder.on_node_in_numa_maps(Part::Small, 1), 2048);

    let (history, _) = nearfar(state.path(), "rollback --list --format json");
    assert_eq!(
        history["change_sets"][0]["changes"][0]["state"]["state"],
        "made"
    );
    let (undone, code) = nearfar(state.path(), "rollback --format json");
    assert_eq!(code, 0, "{undone}");
    assert_eq!(
        undone["changes"][0]["result"]["result"], "pages-back",
        "{undone}"
    );
    assert_eq!(holder.nodes(), before);
    assert_eq!(huge_bytes(&holder), huge);

    // Pages that other processes map, too.
    let words = format!("apply --memory {pid} --to-node 1 --shared --yes --format json");
    assert_eq!(nearfar(state.path(), &words).1, 0);
    assert!(holder.nodes().iter().all(|&node| node == 1));
    assert_eq!(nearfar(state.path(), "rollback --format json").1, 0);
    assert_eq!(holder.nodes(), before);
    let (nothing, code) = nearfar(state.path(), "rollback --format json");
    assert_eq!((code, &nothing["change_set"]), (0, &Value::Null));
}

#[test]
#[ignore = "runs in the guest"]
fn inside_killed_interrupted_and_refused() {
    begin();
    let state = tempfile::tempdir().unwrap();
    let mut holder = Holder::start(0);
    let (pid, before) = (holder.pid, holder.nodes());
    let far = |nodes: &[i32]| nodes.iter().filter(|&&node| node == 0).count();
    let slow = format!("apply --memory {pid} --to-node 1 --yes --format json --rate {SLOW}");
    let until_half = || {
        let end = Instant::now() + Duration::from_secs(60);
        while far(&holder.nodes()) > far(&before) * 3 / 4 {
            assert!(Instant::now() < end, "nothing moves");
            std::thread::sleep(Duration::from_millis(20));
        }
    };

    // Killed in the middle.
    let mut apply = command(state.path(), &slow).spawn().unwrap();
    until_half();
    let (history, _) = nearfar(state.path(), "rollback --list --format json");
    assert_eq!(history["change_sets"][0]["state"]["state"], "in-progress");
    apply.kill().unwrap();
    apply.wait().unwrap();
    let middle = holder.nodes();
    assert!(middle != before && middle.contains(&0), "{middle:?}");
    let (history, _) = nearfar(state.path(), "rollback --list --format json");
    assert_eq!(history["change_sets"][0]["state"]["state"], "interrupted");
    let (undone, code) = nearfar(state.path(), "rollback --format json");
    assert_eq!(code, 0, "{undone}");
    assert_eq!(holder.nodes(), before);

    // Ctrl-C takes back what was moved.
    let apply = command(state.path(), &slow).spawn().unwrap();
    until_half();
    kill_process(Pid::from_child(&apply), Signal::INT).unwrap();
    let ended = apply.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    assert_eq!(holder.nodes(), before);

    // A process that began at another time has the number.
    let words = format!("plan --memory {pid} --to-node 1 --format json");
    let (mut plan, _) = nearfar(state.path(), &words);
    let fitting = plan.clone();
    let start = &mut plan["changes"][0]["owner"]["process"]["start_ticks"];
    *start = Value::from(start.as_u64().unwrap() - 1);
    let file = write_plan(state.path(), &plan);
    let refused = run(state.path(), &format!("apply {file}"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("began at clock tick"));

    // The target has no room.
    let hogs = holding::fill_up(1);
    let file = write_plan(state.path(), &fitting);
    let (full, code) = nearfar(state.path(), &format!("apply {file} --format json"));
    drop(hogs);
    let result = &full["changes"][0]["result"];
    assert_eq!((code, &result["result"]), (3, &Value::from("left-alone")));
    assert!(
        result["reason"].as_str().unwrap().contains("10 % to spare"),
        "{result}"
    );
    assert_eq!(holder.nodes(), before);

    // The process ends before the rollback. Its pages are as it wrote them until then.
    holder.check_content();
    assert_eq!(
        nearfar(state.path(), &format!("apply {file} --format json")).1,
        0
    );
    holder.end();
    assert!(!tasks::is_alive(pid));
    let (gone, code) = nearfar(state.path(), "rollback --format json");
    assert_eq!(
        (code, &gone["changes"][0]["result"]["result"]),
        (0, &Value::from("process-gone"))
    );
}

#[test]
fn memory_goes_to_a_node_and_back_page_by_page() {
    if guests::skipped() {
        return;
    }
    guests::part("two-node", &GUEST, "move_tasks::inside_there_and_back");
}

#[test]
fn a_killed_move_is_rolled_back_and_what_cannot_be_moved_is_refused() {
    if guests::skipped() {
        return;
    }
    guests::part(
        "two-node",
        &GUEST,
        "move_tasks::inside_killed_interrupted_and_refused",
    );
}
