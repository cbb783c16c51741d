//! A survey: its matrices, the warnings about them, and how they were made.

use nearfar_bench::bandwidth::BandwidthMatrix;
use nearfar_bench::latency::{LatencyMatrix, SkippedPair, Warning};
use nearfar_bench::survey::{Part, Survey};
use nearfar_bench::transfer::TransferMatrix;
use nearfar_machine::Machine;
use nearfar_statistics::Interval;

use super::{panels, skipped_pair};
use crate::amount::{bytes, count};
use crate::document::{Document, Head, HeatMap, Text};
use crate::style::Role;
use crate::summary;

/// The matrices of a survey, the warnings about them, and how they were made; with `details` also a line a pair with all that
/// is known of it. Every heading says where the figures come from.
pub fn survey(survey: &Survey, machine: &Machine, details: bool) -> Document {
    let maps = panels::all(survey);
    let title = if maps.is_empty() {
        "Nothing was measured"
    } else {
        "Near and far memory"
    };
    let mut out = Document::with_head(Head {
        tool: summary::name(machine),
        title: title.to_owned(),
        remark: label(survey),
        emulated: survey.emulation.as_ref().map(ToString::to_string),
        ..Head::default()
    });
    for mut map in maps {
        // A table of an emulated machine always carries its label.
        if let Some(emulation) = &survey.emulation {
            map.remark += &format!("; {emulation}");
        }
        let pairs = details.then(|| every_pair(&map));
        out.heat_map(map);
        out.append(pairs.unwrap_or_default());
    }
    out.heading("How the figures were made", "");
    for (what, text) in left_out(survey) {
        out.labelled(Text::new(Role::Dim, what), text);
    }
    warnings(survey).into_iter().for_each(|it| out.warning(it));
    methods(survey).iter().for_each(|it| out.remark(it));
    out
}

/// That the figures were measured now, or the label of the emulated machine.
fn label(survey: &Survey) -> String {
    survey
        .emulation
        .as_ref()
        .map_or_else(|| "measured in this run".to_owned(), ToString::to_string)
}

fn every_pair(map: &HeatMap) -> Document {
    let mut out = Document::new();
    for cell in map.cells.iter().flatten().flatten() {
        out.indented(4, "", Text::new(Role::Dim, &cell.about));
    }
    out
}

/// What was not measured, and why.
fn left_out(survey: &Survey) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut pairs: Vec<&SkippedPair> = Vec::new();
    let of_latency = survey.latency.iter().flat_map(|matrix| &matrix.skipped);
    for skipped in of_latency.chain(survey.bandwidth.iter().flat_map(|matrix| &matrix.skipped)) {
        if !pairs.contains(&skipped) {
            pairs.push(skipped);
        }
    }
    let first = || "not measured: ".to_owned();
    lines.extend(
        pairs
            .into_iter()
            .map(|skipped| (first(), skipped_pair(skipped))),
    );
    let transfers = survey
        .transfer
        .as_ref()
        .map_or(&[][..], |matrix| &matrix.skipped);
    if let Some(example) = transfers.first() {
        let pairs = count(transfers.len(), "pair");
        let text = format!(
            "{pairs} of CPUs, such as {} and {}: {}",
            example.first, example.second, example.because
        );
        lines.push((first(), text));
    }
    lines.extend(
        survey
            .not_measured
            .iter()
            .map(|part| (first(), format!("{}: {}", part.part, part.because))),
    );
    lines
}

/// The warnings, each once, with the parts that have it where not all have; of other loads the largest.
fn warnings(survey: &Survey) -> Vec<String> {
    let parts: Vec<(Part, &[Warning])> = [
        survey
            .latency
            .as_ref()
            .map(|matrix| (Part::Latency, &matrix.warnings[..])),
        survey
            .bandwidth
            .as_ref()
            .map(|matrix| (Part::Bandwidth, &matrix.warnings[..])),
        survey
            .transfer
            .as_ref()
            .map(|matrix| (Part::Transfer, &matrix.warnings[..])),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut seen: Vec<(&Warning, Vec<Part>)> = Vec::new();
    for (part, warnings) in &parts {
        for warning in *warnings {
            match seen.iter_mut().find(|(other, _)| same(other, warning)) {
                Some((other, parts)) => {
                    *other = if load(other) < load(warning) {
                        warning
                    } else {
                        other
                    };
                    parts.push(*part);
                }
                None => seen.push((warning, vec![*part])),
            }
        }
    }
    let text = |(warning, of): (&Warning, Vec<Part>)| match of.len() == parts.len() {
        true => warning.to_string(),
        false => format!(
            "{}: {warning}",
            of.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    seen.into_iter().map(text).collect()
}

/// Whether two warnings need one sentence only: other load differs from part to part, and is one thing.
fn same(a: &Warning, b: &Warning) -> bool {
    a == b || load(a).is_some() && load(b).is_some()
}

/// How much other load a warning is about, in percent of a CPU.
fn load(warning: &Warning) -> Option<f64> {
    if let Warning::OtherLoad { percent } = warning {
        Some(*percent)
    } else {
        None
    }
}

/// How each part was made.
fn methods(survey: &Survey) -> Vec<String> {
    let parts = [
        survey.latency.as_ref().map(|matrix| {
            format!(
                "Latency: {}; {}.",
                super::method(matrix),
                latency_sure(matrix)
            )
        }),
        survey.bandwidth.as_ref().map(bandwidth_method),
        survey.transfer.as_ref().map(transfer_method),
    ];
    parts.into_iter().flatten().collect()
}

fn latency_sure(matrix: &LatencyMatrix) -> String {
    sure(
        matrix
            .pairs
            .iter()
            .map(|pair| (pair.median_ns, pair.confidence_ns)),
    )
}

fn bandwidth_method(matrix: &BandwidthMatrix) -> String {
    let figures = || matrix.pairs.iter().map(|pair| &pair.bytes_per_s);
    format!(
        "Bandwidth: plain loops over {} on each node ({}), a part for each thread, threads pinned and started together; {:.0} \
         ms counted in the middle of each run; {} a pair; {}; {:.1} s.",
        bytes(matrix.buffer_bytes),
        matrix.page_kind,
        matrix.window_s * 1e3,
        super::of_samples(
            "medians and quartiles",
            figures()
                .map(|figures| figures.samples.len())
                .min()
                .unwrap_or(0)
        ),
        sure(figures().map(|figures| (figures.median, figures.confidence))),
        matrix.elapsed_s,
    )
}

fn transfer_method(matrix: &TransferMatrix) -> String {
    let figures = || matrix.pairs.iter().map(|pair| &pair.round_trip_ns);
    let which = match matrix.all_cpus {
        true => "every pair of CPUs",
        false => {
            "one pair of CPUs for each thing they share and each pair of nodes (--all-cpus for all)"
        }
    };
    format!(
        "Transfer: two pinned threads store and await numbers in one line; {which}; {} a pair; {}; {:.1} s.",
        super::of_samples(
            "medians",
            figures()
                .map(|figures| figures.samples.len())
                .min()
                .unwrap_or(0)
        ),
        sure(figures().map(|figures| (figures.median, figures.confidence))),
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
