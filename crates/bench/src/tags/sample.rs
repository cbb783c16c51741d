//! What a sample has: counts of all workers, and what the allocator did meanwhile.

use nearfar_experiment::{Better, Column, Histogram, Metric};
use nearfar_tags::Steals;
use serde::{Deserialize, Serialize};

use super::groups::Groups;
use super::worker::Measured;
use super::{CPU_PER_OPERATION, OPERATIONS, SYSTEM_SHARE};
use crate::line_transfers::LineTransfers;

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(super) operations_per_s: f64,
    /// CPU time of the workers.
    pub(super) cpu_s: f64,
    /// The kernel's part of it, 0 to 1; `None` where no worker's is known.
    pub(super) system_share: Option<f64>,
    /// `None` without an operation.
    pub(super) cpu_ns_per_operation: Option<f64>,
    /// Of the workers' time, without a tag that they wanted.
    pub(super) wait_share: f64,
    pub(super) hand_over_ns: Histogram,
    /// `None` where the allocator counts none.
    pub(super) steals: Option<StealCounts>,
    /// `None` where nothing counts them.
    pub(super) line_transfers: Option<LineTransfers>,
    /// The slowest worker's operations over the fastest's; `None` if none made any.
    pub(super) fairness: Option<f64>,
    /// Where the workers were.
    pub(super) groups: Groups,
    /// What may be wrong with it, in sentences.
    pub(super) warnings: Vec<String>,
}

/// What was counted outside the workers while they measured.
pub(super) struct Meanwhile {
    pub(super) groups: Groups,
    pub(super) steals: Option<StealCounts>,
    pub(super) line_transfers: Option<LineTransfers>,
    pub(super) warnings: Vec<String>,
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
    tags: u64,
}

/// The distance within a node, as in ACPI's SLIT.
const LOCAL_DISTANCE: u64 = 10;

impl StealCounts {
    pub(super) fn between(before: &Steals, after: &Steals) -> Self {
        Self {
            core: after.core - before.core,
            core_group: after.core_group - before.core_group,
            llc: after.llc - before.llc,
            node: after.node - before.node,
            remote: after.remote - before.remote,
            remote_distance: after.remote_distance - before.remote_distance,
            tags: after.tags - before.tags,
        }
    }

    fn local(&self) -> u64 {
        self.core + self.core_group + self.llc + self.node
    }

    /// The mean distance from the CPU that took tags to the one they were taken from; `None` without steals.
    fn mean_distance(&self) -> Option<f64> {
        self.mean(LOCAL_DISTANCE * self.local() + self.remote_distance)
    }

    /// The tags that one steal took, in the mean; `None` without steals.
    fn mean_tags(&self) -> Option<f64> {
        self.mean(self.tags)
    }

    fn mean(&self, sum: u64) -> Option<f64> {
        let count = self.local() + self.remote;
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

impl Sample {
    pub(super) fn new(workers: &[Measured], meanwhile: Meanwhile) -> Self {
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
        let (cpu_s, operations) = (sum(|it| it.cpu_s), sum(|it| it.operations as f64));
        let mut warnings = meanwhile.warnings;
        warnings.extend(open_waits(workers, &hand_over_ns));
        Self {
            operations_per_s: rates().sum(),
            cpu_s,
            system_share: system_share(workers),
            cpu_ns_per_operation: (operations > 0.0).then(|| 1e9 * cpu_s / operations),
            wait_share: sum(|it| it.wait_s) / sum(|it| it.elapsed_s),
            hand_over_ns,
            steals: meanwhile.steals,
            line_transfers: meanwhile.line_transfers,
            fairness: (most > 0.0).then_some(least / most),
            groups: meanwhile.groups,
            warnings,
        }
    }
}

/// The kernel's share of the CPU time of those workers for which it is known.
fn system_share(workers: &[Measured]) -> Option<f64> {
    let known = workers
        .iter()
        .filter_map(|it| Some((it.cpu_s, it.cpu_s * it.system_share?)));
    let (cpu_s, system_s) = known.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    (cpu_s > 0.0).then(|| system_s / cpu_s)
}

/// A warning when a wait that had not ended had lasted longer than every wait that did: the histogram is without it.
fn open_waits(workers: &[Measured], hand_over_ns: &Histogram) -> Option<String> {
    let open_ns = workers.iter().filter_map(|it| it.open_wait_ns).max()?;
    let longest_ns = hand_over_ns.quantiles().map_or(0, |it| it.max);
    (open_ns > longest_ns).then(|| {
        format!(
            "a worker still waited for a tag at the end, for {:.3} ms so far: longer than every wait in hand_over_ns, \
             which has only waits that ended; wait_share has it",
            open_ns as f64 / 1e6
        )
    })
}

pub(super) fn columns() -> Vec<Column<Sample>> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    let count = |name| Metric::integer(name, "", Better::Lower);
    let steals = |name, of: fn(&StealCounts) -> u64| {
        Column::new(count(name), move |it: &Sample| it.steals.as_ref().map(of))
    };
    let mean = |name, of: fn(&StealCounts) -> Option<f64>| {
        Column::new(lower(name, ""), move |it: &Sample| {
            it.steals.as_ref().and_then(of)
        })
    };
    let transfers = |name, of: fn(&LineTransfers) -> u64| {
        Column::new(count(name), move |it: &Sample| {
            it.line_transfers.as_ref().map(of)
        })
    };
    let system_s = |it: &Sample| Some(it.system_share? * it.cpu_s);
    vec![
        Column::new(
            Metric::real(OPERATIONS, "1/s", Better::Higher).primary(),
            |it: &Sample| Some(it.operations_per_s),
        ),
        Column::new(lower("system_s", "s"), system_s),
        Column::new(lower("user_s", "s"), move |it: &Sample| {
            Some(it.cpu_s - system_s(it)?)
        }),
        Column::new(lower(SYSTEM_SHARE, "1"), |it: &Sample| it.system_share),
        Column::new(lower(CPU_PER_OPERATION, "ns"), |it: &Sample| {
            it.cpu_ns_per_operation
        }),
        Column::new(lower("wait_share", "1"), |it: &Sample| Some(it.wait_share)),
        Column::new(
            Metric::histogram("hand_over_ns", "ns", Better::Lower),
            |it: &Sample| Some(it.hand_over_ns.clone()).filter(|it| it.count() > 0),
        ),
        steals("steals_core", |it| it.core),
        steals("steals_core_group", |it| it.core_group),
        steals("steals_llc", |it| it.llc),
        steals("steals_node", |it| it.node),
        steals("steals_remote", |it| it.remote),
        mean("steal_distance", StealCounts::mean_distance),
        mean("tags_per_steal", StealCounts::mean_tags),
        transfers("line_transfers", LineTransfers::all),
        transfers("line_transfers_remote", |it| it.other_node),
        Column::new(
            Metric::real("fairness", "1", Better::Higher),
            |it: &Sample| it.fairness,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use nearfar_experiment::{metrics, values};
    use nearfar_machine::{CpuId, NodeId};

    use super::*;

    fn measured(operations: u64) -> Measured {
        Measured {
            operations,
            elapsed_s: 0.5,
            cpu_s: 0.4,
            system_share: Some(0.25),
            wait_s: 0.25,
            hand_over_ns: Histogram::new(),
            open_wait_ns: None,
        }
    }

    fn sample(steals: Steals) -> Sample {
        let meanwhile = Meanwhile {
            groups: Groups::alone(NodeId(0), CpuId(0)),
            steals: Some(StealCounts::between(&Steals::default(), &steals)),
            line_transfers: None,
            warnings: Vec::new(),
        };
        Sample::new(&[measured(100), measured(400)], meanwhile)
    }

    #[test]
    fn a_sample_is_the_sum_of_its_workers() {
        let mut steals = Steals::default();
        steals.node = 1;
        steals.remote = 3;
        steals.remote_distance = 90;
        steals.tags = 10;
        let values = values(&columns(), &sample(steals));
        let of = |name: &str| values[name].number();
        assert_eq!(of("operations_per_s"), 1000.0);
        assert_eq!((of("wait_share"), of("fairness")), (0.5, 0.25));
        assert!((of("system_share") - 0.25).abs() < 1e-9);
        assert!((of("user_s") - 0.6).abs() < 1e-9 && (of("system_s") - 0.2).abs() < 1e-9);
        assert!((of("cpu_ns_per_operation") - 0.8e9 / 500.0).abs() < 1e-3);
        assert_eq!((of("steals_remote"), of("steal_distance")), (3.0, 25.0));
        assert_eq!(of("tags_per_steal"), 2.5);
    }

    #[test]
    fn an_allocator_that_counts_no_steals_has_no_figure_of_them() {
        let mut sample = sample(Steals::default());
        assert_eq!(values(&columns(), &sample)["steals_node"].number(), 0.0);
        sample.steals = None;
        let values = values(&columns(), &sample);
        assert!(values.keys().all(|name| !name.contains("steal")));
    }

    #[test]
    fn what_did_not_happen_has_no_distance_and_no_time() {
        let values = values(&columns(), &sample(Steals::default()));
        assert_eq!(values.get("steal_distance"), None);
        assert_eq!(values.get("hand_over_ns"), None);
        assert_eq!(values.get("line_transfers"), None);
        assert_eq!(
            nearfar_runs::check_values(&metrics(columns()), &values),
            Ok(())
        );
    }

    #[test]
    fn line_transfers_are_all_and_those_between_nodes() {
        let mut sample = sample(Steals::default());
        sample.line_transfers = Some(LineTransfers {
            same_node: 3,
            other_node: 40,
        });
        let values = values(&columns(), &sample);
        let of = |name: &str| values[name].number();
        assert_eq!(
            (of("line_transfers"), of("line_transfers_remote")),
            (43.0, 40.0)
        );
    }

    #[test]
    fn the_share_of_a_worker_without_one_is_not_0() {
        let without = Measured {
            system_share: None,
            ..measured(1)
        };
        let share = |workers: &[Measured]| system_share(workers);
        let known = share(&[measured(1), without.clone()]).unwrap();
        assert!((known - 0.25).abs() < 1e-9);
        assert_eq!(share(&[without]), None);
    }

    #[test]
    fn a_wait_without_end_is_a_warning_where_no_other_was_as_long() {
        let waiting = |open_wait_ns| Measured {
            open_wait_ns: Some(open_wait_ns),
            ..measured(1)
        };
        let mut ended = Histogram::new();
        ended.record(1000);
        assert_eq!(open_waits(&[waiting(900), measured(1)], &ended), None);
        let warning = open_waits(&[waiting(900), waiting(2_000_000)], &ended).unwrap();
        assert!(warning.contains("2.000 ms"), "{warning}");
    }
}
