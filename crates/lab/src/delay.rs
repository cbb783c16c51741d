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
mod time;

pub use counts::{Counts, Misses, VcpuCounts};
pub(crate) use doorbell::Doorbells;
pub use error::{DelayError, DelaySpecError};
pub use matrix::far_for_ratio;
pub use plugin::find_plugin;
pub use region::DelayRegion;
pub use spec::{Asked, DelaySpec};
pub use stored::spec_of;
pub use time::{TimeSpec, TimeSpecError};

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nearfar_machine::{Delays, Distance, NodeDelay, NodeId, PairDelay, SimulatedTime};

use crate::design::Design;

/// The plugin with its configuration for one guest.
#[derive(Clone, PartialEq, Debug)]
pub struct DelaySetup {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The configuration, as the plugin reads it.
    pub config: String,
    /// The same, for the description of the guest; `None` where all memory is equally fast.
    pub delays: Option<Delays>,
    /// `None` for the host's time.
    pub time: Option<SimulatedTime>,
    /// The node of each vCPU.
    pub cpu_nodes: Vec<NodeId>,
    /// Nodes with memory, ascending; none without delays.
    pub memory_nodes: Vec<NodeId>,
    /// The most NVMe controllers the guest can have whose doorbell writes are delayed; 0 without delays of devices.
    pub controllers: usize,
}

/// Makes the plugin's configuration for a guest.
///
/// # Errors
/// When a pair or distance is named that the guest does not have, or when a delay is out of range.
pub fn setup(
    design: &Design,
    asked: &DelaySpec,
    time: Option<SimulatedTime>,
    plugin: &Path,
) -> Result<DelaySetup, DelayError> {
    let memory: BTreeSet<NodeId> = design.memory_map.iter().map(|range| range.node).collect();
    let mut setup = DelaySetup {
        plugin: plugin.to_owned(),
        config: "nearfar-delay 1\ncpus".to_owned(),
        delays: None,
        time,
        controllers: 0,
        cpu_nodes: design.cpu_nodes.clone(),
        memory_nodes: Vec::new(),
    };
    let config = &mut setup.config;
    // Writing to a string cannot fail.
    for node in &design.cpu_nodes {
        let _ = write!(config, " {}", node.0);
    }
    config.push('\n');
    if let Some(time) = time {
        let (speed, window) = (time.instruction_ps, u64::from(time.window_ns) * 1000);
        let (seed, jumps) = (time.seed, u8::from(time.jumps_when_idle));
        let disk = time.disk_ns.unwrap_or(0);
        let _ = writeln!(config, "time {speed} {window} {seed} {jumps} {disk}");
    }
    if let DelaySpec::On(asked) = asked {
        let asked = &asked.with_scale(time.is_some());
        let cpus: BTreeSet<NodeId> = design.cpu_nodes.iter().copied().collect();
        let delays = Delays {
            pairs: matrix::pairs(asked, &design.hardware.distances, &cpus, &memory)?,
            cache: asked.cache,
            transfer: asked.transfer(),
            device: asked.device,
        };
        write_delays(config, design, &delays);
        if let Some(delay) = delays.device {
            doorbell::write_delays(config, design, delay);
            setup.controllers = doorbell::most_controllers(design);
        }
        setup.delays = Some(delays);
        setup.memory_nodes = memory.into_iter().collect();
    }
    Ok(setup)
}

/// The lines of memory that the plugin reads; docs/delays.md has the format.
fn write_delays(text: &mut String, design: &Design, delays: &Delays) {
    for range in &design.memory_map {
        let (start, bytes, node) = (range.start, range.bytes, range.node.0);
        let _ = writeln!(text, "memory {start} {bytes} {node}");
    }
    let _ = writeln!(text, "cache {} {}", delays.cache.bytes, delays.cache.ways);
    for pair in &delays.pairs {
        let (from, to, ns) = (pair.cpu_node.0, pair.memory_node.0, pair.delay_ns);
        let _ = writeln!(text, "delay {from} {to} {ns}");
    }
    let transfer = delays.transfer;
    let (same, other) = (transfer.same_node_ns, transfer.other_node_ns);
    let _ = writeln!(text, "transfer {same} {other}");
    for (pair, ns) in transfers_by_distance(delays) {
        let (from, to) = (pair.cpu_node.0, pair.memory_node.0);
        let _ = writeln!(text, "transfer_pair {from} {to} {ns}");
    }
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
