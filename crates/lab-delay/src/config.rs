// SPDX-License-Identifier: GPL-2.0-or-later
//! The plugin's configuration: CPUs and memory by node, and what an access costs.
//!
//! ```text
//! nearfar-delay 3
//! cpus 0 0 1 1                the node of each vCPU, by its number
//! caches 0 1 2 2              the last-level cache of each vCPU; optional: one a node
//! memory 0 268435456 0        first guest physical address, bytes, node; ascending
//! memory 268435456 268435456 1
//! cache 8388608 16 20         a last-level cache: bytes, ways, nanoseconds of a hit
//! delay 0 1 800               from the CPUs of a node, to the memory of a node, nanoseconds; every pair once
//! transfer 100 500 2000       of a line another vCPU wrote: of the same cache, of another of the node, of another node, nanoseconds
//! transfer_core 8 0 0 1 1      of a line another vCPU of the core wrote, nanoseconds; the core of each vCPU; optional: each has its own
//! transfer_pair 0 1 4000      of a line of node 1 to a vCPU of node 0, nanoseconds; optional
//! transfer_home 60             more of a line from a cache of another package whose memory is not of that package, nanoseconds; optional
//! package 0 0                  node 0 is of package 0; optional, also for some nodes only
//! bandwidth 0 3200             the memory of node 0 is busy for so many picoseconds a line; optional, with time
//! link 6400                    what carries lines from a package to another, or from a node to another where there are no packages, is busy
//!                              for so many; optional, with time
//! stream 8000                 lines of a sequential stream that are on their way at once, in thousandths; optional
//! device 0 1 30000            of a doorbell write of a vCPU of node 0 to a device of node 1, nanoseconds; optional
//! time 500 62000 200000 0 0 20000   simulated time: picoseconds an instruction, window and wide window in picoseconds, seed,
//!                             1 if it jumps when all vCPUs are idle, nanoseconds that a disk takes for a request; optional
//! ```
//!
//! With `time`, there may be no line of memory; then accesses cost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use thiserror::Error;

/// Bytes of a cache line. Power has 128; modelling it with two halves changes nothing for random accesses.
pub const LINE_BYTES: u64 = 64;
/// A line's word has a bit for each last-level cache.
pub const MAX_CACHES: usize = 49;
/// A line's word holds the number of a vCPU.
pub const MAX_VCPUS: usize = 4094;
/// The longest delay, in nanoseconds: a millisecond.
pub const MAX_DELAY_NS: u32 = 1_000_000;

/// A part of the guest's physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First guest physical address.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Node number.
    pub node: u32,
}

/// Simulated time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeConfig {
    pub ps_per_instruction: u64,
    /// How far a vCPU may be ahead of another while lines pass between vCPUs.
    pub window_ps: u64,
    /// The same while none does.
    pub wide_window_ps: u64,
    /// Chooses which vCPU is first among equals.
    pub seed: u64,
    /// Whether time jumps to the next timer while all vCPUs are idle.
    pub jumps_when_idle: bool,
    /// What an emulated disk takes for a request; 0 if it answers at once.
    pub disk_ps: u64,
}

/// A whole configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The node of each vCPU.
    pub cpus: Vec<u32>,
    /// The last-level cache of each vCPU, counted from 0.
    pub caches: Vec<usize>,
    /// Memory, ascending, without overlaps.
    pub memory: Vec<Range>,
    /// Size of a last-level cache.
    pub cache_bytes: u64,
    /// Associativity of that cache.
    pub cache_ways: u32,
    /// Nanoseconds of an access that the cache answers.
    pub cache_hit: u32,
    /// Nanoseconds by (node of the vCPU, node of the memory).
    pub delays: BTreeMap<(u32, u32), u32>,
    /// Nanoseconds for a line from another vCPU.
    pub transfer: Transfer,
    /// The core of each vCPU.
    pub cores: Vec<u32>,
    /// The same by (node of the vCPU, node that has the line), for pairs that have their own.
    pub transfer_pairs: BTreeMap<(u32, u32), u32>,
    /// Nanoseconds more of a line from a cache of another package whose memory is not of that package.
    pub transfer_home: u32,
    /// The package of each node that has a known one.
    pub packages: BTreeMap<u32, u32>,
    /// Nanoseconds for a doorbell write by (node of the vCPU, node of the device).
    pub devices: BTreeMap<(u32, u32), u32>,
    /// Picoseconds that a line occupies a node's memory, for those that have a limit.
    pub bandwidth: BTreeMap<u32, u32>,
    /// Picoseconds that a line occupies what carries it from a package to another, or from a node to another where no packages are known.
    pub link: Option<u32>,
    /// Thousandths of the lines of a sequential stream that are on their way at once; at least 1000.
    pub stream_thousandths: u32,
    /// `None` for the host's time.
    pub time: Option<TimeConfig>,
}

/// Nanoseconds for a line from another vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Transfer {
    /// Of another vCPU of the core.
    pub same_core: u32,
    pub same_cache: u32,
    /// Of another last-level cache of the node.
    pub same_node: u32,
    pub other_node: u32,
}

impl Config {
    /// Whether accesses to memory are looked at.
    pub fn has_memory(&self) -> bool {
        !self.memory.is_empty()
    }
}

/// A configuration that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// A line is wrong.
    #[error("delay configuration, line {line}: {fault}")]
    Line {
        /// From 1.
        line: usize,
        fault: LineFault,
    },
    /// There is no line with this key.
    #[error("delay configuration: there is no line {0:?}")]
    Missing(&'static str),
    /// There is no delay for a pair of nodes.
    #[error("delay configuration: no delay from node {from} to node {to}")]
    MissingDelay {
        /// The node of the vCPU.
        from: u32,
        /// The node of the memory.
        to: u32,
    },
    /// More vCPUs or nodes than a line's word has room for.
    #[error("delay configuration: more than {MAX_VCPUS} vCPUs or {MAX_CACHES} last-level caches")]
    TooManyVcpus,
    /// Not one cache for each vCPU, or one without a vCPU.
    #[error("delay configuration: the caches are not one for each vCPU, counted from 0")]
    Caches,
    /// Not one core for each vCPU.
    #[error("delay configuration: the cores are not one for each vCPU")]
    Cores,
    /// What only simulated time has.
    #[error("delay configuration: bandwidth and links need simulated time")]
    NoTime,
    /// More memory than lines can be counted in.
    #[error("delay configuration: 256 GiB of memory or more")]
    TooMuchMemory,
    /// The cache cannot be modelled.
    #[error(
        "delay configuration: a cache of {bytes} bytes and {ways} ways (1 to 64; at most 4 GiB)"
    )]
    Cache {
        /// Its size.
        bytes: u64,
        /// Its associativity.
        ways: u32,
    },
}

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LineFault {
    /// The first line is not the format's name and version.
    #[error("{0:?} is not \"nearfar-delay 3\"")]
    Format(String),
    /// An unknown key.
    #[error(
        "{0:?} is not cpus, caches, memory, cache, delay, transfer, transfer_core, transfer_pair, transfer_home, package, bandwidth, link, stream, device or time"
    )]
    Key(String),
    /// A key that may be there once.
    #[error("{0} a second time")]
    Repeated(String),
    /// A pair of nodes that has a delay already.
    #[error("nodes {from} to {to} a second time")]
    RepeatedDelay {
        /// The node of the vCPU.
        from: u64,
        /// The node of the memory.
        to: u64,
    },
    /// A word that is not a number, or too large.
    #[error("{0:?} is not a number of the right size")]
    Number(String),
    /// A number with a plus sign.
    #[error("{0:?} has a sign")]
    Sign(String),
    /// Too few or too many numbers.
    #[error("{wanted} numbers expected, {found} found")]
    Count {
        /// How many the key has.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// A number that does not fit 32 bits.
    #[error("{0} is too large")]
    TooLarge(u64),
    /// A delay above [`MAX_DELAY_NS`].
    #[error("{0} ns is more than {MAX_DELAY_NS}")]
    Delay(u64),
    /// A range that does not consist of whole lines.
    #[error("start and bytes must be multiples of {LINE_BYTES}, bytes not 0")]
    Alignment,
    /// A range that ends beyond the address space.
    #[error("it ends beyond 64 bits")]
    Overflow,
    /// A range that overlaps the one before, or precedes it.
    #[error("{start:#x} to {end:#x} overlaps or precedes the line before")]
    Order {
        /// First address.
        start: u64,
        /// First address behind it.
        end: u64,
    },
}

impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut draft = Draft::default();
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().unwrap_or((0, ""));
        if first != "nearfar-delay 3" {
            let fault = LineFault::Format(first.to_owned());
            return Err(ConfigError::Line { line: 1, fault });
        }
        for (number, line) in lines {
            draft.line(line).map_err(|fault| ConfigError::Line {
                line: number + 1,
                fault,
            })?;
        }
        draft.finish()
    }
}

#[derive(Default)]
struct Draft {
    cpus: Option<Vec<u32>>,
    caches: Option<Vec<usize>>,
    memory: Vec<Range>,
    cache: Option<(u64, u32, u32)>,
    delays: BTreeMap<(u32, u32), u32>,
    transfer: Option<Transfer>,
    cores: Option<(u32, Vec<u32>)>,
    transfer_pairs: BTreeMap<(u32, u32), u32>,
    transfer_home: Option<u32>,
    packages: BTreeMap<u32, u32>,
    devices: BTreeMap<(u32, u32), u32>,
    bandwidth: BTreeMap<u32, u32>,
    link: Option<u32>,
    stream: Option<u32>,
    time: Option<TimeConfig>,
}

impl Draft {
    fn line(&mut self, line: &str) -> Result<(), LineFault> {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            "cpus" => set(&mut self.cpus, key, list(rest)?),
            "caches" => set(&mut self.caches, key, list(rest)?),
            "memory" => {
                let [start, bytes, node] = numbers(rest)?;
                self.range(Range {
                    start,
                    bytes,
                    node: narrow(node)?,
                })
            }
            "cache" => {
                let [bytes, ways, hit] = numbers(rest)?;
                let cache = (bytes, narrow(ways)?, nanoseconds(hit)?);
                set(&mut self.cache, key, cache)
            }
            "delay" => pair(&mut self.delays, rest),
            "transfer_pair" => pair(&mut self.transfer_pairs, rest),
            "transfer_home" => {
                let [ns] = numbers(rest)?;
                set(&mut self.transfer_home, key, nanoseconds(ns)?)
            }
            "package" => {
                let [node, package] = numbers(rest)?;
                one_a_node(&mut self.packages, key, node, narrow(package)?)
            }
            "device" => pair(&mut self.devices, rest),
            "link" => {
                let [ps] = numbers(rest)?;
                set(&mut self.link, key, picoseconds(ps)?)
            }
            "transfer" => {
                let [same_cache, same_node, other_node] = numbers(rest)?;
                let transfer = Transfer {
                    same_core: 0,
                    same_cache: nanoseconds(same_cache)?,
                    same_node: nanoseconds(same_node)?,
                    other_node: nanoseconds(other_node)?,
                };
                set(&mut self.transfer, key, transfer)
            }
            "transfer_core" => {
                let (ns, cores) = rest.split_once(' ').unwrap_or((rest, ""));
                let cores = (nanoseconds(number(ns)?)?, list(cores)?);
                set(&mut self.cores, key, cores)
            }
            "bandwidth" => {
                let [node, ps] = numbers(rest)?;
                one_a_node(&mut self.bandwidth, key, node, picoseconds(ps)?)
            }
            "stream" => {
                let [thousandths] = numbers(rest)?;
                let thousandths = Some(thousandths).filter(|it| (1000..=1_000_000).contains(it));
                let thousandths = thousandths.ok_or_else(|| LineFault::Number(rest.to_owned()))?;
                set(&mut self.stream, key, narrow(thousandths)?)
            }
            "time" => {
                let [
                    ps_per_instruction,
                    window_ps,
                    wide_window_ps,
                    seed,
                    jumps,
                    disk_ns,
                ] = numbers(rest)?;
                let time = TimeConfig {
                    ps_per_instruction: picoseconds(ps_per_instruction)?.into(),
                    window_ps,
                    wide_window_ps: wide_window_ps.max(window_ps),
                    seed,
                    jumps_when_idle: jumps != 0,
                    disk_ps: u64::from(narrow(disk_ns)?) * 1000,
                };
                set(&mut self.time, key, time)
            }
            other => Err(LineFault::Key(other.to_owned())),
        }
    }

    fn range(&mut self, range: Range) -> Result<(), LineFault> {
        if range.bytes == 0 || (range.start | range.bytes) & (LINE_BYTES - 1) != 0 {
            return Err(LineFault::Alignment);
        }
        let Some(end) = range.start.checked_add(range.bytes) else {
            return Err(LineFault::Overflow);
        };
        match self.memory.last() {
            Some(last) if range.start < last.start + last.bytes => Err(LineFault::Order {
                start: range.start,
                end,
            }),
            _ => {
                self.memory.push(range);
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<Config, ConfigError> {
        let cpus = self.cpus.ok_or(ConfigError::Missing("cpus"))?;
        let is_without_memory = self.memory.is_empty() && self.time.is_some();
        let (cache_bytes, cache_ways, cache_hit) = match self.cache {
            None if is_without_memory => (LINE_BYTES, 1, 0),
            cache => cache.ok_or(ConfigError::Missing("cache"))?,
        };
        let mut transfer = match self.transfer {
            None if is_without_memory => Transfer::default(),
            transfer => transfer.ok_or(ConfigError::Missing("transfer"))?,
        };
        if self.memory.is_empty() && self.time.is_none() {
            return Err(ConfigError::Missing("memory"));
        }
        if self.time.is_none() && !(self.bandwidth.is_empty() && self.link.is_none()) {
            return Err(ConfigError::NoTime);
        }
        let nodes: BTreeSet<u32> = cpus.iter().copied().collect();
        let place = |node: &u32| nodes.iter().position(|it| it == node);
        let one_a_node = || cpus.iter().filter_map(place).collect();
        let caches: Vec<usize> = self.caches.unwrap_or_else(one_a_node);
        let most = caches.iter().max().map_or(0, |most| most + 1);
        if cpus.len() > MAX_VCPUS || most > MAX_CACHES {
            return Err(ConfigError::TooManyVcpus);
        }
        let numbers: BTreeSet<_> = caches.iter().collect();
        if caches.len() != cpus.len() || numbers.len() != most {
            return Err(ConfigError::Caches);
        }
        let one_each = || (0, (0..cpus.len() as u32).collect());
        let (same_core, cores) = self.cores.unwrap_or_else(one_each);
        if cores.len() != cpus.len() {
            return Err(ConfigError::Cores);
        }
        transfer.same_core = same_core;
        let lines = self
            .memory
            .iter()
            .try_fold(0u64, |sum, range| sum.checked_add(range.bytes / LINE_BYTES));
        if lines.is_none_or(|lines| lines >= u64::from(u32::MAX)) {
            return Err(ConfigError::TooMuchMemory);
        }
        if cache_ways == 0
            || cache_ways > 64
            || cache_bytes / LINE_BYTES < u64::from(cache_ways)
            || cache_bytes > 1 << 32
        {
            return Err(ConfigError::Cache {
                bytes: cache_bytes,
                ways: cache_ways,
            });
        }
        for &from in &nodes {
            for range in &self.memory {
                if !self.delays.contains_key(&(from, range.node)) {
                    return Err(ConfigError::MissingDelay {
                        from,
                        to: range.node,
                    });
                }
            }
        }
        let (memory, delays) = (self.memory, self.delays);
        Ok(Config {
            cpus,
            caches,
            memory,
            cache_bytes,
            cache_ways,
            cache_hit,
            delays,
            transfer,
            cores,
            transfer_pairs: self.transfer_pairs,
            transfer_home: self.transfer_home.unwrap_or(0),
            packages: self.packages,
            devices: self.devices,
            bandwidth: self.bandwidth,
            link: self.link,
            stream_thousandths: self.stream.unwrap_or(1000),
            time: self.time,
        })
    }
}

/// Two nodes and the nanoseconds between them.
fn pair(pairs: &mut BTreeMap<(u32, u32), u32>, rest: &str) -> Result<(), LineFault> {
    let [from, to, time] = numbers(rest)?;
    match pairs.insert((narrow(from)?, narrow(to)?), nanoseconds(time)?) {
        None => Ok(()),
        Some(_) => Err(LineFault::RepeatedDelay { from, to }),
    }
}

fn one_a_node(
    nodes: &mut BTreeMap<u32, u32>,
    key: &str,
    node: u64,
    value: u32,
) -> Result<(), LineFault> {
    match nodes.insert(narrow(node)?, value) {
        None => Ok(()),
        Some(_) => Err(LineFault::Repeated(format!("{key} {node}"))),
    }
}

/// From a picosecond to a microsecond, of an instruction or a line.
fn picoseconds(ps: u64) -> Result<u32, LineFault> {
    match ps {
        1..=1_000_000 => narrow(ps),
        _ => Err(LineFault::Number(ps.to_string())),
    }
}

fn set<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<(), LineFault> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(LineFault::Repeated(key.to_owned())),
    }
}

fn number<T: FromStr>(word: &str) -> Result<T, LineFault> {
    // FromStr takes a plus sign; one way to write a number is enough.
    match word.starts_with('+') {
        false => word.parse().map_err(|_| LineFault::Number(word.to_owned())),
        true => Err(LineFault::Sign(word.to_owned())),
    }
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, LineFault> {
    text.split(' ').map(number).collect()
}

fn numbers<const N: usize>(text: &str) -> Result<[u64; N], LineFault> {
    let all: Vec<u64> = text.split(' ').map(number).collect::<Result<_, _>>()?;
    let found = all.len();
    all.try_into()
        .map_err(|_| LineFault::Count { wanted: N, found })
}

fn narrow(value: u64) -> Result<u32, LineFault> {
    u32::try_from(value).map_err(|_| LineFault::TooLarge(value))
}

fn nanoseconds(value: u64) -> Result<u32, LineFault> {
    match narrow(value) {
        Ok(ns) if ns <= MAX_DELAY_NS => Ok(ns),
        _ => Err(LineFault::Delay(value)),
    }
}
