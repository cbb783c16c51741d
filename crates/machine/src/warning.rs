//! What was wrong with input that was read all the same.

use serde::{Deserialize, Serialize};

/// A contradiction or oddity in the input. It travels with the machine, so that results keep the warnings that were
/// true when they were made.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Warning {
    /// Where: a file, a line ("line 3"), an element.
    pub place: String,
    /// What is wrong, naming both sides of a contradiction and what was assumed.
    pub message: String,
}

impl Warning {
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
