//! Delays of far memory: what is asked for, the plugin's configuration, the plugin's counts.
//!
//! ```text
//!  --delay ──► DelaySpec ─┐
//!                         ├─ setup ──► DelaySetup ─ start ──► DelayRegion ──► QEMU (the plugin maps its descriptor)
//!              Design ────┘                                   │ open, close: the gate
//!                                                             └ counts: while the guest runs, and after
//! ```
//!
//! The plugin is a program of its own licence; it and this module share nothing but the layout of the region and the
//! format of the text in it, both written down in docs/delays.md.

mod counts;
mod doorbell;
mod error;
mod matrix;
mod plugin;
mod region;
mod spec;
mod stored;

pub use counts::{Counts, Misses, VcpuCounts};
pub(crate) use doorbell::Doorbells;
pub use error::{DelayError, DelaySpecError};
pub use matrix::far_for_ratio;
pub use plugin::find_plugin;
pub use region::DelayRegion;
pub use spec::{Asked, DelaySpec};
pub use stored::spec_of;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nearfar_machine::{Delays, Distance, NodeDelay, NodeId, PairDelay};

use crate::design::Design;

/// The plugin with its configuration for one guest.
#[derive(Clone, PartialEq, Debug)]
pub struct DelaySetup {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The configuration, as the plugin reads it.
    pub config: String,
    /// The same, for the description of the guest.
    pub delays: Delays,
    /// The node of each vCPU.
    pub cpu_nodes: Vec<NodeId>,
    /// Nodes with memory, ascending.
    pub memory_nodes: Vec<NodeId>,
    /// The most NVMe controllers the guest can have whose doorbell writes are delayed; 0 without delays of devices.
    pub controllers: usize,
}

/// Makes the plugin's configuration for a guest.
///
/// # Errors
/// When no delays are asked for, when a pair or distance is named that the guest does not have, or when a delay is out
/// of range.
pub fn setup(design: &Design, asked: &DelaySpec, plugin: &Path) -> Result<DelaySetup, DelayError> {
    let DelaySpec::On(asked) = asked else {
        return Err(DelayError::Off);
    };
    let memory: BTreeSet<NodeId> = design.memory_map.iter().map(|range| range.node).collect();
    let cpus: BTreeSet<NodeId> = design.cpu_nodes.iter().copied().collect();
    let delays = Delays {
        pairs: matrix::pairs(asked, &design.hardware.distances, &cpus, &memory)?,
        cache: asked.cache,
        transfer: asked.transfer(),
        device: asked.device,
    };
    let mut config = config(design, &delays);
    let controllers = delays.device.map_or(0, |delay| {
        doorbell::write_delays(&mut config, design, delay);
        doorbell::most_controllers(design)
    });
    Ok(DelaySetup {
        plugin: plugin.to_owned(),
        config,
        delays,
        controllers,
        cpu_nodes: design.cpu_nodes.clone(),
        memory_nodes: memory.into_iter().collect(),
    })
}

/// The text that the plugin reads; docs/delays.md has the format.
fn config(design: &Design, delays: &Delays) -> String {
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
    let _ = write!(text, "\ncache {} {}", delays.cache.bytes, delays.cache.ways);
    for pair in &delays.pairs {
        let _ = write!(
            text,
            "\ndelay {} {} {}",
            pair.cpu_node.0, pair.memory_node.0, pair.delay_ns
        );
    }
    let transfer = delays.transfer;
    let _ = writeln!(
        text,
        "\ntransfer {} {}",
        transfer.same_node_ns, transfer.other_node_ns
    );
    for (pair, ns) in transfers_by_distance(delays) {
        let _ = writeln!(
            text,
            "transfer_pair {} {} {ns}",
            pair.cpu_node.0, pair.memory_node.0
        );
    }
    text
}

/// What a line from each other node takes, where that depends on the distance.
fn transfers_by_distance(delays: &Delays) -> Vec<(&PairDelay, u32)> {
    let others = || {
        let pairs = delays.pairs.iter();
        pairs.filter(|pair| pair.cpu_node != pair.memory_node)
    };
    let nearest = others().map(|pair| pair.distance).min();
    let Some(nearest) = nearest.filter(|_| delays.transfer.is_by_distance) else {
        return Vec::new();
    };
    let with_ns = |pair: &'_ PairDelay| in_proportion(delays.transfer, pair.distance, nearest);
    others().map(|pair| (pair, with_ns(pair))).collect()
}

/// The delay between nodes at a distance, where the least distance between two nodes is `nearest`.
fn in_proportion(delay: NodeDelay, distance: Distance, nearest: Distance) -> u32 {
    let scaled =
        f64::from(delay.other_node_ns) * f64::from(distance.0) / f64::from(nearest.0.max(1));
    scaled.round().min(f64::from(spec::MAX_DELAY_NS)) as u32
}
