//! The preferred node of a probe, for as long as it runs.
//!
//! | CPUs of the cell | how the probe prefers its node |
//! |---|---|
//! | floating | nearfar's keeper, from before the first page is touched |
//! | bound to another node | the keeper until the probe binds itself: a binding outranks a preference |
//! | bound to the preferred node | bound there from the start: to prefer what one is bound to adds nothing |
//!
//! In the last case a keeper could not tell the probe's own binding from its own, and would let the probe out of a full node.

use nearfar_experiment::BoxError;
use nearfar_machine::{Known, Machine};
use nearfar_prefer::{Keeper, KeeperOptions, Targets};
use nearfar_proc::affinity;

use super::cell::MatrixCell;
use super::sample::{Kept, KeptBy};
use crate::probe::Where;

/// A probe that prefers its node.
pub(super) enum Preferring {
    Kept(Keeper),
    Bound,
}

impl Preferring {
    /// Has the process prefer the cell's node from now on; `None` for a cell without one.
    pub(super) fn start(
        pid: i32,
        cell: &MatrixCell,
        machine: &Machine,
    ) -> Result<Option<Self>, BoxError> {
        let Some(node) = cell.policy.preferred_node else {
            return Ok(None);
        };
        if cell.cpu_node == Where::Node(node) {
            let cpus = machine
                .node(node)
                .map(|node| node.known_cpus().intersection(&machine.cpu_states.online));
            affinity::set(pid, &cpus.unwrap_or_default())?;
            return Ok(Some(Self::Bound));
        }
        let options = KeeperOptions {
            children: false,
            ..KeeperOptions::default()
        };
        Ok(Some(Self::Kept(Keeper::start(
            Targets::Pids(vec![pid]),
            node,
            machine,
            options,
        )?)))
    }

    /// Lets it go.
    pub(super) fn stop(self) -> Result<Kept, BoxError> {
        match self {
            Self::Kept(keeper) => {
                let report = keeper.stop()?;
                Ok(Kept {
                    by: KeptBy::Keeper,
                    cpu_s: Known::Yes(report.cpu_s),
                    seconds: report.seconds,
                    widened: report.widened,
                })
            }
            Self::Bound => Ok(Kept {
                by: KeptBy::Binding,
                cpu_s: Known::no("nothing ran for it"),
                seconds: 0.0,
                widened: 0,
            }),
        }
    }
}
