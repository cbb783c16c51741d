//! How many tasks the scheduler moves from one node to another, counted by the kernel: no event is written or read.
//!
//! ```text
//! sched_migrate_task, on each CPU:  (orig_cpu>=0&&orig_cpu<=3)&&(dest_cpu<0||dest_cpu>3) || ...
//! ```

use std::fmt::Write as _;

use nearfar_machine::{CpuId, CpuSet, Machine};

use crate::TraceError;
use crate::format::Format;
use crate::migrations::SYSTEM;
use crate::open::Event;
use crate::tracefs::Tracefs;

const TRACEPOINT: &str = "sched_migrate_task";
/// Bytes of a filter, with its NUL (perf_event_set_filter() in kernel/events/core.c).
const MAX_FILTER_BYTES: usize = 4096;

/// Counts moves of all tasks between nodes. Dropping it closes its events.
pub struct NodeMigrations {
    events: Vec<(CpuId, Event)>,
    cpus: CpuSet,
}

impl NodeMigrations {
    /// Counts from now on, on every CPU of the running system that is online, which the machine describes.
    ///
    /// # Errors
    /// When the kernel does not let this user trace, or its nodes have too many ranges of CPUs for a filter.
    pub fn open(machine: &Machine) -> Result<Self, TraceError> {
        let nodes: Vec<&CpuSet> = machine
            .online_nodes()
            .map(|node| node.known_cpus())
            .collect();
        let filter = filter(&nodes)?;
        let format = Tracefs::find()?.tracepoint(SYSTEM, TRACEPOINT)?;
        let cpus = machine.cpu_states.online.clone();
        let mut events = Vec::new();
        for cpu in cpus.iter() {
            // One that went offline since then moves nothing.
            if let Some(event) = open_on(&format, cpu, &filter)? {
                events.push((cpu, event));
            }
        }
        match events.is_empty() {
            true => Err(TraceError::NoCpu),
            false => Ok(Self { events, cpus }),
        }
    }

    /// The CPUs that were online. What happens on one that came online later is not counted.
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// Moves since it was opened.
    ///
    /// # Errors
    /// When a count cannot be read.
    pub fn count(&self) -> Result<u64, TraceError> {
        let mut sum = 0_u64;
        for (cpu, event) in &self.events {
            let count = event.count().map_err(|source| TraceError::Step {
                step: "reading a count",
                cpu: *cpu,
                source,
            })?;
            sum = sum.saturating_add(count.occurred);
        }
        Ok(sum)
    }
}

fn open_on(format: &Format, cpu: CpuId, filter: &str) -> Result<Option<Event>, TraceError> {
    let Some(event) = Event::open_count(format, cpu)? else {
        return Ok(None);
    };
    let failed = |step: &'static str| move |source| TraceError::Step { step, cpu, source };
    event.filter(filter).map_err(failed("setting a filter"))?;
    event.enable().map_err(failed("enabling an event"))?;
    Ok(Some(event))
}

/// From a CPU of each node to one that is not of it.
fn filter(nodes: &[&CpuSet]) -> Result<String, TraceError> {
    let mut filter = String::new();
    for cpus in nodes.iter().filter(|cpus| !cpus.is_empty()) {
        let ranges = ranges(cpus);
        let join = |parts: Vec<String>, operator: &str| parts.join(operator);
        let inside = ranges.iter().map(|(first, last)| match first == last {
            true => format!("orig_cpu=={first}"),
            false => format!("(orig_cpu>={first}&&orig_cpu<={last})"),
        });
        let outside = ranges.iter().map(|(first, last)| match first == last {
            true => format!("dest_cpu!={first}"),
            false => format!("(dest_cpu<{first}||dest_cpu>{last})"),
        });
        let or = if filter.is_empty() { "" } else { "||" };
        let (inside, outside) = (join(inside.collect(), "||"), join(outside.collect(), "&&"));
        let _ = write!(filter, "{or}(({inside})&&{outside})");
    }
    match filter.len() < MAX_FILTER_BYTES {
        true => Ok(filter),
        false => Err(TraceError::LongFilter {
            event: TRACEPOINT.to_owned(),
        }),
    }
}

/// The first and last CPU of each range.
fn ranges(cpus: &CpuSet) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for CpuId(cpu) in cpus.iter() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn the_filter_passes_moves_to_other_nodes() {
        let (even, odd) = (set("0-3,8"), set("4-7"));
        assert_eq!(
            filter(&[&even, &set(""), &odd]).unwrap(),
            "(((orig_cpu>=0&&orig_cpu<=3)||orig_cpu==8)&&(dest_cpu<0||dest_cpu>3)&&dest_cpu!=8)\
             ||(((orig_cpu>=4&&orig_cpu<=7))&&(dest_cpu<4||dest_cpu>7))"
        );
    }

    #[test]
    fn a_filter_that_the_kernel_has_no_room_for_is_an_error() {
        let every_second: CpuSet = (0..512).step_by(2).map(CpuId).collect();
        assert!(matches!(
            filter(&[&every_second]),
            Err(TraceError::LongFilter { .. })
        ));
    }
}
