//! Tasks that run far from a device that reads and writes their memory: a GPU, an RDMA card, what VFIO gave them.
//!
//! A task with several devices is near if it is near one of them: no placement is near all.

use std::collections::BTreeSet;

use nearfar_machine::{
    CpuSet, DeviceKind, Known, NodeId, NodeSet, OpenDevice, OsDevice, OsDeviceKind, PciDevice, Task,
};

use crate::audit::devices;
use crate::audit::memory::PASSED_ON;
use crate::audit::site::{Fact, Site, nodes};
use crate::audit::tasks::named;
use crate::audit::{AuditOptions, Finding, Ledger, Severity};
use crate::near::nearest_cpus;
use crate::tasks::{self, NodeSeconds, Nodes, prefer_command};

const FAR: &str = "task-far-from-device";
/// With this share of CPU time elsewhere it is far.
const FAR_SHARE: f64 = 0.5;

pub(crate) fn check(site: &Site<'_>, options: &AuditOptions, ledger: &mut Ledger) {
    let Some(tasks) = ledger.known(&site.machine.tasks, &[FAR]) else {
        return;
    };
    if let Some(reason) = &site.cpu_nodes_unknown {
        return ledger.skip(&[FAR], reason);
    }
    if !has_such_devices(site) {
        return ledger.not_applicable(&[FAR]);
    }
    // Where the source has no open files, the reason of each task is that of the rule.
    let reasons: BTreeSet<_> = tasks.iter().map(|it| it.devices.unknown_reason()).collect();
    if let (Some(Some(reason)), 1) = (reasons.first(), reasons.len()) {
        return ledger.skip(&[FAR], reason);
    }
    ledger.checked(&[FAR]);
    let known = Nodes::of(site.machine);
    for task in tasks.iter().filter(|_| site.has_several_nodes()) {
        if let Some(reason) = task.devices.unknown_reason() {
            ledger.skip_thing(FAR, || named(task), reason);
        }
        let resident = task.resident.get().map(|it| it.total());
        let is_small = resident.is_some_and(|bytes| bytes < options.task_bytes.max(1));
        if let (false, all @ [_, ..]) = (is_small, task.devices.items()) {
            check_task(site, &known, task, all, ledger);
        }
    }
}

/// Whether there is, or may be, a device that reads and writes the memory of a task.
fn has_such_devices(site: &Site<'_>) -> bool {
    let is_passed_on = |device: &PciDevice| {
        device
            .driver
            .as_deref()
            .is_some_and(|it| PASSED_ON.contains(&it))
    };
    let is_such = |device: &PciDevice| device.is(&DeviceKind::GPU) || is_passed_on(device);
    let is_rdma = |device: &OsDevice| device.kind == OsDeviceKind::OpenFabrics;
    let functions = site.machine.pci.get();
    functions.is_none_or(|all| all.iter().any(is_such))
        || site.machine.os_devices.iter().any(is_rdma)
}

fn check_task(
    site: &Site<'_>,
    known: &Nodes<'_>,
    task: &Task,
    all: &[OpenDevice],
    ledger: &mut Ledger,
) {
    let placed = tasks::judge(known, task, None);
    let cpus = match &placed.at.cpu_nodes {
        Known::Yes(cpus) => cpus,
        Known::No { unknown_reason } => {
            return ledger.skip_thing(FAR, || named(task), unknown_reason);
        }
    };
    let mut homes = Vec::new();
    for device in all {
        match site.locality(device.device).node {
            Some(node) => homes.push((device, node)),
            // It may be near this one.
            None => {
                let reason = format!("the node of {} is unknown", device.device);
                return ledger.skip_thing(FAR, || named(task), &reason);
            }
        }
    }
    let near_cpus = homes.iter().fold(CpuSet::new(), |near, (_, node)| {
        near.union(&nearest_cpus(site.machine, *node))
    });
    let near = site.machine.nodes_of_cpus(&near_cpus);
    if let Some(far) = FarTime::of(cpus, &near) {
        ledger.add(finding(site, task, &far, &homes, &near));
    }
}

/// CPU time on nodes that are near none of a task's devices.
struct FarTime {
    share: f64,
    nodes: NodeSet,
    /// The node with most of it.
    most: NodeId,
}

impl FarTime {
    /// `None` where it is no more than [`FAR_SHARE`].
    fn of(cpus: &[NodeSeconds], near: &NodeSet) -> Option<Self> {
        // What ran for less than a tick ran.
        let seconds = |at: &NodeSeconds| at.seconds.max(f64::MIN_POSITIVE);
        let all: f64 = cpus.iter().map(seconds).sum();
        let far = || cpus.iter().filter(|at| !near.contains(at.node));
        let share = far().map(seconds).sum::<f64>() / all;
        let most = far().max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
        (share > FAR_SHARE).then(|| Self {
            share,
            nodes: far().map(|at| at.node).collect(),
            most: most.node,
        })
    }
}

fn finding(
    site: &Site<'_>,
    task: &Task,
    far: &FarTime,
    homes: &[(&OpenDevice, NodeId)],
    near: &NodeSet,
) -> Finding {
    let distance = |from: NodeId| {
        let to = homes
            .iter()
            .map(|(_, home)| site.machine.distance(from, *home));
        to.flatten().min()
    };
    let allowed = task
        .allowed_cpus
        .get()
        .map(|it| site.machine.nodes_of_cpus(it));
    let is_confined = allowed.is_some_and(|it| !it.is_empty() && !it.intersects(near));
    let at: NodeSet = homes.iter().map(|(_, home)| *home).collect();
    let device = |address| match site.machine.pci_device(address) {
        Some(device) => devices::named(device),
        None => address.to_string(),
    };
    let what = match homes {
        [(one, _)] => device(one.device),
        _ => format!("any of the {} devices", homes.len()),
    };
    let message = format!(
        "{:.0} % of its CPU time was on {}, far from {what} on {}, which it has open{}.",
        100.0 * far.share,
        nodes(&far.nodes),
        nodes(&at),
        if is_confined {
            " and may not run near"
        } else {
            ""
        },
    );
    let to = near.iter().min_by_key(|&node| {
        let distance = distance(node);
        (distance.is_none(), distance, node)
    });
    let files = homes.iter().flat_map(|(open, _)| &open.files);
    let files: Vec<&str> = files.map(String::as_str).collect();
    let finding = Finding::new(FAR, named(task), message)
        .severity(match is_confined {
            true => Severity::Warning,
            false => Severity::Notice,
        })
        .evidence(site.place(Fact::TaskFiles(task.pid)), files.join(", "))
        .cost(distance(far.most), to.and_then(distance))
        .device(homes[0].0.device);
    let finding = homes.iter().fold(finding, |finding, (open, node)| {
        let file = site.place(Fact::DeviceNode(open.device));
        finding.evidence(file, node.to_string())
    });
    match to {
        Some(to) => finding.advice(format!(
            "{} runs it near the device; the memory that it has stays where it is.",
            prefer_command(task.pid, to)
        )),
        None => finding,
    }
}
