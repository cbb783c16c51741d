//! One sample of a cell, as it is stored, and the few figures that are worked out from it.

use nearfar_machine::{Known, NodeId};
use nearfar_trace::watch::Watched;
use serde::{Deserialize, Serialize};

use super::cell::MatrixCell;
use crate::probe::{PagesByNode, ProbeResult};

/// One run of the probe in one cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub probe: ProbeResult,
    /// Its migrations and what NUMA balancing did, from before its timed part to its end; or why it was not traced.
    pub trace: Known<Watched>,
    /// What kept it on its preferred node, where the cell has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// What share of a CPU the load burned meanwhile, on the average of all CPUs, in percent.
    pub load_percent: Known<f64>,
}

/// What a preferred node took.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// Who did it.
    pub by: KeptBy,
    /// Seconds of CPU time that took.
    pub cpu_s: Known<f64>,
    /// How long it kept, in seconds.
    pub seconds: f64,
    /// How often the probe was released from its node, because the node was full.
    pub widened: u64,
}

/// What made a probe prefer its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptBy {
    /// nearfar's keeper.
    Keeper,
    /// Its CPUs were bound to that node anyway.
    Binding,
}

impl Sample {
    /// What share of its accesses went to memory of a node other than the one it ran on, 0 to 1: the shares of time on each
    /// node against the shares of pages on each. Pages that moved during the run count as half here and half there.
    /// For memory on one node this is the share of time off that node.
    pub fn far_share(&self) -> Known<f64> {
        let watched = match &self.trace {
            Known::Yes(watched) => watched,
            Known::No { unknown_reason } => return Known::no(unknown_reason.clone()),
        };
        let (before, after) = match (&self.probe.pages_before, &self.probe.pages_after) {
            (Known::Yes(before), Known::Yes(after)) => (before, after),
            (Known::No { unknown_reason }, _) | (_, Known::No { unknown_reason }) => {
                return Known::no(unknown_reason.clone());
            }
        };
        let time: Vec<(Option<NodeId>, f64)> = watched
            .found
            .time
            .iter()
            .map(|time| (time.node, time.seconds))
            .collect();
        match far_share(&time, before, after) {
            Some(share) => Known::Yes(share),
            None => Known::no("on which node the process ran is not known"),
        }
    }

    /// Migrations from node to node.
    pub fn cross_node(&self) -> Option<u64> {
        self.trace
            .get()
            .map(|watched| watched.found.migrations.cross_node)
    }

    /// What was wrong with it, in words.
    pub fn warnings(&self) -> Vec<String> {
        let lost = self
            .trace
            .get()
            .filter(|watched| !watched.losses.is_whole() && !has_all_moves(watched));
        let lost = lost
            .map(|_| "events were lost while it was traced: migrations may be missing".to_owned());
        self.probe
            .warnings
            .iter()
            .map(ToString::to_string)
            .chain(lost)
            .collect()
    }
}

/// Whether the kernel moved the probe, which has one thread, exactly as often as was seen: then the events that were lost were of
/// other tasks.
fn has_all_moves(watched: &Watched) -> bool {
    watched.moves_by_kernel.get() == Some(&watched.found.migrations.total())
}

fn far_share(
    time: &[(Option<NodeId>, f64)],
    before: &PagesByNode,
    after: &PagesByNode,
) -> Option<f64> {
    let all: f64 = time.iter().map(|(_, seconds)| seconds).sum();
    if all <= 0.0
        || time
            .iter()
            .any(|(node, seconds)| node.is_none() && *seconds > 0.0)
    {
        return None;
    }
    let near = |node: NodeId| (before.share_on(node) + after.share_on(node)) / 2.0;
    let share = time
        .iter()
        .filter_map(|(node, seconds)| Some(seconds / all * (1.0 - near((*node)?))))
        .sum::<f64>();
    Some(share.clamp(0.0, 1.0))
}

/// Why there is no sample, as the store has it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunFailed(pub String);

/// A sample with its place in the run, or why there is none.
#[derive(Clone, PartialEq, Debug)]
pub struct Taken {
    /// Of this cell.
    pub cell: MatrixCell,
    /// In this round: every cell once, one after the other, so that what drifts is the same for all.
    pub round: u32,
    /// The sample, or why the run failed.
    pub sample: Result<Sample, RunFailed>,
}

impl Taken {
    /// The sample, if the run succeeded.
    pub fn good(&self) -> Option<&Sample> {
        self.sample.as_ref().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::NodePages;

    fn pages(on: &[(u32, u64)]) -> PagesByNode {
        let by_node: Vec<_> = on
            .iter()
            .map(|&(node, pages)| NodePages {
                node: NodeId(node),
                pages,
            })
            .collect();
        PagesByNode {
            looked_at: by_node.iter().map(|pages| pages.pages).sum(),
            by_node,
            nowhere: 0,
        }
    }

    fn time(on: &[(u32, f64)]) -> Vec<(Option<NodeId>, f64)> {
        on.iter()
            .map(|&(node, seconds)| (Some(NodeId(node)), seconds))
            .collect()
    }

    #[test]
    fn with_memory_on_one_node_far_is_the_time_off_that_node() {
        let memory = pages(&[(0, 100)]);
        assert_eq!(
            far_share(&time(&[(0, 6.0), (1, 2.0)]), &memory, &memory),
            Some(0.25)
        );
        assert_eq!(far_share(&time(&[(0, 6.0)]), &memory, &memory), Some(0.0));
    }

    #[test]
    fn memory_on_two_nodes_is_half_far_from_each() {
        let memory = pages(&[(0, 50), (1, 50)]);
        assert_eq!(
            far_share(&time(&[(0, 6.0), (1, 2.0)]), &memory, &memory),
            Some(0.5)
        );
        let moved = far_share(&time(&[(1, 4.0)]), &pages(&[(0, 100)]), &pages(&[(1, 100)]));
        assert_eq!(moved, Some(0.5));
    }

    #[test]
    fn time_on_an_unknown_node_makes_it_unknown() {
        let memory = pages(&[(0, 1)]);
        assert_eq!(far_share(&[(None, 1.0)], &memory, &memory), None);
        assert_eq!(far_share(&[], &memory, &memory), None);
    }
}
