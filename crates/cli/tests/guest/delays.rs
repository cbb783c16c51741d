//! Far memory that is far, end to end: a guest of four nodes in which distances are delays. Counted in each guest, and, in simulated
//! time, measured by `bench latency` and paid by a command whose memory is misplaced.
//!
//! Needs QEMU 8.2.4 or newer, a cached x86-64 kernel and the plugin that `cargo build` makes; without them it says so and passes.
//! `cargo test -p nearfar --test guest delays:: -- --nocapture` prints the figures.

use std::collections::BTreeSet;
use std::process::Command;

use crate::guests;
use crate::guests::NEARFAR;
use nearfar_lab::cache::Cache;
use nearfar_lab::qemu::Qemu;
use nearfar_lab::{Arch, LabError, delay, foreign, kernels};
use serde_json::{Value, json};

/// What `--delay auto` makes of the distances of the machine `kunpeng`, and of transfers within a node and between nodes.
const ASKED_NS: [(u64, f64); 5] = [
    (10, 400.0),
    (16, 640.0),
    (25, 1000.0),
    (32, 1280.0),
    (33, 1320.0),
];
const DISTANCES: [[u64; 4]; 4] = [
    [10, 16, 32, 33],
    [16, 10, 25, 32],
    [32, 25, 10, 16],
    [33, 32, 16, 10],
];
const TRANSFER_NS: (f64, f64) = (500.0, 2000.0);
/// A command that does little but touch more memory than the modelled cache holds, in turns on these nodes.
const MISPLACED: &str = "for node in $NODES; do echo -n \"$node \"; LC_ALL=C \
    numactl --cpunodebind=0 --membind=$node dd if=/dev/zero of=/dev/null bs=16M count=6 2>&1 | grep copied; done";
const NO_NUMACTL: &str = "no numactl";
/// Lines that one such command writes.
const MISPLACED_LINES: u64 = 6 * (16 << 20) / 64;

/// Why this test cannot run here.
fn lacks() -> Option<String> {
    if Arch::host() != Some(Arch::X86_64) {
        return Some(
            "the guest runs this machine's own programs, which are not x86-64's".to_owned(),
        );
    }
    let look = || -> Result<(), LabError> {
        let cache = Cache::of_user()?;
        kernels::find_in(&cache, None, Arch::X86_64)?;
        foreign::busybox(&cache, Arch::X86_64)?;
        delay::find_plugin(&Qemu::find(Arch::X86_64)?).map(drop)
    };
    look().err().map(|error| error.to_string())
}

/// Runs `script` in a guest with delays; its standard output, and the counts.
fn in_guest(guest: &str, delay: &str, script: &str) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts.json");
    let mut command = Command::new(NEARFAR);
    command.env(
        "NEARFAR_STORE",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/guests.db"),
    );
    command
        .args(["lab", "run", "--arch", "x86_64", "--machine"])
        .args(guest.split(' '))
        .args(guests::IN_TIME)
        .args(["--delay", delay, "--counts"])
        .arg(&counts)
        .args(["--", "sh", "-c", script]);
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let counts = serde_json::from_slice(&std::fs::read(&counts).unwrap()).unwrap();
    (String::from_utf8(output.stdout).unwrap(), counts)
}

/// What an access from one node to another's memory was asked to take.
fn asked_ns(from: u64, to: u64) -> f64 {
    let distance = DISTANCES[from as usize][to as usize];
    ASKED_NS.iter().find(|(of, _)| *of == distance).unwrap().1
}

/// Counts agree with each other and with the delays that were asked for.
fn check_counts(counts: &Value) {
    assert_eq!(counts["schema"], "lab-counts/1");
    assert_eq!(counts["counting"], true);
    assert_eq!(
        counts["emulation"]["delays"]["pairs"][0],
        json!({ "cpu_node": 0, "memory_node": 0, "distance": 10, "delay_ns": 400 })
    );
    let vcpus = counts["vcpus"].as_array().unwrap();
    assert_eq!(
        vcpus
            .iter()
            .map(|vcpu| vcpu["node"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [0, 0, 1, 1, 2, 2, 3, 3]
    );
    for vcpu in vcpus {
        let count = |key: &str| vcpu[key].as_u64().unwrap() as f64;
        let own = vcpu["node"].as_u64().unwrap();
        let misses: Vec<f64> = (0..4)
            .map(|node| vcpu["misses"][node.to_string()].as_u64().unwrap() as f64)
            .collect();
        let (same, other) = (count("transfers_same_node"), count("transfers_other_node"));
        let paid = count("near") + count("far") + same + other;
        // The guest is still up while they are read, so a vCPU may be between two of its counters.
        let agree = |a: f64, b: f64| (a - b).abs() <= 10.0 + b / 1000.0;
        assert!(agree(count("accesses"), count("hits") + paid), "{vcpu}");
        assert!(agree(count("near"), misses[own as usize]), "{vcpu}");
        assert!(
            agree(count("near") + count("far"), misses.iter().sum()),
            "{vcpu}"
        );
        let from = vcpu["transfers"].as_object().unwrap();
        let from = from.values().map(|lines| lines.as_u64().unwrap() as f64);
        let other_caches = other + same - count("transfers_same_cache");
        assert!(agree(other_caches, from.sum()), "{vcpu}");
        let memory: f64 = (0..4)
            .map(|node| misses[node as usize] * asked_ns(own, node))
            .sum();
        let due = memory + same * TRANSFER_NS.0 + other * TRANSFER_NS.1;
        assert!(
            (count("delay_ns") - due).abs() <= 100_000.0 + due / 100.0,
            "due {due}: {vcpu}"
        );
        assert!(count("near") > 0.0 && count("far") > 0.0, "{vcpu}");
    }
}

#[test]
fn lines_that_pass_between_cpus_are_counted_by_function_and_line() {
    if let Some(why) = lacks() {
        println!("skipped: guests: {why}");
        return;
    }
    let job = format!(
        "{NEARFAR} bench tags --no-store --samples 2 --format json --factor policy=bitmap --factor distance=near --factor depth=512"
    );
    let script = format!(
        "{NEARFAR} trace lines --locks --format json --output /tmp/lines.json -- {job} > /dev/null; cat /tmp/lines.json"
    );
    let machine =
        "two-node --time simulated --scale cpus=2,memory=512M --append clearcpuid=hypervisor";
    let (text, counts) = in_guest(machine, "auto", &script);
    let lines: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(lines["schema"], "trace-lines/1");
    let count = |value: &Value, key: &str| value[key].as_u64().unwrap();
    let all = |key: &str| {
        let vcpus = counts["vcpus"].as_array().unwrap();
        vcpus.iter().map(|vcpu| count(vcpu, key)).sum::<u64>()
    };
    for (key, in_counts) in [
        ("same_node", "transfers_same_node"),
        ("other_node", "transfers_other_node"),
    ] {
        let of = |list: &str| {
            let rows = lines[list].as_array().unwrap();
            rows.iter().map(|row| count(row, key)).sum::<u64>()
        };
        let (sum, counted) = (count(&lines, key), all(in_counts));
        println!(
            "{key}: {sum} of {counted}, {} by function, {} by line",
            of("functions"),
            of("lines")
        );
        assert!(0 < of("lines") && of("lines") <= sum && of("functions") <= sum && sum <= counted);
        // What took least has no row.
        assert!(of("functions") * 2 > sum, "{key}");
    }
    assert_eq!(count(&lines, "lost"), 0);
    let functions = lines["functions"].as_array().unwrap();
    let named = |file: Value, part: &str| {
        let mut names = functions.iter().filter(|it| it["file"] == file);
        names.any(|it| it["name"].as_str().unwrap().contains(part))
    };
    assert!(named(json!(NEARFAR), "nearfar_tags::"), "{functions:?}");
    assert!(named(json!("[kernel]"), "try_to_wake_up"), "{functions:?}");
    let mut lines = lines["lines"].as_array().unwrap().iter();
    let has_lock = |line: &Value| line["locks"][0]["call_site"].is_string();
    assert!(lines.any(has_lock), "no line has a lock");
}

#[test]
fn what_two_kernels_did_is_compared_beside_what_they_answered() {
    if let Some(why) = lacks() {
        println!("skipped: guests: {why}");
        return;
    }
    let options = "ab --a append=numa=fake=1U --b append=numa=fake=2U --trace --runs 1 --no-store --format json \
                   --machine two-node --scale cpus=2,memory=512M --time simulated --delay auto \
                   --append clearcpuid=hypervisor --value state --";
    let load = "bench scale --no-store --format json --samples 1 --seconds 0.02 --warm-up 0.005 --trace-seconds 0 \
                --factor workload=lru --factor tasks=4";
    let mut command = Command::new(NEARFAR);
    command.args(options.split_whitespace()).arg(NEARFAR);
    command.args(load.split_whitespace());
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["values"][0]["a"], json!(["complete"]));
    for side in ["a", "b"] {
        let kernel = &answer[side]["runs"][0]["kernel"];
        assert_eq!(kernel["samples"], 1, "{kernel}");
        let done = kernel["activities"].as_array().unwrap();
        let has = |kind: &str, name: &str, amount: &str| {
            let mut of_kind = done.iter().filter(|it| it["kind"] == kind);
            let is_named = |it: &Value| it["name"].as_str().unwrap().contains(name);
            of_kind.any(|it| is_named(it) && it[amount].as_f64().unwrap() > 0.0)
        };
        // The load changes a node's counts of pages on all CPUs.
        assert!(has("line_transfers", "page_state", "time_s"), "{done:?}");
        let unknown = kernel["unknown_reasons"].as_object().unwrap();
        let unknown = Vec::from_iter(unknown.keys());
        assert_eq!(unknown, ["nvme_commands"], "{kernel}");
        assert!(has("interrupts", "LOC, node 0", "count"), "{done:?}");
        assert!(has("cpu_time", ", node 0", "time_s"), "{done:?}");
        assert!(has("counters", "pgfault", "count"), "{done:?}");
    }
    let kernel = &answer["kernel"];
    assert!(kernel["compared_numbers"].as_u64().unwrap() > 0, "{kernel}");
    assert_eq!(kernel["likely_cause"], Value::Null, "of one run a side");
}

/// What a guest of the machine `kunpeng` answered.
struct Measured {
    survey: Value,
    /// What the commands with misplaced memory printed; `None` without numactl.
    commands: Option<String>,
    counts: Value,
}

/// One guest, whose counts are checked: the latencies of all pairs of nodes, and the command with memory of these nodes.
fn measure(options: &str, delay: &str, samples: &str, nodes: &str) -> Measured {
    let bench = format!("'{NEARFAR}' bench latency --what latency --format json {samples}");
    let script = format!(
        "NODES='{nodes}'; {bench} && if command -v numactl > /dev/null; then {MISPLACED}; else echo {NO_NUMACTL}; fi"
    );
    let guest = format!("kunpeng --scale cpus=2,memory=512M{options}");
    let (text, counts) = in_guest(&guest, delay, &script);
    let mut answers = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let survey = answers.next().unwrap().unwrap();
    assert_eq!(
        survey["emulation"]["delays"]["pairs"][0],
        json!({ "cpu_node": 0, "memory_node": 0, "distance": 10, "delay_ns": 400 })
    );
    check_counts(&counts);
    let commands = text[answers.byte_offset()..].to_owned();
    let has_numactl = !commands.contains(NO_NUMACTL);
    if !has_numactl {
        println!("skipped: tools: numactl is not installed, so no memory can be misplaced");
    }
    Measured {
        survey,
        commands: has_numactl.then_some(commands),
        counts,
    }
}

/// The delays are those that the plugin says it added; what a guest measures of them is in the slow tier.
#[test]
fn accesses_are_counted_by_node_with_the_delays_that_were_asked_for() {
    if let Some(reason) = lacks() {
        println!("skipped: guests: {reason}");
        return;
    }
    let measured = measure("", "auto", "--samples 2 --budget 1", "3");
    let pairs = measured.survey["latency"]["pairs"].as_array().unwrap();
    let nodes = |pair: &Value| (pair["cpu_node"].as_u64(), pair["memory_node"].as_u64());
    let all = (0..4).flat_map(|from| (0..4).map(move |to| (Some(from), Some(to))));
    assert_eq!(
        pairs.iter().map(nodes).collect::<BTreeSet<_>>(),
        all.collect()
    );
    if measured.commands.is_none() {
        return;
    }
    // `bench latency` reads as much on node 2 as on node 3.
    let vcpus = measured.counts["vcpus"].as_array().unwrap();
    let misses = |node: &str| -> u64 {
        let own = vcpus.iter().filter(|vcpu| vcpu["node"] == 0);
        own.map(|vcpu| vcpu["misses"][node].as_u64().unwrap()).sum()
    };
    let (far, other) = (misses("3"), misses("2"));
    println!("of node 0: {far} misses on node 3, {other} on node 2, {MISPLACED_LINES} misplaced");
    assert!(far >= other + MISPLACED_LINES * 9 / 10, "{far} {other}");
}

/// In simulated time, whatever else the host does: each pair of nodes takes its delay, and misplaced memory what its lines take.
#[test]
fn distances_are_delays_that_are_measured_paid_and_counted() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let options = " --time simulated";
    let measured = measure(options, "scale=4", "--samples 15 --budget 3", "0 3");
    let pairs = measured.survey["latency"]["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 16);
    for pair in pairs {
        let node = |key: &str| pair[key].as_u64().unwrap();
        let (from, to) = (node("cpu_node"), node("memory_node"));
        let (asked, median) = (asked_ns(from, to), pair["median_ns"].as_f64().unwrap());
        println!("from {from} to {to}: asked {asked} ns, median {median} ns");
        assert!((asked..asked * 1.02).contains(&median), "{pair}");
    }
    let Some(commands) = measured.commands else {
        return;
    };
    // 3 100663296 bytes (101 MB, 96 MiB) copied, 1.99 s, 50.6 MB/s
    let seconds = |line: &str| -> f64 {
        let (_, after) = line.split_once("copied, ").unwrap();
        after.split(' ').next().unwrap().parse().unwrap()
    };
    let lines: Vec<&str> = commands
        .lines()
        .filter(|it| it.contains("copied"))
        .collect();
    let [near, far] = lines[..] else {
        panic!("{commands}");
    };
    let (near_s, far_s) = (seconds(near), seconds(far));
    let due_s = MISPLACED_LINES as f64 * (asked_ns(0, 3) - asked_ns(0, 0)) / 1e9;
    println!(
        "near {near_s} s, far {far_s} s: {} s more, due {due_s}",
        far_s - near_s
    );
    assert!(((far_s - near_s) / due_s - 1.0).abs() < 0.1, "{commands}");
}

/// Reads of each node by the path of its own node, then as many in turns by both paths. CPU 0 is node 0's, CPU 1 node 1's.
const READS: u64 = 200;
const READ_BY_PATHS: &str = "for policy in numa round-robin; do echo $policy > /sys/class/nvme-subsystem/nvme-subsys0/iopolicy; \
    for cpu in 0 1; do taskset -c $cpu dd if=/dev/nvme0n1 of=/dev/null bs=4k count=$READS iflag=direct 2> /dev/null || exit 1; \
    done; done";

#[test]
fn submissions_to_nvme_controllers_are_delayed_and_counted_by_node() {
    if let Some(reason) = lacks() {
        println!("skipped: guests: {reason}");
        return;
    }
    let (near_ns, far_ns) = (1000, 1_000_000);
    let delay = format!("near=0,far=0,transfer=0/0,device={near_ns}/{far_ns}");
    let script = format!("READS={READS}; {READ_BY_PATHS}");
    let guest = "nvme-two-controllers --scale cpus=1,memory=512M --cold";
    let (_, counts) = in_guest(guest, &delay, &script);
    let device = &counts["emulation"]["delays"]["device"];
    assert_eq!(
        *device,
        json!({ "same_node_ns": near_ns, "other_node_ns": far_ns })
    );
    for vcpu in counts["vcpus"].as_array().unwrap() {
        let count = |key: &str| vcpu[key].as_u64().unwrap();
        let (near, far) = (count("doorbells_near"), count("doorbells_far"));
        println!("node {}: {near} near, {far} far", vcpu["node"]);
        // One submission a read. The turns may begin with either path, and a kernel process may read in between.
        assert!((READS * 3 / 2 - 2..READS * 2).contains(&near), "{vcpu}");
        assert!((READS / 2 - 2..READS).contains(&far), "{vcpu}");
        assert_eq!(count("delay_ns"), near * near_ns + far * far_ns);
    }
}
