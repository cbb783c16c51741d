//! One sample: fio's answer and what was seen meanwhile.

use nearfar_experiment::{Better, Metric, MetricValue, Values};
use nearfar_machine::{CpuSet, NodeId};
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

pub(super) fn metrics() -> Vec<Metric> {
    let lower = |name, unit| Metric::real(name, unit, Better::Lower);
    vec![
        Metric::real(IOPS, "1/s", Better::Higher).primary(),
        Metric::real("bytes_per_s", "B/s", Better::Higher),
        Metric::histogram(LATENCY, "ns", Better::Lower),
        lower("latency_mean_ns", "ns"),
        lower("latency_p50_ns", "ns"),
        lower(LATENCY_P99, "ns"),
        lower("latency_p999_ns", "ns"),
        lower("user_share", "1"),
        lower("system_share", "1"),
        lower("cpu_ns_per_io", "ns"),
        lower("context_switches_per_io", ""),
        Metric::real(NEAREST_PATH_SHARE, "1", Better::Higher),
        lower("lock_spin_share", "1"),
    ]
}

pub(super) fn values(sample: &Sample) -> Values {
    let fio = &sample.fio;
    let quantiles = fio.latency_ns.quantiles();
    let quantile =
        |of: fn(&nearfar_runs::Quantiles) -> u64| Some((of(quantiles.as_ref()?) as f64).into());
    let real = |value: f64| Some(MetricValue::from(value));
    let of_jobs = |seconds: f64| (fio.jobs_s > 0.0).then(|| (seconds / fio.jobs_s).into());
    let per_io = |value: f64| (fio.ios > 0).then(|| (value / fio.ios as f64).into());
    let all: [(&str, Option<MetricValue>); 13] = [
        (IOPS, real(fio.iops)),
        ("bytes_per_s", real(fio.bytes_per_s)),
        (LATENCY, quantiles.map(|_| fio.latency_ns.clone().into())),
        ("latency_mean_ns", real(fio.latency_mean_ns)),
        ("latency_p50_ns", quantile(|it| it.p50)),
        (LATENCY_P99, quantile(|it| it.p99)),
        ("latency_p999_ns", quantile(|it| it.p999)),
        ("user_share", of_jobs(fio.user_s)),
        ("system_share", of_jobs(fio.system_s)),
        ("cpu_ns_per_io", per_io(1e9 * (fio.user_s + fio.system_s))),
        (
            "context_switches_per_io",
            per_io(fio.context_switches as f64),
        ),
        (
            NEAREST_PATH_SHARE,
            sample.nearest_path_share.map(Into::into),
        ),
        ("lock_spin_share", spin_share(sample)),
    ];
    let known = all
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.collect()
}

/// The share of fio's system time, warm-up included, that it was busy waiting for spinlocks.
fn spin_share(sample: &Sample) -> Option<MetricValue> {
    let Waited { locks, system_s } = sample.waited.as_ref()?;
    let is_known = locks.no_spin_reason.is_none() && *system_s > 0.0;
    is_known.then(|| (locks.spin_s / system_s).into())
}
