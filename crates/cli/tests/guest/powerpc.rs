//! Case 1 as published, on Power: the same machine under the kernel before the change and under one after it.
//!
//! Needs QEMU for ppc64, both cached kernels and the static programs for powerpc64le (`nearfar lab kernels get
//! --all` fetches all of them); says so and passes where they are not there. `cargo test -p nearfar --test guest powerpc:: --
//! --nocapture` prints what docs/case-1.md shows.

use std::process::Command;

use crate::guests;
use crate::guests::NEARFAR;
use nearfar_lab::cache::Cache;
use nearfar_lab::{Arch, foreign, kernels};

/// What the kernel says, from its own files. Built-in commands only: under two emulations each process takes seconds.
const ASK: &str = "cd /sys/devices/system/node; read nodes < online; echo nodes online $nodes; \
    if read distances < node2/distance; then \
    read cpus < node2/cpulist; read _ _ _ kib _ < node2/meminfo; \
    echo node 2: CPUs ${cpus:-none}, $kib kB, distances $distances; fi 2> /dev/null; \
    for one in /sys/bus/pci/drivers/nvme/0*; do read node < $one/numa_node; echo controller ${one##*/}: node $node; done; ";

/// Direct reads from node 0, whose CPUs have one path at a distance of 10 and one at 40, and how many commands each controller got.
const LOAD: &str = "busybox=/run/nearfar-lab/bin/busybox; trace=/sys/kernel/tracing; \
    $busybox mount -t tracefs tracefs $trace 2> /dev/null; \
    for one in /sys/class/nvme-subsystem/nvme-subsys*; do echo numa > $one/iopolicy; done; \
    echo 1 > $trace/events/nvme/nvme_setup_cmd/enable; \
    $busybox dd if=$(echo /dev/nvme*n1) of=/dev/null bs=4096 count=100 iflag=direct 2> /dev/null; \
    echo 0 > $trace/events/nvme/nvme_setup_cmd/enable; \
    for one in /sys/class/nvme/nvme?; do read address < $one/address; \
    echo commands of $address: $($busybox grep -c \"setup_cmd: ${one##*/}: disk=\" $trace/trace); done; ";

/// With more than one thread nearfar was seen to die here: the user-mode QEMU that runs it took a segmentation fault while two
/// threads ended. On one CPU nearfar starts none.
const ONE_CPU: &str = "/run/nearfar-lab/bin/busybox taskset 1";

/// Why this cannot be shown here.
fn missing() -> Option<String> {
    let cache = Cache::of_user().map_err(|error| error.to_string());
    let all = cache.and_then(|cache| {
        for series in ["6.1", "6.12"] {
            kernels::find_in(&cache, Some(series), Arch::Powerpc64le)
                .map_err(|error| error.to_string())?;
        }
        nearfar_lab::qemu::Qemu::find(Arch::Powerpc64le).map_err(|error| error.to_string())?;
        foreign::cached(&cache, Arch::Powerpc64le)
            .ok_or_else(|| "no static programs for powerpc64le".to_owned())
    });
    all.err()
}

#[test]
fn the_kernel_change_brings_the_node_of_the_second_host_bridge_online() {
    if let Some(why) = missing() {
        println!("skipped: guests: {why}");
        return;
    }
    let script = format!("{ASK}{LOAD}{ONE_CPU} '{NEARFAR}' topo");
    let sides = [
        "ab",
        "--a",
        "kernel=6.1",
        "--b",
        "kernel=6.12",
        "--machine",
        "powerpc-case1",
        "--runs",
        "1",
    ];
    let mut command = Command::new(NEARFAR);
    command.env(
        "NEARFAR_STORE",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/guests.db"),
    );
    command.args(sides).args(guests::IN_TIME);
    let output =
        guests::output(command.args(["--scale", "memory=512M", "--", "sh", "-c", &script]));
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{text}{errors}");
    assert!(output.status.success(), "{errors}");
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for says in [
        "A nodes online 0",
        "B nodes online 0,2",
        "B node 2: CPUs none, 0 kB, distances 40 10",
        "A controller 0001:00:01.0: node -1",
        "B controller 0001:00:01.0: node 2",
        "controller 0002:00:01.0: node 0",
        // Before, the controller on no node seems as near as node 0's own; after it, it is at 40.
        "A commands of 0001:00:01.0: 100",
        "A commands of 0002:00:01.0: 0",
        "B commands of 0001:00:01.0: 0",
        "B commands of 0002:00:01.0: 100",
        "A kernel=6.1 1 0",
        "B kernel=6.12 1 0",
    ] {
        assert!(
            lines.iter().any(|line| line == says),
            "the answer does not say {says:?}: {text}"
        );
    }
    // nearfar's own words for the same.
    for says in ["A 2 offline", "B 2 online 0 none none", "B 2 40 10"] {
        assert!(
            lines.iter().any(|line| line.starts_with(says)),
            "topo does not say {says:?}: {text}"
        );
    }
}
