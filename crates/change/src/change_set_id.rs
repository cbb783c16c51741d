//! The number of a change set.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a change set, counted from 1 in its state directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeSetId(pub u64);

impl fmt::Display for ChangeSetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
