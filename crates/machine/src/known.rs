//! Unknown is a value: a field either holds what a source saw, or says why it could not see.

mod read;

use std::borrow::Cow;

use serde::Serialize;

/// What a source saw, or why it could not see.
///
/// In JSON a known value stands for itself and an unknown one is
/// `{"unknown_reason": "permission denied: /proc/1/numa_maps"}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(untagged)]
pub enum Known<T> {
    /// The source could not see this; a sentence fragment that reads well after "not known: ".
    No {
        /// Why, naming the file or the missing capability.
        unknown_reason: Cow<'static, str>,
    },
    /// The value as the source gave it.
    Yes(T),
}

impl<T> Known<T> {
    /// An unknown value with its reason, such as `"this source has no interrupts"`.
    pub fn no(because: impl Into<Cow<'static, str>>) -> Self {
        Self::No {
            unknown_reason: because.into(),
        }
    }

    /// The value, where it is known.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No { .. } => None,
        }
    }

    /// The value by itself, where it is known.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No { .. } => None,
        }
    }

    /// Why the value is not known, where it is not.
    pub fn unknown_reason(&self) -> Option<&str> {
        match self {
            Self::Yes(_) => None,
            Self::No { unknown_reason } => Some(unknown_reason),
        }
    }

    /// Known or not, by reference.
    pub fn as_ref(&self) -> Known<&T> {
        match self {
            Self::Yes(value) => Known::Yes(value),
            Self::No { unknown_reason } => Known::No {
                unknown_reason: unknown_reason.clone(),
            },
        }
    }

    /// The same knowledge about something derived from the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Self::Yes(value) => Known::Yes(f(value)),
            Self::No { unknown_reason } => Known::No { unknown_reason },
        }
    }
}

impl<T> From<T> for Known<T> {
    fn from(value: T) -> Self {
        Self::Yes(value)
    }
}
