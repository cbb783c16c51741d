use serde::{Deserialize, Serialize};

use crate::change::{Change, Owner, Planned, word};
use crate::kind::{ChangeError, Kind};

/// The scheduler's settings in debugfs that nearfar writes.
const NAMES: &[&str] = &[
    "migration_cost_ns",
    "numa_balancing/scan_delay_ms",
    "numa_balancing/scan_period_max_ms",
    "numa_balancing/scan_period_min_ms",
];

/// `/sys/kernel/debug/sched/...`, words.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerDebug {
    /// Below that directory.
    pub name: String,
}

impl Kind for SchedulerDebug {
    fn at(path: &[&str]) -> Option<Self> {
        let ["sys", "kernel", "debug", "sched", name @ ..] = path else {
            return None;
        };
        let name = name.join("/");
        Some(Self { name })
    }

    fn path(&self) -> String {
        format!("/sys/kernel/debug/sched/{}", self.name)
    }

    fn check(&self) -> Result<(), ChangeError> {
        let name = &self.name;
        ChangeError::unless(NAMES.contains(&name.as_str()), || {
            format!(
                "scheduler setting {name:.64?} is none of those nearfar writes ({})",
                NAMES.join(", ")
            )
        })
    }

    fn check_value(&self, _: &Planned, value: &str) -> Result<(), ChangeError> {
        word(value, "scheduler value", b"_-")
    }

    fn subject(&self, _: &Change) -> String {
        format!("scheduler {}", self.name)
    }

    fn is_identified(&self, _: &Owner, _: &Owner) -> bool {
        true
    }

    fn gone(&self) -> &'static str {
        "this kernel has no such setting, or debugfs is not mounted"
    }
}
