//! Measured latencies, bandwidths and transfers: the survey of `nearfar bench latency`, and how its figures are written.

mod interleaved;
mod loaded;
mod maps;
mod survey;

use nearfar_bench::latency::{LatencyMatrix, LatencyPair, SkippedPair};
use nearfar_machine::{Emulation, NodeId};

use crate::amount::{bytes, count, nanoseconds, or};
use crate::document::Scale;

pub(crate) use maps::latency as map;
pub use survey::survey;

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
