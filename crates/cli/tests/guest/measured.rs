//! The gallery's measured machines: a guest of each, in simulated time, has the latencies and transfers of its description.

use nearfar_machine::{Distance, LineDelay};
use nearfar_sources::{Request, Want, read};
use serde_json::Value;

use crate::guests;

const OPTIONS: [&str; 8] = [
    "--scale",
    "cpus=2,memory=256M",
    "--time",
    "simulated",
    "--delay",
    "auto",
    // Programs of this machine run in the guest.
    "--arch",
    "x86_64",
];
const MEASURE: &str = "$0 bench latency --what latency,transfer --from 0 --no-store --format json \
                       --buffer 64M --samples 7 --budget 4";

/// Nanoseconds one way of a pair that `bench latency` measured.
fn described(transfer: &LineDelay, pair: &Value) -> u32 {
    let [same_cache, same_node, other_node] = transfer.by_class();
    match pair["nearness"].as_str().unwrap() {
        "cache" => same_cache,
        "node" => same_node,
        _ => {
            let distance: Distance = serde_json::from_value(pair["distance"].clone()).unwrap();
            transfer.at(distance).unwrap_or(other_node)
        }
    }
}

#[test]
fn each_measured_machine_is_as_fast_as_its_description_says() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let described_machines = nearfar_sources::gallery().into_iter().filter_map(|entry| {
        let machine = read(&Request::source(entry.name, Want::all())).unwrap();
        Some((entry.name, machine.timing?))
    });
    let mut machines = 0;
    for (name, timing) in described_machines {
        let answer = guests::script(name, &OPTIONS, MEASURE);
        let answer: Value = serde_json::from_str(&answer).unwrap();
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
