//! Which matrices a survey becomes.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_bench::bandwidth::{BandwidthMatrix, Traffic};
use nearfar_bench::latency::{LatencyMatrix, LatencyPair};
use nearfar_bench::survey::Survey;
use nearfar_bench::transfer::{Nearness, TransferMatrix, TransferPair};
use nearfar_machine::{CpuId, Distance, NodeId};
use nearfar_statistics::{Figures, Interval};

use crate::amount::{count, nanoseconds};
use crate::document::{HeatCell, HeatMap, Scale};

/// All matrices, in the order they were measured.
pub(super) fn all(survey: &Survey) -> Vec<HeatMap> {
    let mut panels = Vec::new();
    if let Some(matrix) = &survey.latency {
        panels.push(latency(matrix));
        panels.extend(relative(matrix));
    }
    if let Some(matrix) = &survey.bandwidth {
        panels.extend(Traffic::ALL.map(|traffic| bandwidth(matrix, traffic)));
    }
    panels.extend(survey.transfer.as_ref().map(transfer));
    panels.retain(|panel| !panel.columns.is_empty());
    panels
}

/// Names of rows, names of columns, and the cells by row and column.
type Grid = (Vec<Vec<String>>, Vec<String>, Vec<Vec<Option<HeatCell>>>);

/// Rows and columns of nodes, and the cells between them.
fn by_node<'a, T: 'a>(
    pairs: impl Iterator<Item = (NodeId, NodeId, &'a T)>,
    figure: impl Fn(&'a T) -> Option<HeatCell>,
) -> Grid {
    let pairs: BTreeMap<(NodeId, NodeId), &T> =
        pairs.map(|(from, to, pair)| ((from, to), pair)).collect();
    let rows: BTreeSet<NodeId> = pairs.keys().map(|nodes| nodes.0).collect();
    let columns: BTreeSet<NodeId> = pairs.keys().map(|nodes| nodes.1).collect();
    let cell = |from: NodeId, to: NodeId| pairs.get(&(from, to)).and_then(|pair| figure(pair));
    let cells = rows
        .iter()
        .map(|&from| columns.iter().map(|&to| cell(from, to)).collect())
        .collect();
    let columns = columns.iter().map(ToString::to_string).collect();
    (HeatMap::names(rows), columns, cells)
}

fn in_nanoseconds(heat: f64) -> String {
    format!("{} ns", nanoseconds(heat))
}

/// The larger of the two distances from a median to a quartile; one sample has none.
fn spread(
    samples: usize,
    low: f64,
    median: f64,
    high: f64,
    text: &dyn Fn(f64) -> String,
) -> String {
    if samples < 2 {
        String::new()
    } else {
        format!(" ±{}", text((high - median).max(median - low)))
    }
}

fn latency(matrix: &LatencyMatrix) -> HeatMap {
    let pairs = || {
        matrix
            .pairs
            .iter()
            .map(|pair| (pair.cpu_node, pair.memory_node, pair))
    };
    let (rows, columns, cells) = by_node(pairs(), |pair| {
        let about = format!(
            "CPU {} to node {}: median {}, {}",
            pair.cpu,
            pair.memory_node,
            in_nanoseconds(pair.median_ns),
            certainty(
                pair.low_ns,
                pair.high_ns,
                pair.confidence_ns,
                pair.samples_ns.len(),
                &nanoseconds
            ),
        );
        let spread = spread(
            pair.samples_ns.len(),
            pair.low_ns,
            pair.median_ns,
            pair.high_ns,
            &nanoseconds,
        );
        Some(HeatCell {
            heat: pair.median_ns,
            value: nanoseconds(pair.median_ns),
            spread,
            about,
            ..HeatCell::default()
        })
    });
    let scale = super::scale(matrix);
    HeatMap {
        title: "Latency".to_owned(),
        remark: "ns a load; row: node of the CPU, column: node of the memory".to_owned(),
        row_heads: vec!["node".to_owned()],
        column_head: String::new(),
        rows,
        columns,
        cells,
        scale,
        scale_of: "",
        legend: scale.legend(in_nanoseconds),
    }
}

/// How much more than the nearest memory of its row: measured, and by the distances. Nothing for one column.
fn relative(matrix: &LatencyMatrix) -> Option<HeatMap> {
    let reachable = |pair: &LatencyPair| {
        pair.distance
            .filter(|&distance| distance != Distance::UNREACHABLE)
    };
    let distance =
        |pair: &LatencyPair| reachable(pair).map_or(f64::NAN, |distance| f64::from(distance.0));
    // The least of each row, measured and said; f64::min leaves out what is unknown.
    let mut nearest = BTreeMap::new();
    for pair in &matrix.pairs {
        let least = nearest.entry(pair.cpu_node).or_insert((f64::NAN, f64::NAN));
        *least = (least.0.min(pair.median_ns), least.1.min(distance(pair)));
    }
    let ratios = |pair: &LatencyPair| {
        let (least_ns, least) = *nearest.get(&pair.cpu_node)?;
        let said = Some(distance(pair) / least).filter(|said| said.is_finite());
        (least_ns > 0.0).then(|| (pair.median_ns / least_ns, said))
    };
    let pairs = matrix
        .pairs
        .iter()
        .map(|pair| (pair.cpu_node, pair.memory_node, pair));
    let (rows, columns, cells) = by_node(pairs, |pair| {
        let (measured, said) = ratios(pair)?;
        let said = said.map_or("-".to_owned(), |said| format!("{said:.1}"));
        let about =
            format!("measured {measured:.2} times the nearest; the distances say {said} times");
        Some(HeatCell {
            heat: measured,
            value: format!("{measured:.2}"),
            spread: format!("/{said}"),
            about,
            ..HeatCell::default()
        })
    });
    let scale = Scale::relative(matrix.pairs.iter().filter_map(|pair| Some(ratios(pair)?.0)));
    let panel = HeatMap {
        title: "Latency, relative".to_owned(),
        remark: "times the nearest of the row: measured/what the distances say".to_owned(),
        row_heads: vec!["node".to_owned()],
        column_head: String::new(),
        rows,
        columns,
        cells,
        scale,
        scale_of: "",
        legend: scale.legend(|heat| format!("{heat:.1}")),
    };
    (panel.columns.len() > 1).then_some(panel)
}

/// Bytes a second as GB/s, with the digits that mean something.
fn gigabytes(bytes_per_s: f64) -> String {
    let gigabytes = bytes_per_s / 1e9;
    format!("{gigabytes:.0$}", digits(gigabytes))
}

/// Digits behind the point.
fn digits(gigabytes: f64) -> usize {
    match gigabytes {
        _ if gigabytes >= 99.95 => 0,
        _ if gigabytes >= 0.995 => 1,
        _ => 3,
    }
}

fn bandwidth(matrix: &BandwidthMatrix, traffic: Traffic) -> HeatMap {
    let of_traffic = || matrix.pairs.iter().filter(|pair| pair.traffic == traffic);
    let pairs = of_traffic().map(|pair| (pair.cpu_node, pair.memory_node, pair));
    let (rows, columns, cells) = by_node(pairs, |pair| {
        let about = format!(
            "{} from CPUs {} to node {}: median {} GB/s, {}",
            traffic,
            pair.cpus,
            pair.memory_node,
            gigabytes(pair.bytes_per_s.median),
            certainty_of(&pair.bytes_per_s, &gigabytes),
        );
        let figures = &pair.bytes_per_s;
        let digits = digits(figures.median / 1e9);
        let rounded = |bytes_per_s: f64| format!("{:.digits$}", bytes_per_s / 1e9);
        Some(HeatCell {
            heat: 1e9 / figures.median.max(1.0),
            value: gigabytes(figures.median),
            spread: spread(
                figures.samples.len(),
                figures.low,
                figures.median,
                figures.high,
                &rounded,
            ),
            about,
            ..HeatCell::default()
        })
    });
    let threads = of_traffic()
        .map(|pair| pair.cpus.len())
        .collect::<BTreeSet<_>>();
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
    let scale = Scale::over(of_traffic().map(|pair| 1e9 / pair.bytes_per_s.median.max(1.0)));
    HeatMap {
        title: format!("Bandwidth, {traffic}"),
        remark: format!("GB/s (10^9 bytes), {what}; {threads} a node"),
        row_heads: vec!["node".to_owned()],
        column_head: String::new(),
        rows,
        columns,
        cells,
        // Little bandwidth is hot, and half of it twice as bad.
        scale_of: " of the time a byte takes",
        scale,
        legend: scale.legend(|heat| format!("{} GB/s", gigabytes(1e9 / heat))),
    }
}

fn transfer(matrix: &TransferMatrix) -> HeatMap {
    let scale = Scale::over(matrix.pairs.iter().map(|pair| pair.round_trip_ns.median));
    let (corner, rows, columns, cells) = if matrix.all_cpus {
        cpu_by_cpu(matrix)
    } else {
        by_nearness(matrix)
    };
    HeatMap {
        title: "Transfer".to_owned(),
        remark: "ns for a cache line to another CPU and back".to_owned(),
        row_heads: vec![corner.to_owned()],
        column_head: String::new(),
        rows,
        columns,
        cells,
        scale,
        scale_of: "",
        legend: scale.legend(in_nanoseconds),
    }
}

type Table = (
    &'static str,
    Vec<Vec<String>>,
    Vec<String>,
    Vec<Vec<Option<HeatCell>>>,
);

/// A row a node: what its own CPUs share, then the other nodes.
fn by_nearness(matrix: &TransferMatrix) -> Table {
    let nodes: BTreeSet<Option<NodeId>> = matrix
        .pairs
        .iter()
        .flat_map(|pair| [pair.first_node, pair.second_node])
        .collect();
    let kinds: BTreeSet<Nearness> = matrix.pairs.iter().map(|pair| pair.nearness).collect();
    let own = kinds
        .iter()
        .copied()
        .filter(|&kind| kind != Nearness::Nodes);
    let others = kinds
        .contains(&Nearness::Nodes)
        .then_some(&nodes)
        .into_iter()
        .flatten();
    let name = |node: &Option<NodeId>| node.map_or("-".to_owned(), |node| node.to_string());
    let columns = own
        .clone()
        .map(|kind| kind.to_string())
        .chain(others.clone().map(|node| format!("to {}", name(node))));
    let between = |kind: Nearness, a: Option<NodeId>, b: Option<NodeId>| {
        let same = |pair: &&TransferPair| {
            let nodes = (pair.first_node, pair.second_node);
            pair.nearness == kind && (nodes == (a, b) || nodes == (b, a))
        };
        matrix
            .pairs
            .iter()
            .find(same)
            .map(|pair| between_cpus(pair, true))
    };
    let row = |&from: &Option<NodeId>| {
        let own = own.clone().map(|kind| between(kind, from, from));
        own.chain(others.clone().map(|&to| between(Nearness::Nodes, from, to)))
            .collect()
    };
    (
        "node",
        HeatMap::names(nodes.iter().map(name)),
        columns.collect(),
        nodes.iter().map(row).collect(),
    )
}

fn cpu_by_cpu(matrix: &TransferMatrix) -> Table {
    let cpus: BTreeSet<CpuId> = matrix
        .pairs
        .iter()
        .flat_map(|pair| [pair.first, pair.second])
        .collect();
    let names: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    // Pairs are many: looked up, not searched.
    let pairs: BTreeMap<_, _> = matrix
        .pairs
        .iter()
        .map(|pair| ((pair.first, pair.second), pair))
        .collect();
    let cell = |a: CpuId, b: CpuId| {
        pairs
            .get(&(a.min(b), a.max(b)))
            .map(|pair| between_cpus(pair, false))
    };
    let cells = cpus
        .iter()
        .map(|&from| cpus.iter().map(|&to| cell(from, to)).collect())
        .collect();
    ("CPU", HeatMap::names(&names), names, cells)
}

fn between_cpus(pair: &TransferPair, with_spread: bool) -> HeatCell {
    let about = format!(
        "CPU {} to {}, {}: median {}, {}",
        pair.first,
        pair.second,
        pair.nearness,
        in_nanoseconds(pair.round_trip_ns.median),
        certainty_of(&pair.round_trip_ns, &nanoseconds),
    );
    let figures = &pair.round_trip_ns;
    let samples = if with_spread {
        figures.samples.len()
    } else {
        0
    };
    let spread = spread(
        samples,
        figures.low,
        figures.median,
        figures.high,
        &nanoseconds,
    );
    HeatCell {
        heat: figures.median,
        value: nanoseconds(figures.median),
        spread,
        about,
        ..HeatCell::default()
    }
}

fn certainty_of(figures: &Figures, text: &dyn Fn(f64) -> String) -> String {
    certainty(
        figures.low,
        figures.high,
        figures.confidence,
        figures.samples.len(),
        text,
    )
}

/// Quartiles, confidence and number of samples in words.
fn certainty(
    low: f64,
    high: f64,
    confidence: Option<Interval>,
    samples: usize,
    text: &dyn Fn(f64) -> String,
) -> String {
    if samples == 1 {
        return "one sample".to_owned();
    }
    let sure = confidence.map_or_else(
        || "too few samples for a confidence interval".to_owned(),
        |sure| format!("95 % confidence {} to {}", text(sure.low), text(sure.high)),
    );
    format!(
        "quartiles {} to {}, {sure}, {}",
        text(low),
        text(high),
        count(samples, "sample")
    )
}
