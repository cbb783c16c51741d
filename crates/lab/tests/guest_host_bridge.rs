//! A host bridge that a guest of Power gets while it runs, on a node that was offline: the node comes online.
//!
//! Needs QEMU for ppc64, the cached 6.12 kernel, programs for powerpc64le and drmgr (`nearfar lab kernels get --all` fetches all of
//! them); says so and passes where they are not there.

use crate::booting::{boot, fail, prepared, tried_again};
use nearfar_lab::Arch;
use nearfar_lab::cache::Cache;
use nearfar_lab::foreign;
use nearfar_lab::guest::{Guest, HotPlug, PlugDevice};
use nearfar_machine::NodeId;

/// Node 2 has nothing, so no kernel brings it online at boot.
const MACHINE: &str = r#"
description = "powerpc, a node without CPUs, memory and host bridge"
architecture = "ppc64le"
kernel = "6.12"
distances = [[10, 40], [40, 10]]
node = [{ id = 0, cpus = 1, memory = "512M" }, { id = 2, memory = "0", online = false }]
"#;
/// Built-in commands only: each process is emulated twice.
const ASK: &str = "read nodes < /sys/devices/system/node/online; echo online $nodes; \
    for one in /sys/bus/pci/drivers/nvme/0*; do [ -e $one ] || continue; read node < $one/numa_node; \
    echo controller ${one##*/} node $node; done";

fn said(guest: &mut Guest) -> Vec<String> {
    let output = guest.output(&["/run/nearfar-lab/bin/busybox", "sh", "-c", ASK]);
    let output = output.unwrap_or_else(|error| fail(error));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_host_bridge_added_at_run_time_brings_its_node_online() {
    tried_again(host_bridge);
}

fn host_bridge() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = folder.path().join("offline-node.toml");
    std::fs::write(&machine, MACHINE).expect("a file");
    let machine = machine.to_str().expect("a path of ASCII");
    let Some(prepared) = prepared(machine, Arch::Powerpc64le) else {
        return;
    };
    if Cache::of_user()
        .ok()
        .and_then(|it| foreign::cached_drmgr(&it))
        .is_none()
    {
        println!("skipped: guests: drmgr is not cached: nearfar lab kernels get --all");
        return;
    }
    let mut guest = boot(&prepared);
    assert_eq!(said(&mut guest), ["online 0"]);
    let refused = guest.hot_plug(&HotPlug {
        device: PlugDevice::Nvme,
        node: None,
    });
    let refused = refused.expect_err("only host bridges can be plugged in");
    assert!(refused.to_string().contains("host-bridge"), "{refused}");
    guest
        .hot_plug(&HotPlug {
            device: PlugDevice::HostBridge,
            node: Some(NodeId(2)),
        })
        .unwrap_or_else(|error| fail(error));
    let after = said(&mut guest);
    println!("{}", after.join("\n"));
    assert_eq!(after, ["online 0,2", "controller 0001:00:01.0 node 2"]);
}
