//! A survey: its matrices, the warnings about them, and how they were made.

use nearfar_bench::bandwidth::Method;
use nearfar_bench::latency::{LatencyMatrix, Warning};
use nearfar_bench::survey::{Part, Survey};
use nearfar_bench::transfer::TransferMatrix;
use nearfar_machine::Machine;
use nearfar_statistics::{Figures, Interval};

use super::{interleaved, loaded, maps, skipped_pair};
use crate::amount::{bytes, count};
use crate::document::{Document, Head};
use crate::style::Role::Dim;
use crate::summary;

/// The matrices of a survey, the warnings about them, and how they were made; with `details` also a line a pair with all that
/// is known of it. Every heading says where the figures come from.
pub fn survey(survey: &Survey, machine: &Machine, details: bool) -> Document {
    let maps = maps::all(survey);
    let is_nothing = maps.is_empty() && streamed(survey).all(|(_, it)| it.is_none());
    let title = match is_nothing {
        true => "Nothing was measured",
        false => "Near and far memory",
    };
    let mut out = Document::with_head(Head {
        tool: summary::name(machine),
        title: title.to_owned(),
        remark: super::label(survey.emulation.as_ref()),
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
        loaded::curves(measured, &mut out);
    }
    if let Some(measured) = &survey.interleaved {
        interleaved::placements(measured, &mut out);
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
    let transfers = survey
        .transfer
        .as_ref()
        .map_or(&[][..], |matrix| &matrix.skipped);
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
    let measured = parts
        .iter()
        .filter(|(_, warnings)| warnings.is_some())
        .count();
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
    let medians = matrix
        .pairs
        .iter()
        .map(|pair| (pair.median_ns, pair.confidence_ns));
    format!("Latency: {}; {}.", super::method(matrix), sure(medians))
}

/// How many samples there are of each pair, and how sure their medians are.
fn quality<'a>(what: &str, figures: impl Iterator<Item = &'a Figures> + Clone) -> String {
    let samples = figures.clone().map(|figures| figures.samples.len());
    let medians = figures.map(|figures| (figures.median, figures.confidence));
    format!(
        "{} per pair; {}",
        super::of_samples(what, samples),
        sure(medians)
    )
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
    let which = match matrix.all_cpus {
        true => "every pair of CPUs",
        false => {
            "one pair of CPUs for each thing they share and each pair of nodes (--all-cpus for all)"
        }
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
