//! Case 1 on x86, end to end in a guest with a real kernel: one NVMe disk, a controller on node 0 and one behind a host bridge
//! on node 2, which is not online. Seen, traced, fixed from user space, traced again, and undone.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.1`) and a static busybox; without them it says so and passes.
//! `cargo test -p nearfar --test guest case1:: -- --nocapture` prints the conversation that docs/case-1.md shows.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::guests;
use nearfar_lab::cache::Cache;
use nearfar_lab::guest::{Guest, PreparedGuest};
use nearfar_lab::request::GuestRequest;
use nearfar_lab::shell::word;
use nearfar_lab::{Arch, LabError};
use nearfar_machine::Acceleration;
use nearfar_sources::{Request, Want};
use serde_json::Value;

/// Direct reads from each CPU in turn, and some writes: what the published case did with fio, small enough for emulation.
const LOAD: &str = "disk=$(echo /dev/nvme?n1); for cpu in 0 1 2 3; do \
    taskset -c $cpu dd if=$disk of=/dev/null iflag=direct bs=4k count=200 status=none; \
    taskset -c $cpu dd if=/dev/zero of=$disk oflag=direct bs=4k count=20 status=none; done";
/// Commands from the two CPUs of a node under that load.
const FROM_A_NODE: u64 = 2 * (200 + 20);
/// The driver probes in the background: both paths are there when it has found both controllers.
const BOTH_PATHS: &str = "left=600; \
    until [ $(ls -d /sys/block/nvme?c?n1 2> /dev/null | wc -l) = 2 ] && [ -b /dev/nvme?n1 ]; do \
    left=$((left - 1)); [ $left -gt 0 ] || { ls /sys/block; exit 1; }; sleep 0.1; done";
/// Lets the driver find the controller without a node before the other one. Seen from node 0 the kernel behaves as if -1
/// were as near as its own controller, and the path that was found first wins: in the other order node 0 happens to be right.
const FAR_ONE_FIRST: &str = "cd /sys/bus/pci/drivers/nvme; all=$(echo 0000:*); \
    for one in $all; do [ $(cat $one/numa_node) = -1 ] && far=$one || near=$one; done; \
    echo $far > unbind; echo $near > unbind; echo $far > bind; left=600; \
    until [ -b /dev/nvme?n1 ]; do left=$((left - 1)); [ $left -gt 0 ] || exit 1; sleep 0.1; done; \
    echo $near > bind";
/// The file of which everything else follows.
const NODE_FILES: &str = "cat /sys/bus/pci/drivers/nvme/0000:*/numa_node";

/// The guest, or why it cannot be had here.
fn request(machine: &str, kernel: &str) -> Result<PreparedGuest, LabError> {
    let described = nearfar_sources::read(&Request::source(machine, Want::all())).unwrap();
    let request = GuestRequest {
        arch: Some(Arch::X86_64),
        kernel: Some(kernel.to_owned()),
        acceleration: Some(Acceleration::Tcg),
        boot_timeout: Duration::from_secs(300),
        command_timeout: Some(Duration::from_secs(120)),
        ..GuestRequest::new(described, machine)
    };
    request.prepare(&Cache::of_user()?)
}

/// The guest, or `None`, having said why there is none.
fn boot(machine: &str, kernel: &str) -> Option<Guest> {
    if Arch::host() != Some(Arch::X86_64) {
        println!(
            "skipped: guests: the guest runs this machine's own programs, which are not x86-64's"
        );
        return None;
    }
    match request(machine, kernel) {
        Ok(request) => Some(Guest::boot(&request, &AtomicBool::new(false)).unwrap()),
        Err(error) => {
            println!("skipped: guests: {error}");
            None
        }
    }
}

/// A command in the guest, as a person would type it; printed as a person would see it.
fn run(guest: &mut Guest, command: &str) -> String {
    let output = guest.output(&["sh", "-c", command]).unwrap();
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("# {command}\n{text}{errors}");
    assert_eq!(output.code, 0, "{command}: {errors}{}", guest.console());
    text.into_owned()
}

fn nearfar(guest: &mut Guest, arguments: &str) -> String {
    run(
        guest,
        &format!("{} {arguments}", word(guests::NEARFAR.as_ref())),
    )
}

/// The share of each node's commands that took its nearest path, after checking that every command of the load is there.
fn shares(guest: &mut Guest) -> Vec<f64> {
    nearfar(
        guest,
        &format!("trace nvme --subsystem nvme-subsys0 -- sh -c '{LOAD}'"),
    );
    let text = nearfar(
        guest,
        &format!("trace nvme --format json -- sh -c '{LOAD}'"),
    );
    let traced: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(traced["losses"]["lost"], 0, "{}", traced["losses"]);
    assert_eq!(
        traced["unplaced"],
        serde_json::json!([]),
        "every command belongs to a path that the machine lists"
    );
    assert_eq!(traced["emulation"]["machine"], "x86-case1");
    let nodes = traced["namespaces"][0]["nodes"].as_array().unwrap();
    let total = |node: &Value| {
        ["reads", "writes"]
            .iter()
            .map(|kind| node["commands"][kind].as_u64().unwrap())
            .sum()
    };
    let totals: Vec<u64> = nodes.iter().map(total).collect();
    assert_eq!(
        totals,
        [FROM_A_NODE, FROM_A_NODE],
        "{}",
        traced["namespaces"]
    );
    nodes
        .iter()
        .map(|node| node["nearest_share"].as_f64().unwrap())
        .collect()
}

#[test]
fn a_controller_on_a_node_that_is_not_online_is_found_fixed_and_put_back() {
    let Some(mut guest) = boot("x86-case1", "6.1") else {
        return;
    };
    run(&mut guest, &format!("modprobe nvme; {BOTH_PATHS}"));
    run(&mut guest, FAR_ONE_FIRST);
    run(&mut guest, BOTH_PATHS);
    run(
        &mut guest,
        "echo numa > /sys/class/nvme-subsystem/nvme-subsys0/iopolicy",
    );
    let nodes_before = run(&mut guest, NODE_FILES);
    assert!(
        nodes_before.lines().any(|node| node == "-1"),
        "the kernel has no node for one of them: {nodes_before}"
    );

    let audit = nearfar(&mut guest, "audit");
    let audit = audit.split_whitespace().collect::<Vec<_>>().join(" ");
    for says in [
        "puts this device on node 2, which is not online",
        "_PXM",
        "The online node nearest to it is 1, at 17",
    ] {
        assert!(
            audit.contains(says),
            "the audit does not say {says:?}: {audit}"
        );
    }
    let before = shares(&mut guest);
    assert_eq!(
        before,
        [0.0, 1.0],
        "node 0 goes to the far controller, past its own"
    );

    nearfar(&mut guest, "plan --override-device-node");
    nearfar(&mut guest, "apply --override-device-node --yes");
    run(&mut guest, BOTH_PATHS);
    let nodes_after = run(&mut guest, NODE_FILES);
    assert!(!nodes_after.contains("-1"), "{nodes_after}");
    let after = shares(&mut guest);
    assert_eq!(after, [1.0, 1.0], "each node takes the path nearest to it");

    nearfar(&mut guest, "rollback");
    run(&mut guest, BOTH_PATHS);
    assert_eq!(run(&mut guest, NODE_FILES), nodes_before);
    // Of paths at equal distances the kernel takes the one that it found first, which was bound again.
    assert_eq!(shares(&mut guest), before, "after rollback as before");
    let plan: Value = serde_json::from_str(&nearfar(
        &mut guest,
        "plan --override-device-node --format json",
    ))
    .unwrap();
    assert_eq!(
        plan["changes"].as_array().unwrap().len(),
        1,
        "as before there is one thing to fix: {plan}"
    );
    println!(
        "share of each node's commands on its nearest path: before {before:?}, after {after:?}"
    );
}
