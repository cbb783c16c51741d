//! Typed changes to a system, and the plan that lists them: what `nearfar_placement::plan` makes and this crate carries out, and whether
//! it can be carried out at all. A plan is foreign input: it may have been edited, made by another version
//! or for another machine, or written to do harm with the rights of the user that applies it.

use std::collections::HashMap;

use nearfar_machine::{
    CpuId, CpuSet, Distance, IoPolicy, Irq, Machine, NodeBytes, NodeId, NodeSet, PciAddress,
};
use serde::{Deserialize, Serialize};

use crate::kind::{ChangeError, Setting};
use crate::task_memory::MoveEstimate;

/// The version of the plan format written by this version of nearfar.
pub const PLAN_FORMAT: u32 = 1;

/// What to change, in this order, and what was left alone. Serialised, it is what `nearfar plan --format json` prints
/// and `nearfar apply FILE` reads.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_FORMAT`] of the version that wrote it.
    pub plan_format: u32,
    /// Host name of the machine it was made for, where known. A plan is not carried out on another host.
    pub host: Option<String>,
    /// Identifier of the boot it was made in (`/proc/sys/kernel/random/boot_id`), if the source has it. Numbers and
    /// names of devices may stand for others after a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The CPUs of each online node when the plan was made. A plan is not carried out where one of them is on another
    /// node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeCpus>,
    /// The changes, in the order in which they are made.
    pub changes: Vec<Planned>,
    /// What an audit rule would have changed and the plan does not touch.
    pub left_alone: Vec<LeftAlone>,
    /// The rules that could not be checked for want of input: what they would have found is in no change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_checked: Vec<String>,
    /// For each node that a change mentions: usable CPUs, nearest first. Where the kernel has no interrupt vector left
    /// on a CPU (ENOSPC) the next one is tried.
    pub nearest: Vec<NearestCpus>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    pub change: Change,
    /// The value it had when the plan was made, as the kernel's file shows it; `None` where it was not seen. A value
    /// that has changed since is not overwritten.
    pub before: Option<String>,
    /// What the change's number or name stood for when the plan was made; `None` if unknown, and for sysctls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The audit rule it fixes.
    pub rule: String,
    pub reason: String,
    /// The distance before and after, where the change is about one.
    pub distance: Option<DistanceChange>,
    /// What it takes and saves, where that was estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<MoveEstimate>,
}

/// The device behind a number or name that the kernel may give to another device later: an interrupt's number,
/// `eth0`, `nvme-subsys0`, the PCI address of a card that was plugged in. Two owners differ where a field that both
/// have differs; `interface` and `controller` are not compared.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The handlers of an interrupt ([`nearfar_machine::Interrupt::name`]); empty where it has none. A plan has them in
    /// [`Change::InterruptAffinity`] instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handlers: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PciAddress>,
    /// Vendor and device number of that function, in hex: `8086:1592`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
    /// The hardware address of an interface, if several have the same PCI function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// The process behind a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessIdentity>,
}

impl Owner {
    /// A PCI function and its numbers.
    pub(crate) fn of_function(machine: &Machine, address: PciAddress) -> Self {
        let id = machine
            .pci_device(address)
            .filter(|device| device.is_identified())
            .map(|device| format!("{:04x}:{:04x}", device.vendor, device.device));
        Self {
            device: Some(address),
            pci_id: id,
            ..Self::default()
        }
    }
}

/// What tells a process from a later one with its number, within one boot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessIdentity {
    /// When it began, in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_ticks: u64,
    /// Its name (`comm`) then, for messages: a process may change it.
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeCpus {
    pub node: NodeId,
    /// Its online CPUs.
    pub cpus: CpuSet,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DistanceChange {
    /// The distance now; `None` where nothing gives one.
    pub now: Option<Distance>,
    /// The distance after the change.
    pub after: Option<Distance>,
}

/// A change to one setting of the system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// `/proc/irq/N/smp_affinity_list`.
    InterruptAffinity {
        irq: Irq,
        cpus: CpuSet,
        /// The node it should be near; names the list of [`Plan::nearest`] to fall back on.
        near: Option<NodeId>,
        /// What its handler calls itself ([`nearfar_machine::Interrupt::name`]). The number changes at every boot, the
        /// name does not: what is exported to be kept looks the number up by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// `/sys/class/net/IF/queues/tx-N/xps_cpus`.
    Xps {
        interface: String,
        queue: u32,
        cpus: CpuSet,
    },
    /// `/sys/class/net/IF/queues/rx-N/rps_cpus`.
    Rps {
        interface: String,
        queue: u32,
        /// The CPUs that process its packets; empty for "the one that took the interrupt".
        cpus: CpuSet,
    },
    /// `/sys/class/nvme-subsystem/NAME/iopolicy`.
    NvmeIoPolicy {
        /// The kernel's name of the subsystem.
        subsystem: String,
        policy: IoPolicy,
    },
    /// `/sys/bus/pci/devices/ADDRESS/numa_node`: taints the kernel (`TAINT_FIRMWARE_WORKAROUND`), and a bound driver
    /// keeps the node it was probed with until it is bound again.
    DeviceNode {
        device: PciAddress,
        /// The node, which has to be online.
        node: NodeId,
        /// The driver to unbind and bind again; `None` to leave that to the operator.
        rebind: Option<String>,
    },
    /// `/sys/kernel/debug/sched/...`, of the running kernel only: gone with the next boot.
    SchedulerDebug {
        /// Below `/sys/kernel/debug/sched`: `migration_cost_ns`.
        name: String,
        value: String,
    },
    /// `/sys/fs/cgroup/GROUP/cpuset.cpus`.
    Cpuset {
        /// The control group, below the mount of the version 2 hierarchy: `system.slice/db.service`.
        group: String,
        /// The CPUs its tasks may use; empty for those of the parent.
        cpus: CpuSet,
    },
    /// `/sys/fs/cgroup/GROUP/cpuset.mems`. The kernel moves the memory that the group's tasks have on other nodes (Linux
    /// 5.15, cpuset_migrate_mm in kernel/cgroup/cpuset.c); a later value with more nodes moves nothing back.
    CpusetMemory {
        /// As in [`Change::Cpuset`].
        group: String,
        /// The nodes its tasks may have memory on; not empty.
        nodes: NodeSet,
    },
    /// `/proc/sys/...`.
    Sysctl {
        /// With dots: `kernel.numa_balancing`.
        name: String,
        value: String,
    },
    /// The pages of a process that are in memory now: moved with move_pages(2). Its later pages go where the kernel
    /// puts them.
    TaskMemory {
        pid: i32,
        /// Pages on these nodes are moved.
        from: NodeSet,
        to: NodeId,
        /// Also the pages that other processes map; needs CAP_SYS_NICE.
        #[serde(default)]
        shared: bool,
    },
}

impl Change {
    /// The value as a person writes it: CPU sets as lists, nothing for an empty one.
    pub fn value(&self) -> String {
        match self {
            Self::InterruptAffinity { cpus, .. }
            | Self::Xps { cpus, .. }
            | Self::Rps { cpus, .. }
            | Self::Cpuset { cpus, .. } => cpus.to_string(),
            Self::CpusetMemory { nodes, .. } => nodes.to_string(),
            Self::NvmeIoPolicy { policy, .. } => policy.to_string(),
            Self::DeviceNode { node, .. } => node.to_string(),
            Self::Sysctl { value, .. } | Self::SchedulerDebug { value, .. } => value.clone(),
            Self::TaskMemory { to, .. } => to.to_string(),
        }
    }

    /// A sysctl by its name with dots.
    pub fn sysctl(name: &str, value: &str) -> Self {
        Self::Sysctl {
            name: name.to_owned(),
            value: value.to_owned(),
        }
    }
}

/// Something a rule found and the plan does not change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftAlone {
    /// What: "interrupt 42 (nvme0q3)".
    pub subject: String,
    pub rule: String,
    #[serde(alias = "because")]
    pub reason: String,
}

/// CPUs by nearness to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearestCpus {
    pub node: NodeId,
    /// Usable CPUs, nearest first.
    pub cpus: Vec<CpuId>,
}

/// `N0=1048576 N1=4096`, in bytes.
pub fn memory_by_node(memory: &[NodeBytes]) -> String {
    let parts: Vec<String> = memory
        .iter()
        .map(|on| format!("N{}={}", on.node, on.bytes))
        .collect();
    parts.join(" ")
}

/// More changes than any machine has settings for: 8192 CPUs with as many queues stay far below it.
const MOST_CHANGES: usize = 262_144;
/// The longest value a plan may carry: a mask of 65536 CPUs needs 18 KiB.
const LONGEST_VALUE: usize = 64 * 1024;

/// Why a plan is not carried out. Changes are counted from 1, as `nearfar plan` shows them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Made by a version with another format.
    #[error(
        "the plan has format {found}, this version knows format {PLAN_FORMAT}: make the plan again with it"
    )]
    Format {
        /// The plan's `plan_format`.
        found: u32,
    },
    /// Made for another machine.
    #[error("the plan was made for host {plan:?}, this is {here:?}: make a plan here")]
    OtherHost {
        /// The plan's `host`.
        plan: String,
        /// The target's host name.
        here: String,
    },
    /// A number or a name in the plan is another device's now. The plan is refused as a whole.
    #[error(
        "change {number} of the plan: {file}: the plan was made for {was}, it is {now} now{}; nothing was changed: \
         make the plan again", others_too(*others)
    )]
    OtherOwner {
        /// Counted from 1.
        number: usize,
        /// The file it writes.
        file: String,
        /// The owner when the plan was made.
        was: String,
        /// The owner now.
        now: String,
        /// How many further changes have another owner.
        others: usize,
    },
    /// The plan was made in another boot, and nothing tells whether a number or name in it is still the same device's.
    #[error(
        "change {number} of the plan: {file}: the plan was made in boot {plan}, this is boot {here}, and nothing tells \
         whether that is still the same device's; nothing was changed: make the plan again"
    )]
    OtherBoot {
        /// Counted from 1.
        number: usize,
        /// The file it writes.
        file: String,
        /// Identifier of the boot it was made in.
        plan: String,
        /// Identifier of this boot.
        here: String,
    },
    /// CPUs are on other nodes than when the plan was made: what it takes for near is not.
    #[error(
        "CPU {cpu} was on node {plan} when the plan was made and is on node {here} now; nothing was changed: make the \
         plan again"
    )]
    OtherNodes {
        cpu: CpuId,
        /// Its node in the plan.
        plan: NodeId,
        /// Its node now.
        here: NodeId,
    },
    /// More changes than there can be settings.
    #[error("the plan has {0} changes; no machine has that many settings")]
    TooMany(usize),
    /// A change that cannot be meant.
    #[error("change {number} of the plan: {reason}")]
    Change {
        /// Counted from 1.
        number: usize,
        reason: ChangeError,
    },
    /// Two changes to one file: which old value rollback should restore would hang on their order.
    #[error("changes {first} and {second} of the plan both write {file}: remove one")]
    Twice {
        /// Counted from 1.
        first: usize,
        /// Counted from 1.
        second: usize,
        /// The file both write.
        file: String,
    },
}

fn others_too(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and 1 more belongs to another device)".to_owned(),
        others => format!(" (and {others} more belong to other devices)"),
    }
}

/// Whether every change of the plan is one nearfar would make: known format, names that stay inside their directories,
/// values of the right kind, no file written twice. Looks at nothing but the plan.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(plan: &Plan) -> Result<(), PlanError> {
    if plan.plan_format != PLAN_FORMAT {
        return Err(PlanError::Format {
            found: plan.plan_format,
        });
    }
    if plan.changes.len() > MOST_CHANGES {
        return Err(PlanError::TooMany(plan.changes.len()));
    }
    let mut seen = HashMap::new();
    for (planned, number) in plan.changes.iter().zip(1..) {
        check_planned(planned).map_err(|reason| PlanError::Change { number, reason })?;
        let setting = Setting::of(&planned.change);
        let file = setting.path();
        if let Some(first) = seen.insert(setting, number) {
            return Err(PlanError::Twice {
                first,
                second: number,
                file,
            });
        }
    }
    Ok(())
}

/// One change by itself.
pub(crate) fn check_planned(planned: &Planned) -> Result<(), ChangeError> {
    let setting = Setting::of(&planned.change);
    setting.check()?;
    let before = planned.before.as_ref().map_or(0, String::len);
    ChangeError::unless(before <= LONGEST_VALUE, || {
        format!("the value before has more than {LONGEST_VALUE} bytes")
    })?;
    let value = planned.change.value();
    setting.kind().check_value(planned, &value)
}

/// A driver's name, as part of a path.
pub(crate) fn driver(name: &str) -> Result<(), ChangeError> {
    word(name, "driver", b"_-")
}

pub(crate) fn word(text: &str, noun: &str, also: &[u8]) -> Result<(), ChangeError> {
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || also.contains(&b));
    ChangeError::unless(plain && (1..=64).contains(&text.len()), || {
        format!("{noun} {text:.64?} is not a plain word")
    })
}
