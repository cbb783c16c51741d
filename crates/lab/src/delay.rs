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
//! format of the text in it, both written down in docs/delay-plugin.md.

mod region;
mod spec;
mod transfers;

pub(crate) use region::Doorbells;
pub use region::{ByNode, Counts, DelayRegion, VcpuCounts};
pub use spec::{Asked, DelayError, DelaySpec, DelaySpecError, TimeSpec};
pub use transfers::{TransferAnswer, TransferRow, TransferTable};

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nearfar_machine::{
    Delays, Distance, LineDelay, MAX_DELAY_NS, NodeDelay, NodeId, PairDelay, SimulatedTime,
};

use crate::advice::Installer;
use crate::design::Design;
use crate::design::hardware::{Device, Hardware};
use crate::error::LabError;
use crate::qemu::{self, PLUGINS_SINCE, Qemu};

/// Picoseconds of an instruction where nothing else is known of the machine: two a nanosecond.
const INSTRUCTION_PS: u32 = 500;
/// How far a vCPU may be ahead of another while no line passes between vCPUs. Each turn of a vCPU takes the host microseconds.
const WIDE_WINDOW_NS: u32 = 1000;

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
    /// Nodes with CPUs or memory, ascending; none without delays.
    pub nodes: Vec<NodeId>,
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
        config: "nearfar-delay 3\ncpus".to_owned(),
        delays: None,
        time,
        controllers: 0,
        cpu_nodes: design.cpu_nodes.clone(),
        nodes: Vec::new(),
    };
    let asked = match asked {
        DelaySpec::Off => None,
        DelaySpec::On(asked) => Some(asked.on(time.is_some(), design.timing.as_ref())),
    };
    let config = &mut setup.config;
    let nodes = listed(design.cpu_nodes.iter().map(|node| node.0));
    // Writing to a string cannot fail.
    let _ = writeln!(config, " {nodes}");
    if let Some(time) = &mut setup.time {
        let asked = asked.as_ref();
        let window_ns = time
            .window_ns
            .unwrap_or_else(|| narrow_window_ns(design, asked.map(Asked::transfer)));
        if time.window_ns.replace(window_ns).is_none() {
            // Without delays it is not known when lines pass.
            time.wide_window_ns = asked.map(|_| WIDE_WINDOW_NS);
        }
        let own = design.timing.as_ref().and_then(|it| it.instruction_ps);
        let speed = *time
            .instruction_ps
            .get_or_insert(own.unwrap_or(INSTRUCTION_PS));
        let [window, wide] =
            [window_ns, time.wide_window_ns.unwrap_or(window_ns)].map(|ns| u64::from(ns) * 1000);
        let (seed, jumps) = (time.seed, u8::from(time.jumps_when_idle));
        let disk = time.disk_ns.unwrap_or(0);
        let _ = writeln!(config, "time {speed} {window} {wide} {seed} {jumps} {disk}");
    }
    if let Some(asked) = &asked {
        let cpus: BTreeSet<NodeId> = design.cpu_nodes.iter().copied().collect();
        let delays = Delays {
            pairs: pairs(asked, &design.hardware, &cpus, &memory)?,
            cache: asked.cache(),
            transfer: asked.transfer(),
            bandwidth: asked.bandwidth(),
            device: asked.device,
        };
        let limits = delays.bandwidth;
        if time.is_none() && (limits.memory_mb_per_s.or(limits.link_mb_per_s)).is_some() {
            return Err(DelayError::NeedsSimulatedTime);
        }
        write_delays(config, design, &delays);
        if let Some(delay) = delays.device {
            write_doorbell_delays(config, design, delay);
            setup.controllers = most_controllers(design);
        }
        setup.delays = Some(delays);
        setup.nodes = cpus.union(&memory).copied().collect();
    }
    Ok(setup)
}

/// How far a vCPU may be ahead of another while lines pass between vCPUs, where that is not asked for: a vCPU that waits for a line of
/// another sees it so much too late at most.
fn narrow_window_ns(design: &Design, transfer: Option<LineDelay>) -> u32 {
    /// Shorter than what programs wait for each other where lines cost nothing, such as a held lock.
    const LONGEST: u32 = 200;
    let all = transfer.iter().flat_map(|transfer| {
        let by_distance = transfer.by_distance.iter().map(|it| it.ns);
        let by_class = transfer.by_class().into_iter().chain(by_distance);
        by_class.chain(within_core_ns(design, transfer))
    });
    let shortest = all.filter(|ns| *ns > 0).min();
    shortest.map_or(LONGEST, |ns| (ns / 2).clamp(1, LONGEST))
}

/// The lines of memory that the plugin reads; docs/delay-plugin.md has the format.
fn write_delays(text: &mut String, design: &Design, delays: &Delays) {
    for range in &design.memory_map {
        let (start, bytes, node) = (range.start, range.bytes, range.node.0);
        let _ = writeln!(text, "memory {start} {bytes} {node}");
    }
    // One a node where the plugin has no room for more: a line's word has a bit for each.
    const MAX_CACHES: usize = 49;
    let has_room = |caches: &&Vec<usize>| caches.iter().all(|&number| number < MAX_CACHES);
    if let Some(caches) = design.cpu_caches.as_ref().filter(has_room) {
        let _ = writeln!(text, "caches {}", listed(caches.iter()));
    }
    let cache = delays.cache;
    let (bytes, ways, hit_ns) = (cache.bytes, cache.ways, cache.hit_ns);
    let _ = writeln!(text, "cache {bytes} {ways} {hit_ns}");
    for pair in &delays.pairs {
        let (from, to, ns) = (pair.cpu_node.0, pair.memory_node.0, pair.delay_ns);
        let _ = writeln!(text, "delay {from} {to} {ns}");
    }
    let [cache, same, other] = delays.transfer.by_class();
    let _ = writeln!(text, "transfer {cache} {same} {other}");
    if let Some(ns) = within_core_ns(design, &delays.transfer) {
        let threads = design.hardware.topology.threads;
        let cores = (0..design.cpu_nodes.len()).map(|cpu| cpu / threads);
        let _ = writeln!(text, "transfer_core {ns} {}", listed(cores));
    }
    for ((to, from), ns) in transfers_by_distance(design, &delays.transfer) {
        let _ = writeln!(text, "transfer_pair {} {} {ns}", to.0, from.0);
    }
    if delays.transfer.home_ns > 0 {
        let _ = writeln!(text, "transfer_home {}", delays.transfer.home_ns);
    }
    for (node, package) in packages(design) {
        let _ = writeln!(text, "package {} {package}", node.0);
    }
    write_bandwidth(text, delays);
}

/// With spaces between.
fn listed(numbers: impl Iterator<Item: ToString>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    numbers.join(" ")
}

/// What a line takes within a core, where the guest has cores of several threads.
fn within_core_ns(design: &Design, transfer: &LineDelay) -> Option<u32> {
    let has_threads = design.hardware.topology.threads > 1;
    transfer.same_core_ns.filter(|_| has_threads)
}

/// The package of each node with CPUs; none where they are unknown, or all nodes are of one.
fn packages(design: &Design) -> BTreeMap<NodeId, usize> {
    let known = design.cpu_packages.iter().flatten().copied();
    let packages: BTreeMap<NodeId, usize> = design.cpu_nodes.iter().copied().zip(known).collect();
    match packages.values().all(|package| *package == 0) {
        true => BTreeMap::new(),
        false => packages,
    }
}

/// The lines of what carries so much and not more.
fn write_bandwidth(text: &mut String, delays: &Delays) {
    const LINE_BYTES: u64 = 64;
    let limits = delays.bandwidth;
    // Bytes by megabytes a second are microseconds.
    let line_ps = |mb: u32| (LINE_BYTES * 1_000_000 / u64::from(mb)).max(1);
    if let Some(mb) = limits.memory_mb_per_s {
        let nodes: BTreeSet<NodeId> = delays.pairs.iter().map(|pair| pair.memory_node).collect();
        for node in nodes {
            let _ = writeln!(text, "bandwidth {} {}", node.0, line_ps(mb));
        }
    }
    if let Some(mb) = limits.link_mb_per_s {
        let _ = writeln!(text, "link {}", line_ps(mb));
    }
    let near = delays.pairs.iter().filter(|pair| pair.is_local());
    let near: Vec<u64> = near.map(|pair| pair.delay_ns.into()).collect();
    if let Some(mb) = limits.stream_mb_per_s.filter(|_| !near.is_empty()) {
        // As many lines at once as give this bandwidth at the latency of near memory (Little's law); the nodes' differ a little.
        let sum = near.iter().sum::<u64>();
        let thousandths = u64::from(mb) * sum / (LINE_BYTES * near.len() as u64);
        let _ = writeln!(text, "stream {}", thousandths.clamp(1000, 1_000_000));
    }
}

/// What a line takes to a node from another one with CPUs, where that depends on the distance.
fn transfers_by_distance(design: &Design, transfer: &LineDelay) -> Vec<((NodeId, NodeId), u32)> {
    let nodes: BTreeSet<NodeId> = design.cpu_nodes.iter().copied().collect();
    let pairs = nodes
        .iter()
        .flat_map(|&to| nodes.iter().map(move |&from| (to, from)));
    let pairs: Vec<_> = pairs.filter(|(to, from)| to != from).collect();
    let distance = |&(to, from): &_| design.hardware.distance(to, from);
    let nearest = pairs.iter().map(distance).min();
    let nearest = nearest.filter(|_| transfer.by_node.is_by_distance);
    let ns = |distance| {
        let in_proportion = |nearest| in_proportion(transfer.by_node, distance, nearest);
        transfer.at(distance).or(nearest.map(in_proportion))
    };
    let with_ns = pairs.iter().map(|pair| Some((*pair, ns(distance(pair))?)));
    with_ns.flatten().collect()
}

/// The delay between nodes at a distance, where the least distance between two nodes is `nearest`.
fn in_proportion(delay: NodeDelay, distance: Distance, nearest: Distance) -> u32 {
    let scaled =
        f64::from(delay.other_node_ns) * f64::from(distance.0) / f64::from(nearest.0.max(1));
    scaled.round().min(f64::from(MAX_DELAY_NS)) as u32
}

/// The delay of far memory with which an access to it takes `ratio` times as long as one to near memory, when near memory
/// is delayed by `near_ns` and emulation adds `base_ns` to both: `ratio x (near + base) - base`.
pub fn far_for_ratio(near_ns: f64, base_ns: f64, ratio: f64) -> f64 {
    (ratio * (near_ns + base_ns) - base_ns).max(0.0)
}

/// The delay of every pair of a node with CPUs and a node with memory. What was not asked for is derived.
fn pairs(
    asked: &Asked,
    hardware: &Hardware,
    cpus: &BTreeSet<NodeId>,
    memory: &BTreeSet<NodeId>,
) -> Result<Vec<PairDelay>, DelayError> {
    let mut pairs = Vec::new();
    for &cpu_node in cpus {
        for &memory_node in memory {
            let distance = hardware.distance(cpu_node, memory_node);
            let known = known_ns(asked, cpu_node, memory_node, distance);
            pairs.push(PairDelay {
                cpu_node,
                memory_node,
                distance,
                delay_ns: known.map_or_else(|| derived_ns(asked, distance), Ok)?,
                is_estimate: known.is_none() && !asked.own.latencies.is_empty(),
            });
        }
    }
    let known: BTreeSet<u32> = pairs.iter().map(|pair| pair.distance.0).collect();
    let transfer = asked.transfer.iter();
    let of_lines = transfer.flat_map(|it| it.by_distance.iter().map(|it| it.distance));
    for wanted in asked.distances.iter().map(|it| it.0).chain(of_lines) {
        if !known.contains(&wanted.0) {
            let known = known.into_iter().collect();
            return Err(DelayError::UnknownDistance { wanted, known });
        }
    }
    let nodes: BTreeSet<NodeId> = cpus.union(memory).copied().collect();
    for (from, to, _) in &asked.pairs {
        if let Some(node) = [from, to].into_iter().find(|node| !nodes.contains(node)) {
            return Err(DelayError::UnknownNode(*node));
        }
    }
    Ok(pairs)
}

/// What is asked for, or the machine's own.
fn known_ns(asked: &Asked, from: NodeId, to: NodeId, distance: Distance) -> Option<u32> {
    let mut pairs = asked.pairs.iter().rev();
    let pair = pairs.find(|(one, other, _)| (*one, *other) == (from, to));
    let by_distance = || {
        let mut distances = asked.distances.iter().rev();
        distances.find(|(asked, _)| *asked == distance)
    };
    let by_side = || match from == to {
        true => asked.near_ns,
        false => asked.far_ns,
    };
    pair.map(|(.., ns)| *ns)
        .or_else(|| by_distance().map(|(_, ns)| *ns))
        .or_else(by_side)
        .or_else(|| asked.own.latency_ns(from, to))
}

fn derived_ns(asked: &Asked, distance: Distance) -> Result<u32, DelayError> {
    let derived = asked.derived_ns(distance).round();
    match derived <= f64::from(MAX_DELAY_NS) {
        true => Ok(derived as u32),
        false => Err(DelayError::TooLong {
            scale: asked.scale(),
            delay_ns: derived,
            distance,
        }),
    }
}

/// Appends the delay of every pair of a node with CPUs and any node: a host bridge may be plugged in later.
fn write_doorbell_delays(config: &mut String, design: &Design, delay: NodeDelay) {
    let cpus: BTreeSet<NodeId> = design.cpu_nodes.iter().copied().collect();
    let devices: BTreeSet<NodeId> = design.spare_ports.iter().filter_map(|it| it.node).collect();
    let pairs = cpus.iter().flat_map(|&from| {
        (0..design.hardware.nodes.len() as u32).map(move |to| (from, NodeId(to)))
    });
    let distance = |from, to| design.hardware.distance(from, to);
    let others = cpus
        .iter()
        .flat_map(|from| devices.iter().map(move |to| (*from, *to)));
    let others = others.filter(|(from, to)| from != to);
    let nearest = others.map(|(from, to)| distance(from, to)).min();
    let nearest = nearest.unwrap_or(Distance::REMOTE);
    for (from, to) in pairs {
        let ns = match (from == to, delay.is_by_distance) {
            (true, _) => delay.same_node_ns,
            (false, false) => delay.other_node_ns,
            (false, true) => in_proportion(delay, distance(from, to), nearest),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(config, "device {} {} {ns}", from.0, to.0);
    }
}

/// All controllers of a guest, with one at each spare port and behind each spare host bridge.
fn most_controllers(design: &Design) -> usize {
    let devices = design.hardware.bridges.iter().flat_map(|it| &it.devices);
    let controllers = devices.filter(|device| matches!(device, Device::Nvme { .. }));
    controllers.count() + design.spare_ports.len() + design.spare_host_bridges().len()
}

const PLUGIN_FILE: &str = "libnearfar_lab_delay.so";

/// Finds the plugin next to the running program, in the build folder above it, or in `../lib/nearfar`.
///
/// # Errors
/// When this QEMU loads no plugins of our interface, or when the file is nowhere; both say what to do.
pub fn find_plugin(qemu: &Qemu) -> Result<PathBuf, LabError> {
    if !qemu.plugins {
        let command = Installer::of_system().newer_qemu(qemu.arch);
        let command = command.map(|command| format!(" (run: {command})"));
        return Err(LabError::Missing {
            what: format!("plugin support in QEMU {}", qemu.version_text()),
            hint: format!(
                "delays need QEMU {} or later, built with plugins{}, or --delay off",
                qemu::dotted(PLUGINS_SINCE),
                command.unwrap_or_default()
            ),
        });
    }
    let program = env::current_exe();
    let program =
        program.map_err(|error| LabError::system("finding the running program", error))?;
    let places = places(&program);
    let found = places.iter().find(|place| place.is_file()).cloned();
    found.ok_or_else(|| {
        let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        LabError::Missing {
            what: format!("the delay plugin {PLUGIN_FILE}"),
            hint: format!(
                "build it with: cargo build -p nearfar-lab-delay (looked for {}), or use --delay off",
                places.join(", ")
            ),
        }
    })
}

/// Where a program looks for it: test programs are in `deps` or `examples` below the build folder.
fn places(program: &Path) -> Vec<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("."));
    let above = folder.parent();
    let mut places = vec![folder.join(PLUGIN_FILE)];
    if folder.ends_with("deps") || folder.ends_with("examples") {
        places.extend(above.map(|above| above.join(PLUGIN_FILE)));
    }
    places.extend(above.map(|above| above.join("lib/nearfar").join(PLUGIN_FILE)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_is_looked_for_beside_the_program_and_in_the_library_folder() {
        let found = places(Path::new("/usr/bin/nearfar"));
        assert_eq!(
            found,
            [
                Path::new("/usr/bin").join(PLUGIN_FILE),
                Path::new("/usr/lib/nearfar").join(PLUGIN_FILE)
            ]
        );
    }

    #[test]
    fn a_test_program_finds_the_plugin_of_its_build() {
        assert!(
            places(Path::new("/t/debug/deps/guest-1"))
                .contains(&Path::new("/t/debug").join(PLUGIN_FILE))
        );
    }
}
