//! Processes: where they may run, where they ran last, and where their memory is. And cpusets: groups of tasks that are
//! confined to some CPUs and memory nodes.
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
//!
//! The CPU time of a thread counts for the CPU it ran on last.
//!
//! ```text
//! version 2   sys/fs/cgroup/system.slice/redis.service/cpuset.cpus, .mems, and .effective of both
//! version 1   sys/fs/cgroup/cpuset/redis/cpuset.cpus, .mems (and cpuset.effective_*)
//! before      dev/cpuset/redis/cpus, mems
//! ```
//!
//! A group without the files of cpusets has no cpuset of its own and is left out; so is the root unless there is nothing else.

mod memory;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nearfar_machine::{
    CpuSet, CpuTime, Cpuset, Known, NOT_ASKED_FOR, NodeId, NodeSet, ResidentBytes, Task, Thread,
};
use nearfar_proc::Sched;
use nearfar_proc::Status;
use nearfar_proc::service::{Service, ServiceKind};
use nearfar_proc::{Stat, cgroup, mountinfo, system};

use crate::parallel;
use crate::request::{TaskScope, Want};
use crate::tree::{Directory, Reason, Tree, Unreadable};
use crate::value::{self, ValueError};

/// `PID_MAX_LIMIT` of 64-bit kernels.
const MOST_TASKS: usize = 4_194_304;
/// Length of a clock tick as procfs counts: `USER_HZ` is 100 on every architecture that is left.
const TICK_MS: u64 = 10;
const MALFORMED: &str = "not there, or not as the kernel writes it";

/// Reads the processes that were asked for, by number.
pub(crate) fn read(tree: &Tree, want: &Want) -> Known<Vec<Task>> {
    let mut pids: Vec<i32> = match &want.tasks {
        TaskScope::None => return Known::no(NOT_ASKED_FOR),
        TaskScope::Of(pids) => pids.clone(),
        TaskScope::All => match tree.list("proc") {
            Ok(names) => {
                let pids = names.iter().filter_map(|name| name.parse().ok());
                pids.take(MOST_TASKS).collect()
            }
            Err(error) => return Known::no(error.to_string()),
        },
    };
    if pids.is_empty() && want.tasks == TaskScope::All {
        return Known::no(format!("no process is in {}", tree.display("proc")));
    }
    pids.retain(|&pid| pid > 0);
    pids.sort_unstable();
    pids.dedup();
    let uptime_ms = uptime_ms(tree);
    let read = parallel::map(&pids, |&pid| {
        let mut task = read_one(tree, want, pid)?;
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

fn read_one(tree: &Tree, want: &Want, pid: i32) -> Option<Task> {
    let directory = tree.directory(&format!("proc/{pid}")).ok()?;
    let stat = directory.noted("stat", |bytes| {
        Stat::parse_with_name(bytes).ok_or_else(|| ValueError::faulty(MALFORMED))
    });
    // The memory of a process whose main thread has ended is that of its other threads.
    let is_ended = stat.as_ref().is_some_and(|(stat, _)| stat.is_ended());
    let other = is_ended.then(|| alive_thread(tree, &directory)).flatten();
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
        _ if !want.task_memory => memory::Memory::unknown(NOT_ASKED_FOR),
        Some((stat, _)) if stat.is_kernel_thread() => memory::Memory::none(),
        _ => {
            let table_bytes = status.as_ref().map_or(0, |status| status.table_bytes);
            let size = memory::Size {
                resident: resident.get().copied().unwrap_or_default(),
                table_bytes,
            };
            memory::read(tree, alive, pid_alive, size)
        }
    };
    let (stat, name) = stat.unzip();
    let count = status.as_ref().ok().and_then(|status| status.threads);
    let threads = threads(&directory, stat.as_ref(), count, want.threads);
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
        group: group(tree, &directory),
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

/// The group in version 2 of control groups or in systemd's hierarchy of version 1: the one that a container, job or machine has, else
/// the one that is not the root.
fn group(tree: &Tree, directory: &Directory<'_>) -> Known<String> {
    let path = |content: &[u8]| {
        let of =
            |is_wanted: fn(&cgroup::Group<'_>) -> bool| cgroup::groups(content).find(is_wanted);
        let unified = of(|it| it.version_2);
        let group = match (unified, of(|it| it.has_controller("name=systemd"))) {
            (Some(unified), Some(systemd)) => [unified, systemd].into_iter().min_by_key(|it| {
                let service = it.path.to_str().and_then(Service::of);
                let is_unit = service.is_none_or(|it| it.kind == ServiceKind::Unit);
                (is_unit, it.path == Path::new("/"), !it.version_2)
            }),
            (unified, systemd) => unified.or(systemd),
        }?;
        let is_of_mount = tree.is_live() && group.version_2;
        let namespace = is_of_mount.then(|| NAMESPACE.get_or_init(own_namespace).as_deref());
        let outside = namespace
            .flatten()
            .and_then(|it| cgroup::outside(group.path, it));
        let path = outside.as_deref().unwrap_or(group.path);
        Some(path.to_string_lossy().into_owned())
    };
    found_in(directory, "cgroup", path, "no group in it")
}

const MOUNT: &str = "/sys/fs/cgroup";

/// Where this process's cgroup namespace begins in the hierarchy that is mounted there; `None` where it is the same, or not to be found.
static NAMESPACE: OnceLock<Option<PathBuf>> = OnceLock::new();

fn own_namespace() -> Option<PathBuf> {
    let mounts = mountinfo::of_this_process().ok()?;
    let mount = mounts.iter().rfind(|it| it.place == Path::new(MOUNT))?;
    // One from outside of the namespace begins above its root. What version 1 has there is folders of hierarchies.
    if mount.kind != "cgroup2" || mount.root == Path::new("/") {
        return None;
    }
    let groups = std::fs::read("/proc/self/cgroup").ok()?;
    let own = cgroup::groups(&groups).find(|it| it.version_2)?;
    cgroup::namespace_root(&mount.place, own.path, std::process::id())
}

/// `numa_preferred_nid`, which `sched` has with CONFIG_SCHED_DEBUG and CONFIG_NUMA_BALANCING; -1 is none.
fn preferred_node(directory: &Directory<'_>) -> Known<Option<NodeId>> {
    let node = |bytes: &[u8]| Sched::of(bytes).preferred_node();
    found_in(directory, "sched", node, "no numa_preferred_nid in it")
}

/// What is found in a file.
fn found_in<T>(
    directory: &Directory<'_>,
    file: &str,
    find: impl FnOnce(&[u8]) -> Option<T>,
    problem: &str,
) -> Known<T> {
    match directory.with_bytes(file, find) {
        Ok(found) => {
            let problem = || format!("{}: {problem}", directory.display(file));
            Known::from_option(found, problem)
        }
        Err(reason) => Known::no(directory.unreadable(file, reason).to_string()),
    }
}

struct Threads {
    pub(super) cpu_times: Known<Vec<CpuTime>>,
    pub(super) list: Vec<Thread>,
}

/// Reads the threads of a process. One with a single thread has the times of that, and one that never ran has none: neither needs
/// another file. `is_list_wanted` makes a list of all as well.
fn threads(
    directory: &Directory<'_>,
    stat: Option<&Stat>,
    count: Option<u32>,
    is_list_wanted: bool,
) -> Threads {
    let mut list = Vec::new();
    let Some(stat) = stat else {
        let cpu_times = Known::no("its stat cannot be read");
        return Threads { cpu_times, list };
    };
    if is_list_wanted || (count != Some(1) && cpu_ms(stat) != 0) {
        list = thread_list(directory);
    }
    let cpu_times = match list.is_empty() {
        // A thread that ends meanwhile, and a recording without threads, leave the process's own times.
        true => of_one(stat),
        false => Known::Yes(by_cpu(&list)),
    };
    list.truncate(if is_list_wanted { usize::MAX } else { 0 });
    Threads { cpu_times, list }
}

fn of_one(stat: &Stat) -> Known<Vec<CpuTime>> {
    let cpu = Known::from_option(stat.cpu, || "its stat does not say on which CPU it ran");
    cpu.map(|cpu| {
        let ms = cpu_ms(stat);
        vec![CpuTime { cpu, ms }]
    })
}

/// A thread of a process that has not ended, with its directory.
fn alive_thread<'t>(tree: &'t Tree, directory: &Directory<'_>) -> Option<(i32, Directory<'t>)> {
    let task = format!("{}/task", directory.path());
    let tids = tree.directory(&task).ok()?.names().ok()?;
    tids.into_iter().find_map(|name| {
        let thread = tree.directory(&format!("{task}/{name}")).ok()?;
        let stat = thread.with_bytes("stat", Stat::parse).ok().flatten()?;
        (!stat.is_ended()).then_some((name.parse().ok()?, thread))
    })
}

fn thread_list(directory: &Directory<'_>) -> Vec<Thread> {
    let Ok(task) = directory.directory("task") else {
        return Vec::new();
    };
    let names = task.names().unwrap_or_default();
    let tids = names.iter().filter_map(|name| name.parse().ok());
    let mut tids: Vec<i32> = tids.collect();
    tids.sort_unstable();
    let thread = |tid: i32| {
        let parsed = task.with_bytes(&format!("{tid}/stat"), Stat::parse_with_name);
        let (stat, name) = parsed.ok().flatten()?;
        Some(Thread {
            tid,
            name: name.to_string(),
            start: stat.id.start,
            last_cpu: Known::from_option(stat.cpu, || "its stat does not say"),
            cpu_ms: cpu_ms(&stat),
        })
    };
    tids.into_iter().filter_map(thread).collect()
}

fn by_cpu(threads: &[Thread]) -> Vec<CpuTime> {
    let mut times = BTreeMap::new();
    for thread in threads {
        if let Known::Yes(cpu) = thread.last_cpu {
            let sum: &mut u64 = times.entry(cpu).or_default();
            *sum = sum.saturating_add(thread.cpu_ms);
        }
    }
    let times = times.into_iter().filter(|(_, ms)| *ms > 0);
    times.map(|(cpu, ms)| CpuTime { cpu, ms }).collect()
}

/// How deep groups nest: systemd in a container in a pod in a slice stays below 16.
const DEEPEST: usize = 32;
const MOST_GROUPS: usize = 50_000;

/// Where the version 2 hierarchy is mounted.
const UNIFIED: &str = "sys/fs/cgroup";

/// The names of the files in one kind of hierarchy.
struct Hierarchy {
    root: &'static str,
    /// Of CPUs and of nodes: what is configured, and what is in force, the first that is there counts.
    files: [[&'static str; 2]; 2],
}

impl Hierarchy {
    const fn at(root: &'static str, files: [[&'static str; 2]; 2]) -> Self {
        Self { root, files }
    }
}

const VERSION_1: [[&str; 2]; 2] = [
    ["cpuset.cpus", "cpuset.effective_cpus"],
    ["cpuset.mems", "cpuset.effective_mems"],
];
const VERSION_2: [[&str; 2]; 2] = [
    ["cpuset.cpus", "cpuset.cpus.effective"],
    ["cpuset.mems", "cpuset.mems.effective"],
];

const HIERARCHIES: [Hierarchy; 5] = [
    Hierarchy::at("sys/fs/cgroup/cpuset", VERSION_1),
    // Controllers mounted together share a directory.
    Hierarchy::at("sys/fs/cgroup/cpu,cpuset", VERSION_1),
    Hierarchy::at(UNIFIED, VERSION_2),
    Hierarchy::at("dev/cpuset", [["cpus"; 2], ["mems"; 2]]),
    Hierarchy::at("dev/cpuset", [["cpuset.cpus"; 2], ["cpuset.mems"; 2]]),
];

/// Reads all cpusets, by path.
pub(crate) fn cpusets(tree: &Tree) -> Known<Vec<Cpuset>> {
    for hierarchy in &HIERARCHIES {
        let Ok(root) = tree.directory(hierarchy.root) else {
            continue;
        };
        let mut files = hierarchy.files.iter().flatten();
        if files.any(|name| root.exists(name)) {
            return Known::Yes(hierarchy.walk(tree));
        }
    }
    let (groups, before) = (tree.display("sys/fs/cgroup"), tree.display("dev/cpuset"));
    Known::no(format!("neither {groups} nor {before} has cpusets"))
}

impl Hierarchy {
    fn walk(&self, tree: &Tree) -> Vec<Cpuset> {
        let mut found = Vec::new();
        let mut left = vec![(String::new(), 0)];
        let mut looked_at = 0;
        while let Some((path, depth)) = left.pop() {
            looked_at += 1;
            if looked_at > MOST_GROUPS {
                let message = format!("has more than {MOST_GROUPS} groups: the rest is left out");
                tree.note(self.root, message);
                break;
            }
            let Ok(directory) = tree.directory(&format!("{}{path}", self.root)) else {
                continue;
            };
            found.extend(self.group(&directory, &path));
            if depth >= DEEPEST {
                continue;
            }
            for name in directory.names().unwrap_or_default() {
                // Only groups are directories; what has a dot and no directory behind it is one of the kernel's files.
                let below = format!("{path}/{name}");
                let whole = format!("{}{below}", self.root);
                let is_group = || tree.link(&whole).is_err() && tree.directory(&whole).is_ok();
                if !is_file_of_kernel(&name) && is_group() {
                    left.push((below, depth + 1));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// A group's cpuset. The root's is the whole machine, by default.
    fn group(&self, directory: &Directory<'_>, path: &str) -> Option<Cpuset> {
        if path.is_empty() {
            return None;
        }
        let [[cpus, effective_cpus], [nodes, effective_nodes]] = self.files;
        if !directory.exists(cpus) && !directory.exists(effective_cpus) {
            return None;
        }
        let own_cpus: Known<CpuSet> = directory.known(cpus, value::list);
        let own_nodes: Known<NodeSet> = directory.known(nodes, value::list);
        let configured = own_cpus.get().is_some_and(|set| !set.is_empty())
            || own_nodes.get().is_some_and(|set| !set.is_empty());
        let in_force = |usual: &str, effective: &str, own: &str| {
            let is_there = directory.exists(effective) && effective != own;
            let read = directory.below(if is_there { effective } else { own });
            let usual = format!("{UNIFIED}{path}/{usual}");
            directory.tree().read_instead(usual, read);
            is_there
        };
        Some(Cpuset {
            path: path.to_owned(),
            cpus: match in_force("cpuset.cpus.effective", effective_cpus, cpus) {
                true => directory.known(effective_cpus, value::list),
                false => own_cpus,
            },
            nodes: match in_force("cpuset.mems.effective", effective_nodes, nodes) {
                true => directory.known(effective_nodes, value::list),
                false => own_nodes,
            },
            configured,
            version_2: Some(self.root == UNIFIED),
        })
    }
}

/// `cpuset.cpus`, `memory.stat`, `tasks`: names that no group has, which saves opening each to see.
fn is_file_of_kernel(name: &str) -> bool {
    const PREFIXES: [&str; 12] = [
        "cgroup.", "cpuset.", "memory.", "cpu.", "io.", "pids.", "hugetlb.", "rdma.", "misc.",
        "irq.", "dmem.", "cpuacct.",
    ];
    // A slice of systemd may be called so, too: it ends in what systemd calls it.
    let unit = [".slice", ".scope", ".service", ".mount", ".socket", ".swap"]
        .iter()
        .any(|kind| name.ends_with(kind));
    !unit
        && (PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || name == "tasks"
            || name == "notify_on_release")
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
