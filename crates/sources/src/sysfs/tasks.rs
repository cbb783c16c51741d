//! Processes: where they may run, where they ran last, and where their memory is.
//!
//! ```text
//! proc/PID/status           Cpus_allowed_list, Mems_allowed_list, VmLck, VmPin, Uid, Threads, Rss*
//! proc/PID/stat             times, start, last CPU
//! proc/uptime               of a recording: the age of a process, with its start
//! proc/PID/task/TID/stat    the same of each thread
//! proc/PID/cgroup           the control group
//! proc/PID/numa_maps        a line a mapping: policy, and pages by node (N0=12)
//! proc/PID/maps             addresses, of which a sample is taken where numa_maps would take long
//! proc/PID/sched            numa_preferred_nid
//! ```
//!
//! A process can end between two of these files: then what could not be read is unknown, and a process of which
//! neither `stat` nor `status` is left was never there. Command lines and environments are not read.

mod memory;
mod sample;
mod threads;

use nearfar_machine::{CpuSet, Known, NOT_ASKED_FOR, NodeId, NodeSet, ResidentBytes, Task};
use nearfar_proc::sched::Sched;
use nearfar_proc::status::Status;
use nearfar_proc::{Stat, cgroup, system};

use super::notes::{Notes, read_noted};
use crate::parallel;
use crate::tree::{Directory, Reason, Tree, Unreadable};
use crate::value::ValueError;
use crate::want::{TaskScope, Want};

/// `PID_MAX_LIMIT` of 64-bit kernels.
const MOST_TASKS: usize = 4_194_304;
/// Length of a clock tick as procfs counts: `USER_HZ` is 100 on every architecture that is left.
const TICK_MS: u64 = 10;
const MALFORMED: &str = "not there, or not as the kernel writes it";

/// Reads the processes that were asked for, by number.
pub(crate) fn read(tree: &Tree, want: &Want, notes: &Notes) -> Known<Vec<Task>> {
    let mut pids: Vec<i32> = match &want.tasks {
        TaskScope::None => return Known::no(NOT_ASKED_FOR),
        TaskScope::Of(pids) => pids.clone(),
        TaskScope::All => match tree.list("proc") {
            Ok(names) => {
                let pids = names.iter().filter_map(|name| name.parse().ok());
                let pids: Vec<i32> = pids.take(MOST_TASKS).collect();
                if pids.is_empty() {
                    return Known::no(format!("no process is in {}", tree.display("proc")));
                }
                pids
            }
            Err(error) => return Known::no(error.to_string()),
        },
    };
    pids.retain(|&pid| pid > 0);
    pids.sort_unstable();
    pids.dedup();
    let uptime_ms = uptime_ms(tree);
    let read = parallel::map(&pids, |&pid| {
        let mut task = read_one(tree, want, notes, pid)?;
        task.age_ms = age_ms(&uptime_ms, &task.start);
        Some(task)
    });
    Known::Yes(read.into_iter().flatten().collect())
}

/// Milliseconds since boot when this system is read or was recorded. Some containers show another uptime (lxcfs), with which the
/// start of a task does not go together.
fn uptime_ms(tree: &Tree) -> Known<u64> {
    if tree.is_live() {
        return Known::Yes(system::ticks_since_boot().saturating_mul(TICK_MS));
    }
    match tree.with_bytes("proc/uptime", system::uptime_ms) {
        Ok(Some(ms)) => Known::Yes(ms),
        Ok(None) => Known::no(format!("{}: {MALFORMED}", tree.display("proc/uptime"))),
        Err(error) => Known::no(error.to_string()),
    }
}

fn age_ms(uptime_ms: &Known<u64>, start: &Known<u64>) -> Known<u64> {
    let age = |&start: &u64| {
        uptime_ms.as_ref().and_then(|uptime| {
            let age = uptime.checked_sub(start.saturating_mul(TICK_MS));
            Known::from_option(age, || "it started after the others were read")
        })
    };
    start.as_ref().and_then(age)
}

fn read_one(tree: &Tree, want: &Want, notes: &Notes, pid: i32) -> Option<Task> {
    let directory = tree.directory(&format!("proc/{pid}")).ok()?;
    let stat = read_noted(&directory, "stat", notes, |bytes| {
        Stat::parse_with_name(bytes).ok_or_else(|| ValueError::Truncated(MALFORMED.to_owned()))
    });
    // The memory of a process whose main thread has ended is that of its other threads.
    let other = stat
        .as_ref()
        .filter(|(stat, _)| stat.is_ended())
        .and_then(|_| threads::alive(tree, &directory));
    let (pid_alive, alive) = match &other {
        Some((tid, thread)) => (*tid, thread),
        None => (pid, &directory),
    };
    let status = alive.with_bytes("status", InStatus::parse);
    if stat.is_none() && matches!(status, Err(Reason::Absent)) {
        return None;
    }
    let status = status.map_err(|reason| alive.unreadable("status", reason));
    let resident = in_status(&directory, &status, "RssAnon", |status| status.resident);
    if resident
        .get()
        .is_some_and(|it| it.total() < want.min_task_bytes)
    {
        return None;
    }
    let no_stat = || format!("{}: {MALFORMED}", directory.display("stat"));
    let memory = match &stat {
        _ if !want.task_memory => memory::Memory::unread(),
        Some((stat, _)) if stat.is_kernel_thread() => memory::Memory::none(),
        _ => {
            let table_bytes = status.as_ref().map_or(0, |status| status.table_bytes);
            let resident = resident.get().copied().unwrap_or_default();
            let size = memory::Size {
                resident,
                table_bytes,
            };
            memory::read(tree, alive, pid_alive, size)
        }
    };
    let (stat, name) = stat.unzip();
    let count = status.as_ref().ok().and_then(|status| status.threads);
    let threads = threads::read(&directory, stat.as_ref(), count, want.threads);
    Some(Task {
        allowed_cpus: in_status(&directory, &status, "Cpus_allowed_list", |status| {
            status.cpus.clone()
        }),
        allowed_nodes: in_status(&directory, &status, "Mems_allowed_list", |status| {
            status.nodes.clone()
        }),
        last_cpu: Known::from_option(stat.and_then(|stat| stat.cpu), no_stat),
        memory: memory.nodes,
        policies: memory.policies,
        sample: memory.sample,
        preferred_node: preferred_node(&directory),
        pinned_bytes: in_status(&directory, &status, "VmLck", |status| status.pinned_bytes),
        cpu_ms: Known::from_option(stat.map(|stat| cpu_ms(&stat)), no_stat),
        resident,
        start: Known::from_option(stat.map(|stat| stat.id.start), no_stat),
        user: in_status(&directory, &status, "Uid", |status| status.user),
        group: group(&directory),
        cpu_times: threads.cpu_times,
        threads: threads.list,
        ..Task::new(pid, &name.map_or_else(String::new, |name| name.to_string()))
    })
}

/// What is of interest in `status`.
struct InStatus {
    cpus: Option<CpuSet>,
    nodes: Option<NodeSet>,
    pinned_bytes: Option<u64>,
    resident: Option<ResidentBytes>,
    table_bytes: u64,
    user: Option<u32>,
    threads: Option<u32>,
}

impl InStatus {
    fn parse(content: &[u8]) -> Self {
        let status = Status::of(content);
        Self {
            cpus: status.allowed_cpus(),
            nodes: status.allowed_nodes(),
            pinned_bytes: status.pinned_bytes(),
            resident: resident(&status),
            table_bytes: status.bytes("VmPTE").unwrap_or(0),
            user: status.user(),
            threads: status.threads(),
        }
    }
}

/// Threads of the kernel have no memory and none of these lines; before Linux 4.5 no process has them.
fn resident(status: &Status<'_>) -> Option<ResidentBytes> {
    let is_old = status.bytes("VmRSS").is_some() && status.bytes("RssAnon").is_none();
    let bytes = |key| status.bytes(key).unwrap_or(0);
    (!is_old).then(|| ResidentBytes {
        anonymous: bytes("RssAnon"),
        file: bytes("RssFile"),
        shared: bytes("RssShmem"),
        huge: bytes("HugetlbPages"),
        pinned: bytes("VmPin"),
    })
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

/// The group in version 2 of control groups, else in systemd's hierarchy of version 1.
fn group(directory: &Directory<'_>) -> Known<String> {
    let path = |content: &[u8]| {
        let of =
            |is_wanted: fn(&cgroup::Group<'_>) -> bool| cgroup::groups(content).find(is_wanted);
        let group = of(|it| it.version_2).or_else(|| of(|it| it.has_controller("name=systemd")));
        group.map(|it| it.path.to_string_lossy().into_owned())
    };
    match directory.with_bytes("cgroup", path) {
        Ok(Some(path)) => Known::Yes(path),
        Ok(None) => Known::no(format!("{}: no group in it", directory.display("cgroup"))),
        Err(reason) => Known::no(directory.unreadable("cgroup", reason).to_string()),
    }
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
