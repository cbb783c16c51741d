//! One sample: fio's answer and what was seen meanwhile.

use nearfar_experiment::{Better, Column, Metric};
use nearfar_machine::{CpuSet, NodeId};
use nearfar_runs::Quantiles;
use nearfar_trace::locks::LockWaits;
use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::{IOPS, LATENCY, LATENCY_P99, NEAREST_PATH_SHARE};

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(super) fio: Answer,
    /// The command that measures the same without nearfar.
    pub(super) command: String,
    pub(super) engine: String,
    /// Where the device is.
    pub(super) device_nodes: Vec<NodeId>,
    pub(super) cpu_node: NodeId,
    pub(super) cpus: CpuSet,
    pub(super) memory_node: NodeId,
    /// `None` for a device with one path, and where it is unknown.
    pub(super) nearest_path_share: Option<f64>,
    /// `None` where that was not asked for.
    #[serde(flatten)]
    pub(super) waited: Option<Waited>,
    /// What may be wrong with it, in sentences.
    pub(super) warnings: Vec<String>,
}

/// What fio waited for, from its start to its end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Waited {
    /// Of its own tasks.
    pub(super) locks: LockWaits,
    /// Its system time, in seconds.
    pub(super) system_s: f64,
}

pub(super) fn columns() -> Vec<Column<Sample>> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    let higher = |name, unit| Metric::real(name, unit, Better::Higher);
    let quantile = |name, of: fn(&Quantiles) -> u64| {
        let of = move |it: &Sample| Some(of(&it.fio.latency_ns.quantiles()?) as f64);
        Column::new(lower(name, "ns"), of)
    };
    let of_jobs = |name, of: fn(&Answer) -> f64| {
        let known = |it: &Answer| it.jobs_s > 0.0;
        let of = move |it: &Sample| known(&it.fio).then(|| of(&it.fio) / it.fio.jobs_s);
        Column::new(lower(name, "1"), of)
    };
    let per_io = |name, unit, of: fn(&Answer) -> f64| {
        let of = move |it: &Sample| (it.fio.ios > 0).then(|| of(&it.fio) / it.fio.ios as f64);
        Column::new(lower(name, unit), of)
    };
    vec![
        Column::new(higher(IOPS, "1/s").primary(), |it: &Sample| {
            Some(it.fio.iops)
        }),
        Column::new(higher("bytes_per_s", "B/s"), |it: &Sample| {
            Some(it.fio.bytes_per_s)
        }),
        Column::new(
            Metric::histogram(LATENCY, "ns", Better::Lower),
            |it: &Sample| Some(it.fio.latency_ns.clone()).filter(|it| it.count() > 0),
        ),
        Column::new(lower("latency_mean_ns", "ns"), |it: &Sample| {
            Some(it.fio.latency_mean_ns)
        }),
        quantile("latency_p50_ns", |it| it.p50),
        quantile(LATENCY_P99, |it| it.p99),
        quantile("latency_p999_ns", |it| it.p999),
        of_jobs("user_share", |it| it.user_s),
        of_jobs("system_share", |it| it.system_s),
        per_io("cpu_ns_per_io", "ns", |it| 1e9 * (it.user_s + it.system_s)),
        per_io("context_switches_per_io", "", |it| {
            it.context_switches as f64
        }),
        Column::new(higher(NEAREST_PATH_SHARE, "1"), |it: &Sample| {
            it.nearest_path_share
        }),
        Column::new(lower("lock_spin_share", "1"), spin_share),
    ]
}

/// The share of fio's system time, warm-up included, that it was busy waiting for spinlocks.
fn spin_share(sample: &Sample) -> Option<f64> {
    let Waited { locks, system_s } = sample.waited.as_ref()?;
    let is_known = locks.no_spin_reason.is_none() && *system_s > 0.0;
    is_known.then(|| locks.spin_s / system_s)
}
