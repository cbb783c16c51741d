//! What the measurements of this crate have in common when they use the sampler.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::Recording;
use nearfar_experiment::sampler::{
    self, Budget, End, Monotonic, Order, Plan, SamplingOutcome, Source, Spread,
};
use nearfar_runs::{ROUNDS_PER_BLOCK, SampleResult, Values, now_s};
use nearfar_statistics::Figures;
use serde_json::json;

use crate::node_buffers::PageKind;
use crate::options::{ProbeError, ProbeOptions};
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
    /// Whether the samples are spread over the time until then, in blocks.
    pub(crate) is_spread: bool,
}

/// Samples are taken in so many blocks where they are spread: enough for an interval of the blocks' medians.
const BLOCKS: u32 = 8;
/// The part of the time over which they are spread. The last block takes some of the rest.
const SPREAD_SHARE: f64 = 0.9;
/// A budget above this is a limit, not a wish: load that comes and goes does so within seconds.
const MAX_SPREAD: Duration = Duration::from_secs(30);

impl Amount {
    /// The plan: a warm-up, then rounds in random order.
    fn plan(&self, clock: &Monotonic) -> Plan {
        let until = self.deadline.saturating_duration_since(clock.started());
        Plan {
            warm_up: true,
            order: Order::Shuffled { seed: SEED },
            budget: Budget::Samples { until },
            spread: self.is_spread.then(|| Spread {
                rounds_per_block: self.rounds_per_block(),
                until: until.mul_f64(SPREAD_SHARE).min(MAX_SPREAD),
            }),
            ..Plan::rounds(self.items, self.rounds(), SEED)
        }
    }

    fn rounds(&self) -> u32 {
        u32::try_from(self.max_samples.max(1)).unwrap_or(u32::MAX)
    }

    fn rounds_per_block(&self) -> u32 {
        self.rounds().div_ceil(BLOCKS)
    }
}

/// Samples that were taken, with what it takes to store them.
pub(crate) struct Samples<V> {
    pub(crate) outcome: SamplingOutcome<V>,
    /// When the sampling began, in seconds since 1970.
    began_at_s: f64,
    rounds: u32,
    /// `None` where they were taken one after the other.
    rounds_per_block: Option<u32>,
}

/// Takes the samples; of a sampling that is cancelled those until then, if each item has one.
///
/// # Errors
/// Those of the source, and [`ProbeError::Cancelled`] where an item has no sample yet.
pub(crate) fn sample<S: Source<Error = ProbeError>>(
    amount: &Amount,
    cancel: &AtomicBool,
    source: &mut S,
) -> Result<Samples<S::Value>, ProbeError> {
    let (clock, began_at_s) = (Monotonic::start(), now_s());
    let outcome = sampler::sample(&amount.plan(&clock), &clock, cancel, source)?;
    if outcome.end == End::Cancelled && outcome.fewest() == 0 {
        return Err(ProbeError::Cancelled);
    }
    Ok(Samples {
        outcome,
        began_at_s,
        rounds: amount.rounds(),
        rounds_per_block: amount.is_spread.then(|| amount.rounds_per_block()),
    })
}

impl<V> Samples<V> {
    /// What a value of each item's samples is; `None` for an item without samples.
    pub(crate) fn figures(&self, value: impl Fn(&V) -> f64) -> Vec<Option<Figures>> {
        let figures = |samples: Vec<(Option<u32>, &V)>| {
            let values = samples.into_iter().map(|(block, it)| (block, value(it)));
            Figures::of_blocks(&values.collect::<Vec<_>>())
        };
        self.by_item().into_iter().map(figures).collect()
    }

    /// The samples of each item, each with its block; without one where they were taken one after the other.
    pub(crate) fn by_item(&self) -> Vec<Vec<(Option<u32>, &V)>> {
        let mut by_item: Vec<Vec<_>> = self.outcome.by_item().iter().map(|_| Vec::new()).collect();
        for taken in &self.outcome.samples {
            let rounds = self.rounds_per_block;
            let block = rounds.map(|rounds| taken.slot.round.saturating_sub(1) / rounds);
            by_item[taken.slot.item].push((block, &taken.value));
        }
        by_item
    }

    /// What is to be said of the samples: of the sampling as a whole, and of outliers among those of a pair.
    pub(crate) fn warnings<'a>(&self, pairs: impl IntoIterator<Item = &'a [f64]>) -> Vec<Warning> {
        let outliers = sampler::outliers(pairs);
        let warnings = outliers.into_iter().chain(self.outcome.warnings());
        warnings.map(Warning::Sampling).collect()
    }

    /// The samples as a run for the store, added to one without. `values` gives the values of a sample, and how it was taken.
    pub(crate) fn recorded(
        &self,
        mut recording: Recording,
        warnings: &[Warning],
        values: impl Fn(usize, &V) -> (Values, serde_json::Value),
    ) -> Recording {
        (recording.samples_per_cell, recording.seed) = (self.rounds, SEED);
        recording.warnings = warnings.iter().map(ToString::to_string).collect();
        if let Some(rounds) = self.rounds_per_block {
            recording.plan.parameters[ROUNDS_PER_BLOCK] = rounds.into();
        }
        recording.add(self.began_at_s, &self.outcome.samples, |taken| {
            let (values, detail) = values(taken.slot.item, &taken.value);
            SampleResult::Measured {
                values,
                warnings: Vec::new(),
                detail,
            }
        });
        recording.add(self.began_at_s, &self.outcome.lost, |_| {
            SampleResult::Failed("the attempt took too long".to_owned())
        });
        recording
    }
}

/// Waits for so long, and looks every now and then whether it was cancelled, and what `check` says.
///
/// # Errors
/// "interrupted" where it was cancelled; what `check` gives as one.
pub(crate) fn pause(
    time: Duration,
    look: Duration,
    cancel: &AtomicBool,
    mut check: impl FnMut() -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let end = Instant::now() + time;
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err("interrupted");
        }
        check()?;
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left => sleep(left.min(look)),
        }
    }
}

/// What was measured, and the same as runs for the store.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured<T> {
    pub answer: T,
    /// Its samples, one recording for each experiment.
    pub recordings: Vec<Recording>,
}

/// What decides what a sample is, of measurements through buffers on nodes.
pub(crate) fn buffer_parameters(
    buffer_bytes: u64,
    page_kind: PageKind,
    options: &ProbeOptions,
) -> serde_json::Value {
    json!({
        "buffer_bytes": buffer_bytes,
        "page_kind": page_kind,
        "max_samples": options.max_samples,
        "budget_s": options.budget.as_secs_f64(),
    })
}

/// "2 pairs of nodes".
pub(crate) fn count(number: usize, what: &str, plural: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {plural}"),
    }
}
