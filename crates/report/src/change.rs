//! A typed change in words: what it is about, and the value it writes.

use std::fmt::Display;

use nearfar_placement::change::{Change, DistanceChange};

use crate::amount::or;

/// Why a setting is not undone: its file is gone.
pub(crate) const GONE: &str = "the file is no longer there";
/// The same of the memory of a process.
pub(crate) const PROCESS_GONE: &str = "the process has ended or runs another program";
/// Why a setting is not undone: the kernel that had it has ended.
pub(crate) const GONE_WITH_REBOOT: &str = "a reboot has reset it";

/// Why a setting is not undone: its file belongs to another device now.
pub(crate) fn other_owner(was: impl Display, now: impl Display) -> String {
    format!("it was {was}, it is {now} now")
}

/// What a change is about: `interrupt 42 (nvme0q3)`, `ens5f0 tx-3 XPS`.
pub(crate) fn subject(change: &Change) -> String {
    match change {
        Change::InterruptAffinity { irq, name, .. } => match name {
            Some(name) => format!("interrupt {irq} ({name})"),
            None => format!("interrupt {irq}"),
        },
        Change::Xps {
            interface, queue, ..
        } => format!("{interface} tx-{queue} XPS"),
        Change::Rps {
            interface, queue, ..
        } => format!("{interface} rx-{queue} RPS"),
        Change::NvmeIoPolicy { subsystem, .. } => format!("{subsystem} iopolicy"),
        Change::DeviceNode { device, .. } => format!("{device} numa_node"),
        Change::Sysctl { name, .. } => name.clone(),
        Change::SchedulerDebug { name, .. } => format!("scheduler {name}"),
        Change::Cpuset { group, .. } => format!("{group} cpuset"),
        Change::CpusetMemory { group, .. } => format!("memory nodes of {group}"),
        Change::TaskMemory { pid, .. } => format!("memory of process {pid}"),
    }
}

/// The value it writes, as a person would write it: CPU sets as lists.
pub(crate) fn value(change: &Change) -> String {
    match change {
        Change::InterruptAffinity { cpus, .. }
        | Change::Xps { cpus, .. }
        | Change::Rps { cpus, .. }
        | Change::Cpuset { cpus, .. } => or(Some(cpus).filter(|cpus| !cpus.is_empty()), "none"),
        Change::CpusetMemory { nodes, .. } => nodes.to_string(),
        Change::NvmeIoPolicy { policy, .. } => policy.to_string(),
        Change::DeviceNode { node, .. } => node.to_string(),
        Change::Sysctl { value, .. } | Change::SchedulerDebug { value, .. } => value.clone(),
        Change::TaskMemory {
            from, to, shared, ..
        } => {
            let shared = if *shared { ", shared pages too" } else { "" };
            format!("nodes {from} to node {to}{shared}")
        }
    }
}

/// What the operator has to know before, where there is something.
pub(crate) fn caution(change: &Change) -> Option<&'static str> {
    match change {
        Change::DeviceNode { .. } => Some(
            "writing numa_node taints the kernel (TAINT_FIRMWARE_WORKAROUND), and the driver keeps the old node until \
             it is bound again",
        ),
        Change::TaskMemory { .. } => Some(
            "the process is slower while its pages move (13 to 45 % of its pace was measured); rollback is exact but for huge \
             pages that the kernel splits, which stay split, and pages that the process replaces meanwhile, which stay \
             where they are",
        ),
        Change::CpusetMemory { .. } => Some(
            "the kernel moves what the group's tasks have on other nodes, shared pages as well, before the write ends (Linux \
             5.15); rollback restores the nodes and moves nothing back: --memory does",
        ),
        _ => None,
    }
}

/// `21 -> 10`; empty where both are unknown.
pub(crate) fn distance(change: Option<DistanceChange>) -> String {
    let Some(DistanceChange { now, after }) = change else {
        return String::new();
    };
    match (now, after) {
        (None, None) => String::new(),
        _ => format!("{} -> {}", or(now, "?"), or(after, "?")),
    }
}
