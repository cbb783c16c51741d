//! The gallery's measured machines: a guest of each, in simulated time, has the latencies and transfers of its description.

use nearfar_machine::{Distance, LineDelay, Machine};
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

/// Nanoseconds one way of a pair that `bench latency` measured: the mean of both directions, of which one is from a cache that is far
/// from the line's memory.
fn described(transfer: &LineDelay, machine: &Machine, pair: &Value) -> f64 {
    let [same_cache, same_node, other_node] = transfer.by_class();
    let package = |key: &str| {
        let node = serde_json::from_value(pair[key].clone()).unwrap();
        let cpu = machine.node(node).unwrap().known_cpus().first().unwrap();
        machine.cpu(cpu).unwrap().package
    };
    match pair["nearness"].as_str().unwrap() {
        "core" => transfer.same_core_ns.unwrap_or(same_cache).into(),
        "cache" => same_cache.into(),
        "node" => same_node.into(),
        _ => {
            let distance: Distance = serde_json::from_value(pair["distance"].clone()).unwrap();
            let ns = transfer.at(distance).unwrap_or(other_node);
            let is_of_one_package = package("first_node") == package("second_node");
            let home_ns = if is_of_one_package {
                0
            } else {
                transfer.home_ns
            };
            f64::from(ns) + f64::from(home_ns) / 2.0
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
        Some((entry.name, machine.timing.clone()?, machine))
    });
    let mut machines = 0;
    for (name, timing, machine) in described_machines {
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
            let ns = described(transfer, &machine, pair);
            let found = pair["round_trip_ns"]["median"].as_f64().unwrap() / 2.0;
            println!("{name}: transfer {ns} ns: {found}");
            assert!((found / ns - 1.0).abs() < 0.05, "{name}: {pair}");
            transfers += 1;
        }
        assert!(
            pairs > 0 && (transfers > 0 || timing.transfer.is_none()),
            "{name}: {answer}"
        );
        machines += 1;
    }
    // Seven measured ones, and two with the figures of one of them.
    assert_eq!(machines, 9);
}

/// Intel's memory latency checker on the machine of the description: nanoseconds of a load, and GB/s of its four nodes together
/// (plantegg.github.io, on the making of CPUs, section SNC).
const PUBLISHED_NS_AT_GB: [(f64, f64); 10] = [
    (76.1, 2.9),
    (79.6, 9.1),
    (81.1, 24.9),
    (82.2, 41.4),
    (83.7, 58.1),
    (85.2, 80.0),
    (88.5, 98.7),
    (94.0, 128.7),
    (109.7, 183.1),
    (245.9, 233.3),
];
/// Of how many nodes that is.
const NODES: f64 = 4.0;
/// One thread of each core: two share what a core can have on its way. A small cache, so that small buffers exceed it.
const STREAMING: [&str; 8] = [
    "--scale",
    "cpus=13,memory=256M",
    "--time",
    "simulated",
    "--delay",
    "cache=1M/16",
    "--arch",
    "x86_64",
];
/// All CPUs of a node, then one, then one that waits while the others read.
const MEASURE_STREAMS: &str = "
    latency='bench latency --from 0 --buffer 4M --no-store --format json';
    $0 $latency --what bandwidth --samples 1 --budget 0.1 && \
     $0 $latency --what bandwidth --samples 1 --budget 0.1 --threads 1 && \
     $0 $latency --what loaded --samples 3 --budget 0.2";

/// Nanoseconds at so many GB/s, between the points of a curve.
fn at(curve: &[(f64, f64)], gb: f64) -> f64 {
    let after = curve.iter().position(|point| point.0 >= gb).unwrap().max(1);
    let ((low, from), (high, to)) = (curve[after - 1], curve[after]);
    from + (to - from) * (gb - low) / (high - low)
}

#[test]
fn streams_and_the_latency_under_load_are_those_that_were_published() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let text = guests::script("xeon-8269cy-snc", &STREAMING, MEASURE_STREAMS);
    let answers = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let answers: Vec<Value> = answers.collect::<Result<_, _>>().unwrap();
    let [all, one, loaded] = &answers[..] else {
        panic!("{answers:?}");
    };
    let median = |it: &Value, key: &str| it[key]["median"].as_f64().unwrap();
    // Its own memory, that of the other node of the package, and over the link. One CPU's stream from other nodes was not published.
    for (answer, published) in [(all, &[58.9, 58.9, 50.5, 50.5][..]), (one, &[13.9])] {
        let pairs = answer["bandwidth"]["pairs"].as_array().unwrap();
        let mut compared = 0;
        for pair in pairs.iter().filter(|pair| pair["traffic"] == "read") {
            let node = pair["memory_node"].as_u64().unwrap() as usize;
            let gb = median(pair, "bytes_per_s") / 1e9;
            println!("CPUs {} read node {node}: {gb:.2} GB/s", pair["cpus"]);
            if let Some(published) = published.get(node) {
                assert!((gb / published - 1.0_f64).abs() < 0.05, "{pair}");
                compared += 1;
            }
        }
        assert_eq!(compared, published.len());
    }
    let points = loaded["loaded"]["curves"][0]["points"].as_array().unwrap();
    let place = |point: &Value| {
        let gb = median(point, "read_bytes_per_s") / 1e9;
        (gb, median(point, "latency_ns"))
    };
    let mut curve: Vec<(f64, f64)> = points.iter().map(place).collect();
    println!("{curve:.1?}");
    let all_they_can = *curve.last().unwrap();
    curve.sort_by(|one, other| one.0.total_cmp(&other.0));
    for (published_ns, gb) in PUBLISHED_NS_AT_GB {
        let gb = gb / NODES;
        // Beyond the knee the latency is of what waits, not of the bytes per second.
        let (ns, most) = match gb < 50.0 {
            true => (at(&curve, gb), 0.1),
            false => (all_they_can.1, 0.25),
        };
        let error = ns / published_ns - 1.0;
        println!(
            "{gb:.1} GB/s: {published_ns} ns, {ns:.1} ({:+.1} %)",
            error * 100.0
        );
        assert!(error.abs() < most, "{gb} GB/s: {ns} ns");
    }
    assert!(
        (all_they_can.0 / 58.3 - 1.0).abs() < 0.05,
        "{all_they_can:?}"
    );
}
