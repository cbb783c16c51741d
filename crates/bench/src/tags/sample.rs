//! What a sample has: counts of all workers, and what the allocator did meanwhile.

use nearfar_experiment::{Better, Histogram, Metric, MetricValue, Values};
use nearfar_tags::{Statistics, Steals};
use serde::{Deserialize, Serialize};

use super::worker::Measured;
use super::{OPERATIONS, SYSTEM_SHARE};

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(super) operations_per_s: f64,
    pub(super) user_s: f64,
    pub(super) system_s: f64,
    /// Of the workers' time, without a tag that they wanted.
    pub(super) wait_share: f64,
    pub(super) hand_over_ns: Histogram,
    pub(super) steals: StealCounts,
    /// The slowest worker's operations over the fastest's; `None` if none made any.
    pub(super) fairness: Option<f64>,
}

/// Steals by what both CPUs share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StealCounts {
    core: u64,
    core_group: u64,
    llc: u64,
    node: u64,
    remote: u64,
    remote_distance: u64,
}

/// The distance within a node, as in ACPI's SLIT.
const LOCAL_DISTANCE: u64 = 10;

impl StealCounts {
    fn between(before: &Steals, after: &Steals) -> Self {
        Self {
            core: after.core - before.core,
            core_group: after.core_group - before.core_group,
            llc: after.llc - before.llc,
            node: after.node - before.node,
            remote: after.remote - before.remote,
            remote_distance: after.remote_distance - before.remote_distance,
        }
    }

    /// The mean distance from the CPU that took tags to the one they were taken from; `None` without steals.
    fn mean_distance(&self) -> Option<f64> {
        let local = self.core + self.core_group + self.llc + self.node;
        let (count, sum) = (
            local + self.remote,
            LOCAL_DISTANCE * local + self.remote_distance,
        );
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

impl Sample {
    pub(super) fn new(workers: &[Measured], before: &Statistics, after: &Statistics) -> Self {
        let sum = |of: fn(&Measured) -> f64| workers.iter().map(of).sum::<f64>();
        let rates = || workers.iter().map(|it| it.operations as f64 / it.elapsed_s);
        let (least, most) = (
            rates().fold(f64::INFINITY, f64::min),
            rates().fold(0.0, f64::max),
        );
        let mut hand_over_ns = Histogram::new();
        workers
            .iter()
            .for_each(|it| hand_over_ns.merge(&it.hand_over_ns));
        Self {
            operations_per_s: rates().sum(),
            user_s: sum(|it| it.user_s),
            system_s: sum(|it| it.system_s),
            wait_share: sum(|it| it.wait_s) / sum(|it| it.elapsed_s),
            hand_over_ns,
            steals: StealCounts::between(&before.steals, &after.steals),
            fairness: (most > 0.0).then_some(least / most),
        }
    }
}

pub(super) fn metrics() -> Vec<Metric> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    let steals = |part| Metric::integer(format!("steals_{part}"), "", Better::Lower);
    let first = [
        Metric::real(OPERATIONS, "1/s", Better::Higher).primary(),
        lower("system_s", "s"),
        lower("user_s", "s"),
        lower(SYSTEM_SHARE, "1"),
        lower("wait_share", "1"),
        Metric::histogram("hand_over_ns", "ns", Better::Lower),
    ];
    let last = [
        lower("steal_distance", ""),
        Metric::integer("line_transfers", "", Better::Lower),
        Metric::real("fairness", "1", Better::Higher),
    ];
    let parts = ["core", "core_group", "llc", "node", "remote"].map(steals);
    first.into_iter().chain(parts).chain(last).collect()
}

pub(super) fn values(sample: &Sample) -> Values {
    let cpu_s = sample.user_s + sample.system_s;
    let steals = &sample.steals;
    let known: [(&str, MetricValue); 9] = [
        (OPERATIONS, sample.operations_per_s.into()),
        ("system_s", sample.system_s.into()),
        ("user_s", sample.user_s.into()),
        ("wait_share", sample.wait_share.into()),
        ("steals_core", steals.core.into()),
        ("steals_core_group", steals.core_group.into()),
        ("steals_llc", steals.llc.into()),
        ("steals_node", steals.node.into()),
        ("steals_remote", steals.remote.into()),
    ];
    let hand_over = (sample.hand_over_ns.count() > 0).then(|| sample.hand_over_ns.clone().into());
    let sometimes: [(&str, Option<MetricValue>); 4] = [
        (
            "system_share",
            (cpu_s > 0.0).then(|| (sample.system_s / cpu_s).into()),
        ),
        ("hand_over_ns", hand_over),
        ("steal_distance", steals.mean_distance().map(Into::into)),
        ("fairness", sample.fairness.map(Into::into)),
    ];
    let sometimes = sometimes
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let all = known.into_iter().chain(sometimes);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(operations: u64) -> Measured {
        Measured {
            operations,
            elapsed_s: 0.5,
            user_s: 0.3,
            system_s: 0.1,
            wait_s: 0.25,
            hand_over_ns: Histogram::new(),
        }
    }

    fn sample(steals: Steals) -> Sample {
        let mut after = Statistics::default();
        after.steals = steals;
        Sample::new(
            &[measured(100), measured(400)],
            &Statistics::default(),
            &after,
        )
    }

    #[test]
    fn a_sample_is_the_sum_of_its_workers() {
        let steals = Steals {
            node: 1,
            remote: 3,
            remote_distance: 90,
            ..Steals::default()
        };
        let values = values(&sample(steals));
        let of = |name: &str| values[name].number();
        assert_eq!(of("operations_per_s"), 1000.0);
        assert_eq!((of("wait_share"), of("fairness")), (0.5, 0.25));
        assert!((of("system_share") - 0.25).abs() < 1e-9);
        assert_eq!((of("steals_remote"), of("steal_distance")), (3.0, 25.0));
    }

    #[test]
    fn what_did_not_happen_has_no_distance_and_no_time() {
        let values = values(&sample(Steals::default()));
        assert_eq!(values.get("steal_distance"), None);
        assert_eq!(values.get("hand_over_ns"), None);
        assert_eq!(nearfar_runs::check_values(&metrics(), &values), Ok(()));
    }
}
