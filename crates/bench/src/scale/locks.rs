//! What tasks waited for while they were traced.

use nearfar_trace::locks::{LockKind, LockWaits};
use nearfar_trace::{Finished, Losses};
use serde::{Deserialize, Serialize};

/// Locks of a sample that are kept.
const MAX_LOCKS: usize = 8;

/// Lock contention of a sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Contention {
    /// How long the trace took; operations are not counted meanwhile.
    pub(super) seconds: f64,
    /// Of the tasks' time, in waits for locks, 0 to 1.
    pub(super) share: f64,
    /// Of the tasks' time, in waits for spinlocks and rwlocks.
    pub(super) spin_share: f64,
    /// The longest waits in all first.
    pub(super) locks: Vec<HotLock>,
    pub(super) losses: Losses,
    /// Why waits for spinlocks may be missing from all shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) no_spin_reason: Option<String>,
}

/// Waits for a lock.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HotLock {
    /// The kernel function that takes it.
    pub call_site: String,
    pub kind: LockKind,
    /// Of the tasks' time, 0 to 1.
    pub share: f64,
    pub waits: u64,
}

impl Contention {
    /// Of a trace of so long, during which so many tasks ran.
    pub(super) fn new(locks: LockWaits, finished: Finished, tasks: usize) -> Self {
        let seconds = finished.elapsed.as_secs_f64();
        // What an interrupt of theirs waits for counts as theirs.
        let share = |wait_s: f64| (wait_s / (seconds * tasks as f64)).min(1.0);
        let of = |site: &nearfar_trace::locks::Site| HotLock {
            call_site: site.call_site.clone(),
            kind: site.kind,
            share: share(site.wait_s),
            waits: site.waits,
        };
        Self {
            seconds,
            share: share(locks.wait_s),
            spin_share: share(locks.spin_s),
            locks: locks.sites.iter().take(MAX_LOCKS).map(of).collect(),
            losses: finished.losses,
            no_spin_reason: locks.no_spin_reason,
        }
    }

    /// Warnings when events are missing.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let lost = (!self.losses.is_whole())
            .then(|| "events of lock contention were lost: lock_share is too low".to_owned());
        let untraced = self.no_spin_reason.as_ref();
        let untraced = untraced.map(|reason| format!("lock_share is unknown: {reason}"));
        lost.into_iter().chain(untraced)
    }
}
