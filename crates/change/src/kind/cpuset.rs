use serde::{Deserialize, Serialize};

use super::{ChangeError, Kind, Meaning, check_group, cpu_list};
use crate::change::{Change, Owner, Planned};

/// `/sys/fs/cgroup/GROUP/cpuset.cpus`, a CPU list; empty for the CPUs of the group above.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpuset {
    /// The control group.
    pub group: String,
}

impl Kind for Cpuset {
    fn at(path: &[&str]) -> Option<Self> {
        let ["sys", "fs", "cgroup", group @ .., "cpuset.cpus"] = path else {
            return None;
        };
        let group = group.join("/");
        Some(Self { group })
    }

    fn path(&self) -> String {
        format!("/sys/fs/cgroup/{}/cpuset.cpus", self.group)
    }

    fn check(&self) -> Result<(), ChangeError> {
        check_group(&self.group)
    }

    fn check_value(&self, _: &Planned, _: &str) -> Result<(), ChangeError> {
        Ok(())
    }

    fn meaning(&self, text: &str) -> Option<Meaning> {
        cpu_list(text)
    }

    fn subject(&self, _: &Change) -> String {
        format!("{} cpuset", self.group)
    }

    fn is_identified(&self, _: &Owner, _: &Owner) -> bool {
        true
    }

    fn gone(&self) -> &'static str {
        "there is no such control group, or it has no cpuset controller"
    }
}
