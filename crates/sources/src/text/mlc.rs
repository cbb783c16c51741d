//! Intel's Memory Latency Checker: which nodes there are, and what accesses take.
//!
//! ```text
//! Measuring idle latencies for random access (in ns)...
//!                 Numa node
//! Numa node            0       1
//!        0          81.5   139.6
//!        1         139.4    81.9
//!
//! Measuring Memory Bandwidths between nodes within system
//! Numa node            0       1                            MB/s; rows are the CPUs' nodes
//!        0      112000.0 34000.0
//!
//! Measuring cache-to-cache transfer latency (in ns)...
//! Local Socket L2->L2 HITM latency        48.7
//! Remote Socket L2->L2 HITM latency (data address homed in writer socket)
//! Writer Numa Node     0       1
//!        0             -   111.5
//! Remote Socket L2->L2 HITM latency (data address homed in reader socket)
//! ```

use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{
    Bandwidth, Latency, LineDelay, MAX_NUMBER, NodeDelay, NodeId, Timing, delay_of, megabytes,
};

use super::lines::{self, Line};
use super::{Kind, Reading, Start};
use crate::error::second_output;

pub(super) const KIND: Kind = Kind {
    name: "mlc",
    has: "the numbers of nodes, latencies and bandwidths",
    starts: &[
        Start::new(&["Latency Checker"], r"(Intel\(R\) Memory Latency Checker)"),
        Start::new(
            &["Numa "],
            r"(?:^|\W)((?:Writer )?Numa [nN]ode(?:\s+\d+)+)\s*$",
        ),
        // Older versions: rows are sockets, columns memory nodes.
        Start::new(&["Socket"], r"^\s*(Socket(?:\s+\d+){2,})\s*$"),
        Start::new(
            &["Measuring "],
            r"(Measuring (?:idle|Peak|Memory Bandwidths|Loaded|Maximum|cache-to-cache)\b.*)$",
        ),
        Start::new(
            &["L2->L2", "LLC->LLC"],
            r"((?:Local|Remote) Socket (?:L2->L2|LLC->LLC) .*)$",
        ),
    ],
    goes_on: r"^\s*\d+(?:\s+(?:[\d.]+|-))+\s*$",
    read,
};

/// A matrix by node; rows are the CPUs' (or the writer's).
struct MlcMatrix {
    section: MlcSection,
    /// Whether its section says so; of other traffic mlc says nothing.
    is_read_only: bool,
    columns: Vec<u32>,
    entries: Vec<(u32, u32, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MlcSection {
    /// No heading stands before it.
    Unnamed,
    Latency,
    Bandwidth,
    /// Between caches of packages, of lines of the writer's memory.
    Transfer,
    /// The same, of the reader's memory.
    ReadersTransfer,
    Other,
}

/// How much figures of the same kind of pair differ, at most.
const ALIKE: f64 = 0.15;
/// The heading of the latencies, which a matrix without a heading is taken for.
const LATENCY: &str = "Measuring idle";
/// What the heading of the second matrix of transfers ends with; that of the first one says "writer".
const READER_HOMED: &str = "homed in reader socket)";

impl MlcSection {
    /// The section that a heading names, and the words that name it.
    fn of(heading: &str) -> Option<(&'static str, Self)> {
        let named = [
            (LATENCY, Self::Latency),
            ("Measuring Memory Bandwidths", Self::Bandwidth),
            ("Remote Socket L2->L2 HITM", Self::Transfer),
            ("Remote Socket LLC->LLC HITM", Self::Transfer),
            ("Measuring", Self::Other),
            ("Remote Socket", Self::Other),
        ];
        let named = named
            .into_iter()
            .find(|(words, _)| heading.starts_with(words))?;
        match named.1 == Self::Transfer && heading.contains(READER_HOMED) {
            true => Some((READER_HOMED, Self::ReadersTransfer)),
            false => Some(named),
        }
    }
}

/// Figures by the nodes of the CPUs and of the memory.
type ByPair = BTreeMap<(NodeId, NodeId), f64>;

/// What the first output of mlc in a text measured.
#[derive(Default, Debug)]
pub struct MlcFigures {
    /// Nanoseconds of a load, the memory otherwise idle.
    pub latency_ns: ByPair,
    /// Bytes a second, of reads alone.
    pub read_bytes_per_s: ByPair,
    /// What was not read, in sentences.
    pub left_out: Vec<String>,
}

/// Reads matrices below their own headings; `None` where no line of the text is mlc's.
pub fn mlc_figures(text: &str) -> Option<MlcFigures> {
    let pieces = lines::find(text);
    let piece = pieces.iter().find(|it| it.kind.name == KIND.name)?;
    let (mut keys, mut left_out) = (BTreeSet::new(), Vec::new());
    let (matrices, _) = matrices(&piece.lines, |key, line| {
        let is_second = !keys.insert(key);
        if is_second {
            left_out.push(format!("line {line}: {}", second_output(KIND.name)));
        }
        is_second
    });
    let bandwidth = first(&matrices, MlcSection::Bandwidth);
    if bandwidth.is_some_and(|it| !it.is_read_only) {
        left_out.push(
            "bandwidths left out: the text does not say that they are of reads alone".to_owned(),
        );
    }
    // mlc's megabytes are of a million bytes.
    Some(MlcFigures {
        latency_ns: by_pair(first(&matrices, MlcSection::Latency), 1.0),
        read_bytes_per_s: by_pair(bandwidth.filter(|it| it.is_read_only), 1e6),
        left_out,
    })
}

fn by_pair(matrix: Option<&MlcMatrix>, unit: f64) -> ByPair {
    let entries = matrix.into_iter().flat_map(|it| &it.entries);
    let measured = entries.filter(|(_, _, value)| *value > 0.0 && value.is_finite());
    measured
        .map(|&(row, column, value)| ((NodeId(row), NodeId(column)), value * unit))
        .collect()
}

fn first(matrices: &[MlcMatrix], section: MlcSection) -> Option<&MlcMatrix> {
    matrices.iter().find(|matrix| matrix.section == section)
}

/// The matrices of one output, and the nanoseconds of a line from another cache of the package. `is_second` is asked in each line with
/// what an output has once, and says whether another one has begun.
fn matrices(
    lines: &[Line],
    mut is_second: impl FnMut(&'static str, usize) -> bool,
) -> (Vec<MlcMatrix>, Option<u32>) {
    let (mut section, mut is_read_only) = (MlcSection::Unnamed, false);
    let (mut matrices, mut local) = (Vec::<MlcMatrix>::new(), None);
    for line in lines {
        let text = line.text.trim();
        let words: Vec<&str> = text.split_whitespace().collect();
        if let Some((heading, named)) = MlcSection::of(text) {
            // Versions differ in what follows. Other sections are not read.
            if named != MlcSection::Other && is_second(heading, line.number) {
                break;
            }
            (section, is_read_only) = (named, false);
        } else if text.contains("Read-only traffic") {
            is_read_only = true;
        } else if text.starts_with("Local Socket L2->L2 HITM") {
            local = words.last().and_then(|word| delay_of(word.parse().ok()?));
        } else if let Some(columns) = columns(&words) {
            if section == MlcSection::Unnamed && is_second(LATENCY, line.number) {
                break;
            }
            matrices.push(MlcMatrix {
                section,
                is_read_only,
                columns,
                entries: Vec::new(),
            });
        } else if let (Some(matrix), [row, values @ ..]) = (matrices.last_mut(), &words[..])
            && matrix.section == section
            && let Ok(row) = row.parse()
            && matrix.columns.contains(&row)
            && values.len() == matrix.columns.len()
        {
            let entries = matrix.columns.iter().zip(values);
            let entries =
                entries.filter_map(|(&column, value)| Some((row, column, value.parse().ok()?)));
            matrix.entries.extend(entries);
        }
    }
    (matrices, local)
}

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let (matrices, local) = matrices(lines, |key, line| reading.is_second(key, line));
    let nodes = matrices.iter().flat_map(|it| &it.columns);
    let nodes: BTreeSet<u32> = nodes.copied().collect();
    if nodes.is_empty() {
        return Err("mlc's matrix of latencies is missing".to_owned());
    }
    let node = |id| reading.node_of_unknown_cpus(NodeId(id));
    reading.machine.nodes = nodes.into_iter().map(node).collect();
    let timing = timing(&matrices, local);
    if timing == Timing::default() {
        let message = "no row of mlc's matrices is complete: what accesses take is unknown";
        reading.warnings.note_line(lines[0].number, message);
    } else {
        let sources = vec!["Intel Memory Latency Checker".to_owned()];
        reading.machine.timing = Some(Timing { sources, ..timing });
    }
    Ok(())
}

/// The nodes of a heading such as `Writer Numa Node 0 1`, or `Socket 0 1` below `Memory node`.
fn columns(words: &[&str]) -> Option<Vec<u32>> {
    let numa = words.iter().position(|word| *word == "Numa");
    let is_sockets = words.first() == Some(&"Socket");
    let start = numa.map(|at| at + 2).or(is_sockets.then_some(1))?;
    let columns = words.get(start..)?.iter().map(|word| word.parse().ok());
    let columns: Option<Vec<u32>> = columns.collect();
    columns.filter(|all| !all.is_empty() && all.iter().all(|&id| id <= MAX_NUMBER))
}

fn timing(matrices: &[MlcMatrix], local_ns: Option<u32>) -> Timing {
    let latency = first(matrices, MlcSection::Latency);
    let latency = latency.or_else(|| first(matrices, MlcSection::Unnamed));
    let latencies = latency.into_iter().flat_map(|matrix| &matrix.entries);
    let latencies = latencies.filter_map(|&(row, column, value)| {
        Some(Latency {
            cpu_node: NodeId(row),
            memory_node: NodeId(column),
            ns: delay_of(value)?,
        })
    });
    let values = |section, is_local: bool| -> Vec<f64> {
        let entries = first(matrices, section)
            .into_iter()
            .flat_map(|it| &it.entries);
        let entries = entries.filter(|(row, column, _)| (row == column) == is_local);
        entries.map(|&(_, _, value)| value).collect()
    };
    // A machine has one figure for all packages, the mean: they are alike. Nodes of one package are nearer to each other than those of
    // different ones, so that the farthest pairs are what is between packages.
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let alike = |one: f64, other: f64| (one / other - 1.0).abs() < ALIKE;
    let local = || mean(values(MlcSection::Bandwidth, true));
    let mean_near = |mut values: Vec<f64>, extreme: f64| {
        values.retain(|&it| alike(it, extreme));
        mean(values)
    };
    let link = || {
        let values = values(MlcSection::Bandwidth, false);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        mean_near(values, least)
    };
    let transfer = |section| {
        let values = values(section, false);
        let most = values.iter().copied().fold(0.0, f64::max);
        mean_near(values, most)
    };
    let megabytes = |mean: Option<f64>| megabytes(mean? / 1000.0).ok();
    let remote = transfer(MlcSection::Transfer);
    let home = transfer(MlcSection::ReadersTransfer).zip(remote);
    let home_ns = home.and_then(|(readers, writers)| delay_of(readers - writers));
    let of_both = |(same_node_ns, other_node_ns)| LineDelay {
        home_ns: home_ns.unwrap_or(0),
        ..LineDelay::from(NodeDelay {
            same_node_ns,
            other_node_ns,
            is_by_distance: false,
        })
    };
    let timing = Timing {
        transfer: local_ns.zip(remote.and_then(delay_of)).map(of_both),
        bandwidth: Bandwidth {
            memory_mb_per_s: megabytes(local()),
            link_mb_per_s: megabytes(link()),
            stream_mb_per_s: None,
        },
        ..Timing::default()
    };
    // Two rows of one node are none of mlc's; the first is taken.
    timing.with_latencies(latencies)
}
