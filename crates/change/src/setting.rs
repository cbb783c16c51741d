//! The files a change can reach, and what their text means. A setting comes from a plan or a journal, both of which
//! may have been written by an attacker: [`Setting::check`] precedes every use of [`Setting::path`].

use nearfar_machine::{CpuSet, Irq, MAX_NUMBER, NodeId, NodeSet, PciAddress};
use nearfar_placement::change::Change;
use serde::{Deserialize, Serialize};

use crate::task_memory;

/// The sysctls nearfar writes. A plan is a file that may come from anywhere, and `kernel.core_pattern` runs programs:
/// only what decides over locality is let through.
pub(crate) const SYSCTLS: &[&str] = &[
    "kernel.numa_balancing",
    "kernel.numa_balancing_promote_rate_limit_MBps",
    "net.core.rps_sock_flow_entries",
    "vm.zone_reclaim_mode",
    // Linux before 5.13; later kernels have them in debugfs (SCHEDULER_DEBUG).
    "kernel.numa_balancing_scan_delay_ms",
    "kernel.numa_balancing_scan_period_max_ms",
    "kernel.numa_balancing_scan_period_min_ms",
    "kernel.sched_migration_cost_ns",
];

/// The scheduler's settings in debugfs that nearfar writes.
const SCHEDULER_DEBUG: &[&str] = &[
    "migration_cost_ns",
    "numa_balancing/scan_delay_ms",
    "numa_balancing/scan_period_max_ms",
    "numa_balancing/scan_period_min_ms",
];

/// One file of the system that a change writes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Setting {
    /// `/proc/irq/N/smp_affinity_list`, a CPU list.
    InterruptAffinity {
        /// The interrupt.
        irq: Irq,
    },
    /// `/sys/class/net/IF/queues/tx-N/xps_cpus`, a CPU mask.
    Xps {
        /// Interface.
        interface: String,
        /// Transmit queue.
        queue: u32,
    },
    /// `/sys/class/net/IF/queues/rx-N/rps_cpus`, a CPU mask.
    Rps {
        /// Interface.
        interface: String,
        /// Receive queue.
        queue: u32,
    },
    /// `/sys/class/nvme-subsystem/NAME/iopolicy`, a word.
    NvmeIoPolicy {
        /// The kernel's name of the subsystem.
        subsystem: String,
    },
    /// `/sys/bus/pci/devices/ADDRESS/numa_node`, a number, -1 for none.
    DeviceNode { device: PciAddress },
    /// `/sys/kernel/debug/sched/...`, words.
    SchedulerDebug {
        /// Below that directory.
        name: String,
    },
    /// `/sys/fs/cgroup/GROUP/cpuset.cpus`, a CPU list.
    Cpuset {
        /// The control group.
        group: String,
    },
    /// `/sys/fs/cgroup/GROUP/cpuset.mems`, a node list; empty for the nodes of the group above.
    CpusetMemory { group: String },
    /// `/proc/sys/...`, words.
    Sysctl {
        /// With dots.
        name: String,
    },
    /// The pages of a process. Not a file that is written: `/proc/PID/numa_maps` shows them.
    TaskMemory { pid: i32 },
}

/// What a setting's text says, apart from how it is written.
#[derive(PartialEq, Eq)]
enum Meaning {
    Cpus(CpuSet),
    Nodes(NodeSet),
    Number(i64),
    Words(Vec<String>),
}

/// Why a change cannot be made anywhere. Names are those of the plan or journal, which may come from any user.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("{0:.64?} is not an NVMe subsystem such as nvme-subsys0")]
    NvmeSubsystem(String),
    #[error(
        "scheduler setting {name:.64?} is none of those nearfar writes ({})",
        SCHEDULER_DEBUG.join(", ")
    )]
    SchedulerSetting { name: String },
    #[error("sysctl {name:.64?} is none of those nearfar writes ({})", SYSCTLS.join(", "))]
    Sysctl { name: String },
    #[error("{0:.64?} is not a control group such as system.slice/db.service")]
    ControlGroup(String),
    #[error("{0:.64?} is not the name of a network interface")]
    Interface(String),
    #[error("{noun} {text:.64?} is not a plain word")]
    Word { noun: &'static str, text: String },
    #[error("the value before has more than {limit} bytes")]
    LongValue { limit: usize },
    #[error("interrupt {irq} would have no CPU to serve it")]
    NoCpus { irq: nearfar_machine::Irq },
    #[error("process {0}: only memory of processes with numbers above 1 is moved")]
    ProcessNumber(i32),
    #[error("process {0} is nearfar itself")]
    OwnProcess(i32),
    #[error("node {0} is above {MAX_NUMBER}, the highest number supported")]
    NodeNumber(NodeId),
    #[error(
        "cannot move memory of process {pid} to node {to}: no other node has memory, or none is named"
    )]
    NoNodes { pid: i32, to: NodeId },
    #[error("cannot move memory of process {pid} from node {to} to the same node")]
    SameNode { pid: i32, to: NodeId },
    #[error("control group {0:.64?} would have no node to have memory on")]
    NoMemoryNodes(String),
    #[error("the plan does not say when process {0} began: make the plan again")]
    NoIdentity(i32),
}

impl Setting {
    /// The setting a change is about.
    pub fn of(change: &Change) -> Self {
        match change {
            Change::InterruptAffinity { irq, .. } => Self::InterruptAffinity { irq: *irq },
            Change::Xps {
                interface, queue, ..
            } => Self::Xps {
                interface: interface.clone(),
                queue: *queue,
            },
            Change::Rps {
                interface, queue, ..
            } => Self::Rps {
                interface: interface.clone(),
                queue: *queue,
            },
            Change::NvmeIoPolicy { subsystem, .. } => Self::NvmeIoPolicy {
                subsystem: subsystem.clone(),
            },
            Change::DeviceNode { device, .. } => Self::DeviceNode { device: *device },
            Change::SchedulerDebug { name, .. } => Self::SchedulerDebug { name: name.clone() },
            Change::Cpuset { group, .. } => Self::Cpuset {
                group: group.clone(),
            },
            Change::CpusetMemory { group, .. } => Self::CpusetMemory {
                group: group.clone(),
            },
            Change::Sysctl { name, .. } => Self::Sysctl { name: name.clone() },
            Change::TaskMemory { pid, .. } => Self::TaskMemory { pid: *pid },
        }
    }

    /// Whether the names in it can be part of a path.
    ///
    /// # Errors
    /// Which name cannot be.
    pub fn check(&self) -> Result<(), ChangeError> {
        match self {
            Self::InterruptAffinity { .. } | Self::DeviceNode { .. } => Ok(()),
            Self::Xps { interface, .. } | Self::Rps { interface, .. } => check_interface(interface),
            Self::NvmeIoPolicy { subsystem } => {
                let number = subsystem.strip_prefix("nvme-subsys").unwrap_or_default();
                let good =
                    (1..=10).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
                good.then_some(())
                    .ok_or_else(|| ChangeError::NvmeSubsystem(subsystem.clone()))
            }
            Self::SchedulerDebug { name } => SCHEDULER_DEBUG
                .contains(&name.as_str())
                .then_some(())
                .ok_or_else(|| ChangeError::SchedulerSetting { name: name.clone() }),
            Self::Cpuset { group } | Self::CpusetMemory { group } => check_group(group),
            Self::Sysctl { name } => SYSCTLS
                .contains(&name.as_str())
                .then_some(())
                .ok_or_else(|| ChangeError::Sysctl { name: name.clone() }),
            Self::TaskMemory { pid } => (*pid > 1)
                .then_some(())
                .ok_or(ChangeError::ProcessNumber(*pid)),
        }
    }

    /// The file, as an absolute path below the target's root.
    pub fn path(&self) -> String {
        match self {
            Self::InterruptAffinity { irq } => format!("/proc/irq/{irq}/smp_affinity_list"),
            Self::Xps { interface, queue } => {
                format!("/sys/class/net/{interface}/queues/tx-{queue}/xps_cpus")
            }
            Self::Rps { interface, queue } => {
                format!("/sys/class/net/{interface}/queues/rx-{queue}/rps_cpus")
            }
            Self::NvmeIoPolicy { subsystem } => {
                format!("/sys/class/nvme-subsystem/{subsystem}/iopolicy")
            }
            Self::DeviceNode { device } => format!("/sys/bus/pci/devices/{device}/numa_node"),
            Self::SchedulerDebug { name } => format!("/sys/kernel/debug/sched/{name}"),
            Self::Cpuset { group } => format!("/sys/fs/cgroup/{group}/cpuset.cpus"),
            Self::CpusetMemory { group } => format!("/sys/fs/cgroup/{group}/cpuset.mems"),
            Self::Sysctl { name } => format!("/proc/sys/{}", name.replace('.', "/")),
            Self::TaskMemory { pid } => format!("/proc/{pid}/numa_maps"),
        }
    }

    /// The setting of a file: the inverse of [`Setting::path`]. `None` for a file of no setting, and for one whose names are refused.
    pub fn at(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let setting = match parts[..] {
            ["proc", "irq", irq, _] => Self::InterruptAffinity {
                irq: Irq(irq.parse().ok()?),
            },
            ["sys", "class", "net", interface, "queues", queue, _] => {
                let (kind, queue) = queue.split_once('-')?;
                let (interface, queue) = (interface.to_owned(), queue.parse().ok()?);
                match kind {
                    "tx" => Self::Xps { interface, queue },
                    _ => Self::Rps { interface, queue },
                }
            }
            ["sys", "class", "nvme-subsystem", subsystem, _] => Self::NvmeIoPolicy {
                subsystem: subsystem.to_owned(),
            },
            ["sys", "bus", "pci", "devices", device, _] => Self::DeviceNode {
                device: device.parse().ok()?,
            },
            ["sys", "kernel", "debug", "sched", ref name @ ..] => Self::SchedulerDebug {
                name: name.join("/"),
            },
            ["sys", "fs", "cgroup", ref group @ .., "cpuset.cpus"] => Self::Cpuset {
                group: group.join("/"),
            },
            ["sys", "fs", "cgroup", ref group @ .., "cpuset.mems"] => Self::CpusetMemory {
                group: group.join("/"),
            },
            ["proc", "sys", ref name @ ..] => Self::Sysctl {
                name: name.join("."),
            },
            _ => return None,
        };
        (setting.check().is_ok() && setting.path() == path).then_some(setting)
    }

    /// Whether two texts say the same of this setting: "0-3" and "0,1,2,3", "0f" and "0000000f\n".
    pub fn same(&self, one: &str, other: &str) -> bool {
        one == other
            || self
                .meaning(one)
                .is_some_and(|meaning| Some(meaning) == self.meaning(other))
    }

    /// A text of the file as it is shown to people: CPU masks as lists, "none" for an empty one, bytes by node with
    /// units, an empty list of memory nodes as "not set", anything else without its line end.
    pub fn shown(&self, text: &str) -> String {
        let text = text.trim_end();
        match (self, self.meaning(text)) {
            (Self::Xps { .. } | Self::Rps { .. }, Some(Meaning::Cpus(cpus))) if cpus.is_empty() => {
                "none".to_owned()
            }
            (Self::Xps { .. } | Self::Rps { .. }, Some(Meaning::Cpus(cpus))) => cpus.to_string(),
            (Self::TaskMemory { .. }, _) => task_memory::shown(text),
            (Self::CpusetMemory { .. }, _) if text.is_empty() => "not set".to_owned(),
            _ => text.to_owned(),
        }
    }

    fn meaning(&self, text: &str) -> Option<Meaning> {
        let text = text.trim();
        match self {
            Self::CpusetMemory { .. } => NodeSet::parse_list(text).ok().map(Meaning::Nodes),
            _ if text.is_empty() => None,
            Self::InterruptAffinity { .. } | Self::Cpuset { .. } => {
                CpuSet::parse_list(text).ok().map(Meaning::Cpus)
            }
            Self::Xps { .. } | Self::Rps { .. } => CpuSet::parse_mask(text).ok().map(Meaning::Cpus),
            Self::DeviceNode { .. } => text.parse().ok().map(Meaning::Number),
            Self::NvmeIoPolicy { .. }
            | Self::Sysctl { .. }
            | Self::SchedulerDebug { .. }
            | Self::TaskMemory { .. } => Some(Meaning::Words(
                text.split_whitespace().map(str::to_owned).collect(),
            )),
        }
    }
}

/// A group below the mount: plain names, none of which is `.` or `..`.
fn check_group(group: &str) -> Result<(), ChangeError> {
    let plain = |name: &str| {
        let known = |b: u8| b.is_ascii_alphanumeric() || b"._-@:\\".contains(&b);
        (1..=255).contains(&name.len()) && name.bytes().all(known) && name != "." && name != ".."
    };
    let good = group.len() <= 1024 && group.split('/').all(plain);
    good.then_some(())
        .ok_or_else(|| ChangeError::ControlGroup(group.to_owned()))
}

/// Whether a network interface may have this name. The kernel's `dev_valid_name` (net/core/dev.c) lets more through;
/// nearfar takes the names people and udev give.
pub fn is_interface_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=15).contains(&name.len()) && name.bytes().all(plain) && name != "." && name != ".."
}

pub(crate) fn check_interface(name: &str) -> Result<(), ChangeError> {
    is_interface_name(name)
        .then_some(())
        .ok_or_else(|| ChangeError::Interface(name.to_owned()))
}

/// What to write for a change, in the form the file has now: masks as wide as the kernel's, and a line end where there
/// is one.
pub fn wanted(change: &Change, current: &str) -> String {
    let text = match change {
        Change::InterruptAffinity { cpus, .. } => cpus.to_string(),
        Change::Xps { cpus, .. } | Change::Rps { cpus, .. } => cpus.to_mask(mask_width(current)),
        Change::NvmeIoPolicy { policy, .. } => policy.to_string(),
        Change::DeviceNode { node, .. } => node.to_string(),
        Change::Sysctl { value, .. } | Change::SchedulerDebug { value, .. } => value.clone(),
        Change::Cpuset { cpus, .. } => cpus.to_string(),
        Change::CpusetMemory { nodes, .. } => nodes.to_string(),
        // Its pages are moved, no file is written.
        Change::TaskMemory { to, .. } => to.to_string(),
    };
    with_line_end(text, current)
}

/// What is wrong where a file does not show what was written to it.
pub(crate) fn shows_another(setting: &Setting, written: &str, now: &str) -> String {
    format!(
        "{:?} was written, the file shows {:?}",
        setting.shown(written),
        setting.shown(now)
    )
}

/// The text with a line end where the current one has it.
pub(crate) fn with_line_end(mut text: String, current: &str) -> String {
    if current.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// How many CPUs a mask has room for, to the hex digit.
pub(crate) fn mask_width(mask: &str) -> u32 {
    let (first, words) = match mask.trim().split_once(',') {
        Some((first, rest)) => (first, rest.split(',').count()),
        None => (mask.trim(), 0),
    };
    let bits = first
        .len()
        .saturating_mul(4)
        .saturating_add(words.saturating_mul(32));
    bits.min(nearfar_machine::MAX_NUMBER as usize) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_meaning_in_two_spellings_is_the_same() {
        let irq = Setting::InterruptAffinity { irq: Irq(7) };
        assert!(irq.same("0-3\n", "0,1,2,3"));
        assert!(!irq.same("0-3", "0-2"));
        assert!(!irq.same("", "0"));
        let rps = Setting::Rps {
            interface: "eth0".into(),
            queue: 0,
        };
        assert!(rps.same("0f\n", "00000000,0000000f"));
        assert!(!rps.same("nonsense", "0"));
        let node = Setting::DeviceNode {
            device: "0000:3b:00.0".parse().unwrap(),
        };
        assert!(node.same("-1\n", "-1") && !node.same("-1", "1"));
        let nodes = Setting::CpusetMemory { group: "a".into() };
        assert!(nodes.same("0-1\n", "0,1") && nodes.same("\n", "") && !nodes.same("\n", "0"));
        assert_eq!(
            (nodes.shown("\n"), nodes.shown("1\n")),
            ("not set".to_owned(), "1".to_owned())
        );
        let sysctl = Setting::Sysctl {
            name: "kernel.numa_balancing".into(),
        };
        assert!(sysctl.same("1 2\t3\n", "1 2 3"));
    }

    #[test]
    fn a_path_is_that_of_one_setting_and_its_names_are_checked() {
        let paths = [
            "/proc/irq/7/smp_affinity_list",
            "/sys/class/net/eth0/queues/tx-0/xps_cpus",
            "/sys/class/net/eth0.5/queues/rx-12/rps_cpus",
            "/sys/class/nvme-subsystem/nvme-subsys0/iopolicy",
            "/sys/bus/pci/devices/0000:3b:00.0/numa_node",
            "/sys/kernel/debug/sched/numa_balancing/scan_delay_ms",
            "/sys/fs/cgroup/system.slice/db.service/cpuset.cpus",
            "/sys/fs/cgroup/a/cpuset.mems",
            "/proc/sys/kernel/numa_balancing",
        ];
        for path in paths {
            assert_eq!(Setting::at(path).map(|it| it.path()).as_deref(), Some(path));
        }
        for path in [
            "",
            "/proc/irq/07/smp_affinity_list",
            "/proc/irq/7/smp_affinity",
            "/proc/7/numa_maps",
            "/sys/class/net/eth0/queues/tx-0/rps_cpus",
            "/sys/class/net/../queues/tx-0/xps_cpus",
            "/sys/bus/pci/devices/3b:00.0/numa_node",
            "/sys/fs/cgroup/../cpuset.cpus",
            "/sys/fs/cgroup/cpuset.cpus",
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel.numa_balancing",
            "proc/sys/kernel/numa_balancing",
            "/proc/sys/kernel/numa_balancing/",
        ] {
            assert_eq!(Setting::at(path), None, "{path}");
        }
    }

    #[test]
    fn masks_are_shown_as_lists_and_the_rest_as_it_is() {
        let xps = Setting::Xps {
            interface: "eth0".into(),
            queue: 0,
        };
        for (mask, list) in [
            ("21\n", "0,5"),
            ("00000000,000000ff", "0-7"),
            ("00\n", "none"),
            ("1,00000000", "32"),
        ] {
            assert_eq!(xps.shown(mask), list);
        }
        assert_eq!(xps.shown("no mask \n"), "no mask");
        assert_eq!(xps.shown(""), "");
        assert_eq!(
            Setting::InterruptAffinity { irq: Irq(7) }.shown("0-3,21\n"),
            "0-3,21"
        );
        assert_eq!(
            Setting::NvmeIoPolicy {
                subsystem: "nvme-subsys0".into()
            }
            .shown("numa\n"),
            "numa"
        );
    }

    #[test]
    fn masks_are_as_wide_as_the_kernel_writes_them() {
        for (now, wide) in [
            ("3f\n", "04\n"),
            ("0", "4"),
            ("00000000,00000000\n", "00000000,00000004\n"),
            ("", "4"),
        ] {
            let change = Change::Xps {
                interface: "eth0".into(),
                queue: 0,
                cpus: "2".parse().unwrap(),
            };
            assert_eq!(wanted(&change, now), wide);
        }
    }

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for name in [
            "",
            ".",
            "..",
            "../../etc",
            "a/b",
            "eth0\n",
            "eth 0",
            "a\0",
            "sixteen-letters-",
            "eth0:1",
        ] {
            assert!(
                Setting::Xps {
                    interface: name.into(),
                    queue: 0
                }
                .check()
                .is_err(),
                "{name:?}"
            );
        }
        for name in [
            "",
            "nvme-subsys",
            "nvme-subsys0/..",
            "nvme0",
            "nvme-subsys+1",
            "nvme-subsys00000000000",
        ] {
            assert!(
                Setting::NvmeIoPolicy {
                    subsystem: name.into()
                }
                .check()
                .is_err(),
                "{name:?}"
            );
        }
        for name in [
            "",
            "kernel..numa_balancing",
            "kernel/numa_balancing",
            "kernel.core_pattern",
            "..",
            "vm.../x",
        ] {
            assert!(
                Setting::Sysctl { name: name.into() }.check().is_err(),
                "{name:?}"
            );
        }
    }
}
