//! What the measurements of this crate have in common when they use the sampler.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use nearfar_experiment::sampler::{self, Budget, End, Monotonic, Order, Outcome, Plan, Source};

use crate::options::ProbeError;
use crate::warning::Warning;

/// Seed of every order in a measurement; any constant would do.
pub(crate) const SEED: u64 = 0x6e65_6172_6661_7221;

/// How often what is measured until when.
pub(crate) struct Amount {
    /// Pairs of nodes or of CPUs.
    pub(crate) items: usize,
    /// The most samples of a pair.
    pub(crate) max_samples: usize,
    /// No sample begins after this, except the first of each pair.
    pub(crate) deadline: Instant,
}

impl Amount {
    /// The plan: a warm-up, then rounds in random order.
    fn plan(&self, clock: &Monotonic) -> Plan {
        let until = self.deadline.saturating_duration_since(clock.started());
        Plan {
            warm_up: true,
            order: Order::Shuffled { seed: SEED },
            budget: Budget::Samples { until },
            ..Plan::rounds(self.items, self.rounds(), SEED)
        }
    }

    fn rounds(&self) -> u32 {
        u32::try_from(self.max_samples.max(1)).unwrap_or(u32::MAX)
    }
}

/// Takes the samples.
///
/// # Errors
/// Those of the source, and [`ProbeError::Cancelled`].
pub(crate) fn sample<S: Source<Error = ProbeError>>(
    amount: &Amount,
    cancel: &AtomicBool,
    source: &mut S,
) -> Result<Outcome<S::Value>, ProbeError> {
    let clock = Monotonic::start();
    let outcome = sampler::sample(&amount.plan(&clock), &clock, cancel, source)?;
    match outcome.end {
        End::Cancelled => Err(ProbeError::Cancelled),
        End::Complete | End::BudgetSpent => Ok(outcome),
    }
}

/// What is to be said of the samples: of the sampling as a whole, and of outliers among those of a pair.
pub(crate) fn warnings<'a, V>(
    outcome: &Outcome<V>,
    pairs: impl IntoIterator<Item = &'a [f64]>,
) -> Vec<Warning> {
    let outliers = sampler::outliers(pairs);
    let warnings = outliers.into_iter().chain(outcome.warnings());
    warnings.map(Warning::Sampling).collect()
}
