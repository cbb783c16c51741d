//! Which heat maps a survey becomes.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_bench::bandwidth::{BandwidthMatrix, Traffic};
use nearfar_bench::latency::{LatencyMatrix, LatencyPair};
use nearfar_bench::survey::Survey;
use nearfar_bench::transfer::{TransferMatrix, TransferPair};
use nearfar_machine::{CpuId, Distance, Nearness, NodeId};
use nearfar_statistics::Figures;

use crate::amount::{count, nanoseconds, or};
use crate::document::{HeatCell, HeatMap, Scale};

/// All maps, in the order they were measured.
pub(super) fn all(survey: &Survey) -> Vec<HeatMap> {
    let mut maps = Vec::new();
    if let Some(matrix) = &survey.latency {
        maps.push(latency(matrix));
        maps.extend(relative(matrix));
    }
    if let Some(matrix) = &survey.bandwidth {
        maps.extend(Traffic::ALL.map(|traffic| bandwidth(matrix, traffic)));
    }
    maps.extend(survey.transfer.as_ref().map(transfer));
    maps.retain(|map| !map.columns.is_empty());
    maps
}

/// The node of the CPU and the node of the memory.
type Pair = (NodeId, NodeId);

/// A row a node of CPUs, a column a node of memory.
fn by_node(cells: impl Iterator<Item = (Pair, HeatCell)>, map: HeatMap) -> HeatMap {
    let cells: BTreeMap<Pair, HeatCell> = cells.collect();
    let rows: BTreeSet<NodeId> = cells.keys().map(|pair| pair.0).collect();
    let columns: BTreeSet<NodeId> = cells.keys().map(|pair| pair.1).collect();
    let row = |from: &NodeId| {
        let row = columns.iter().map(|to| cells.get(&(*from, *to)).cloned());
        row.collect()
    };
    HeatMap {
        row_heads: vec!["node".to_owned()],
        cells: rows.iter().map(row).collect(),
        rows: HeatMap::names(rows),
        columns: columns.iter().map(ToString::to_string).collect(),
        ..map
    }
}

fn in_nanoseconds(heat: f64) -> String {
    format!("{} ns", nanoseconds(heat))
}

/// A median with the larger of its distances to a quartile; one sample has no quartiles.
pub(super) fn measured(
    what: &str,
    unit: &str,
    heat: f64,
    figures: &Figures,
    text: impl Fn(f64) -> String,
) -> HeatCell {
    let (low, high) = (text(figures.low), text(figures.high));
    let mut cell = HeatCell::of(heat, text(figures.median));
    let sure = match figures.samples.len() {
        1 => "one sample".to_owned(),
        samples => {
            let spread = (figures.high - figures.median).max(figures.median - figures.low);
            cell.spread = format!(" ±{}", text(spread));
            let sure = figures.confidence.map_or_else(
                || "too few samples for a confidence interval".to_owned(),
                |sure| format!("95 % confidence {} to {}", text(sure.low), text(sure.high)),
            );
            let samples = count(samples, "sample");
            format!("quartiles {low} to {high}, {sure}, {samples}")
        }
    };
    cell.about = format!("{what}: median {} {unit}, {sure}", cell.value);
    cell.interval = (!cell.spread.is_empty()).then_some((low, high));
    cell
}

/// The time of a load by node.
pub(crate) fn latency(matrix: &LatencyMatrix) -> HeatMap {
    let cell = |pair: &LatencyPair| {
        let what = format!("CPU {} to node {}", pair.cpu, pair.memory_node);
        let figures = Figures {
            samples: pair.samples_ns.clone(),
            median: pair.median_ns,
            low: pair.low_ns,
            high: pair.high_ns,
            confidence: pair.confidence_ns,
            outliers: 0,
        };
        let cell = measured(&what, "ns", pair.median_ns, &figures, nanoseconds);
        ((pair.cpu_node, pair.memory_node), cell)
    };
    let remark = "ns per load; row: node of the CPU, column: node of the memory";
    by_node(
        matrix.pairs.iter().map(cell),
        HeatMap {
            title: "Latency".to_owned(),
            remark: remark.to_owned(),
            ..HeatMap::of(super::scale(matrix), in_nanoseconds)
        },
    )
}

/// How much more than the nearest memory of its row: measured, and by the distances. Nothing for one column.
fn relative(matrix: &LatencyMatrix) -> Option<HeatMap> {
    let distance = |pair: &LatencyPair| match pair.distance {
        None | Some(Distance::UNREACHABLE) => f64::NAN,
        Some(distance) => f64::from(distance.0),
    };
    // The least of each row, measured and said; f64::min leaves out what is unknown.
    let mut nearest = BTreeMap::new();
    for pair in &matrix.pairs {
        let least = nearest.entry(pair.cpu_node).or_insert((f64::NAN, f64::NAN));
        *least = (least.0.min(pair.median_ns), least.1.min(distance(pair)));
    }
    let cell = |pair: &LatencyPair| {
        let (least_ns, least) = *nearest.get(&pair.cpu_node)?;
        let said = Some(distance(pair) / least).filter(|said| said.is_finite());
        let said = or(said.map(|said| format!("{said:.1}")), "-");
        let ratio = Some(pair.median_ns / least_ns).filter(|_| least_ns > 0.0)?;
        let about =
            format!("measured {ratio:.2} times the nearest; the distances say {said} times");
        let cell = HeatCell {
            spread: format!("/{said}"),
            about,
            ..HeatCell::of(ratio, format!("{ratio:.2}"))
        };
        Some(((pair.cpu_node, pair.memory_node), cell))
    };
    let cells: Vec<(Pair, HeatCell)> = matrix.pairs.iter().filter_map(cell).collect();
    let scale = Scale::over(cells.iter().map(|(_, cell)| cell.heat));
    let remark = "times the nearest of the row: measured/what the distances say";
    let map = by_node(
        cells.into_iter(),
        HeatMap {
            title: "Latency, relative".to_owned(),
            remark: remark.to_owned(),
            ..HeatMap::of(scale, |heat| format!("{heat:.1}"))
        },
    );
    (map.columns.len() > 1).then_some(map)
}

/// Digits behind the point of so many GB/s.
pub(super) fn digits(gigabytes: f64) -> usize {
    match gigabytes {
        _ if gigabytes >= 99.95 => 0,
        _ if gigabytes >= 0.995 => 1,
        _ => 3,
    }
}

fn bandwidth(matrix: &BandwidthMatrix, traffic: Traffic) -> HeatMap {
    let of_traffic = || matrix.pairs.iter().filter(|pair| pair.traffic == traffic);
    // Little bandwidth is hot, and half of it twice as bad.
    let heat = |figures: &Figures| 1e9 / figures.median.max(1.0);
    let cells = of_traffic().map(|pair| {
        let (node, figures) = (pair.memory_node, &pair.bytes_per_s);
        let what = format!("{traffic} from CPUs {} to node {node}", pair.cpus);
        let digits = digits(figures.median / 1e9);
        let text = |bytes_per_s: f64| format!("{:.digits$}", bytes_per_s / 1e9);
        let cell = measured(&what, "GB/s", heat(figures), figures, text);
        ((pair.cpu_node, node), cell)
    });
    let threads: BTreeSet<usize> = of_traffic().map(|pair| pair.cpus.len()).collect();
    let threads = match (threads.first(), threads.last()) {
        (Some(least), Some(most)) if least != most => format!("{least} to {most} threads"),
        (Some(&all), _) => count(all, "thread"),
        _ => String::new(),
    };
    let what = match traffic {
        Traffic::Read => "all loads",
        Traffic::Write => "plain stores",
        Traffic::Copy => "loads and stores, both counted",
    };
    let scale = Scale::over(of_traffic().map(|pair| heat(&pair.bytes_per_s)));
    let legend = |heat: f64| format!("{:.1$} GB/s", 1.0 / heat, digits(1.0 / heat));
    by_node(
        cells,
        HeatMap {
            title: format!("Bandwidth, {traffic}"),
            remark: format!("GB/s (10^9 bytes), {what}; {threads} per node"),
            scale_of: " of the time a byte takes",
            ..HeatMap::of(scale, legend)
        },
    )
}

fn transfer(matrix: &TransferMatrix) -> HeatMap {
    let scale = Scale::over(matrix.pairs.iter().map(|pair| pair.round_trip_ns.median));
    let map = HeatMap {
        title: "Transfer".to_owned(),
        remark: "ns for a cache line to another CPU and back".to_owned(),
        ..HeatMap::of(scale, in_nanoseconds)
    };
    match matrix.all_cpus {
        true => cpu_by_cpu(matrix, map),
        false => by_nearness(matrix, map),
    }
}

/// A row a node: what its own CPUs share, then the other nodes.
fn by_nearness(matrix: &TransferMatrix, map: HeatMap) -> HeatMap {
    let pairs = &matrix.pairs;
    let nodes = pairs
        .iter()
        .flat_map(|pair| [pair.first_node, pair.second_node]);
    let nodes: BTreeSet<Option<NodeId>> = nodes.collect();
    let mut own: BTreeSet<Nearness> = pairs.iter().map(|pair| pair.nearness).collect();
    let others = own
        .remove(&Nearness::Nodes)
        .then_some(&nodes)
        .into_iter()
        .flatten();
    let between = |kind: Nearness, a: Option<NodeId>, b: Option<NodeId>| {
        let is_same = |pair: &&TransferPair| {
            let nodes = (pair.first_node, pair.second_node);
            pair.nearness == kind && (nodes == (a, b) || nodes == (b, a))
        };
        pairs.iter().find(is_same).map(between_cpus)
    };
    let row = |&from: &Option<NodeId>| {
        let own = own.iter().map(|&kind| between(kind, from, from));
        let others = others.clone().map(|&to| between(Nearness::Nodes, from, to));
        own.chain(others).collect()
    };
    let name = |node: &Option<NodeId>| or(*node, "-");
    let columns = own.iter().map(ToString::to_string);
    let others = others.clone().map(|node| format!("to {}", name(node)));
    HeatMap {
        row_heads: vec!["node".to_owned()],
        rows: HeatMap::names(nodes.iter().map(name)),
        columns: columns.chain(others).collect(),
        cells: nodes.iter().map(row).collect(),
        ..map
    }
}

fn cpu_by_cpu(matrix: &TransferMatrix, map: HeatMap) -> HeatMap {
    let cpus = matrix
        .pairs
        .iter()
        .flat_map(|pair| [pair.first, pair.second]);
    let cpus: BTreeSet<CpuId> = cpus.collect();
    // Pairs are many: looked up, not searched.
    let pairs = matrix
        .pairs
        .iter()
        .map(|pair| ((pair.first, pair.second), pair));
    let pairs: BTreeMap<(CpuId, CpuId), &TransferPair> = pairs.collect();
    let cell = |a: CpuId, b: CpuId| {
        let cell = between_cpus(pairs.get(&(a.min(b), a.max(b)))?);
        Some(HeatCell {
            spread: String::new(),
            interval: None,
            ..cell
        })
    };
    let row = |&from: &CpuId| cpus.iter().map(|&to| cell(from, to)).collect();
    HeatMap {
        row_heads: vec!["CPU".to_owned()],
        rows: HeatMap::names(&cpus),
        columns: cpus.iter().map(ToString::to_string).collect(),
        cells: cpus.iter().map(row).collect(),
        ..map
    }
}

fn between_cpus(pair: &TransferPair) -> HeatCell {
    let figures = &pair.round_trip_ns;
    let what = format!("CPU {} to {}, {}", pair.first, pair.second, pair.nearness);
    measured(&what, "ns", figures.median, figures, nanoseconds)
}
