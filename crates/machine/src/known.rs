//! Unknown is a value: a field either holds what a source saw, or says why it could not see.

mod read;

use std::borrow::Cow;
use std::fmt::Display;

use serde::Serialize;

/// The reason of a value whose reading no caller wanted.
pub const NOT_ASKED_FOR: &str = "not asked for";

/// What a source saw, or why it could not see.
///
/// In JSON a known value stands for itself and an unknown one is
/// `{"unknown_reason": "permission denied: /proc/1/numa_maps"}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(untagged)]
pub enum Known<T> {
    /// The source could not see this; a sentence fragment that reads well after "unknown: ".
    No {
        /// Why, naming the file or the missing capability.
        unknown_reason: Cow<'static, str>,
    },
    Yes(T),
}

impl<T> Known<T> {
    /// An unknown value with its reason, such as `"this source has no interrupts"`.
    pub fn no(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::No {
            unknown_reason: reason.into(),
        }
    }

    /// The value of a field that snapshots of older versions do not have.
    pub(crate) fn left_out() -> Self {
        Self::no("not in this snapshot")
    }

    /// The value, or the reason where there is none.
    pub fn from_option<R>(value: Option<T>, reason: impl FnOnce() -> R) -> Self
    where
        R: Into<Cow<'static, str>>,
    {
        value.map_or_else(|| Self::no(reason()), Self::Yes)
    }

    /// The value, or the text of the error that stands in its place.
    pub fn from_result(result: Result<T, impl Display>) -> Self {
        result.map_or_else(|error| Self::no(error.to_string()), Self::Yes)
    }

    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No { .. } => None,
        }
    }

    pub fn known(self) -> Option<T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No { .. } => None,
        }
    }

    pub fn unknown_reason(&self) -> Option<&str> {
        match self {
            Self::Yes(_) => None,
            Self::No { unknown_reason } => Some(unknown_reason),
        }
    }

    pub fn as_ref(&self) -> Known<&T> {
        match self {
            Self::Yes(value) => Known::Yes(value),
            Self::No { unknown_reason } => Known::No {
                unknown_reason: unknown_reason.clone(),
            },
        }
    }

    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Known<U> {
        self.and_then(|value| Known::Yes(f(value)))
    }

    /// What follows from the value; an unknown value keeps its reason.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Known<U>) -> Known<U> {
        match self {
            Self::Yes(value) => f(value),
            Self::No { unknown_reason } => Known::No { unknown_reason },
        }
    }
}

impl<T> From<T> for Known<T> {
    fn from(value: T) -> Self {
        Self::Yes(value)
    }
}
