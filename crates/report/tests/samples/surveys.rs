//! Surveys to draw, made up but of real shapes.

use std::collections::BTreeMap;

use nearfar_bench::bandwidth::{BandwidthMatrix, BandwidthPair, Method, Traffic};
use nearfar_bench::interleaved::{InterleavedMemory, MeasuredPlacement, MemoryPlacement};
use nearfar_bench::latency::{PageKind, SkippedPair, Warning};
use nearfar_bench::loaded::{LoadedCurve, LoadedLatency, LoadedPoint};
use nearfar_bench::survey::{NotMeasured, Part, Survey};
use nearfar_bench::transfer::{SkippedTransfer, TransferMatrix, TransferPair};
use nearfar_machine::{CpuId, CpuSet, Machine, Nearness, Node, NodeId};
use nearfar_statistics::Figures;

fn figures(median: f64) -> Figures {
    Figures::of(
        [0.99, 1.0, 1.02, 0.995, 1.0, 1.01, 1.0]
            .map(|factor| median * factor)
            .to_vec(),
    )
    .unwrap()
}

fn distance(machine: &Machine, from: NodeId, to: NodeId) -> f64 {
    machine
        .distance(from, to)
        .map_or(20.0, |distance| f64::from(distance.0.clamp(1, 60)))
}

fn bandwidth(machine: &Machine) -> BandwidthMatrix {
    let mut pairs = Vec::new();
    for from in machine
        .online_nodes()
        .filter(|node| !node.known_cpus().is_empty())
    {
        for to in machine
            .online_nodes()
            .filter(|node| node.has_memory() == Some(true))
        {
            for (traffic, best) in Traffic::ALL.into_iter().zip([170e9, 84e9, 140e9]) {
                pairs.push(BandwidthPair {
                    traffic,
                    cpu_node: from.id,
                    memory_node: to.id,
                    cpus: from.known_cpus().clone(),
                    bytes_per_s: figures(best * 10.0 / distance(machine, from.id, to.id)),
                    distance: machine.distance(from.id, to.id),
                });
            }
        }
    }
    BandwidthMatrix {
        pairs,
        method: method(machine),
    }
}

fn method(machine: &Machine) -> Method {
    Method {
        skipped: Vec::new(),
        buffer_bytes: 1 << 30,
        page_kind: PageKind::Pool,
        window_s: 0.02,
        elapsed_s: 4.0,
        warnings: vec![Warning::OtherLoad { percent: 80.0 }],
        emulation: machine.origin.emulation.clone(),
    }
}

/// Of the CPUs of each node: a pair for each nearness, and one for each pair of nodes; or all pairs of the CPUs below.
pub fn transfer(machine: &Machine, all_below: Option<u32>) -> TransferMatrix {
    let pair = |first: CpuId, second: CpuId, nearness, median: f64| {
        let (first_node, second_node) = (machine.node_of(first), machine.node_of(second));
        let distance = first_node
            .zip(second_node)
            .and_then(|(first, second)| machine.distance(first, second));
        let round_trip_ns = figures(median);
        TransferPair {
            first,
            second,
            first_node,
            second_node,
            nearness,
            round_trip_ns,
            round_trips: 20_000,
            distance,
        }
    };
    let cpus: Vec<CpuId> = match all_below {
        Some(end) => CpuSet::range(CpuId(0), CpuId(end - 1)).iter().collect(),
        None => machine
            .online_nodes()
            .flat_map(|node| node.known_cpus().iter().take(12))
            .collect(),
    };
    let mut pairs = BTreeMap::new();
    for (index, &first) in cpus.iter().enumerate() {
        for &second in &cpus[index + 1..] {
            let nodes = (machine.node_of(first), machine.node_of(second));
            let nearness = match (second.0.abs_diff(first.0), nodes.0 == nodes.1) {
                (1, true) if first.0 % 2 == 0 => Nearness::Core,
                (2..8, true) => Nearness::Cache,
                (_, true) => Nearness::Node,
                _ => Nearness::Nodes,
            };
            let far = nodes
                .0
                .zip(nodes.1)
                .map_or(20.0, |(from, to)| distance(machine, from, to));
            let median = match nearness {
                Nearness::Core => 18.0,
                Nearness::Cache => 52.0,
                Nearness::Node => 190.0,
                Nearness::Nodes => 21.0 * far,
            };
            let key = match all_below {
                Some(_) => (
                    Some(NodeId(first.0)),
                    Some(NodeId(second.0)),
                    Nearness::Core,
                ),
                None => (nodes.0, nodes.1, nearness),
            };
            pairs
                .entry(key)
                .or_insert_with(|| pair(first, second, nearness, median));
        }
    }
    let reason = "the two CPUs do not run side by side".to_owned();
    TransferMatrix {
        pairs: pairs.into_values().collect(),
        skipped: vec![SkippedTransfer {
            first: CpuId(0),
            second: CpuId(5),
            reason,
        }],
        all_cpus: all_below.is_some(),
        elapsed_s: 1.5,
        warnings: vec![Warning::OtherLoad { percent: 80.0 }],
        emulation: machine.origin.emulation.clone(),
    }
}

/// All three parts.
pub fn survey(machine: &Machine) -> Survey {
    let mut latency = super::latencies(machine);
    latency.skipped = vec![SkippedPair {
        cpu_node: None,
        memory_node: Some(NodeId(9)),
        reason: "a reason".to_owned(),
    }];
    for pair in &mut latency.pairs {
        let figures = figures(pair.median_ns);
        (pair.confidence_ns, pair.samples_ns) = (figures.confidence, figures.samples);
    }
    Survey {
        latency: Some(latency),
        bandwidth: Some(bandwidth(machine)),
        loaded: None,
        interleaved: None,
        transfer: Some(transfer(machine, None)),
        not_measured: Vec::new(),
        elapsed_s: 12.0,
        emulation: machine.origin.emulation.clone(),
    }
}

/// The latency under load of the first two nodes, and nothing else.
pub fn loaded(machine: &Machine) -> Survey {
    let pauses = [None, Some(1024), Some(64), Some(0)];
    let point = |(pause, bytes_per_s, ns)| LoadedPoint {
        pause,
        read_bytes_per_s: figures(bytes_per_s),
        latency_ns: figures(ns),
    };
    let curve = |(node, factor): (&Node, f64)| LoadedCurve {
        node: node.id,
        cpu: node.known_cpus().first().unwrap(),
        readers: node.known_cpus().clone(),
        points: [(0.0, 80.0), (2e9, 81.0), (60e9, 97.0), (110e9, 240.0)]
            .into_iter()
            .zip(pauses)
            .map(|((bytes, ns), pause)| point((pause, bytes * factor, ns)))
            .collect(),
    };
    let measured = LoadedLatency {
        curves: machine.nodes.iter().zip([1.0, 0.9]).map(curve).collect(),
        method: method(machine),
    };
    Survey {
        loaded: Some(measured),
        not_measured: Vec::new(),
        ..nothing()
    }
}

/// Near and interleaved memory of two nodes.
pub fn interleaved(machine: &Machine) -> Survey {
    let node = |number| MemoryPlacement::Node(NodeId(number));
    let measured = [
        (MemoryPlacement::Near, 220e9, 80.0),
        (node(0), 91e9, 80.0),
        (node(1), 90e9, 140.0),
        (MemoryPlacement::Interleaved, 181e9, 110.0),
    ];
    let placements = measured.map(|(memory, bytes_per_s, ns)| MeasuredPlacement {
        memory,
        read_bytes_per_s: figures(bytes_per_s),
        latency_ns: figures(ns),
    });
    let cpus = machine
        .nodes
        .iter()
        .flat_map(|node| node.known_cpus().iter());
    let readers: CpuSet = cpus.collect();
    let measured = InterleavedMemory {
        cpu: readers.first().unwrap(),
        readers,
        placements: placements.into(),
        method: method(machine),
    };
    Survey {
        interleaved: Some(measured),
        not_measured: Vec::new(),
        ..nothing()
    }
}

/// None of them.
pub fn nothing() -> Survey {
    let reason = "this process may use one CPU".to_owned();
    Survey {
        latency: None,
        bandwidth: None,
        loaded: None,
        interleaved: None,
        transfer: None,
        not_measured: vec![NotMeasured {
            part: Part::Transfer,
            reason,
        }],
        elapsed_s: 0.1,
        emulation: None,
    }
}
