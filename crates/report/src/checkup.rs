//! The checkup: topology, audit and a first measurement, on one screen and on one page.

mod next;
mod one_node;
mod page;
mod screen;

use nearfar_bench::latency::LatencyMatrix;
use nearfar_bench::unbound::UnboundTasks;
use nearfar_machine::{Known, Machine};
use nearfar_placement::audit::Audit;
use serde::Serialize;

pub(crate) use next::plan_command;
pub use page::page;
pub use screen::{found, measured, screen};

/// What a checkup found; serialised, it is what `nearfar checkup --format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Checkup {
    /// How it was made.
    pub made: Made,
    /// The machine.
    pub machine: Machine,
    /// What is far on it.
    pub audit: Audit,
    /// How long loads take; unknown where nothing could or should be measured, with the reason.
    pub probe: Known<LatencyMatrix>,
    /// Whether the scheduler hurts unbound tasks; unknown where that could or should not be probed, with the reason.
    pub unbound: Known<UnboundTasks>,
}

/// How a checkup was made, for the reader of a page that was passed on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Made {
    /// The command line, quoted for a shell.
    pub command: String,
    /// The arguments that choose the machine (`--source`, `--root`, `--fake`), quoted for a shell; none for the running system.
    #[serde(skip)]
    pub source: String,
    /// Version of nearfar.
    pub version: String,
    /// When, in seconds since 1970.
    pub at_s: Option<u64>,
}

impl Checkup {
    /// Whether a single node is online.
    pub(crate) fn is_one_node(&self) -> bool {
        self.machine.online_nodes().count() == 1
    }

    /// Why unbound tasks were not probed, where the reason is not that nothing was measured at all.
    pub(crate) fn unbound_reason(&self) -> Option<&str> {
        self.unbound
            .unknown_reason()
            .filter(|reason| self.probe.unknown_reason() != Some(*reason))
    }
}
