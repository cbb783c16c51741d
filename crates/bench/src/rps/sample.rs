//! What a sample has.

use nearfar_experiment::{Better, Column, Histogram, Metric};
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

impl Sample {
    fn group(&self, role: &str) -> Option<&Group> {
        self.groups.iter().find(|it| it.role == role)
    }
}

pub(super) fn columns() -> Vec<Column<Sample>> {
    let rate = |name, role| {
        let metric = Metric::real(name, "1/s", Better::Higher);
        Column::new(metric, move |it: &Sample| {
            Some(it.group(role)?.requests_per_s)
        })
    };
    let latency = |name, role| {
        let metric = Metric::histogram(name, "ns", Better::Lower);
        Column::new(metric, move |it: &Sample| {
            let latencies = it.group(role)?.latency_ns.clone();
            Some(latencies).filter(|it| it.count() > 0)
        })
    };
    let near = |name| Metric::integer(name, "", Better::Higher);
    let far = |name| Metric::integer(name, "", Better::Lower);
    let time = |name| Metric::real(name, "s", Better::Lower);
    let sum = |it: &Sample| it.groups.iter().map(|it| it.requests_per_s).sum::<f64>();
    vec![
        Column::new(
            Metric::real(REQUESTS, "1/s", Better::Higher).primary(),
            move |it| Some(sum(it)),
        ),
        rate(REQUESTS_CARD, CARD),
        rate(REQUESTS_ADJACENT, ADJACENT),
        latency("latency_card_ns", CARD),
        latency("latency_adjacent_ns", ADJACENT),
        Column::new(near("interrupts_near"), |it: &Sample| {
            Some(it.interrupts?[0])
        }),
        Column::new(far("interrupts_far"), |it: &Sample| Some(it.interrupts?[1])),
        Column::new(near("net_rx_near"), |it: &Sample| Some(it.served.net_rx[0])),
        Column::new(far("net_rx_far"), |it: &Sample| Some(it.served.net_rx[1])),
        Column::new(time("softirq_near_s"), |it: &Sample| {
            Some(it.served.softirq_s[0])
        }),
        Column::new(time("softirq_far_s"), |it: &Sample| {
            Some(it.served.softirq_s[1])
        }),
        Column::new(far("dropped"), |it: &Sample| Some(it.served.dropped)),
    ]
}

#[cfg(test)]
mod tests {
    use nearfar_experiment::{metrics, values};

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
        let values = values(&columns(), &sample);
        assert_eq!(values[REQUESTS].number(), 600.0);
        assert_eq!(values[REQUESTS_ADJACENT].number(), 600.0);
        for absent in [REQUESTS_CARD, "latency_card_ns", "interrupts_near"] {
            assert!(!values.contains_key(absent), "{absent}");
        }
        assert_eq!(
            nearfar_runs::check_values(&metrics(columns()), &values),
            Ok(())
        );
    }
}
