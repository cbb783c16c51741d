//! The nodes that a control group may have memory on (`cpuset.mems`, version 2): what is looked at before the write, and
//! what its undoing cannot do.
//!
//! ```text
//!  hierarchy of version 2? group? controller? ─► nodes online, with memory, allowed by the group above? ─► room? ─► write
//!
//!  undo: old list ─► ENOSPC, where it was empty and the group has tasks ─► all possible nodes: the same to its tasks
//! ```
//!
//! The kernel moves what the group's tasks have mapped on other nodes during the write, since Linux 5.15
//! (cpuset_migrate_mm() in kernel/cgroup/cpuset.c, with MPOL_MF_MOVE_ALL: shared pages as well).
//!
//! With the list the kernel rebinds the policy of each task, and of each of its mappings, of the group and of the groups below
//! (cpuset_change_task_nodemask() and mpol_rebind_mm() in kernel/cgroup/cpuset.c). One that was set without
//! MPOL_F_STATIC_NODES and MPOL_F_RELATIVE_NODES, as numactl(8) and libnuma do, does not keep the nodes that were asked for:
//! mpol_rebind_nodemask() in mm/mempolicy.c replaces each by the node at its place in the new list, so that the old list does
//! not bring them back.
//!
//! ```text
//!  cpuset.mems     0-1              1               0-1
//!  a policy        bind:1           bind:1          bind:0
//!  another         interleave:0-1   interleave:1    interleave:0
//! ```
//!
//! `prefer (many)` keeps its nodes, and `prefer` since Linux 5.14 (mpol_rebind_preferred()).

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use nearfar_machine::{Machine, NodeBytes, NodeId, NodeSet};
use nearfar_proc::system::KernelVersion;
use nearfar_proc::{cgroup, error_text, numa_maps, tasks, zoneinfo};

use crate::apply::ApplyError;
use crate::change::{Change, Plan, Planned, check_planned};
use crate::journal::Intent;
use crate::kind::{self, ChangeError, Setting, check_group};
use crate::system::{System, Target, first_line, text};
use crate::task_memory::{NODES, REQUESTED, leave, node_list, size, with_spare};

/// Where the version 2 hierarchy is mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Which control group is to have memory on which nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpusetMemoryRequest {
    /// A path below the hierarchy, or the name of a unit.
    pub group: String,
    pub nodes: NodeSet,
}

/// Why the nodes of a control group are not changed.
#[derive(Debug, thiserror::Error)]
pub enum CpusetMemoryError {
    #[error(
        "control groups are of version 1 here ({MOUNT}/cpuset): cpuset.mems is changed in version 2 only"
    )]
    VersionOne,
    #[error("no control groups of version 2 are mounted at {MOUNT}")]
    NoHierarchy,
    #[error("there is no control group {0:?} below {MOUNT}; systemd-cgls lists them")]
    NoGroup(String),
    #[error("several control groups have the name {name:?}: {}; give the path of one", .groups.join(", "))]
    Ambiguous { name: String, groups: Vec<String> },
    #[error(
        "cannot look for a control group {name:?} among more than {limit}: give its path below {MOUNT}"
    )]
    TooManyGroups { name: String, limit: usize },
    #[error(
        "there is no {file}: the cpuset controller is not enabled for the group ({control} has no cpuset; echo +cpuset > \
         {control} adds it)"
    )]
    NoController { file: String, control: String },
    #[error("nodes {missing} are not online (online: {online})")]
    NotOnline { missing: NodeSet, online: NodeSet },
    #[error("nodes {missing} have no memory (nodes with memory: {having})")]
    NoMemory { missing: NodeSet, having: NodeSet },
    #[error("the group above allows no memory on nodes {nodes} ({file}: {allowed})")]
    NotAllowed {
        nodes: NodeSet,
        file: String,
        allowed: NodeSet,
    },
    #[error(
        "nodes {nodes} have {} above their high watermarks, and {} are needed: {} of the group are on other nodes, and 10 % \
         to spare", size(*unreserved), size(*needed), size(*to_move)
    )]
    TooFull {
        nodes: NodeSet,
        unreserved: u64,
        needed: u64,
        to_move: u64,
    },
    #[error(
        "memory policies would be lost: {0}; the kernel rewrites them with the list, and the old list does not bring them back. \
         Stop the task first, or apply with --force"
    )]
    Policies(String),
    #[error("cannot read {file}: {reason}")]
    Read { file: String, reason: String },
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl CpusetMemoryError {
    /// Whether what was asked for does not exist, rather than being refused.
    pub fn is_input(&self) -> bool {
        !matches!(
            self,
            Self::NoController { .. }
                | Self::NotAllowed { .. }
                | Self::TooFull { .. }
                | Self::Policies(_)
                | Self::Read { .. }
        )
    }
}

/// The change that gives a control group of the target these nodes.
///
/// # Errors
/// When there is no such group or node, or apply would refuse now.
pub fn planned_cpuset_memory(
    machine: &Machine,
    target: &Target,
    request: &CpusetMemoryRequest,
) -> Result<Planned, ApplyError> {
    let system = target.system()?;
    let group = group(&system, target.is_tree(), &request.group)?;
    let nodes = request.nodes.clone();
    let found = check(&system, target.is_tree(), &group, &nodes)?;
    let moves = match found.to_move {
        Some(bytes) => format!(
            "at least {} of its memory are on other nodes (what tasks had before they joined it is not counted)",
            size(bytes)
        ),
        None => "how much of its memory is on other nodes is unknown".to_owned(),
    };
    // apply can be forced: the plan is made, and says what that costs.
    let policies = check_policies(&system, target.is_tree(), &group, &found.effective);
    let policies = policies
        .err()
        .map_or_else(String::new, |it| format!(" Refused without --force: {it}."));
    let (first, from) = (nodes.first(), found.from.first());
    let distance = first.zip(from).map(|(to, from)| {
        let (now, after) = (machine.distance(to, from), machine.distance(to, to));
        crate::change::DistanceChange { now, after }
    });
    let planned = Planned {
        reason: format!("control group {group}: memory on nodes {nodes} only; {moves}.{policies}"),
        change: Change::CpusetMemory { group, nodes },
        before: Some(found.now.trim_end().to_owned()),
        owner: None,
        rule: REQUESTED.to_owned(),
        estimate: None,
        distance,
    };
    check_planned(&planned).map_err(CpusetMemoryError::Change)?;
    Ok(planned)
}

/// Completes the changes of this kind that an audit asked for with the value before, and leaves alone those that apply would
/// refuse. Without a target, as for a snapshot, only what the plan itself says is looked at.
///
/// # Errors
/// When the target cannot be opened.
pub fn check_cpusets(plan: &mut Plan, target: Option<&Target>) -> Result<(), ApplyError> {
    let system = target.map(Target::system).transpose()?;
    for mut planned in std::mem::take(&mut plan.changes) {
        let Change::CpusetMemory { group, nodes } = &planned.change else {
            plan.changes.push(planned);
            continue;
        };
        let is_tree = target.is_some_and(Target::is_tree);
        let fits = Setting::of(&planned.change).check();
        let found = fits.map_err(CpusetMemoryError::Change).and_then(|()| {
            let system = system.as_ref();
            system
                .map(|system| {
                    let found = check(system, is_tree, group, nodes)?;
                    check_policies(system, is_tree, group, &found.effective).map(|()| found)
                })
                .transpose()
        });
        match found {
            Ok(found) => {
                planned.before = found.map(|found| found.now.trim_end().to_owned());
                plan.changes.push(planned);
            }
            Err(reason) => {
                let subject = format!("cpuset {group}");
                leave(plan, &planned.rule, subject, reason.to_string());
            }
        }
    }
    Ok(())
}

/// Checks the changes of this kind as apply will.
pub(crate) fn check_all(
    plan: &Plan,
    system: &dyn System,
    tree: bool,
) -> Result<(), CpusetMemoryError> {
    for planned in &plan.changes {
        if let Change::CpusetMemory { group, nodes } = &planned.change {
            check_to_apply(system, tree, group, nodes, false)?;
        }
    }
    Ok(())
}

/// Whether apply makes the change now.
pub(crate) fn check_to_apply(
    system: &dyn System,
    tree: bool,
    group: &str,
    nodes: &NodeSet,
    force: bool,
) -> Result<(), CpusetMemoryError> {
    let found = check(system, tree, group, nodes)?;
    match force {
        true => Ok(()),
        false => check_policies(system, tree, group, &found.effective),
    }
}

/// Fails where undoing the change would not bring back the memory policies of the group's tasks.
fn check_policies(
    system: &dyn System,
    tree: bool,
    group: &str,
    effective: &NodeSet,
) -> Result<(), CpusetMemoryError> {
    let rebound = rebound(system, tree, group, effective)?;
    let lost = rebound.iter().filter(|it| it.is_lost);
    match described(lost, false) {
        Some(lost) => Err(CpusetMemoryError::Policies(lost)),
        None => Ok(()),
    }
}

/// What a group has now.
struct GroupMemory {
    /// The text of `cpuset.mems`.
    now: String,
    /// Bytes that its tasks have mapped on other nodes than wanted; `None` in a tree that does not tell.
    to_move: Option<u64>,
    /// The nodes that these are on.
    from: NodeSet,
    /// The nodes that it has memory on afterwards.
    effective: NodeSet,
}

/// Whether the group may get these nodes now. A tree may lack any file but that of the group.
fn check(
    system: &dyn System,
    tree: bool,
    group: &str,
    nodes: &NodeSet,
) -> Result<GroupMemory, CpusetMemoryError> {
    hierarchy(system, tree)?;
    let now = now(system, group)?;
    let optional = |file: String| match list(system, &file) {
        Err(_) if tree => Ok(None),
        found => found.map(|found| Some((file, found))),
    };
    if let Some((_, online)) = optional(format!("{NODES}/online"))?
        && !nodes.is_subset(&online)
    {
        let missing = nodes.difference(&online);
        return Err(CpusetMemoryError::NotOnline { missing, online });
    }
    // Since Linux 2.6.30.
    if let Ok(having) = list(system, &format!("{NODES}/has_memory"))
        && !nodes.is_subset(&having)
    {
        let missing = nodes.difference(&having);
        return Err(CpusetMemoryError::NoMemory { missing, having });
    }
    let mut effective = nodes.clone();
    if let Some((file, allowed)) = optional(format!("{}/cpuset.mems.effective", above(group)))? {
        effective = nodes.intersection(&allowed);
        if effective.is_empty() {
            let nodes = nodes.clone();
            return Err(CpusetMemoryError::NotAllowed {
                nodes,
                file,
                allowed,
            });
        }
    }
    let elsewhere = memory_elsewhere(system, tree, group, &effective)?;
    let from = elsewhere.iter().flatten().map(|on| on.node).collect();
    let to_move = elsewhere.map(|it| {
        it.iter()
            .fold(0, |sum: u64, on| sum.saturating_add(on.bytes))
    });
    check_room(system, tree, &effective, to_move.unwrap_or(0))?;
    Ok(GroupMemory {
        now,
        to_move,
        from,
        effective,
    })
}

/// The text of the group's `cpuset.mems`.
fn now(system: &dyn System, group: &str) -> Result<String, CpusetMemoryError> {
    let file = format!("{MOUNT}/{group}/cpuset.mems");
    match text(system, &file) {
        Ok(now) => Ok(now),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            system
                .list(&format!("{MOUNT}/{group}"))
                .map_err(|_| CpusetMemoryError::NoGroup(group.to_owned()))?;
            let control = without_cpuset(system, group);
            Err(CpusetMemoryError::NoController { file, control })
        }
        Err(error) => Err(unread(file, &error)),
    }
}

/// What its tasks have mapped on other nodes.
fn memory_elsewhere(
    system: &dyn System,
    tree: bool,
    group: &str,
    nodes: &NodeSet,
) -> Result<Option<Vec<NodeBytes>>, CpusetMemoryError> {
    let file = format!("{MOUNT}/{group}/memory.numa_stat");
    let stat = match system.read(&file) {
        Ok(stat) => stat,
        Err(_) if tree => return Ok(None),
        Err(error) => return Err(unread(file, &error)),
    };
    let mut mapped = cgroup::mapped_by_node(&stat);
    mapped.retain(|on| on.bytes > 0 && !nodes.contains(on.node));
    Ok(Some(mapped))
}

fn check_room(
    system: &dyn System,
    tree: bool,
    nodes: &NodeSet,
    to_move: u64,
) -> Result<(), CpusetMemoryError> {
    const ZONES: &str = "/proc/zoneinfo";
    if to_move == 0 {
        return Ok(());
    }
    let zones = match system.read(ZONES) {
        Ok(zones) => zones,
        Err(_) if tree => return Ok(()),
        Err(error) => return Err(unread(ZONES.to_owned(), &error)),
    };
    let page_bytes = rustix::param::page_size() as u64;
    let above_high = nodes.iter().fold(0u64, |sum, node| {
        let pages = zoneinfo::of_node(&zones, node).unwrap_or_default();
        sum.saturating_add(pages.above_high())
    });
    let unreserved = above_high.saturating_mul(page_bytes);
    let needed = with_spare(to_move);
    if unreserved >= needed {
        return Ok(());
    }
    Err(CpusetMemoryError::TooFull {
        nodes: nodes.clone(),
        unreserved,
        needed,
        to_move,
    })
}

/// The nodes that the group may have memory on as things are.
pub(crate) fn effective(system: &dyn System, group: &str) -> Result<NodeSet, CpusetMemoryError> {
    list(system, &format!("{MOUNT}/{group}/cpuset.mems.effective"))
}

/// Memory policies that undoing the write rewrites, in words; looked at before it.
pub(crate) fn rebound_by_undo(system: &dyn System, intent: &Intent) -> Option<String> {
    let Setting::CpusetMemory(kind::CpusetMemory { group }) = &intent.setting else {
        return None;
    };
    let allowed = list(system, &format!("{}/cpuset.mems.effective", above(group))).ok()?;
    let old = NodeSet::parse_list(intent.old.trim()).ok()?;
    let nodes = match old.intersection(&allowed) {
        none if none.is_empty() => allowed,
        nodes => nodes,
    };
    match rebound(system, false, group, &nodes) {
        Ok(rebound) => {
            let policies = described(rebound.iter().filter(|it| it.is_changed), true)?;
            Some(format!(
                "the kernel rewrote memory policies with the list, {policies}: start these tasks again where that is not the \
                 policy that they had"
            ))
        }
        Err(error) => Some(format!(
            "whether memory policies changed is unknown: {error}"
        )),
    }
}

/// What undoing the write has not undone: the memory that moved to the nodes that were found, and policies.
pub(crate) fn what_stays(
    system: &dyn System,
    intent: &Intent,
    found: &str,
    written: &str,
    rebound: Option<String>,
) -> Option<String> {
    let Setting::CpusetMemory(kind::CpusetMemory { group }) = &intent.setting else {
        return None;
    };
    let mut notes = Vec::new();
    if !intent.setting.same(written, &intent.old) {
        notes.push(
            "it was not set, and cannot be so again while the group has tasks: all possible nodes are the same to them"
                .to_owned(),
        );
    }
    let had = NodeSet::parse_list(found.trim()).unwrap_or_default();
    let stay = effective(system, group).map_or(had.clone(), |now| had.intersection(&now));
    if !stay.is_empty() {
        notes.push(format!(
            "memory that moved to nodes {stay} stays there: move it with --memory /{group}"
        ));
    }
    notes.extend(rebound);
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The directory of the group above.
fn above(group: &str) -> String {
    match group.rsplit_once('/') {
        Some((above, _)) => format!("{MOUNT}/{above}"),
        None => MOUNT.to_owned(),
    }
}

fn list(system: &dyn System, file: &str) -> Result<NodeSet, CpusetMemoryError> {
    node_list(system, file).map_err(|reason| CpusetMemoryError::Read {
        file: file.to_owned(),
        reason,
    })
}

fn unread(file: String, error: &io::Error) -> CpusetMemoryError {
    let reason = error_text(error);
    CpusetMemoryError::Read { file, reason }
}

/// How deep groups nest: systemd in a container in a pod in a slice stays below 16.
const MAX_DEPTH: usize = 32;
const MAX_GROUPS: usize = 50_000;

/// Whether version 2 is mounted where changes are made. A tree may lack the file that shows it.
pub(crate) fn hierarchy(system: &dyn System, tree: bool) -> Result<(), CpusetMemoryError> {
    if system.read(&format!("{MOUNT}/cgroup.controllers")).is_ok() {
        return Ok(());
    }
    match system.list(&format!("{MOUNT}/cpuset")) {
        Ok(_) => Err(CpusetMemoryError::VersionOne),
        Err(_) if tree => Ok(()),
        Err(_) => Err(CpusetMemoryError::NoHierarchy),
    }
}

/// The path, below the mount, of the group with this path or this name: `redis.service`.
pub(crate) fn group(
    system: &dyn System,
    tree: bool,
    name: &str,
) -> Result<String, CpusetMemoryError> {
    let path = name.strip_prefix(MOUNT).unwrap_or(name);
    let path = path.trim_matches('/').to_owned();
    check_group(&path)?;
    hierarchy(system, tree)?;
    if is_group(system, &path) {
        return Ok(path);
    }
    let mut groups = match path.contains('/') {
        true => Vec::new(),
        false => named(system, &path)?,
    };
    match groups.len() {
        0 => Err(CpusetMemoryError::NoGroup(name.to_owned())),
        1 => Ok(groups.remove(0)),
        _ => Err(CpusetMemoryError::Ambiguous {
            name: name.to_owned(),
            groups,
        }),
    }
}

fn is_group(system: &dyn System, path: &str) -> bool {
    system.list(&format!("{MOUNT}/{path}")).is_ok()
}

/// Every group whose last name this is.
///
/// # Errors
/// When there are too many groups to look at all of them.
fn named(system: &dyn System, name: &str) -> Result<Vec<String>, CpusetMemoryError> {
    let (mut found, mut left, mut looked_at) = (Vec::new(), vec![(String::new(), 0)], 0);
    while let Some((path, depth)) = left.pop() {
        // The kernel's files are no directories.
        let Ok(entries) = system.list(&format!("{MOUNT}/{path}")) else {
            continue;
        };
        looked_at += 1;
        if looked_at > MAX_GROUPS {
            return Err(CpusetMemoryError::TooManyGroups {
                name: name.to_owned(),
                limit: MAX_GROUPS,
            });
        }
        for entry in entries {
            let below = match path.is_empty() {
                true => entry.clone(),
                false => format!("{path}/{entry}"),
            };
            if entry == name && is_group(system, &below) {
                found.push(below.clone());
            }
            if depth < MAX_DEPTH {
                left.push((below, depth + 1));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The file of the highest group above this one that does not enable the cpuset controller below itself.
fn without_cpuset(system: &dyn System, group: &str) -> String {
    let ends = group.match_indices('/').map(|(end, _)| end);
    let groups_above = std::iter::once("").chain(ends.map(|end| &group[..end]));
    let files = groups_above.map(|above| match above {
        "" => format!("{MOUNT}/cgroup.subtree_control"),
        above => format!("{MOUNT}/{above}/cgroup.subtree_control"),
    });
    let mut last = String::new();
    for file in files {
        let enabled = system.read(&file).unwrap_or_default();
        let mut names = enabled.split(u8::is_ascii_whitespace);
        let has_cpuset = names.any(|name| name == b"cpuset");
        last = file;
        if !has_cpuset {
            break;
        }
    }
    last
}

/// Reading numa_maps takes 23 ms a GiB that a process has mapped, and the same again of shared memory for each that maps it.
const MAX_TIME: Duration = Duration::from_secs(10);

/// A policy that a change of the nodes, or its undo, rewrites.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rebound {
    /// Of a process or thread.
    task: i32,
    name: String,
    policy: String,
    /// The policy afterwards.
    after: String,
    /// Whether that is another one.
    is_changed: bool,
    /// Whether the old list would not bring its nodes back.
    is_lost: bool,
}

/// The policies that are rewritten when the group's tasks may have memory on these nodes only, or when that is undone.
///
/// # Errors
/// The policies of a task are unknown. A tree may lack any file.
pub(crate) fn rebound(
    system: &dyn System,
    tree: bool,
    group: &str,
    nodes: &NodeSet,
) -> Result<BTreeSet<Rebound>, CpusetMemoryError> {
    let release = first_line(system, "/proc/sys/kernel/osrelease");
    let version = release.and_then(|release| KernelVersion::of_release(&release));
    let mut search = Search {
        system,
        tree,
        is_prefer_kept: version >= KernelVersion::of_release("5.14"),
        since: Instant::now(),
        found: BTreeSet::new(),
    };
    match list(system, &format!("{MOUNT}/{group}/cpuset.mems.effective")) {
        Ok(now) => search.group(group, &now, nodes, 0)?,
        Err(_) if tree => {}
        Err(error) => return Err(error),
    }
    Ok(search.found)
}

/// In words: `interleave:0-1 of process 4711 (db) and 2 more`.
pub(crate) fn described<'a>(
    policies: impl Iterator<Item = &'a Rebound>,
    has_after: bool,
) -> Option<String> {
    let mut policies = policies.peekable();
    let first = policies.next()?;
    let more = match policies.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let Rebound {
        task, name, policy, ..
    } = first;
    let after = match has_after {
        true => format!(" to {}", first.after),
        false => String::new(),
    };
    Some(format!("{policy} of task {task} ({name}){after}{more}"))
}

struct Search<'a> {
    system: &'a dyn System,
    tree: bool,
    is_prefer_kept: bool,
    since: Instant,
    found: BTreeSet<Rebound>,
}

impl Search<'_> {
    /// A group whose tasks may have memory on the nodes `old`, and on `new` afterwards; and those below it.
    fn group(
        &mut self,
        group: &str,
        old: &NodeSet,
        new: &NodeSet,
        depth: usize,
    ) -> Result<(), CpusetMemoryError> {
        if old == new {
            return Ok(());
        }
        let directory = format!("{MOUNT}/{group}");
        // Of a threaded group only the threads can be read (EOPNOTSUPP).
        let processes = self.numbers(&format!("{directory}/cgroup.procs"));
        let threads = self.numbers(&format!("{directory}/cgroup.threads"));
        let (processes, threads) = match (processes, threads) {
            (Ok(processes), Ok(threads)) => (processes, threads),
            (Ok(processes), Err(_)) => (processes.clone(), processes),
            (Err(_), Ok(threads)) => (threads.clone(), threads),
            (Err(_), Err(_)) if self.tree => Default::default(),
            (Err(error), Err(_)) => return Err(unread(directory, &error)),
        };
        for task in threads {
            self.task(task, processes.contains(&task), old, new)?;
        }
        // The kernel's files are no directories.
        for name in self.system.list(&directory).unwrap_or_default() {
            let below = format!("{group}/{name}");
            if depth == MAX_DEPTH || self.system.list(&format!("{MOUNT}/{below}")).is_err() {
                continue;
            }
            let nodes = |file: &str| list(self.system, &format!("{MOUNT}/{below}/{file}"));
            let old = nodes("cpuset.mems.effective").unwrap_or_else(|_| old.clone());
            let own = nodes("cpuset.mems").unwrap_or_default();
            let new = match own.intersection(new) {
                none if none.is_empty() => new.clone(),
                own => own,
            };
            self.group(&below, &old, &new, depth + 1)?;
        }
        Ok(())
    }

    fn numbers(&self, file: &str) -> io::Result<BTreeSet<i32>> {
        let text = self.system.read(file)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text
            .lines()
            .filter_map(|it| it.trim().parse().ok())
            .collect())
    }

    fn task(
        &mut self,
        task: i32,
        is_process: bool,
        old: &NodeSet,
        new: &NodeSet,
    ) -> Result<(), CpusetMemoryError> {
        let file = format!("/proc/{task}/numa_maps");
        if self.since.elapsed() > MAX_TIME {
            let reason =
                "the memory policies of the group's tasks take too long to read".to_owned();
            return Err(CpusetMemoryError::Read { file, reason });
        }
        // A mapping without a policy shows the task's. The mappings are the process's: of another thread the first line will do.
        let text = match is_process {
            true => self.system.read(&file),
            false => self.system.begin(&file),
        };
        let text = match text {
            Err(error) if self.tree || tasks::is_gone(&error) => return Ok(()),
            text => text.map_err(|error| unread(file, &error))?,
        };
        let mut policies = BTreeSet::new();
        // What is in memory can be read.
        let _ = numa_maps::each(&text[..], |mapping| {
            if !policies.contains(mapping.policy) {
                policies.insert(mapping.policy.to_owned());
            }
        });
        for policy in policies {
            let policy = String::from_utf8_lossy(&policy).into_owned();
            let Some((mode, nodes)) = rewritten(&policy, self.is_prefer_kept) else {
                continue;
            };
            let after = remapped(&nodes, old, new);
            let is_changed = after != nodes;
            let is_lost = remapped(&after, new, old) != nodes;
            if !is_changed && !is_lost {
                continue;
            }
            let comm = first_line(self.system, &format!("/proc/{task}/comm"));
            self.found.insert(Rebound {
                task,
                name: comm.unwrap_or_default(),
                is_changed,
                is_lost,
                after: format!("{mode}:{after}"),
                policy,
            });
        }
        Ok(())
    }
}

/// Mode and nodes of a policy of numa_maps whose nodes are replaced; `None` for one that has none (`default`, `local`) or whose
/// user's nodes are kept (`bind=static:0`, `interleave=relative:0-1`).
fn rewritten(policy: &str, is_prefer_kept: bool) -> Option<(&str, NodeSet)> {
    let (mode, nodes) = policy.split_once(':')?;
    let is_kept = mode.contains("static")
        || mode.contains("relative")
        || mode.starts_with("prefer (many)")
        || is_prefer_kept && mode.starts_with("prefer");
    let nodes = NodeSet::parse_list(nodes).ok()?;
    (!is_kept).then_some((mode, nodes))
}

/// bitmap_remap() of lib/bitmap.c: a node at the n-th place of the old list becomes the n-th of the new one, counted round; one
/// that is not in the old list stays.
fn remapped(nodes: &NodeSet, old: &NodeSet, new: &NodeSet) -> NodeSet {
    let to = |node: NodeId| {
        let place = old.iter().position(|it| it == node)?;
        new.iter().nth(place % new.len().max(1))
    };
    nodes.iter().map(|node| to(node).unwrap_or(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_replaced_by_their_place_as_the_kernel_does() {
        for (policy, old, new, there, back) in [
            ("1", "0-1", "1", "1", "0"),
            ("0-1", "0-1", "1", "1", "0"),
            ("0-3", "0-3", "2-3", "2-3", "0-1"),
            ("0", "0-1", "0", "0", "0"),
            ("2", "0-3", "2-3", "2", "0"),
            // Outside of the list.
            ("5", "0-1", "1", "5", "5"),
        ] {
            let [nodes, old, new] = [policy, old, new].map(|list| list.parse::<NodeSet>().unwrap());
            let after = remapped(&nodes, &old, &new);
            assert_eq!(after.to_string(), there, "{policy}");
            assert_eq!(remapped(&after, &new, &old).to_string(), back, "{policy}");
        }
    }

    #[test]
    fn policies_that_keep_the_users_nodes_are_not_rewritten() {
        for kept in [
            "default",
            "local",
            "bind=static:0",
            "bind=static|balancing:0-1",
            "interleave=relative:0",
            "prefer (many):0-1",
        ] {
            assert_eq!(rewritten(kept, false), None, "{kept}");
        }
        assert_eq!(rewritten("prefer:1", true), None);
        for policy in [
            "bind:0",
            "bind=balancing:0",
            "prefer:1",
            "weighted interleave:0-1",
        ] {
            assert!(rewritten(policy, false).is_some(), "{policy}");
        }
    }
}
