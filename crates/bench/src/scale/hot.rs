//! Where the tasks' CPU time was spent while operations were counted.

use nearfar_trace::profile::Profile;
use serde::{Deserialize, Serialize};

/// Functions of a sample that are kept.
const MAX_FUNCTIONS: usize = 8;

/// The profile of a sample, as shares of the tasks' samples.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Hot {
    pub(super) samples: u64,
    /// In the kernel, 0 to 1; `None` without a sample.
    pub(super) kernel_share: Option<f64>,
    /// In functions that implement a lock or the scheduler; `None` also without the kernel's symbols.
    pub(super) lock_function_share: Option<f64>,
    pub(super) lost: u64,
    /// Why functions have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) no_names_reason: Option<String>,
    /// Those with most samples, the first one first.
    pub(super) functions: Vec<HotFunction>,
}

/// A kernel function that tasks ran.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HotFunction {
    pub function: String,
    /// Of one that implements a lock, the function that takes or gives back the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_site: Option<String>,
    /// Of the tasks' samples, 0 to 1.
    pub share: f64,
}

impl Hot {
    pub(super) fn new(profile: Profile) -> Self {
        let all = profile.samples;
        let share = |samples: u64| (all > 0).then(|| samples as f64 / all as f64);
        let functions = profile.functions.into_iter().take(MAX_FUNCTIONS);
        Self {
            samples: all,
            kernel_share: share(profile.in_kernel),
            lock_function_share: profile.in_locks.and_then(share),
            lost: profile.lost,
            no_names_reason: profile.no_names_reason,
            functions: functions
                .map(|it| HotFunction {
                    share: share(it.samples).unwrap_or(0.0),
                    function: it.function,
                    call_site: it.call_site,
                })
                .collect(),
        }
    }

    /// Warnings when samples or names are missing.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let lost =
            (self.lost > 0).then(|| format!("{} samples of the profile were lost", self.lost));
        let unnamed = self.no_names_reason.as_ref();
        let unnamed = unnamed.map(|reason| format!("lock_function_share is unknown: {reason}"));
        lost.into_iter().chain(unnamed)
    }
}
