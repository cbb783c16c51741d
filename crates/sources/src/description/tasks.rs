//! From the keys of a description to tasks and cpusets.

use std::collections::BTreeMap;

use nearfar_machine::{
    CpuId, CpuSet, CpuTime, Cpuset, Known, Machine, NodeBytes, NodeId, NodeSet, PolicyBytes,
    ResidentBytes, Task, size,
};
use toml::Spanned;

use super::build::{BECAUSE, listed};
use super::fault::Faults;
use super::file::{CpusetEntry, Description, TaskEntry};
use crate::error::TextError;

pub(super) fn add(
    file: &Description,
    machine: &mut Machine,
    faults: &Faults<'_>,
) -> Result<(), TextError> {
    let mut tasks: BTreeMap<i32, Task> = BTreeMap::new();
    for spanned in &file.task {
        let task = task(spanned.get_ref(), machine, faults)?;
        let pid = task.pid;
        if tasks.insert(pid, task).is_some() {
            return Err(faults.at(spanned, "pid", format!("there are two tasks {pid}")));
        }
    }
    if !tasks.is_empty() {
        machine.tasks = Known::Yes(tasks.into_values().collect());
    }
    let cpusets = file
        .cpuset
        .iter()
        .map(|it| cpuset(it.get_ref(), machine, faults));
    let mut cpusets = cpusets.collect::<Result<Vec<_>, _>>()?;
    cpusets.sort_by(|a, b| a.path.cmp(&b.path));
    if !cpusets.is_empty() {
        machine.cpusets = Known::Yes(cpusets);
    }
    Ok(())
}

fn task(entry: &TaskEntry, machine: &Machine, faults: &Faults<'_>) -> Result<Task, TextError> {
    let pid = *entry.pid.get_ref();
    if pid < 1 {
        return Err(faults.at(&entry.pid, "pid", "a process has a number from 1"));
    }
    let allowed_cpus = match &entry.cpus {
        Some(list) => listed(list, "cpus", machine, faults)?,
        None => machine.cpu_states.online.clone(),
    };
    let allowed_nodes = match &entry.nodes {
        Some(list) => listed_nodes(list, machine, faults)?,
        None => machine.online_node_set(),
    };
    let mut memory = Vec::new();
    for (number, text) in &entry.memory {
        let fail = |problem| faults.at(text, "memory", problem);
        let node = number.parse().ok().map(NodeId);
        let node = node.filter(|node| machine.node(*node).is_some());
        let node = node.ok_or_else(|| fail(format!("node {number} is not described")))?;
        let bytes = size::parse(text.get_ref(), 1);
        let bytes = bytes.ok_or_else(|| fail("not a size such as \"512M\"".to_owned()))?;
        memory.push(NodeBytes { node, bytes });
    }
    memory.sort_by_key(|on| on.node);
    let total = memory
        .iter()
        .fold(0, |sum: u64, on| sum.saturating_add(on.bytes));
    let pinned = entry.pinned.as_ref().map_or(Ok(0), |text| {
        let bytes = size::parse(text.get_ref(), 1).filter(|bytes| *bytes <= total);
        bytes.ok_or_else(|| faults.at(text, "pinned", "not a size, or more than its memory"))
    })?;
    let times = cpu_times(entry, machine, faults)?;
    let busiest = times
        .iter()
        .max_by_key(|time| (time.ms, std::cmp::Reverse(time.cpu)));
    let known = |text: &Option<String>| Known::from_option(text.clone(), || BECAUSE);
    Ok(Task {
        last_cpu: Known::from_option(busiest.map(|time| time.cpu), || BECAUSE),
        cpu_ms: Known::Yes(times.iter().map(|time| time.ms).sum()),
        cpu_times: Known::Yes(times),
        policies: Known::Yes(vec![PolicyBytes {
            policy: entry.policy.clone().unwrap_or_else(|| "default".to_owned()),
            bytes: total,
        }]),
        resident: Known::Yes(ResidentBytes {
            anonymous: total,
            pinned,
            ..ResidentBytes::default()
        }),
        memory: Known::Yes(memory),
        pinned_bytes: Known::Yes(pinned),
        allowed_cpus: Known::Yes(allowed_cpus),
        allowed_nodes: Known::Yes(allowed_nodes),
        user: Known::from_option(entry.user, || BECAUSE),
        group: known(&entry.group),
        preferred_node: Known::no(BECAUSE),
        start: Known::no(BECAUSE),
        age_ms: Known::no(BECAUSE),
        ..Task::new(pid, &entry.name)
    })
}

fn cpu_times(
    entry: &TaskEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Vec<CpuTime>, TextError> {
    let mut times: BTreeMap<CpuId, u64> = BTreeMap::new();
    for (list, seconds) in &entry.cpu_seconds {
        let cpus = CpuSet::parse_list(list);
        let cpus = cpus.map_err(|error| faults.at(seconds, "cpu_seconds", error))?;
        for cpu in cpus.iter() {
            if machine.cpu(cpu).is_none() {
                let problem = format!("CPU {cpu} is in no node");
                return Err(faults.at(seconds, "cpu_seconds", problem));
            }
            *times.entry(cpu).or_default() += u64::from(*seconds.get_ref()) * 1000;
        }
    }
    Ok(times
        .into_iter()
        .map(|(cpu, ms)| CpuTime { cpu, ms })
        .collect())
}

fn cpuset(
    entry: &CpusetEntry,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<Cpuset, TextError> {
    Ok(Cpuset {
        path: entry.path.clone(),
        cpus: Known::Yes(listed(&entry.cpus, "cpus", machine, faults)?),
        nodes: Known::Yes(listed_nodes(&entry.nodes, machine, faults)?),
        configured: true,
        version_2: Some(true),
    })
}

/// A list of nodes, all of which are described.
fn listed_nodes(
    spanned: &Spanned<String>,
    machine: &Machine,
    faults: &Faults<'_>,
) -> Result<NodeSet, TextError> {
    let set = NodeSet::parse_list(spanned.get_ref());
    let set = set.map_err(|error| faults.at(spanned, "nodes", error))?;
    let stray = set.iter().find(|&node| machine.node(node).is_none());
    match stray {
        Some(stray) => Err(faults.at(spanned, "nodes", format!("node {stray} is not described"))),
        None => Ok(set),
    }
}
