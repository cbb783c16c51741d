//! What the kernel lets be set: NUMA balancing, how often it scans, how soon a task counts as cache-hot.

use std::fs::OpenOptions;
use std::path::Path;

use nearfar_experiment::Change;
use nearfar_machine::{Known, Machine};

use super::answer::KernelSetting;
use super::choose::Balancing;

/// Documentation/admin-guide/sysctl/kernel.rst, numa_balancing.
const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// Since 5.13; before that the same names with a prefix among the sysctls (kernel/sched/debug.c).
const DEBUG: &str = "/sys/kernel/debug/sched";
const SYSCTL: &str = "/proc/sys/kernel";
/// The kernel's own proportion of the longest scan period to the shortest: 60 s to 1 s (kernel/sched/fair.c).
const LONGEST_PERIODS: u32 = 60;

/// The change that switches NUMA balancing.
pub(super) fn set_balancing(on: bool) -> Change {
    Change::Sysctl {
        name: "kernel.numa_balancing".to_owned(),
        value: u8::from(on).to_string(),
    }
}

/// Whether NUMA balancing moves pages between nodes: bit 0 of `kernel.numa_balancing` (bit 1 is for memory tiers).
pub fn is_balancing(machine: &Machine) -> Known<bool> {
    machine
        .settings
        .numa_balancing
        .as_ref()
        .map(|mode| mode & 1 == 1)
}

/// Whether NUMA balancing can be on here, and can be set by this user.
pub fn balancing(machine: &Machine) -> Balancing {
    let with_memory = machine
        .online_nodes()
        .filter(|node| node.has_memory() != Some(false))
        .count();
    if with_memory < 2 {
        let reason = "one node with memory leaves it nothing to do".to_owned();
        return Balancing::Stays { on: false, reason };
    }
    match (is_balancing(machine), writable(Path::new(NUMA_BALANCING))) {
        (Known::Yes(_), Ok(())) => Balancing::Settable,
        (Known::Yes(on), Err(error)) => Balancing::Stays {
            on,
            reason: format!("{NUMA_BALANCING} cannot be written ({error}): root may"),
        },
        (Known::No { unknown_reason }, _) => Balancing::Stays {
            on: false,
            reason: format!("this kernel cannot do it ({unknown_reason})"),
        },
    }
}

/// What was asked to be set for the whole run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tuning {
    /// How long a process has run before NUMA balancing scans it first, in milliseconds; as `scan_period_ms` where only that is
    /// given. It should outlast the start of the probe's process, which otherwise says where the probe belongs.
    pub scan_delay_ms: Option<u32>,
    /// The shortest time between two scans, in milliseconds; the longest is 60 times that, as in the kernel. For runs that are
    /// shorter than the published ones, of which the first scan came after less than a hundredth.
    pub scan_period_ms: Option<u32>,
    /// How long after it last ran a task counts as cache-hot, in nanoseconds (500000 in the kernel).
    pub migration_cost_ns: Option<u64>,
}

impl Tuning {
    /// The files to set and what to.
    pub fn settings(&self) -> Result<Vec<KernelSetting>, SettingError> {
        let mut settings = Vec::new();
        // The longest period before the shortest, which so never is the longer of the two.
        let longest = self
            .scan_period_ms
            .map(|period| period.saturating_mul(LONGEST_PERIODS));
        let scans = [
            ("scan_delay_ms", self.scan_delay_ms.or(self.scan_period_ms)),
            ("scan_period_max_ms", longest),
            ("scan_period_min_ms", self.scan_period_ms),
        ];
        for (name, value) in scans
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
        {
            let path = found(
                &format!("numa_balancing/{name}"),
                &format!("numa_balancing_{name}"),
            )?;
            settings.push(KernelSetting {
                path,
                value: value.to_string(),
            });
        }
        if let Some(cost) = self.migration_cost_ns {
            let path = found("migration_cost_ns", "sched_migration_cost_ns")?;
            settings.push(KernelSetting {
                path,
                value: cost.to_string(),
            });
        }
        Ok(settings)
    }
}

/// Why a setting of the kernel cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    #[error(
        "there is neither {} nor {}: debugfs has to be mounted, by root (mount -t debugfs none /sys/kernel/debug), and \
         the kernel to have NUMA balancing", paths[0], paths[1]
    )]
    Absent { paths: [String; 2] },
    #[error("cannot write {path}: {error}")]
    NotWritable { path: String, error: std::io::Error },
}

/// The file in debugfs, or the sysctl of older kernels.
fn found(debug: &str, sysctl: &str) -> Result<String, SettingError> {
    let paths = [format!("{DEBUG}/{debug}"), format!("{SYSCTL}/{sysctl}")];
    let Some(path) = paths.iter().find(|path| Path::new(path).exists()).cloned() else {
        return Err(SettingError::Absent { paths });
    };
    match writable(Path::new(&path)) {
        Ok(()) => Ok(path),
        Err(error) => Err(SettingError::NotWritable { path, error }),
    }
}

fn writable(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path).map(|_| ())
}
