//! Case 1's load in a guest: one disk with a path on each node, under both policies, before and after the plan.
//!
//! Counts are judged, not speeds: which path the commands took, and that nothing stays.
//!
//! Needs what crates/cli/tests/guest_leftovers.rs needs, and fio; without it says so and passes.

mod guests;

use std::process::Command;

use serde_json::Value;

/// The cells are taken on the node without a path that the kernel knows.
const SCRIPT: &str = "$NEARFAR bench io --device nvme-subsys0 --no-store --format json --samples 1 --seconds 0.3 \
                      --ramp-seconds 0 --factor cpu_node=0 --factor iopolicy=numa,round-robin --factor plan=before,after \
                      --override-device-node --seed 1 || exit 9; \
                      $NEARFAR bench io --null 1 --no-store --format json --samples 1 --seconds 0.2 --ramp-seconds 0 \
                      --factor cpu_node=near,far --factor pattern=randrw >/tmp/null.json || exit 8; \
                      grep -c memory_node /tmp/null.json >&2; ls /sys/kernel/config/nullb >&2; \
                      cat /sys/class/nvme/nvme*/numa_node /sys/class/nvme-subsystem/nvme-subsys0/iopolicy >&2; \
                      pgrep -l fio >&2";

/// Kills nearfar while the controller has no driver; a later nearfar binds it again.
const KILLED: &str = "F=$(for f in /sys/bus/pci/drivers/nvme/0000*; do [ $(cat $f/numa_node) != -1 ] || basename $f; done); \
                      D=/sys/bus/pci/devices/$F; $NEARFAR bench io --device nvme-subsys0 --no-store --samples 3 --seconds 0.2 \
                      --ramp-seconds 0 --factor cpu_node=0 --factor iopolicy=numa --factor plan=after,before \
                      --override-device-node >/dev/null 2>&1 & P=$!; while kill -0 $P; do \
                      [ -e $D/driver ] || { kill -9 $P; echo killed while unbound >&2; break; }; done; wait $P; \
                      for i in $(seq 60); do $NEARFAR bench mock --samples 1 --no-store >/dev/null 2>&1; \
                      [ -e $D/driver ] && break; sleep 0.5; done; \
                      echo after the kill: $(basename $(readlink $D/driver)) $(cat $D/numa_node) $(ls $D/nvme | wc -l) >&2; exit 0";

/// Kills nearfar while it has a null block device: alone, when its guard removes the device; and with its guard and fio, when a later
/// nearfar does.
const NULL_KILLED: &str = "N=/sys/kernel/config/nullb; devices() { ls $N | grep -c nearfar-; }; for WHAT in alone all; do \
                           $NEARFAR bench io --null 0 --no-store --samples 1000 --seconds 0.2 --ramp-seconds 0 \
                           --factor cpu_node=near >/dev/null 2>&1 & P=$!; \
                           while kill -0 $P && [ $(devices) = 0 ]; do sleep 0.05; done; sleep 0.4; kill -STOP $P; \
                           [ $WHAT = alone ] || pkill -9 -P $P; echo $WHAT: $(devices) before the kill >&2; \
                           kill -9 $P; wait $P; if [ $WHAT = all ]; then echo $WHAT: $(devices) after it >&2; \
                           $NEARFAR bench mock --samples 1 --no-store >/dev/null 2>&1; fi; \
                           for i in $(seq 60); do [ $(devices) = 0 ] && break; sleep 0.5; done; \
                           echo $WHAT: $(devices) in the end, fio: $(pgrep fio | wc -l) >&2; done";

#[test]
fn the_policy_decides_which_path_commands_take_and_nothing_stays() {
    if guests::skipped() {
        return;
    }
    if !Command::new("fio")
        .arg("--version")
        .output()
        .is_ok_and(|it| it.status.success())
    {
        println!("skipped: tools: fio is not installed");
        return;
    }
    let _turn = guests::turn();
    let mut command = guests::lab_run("x86-case1", &guests::IN_TIME);
    let script = format!("{SCRIPT}; {NULL_KILLED}; {KILLED}").replace("$NEARFAR", guests::NEARFAR);
    command.args(["sh", "-c", &script]);
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let run: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(run["state"], "complete", "{errors}");
    let share = |policy: &str, plan: &str| {
        let cells = run["summary"].as_array().unwrap();
        let is_it = |it: &&Value| it["cell"]["iopolicy"] == policy && it["cell"]["plan"] == plan;
        let cell = cells.iter().find(is_it).unwrap();
        let metrics = cell["metrics"].as_array().unwrap();
        let of = |name: &str| metrics.iter().find(|it| it["metric"] == name).unwrap();
        assert!(of("iops")["median"].as_f64().unwrap() > 0.0, "{cell}");
        of("nearest_path_share")["median"].as_f64().unwrap()
    };
    // With a node for each controller the kernel takes the near one; before, both are as near to node 0 for it.
    assert_eq!(share("numa", "after"), 1.0);
    for plan in ["before", "after"] {
        let share = share("round-robin", plan);
        assert!((0.45..0.55).contains(&share), "{plan}: {share}");
    }
    // The controller is on no node again, the policy is as before, and there is no null block device and no process.
    let (_, left) = errors.split_once("features\n").unwrap_or(("", &errors));
    let lines: Vec<&str> = left.lines().map(str::trim).collect();
    assert!(lines.contains(&"-1") && lines.contains(&"numa"), "{errors}");
    assert!(
        !lines
            .iter()
            .any(|it| it.starts_with("nearfar-") || it.ends_with(" fio")),
        "{errors}"
    );
    let devices = [
        "alone: 1 before the kill",
        "alone: 0 in the end, fio: 0",
        "all: 1 before the kill",
        "all: 1 after it",
        "all: 0 in the end, fio: 0",
    ];
    for devices in devices {
        assert!(errors.contains(devices), "{devices}: {errors}");
    }
    assert!(errors.contains("killed while unbound"), "{errors}");
    assert!(errors.contains("after the kill: nvme -1 1"), "{errors}");
}
