//! What a sample has.

use nearfar_experiment::{Better, Column, Metric};
use nearfar_machine::{Known, NodeSet};
use serde::{Deserialize, Serialize};

use super::hot::Hot;
use super::locks::Contention;
use super::{LOCK_SHARE, OPERATIONS};

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Of each task.
    pub(super) operations_per_s: Vec<f64>,
    /// CPU time of all tasks while operations were counted; in ticks of 10 ms.
    pub(super) user_s: f64,
    pub(super) system_s: f64,
    /// How long operations were counted.
    pub(super) seconds: f64,
    /// Nodes that are online.
    pub(super) nodes: NodeSet,
    /// Nodes that the tasks' memory was bound to; empty where it came from wherever they ran.
    pub(super) memory_nodes: NodeSet,
    pub(super) contention: Known<Contention>,
    #[serde(default = "not_sampled")]
    pub(super) profile: Known<Hot>,
    pub(super) warnings: Vec<String>,
}

fn not_sampled() -> Known<Hot> {
    Known::no("it was not sampled")
}

impl Sample {
    fn all(&self) -> f64 {
        self.operations_per_s.iter().sum()
    }
}

/// Jain's index: 1 where all tasks do the same, 1 / N where one does everything; `None` without an operation.
fn fairness(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|it| it * it).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

pub(super) fn columns() -> Vec<Column<Sample>> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    let higher = |name, unit| Metric::real(name, unit, Better::Higher);
    // Unknown is not 0.
    let contention = |name, of: fn(&Contention) -> f64| {
        let of = move |it: &Sample| {
            let traced = it.contention.get().filter(|it| it.no_spin_reason.is_none());
            traced.map(of)
        };
        Column::new(lower(name, "1"), of)
    };
    vec![
        Column::new(higher(OPERATIONS, "1/s").primary(), |it: &Sample| {
            Some(it.all())
        }),
        Column::new(higher("operations_per_task_s", "1/s"), |it: &Sample| {
            Some(it.all() / it.operations_per_s.len() as f64)
        }),
        Column::new(higher("fairness", "1"), |it: &Sample| {
            fairness(&it.operations_per_s)
        }),
        contention(LOCK_SHARE, |it| it.share),
        contention("spin_share", |it| it.spin_share),
        contention("hot_lock_share", |it| {
            it.locks.first().map_or(0.0, |lock| lock.share)
        }),
        Column::new(lower("lock_function_share", "1"), |it: &Sample| {
            it.profile.get()?.lock_function_share
        }),
        Column::new(lower("system_s", "s"), |it: &Sample| Some(it.system_s)),
        Column::new(lower("user_s", "s"), |it: &Sample| Some(it.user_s)),
    ]
}

pub(super) fn warnings(sample: &Sample) -> Vec<String> {
    let mut warnings = sample.warnings.clone();
    warnings.extend(
        sample
            .contention
            .get()
            .into_iter()
            .flat_map(Contention::warnings),
    );
    warnings.extend(sample.profile.get().into_iter().flat_map(Hot::warnings));
    if sample.operations_per_s.contains(&0.0) {
        warnings.push("a task made no operation while they were counted".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use nearfar_experiment::{metrics, values};

    use super::*;

    #[test]
    fn a_sample_is_all_tasks_and_how_evenly_they_worked() {
        let sample = Sample {
            operations_per_s: vec![300.0, 100.0],
            user_s: 0.25,
            system_s: 0.75,
            seconds: 0.5,
            nodes: NodeSet::new(),
            memory_nodes: NodeSet::new(),
            contention: Known::no("not traced"),
            profile: not_sampled(),
            warnings: Vec::new(),
        };
        let values = values(&columns(), &sample);
        let of = |name: &str| values[name].number();
        assert_eq!(
            (of(OPERATIONS), of("operations_per_task_s")),
            (400.0, 200.0)
        );
        assert!((of("fairness") - 0.8).abs() < 1e-9);
        assert_eq!(values.get(LOCK_SHARE), None, "unknown is not 0");
        assert_eq!(
            nearfar_runs::check_values(&metrics(columns()), &values),
            Ok(())
        );
        assert_eq!(fairness(&[0.0, 0.0]), None);
        assert_eq!(fairness(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
    }
}
