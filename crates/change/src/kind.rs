//! What a change can be about, a kind in a file of its own: where it is, what its text means, whose it is, and in which words it is
//! told, planned, made and exported.
//!
//! A setting comes from a plan or a journal, both of which may have been written by an attacker: [`Setting::check`] precedes every
//! use of [`Setting::path`].

mod cpuset;
mod cpuset_memory;
mod device_node;
mod file;
mod interrupt_affinity;
mod nvme_io_policy;
mod queue;
mod scheduler_debug;
mod sysctl;
mod task_memory;

use std::io;

use nearfar_machine::{CpuSet, Machine, NodeSet};
use serde::{Deserialize, Serialize};

use crate::change::{Change, Owner, Planned};
use crate::export::Writing;
use crate::outcome::Effective;
use crate::owner::Seen;
use crate::system::System;

pub(crate) use cpuset_memory::CpusetMemory;
pub(crate) use device_node::DeviceNode;
pub(crate) use file::File;
pub(crate) use task_memory::TaskMemory;

/// A kind of setting. What most kinds have in common is provided.
pub(crate) trait Kind {
    /// The setting of a file by the parts of its path: the inverse of [`Kind::path`] for names that [`Kind::check`] lets through. `None`
    /// for files of other kinds.
    fn at(_path: &[&str]) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// The file, as an absolute path below the target's root.
    fn path(&self) -> String;

    /// Whether that file is written. Otherwise it only shows what is changed.
    fn is_written(&self) -> bool {
        true
    }

    /// Whether the names in it can be part of a path.
    ///
    /// # Errors
    /// Which name cannot be.
    fn check(&self) -> Result<(), ChangeError>;

    /// Whether a change may give it this value.
    ///
    /// # Errors
    /// What is wrong with the value.
    fn check_value(&self, planned: &Planned, value: &str) -> Result<(), ChangeError>;

    /// What the file's text says; it has no white space around it. `None` where it says nothing.
    fn meaning(&self, text: &str) -> Option<Meaning> {
        words(text)
    }

    /// A value in the form that the file has now.
    fn in_file(&self, value: &str, _current: &str) -> String {
        value.to_owned()
    }

    /// A text of the file as it is shown to people.
    fn shown(&self, text: &str) -> String {
        text.to_owned()
    }

    /// What a change is about: `interrupt 42 (nvme0q3)`, `ens5f0 tx-3 XPS`.
    fn subject(&self, change: &Change) -> String;

    /// What the operator has to know before, where there is something.
    fn caution(&self) -> Option<&'static str> {
        None
    }

    /// Why it is planned only where the rule is named.
    fn only_by_rule(&self) -> Option<String> {
        None
    }

    /// The text of the file in a machine's description. `None` where that does not have it.
    fn before(&self, _machine: &Machine) -> Option<String> {
        None
    }

    /// What its number or name stands for in a machine's description.
    fn owner(&self, _machine: &Machine) -> Option<Owner> {
        None
    }

    /// What its number or name stood for when the plan was made.
    fn owner_in_plan(&self, planned: &Planned) -> Owner {
        planned.owner.clone().unwrap_or_default()
    }

    /// What its number or name stands for now. `expected` says what to look for first; a tree may lack any file.
    fn observe(&self, _system: &dyn System, _expected: &Owner, _tree: bool) -> Seen {
        Seen::default()
    }

    /// Whether an owner that does not differ from the expected one is known to be the same, as it has to be after a reboot.
    fn is_identified(&self, expected: &Owner, seen: &Owner) -> bool;

    /// Why the file may not be there.
    fn gone(&self) -> &'static str;

    /// Why the kernel keeps what it has, where it always does.
    fn is_kept(&self, _error: &io::Error) -> Option<String> {
        None
    }

    /// Why the kernel refused a value, in brackets.
    fn refused(&self, _error: &io::Error) -> &'static str {
        ""
    }

    /// What else there is to say of a change that was made.
    fn note(&self, _change: &Change, _tree: bool) -> Option<String> {
        None
    }

    /// What holds instead of the written value, where the kernel shows that.
    fn effective(&self, _system: &dyn System, _now: &str) -> Option<Effective> {
        None
    }

    /// Why no file makes the change again after a boot.
    fn not_exported(&self) -> Option<String> {
        None
    }

    /// The lines of a udev rules file.
    fn udev(&self, writing: &Writing<'_>) -> String {
        let (file, value) = (&writing.file, &writing.value);
        format!("# left out: no event of udev is about it: {file} = {value}\n")
    }

    /// The command that a unit runs at boot.
    ///
    /// # Errors
    /// Why there is none.
    fn command(&self, writing: &Writing<'_>) -> Result<String, &'static str> {
        Ok(format!("echo '{}' > '{}'", writing.value, writing.file))
    }
}

/// Kinds with the names that tell two settings of one from another, in the order in which changes are made: what later ones are judged
/// by comes first.
macro_rules! kinds {
    ($($module:ident::$Kind:ident { $($name:ident),+ },)+) => {
        /// What a change writes, without the value.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Setting {
            $(#[doc = concat!("See [`Change::", stringify!($Kind), "`].")] $Kind($module::$Kind),)+
            /// Of no change: in a lease only.
            File(File),
        }

        impl Setting {
            /// The setting a change is about.
            pub fn of(change: &Change) -> Self {
                match change {
                    $(Change::$Kind { $($name,)+ .. } => Self::$Kind($module::$Kind { $($name: $name.clone()),+ }),)+
                }
            }

            /// The setting of a file: the inverse of [`Setting::path`]. `None` for a file of no setting, and for one whose names are refused.
            pub fn at(path: &str) -> Option<Self> {
                let parts: Vec<&str> = path.split('/').skip(1).collect();
                let setting = None$(.or_else(|| $module::$Kind::at(&parts).map(Self::$Kind)))+?;
                (setting.check().is_ok() && setting.path() == path).then_some(setting)
            }

            pub(crate) fn kind(&self) -> &dyn Kind {
                match self {
                    $(Self::$Kind(it) => it,)+
                    Self::File(it) => it,
                }
            }
        }
    };
}

kinds! {
    device_node::DeviceNode { device },
    interrupt_affinity::InterruptAffinity { irq },
    queue::Xps { interface, queue },
    queue::Rps { interface, queue },
    nvme_io_policy::NvmeIoPolicy { subsystem },
    sysctl::Sysctl { name },
    scheduler_debug::SchedulerDebug { name },
    cpuset::Cpuset { group },
    cpuset_memory::CpusetMemory { group },
    task_memory::TaskMemory { pid },
}

/// What a setting's text says, apart from how it is written.
#[derive(PartialEq, Eq)]
pub(crate) enum Meaning {
    Cpus(CpuSet),
    Nodes(NodeSet),
    Number(i64),
    Words(Vec<String>),
}

/// Why a change cannot be made anywhere. Names are those of the plan or journal, which may come from any user.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChangeError(String);

impl ChangeError {
    /// This error, unless it is as it has to be.
    pub(crate) fn unless(is_good: bool, reason: impl FnOnce() -> String) -> Result<(), Self> {
        match is_good {
            true => Ok(()),
            false => Err(Self(reason())),
        }
    }
}

impl Setting {
    /// Whether the names in it can be part of a path.
    ///
    /// # Errors
    /// Which name cannot be.
    pub fn check(&self) -> Result<(), ChangeError> {
        self.kind().check()
    }

    /// The file, as an absolute path below the target's root.
    pub fn path(&self) -> String {
        self.kind().path()
    }

    /// Whether that file is written. Otherwise it only shows what is changed.
    pub fn is_written(&self) -> bool {
        self.kind().is_written()
    }

    /// Whether two texts say the same of this setting: "0-3" and "0,1,2,3", "0f" and "0000000f\n".
    pub fn same(&self, one: &str, other: &str) -> bool {
        let meaning = |text: &str| self.kind().meaning(text.trim());
        one == other || meaning(one).is_some_and(|it| Some(it) == meaning(other))
    }

    /// A text of the file as it is shown to people: CPU masks as lists, "none" for an empty one, bytes by node with
    /// units, an empty list of memory nodes as "not set", anything else without its line end.
    pub fn shown(&self, text: &str) -> String {
        self.kind().shown(text.trim_end())
    }

    /// Why it is planned only where the rule is named.
    pub fn only_by_rule(&self) -> Option<String> {
        self.kind().only_by_rule()
    }

    /// The text of the file in a machine's description. `None` where that does not have it.
    pub fn before(&self, machine: &Machine) -> Option<String> {
        self.kind().before(machine)
    }

    /// What its number or name stands for in a machine's description: what apply compares before it writes, and what exported rules
    /// wait for. `None` where the description does not have it, and for what has no owner.
    pub fn owner(&self, machine: &Machine) -> Option<Owner> {
        let owner = self.kind().owner(machine);
        owner.filter(|owner| *owner != Owner::default())
    }
}

impl Change {
    /// What it is about: `interrupt 42 (nvme0q3)`, `ens5f0 tx-3 XPS`.
    pub fn subject(&self) -> String {
        Setting::of(self).kind().subject(self)
    }

    /// What the operator has to know before, where there is something.
    pub fn caution(&self) -> Option<&'static str> {
        Setting::of(self).kind().caution()
    }
}

/// What to write for a change, in the form the file has now: masks as wide as the kernel's, and a line end where there
/// is one.
pub fn wanted(change: &Change, current: &str) -> String {
    let setting = Setting::of(change);
    let text = setting.kind().in_file(&change.value(), current);
    with_line_end(text, current)
}

/// Words, whatever is between them.
fn words(text: &str) -> Option<Meaning> {
    let words = text.split_whitespace().map(str::to_owned);
    (!text.is_empty()).then(|| Meaning::Words(words.collect()))
}

/// CPUs of a list that is not empty.
fn cpu_list(text: &str) -> Option<Meaning> {
    let cpus = CpuSet::parse_list(text).ok().map(Meaning::Cpus);
    cpus.filter(|_| !text.is_empty())
}

/// A group below the mount: plain names, none of which is `.` or `..`.
pub(crate) fn check_group(group: &str) -> Result<(), ChangeError> {
    let plain = |name: &str| {
        let known = |b: u8| b.is_ascii_alphanumeric() || b"._-@:\\".contains(&b);
        (1..=255).contains(&name.len()) && name.bytes().all(known) && name != "." && name != ".."
    };
    ChangeError::unless(group.len() <= 1024 && group.split('/').all(plain), || {
        format!("{group:.64?} is not a control group such as system.slice/db.service")
    })
}

/// Whether a network interface may have this name. The kernel's `dev_valid_name` (net/core/dev.c) lets more through;
/// nearfar takes the names people and udev give.
pub fn is_interface_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=15).contains(&name.len()) && name.bytes().all(plain) && name != "." && name != ".."
}

fn check_interface(name: &str) -> Result<(), ChangeError> {
    ChangeError::unless(is_interface_name(name), || {
        format!("{name:.64?} is not the name of a network interface")
    })
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

#[cfg(test)]
mod tests {
    use nearfar_machine::Irq;

    use super::*;

    #[test]
    fn one_meaning_in_two_spellings_is_the_same() {
        let irq = Setting::InterruptAffinity(interrupt_affinity::InterruptAffinity { irq: Irq(7) });
        assert!(irq.same("0-3\n", "0,1,2,3"));
        assert!(!irq.same("0-3", "0-2"));
        assert!(!irq.same("", "0"));
        let rps = Setting::Rps(queue::Rps {
            interface: "eth0".into(),
            queue: 0,
        });
        assert!(rps.same("0f\n", "00000000,0000000f"));
        assert!(!rps.same("nonsense", "0"));
        let node = Setting::DeviceNode(device_node::DeviceNode {
            device: "0000:3b:00.0".parse().unwrap(),
        });
        assert!(node.same("-1\n", "-1") && !node.same("-1", "1"));
        let nodes = Setting::CpusetMemory(cpuset_memory::CpusetMemory { group: "a".into() });
        assert!(nodes.same("0-1\n", "0,1") && nodes.same("\n", "") && !nodes.same("\n", "0"));
        assert_eq!(
            (nodes.shown("\n"), nodes.shown("1\n")),
            ("not set".to_owned(), "1".to_owned())
        );
        let sysctl = Setting::Sysctl(sysctl::Sysctl {
            name: "kernel.numa_balancing".into(),
        });
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
        let xps = Setting::Xps(queue::Xps {
            interface: "eth0".into(),
            queue: 0,
        });
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
            Setting::InterruptAffinity(interrupt_affinity::InterruptAffinity { irq: Irq(7) })
                .shown("0-3,21\n"),
            "0-3,21"
        );
        assert_eq!(
            Setting::NvmeIoPolicy(nvme_io_policy::NvmeIoPolicy {
                subsystem: "nvme-subsys0".into()
            })
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
                Setting::Xps(queue::Xps {
                    interface: name.into(),
                    queue: 0
                })
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
                Setting::NvmeIoPolicy(nvme_io_policy::NvmeIoPolicy {
                    subsystem: name.into()
                })
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
                Setting::Sysctl(sysctl::Sysctl { name: name.into() })
                    .check()
                    .is_err(),
                "{name:?}"
            );
        }
    }
}
