//! Moving the memory of a process that has pages of pools and pinned ones, while others take the memory of the node, and of a
//! process that ends meanwhile: in a guest with two nodes.
//!
//! Needs what crates/cli/tests/guest/move_tasks.rs needs; without it says so and passes. The parts named `inside_...` are this very
//! program once more, started in the guest.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::guests;
use crate::holding;
use crate::holding::{Holder, Part};
use crate::moving::{SLOW, begin, command, nearfar};
use nearfar_machine::NodeId;
use nearfar_proc::zoneinfo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const GUEST: [&str; 2] = ["--scale", "cpus=2,memory=512M"];
const NODES: &str = "/sys/devices/system/node";

/// The pool of huge pages of a node, in pages.
fn set_pool(node: u32, pages: u64) {
    let file = format!("{NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
    std::fs::write(&file, pages.to_string()).unwrap();
    assert_eq!(pool(node), pages, "no contiguous memory for huge pages");
}

fn pool(node: u32) -> u64 {
    let file = format!("{NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
    std::fs::read_to_string(file)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// Huge pages of pools, and pages that io_uring has pinned.
fn special_memory(target_pool: u64) {
    let state = tempfile::tempdir().unwrap();
    set_pool(0, 2);
    set_pool(1, target_pool);
    let mut holder = Holder::start_special(0);
    let (pid, before) = (holder.pid, holder.nodes());
    assert!(before.iter().all(|&node| node == 0));

    let words = format!("apply --memory {pid} --to-node 1 --yes --format json");
    let (applied, code) = nearfar(state.path(), &words);
    let result = &applied["changes"][0]["result"];
    assert_eq!(
        (code, &result["result"]),
        (0, &Value::from("moved")),
        "{applied}"
    );
    // Without a free page in its pool, the target's pool grows by what moves, and the other shrinks.
    let pools = match target_pool {
        0 => (0, 2),
        _ => (2, target_pool),
    };
    assert_eq!((pool(0), pool(1)), pools);
    let moved = holder.nodes();
    let hugetlb = holder.of(&moved, Part::Hugetlb);
    assert!(hugetlb.iter().all(|&node| node == 1), "{hugetlb:?}");
    for (page, &node) in (0..).zip(holder.of(&moved, Part::Pinned)) {
        assert_eq!(node, i32::from(!holding::is_pinned(page)), "page {page}");
    }
    let pinned = holding::PINNED_RUNS * holding::PINNED_RUN_PAGES * 4096;
    assert_eq!(
        result["memory"]["busy_bytes"],
        Value::from(pinned),
        "{result}"
    );
    assert_eq!(
        result["memory"]["not_tried_bytes"],
        Value::from(0),
        "{result}"
    );

    let (undone, code) = nearfar(state.path(), "rollback --format json");
    assert_eq!(code, 0, "{undone}");
    assert_eq!(holder.nodes(), before);
    holder.check_content();
    assert_eq!((pool(0), pool(1)), (2, target_pool));
    holder.end();
    (0..2).for_each(|node| set_pool(node, 0));
}

#[test]
#[ignore = "runs in the guest"]
fn inside_huge_pages_of_pools_and_pinned_pages() {
    begin();
    special_memory(2);
    special_memory(0);
}

/// Starts a slow move, lets something happen after a part of it, and has its answer. It is stopped meanwhile, so what happens may take
/// any time.
fn slow_move<T>(
    state: &Path,
    holder: &mut Holder,
    happens: impl FnOnce(&mut Holder) -> T,
) -> (T, Value, Option<i32>) {
    let pid = holder.pid;
    let words = format!("apply --memory {pid} --to-node 1 --yes --format json --rate {SLOW}");
    let apply = command(state, &words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let on_0 = || holder.nodes().iter().filter(|&&node| node == 0).count();
    let (begin, end) = (on_0(), Instant::now() + Duration::from_secs(60));
    while on_0() > begin - 512 {
        assert!(Instant::now() < end, "nothing moves");
        std::thread::sleep(Duration::from_millis(20));
    }
    let stopped = Pid::from_child(&apply);
    kill_process(stopped, Signal::STOP).unwrap();
    let happened = happens(holder);
    kill_process(stopped, Signal::CONT).unwrap();
    let (applied, code) = answer(apply);
    (happened, applied, code)
}

/// The answer of a command that ends by itself.
fn answer(command: Child) -> (Value, Option<i32>) {
    let output = command.wait_with_output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    let answer = serde_json::from_slice(&output.stdout).unwrap();
    (answer, output.status.code())
}

fn the_target_fills_up() {
    let state = tempfile::tempdir().unwrap();
    let mut holder = holding::fill(0, 96 << 20);
    let before = holder.nodes();
    // More than is left: the rest of it is on node 0.
    let fill = |_: &mut Holder| holding::fill(1, free_bytes(1));
    let (hog, applied, code) = slow_move(state.path(), &mut holder, fill);
    let result = &applied["changes"][0]["result"];
    assert_eq!(
        (code, &result["result"]),
        (Some(3), &Value::from("moved")),
        "{applied}"
    );
    let reason = result["memory"]["stopped_reason"].as_str().unwrap();
    assert_eq!(reason, "node 1 has no free memory left");
    assert!(
        result["memory"]["no_room_bytes"].as_u64().unwrap() > 0,
        "{result}"
    );
    let moved = result["memory"]["moved_bytes"].as_u64().unwrap();
    // Of the whole process, not only of the part.
    let on_1 = holder.nodes().iter().filter(|&&node| node == 1).count() as u64;
    assert!(
        on_1 > 0 && on_1 * 4096 + (4 << 20) > moved,
        "{on_1} {result}"
    );
    assert!(on_1 < before.len() as u64, "{on_1} {result}");
    holder.check_content();
    let (history, _) = nearfar(state.path(), "rollback --list --format json");
    println!("{history}");
    let change = &history["change_sets"][0]["changes"][0];
    assert_eq!(change["state"]["state"], "made", "{history}");
    hog.end();
    let (undone, code) = nearfar(state.path(), "rollback --format json");
    assert_eq!(
        (code, &undone["changes"][0]["result"]["result"]),
        (0, &Value::from("pages-back"))
    );
    assert_eq!(holder.nodes(), before);
    holder.check_content();
}

fn free_bytes(node: u32) -> u64 {
    let zones = std::fs::read("/proc/zoneinfo").unwrap();
    zoneinfo::of_node(&zones, NodeId(node)).unwrap().free * 4096
}

/// The process ends while it moves, in the way of `end`, which the answer calls so.
fn the_process_changes(end: impl FnOnce(&mut Holder), says: &str) {
    let state = tempfile::tempdir().unwrap();
    let mut holder = Holder::start(0);
    let ((), applied, code) = slow_move(state.path(), &mut holder, end);
    let result = &applied["changes"][0]["result"];
    assert_eq!(
        (code, &result["result"]),
        (Some(3), &Value::from("moved")),
        "{applied}"
    );
    let reason = result["memory"]["stopped_reason"].as_str().unwrap();
    assert!(reason.contains(says), "{reason}");
    let (history, _) = nearfar(state.path(), "rollback --list --format json");
    let change = &history["change_sets"][0]["changes"][0];
    assert_eq!(change["state"]["state"], "made", "{history}");
    let (undone, code) = nearfar(state.path(), "rollback --format json");
    let result = &undone["changes"][0]["result"];
    assert_eq!(
        (code, &result["result"]),
        (0, &Value::from("process-gone")),
        "{undone}"
    );
    assert!(
        result["reason"].as_str().unwrap().contains(says),
        "{undone}"
    );
    let (nothing, _) = nearfar(state.path(), "rollback --format json");
    assert_eq!(nothing["change_set"], Value::Null);
}

#[test]
#[ignore = "runs in the guest"]
fn inside_what_happens_meanwhile() {
    begin();
    the_target_fills_up();
    let killed = |holder: &mut Holder| {
        kill_process(Pid::from_raw(holder.pid).unwrap(), Signal::KILL).unwrap();
    };
    the_process_changes(killed, "has ended: its memory is gone");
    the_process_changes(Holder::exec, "has started another program");
}

#[test]
fn huge_pages_of_pools_move_and_pinned_pages_stay_alone() {
    if guests::skipped() {
        return;
    }
    guests::part(
        "two-node",
        &GUEST,
        "move_meanwhile::inside_huge_pages_of_pools_and_pinned_pages",
    );
}

#[test]
fn a_move_ends_when_the_node_fills_up_and_when_the_process_ends() {
    if guests::skipped() {
        return;
    }
    guests::part(
        "two-node",
        &GUEST,
        "move_meanwhile::inside_what_happens_meanwhile",
    );
}
