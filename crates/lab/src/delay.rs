//! Delays of far memory: what is asked for, how QEMU's plugin is told, what it counted.
//!
//! ```text
//!  --delay ──► DelaySpec ─┐
//!                         ├─ setup ──► DelaySetup ─ start ──► DelayRegion ──► QEMU (the plugin maps its descriptor)
//!              Design ────┘            (text, label)          │ open, close: the gate
//!                                                             └ counts: while the guest runs, and after
//! ```
//!
//! The plugin is a program of its own licence; it and this module share nothing but the layout of the region and the
//! format of the text in it, both written down in docs/delays.md.

mod counts;
mod matrix;
mod plugin;
mod region;
mod spec;

pub use counts::{Counts, Misses, VcpuCounts};
pub use matrix::far_for_ratio;
pub use plugin::find_plugin;
pub use region::DelayRegion;
pub use spec::{Asked, CacheSize, DelaySpec, Transfer};

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nearfar_machine::NodeId;

use crate::design::Design;
use crate::error::LabError;
use matrix::Matrix;

/// What the plugin is to do.
#[derive(Clone, PartialEq, Debug)]
pub struct DelaySetup {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The configuration, as the plugin reads it.
    pub config: String,
    /// One line for labels: "delays 10: 400 ns, 20: 800 ns; cache 8M/16 ways a node; transfer 500/2000 ns".
    pub label: String,
    /// The node of each vCPU.
    pub cpu_nodes: Vec<NodeId>,
    /// Nodes with memory, ascending.
    pub memory_nodes: Vec<NodeId>,
}

/// Makes the plugin's configuration for a guest.
///
/// # Errors
/// When no delays are asked for, when a pair or distance is named that the guest does not have, or when a delay is out
/// of range.
pub fn setup(design: &Design, asked: &DelaySpec, plugin: &Path) -> Result<DelaySetup, LabError> {
    let refuse = |problem: String| LabError::Design(format!("--delay: {problem}"));
    let DelaySpec::On(asked) = asked else {
        return Err(refuse("no delays are asked for".to_owned()));
    };
    let memory: BTreeSet<NodeId> = design.memory_map.iter().map(|range| range.node).collect();
    let cpus: BTreeSet<NodeId> = design.cpu_nodes.iter().copied().collect();
    let matrix = Matrix::new(asked, &design.hardware.distances, &cpus, &memory).map_err(refuse)?;
    let transfer = asked.transfer();
    let label = format!(
        "delays {matrix}; cache {} ways a node; transfer {}/{} ns",
        asked.cache, transfer.same_ns, transfer.other_ns
    );
    Ok(DelaySetup {
        plugin: plugin.to_owned(),
        config: config(design, asked, &matrix),
        label,
        cpu_nodes: design.cpu_nodes.clone(),
        memory_nodes: memory.into_iter().collect(),
    })
}

/// The text that the plugin reads; docs/delays.md has the format.
fn config(design: &Design, asked: &Asked, matrix: &Matrix) -> String {
    let mut text = "nearfar-delay 1\ncpus".to_owned();
    // Writing to a string cannot fail.
    for node in &design.cpu_nodes {
        let _ = write!(text, " {}", node.0);
    }
    for range in &design.memory_map {
        let _ = write!(
            text,
            "\nmemory {} {} {}",
            range.start, range.bytes, range.node.0
        );
    }
    let _ = write!(text, "\ncache {} {}", asked.cache.bytes, asked.cache.ways);
    for ((from, to), ns) in matrix.pairs() {
        let _ = write!(text, "\ndelay {} {} {ns}", from.0, to.0);
    }
    let transfer = asked.transfer();
    let _ = writeln!(
        text,
        "\ntransfer {} {}",
        transfer.same_ns, transfer.other_ns
    );
    text
}
