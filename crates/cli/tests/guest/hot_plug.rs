//! Devices that a guest gets while it runs: an NVMe controller, and a bridge with another one behind it, as topo and audit see them;
//! with delays, which end for the time of a plug.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes.

use std::collections::BTreeMap;

use crate::guests;
use nearfar_lab::{Arch, delay, qemu::Qemu};
use serde_json::Value;

/// The controller on node 1 first, then the bridge on node 0; what topo says after each, a line each.
const SCRIPT: &str = "topo() { \"$0\" topo --format json | tr -d '\\n'; echo; }; topo; \
    nearfar-lab plug nvme node=1 && topo && nearfar-lab plug bridge node=0 && topo && \"$0\" audit";
/// PCI classes with their programming interface: NVMe, and a bridge to another PCI bus.
const NVME: u64 = 0x01_0802;
const BRIDGE: u64 = 0x06_0400;

/// Node and parent of each device of this class.
fn devices(topo: &Value, class: u64) -> BTreeMap<&str, (u64, &str)> {
    let of_class = topo["pci"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|device| device["class"] == class);
    let told = of_class.map(|device| {
        let node = device["node"]
            .as_u64()
            .unwrap_or_else(|| panic!("no node: {device}"));
        (
            device["address"].as_str().unwrap(),
            (node, device["parent"].as_str().unwrap_or("none")),
        )
    });
    told.collect()
}

/// The one device that is in the second only.
fn new<'a>(
    before: &BTreeMap<&str, (u64, &'a str)>,
    after: &BTreeMap<&'a str, (u64, &'a str)>,
) -> (&'a str, (u64, &'a str)) {
    let mut all = after
        .iter()
        .filter(|(address, _)| !before.contains_key(*address));
    let (address, place) = all.next().expect("a new device");
    assert_eq!(all.next(), None);
    (address, *place)
}

/// Plugs both and checks what nearfar sees of them.
fn plug_and_look(options: &[&str]) {
    let scale = ["--scale", "cpus=2,memory=512M"];
    let said = guests::script("two-node", &[&scale, options].concat(), SCRIPT);
    let topo: Vec<Value> = said
        .lines()
        .take(3)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [start, controller, bridge] = &topo[..] else {
        panic!("{said}")
    };

    assert!(devices(start, NVME).is_empty());
    let (address, (node, _)) = new(&devices(start, NVME), &devices(controller, NVME));
    assert_eq!(node, 1, "the controller is where it was plugged in");
    assert_eq!(controller["nvme"][0]["controllers"][0]["device"], address);
    assert_eq!(controller["nvme"][0]["controllers"][0]["node"], 1);

    let (bridge_address, (node, _)) = new(&devices(controller, BRIDGE), &devices(bridge, BRIDGE));
    assert_eq!(node, 0);
    let (behind, place) = new(&devices(controller, NVME), &devices(bridge, NVME));
    assert_eq!(
        place,
        (0, bridge_address),
        "the second controller is behind the bridge"
    );
    let (_, audit) = said.split_once("Findings").unwrap();
    for device in [address, behind] {
        assert!(
            audit.contains(&format!("{device} (nvme): ")),
            "the audit does not name {device}: {audit}"
        );
    }
}

#[test]
fn a_controller_and_a_bridge_that_are_plugged_in_appear_on_their_nodes() {
    if guests::skipped() {
        return;
    }
    plug_and_look(&[]);
}

#[test]
fn devices_can_be_plugged_in_while_far_memory_is_slow() {
    if guests::skipped() {
        return;
    }
    if let Err(error) = Qemu::find(Arch::X86_64).and_then(|qemu| delay::find_plugin(&qemu)) {
        println!("skipped: guests: {error}");
        return;
    }
    plug_and_look(&["--delay", "near=100,far=400"]);
}
