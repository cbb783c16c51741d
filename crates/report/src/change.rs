//! A typed change in words: what it is about, and the value it writes.

use std::fmt::Display;

use nearfar_change::{Change, DistanceChange};

use crate::amount::or;

/// Why a setting is not undone: its file is gone.
pub(crate) const GONE: &str = "the file is no longer there";
/// The same of the memory of a process.
pub(crate) const PROCESS_GONE: &str = "the process has ended or runs another program";
/// Why a setting is not undone: the kernel that had it has ended.
pub(crate) const GONE_WITH_REBOOT: &str = "a reboot has reset it";

/// Why a setting is not undone: its file belongs to another device now.
pub(crate) fn other_owner(was: impl Display, now: impl Display) -> String {
    format!("it was {was}, it is {now} now")
}

/// The value it writes, as a person would write it: CPU sets as lists.
pub(crate) fn value(change: &Change) -> String {
    match change {
        Change::TaskMemory {
            from, to, shared, ..
        } => {
            let shared = if *shared { ", shared pages too" } else { "" };
            format!("nodes {from} to node {to}{shared}")
        }
        _ => or(Some(change.value()).filter(|it| !it.is_empty()), "none"),
    }
}

/// `21 -> 10`; empty where both are unknown.
pub(crate) fn distance(change: Option<DistanceChange>) -> String {
    let Some(DistanceChange { now, after }) = change else {
        return String::new();
    };
    match (now, after) {
        (None, None) => String::new(),
        _ => format!("{} -> {}", or(now, "?"), or(after, "?")),
    }
}
