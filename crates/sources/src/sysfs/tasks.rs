//! Processes: where they may run, where they ran last, and where their memory is.
//!
//! ```text
//! proc/PID/status      Cpus_allowed_list, Mems_allowed_list, VmLck, VmPin
//! proc/PID/stat        times, last CPU
//! proc/PID/numa_maps   a line a mapping: policy, and pages by node (N0=12)
//! proc/PID/sched       numa_preferred_nid
//! ```
//!
//! A process can end between two of these files: then what could not be read is unknown, and a process of which
//! neither `stat` nor `status` is left was never there. Command lines and environments are not read.

mod memory;

use std::io::BufReader;

use nearfar_machine::{CpuSet, Known, NodeId, NodeSet, Task};
use nearfar_proc::Stat;
use nearfar_proc::sched::Sched;
use nearfar_proc::status::Status;

use super::notes::{Notes, read_noted};
use crate::parallel;
use crate::tree::{Directory, Reason, Tree, Unreadable};
use crate::value::ValueError;
use crate::want::TaskScope;

/// `PID_MAX_LIMIT` of 64-bit kernels.
const MOST_TASKS: usize = 4_194_304;
/// Length of a clock tick as procfs counts: `USER_HZ` is 100 on every architecture that is left.
const TICK_MS: u64 = 10;
const MALFORMED: &str = "not there, or not as the kernel writes it";

/// Reads the processes that were asked for, by number.
pub(crate) fn read(tree: &Tree, scope: &TaskScope, notes: &Notes) -> Known<Vec<Task>> {
    let mut pids: Vec<i32> = match scope {
        TaskScope::None => return Known::no("not asked for"),
        TaskScope::Of(pids) => pids.clone(),
        TaskScope::All => match tree.list("proc") {
            Ok(names) => names
                .iter()
                .filter_map(|name| name.parse().ok())
                .take(MOST_TASKS)
                .collect(),
            Err(error) => return Known::no(error.to_string()),
        },
    };
    pids.retain(|&pid| pid > 0);
    pids.sort_unstable();
    pids.dedup();
    let read = parallel::map(&pids, |&pid| read_one(tree, notes, pid));
    Known::Yes(read.into_iter().flatten().collect())
}

fn read_one(tree: &Tree, notes: &Notes, pid: i32) -> Option<Task> {
    let directory = tree.directory(&format!("proc/{pid}")).ok()?;
    let stat = read_noted(&directory, "stat", notes, |bytes| {
        Stat::parse_with_name(bytes).ok_or_else(|| ValueError::Truncated(MALFORMED.to_owned()))
    });
    let status = directory.with_bytes("status", InStatus::parse);
    if stat.is_none() && matches!(status, Err(Reason::Absent)) {
        return None;
    }
    let status = status.map_err(|reason| directory.unreadable("status", reason));
    let (memory, policies) = memory(tree, &directory);
    let no_stat = || format!("{}: {MALFORMED}", directory.display("stat"));
    let (stat, name) = stat.unzip();
    Some(Task {
        pid,
        name: name.map_or_else(String::new, |name| name.to_string()),
        allowed_cpus: in_status(&directory, &status, "Cpus_allowed_list", |status| {
            status.cpus.clone()
        }),
        allowed_nodes: in_status(&directory, &status, "Mems_allowed_list", |status| {
            status.nodes.clone()
        }),
        last_cpu: Known::from_option(stat.and_then(|stat| stat.cpu), no_stat),
        memory,
        policies,
        preferred_node: preferred_node(&directory),
        pinned_bytes: in_status(&directory, &status, "VmLck", |status| status.pinned_bytes),
        cpu_ms: Known::from_option(stat.map(|stat| cpu_ms(&stat)), no_stat),
    })
}

/// What is of interest in `status`.
struct InStatus {
    cpus: Option<CpuSet>,
    nodes: Option<NodeSet>,
    pinned_bytes: Option<u64>,
}

impl InStatus {
    fn parse(content: &[u8]) -> Self {
        let status = Status::of(content);
        Self {
            cpus: status.allowed_cpus(),
            nodes: status.allowed_nodes(),
            pinned_bytes: status.pinned_bytes(),
        }
    }
}

fn in_status<T>(
    directory: &Directory<'_>,
    status: &Result<InStatus, Unreadable>,
    line: &str,
    get: impl FnOnce(&InStatus) -> Option<T>,
) -> Known<T> {
    match status {
        Ok(status) => Known::from_option(get(status), || {
            format!("{}: no usable line {line}", directory.display("status"))
        }),
        Err(error) => Known::no(error.to_string()),
    }
}

fn cpu_ms(stat: &Stat) -> u64 {
    let ticks = stat.user_ticks.saturating_add(stat.system_ticks);
    ticks.saturating_mul(TICK_MS)
}

type Memory = (
    Known<Vec<nearfar_machine::NodeBytes>>,
    Known<Vec<nearfar_machine::PolicyBytes>>,
);

/// `numa_maps` of another user's process opens and then fails, or is empty.
fn memory(tree: &Tree, directory: &Directory<'_>) -> Memory {
    let path = format!("{}/numa_maps", directory.path());
    let because = match tree.file(&path) {
        Ok(file) => match memory::read(BufReader::with_capacity(64 << 10, file)) {
            Ok(maps) => return (Known::Yes(maps.nodes()), Known::Yes(maps.policies())),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                tree.unreadable(&path, Reason::Denied).to_string()
            }
            Err(error) => format!("{}: {error}", tree.display(&path)),
        },
        Err(error) => error.to_string(),
    };
    (Known::no(because.clone()), Known::no(because))
}

/// `numa_preferred_nid`, which `sched` has with CONFIG_SCHED_DEBUG and CONFIG_NUMA_BALANCING; -1 is none.
fn preferred_node(directory: &Directory<'_>) -> Known<Option<NodeId>> {
    let found = directory.with_bytes("sched", |bytes| Sched::of(bytes).preferred_node());
    match found {
        Ok(Some(node)) => Known::Yes(node),
        Ok(None) => Known::no(format!(
            "{}: no numa_preferred_nid in it",
            directory.display("sched")
        )),
        Err(reason) => Known::no(directory.unreadable("sched", reason).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_both_modes_are_milliseconds_on_a_cpu() {
        let rest = " S 1 2 3 0 -1 4194560 1 2 3 4 120 30 5 6 20 0 1 0 100 2048 300 1 1 1 1 1 1 0 0 0 0 0 0 0 17 5 0 0 0";
        let stat = Stat::parse(format!("7 (a){rest}").as_bytes()).unwrap();
        assert_eq!(cpu_ms(&stat), 1500);
    }
}
