use nearfar_machine::Machine;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Owner, Planned, word};
use crate::export::Writing;
use crate::kind::{ChangeError, Kind};

/// The sysctls nearfar writes. A plan is a file that may come from anywhere, and `kernel.core_pattern` runs programs:
/// only what decides over locality is let through.
const NAMES: &[&str] = &[
    "kernel.numa_balancing",
    "kernel.numa_balancing_promote_rate_limit_MBps",
    "net.core.rps_sock_flow_entries",
    "vm.zone_reclaim_mode",
    // Linux before 5.13; later kernels have them in debugfs.
    "kernel.numa_balancing_scan_delay_ms",
    "kernel.numa_balancing_scan_period_max_ms",
    "kernel.numa_balancing_scan_period_min_ms",
    "kernel.sched_migration_cost_ns",
];

/// `/proc/sys/...`, words.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sysctl {
    /// With dots.
    pub name: String,
}

impl Kind for Sysctl {
    fn at(path: &[&str]) -> Option<Self> {
        let ["proc", "sys", name @ ..] = path else {
            return None;
        };
        let name = name.join(".");
        Some(Self { name })
    }

    fn path(&self) -> String {
        format!("/proc/sys/{}", self.name.replace('.', "/"))
    }

    fn check(&self) -> Result<(), ChangeError> {
        let name = &self.name;
        ChangeError::unless(NAMES.contains(&name.as_str()), || {
            format!(
                "sysctl {name:.64?} is none of those nearfar writes ({})",
                NAMES.join(", ")
            )
        })
    }

    fn check_value(&self, _: &Planned, value: &str) -> Result<(), ChangeError> {
        word(value, "sysctl value", b"_-")
    }

    fn subject(&self, _: &Change) -> String {
        self.name.clone()
    }

    fn only_by_rule(&self) -> Option<String> {
        Some(format!("{} holds for the whole system", self.name))
    }

    fn before(&self, machine: &Machine) -> Option<String> {
        let balancing = machine.settings.numa_balancing.get();
        let balancing = balancing.filter(|_| self.name == "kernel.numa_balancing");
        balancing.map(u32::to_string)
    }

    fn is_identified(&self, _: &Owner, _: &Owner) -> bool {
        true
    }

    fn gone(&self) -> &'static str {
        "this kernel has no such setting"
    }

    fn udev(&self, writing: &Writing<'_>) -> String {
        let (name, value) = (&self.name, &writing.value);
        format!("# left out: for /etc/sysctl.d/99-nearfar.conf: {name} = {value}\n")
    }
}
