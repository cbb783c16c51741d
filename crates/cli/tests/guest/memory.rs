//! A memory system in nanoseconds, end to end: a described machine with two last-level caches in each node, measured by `bench latency`
//! in a guest of it. Latency, bandwidth and transfers are those of the description, whatever else the host does.

use std::path::Path;

use crate::guests;
use serde_json::{Value, json};

/// A hit takes little: between two blocks of a stream, and between 256 loads of a chase, a build without optimisation comes back to some
/// forty lines of its own, which the stream has driven out of the first level.
const MACHINE: &str = r#"
distances = [[10, 20], [20, 10]]
[[node]]
cpus = 3
memory = "512M"
package = 0
[[node]]
cpus = 3
memory = "512M"
package = 1
[[cache]]
level = 3
cpus = ["0-1", "2", "3-4", "5"]
[timing]
latency = [[80, 140], [140, 80]]
cache = "1M/16/5"
transfer = "50/90/190"
bandwidth = 20
link = 10
stream = 12
instruction = 0.1
sources = ["a machine of this test"]
"#;
/// Loads of one CPU, lines handed over, then streams of all CPUs of node 0; and all that again into a snapshot.
const MEASURE: &str = "latency='bench latency --from 0 --no-store --format json';
    $0 $latency --what latency --what transfer --all-cpus --buffer 64M --samples 7 --budget 2 && \
     $0 $latency --what bandwidth --samples 1 --budget 0.1 && \
     $0 $latency --what bandwidth --samples 3 --budget 0.1 --threads 1 --to 0 && \
     $0 snapshot --with-timing=0.2 --no-tasks -o /results/machine.nearfar";
/// All CPUs, or one, on near memory, on that of one node, and on interleaved memory. In base pages, whatever part of it is used is half
/// of each node.
const INTERLEAVE: &str = "interleaved='bench latency --no-store --format json --what interleaved --huge off';
    $0 $interleaved --samples 3 --budget 0.3 && $0 $interleaved --threads 1 --samples 1 --budget 0.1";
const MEASURE_AGAIN: &str =
    "$0 bench latency --from 0 --no-store --format json --what latency --samples 7 --budget 1";

fn median(pair: &Value, what: &str) -> f64 {
    pair[what]["median"].as_f64().unwrap()
}

#[test]
fn a_described_machine_has_its_latencies_bandwidths_and_transfers() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, MACHINE).unwrap();
    let measured = |machine: &Path, delay: &str, script: &str| -> Vec<Value> {
        let results = folder.path().to_str().unwrap();
        let options = [
            "--time",
            "simulated",
            "--delay",
            delay,
            "--results",
            results,
        ];
        let text = guests::script(machine.to_str().unwrap(), &options, script);
        let answers = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        answers.collect::<Result<_, _>>().unwrap()
    };
    let answers = measured(&file, "auto", MEASURE);
    let [first, second, one] = &answers[..] else {
        panic!("{answers:?}");
    };
    // Fast instructions, so that what is measured is memory.
    assert_eq!(first["emulation"]["simulated_time"]["instruction_ps"], 100);
    assert_eq!(first["emulation"]["simulated_time"]["window_ns"], 25);
    assert_eq!(first["emulation"]["simulated_time"]["wide_window_ns"], 1000);

    for pair in first["latency"]["pairs"].as_array().unwrap() {
        let expected = match pair["memory_node"] == 0 {
            true => 80.0,
            false => 140.0,
        };
        let ns = pair["median_ns"].as_f64().unwrap();
        println!("latency {expected} ns: {ns}");
        assert!((ns / expected - 1.0_f64).abs() < 0.02, "{pair}");
    }
    for pair in first["transfer"]["pairs"].as_array().unwrap() {
        let cpu = |key: &str| pair[key].as_u64().unwrap();
        let (one, other) = (cpu("first"), cpu("second"));
        let cache = |cpu: u64| [0, 0, 1, 2, 2, 3][cpu as usize];
        let one_way_ns = match (cache(one) == cache(other), one / 3 == other / 3) {
            (true, _) => 50.0,
            (false, true) => 90.0,
            (false, false) => 190.0,
        };
        let ns = median(pair, "round_trip_ns") / 2.0;
        println!("transfer {one_way_ns} ns: {ns}");
        assert!((ns / one_way_ns - 1.0_f64).abs() < 0.03, "{pair}");
    }
    for pair in second["bandwidth"]["pairs"].as_array().unwrap() {
        let carried = if pair["memory_node"] == 0 { 20.0 } else { 10.0 };
        // What is written moves to the cache and back: the memory carries it twice, and the link one way each.
        let expected = match (pair["traffic"].as_str().unwrap(), carried == 20.0) {
            ("write", true) => carried / 2.0,
            ("copy", true) => carried * 2.0 / 3.0,
            _ => carried,
        };
        let gb = median(pair, "bytes_per_s") / 1e9;
        println!("{} {expected} GB/s: {gb}", pair["traffic"]);
        assert!((gb / expected - 1.0).abs() < 0.05, "{pair}");
    }

    let pairs = one["bandwidth"]["pairs"].as_array().unwrap();
    let read = pairs.iter().find(|pair| pair["traffic"] == "read").unwrap();
    let gb = median(read, "bytes_per_s") / 1e9;
    println!("one CPU 12 GB/s: {gb}");
    assert!((gb / 12.0 - 1.0).abs() < 0.05, "{read}");

    // Small caches, so that little memory is far more than they hold. A node carries 20 GB/s; of interleaved memory half goes over the
    // links, each of which carries 10, and a load takes the mean of both latencies.
    let interleaved = measured(&file, "cache=256K/16/5", INTERLEAVE);
    let placements = |answer: &Value| {
        answer["interleaved"]["placements"]
            .as_array()
            .unwrap()
            .clone()
    };
    let figures: Vec<(Value, f64, f64)> = placements(&interleaved[0])
        .iter()
        .map(|it| {
            (
                it["memory"].clone(),
                median(it, "read_bytes_per_s") / 1e9,
                median(it, "latency_ns"),
            )
        })
        .collect();
    let expected = [
        (json!("near"), 40.0, 80.0),
        (json!({"node": 0}), 20.0, 80.0),
        (json!({"node": 1}), 20.0, 140.0),
        (json!("interleaved"), 40.0, 110.0),
    ];
    println!("{figures:?}");
    let expected_count = expected.len();
    assert_eq!(figures.len(), expected_count, "{figures:?}");
    for ((memory, gb, ns), (expected, at_most_gb, expected_ns)) in figures.into_iter().zip(expected)
    {
        assert_eq!(memory, expected);
        // Interleaved, all memories and links are at their limit at once.
        let least = if memory == "interleaved" { 0.8 } else { 0.85 };
        assert!(
            (least..1.02).contains(&(gb / at_most_gb)),
            "{memory}: {gb} GB/s"
        );
        assert!(
            (ns / expected_ns - 1.0_f64).abs() < 0.05,
            "{memory}: {ns} ns"
        );
    }

    // The CPU that reads alone is none of the first of each node, which read together.
    let few = &interleaved[1];
    assert_eq!(few["interleaved"]["readers"], "0,3");
    assert_eq!(placements(few).len(), expected_count, "{few}");

    // A guest of the guest's snapshot is as fast as the guest.
    let again = measured(
        &folder.path().join("machine.nearfar"),
        "auto",
        MEASURE_AGAIN,
    );
    let delays = &again[0]["emulation"]["delays"];
    for (key, expected) in [("memory_mb_per_s", 20_000.0), ("link_mb_per_s", 10_000.0)] {
        let limit = delays["bandwidth"][key].as_f64().unwrap();
        assert!((limit / expected - 1.0_f64).abs() < 0.05, "{delays}");
    }
    assert_eq!(delays["cache"]["bytes"], 1 << 20);
    let latencies = |answer: &Value| answer["latency"]["pairs"].as_array().unwrap().clone();
    for (first, again) in latencies(first).iter().zip(latencies(&again[0])) {
        let ns = |pair: &Value| pair["median_ns"].as_f64().unwrap();
        println!("latency {} ns, then {}", ns(first), ns(&again));
        assert!((ns(&again) / ns(first) - 1.0).abs() < 0.03, "{again}");
    }
}
