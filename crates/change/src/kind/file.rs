use serde::{Deserialize, Serialize};

use crate::change::{Change, Owner, Planned};
use crate::kind::{ChangeError, Kind};

/// A file of no kind, which a lease alone may set: the CPUs of a control group wherever the groups are mounted, whether DAMON runs and,
/// for tests, a file in the directory of the leases.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Absolute.
    pub path: String,
}

impl Kind for File {
    fn path(&self) -> String {
        self.path.clone()
    }

    // Plans and journals of change sets have none; a lease knows which it may set.
    fn check(&self) -> Result<(), ChangeError> {
        ChangeError::unless(false, || {
            format!("{:.256?} is a file of no kind", self.path)
        })
    }

    fn check_value(&self, _: &Planned, _: &str) -> Result<(), ChangeError> {
        self.check()
    }

    fn subject(&self, _: &Change) -> String {
        self.path.clone()
    }

    fn is_identified(&self, _: &Owner, _: &Owner) -> bool {
        true
    }

    fn gone(&self) -> &'static str {
        "there is no such file"
    }
}
