//! The gallery's measured machines: a guest of each, in simulated time, has the latencies and transfers of its description.

use std::process::Command;

use nearfar_machine::{LineDelay, Machine};
use nearfar_sources::{Request, Want, read};
use serde_json::Value;

use crate::guests::{self, NEARFAR};

const MEASURE: [&str; 15] = [
    "bench",
    "latency",
    "--from",
    "0",
    "--no-store",
    "--format",
    "json",
    "--what",
    "latency,transfer",
    "--buffer",
    "64M",
    "--samples",
    "7",
    "--budget",
    "4",
];

fn measured(machine: &str) -> Value {
    let mut command = Command::new(NEARFAR);
    command.args(["lab", "run", "--arch", "x86_64", "--machine", machine]);
    command.args([
        "--scale",
        "cpus=2,memory=256M",
        "--time",
        "simulated",
        "--delay",
        "auto",
    ]);
    command
        .args(guests::IN_TIME)
        .args(["--", NEARFAR])
        .args(MEASURE);
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{machine}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Nanoseconds one way of a pair that `bench latency` measured.
fn described(transfer: &LineDelay, pair: &Value) -> u32 {
    let mut by_distance = transfer.by_distance.iter();
    match pair["nearness"].as_str().unwrap() {
        "cache" => transfer
            .same_cache_ns
            .unwrap_or(transfer.by_node.same_node_ns),
        "node" => transfer.by_node.same_node_ns,
        _ => by_distance
            .rfind(|it| u64::from(it.distance.0) <= pair["distance"].as_u64().unwrap())
            .map_or(transfer.by_node.other_node_ns, |it| it.ns),
    }
}

#[test]
fn each_measured_machine_is_as_fast_as_its_description_says() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let described_machines = nearfar_sources::gallery().into_iter().filter_map(|entry| {
        let machine: Machine = read(&Request::source(entry.name, Want::all())).unwrap();
        let timing = machine.timing.clone()?;
        Some((entry.name, timing))
    });
    let mut machines = 0;
    for (name, timing) in described_machines {
        let answer = measured(name);
        let (mut pairs, mut transfers) = (0, 0);
        for pair in answer["latency"]["pairs"].as_array().unwrap() {
            let node = |key: &str| serde_json::from_value(pair[key].clone()).unwrap();
            let Some(ns) = timing.latency_ns(node("cpu_node"), node("memory_node")) else {
                continue;
            };
            let found = pair["median_ns"].as_f64().unwrap();
            println!("{name}: latency {ns} ns: {found}");
            assert!((found / f64::from(ns) - 1.0).abs() < 0.02, "{name}: {pair}");
            pairs += 1;
        }
        for pair in answer["transfer"]["pairs"].as_array().unwrap() {
            let Some(transfer) = &timing.transfer else {
                break;
            };
            let ns = described(transfer, pair);
            let found = pair["round_trip_ns"]["median"].as_f64().unwrap() / 2.0;
            println!("{name}: transfer {ns} ns: {found}");
            assert!((found / f64::from(ns) - 1.0).abs() < 0.05, "{name}: {pair}");
            transfers += 1;
        }
        assert!(
            pairs > 0 && (transfers > 0 || timing.transfer.is_none()),
            "{name}: {answer}"
        );
        machines += 1;
    }
    assert!(machines >= 6, "{machines}");
}
