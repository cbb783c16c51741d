//! Case 1's load in a guest: one disk with a path on each node, under both policies, before and after the plan.
//!
//! Counts are judged, not speeds: which path the commands took, and that nothing stays.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs, and fio; without it says so and passes.

use std::process::Command;

use crate::guests;
use nearfar_lab::shell::word;
use serde_json::Value;

/// The cells are taken on the node without a path that the kernel knows.
const SCRIPT: &str = "$NEARFAR bench io --device nvme-subsys0 --no-store --format json --samples 1 --seconds 0.3 \
                      --ramp-seconds 0 --factor cpu_node=0 --factor iopolicy=numa,round-robin --factor plan=before,after \
                      --override-device-node --seed 1 || exit 9; \
                      $NEARFAR bench io --null 1 --no-store --format json --samples 1 --seconds 0.2 --ramp-seconds 0 \
                      --factor cpu_node=near,far --factor pattern=randrw >/tmp/null.json || exit 8; \
                      grep -c memory_node /tmp/null.json >&2; ls /sys/kernel/config/nullb >&2; \
                      cat /sys/class/nvme/nvme*/numa_node /sys/class/nvme-subsystem/nvme-subsys0/iopolicy >&2; \
                      exec 7</dev/nvme0n1; $NEARFAR tasks --device nvme-subsys0 --format json >/tmp/users.json; \
                      grep -q nvme0n1 /tmp/users.json && echo the user of the disk is found >&2; exec 7<&-; \
                      pgrep -l fio >&2";

/// Kills nearfar while the controller has no driver; a later nearfar binds it again.
const KILLED: &str = "F=$(for f in /sys/bus/pci/drivers/nvme/0000*; do [ $(cat $f/numa_node) != -1 ] || basename $f; done); \
                      D=/sys/bus/pci/devices/$F; $NEARFAR bench io --device nvme-subsys0 --no-store --samples 3 --seconds 0.2 \
                      --ramp-seconds 0 --factor cpu_node=0 --factor iopolicy=numa --factor plan=after,before \
                      --override-device-node >/dev/null 2>&1 & P=$!; while kill -0 $P; do \
                      [ -e $D/driver ] || { kill -9 $P; echo killed while unbound >&2; break; }; done; wait $P; \
                      for i in $(seq 120); do $NEARFAR bench mock --samples 1 --no-store >/dev/null 2>&1; \
                      [ -e $D/driver ] && break; sleep 0.5; done; \
                      echo after the kill: $(basename $(readlink $D/driver)) $(cat $D/numa_node) $(ls $D/nvme | wc -l) >&2; exit 0";

/// Kills nearfar, its guard or fio while there is a null block device, from right after its directory is made on. Where the guard lives
/// it removes the device; otherwise the next nearfar does. After fio alone was killed the run goes on, and removes it at its end.
const NULL_KILLED: &str = "N=/sys/kernel/config/nullb; devices() { ls $N | grep -c nearfar-; }; \
                           disks() { ls /sys/block | grep -c -e nullb -e nearfar-; }; \
                           for CASE in CASES; do set -- $CASE; \
                           $NEARFAR bench io --null 0 --no-store --samples 1000 --seconds 0.2 --ramp-seconds 0 \
                           --factor cpu_node=near >/dev/null 2>&1 & P=$!; \
                           while kill -0 $P && [ $(devices) = 0 ]; do sleep 0.05; done; sleep $2; \
                           [ $1 = fio ] || kill -STOP $P; B=$(devices); \
                           case $1 in all) pkill -9 -P $P;; guard) pkill -9 -P $P -f lease-guard;; fio) pkill -9 fio; sleep 1;; esac; \
                           M=$(devices); \
                           case $1 in fio) kill -INT $P;; *) kill -9 $P;; esac; wait $P; K=$(devices); \
                           case $1 in all|guard) $NEARFAR bench mock --samples 1 --no-store >/dev/null 2>&1;; esac; \
                           for i in $(seq 120); do [ $(devices) = 0 ] && break; sleep 0.5; done; \
                           [ $1 != all ] || echo null: $CASE: $K after it >&2; \
                           echo null: $CASE: $B before, $M meanwhile, $(devices) in the end, \
                           disks: $(disks), fio: $(pgrep fio | wc -l) >&2; done";

/// A disk, and then a partition of it (2 MiB from the first on, in a table of DOS), that are swap space are not written to, also where they are named again.
/// Content is read from the disk itself; of what cannot be read (checksum N, 0 bytes) nothing is said to be unchanged.
const SWAP: &str = "D=/dev/nvme0n1; dd if=/dev/zero of=$D bs=1M count=1 2>/dev/null; \
                    content() { dd if=$1 bs=1M count=4 iflag=direct 2>/dev/null | cksum; }; \
                    refused() { S=$(content $1); $NEARFAR bench io --device $1 --factor pattern=randwrite --samples 1 \
                    --seconds 0.2 --ramp-seconds 0 --no-store --factor cpu_node=0 --destroy $1 2>&1 | grep -e swap -e never; \
                    [ \"${S%% 0}\" = \"$(content $1)\" ] && echo $1 unchanged; }; \
                    { mkswap $D; swapon $D; } >/dev/null 2>&1; grep -c ^$D /proc/swaps >&2; refused $D >&2; swapoff $D; \
                    printf '\\0\\0\\0\\0\\202\\0\\0\\0\\0\\010\\0\\0\\0\\020\\0\\0' | dd of=$D bs=1 seek=446 2>/dev/null; \
                    printf '\\125\\252' | dd of=$D bs=1 seek=510 2>/dev/null; blockdev --rereadpt $D; \
                    for i in $(seq 300); do [ -b ${D}p1 ] && break; sleep 0.2; done; \
                    { mkswap ${D}p1; swapon ${D}p1; } >/dev/null 2>&1; refused ${D}p1 >&2; refused $D >&2; swapoff ${D}p1; \
                    dd if=/dev/zero of=$D bs=1M count=1 2>/dev/null; blockdev --rereadpt $D";

/// Of [`NULL_KILLED`]: who is killed, and after how many seconds. Each takes the guest ten seconds and more.
const ALL_KILLED: [&str; 7] = [
    "alone 0",
    "alone 1",
    "all 0",
    "all 0.3",
    "all 1",
    "guard 0.6",
    "fio 1",
];
const SOME_KILLED: [&str; 2] = ["alone 1", "all 0"];

/// What scripts print in a guest of case 1, both outputs; `None`, having said why, where there can be none.
fn run(scripts: &[&str], killed: &[&str]) -> Option<(String, String)> {
    if guests::skipped() {
        return None;
    }
    if !Command::new("fio")
        .arg("--version")
        .output()
        .is_ok_and(|it| it.status.success())
    {
        println!("skipped: tools: fio is not installed");
        return None;
    }
    let cases: Vec<String> = killed.iter().map(|case| format!("'{case}'")).collect();
    let script = scripts.join("; ");
    let script = script.replace("$NEARFAR", &word(guests::NEARFAR.as_ref()));
    let script = script.replace("CASES", &cases.join(" "));
    let mut command = guests::lab_run("x86-case1", &guests::IN_TIME);
    let output = guests::output(command.args(["sh", "-c", &script]));
    let [text, errors] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(output.status.success(), "{errors}");
    Some((text, errors))
}

/// The guard of the run, or the next run, has removed the null block device.
fn check_killed(errors: &str, killed: &[&str]) {
    for case in killed {
        let left = format!("null: {case}: 1 before, 1 meanwhile, 0 in the end, disks: 0, fio: 0");
        assert!(errors.contains(&left), "{left}: {errors}");
        let is_left = format!("null: {case}: 1 after it");
        assert!(
            !case.starts_with("all") || errors.contains(&is_left),
            "{is_left}: {errors}"
        );
    }
}

/// In the slow tier.
#[test]
fn no_null_device_is_left_whoever_is_killed_at_any_moment() {
    if let Some((_, errors)) = run(&[NULL_KILLED], &ALL_KILLED) {
        check_killed(&errors, &ALL_KILLED);
    }
}

#[test]
fn the_policy_decides_which_path_commands_take_and_nothing_stays() {
    let Some((text, errors)) = run(&[SCRIPT, NULL_KILLED, SWAP, KILLED], &SOME_KILLED) else {
        return;
    };
    let run: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {errors}"));
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
    check_killed(&errors, &SOME_KILLED);
    for (device, reason) in [
        ("nvme0n1", "nvme0n1"),
        ("nvme0n1p1", "nvme0n1p1"),
        ("nvme0n1", "nvme0n1p1"),
    ] {
        let refused = format!("cannot write to /dev/{device}: /dev/{reason} is swap space");
        assert!(errors.contains(&refused), "{refused}: {errors}");
        let unchanged = format!("/dev/{device} unchanged");
        assert!(errors.contains(&unchanged), "{unchanged}: {errors}");
    }
    let never = "a device that something uses is never written to";
    assert_eq!(errors.matches(never).count(), 3, "{errors}");
    assert_eq!(errors.matches(" unchanged\n").count(), 3, "{errors}");
    assert!(errors.contains("the user of the disk is found"), "{errors}");
    assert!(errors.contains("killed while unbound"), "{errors}");
    assert!(errors.contains("after the kill: nvme -1 1"), "{errors}");
}
