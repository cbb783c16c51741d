//! The unit `tools/systemd/nearfar-prefer.service` as it is installed, under this machine's own systemd in a guest with two nodes: what the
//! unit forbids the service must not be what it needs.
//!
//! `cargo test -p nearfar --test guest unit:: -- --nocapture` prints what the guest did, and what systemd said.

use std::path::Path;

use crate::guests::{script, skipped};

const UNIT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tools/systemd/nearfar-prefer.service"
);

/// Where distributions have it.
fn systemd() -> Option<&'static str> {
    let places = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
    let place = places.into_iter().find(|place| Path::new(place).is_file());
    if place.is_none() {
        println!(
            "skipped: tools: there is no systemd here ({})",
            places.join(", ")
        );
    }
    place
}

#[test]
fn the_unit_starts_the_service_reloads_it_starts_it_again_and_ends_it() {
    let Some(systemd) = systemd() else { return };
    if skipped() {
        return;
    }
    let text = format!(
        "UNIT='{UNIT}' SYSTEMD={systemd}\n{}",
        include_str!("../scripts/unit.sh")
    );
    let text = script("two-node", &["--scale", "cpus=2,memory=1G"], &text);

    // In this order. The script ends where something it waits for does not come.
    let mut rest = text.as_str();
    for expected in [
        "before: 0-3\n",
        "start nearfar-prefer ended with 0\nafter its start: active\n",
        "kept: 2-3\n",
        "memory: N1=\n",
        // CAP_SYS_PTRACE, CAP_SYS_NICE and CAP_PERFMON, the bits 19, 23 and 38; filtered system calls.
        "CapBnd:\t0000004000880000\nNoNewPrivs:\t1\nSeccomp:\t2\n",
        "status nearfar-prefer ended with 0\n",
        "reload nearfar-prefer ended with 0\n",
        "reloaded: 0-1\n",
        "memory-reloaded: N0=\n",
        "killed: 0-3\n",
        "restarted: 0-1\nby then: 1 restarts, running\n",
        "stop nearfar-prefer ended with 0\n",
        "stopped: 0-3\nafter its end: inactive, success\n",
        "start nearfar-prefer ended with 1\nwith a fault: failed, status 2\n",
        "said: card: near eth0",
    ] {
        rest = rest
            .split_once(expected)
            .unwrap_or_else(|| panic!("no {expected:?} in\n{rest}"))
            .1;
    }
    // The guard gave back what the killed service had taken, before the next one could.
    assert!(!text.contains("was killed"), "{text}");
    assert!(!text.contains("is left as it is"), "{text}");
}
