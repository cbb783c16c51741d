//! Measured latencies, bandwidths and transfers: the survey of `nearfar bench latency` with its matrices, the warnings about them and
//! how they were made, and how its figures are written.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_bench::bandwidth::{BandwidthMatrix, Method, Traffic};
use nearfar_bench::interleaved::InterleavedMemory;
use nearfar_bench::latency::{LatencyMatrix, LatencyPair, SkippedPair, Warning};
use nearfar_bench::loaded::{LoadedCurve, LoadedLatency, LoadedPoint};
use nearfar_bench::survey::{Part, Survey};
use nearfar_bench::transfer::{TransferMatrix, TransferPair};
use nearfar_machine::{CpuId, Distance, Emulation, Machine, Nearness, NodeId};
use nearfar_statistics::{Figures, Interval};

use crate::amount::{bytes, count, nanoseconds, or};
use crate::document::{
    Axis, Chart, Document, Head, HeatCell, HeatMap, Line, Plot, Scale, Table, cells,
};
use crate::style::Role::{Dim, Heading};
use crate::summary;

/// Which pair was not measured, and why.
pub(crate) fn skipped_pair(skipped: &SkippedPair) -> String {
    let node = |what: &str, node: Option<NodeId>| node.map(|node| format!("{what} of node {node}"));
    let which = [
        node("CPUs", skipped.cpu_node),
        node("memory", skipped.memory_node),
    ];
    let which: Vec<String> = which.into_iter().flatten().collect();
    match which[..] {
        [] => skipped.reason.clone(),
        _ => format!("{}: {}", which.join(" to "), skipped.reason),
    }
}

/// That the figures were measured now, or the label of the emulated machine.
pub(crate) fn label(emulation: Option<&Emulation>) -> String {
    or(emulation, "measured in this run")
}

/// How the figures were made.
pub(crate) fn method(matrix: &LatencyMatrix) -> String {
    let samples = matrix.pairs.iter().map(|pair| pair.samples_ns.len());
    let figures = of_samples("median and quartiles", samples);
    format!(
        "dependent loads over one random cycle of {} lines in {} on each node ({}); {figures} per pair, {} loads each, pairs in \
         random order; {:.1} s",
        bytes(matrix.line_bytes),
        bytes(matrix.buffer_bytes),
        matrix.page_kind,
        matrix.steps,
        matrix.elapsed_s,
    )
}

/// What is printed of pairs of so many samples each; one sample has neither quartiles nor a median worth the name.
fn of_samples(what: &str, samples: impl Iterator<Item = usize>) -> String {
    match samples.min().unwrap_or(0) {
        1 => "one sample".to_owned(),
        samples => format!("{what} of {}", count(samples, "sample")),
    }
}

/// The fewest samples of which a median stands alone: of fewer there is no 95 % interval.
const FEWEST_SAMPLES: usize = 6;

/// That these pairs have too few samples for a figure without its spread; `None` where they have enough.
pub(crate) fn too_few<'a>(pairs: impl IntoIterator<Item = &'a LatencyPair>) -> Option<String> {
    let samples = pairs.into_iter().map(|pair| pair.samples_ns.len());
    let fewest = samples.min().filter(|fewest| *fewest < FEWEST_SAMPLES)?;
    Some(format!("too few samples ({fewest})"))
}

/// `104 ±3`: the larger of the two distances from the median to a quartile; one sample has none.
pub(crate) fn with_quartiles(pair: &LatencyPair) -> String {
    if pair.samples_ns.len() < 2 {
        return nanoseconds(pair.median_ns);
    }
    let spread = (pair.high_ns - pair.median_ns).max(pair.median_ns - pair.low_ns);
    format!("{} ±{}", nanoseconds(pair.median_ns), nanoseconds(spread))
}

/// Heat over the medians: from the least to the most, twice the least at least.
pub(crate) fn scale(matrix: &LatencyMatrix) -> Scale {
    Scale::over(matrix.pairs.iter().map(|pair| pair.median_ns))
}

/// The matrices of a survey, the warnings about them, and how they were made; with `details` also a line a pair with all that
/// is known of it. Every heading says where the figures come from.
pub fn survey(survey: &Survey, machine: &Machine, details: bool) -> Document {
    let maps = maps(survey);
    let is_nothing = maps.is_empty() && streamed(survey).all(|(_, it)| it.is_none());
    let title = match is_nothing {
        true => "Nothing was measured",
        false => "Near and far memory",
    };
    let mut out = Document::with_head(Head {
        tool: summary::name(machine),
        title: title.to_owned(),
        remark: label(survey.emulation.as_ref()),
        emulated: survey.emulation.as_ref().map(ToString::to_string),
        ..Head::default()
    });
    for mut map in maps {
        // A table of an emulated machine always carries its label.
        if let Some(emulation) = &survey.emulation {
            map.remark += &format!("; {emulation}");
        }
        let cells = map.cells.iter().flatten().flatten().filter(|_| details);
        let pairs: Vec<String> = cells.map(|cell| cell.about.clone()).collect();
        out.heat_map(map);
        for pair in pairs {
            out.indented(4, "", Dim.text(pair));
        }
    }
    if let Some(measured) = &survey.loaded {
        loaded_curves(measured, &mut out);
    }
    if let Some(measured) = &survey.interleaved {
        placements(measured, &mut out);
    }
    out.heading("How the figures were made", "");
    for text in left_out(survey) {
        out.labelled(Dim.text("not measured: "), text);
    }
    warnings(survey).iter().for_each(|it| out.warning(it));
    methods(survey).iter().for_each(|it| out.remark(it));
    out
}

/// How the parts were measured in which several threads use memory together.
fn streamed(survey: &Survey) -> impl Iterator<Item = (Part, Option<&Method>)> {
    let bandwidth = survey.bandwidth.as_ref().map(|it| &it.method);
    let loaded = survey.loaded.as_ref().map(|it| &it.method);
    let interleaved = survey.interleaved.as_ref().map(|it| &it.method);
    [
        (Part::Bandwidth, bandwidth),
        (Part::Loaded, loaded),
        (Part::Interleaved, interleaved),
    ]
    .into_iter()
}

/// What was not measured, and why.
fn left_out(survey: &Survey) -> Vec<String> {
    let of_latency = survey.latency.iter().flat_map(|matrix| &matrix.skipped);
    let of_streams = streamed(survey).flat_map(|(_, it)| it.map_or(&[][..], |it| &it.skipped));
    let mut lines: Vec<String> = Vec::new();
    for line in of_latency.chain(of_streams).map(skipped_pair) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let transfers = survey.transfer.as_ref();
    let transfers = transfers.map_or(&[][..], |matrix| &matrix.skipped);
    lines.extend(transfers.first().map(|example| {
        let pairs = count(transfers.len(), "pair");
        let (first, second, reason) = (example.first, example.second, &example.reason);
        format!("{pairs} of CPUs, such as {first} and {second}: {reason}")
    }));
    let parts = survey.not_measured.iter();
    lines.extend(parts.map(|part| format!("{}: {}", part.part, part.reason)));
    lines
}

/// The warnings, each once, with the parts that have it where not all have; of other loads the largest.
fn warnings(survey: &Survey) -> Vec<String> {
    let latency = survey.latency.as_ref().map(|it| &it.warnings[..]);
    let transfer = survey.transfer.as_ref().map(|it| &it.warnings[..]);
    let of_streams = streamed(survey).map(|(part, it)| (part, it.map(|it| &it.warnings[..])));
    let parts: Vec<(Part, Option<&[Warning]>)> = [(Part::Latency, latency)]
        .into_iter()
        .chain(of_streams)
        .chain([(Part::Transfer, transfer)])
        .collect();
    let measured = parts.iter().filter(|(_, warnings)| warnings.is_some());
    let measured = measured.count();
    let mut seen: Vec<(&Warning, Vec<Part>)> = Vec::new();
    for (part, warnings) in parts {
        for warning in warnings.into_iter().flatten() {
            match seen.iter_mut().find(|(other, _)| is_same(other, warning)) {
                Some((other, parts)) => {
                    if load(other) < load(warning) {
                        *other = warning;
                    }
                    parts.push(part);
                }
                None => seen.push((warning, vec![part])),
            }
        }
    }
    let text = |(warning, of): (&Warning, Vec<Part>)| {
        let names: Vec<String> = of.iter().map(ToString::to_string).collect();
        match of.len() == measured {
            true => warning.to_string(),
            false => format!("{}: {warning}", names.join(", ")),
        }
    };
    seen.into_iter().map(text).collect()
}

/// Whether two warnings need one sentence only: other load differs from part to part, and is one thing.
fn is_same(a: &Warning, b: &Warning) -> bool {
    a == b || load(a).is_some() && load(b).is_some()
}

/// How much other load a warning is about, in percent of a CPU.
fn load(warning: &Warning) -> Option<f64> {
    match warning {
        Warning::OtherLoad { percent } => Some(*percent),
        _ => None,
    }
}

/// How each part was made.
fn methods(survey: &Survey) -> Vec<String> {
    let latency = survey.latency.as_ref().map(latency_method);
    let bandwidth = survey.bandwidth.as_ref().map(|matrix| {
        let what = "plain loops over {buffer} on each node ({pages}), a part for each thread, threads pinned and started together";
        let figures = matrix.pairs.iter().map(|pair| &pair.bytes_per_s);
        stream_method("Bandwidth", what, &matrix.method, quality("medians and quartiles", figures))
    });
    let loaded = survey.loaded.as_ref().map(|measured| {
        let what = "dependent loads over one random cycle through half of {buffer} on each node ({pages}), while the other CPUs read parts of the \
                    other half and compute after each line";
        let points = measured.curves.iter().flat_map(|curve| &curve.points);
        let quality = quality("medians and quartiles", points.map(|it| &it.latency_ns));
        stream_method("Loaded", what, &measured.method, quality)
    });
    let interleaved = survey.interleaved.as_ref().map(|measured| {
        let what = "all CPUs read parts of half of {buffer} on each node ({pages}), or as much on all nodes by turns; then one does dependent loads over \
                    one random cycle through the other half";
        let latencies = measured.placements.iter().map(|it| &it.latency_ns);
        let quality = quality("medians and quartiles", latencies);
        stream_method("Interleaved", what, &measured.method, quality)
    });
    let transfer = survey.transfer.as_ref().map(transfer_method);
    [latency, bandwidth, loaded, interleaved, transfer]
        .into_iter()
        .flatten()
        .collect()
}

fn latency_method(matrix: &LatencyMatrix) -> String {
    let medians = matrix.pairs.iter();
    let medians = medians.map(|pair| (pair.median_ns, pair.confidence_ns));
    format!("Latency: {}; {}.", method(matrix), sure(medians))
}

/// How many samples there are of each pair, and how sure their medians are.
fn quality<'a>(what: &str, figures: impl Iterator<Item = &'a Figures> + Clone) -> String {
    let samples = figures.clone().map(|figures| figures.samples.len());
    let medians = figures.map(|figures| (figures.median, figures.confidence));
    format!("{} per pair; {}", of_samples(what, samples), sure(medians))
}

fn stream_method(part: &str, what: &str, method: &Method, quality: String) -> String {
    let what = what.replace("{buffer}", &bytes(method.buffer_bytes));
    let what = what.replace("{pages}", &method.page_kind.to_string());
    format!(
        "{part}: {what}; {:.0} ms counted in the middle of each run; {quality}; {:.1} s.",
        method.window_s * 1e3,
        method.elapsed_s,
    )
}

fn transfer_method(matrix: &TransferMatrix) -> String {
    let figures = matrix.pairs.iter().map(|pair| &pair.round_trip_ns);
    let some =
        "one pair of CPUs for each thing they share and each pair of nodes (--all-cpus for all)";
    let which = match matrix.all_cpus {
        true => "every pair of CPUs",
        false => some,
    };
    format!(
        "Transfer: two pinned threads store and await numbers in one line; {which}; {}; {:.1} s.",
        quality("medians", figures),
        matrix.elapsed_s,
    )
}

/// How sure the least sure median is.
fn sure(medians: impl Iterator<Item = (f64, Option<Interval>)>) -> String {
    let half = |(median, interval): (f64, Option<Interval>)| {
        let interval = interval?;
        Some((interval.high - median).max(median - interval.low) / median * 100.0)
    };
    let halves: Option<Vec<f64>> = medians.map(half).collect();
    match halves.and_then(|halves| halves.into_iter().max_by(f64::total_cmp)) {
        Some(widest) => format!("95 % confidence of a median: within {widest:.1} % or closer"),
        None => "too few samples for confidence intervals".to_owned(),
    }
}

const TITLE: &str = "Loaded latency";

/// The measured loads of each node, from none to the most, and the same as a picture.
fn loaded_curves(all: &LoadedLatency, out: &mut Document) {
    let remark = "ns per load of one CPU, while the others of its node read so much of its memory";
    out.heading(TITLE, label(all.method.emulation.as_ref()));
    out.remark(remark);
    let mut table = Table::of([">node", ">steps after a line", ">read GB/s", ">ns"]);
    for curve in &all.curves {
        for point in &curve.points {
            table.row(cells![
                Heading.text(curve.node),
                or(point.pause, "idle"),
                read_rate(&point.read_bytes_per_s),
                load_time(&point.latency_ns),
            ]);
        }
    }
    out.table(table);
    let points = || all.curves.iter().flat_map(|curve| &curve.points);
    out.chart(Chart {
        title: TITLE.to_owned(),
        about: "Medians: what a load takes over what the other CPUs of the node read meanwhile; a line a node.".to_owned(),
        plot: Plot::Lines {
            x: Axis::from_zero("GB/s (10^9 bytes)", points().map(|it| place(it).0)),
            y: Axis::from_zero("ns per load", points().map(|it| place(it).1)),
            dots: Vec::new(),
            lines: all.curves.iter().map(curve_line).collect(),
        },
    });
}

/// GB/s with their spread.
fn read_rate(bytes_per_s: &Figures) -> String {
    let gb = bytes_per_s.median / 1e9;
    let text = |bytes_per_s: f64| format!("{:.1$}", bytes_per_s / 1e9, digits(gb));
    let read = measured("read", "GB/s", gb, bytes_per_s, text);
    read.value + &read.spread
}

/// Nanoseconds with their spread.
fn load_time(ns: &Figures) -> String {
    let latency = measured("latency", "ns", ns.median, ns, nanoseconds);
    latency.value + &latency.spread
}

fn curve_line(curve: &LoadedCurve) -> Line {
    let mut points: Vec<(f64, f64)> = curve.points.iter().map(place).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    Line {
        name: format!("node {}, {} readers", curve.node, curve.readers.len()),
        points,
    }
}

fn place(point: &LoadedPoint) -> (f64, f64) {
    (point.read_bytes_per_s.median / 1e9, point.latency_ns.median)
}

/// What each placement gives all CPUs, and one of them.
fn placements(all: &InterleavedMemory, out: &mut Document) {
    out.heading("Interleaved memory", label(all.method.emulation.as_ref()));
    out.remark(format!(
        "what all {} CPUs read together, and ns per load of CPU {} alone, by where their memory is",
        all.readers.len(),
        all.cpu
    ));
    let mut table = Table::of(["memory", ">read GB/s", ">ns"]);
    for it in &all.placements {
        table.row(cells![
            Heading.text(it.memory),
            read_rate(&it.read_bytes_per_s),
            load_time(&it.latency_ns),
        ]);
    }
    out.table(table);
}

/// All maps, in the order they were measured.
fn maps(survey: &Survey) -> Vec<HeatMap> {
    let mut maps = Vec::new();
    if let Some(matrix) = &survey.latency {
        maps.push(map(matrix));
        maps.extend(relative(matrix));
    }
    if let Some(matrix) = &survey.bandwidth {
        maps.extend(Traffic::ALL.map(|traffic| bandwidth(matrix, traffic)));
    }
    maps.extend(survey.transfer.as_ref().map(transfer));
    maps.retain(|map| !map.columns.is_empty());
    maps
}

fn in_nanoseconds(heat: f64) -> String {
    format!("{} ns", nanoseconds(heat))
}

/// A median with the larger of its distances to a quartile; one sample has no quartiles.
fn measured(
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
pub(crate) fn map(matrix: &LatencyMatrix) -> HeatMap {
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
    let map = HeatMap {
        title: "Latency".to_owned(),
        remark: "ns per load; row: node of the CPU, column: node of the memory".to_owned(),
        ..HeatMap::of(scale(matrix), in_nanoseconds)
    };
    map.by_node(matrix.pairs.iter().map(cell))
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
    let cells: Vec<((NodeId, NodeId), HeatCell)> = matrix.pairs.iter().filter_map(cell).collect();
    let scale = Scale::over(cells.iter().map(|(_, cell)| cell.heat));
    let map = HeatMap {
        title: "Latency, relative".to_owned(),
        remark: "times the nearest of the row: measured/what the distances say".to_owned(),
        ..HeatMap::of(scale, |heat| format!("{heat:.1}"))
    };
    let map = map.by_node(cells);
    (map.columns.len() > 1).then_some(map)
}

/// Digits behind the point of so many GB/s.
fn digits(gigabytes: f64) -> usize {
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
        (Some(&maps), _) => count(maps, "thread"),
        _ => String::new(),
    };
    let what = match traffic {
        Traffic::Read => "all loads",
        Traffic::Write => "plain stores",
        Traffic::Copy => "loads and stores, both counted",
    };
    let scale = Scale::over(of_traffic().map(|pair| heat(&pair.bytes_per_s)));
    let legend = |heat: f64| format!("{:.1$} GB/s", 1.0 / heat, digits(1.0 / heat));
    let map = HeatMap {
        title: format!("Bandwidth, {traffic}"),
        remark: format!("GB/s (10^9 bytes), {what}; {threads} per node"),
        scale_of: " of the time a byte takes",
        ..HeatMap::of(scale, legend)
    };
    map.by_node(cells)
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
    let has_others = own.remove(&Nearness::Nodes);
    let others = nodes.iter().filter(|_| has_others);
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
    let pairs = matrix.pairs.iter();
    let cpus = pairs.clone().flat_map(|pair| [pair.first, pair.second]);
    let cpus: BTreeSet<CpuId> = cpus.collect();
    // Pairs are many: looked up, not searched.
    let pairs = pairs.map(|pair| ((pair.first, pair.second), pair));
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
