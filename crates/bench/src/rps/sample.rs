//! What a sample has.

use nearfar_experiment::{Better, Histogram, Metric, MetricValue, Values};
use nearfar_machine::{CpuId, NodeId};
use serde::{Deserialize, Serialize};

use super::counts::Served;
use super::{ADJACENT, CARD, REQUESTS, REQUESTS_ADJACENT, REQUESTS_CARD};

/// One sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The nodes with servers, the card's first.
    pub(super) groups: Vec<Group>,
    /// Where the clients were.
    pub(super) client_cpus: Vec<CpuId>,
    /// Whether each server has queues of its own.
    pub(super) is_steered: bool,
    pub(super) served: Served,
    /// Near and far, as [`Served::interrupts`] has them.
    pub(super) interrupts: Option<[u64; 2]>,
    /// What may be wrong with it, in sentences.
    pub(super) warnings: Vec<String>,
}

/// The servers of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Group {
    /// [`CARD`] or [`ADJACENT`].
    pub(super) role: String,
    pub(super) node: NodeId,
    /// Of each server.
    pub(super) cpus: Vec<CpuId>,
    pub(super) requests_per_s: f64,
    /// Empty where the clients are not nearfar's.
    pub(super) latency_ns: Histogram,
}

pub(super) fn metrics() -> Vec<Metric> {
    let rate = |name| Metric::real(name, "1/s", Better::Higher);
    let latency = |name| Metric::histogram(name, "ns", Better::Lower);
    let near = |name| Metric::integer(name, "", Better::Higher);
    let far = |name| Metric::integer(name, "", Better::Lower);
    vec![
        rate(REQUESTS).primary(),
        rate(REQUESTS_CARD),
        rate(REQUESTS_ADJACENT),
        latency("latency_card_ns"),
        latency("latency_adjacent_ns"),
        near("interrupts_near"),
        far("interrupts_far"),
        near("net_rx_near"),
        far("net_rx_far"),
        Metric::real("softirq_near_s", "s", Better::Lower),
        Metric::real("softirq_far_s", "s", Better::Lower),
        far("dropped"),
    ]
}

pub(super) fn values(sample: &Sample) -> Values {
    let sum: f64 = sample.groups.iter().map(|it| it.requests_per_s).sum();
    let of = |role: &str| sample.groups.iter().find(|it| it.role == role);
    let rate = |role| of(role).map(|it| MetricValue::from(it.requests_per_s));
    let latency = |role| {
        let latencies = of(role).map(|it| it.latency_ns.clone());
        latencies.filter(|it| it.count() > 0).map(Into::into)
    };
    let served = &sample.served;
    let interrupts = |at: usize| sample.interrupts.map(|it| it[at].into());
    let all: [(&str, Option<MetricValue>); 12] = [
        (REQUESTS, Some(sum.into())),
        (REQUESTS_CARD, rate(CARD)),
        (REQUESTS_ADJACENT, rate(ADJACENT)),
        ("latency_card_ns", latency(CARD)),
        ("latency_adjacent_ns", latency(ADJACENT)),
        ("interrupts_near", interrupts(0)),
        ("interrupts_far", interrupts(1)),
        ("net_rx_near", Some(served.net_rx[0].into())),
        ("net_rx_far", Some(served.net_rx[1].into())),
        ("softirq_near_s", Some(served.softirq_s[0].into())),
        ("softirq_far_s", Some(served.softirq_s[1].into())),
        ("dropped", Some(served.dropped.into())),
    ];
    let known = all.into_iter();
    known
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_servers_and_a_link_without_queues_have_no_figures() {
        let mut latency_ns = Histogram::new();
        latency_ns.record(1000);
        let sample = Sample {
            groups: vec![Group {
                role: ADJACENT.to_owned(),
                node: NodeId(3),
                cpus: vec![CpuId(6)],
                requests_per_s: 600.0,
                latency_ns,
            }],
            client_cpus: vec![CpuId(2)],
            is_steered: false,
            served: Served::default(),
            interrupts: None,
            warnings: Vec::new(),
        };
        let values = values(&sample);
        assert_eq!(values[REQUESTS].number(), 600.0);
        assert_eq!(values[REQUESTS_ADJACENT].number(), 600.0);
        for absent in [REQUESTS_CARD, "latency_card_ns", "interrupts_near"] {
            assert!(!values.contains_key(absent), "{absent}");
        }
        assert_eq!(nearfar_runs::check_values(&metrics(), &values), Ok(()));
    }
}
