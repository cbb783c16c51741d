//! The section `[timing]`.

use nearfar_machine::{
    Bandwidth, DelayFault, DistanceDelay, Latency, LineDelay, MAX_DELAY_NS, Machine, NodeId,
    Timing, megabytes,
};
use toml::Spanned;

use super::fault::Faults;
use super::file::{LatencyEntry, TimingEntry};
use crate::error::TextError;

pub(super) fn read(
    file: &TimingEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Timing, TextError> {
    let limit = |value, key| part(value, key, faults, |&gb_per_s| megabytes(gb_per_s));
    Ok(Timing {
        latencies: latencies(file, machine, faults)?,
        cache: part(&file.cache, "cache", faults, |text| text.parse())?,
        transfer: transfer(file, machine, faults)?,
        bandwidth: Bandwidth {
            memory_mb_per_s: limit(&file.bandwidth, "bandwidth")?,
            link_mb_per_s: limit(&file.link, "link")?,
            stream_mb_per_s: limit(&file.stream, "stream")?,
        },
        instruction_ps: part(&file.instruction, "instruction", faults, |&ns| {
            picoseconds(ns)
        })?,
        sources: match file.sources.is_empty() {
            true => vec![machine.origin.place.clone()],
            false => file.sources.clone(),
        },
        between_cpus: Vec::new(),
    })
}

/// Of nanoseconds of an instruction.
fn picoseconds(ns: f64) -> Result<u32, DelayFault> {
    match (0.001..=1000.0).contains(&ns) {
        true => Ok((ns * 1000.0).round() as u32),
        false => Err(DelayFault::Instruction),
    }
}

fn part<V, T>(
    value: &Option<Spanned<V>>,
    key: &str,
    faults: &Faults<'_>,
    read: impl Fn(&V) -> Result<T, DelayFault>,
) -> Result<Option<T>, TextError> {
    let part =
        |value: &Spanned<V>| read(value.get_ref()).map_err(|fault| faults.at(value, key, fault));
    value.as_ref().map(part).transpose()
}

fn transfer(
    file: &TimingEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Option<LineDelay>, TextError> {
    let read: Option<LineDelay> = part(&file.transfer, "transfer", faults, |text| text.parse())?;
    if let (Some(text), Some(all)) = (&file.transfer, machine.distances.get()) {
        let is_between_nodes = |it: &&DistanceDelay| {
            let mut entries = all.entries();
            entries.any(|(from, to, distance)| from != to && distance == Some(it.distance))
        };
        let mut asked = read.iter().flat_map(|it| &it.by_distance);
        if let Some(unknown) = asked.find(|it| !is_between_nodes(it)) {
            let fault = format!("no two nodes are at distance {}", unknown.distance.0);
            return Err(faults.at(text, "transfer", fault));
        }
    }
    Ok(read)
}

fn latencies(
    file: &TimingEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Vec<Latency>, TextError> {
    let Some(spanned) = &file.latency else {
        return Ok(Vec::new());
    };
    let nodes: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    let rows = spanned.get_ref();
    if rows.len() != nodes.len() || rows.iter().any(|row| row.len() != nodes.len()) {
        let wanted = format!(
            "{0} rows of {0} entries are wanted, one a node",
            nodes.len()
        );
        return Err(faults.at(spanned, "latency", wanted));
    }
    let mut all = Vec::new();
    for (&cpu_node, row) in nodes.iter().zip(rows) {
        for (&memory_node, entry) in nodes.iter().zip(row) {
            match entry {
                LatencyEntry::Ns(ns) if (1.0..=f64::from(MAX_DELAY_NS)).contains(ns) => {
                    all.push(Latency {
                        cpu_node,
                        memory_node,
                        ns: ns.round() as u32,
                    });
                }
                LatencyEntry::Unknown(mark) if mark == "-" => {}
                _ => {
                    let wanted =
                        format!("an entry is 1 to {MAX_DELAY_NS} ns, or \"-\" where it is unknown");
                    return Err(faults.at(spanned, "latency", wanted));
                }
            }
        }
    }
    Ok(all)
}
