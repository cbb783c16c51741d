//! What an emulated machine consists of.
//!
//! ```text
//! Emulation
//! ├─ Guest   machine, scale, kernel, architecture, acceleration
//! │          delays: by pair of nodes, cache model, line transfers
//! └─ Label   a text, from a file that an older nearfar wrote
//! ```
//!
//! A guest of the lab finds it as JSON in its `/proc/cmdline`, after `nearfar.lab=`. The label that tables print is made
//! from it here and nowhere else.
//!
//! In JSON it is the label, and the guest's fields where they are known.
//!
//! ```text
//! {"label": "two-node as a guest: ...", "machine": "two-node", "kernel": "6.12.9", ...}
//! {"label": "two-node as a guest: ..."}        only the label is known
//! "two-node as a guest: ..."                   read, not written: what an older nearfar wrote
//! ```
//!
//! The label of a guest is for readers of the JSON; it is not read back.

mod text;

use std::fmt;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{Distance, NodeId};
use crate::size;
pub use text::{DelayFault, MAX_DELAY_NS, delay_digits, delay_nanoseconds, delay_of, megabytes};

/// What makes a machine an emulated one. Every figure measured on such a machine carries it. `Display` gives the label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Emulation {
    /// A guest of the lab.
    Guest(Box<EmulatedGuest>),
    /// Only the label is known.
    Label(String),
}

/// A guest of the lab.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EmulatedGuest {
    /// Name of the emulated machine: of the gallery, or of the file that describes it.
    pub machine: String,
    /// What each node of that machine was cut down to.
    #[serde(default, skip_serializing_if = "NodeLimits::is_empty")]
    pub node_limits: NodeLimits,
    /// Kernel release.
    pub kernel: String,
    /// Words that the user added to the kernel's command line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_arguments: Vec<String>,
    /// As `uname -m` says it.
    pub architecture: String,
    pub acceleration: Acceleration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// Delays of memory accesses; `None` where all memory is equally fast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delays: Option<Delays>,
    /// The time that the guest's clocks follow while a command runs; `None` for the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_time: Option<SimulatedTime>,
}

/// Time that passes with the instructions a guest executes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SimulatedTime {
    /// Picoseconds that each instruction of a CPU takes; `None` until it is known what the machine's take.
    pub instruction_ps: Option<u32>,
    /// Nanoseconds that a CPU may be ahead of another while lines pass between CPUs; `None` until it is known how soon another CPU's line
    /// arrives.
    pub window_ns: Option<u32>,
    /// The same while no line does; `None` where that is no different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wide_window_ns: Option<u32>,
    /// Chooses which CPU is first among equals.
    pub seed: u64,
    /// Whether time jumps to the next timer while all CPUs are idle, instead of passing at the host's speed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jumps_when_idle: bool,
    /// Nanoseconds that an emulated disk takes for a request; `None` where it is the host's disk, which answers when it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_ns: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceleration {
    /// On the host's CPUs.
    Kvm,
    /// In software, by QEMU's translator.
    Tcg,
}

/// The delays that the lab's plugin adds to memory accesses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Delays {
    /// Every pair of a node with CPUs and a node with memory.
    pub pairs: Vec<PairDelay>,
    /// Each last-level cache.
    pub cache: CacheModel,
    /// Lines that another CPU has written.
    pub transfer: LineDelay,
    /// How much memory and links carry.
    #[serde(default, skip_serializing_if = "Bandwidth::is_unlimited")]
    pub bandwidth: Bandwidth,
    /// Writes to the submission doorbells of NVMe controllers, by the nodes of the CPU and of the controller. A stand-in for remote
    /// devices: hardware does not wait for such a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<NodeDelay>,
}

/// The delay of an access that misses the cache model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PairDelay {
    pub cpu_node: NodeId,
    pub memory_node: NodeId,
    /// The distance between them.
    pub distance: Distance,
    pub delay_ns: u32,
    /// Whether it follows from the distance on a machine that has figures of its own, but not for this pair.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_estimate: bool,
}

impl PairDelay {
    pub fn is_local(&self) -> bool {
        self.cpu_node == self.memory_node
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheModel {
    /// Its size.
    pub bytes: u64,
    pub ways: u32,
    /// Nanoseconds of an access that it answers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hit_ns: u32,
}

fn is_zero(ns: &u32) -> bool {
    *ns == 0
}

/// The delay of a line that another CPU has written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineDelay {
    /// From the other hardware thread of the core; `None` as from another core of the last-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_core_ns: Option<u32>,
    /// From a CPU of the same last-level cache; `None` as from another cache of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_cache_ns: Option<u32>,
    #[serde(flatten)]
    pub by_node: NodeDelay,
    /// From another node by its distance, ascending; a distance that is not among them takes what the nearest of them takes. Empty
    /// where `by_node` says it for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_distance: Vec<DistanceDelay>,
    /// Nanoseconds more of a line from a cache of another package whose memory is not of that package: the memory's node is asked first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub home_ns: u32,
}

/// The delay between two nodes at a distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DistanceDelay {
    pub distance: Distance,
    pub ns: u32,
}

/// As from another cache of the node.
impl From<NodeDelay> for LineDelay {
    fn from(by_node: NodeDelay) -> Self {
        Self {
            same_core_ns: None,
            same_cache_ns: None,
            by_node,
            by_distance: Vec::new(),
            home_ns: 0,
        }
    }
}

/// Limits in megabytes (10^6) a second; `None` for none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Of each node's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb_per_s: Option<u32>,
    /// From a package to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_mb_per_s: Option<u32>,
    /// What one CPU reads of a sequential stream in its own node's memory; without it, it waits for each line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_mb_per_s: Option<u32>,
}

/// A delay within a node and between nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeDelay {
    /// Between a CPU and a CPU or device of the same node.
    pub same_node_ns: u32,
    /// Between nodes.
    pub other_node_ns: u32,
    /// Whether `other_node_ns` is for the nearest other node, and others take longer in proportion to their distance.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_by_distance: bool,
}

impl Bandwidth {
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// These limits, and those of `other` that are missing here.
    pub fn or(self, other: Self) -> Self {
        Self {
            memory_mb_per_s: self.memory_mb_per_s.or(other.memory_mb_per_s),
            link_mb_per_s: self.link_mb_per_s.or(other.link_mb_per_s),
            stream_mb_per_s: self.stream_mb_per_s.or(other.stream_mb_per_s),
        }
    }
}

impl LineDelay {
    /// Between nodes at a distance, where each distance has a delay of its own.
    pub fn at(&self, distance: Distance) -> Option<u32> {
        let all = self.by_distance.iter();
        let nearest = all.min_by_key(|it| it.distance.0.abs_diff(distance.0));
        nearest.map(|it| it.ns)
    }

    /// Nanoseconds from another core of the same last-level cache, of another one of the node, of another node.
    pub fn by_class(&self) -> [u32; 3] {
        let same_node_ns = self.by_node.same_node_ns;
        let same_cache_ns = self.same_cache_ns.unwrap_or(same_node_ns);
        [same_cache_ns, same_node_ns, self.by_node.other_node_ns]
    }
}

impl Emulation {
    /// The guest; `None` where only a label is known.
    pub fn guest(&self) -> Option<&EmulatedGuest> {
        match self {
            Self::Guest(guest) => Some(guest),
            Self::Label(_) => None,
        }
    }

    /// Whether its clocks follow the instructions that it executes.
    pub fn is_simulated(&self) -> bool {
        self.guest()
            .is_some_and(|guest| guest.simulated_time.is_some())
    }

    /// The delays, where they are known.
    pub fn delays(&self) -> Option<&Delays> {
        self.guest()?.delays.as_ref()
    }
}

impl From<EmulatedGuest> for Emulation {
    fn from(guest: EmulatedGuest) -> Self {
        Self::Guest(Box::new(guest))
    }
}

/// The keys of the object. All but the label are those of [`EmulatedGuest`].
#[derive(Deserialize)]
struct Fields {
    label: Option<String>,
    machine: Option<String>,
    #[serde(default)]
    node_limits: NodeLimits,
    kernel: Option<String>,
    #[serde(default)]
    kernel_arguments: Vec<String>,
    architecture: Option<String>,
    acceleration: Option<Acceleration>,
    qemu: Option<String>,
    delays: Option<Delays>,
    simulated_time: Option<SimulatedTime>,
}

impl Serialize for Emulation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            label: String,
            #[serde(flatten)]
            guest: Option<&'a EmulatedGuest>,
        }
        Written {
            label: self.to_string(),
            guest: self.guest(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Emulation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrObject)
    }
}

struct TextOrObject;

impl<'de> Visitor<'de> for TextOrObject {
    type Value = Emulation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an emulated machine's label or description")
    }

    fn visit_str<E: Error>(self, label: &str) -> Result<Emulation, E> {
        Ok(Emulation::Label(label.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Emulation, A::Error> {
        Fields::deserialize(MapAccessDeserializer::new(map))?.emulation()
    }
}

impl Fields {
    fn emulation<E: Error>(self) -> Result<Emulation, E> {
        if let (Some(label), None) = (&self.label, &self.machine) {
            return Ok(Emulation::Label(label.clone()));
        }
        let missing = E::missing_field;
        Ok(Emulation::from(EmulatedGuest {
            machine: self.machine.ok_or_else(|| missing("machine"))?,
            node_limits: self.node_limits,
            kernel: self.kernel.ok_or_else(|| missing("kernel"))?,
            kernel_arguments: self.kernel_arguments,
            architecture: self.architecture.ok_or_else(|| missing("architecture"))?,
            acceleration: self.acceleration.ok_or_else(|| missing("acceleration"))?,
            qemu: self.qemu,
            delays: self.delays,
            simulated_time: self.simulated_time,
        }))
    }
}

/// Less memory boots no kernel.
const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// What nodes are cut down to. A node without CPUs or without memory stays without.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NodeLimits {
    /// The most CPUs that a node keeps; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The memory of a node that has memory; `None` for its own size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{part:?} {fault}; write cpus=2, memory=512M or both with a comma")]
pub struct NodeLimitsError {
    /// The part between commas.
    pub part: String,
    /// What is wrong with it.
    pub fault: &'static str,
}

impl NodeLimits {
    /// Whether nodes keep all they have.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, part: &str) -> Result<(), &'static str> {
        let is_repeated = match part.split_once('=') {
            Some(("cpus", count)) => {
                let count = count.parse().ok().filter(|&count: &u32| count > 0);
                let count = count.ok_or("is not a count of CPUs above 0")?;
                self.cpus.replace(count).is_some()
            }
            Some(("memory", text)) => {
                let bytes = size::parse(text, 1).filter(|&bytes| bytes >= MIN_MEMORY_BYTES);
                let bytes = bytes.ok_or("is not a size of at least 1M")?;
                self.memory_bytes.replace(bytes).is_some()
            }
            _ => return Err("is not a limit of a node"),
        };
        match is_repeated {
            true => Err("is there twice"),
            false => Ok(()),
        }
    }
}

/// `cpus=2,memory=512M`.
impl fmt::Display for NodeLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.cpus.map(|cpus| format!("cpus={cpus}"));
        let memory = self
            .memory_bytes
            .map(|bytes| format!("memory={}", size::render(bytes)));
        let parts: Vec<String> = cpus.into_iter().chain(memory).collect();
        f.write_str(&parts.join(","))
    }
}

/// `cpus=2,memory=512M`, either part alone, in any order. Sizes take K, M, G or T, powers of 1024.
impl FromStr for NodeLimits {
    type Err = NodeLimitsError;

    fn from_str(text: &str) -> Result<Self, NodeLimitsError> {
        let mut limits = Self::default();
        for part in text.split(',').map(str::trim) {
            limits.add(part).map_err(|fault| NodeLimitsError {
                part: part.to_owned(),
                fault,
            })?;
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod samples {
    use super::*;

    pub fn delays() -> Delays {
        let pair = |(cpu, memory, distance, delay_ns)| PairDelay {
            cpu_node: NodeId(cpu),
            memory_node: NodeId(memory),
            distance: Distance(distance),
            delay_ns,
            is_estimate: false,
        };
        let pairs = [
            (0, 0, 10, 400),
            (0, 1, 20, 800),
            (1, 0, 20, 800),
            (1, 1, 10, 400),
        ];
        Delays {
            pairs: pairs.map(pair).into(),
            cache: CacheModel {
                bytes: 8 << 20,
                ways: 16,
                hit_ns: 0,
            },
            transfer: NodeDelay {
                same_node_ns: 500,
                other_node_ns: 2000,
                is_by_distance: false,
            }
            .into(),
            bandwidth: Bandwidth::default(),
            device: None,
        }
    }

    pub fn guest() -> EmulatedGuest {
        EmulatedGuest {
            machine: "two-node".to_owned(),
            node_limits: NodeLimits {
                cpus: Some(2),
                memory_bytes: Some(512 << 20),
            },
            kernel: "6.12.9".to_owned(),
            kernel_arguments: vec!["numa=fake=2".to_owned()],
            architecture: "x86_64".to_owned(),
            acceleration: Acceleration::Tcg,
            qemu: Some("10.0.2".to_owned()),
            delays: Some(delays()),
            simulated_time: None,
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn read(text: &str) -> serde_json::Result<Emulation> {
        serde_json::from_str(text)
    }

    #[test]
    fn an_emulation_reads_back_as_it_was_written() {
        let label = Emulation::Label("two-node as a guest".to_owned());
        for emulation in [Emulation::from(samples::guest()), label] {
            let text = serde_json::to_string(&emulation).unwrap();
            assert_eq!(read(&text).unwrap(), emulation, "{text}");
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["label"], emulation.to_string());
        }
    }

    #[test]
    fn a_string_is_a_label() {
        let label = Emulation::Label("x, 10: 400 ns".to_owned());
        assert_eq!(read("\"x, 10: 400 ns\"").unwrap(), label);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (text, part) in [
            (r#"{"machine": "m"}"#, "missing field `kernel`"),
            (r#"{}"#, "missing field `machine`"),
            (
                r#"{"machine": 1}"#,
                "invalid type: integer `1`, expected a string",
            ),
            (
                r#"{"machine": "m", "acceleration": "xen"}"#,
                "unknown variant `xen`",
            ),
            ("7", "expected an emulated machine's label or description"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    fn limits(text: &str) -> Result<NodeLimits, NodeLimitsError> {
        text.parse()
    }

    #[test]
    fn limits_are_read_in_any_order() {
        let wanted = |cpus, memory_bytes| Ok(NodeLimits { cpus, memory_bytes });
        assert_eq!(
            limits("cpus=2,memory=512M"),
            wanted(Some(2), Some(512 << 20))
        );
        assert_eq!(
            limits("memory=256M, cpus=1"),
            wanted(Some(1), Some(256 << 20))
        );
        assert_eq!(limits("memory=1G"), wanted(None, Some(1 << 30)));
    }

    #[test]
    fn limits_read_back_as_they_are_written() {
        for text in [
            "cpus=2,memory=512M",
            "cpus=1",
            "memory=1G",
            "memory=1537K",
            "memory=1048577",
            "memory=3T",
        ] {
            assert_eq!(
                limits(text).map(|limits| limits.to_string()).as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn the_part_that_is_wrong_is_named() {
        for (text, part, fault) in [
            ("", "", "is not a limit of a node"),
            ("cpus", "cpus", "is not a limit of a node"),
            ("nodes=2", "nodes=2", "is not a limit of a node"),
            ("cpus=0", "cpus=0", "is not a count of CPUs above 0"),
            ("cpus=two", "cpus=two", "is not a count of CPUs above 0"),
            (
                "cpus=2;memory=1G",
                "cpus=2;memory=1G",
                "is not a count of CPUs above 0",
            ),
            ("cpus=2,cpus=3", "cpus=3", "is there twice"),
            ("memory=512", "memory=512", "is not a size of at least 1M"),
            (
                "memory=99999999999G",
                "memory=99999999999G",
                "is not a size of at least 1M",
            ),
        ] {
            let part = part.to_owned();
            assert_eq!(limits(text), Err(NodeLimitsError { part, fault }));
        }
    }
}
