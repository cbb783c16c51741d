//! What accesses take on the live system, measured, as an emulated machine can have it: the section `[timing]` of a machine.
//!
//! ```text
//!  bench latency ──► latencies by pair of nodes
//!                    line transfers ──► a figure a class: same cache, same node, other node by distance
//!                    all CPUs of a node read ──► near: its memory, of another package: a link
//!  the same with one CPU ──► stream
//!  chase in half of a last-level cache ──► its hits
//!  additions that wait for each other ──► an instruction
//! ```

use std::time::{Duration, Instant};

use nearfar_loops::execute_additions;
use nearfar_machine::{
    Bandwidth, CacheModel, Latency, LineDelay, LineTransfer, Machine, NodeId, NodeSet, Timing,
    delay_of,
};
use nearfar_statistics::Summary;

use crate::bandwidth::Traffic;
use crate::buffer_size;
use crate::latency::{self, LatencyMatrix};
use crate::options::{ProbeError, ProbeOptions, check_live, on_own_thread};
use crate::survey::{self, Part, Survey, SurveyOptions};
use crate::transfer::TransferMatrix;

/// What takes part of the budget: pairs of nodes and CPUs, one CPU's stream, a cache.
const SHARES: [f64; 3] = [0.75, 0.15, 0.1];
/// All CPUs of a node together are limited by its memory where they read less than this share of what each alone would.
const IS_LIMITED: f64 = 0.9;
/// Additions in a try that times an instruction: some hundred microseconds.
const ADDITIONS: u64 = 1 << 20;
const TRIES: usize = 9;

/// Figures of a machine, and what of them is not known.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredTiming {
    pub timing: Timing,
    /// A sentence each: which figure, and why.
    pub unknown: Vec<String>,
}

/// Measures on the live system for as long as the budget of the options allows.
///
/// # Errors
/// Those of [`survey::measure`].
pub fn measure(machine: &Machine, options: &ProbeOptions) -> Result<MeasuredTiming, ProbeError> {
    check_live(machine)?;
    let [pairs, stream, cache] = SHARES.map(|share| options.budget.mul_f64(share));
    let part = |parts: &[Part], threads, budget, only: Option<NodeSet>| {
        let options = SurveyOptions {
            parts: parts.to_vec(),
            threads,
            all_cpus: false,
            probe: ProbeOptions {
                budget,
                from: only.clone(),
                to: only,
                ..options.clone()
            },
        };
        survey::measure(machine, &options).map(|measured| measured.answer)
    };
    let all = part(&Part::USUAL, None, pairs, None)?;
    let near = near_node(&all);
    let one_cpu = match &near {
        Some(node) => Some(part(
            &[Part::Bandwidth],
            Some(1),
            stream,
            Some(node.clone()),
        )?),
        None => None,
    };
    let hit_ns = match near {
        Some(node) => {
            let options = ProbeOptions {
                budget: cache,
                from: Some(node.clone()),
                to: Some(node),
                ..options.clone()
            };
            latency::of_cache_hits(machine, &options)?
        }
        None => None,
    };
    let instruction = on_own_thread(|| Ok(instruction()))?;
    // What was cut short is no figure of a machine.
    options.check_cancelled()?;
    let mut measured = of(machine, &all, one_cpu.as_ref(), hit_ns);
    measured.timing.instruction_ps = instruction;
    Ok(measured)
}

/// A node whose CPUs read its own memory.
fn near_node(survey: &Survey) -> Option<NodeSet> {
    let pairs = &survey.bandwidth.as_ref()?.pairs;
    let near = pairs.iter().find(|it| it.cpu_node == it.memory_node)?;
    Some([near.cpu_node].into_iter().collect())
}

/// Picoseconds; `None` where no loop counts instructions on this architecture.
fn instruction() -> Option<u32> {
    let tries = (0..TRIES).map(|_| {
        let start = Instant::now();
        execute_additions(ADDITIONS).then(|| start.elapsed())
    });
    let least: Duration = tries.collect::<Option<Vec<_>>>()?.into_iter().min()?;
    let ps = least.as_nanos() * 1000 / u128::from(ADDITIONS);
    u32::try_from(ps).ok().filter(|ps| *ps > 0)
}

/// The figures of what was measured.
fn of(
    machine: &Machine,
    all: &Survey,
    one_cpu: Option<&Survey>,
    hit_ns: Option<f64>,
) -> MeasuredTiming {
    let mut unknown: Vec<String> = Vec::new();
    let mut is_known = |what: &str, reason: &str, known: bool| {
        if !known {
            unknown.push(format!("{what}: {reason}"));
        }
    };
    let small = "its buffers were not much larger than the caches: it takes more seconds or memory";
    let latency = all.latency.as_ref().filter(|it| is_of_memory(it));
    let latencies = latency.map_or_else(Vec::new, latencies);
    let reason = all
        .latency
        .as_ref()
        .map_or("no pair was measured", |_| small);
    is_known("latency", reason, !latencies.is_empty());
    let cache = cache(machine, hit_ns);
    let reason =
        "size or ways of the last-level caches are unknown, or no load of one was measured";
    is_known("cache", reason, cache.is_some());
    let transfer = all.transfer.as_ref().and_then(|it| transfer(machine, it));
    let reason = all.not_measured.iter().find(|it| it.part == Part::Transfer);
    let reason = reason.map_or("no pair of CPUs was measured", |it| &it.reason);
    is_known("transfer", reason, transfer.is_some());
    let are_of_memory = |survey: &Survey| are_of_memory(machine, survey);
    let is_large = are_of_memory(all) && one_cpu.is_none_or(are_of_memory);
    let bandwidth = match is_large {
        true => bandwidth(machine, all, one_cpu),
        false => Bandwidth::default(),
    };
    let reason = |reason| if is_large { reason } else { small };
    is_known(
        "bandwidth",
        reason("the CPUs of a node together read as much as each alone: nothing limits them"),
        bandwidth.memory_mb_per_s.is_some(),
    );
    is_known(
        "link",
        reason("far memory is read as fast as near memory, or there is none"),
        bandwidth.link_mb_per_s.is_some(),
    );
    is_known(
        "stream",
        reason("one CPU was not measured"),
        bandwidth.stream_mb_per_s.is_some(),
    );
    let of_what = machine.origin.emulation.as_ref();
    let of_what = of_what.map_or_else(|| machine.origin.place.clone(), ToString::to_string);
    MeasuredTiming {
        timing: Timing {
            latencies,
            cache,
            transfer,
            bandwidth,
            instruction_ps: None,
            between_cpus: Vec::new(),
            sources: vec![format!(
                "measured by nearfar {} in {:.0} s: medians ({of_what})",
                env!("CARGO_PKG_VERSION"),
                all.elapsed_s
            )],
        },
        unknown,
    }
}

/// Whether the loads were of memory and not of caches, as far as these are known.
fn is_of_memory(matrix: &LatencyMatrix) -> bool {
    let cache = matrix.last_level_cache_bytes.unwrap_or(0);
    matrix.buffer_bytes / 2 >= cache
}

/// The same of streams.
fn are_of_memory(machine: &Machine, survey: &Survey) -> bool {
    let matrix = survey.bandwidth.as_ref();
    matrix.is_some_and(|matrix| {
        let mut pairs = matrix.pairs.iter();
        pairs.all(|it| matrix.method.buffer_bytes >= buffer_size::all_caches(machine, &it.cpus))
    })
}

fn latencies(all: &LatencyMatrix) -> Vec<Latency> {
    let latency = all.pairs.iter().filter_map(|pair| {
        Some(Latency {
            cpu_node: pair.cpu_node,
            memory_node: pair.memory_node,
            ns: delay_of(pair.median_ns)?,
        })
    });
    latency.collect()
}

/// The largest last-level cache.
fn cache(machine: &Machine, hit_ns: Option<f64>) -> Option<CacheModel> {
    let modelled = machine.origin.emulation.as_ref().and_then(|it| it.delays());
    let (bytes, ways) = match modelled {
        Some(delays) => (delays.cache.bytes, delays.cache.ways),
        None => {
            let sizes = machine.last_level_caches();
            let sizes = sizes.filter_map(|it| Some((*it.size_bytes.get()?, it.ways?)));
            sizes.filter(|(_, ways)| *ways > 0).max()?
        }
    };
    CacheModel::new(bytes, ways, delay_of(hit_ns?)?).ok()
}

fn transfer(machine: &Machine, matrix: &TransferMatrix) -> Option<LineDelay> {
    let one_way = matrix.pairs.iter().map(|pair| LineTransfer {
        nearness: pair.nearness,
        distance: pair.distance,
        ns: pair.round_trip_ns.median / 2.0,
    });
    LineDelay::of_transfers(one_way, machine)
}

fn bandwidth(machine: &Machine, all: &Survey, one_cpu: Option<&Survey>) -> Bandwidth {
    let are_of_one_package = |one: NodeId, other: NodeId| {
        let package = |node| {
            let cpu = machine.node(node)?.known_cpus().first()?;
            machine.cpu(cpu)?.package_leader
        };
        package(one).is_some() && package(one) == package(other)
    };
    let reads = |survey: &Survey, is_near: bool| {
        let pairs = survey.bandwidth.iter().flat_map(|it| &it.pairs);
        let pairs = pairs.filter(|it| it.traffic == Traffic::Read);
        let pairs = pairs.filter(|it| match is_near {
            true => it.cpu_node == it.memory_node,
            false => {
                it.cpu_node != it.memory_node && !are_of_one_package(it.cpu_node, it.memory_node)
            }
        });
        let all: Vec<(f64, usize)> = pairs
            .map(|it| (it.bytes_per_s.median, it.cpus.len()))
            .collect();
        let rates: Vec<f64> = all.iter().map(|it| it.0).collect();
        Some((median(&rates)?, all.iter().map(|it| it.1).max()?))
    };
    let stream = one_cpu
        .and_then(|survey| reads(survey, true))
        .map(|it| it.0);
    let near = reads(all, true).filter(|&(rate, cpus)| {
        stream.is_none_or(|stream| rate < IS_LIMITED * stream * cpus as f64)
    });
    let far = reads(all, false).filter(|far| reads(all, true).is_some_and(|near| far.0 < near.0));
    // A single CPU waits longer for each far line, and that alone makes its stream slower.
    let far = far.filter(|&(_, cpus)| cpus > 1);
    let megabytes = |rate: f64| nearfar_machine::megabytes(rate / 1e9).ok();
    Bandwidth {
        memory_mb_per_s: near.and_then(|it| megabytes(it.0)),
        link_mb_per_s: far.and_then(|it| megabytes(it.0)),
        stream_mb_per_s: stream.and_then(megabytes),
    }
}

fn median(values: &[f64]) -> Option<f64> {
    Summary::of(values).map(|it| it.median)
}
