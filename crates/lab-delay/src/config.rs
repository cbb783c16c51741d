// SPDX-License-Identifier: GPL-2.0-or-later
//! What the plugin is told: the guest's CPUs and memory by node, and what an access costs.
//!
//! ```text
//! nearfar-delay 1
//! cpus 0 0 1 1                the node of each vCPU, by its number
//! memory 0 268435456 0        first guest physical address, bytes, node; ascending
//! memory 268435456 268435456 1
//! cache 8388608 16            last-level cache of a node: bytes, ways
//! delay 0 1 800               from the CPUs of a node, to the memory of a node, nanoseconds; every pair once
//! transfer 500 2000           of a line another vCPU wrote: from the same node, from another node, nanoseconds
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Bytes of a cache line. Power has 128; modelling it with two halves changes nothing for random accesses.
pub const LINE_BYTES: u64 = 64;
/// Nodes with CPUs a line's word has room for.
pub const MOST_CPU_NODES: usize = 50;
/// vCPUs a line's word has room for.
pub const MOST_VCPUS: usize = 4094;
/// The longest delay that is taken for meant.
pub const MOST_NS: u32 = 1_000_000;

/// A part of the guest's physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its node.
    pub node: u32,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The node of each vCPU.
    pub cpus: Vec<u32>,
    /// Memory, ascending, without overlaps.
    pub memory: Vec<Range>,
    /// Bytes of a node's last-level cache.
    pub cache_bytes: u64,
    /// Its ways.
    pub cache_ways: u32,
    /// Nanoseconds by (node of the vCPU, node of the memory).
    pub delays: BTreeMap<(u32, u32), u32>,
    /// Nanoseconds for a line from another vCPU of the same node.
    pub transfer_same: u32,
    /// Nanoseconds for a line from another node.
    pub transfer_other: u32,
}

/// A configuration that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// Line, from 1; 0 for what the whole lacks.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "delay configuration: {}", self.problem),
            line => write!(f, "delay configuration, line {line}: {}", self.problem),
        }
    }
}

impl std::error::Error for ConfigError {}

impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut draft = Draft::default();
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().unwrap_or((0, ""));
        if first != "nearfar-delay 1" {
            return Err(ConfigError {
                line: 1,
                problem: format!("{first:?} is not \"nearfar-delay 1\""),
            });
        }
        for (number, line) in lines {
            draft.line(line).map_err(|problem| ConfigError {
                line: number + 1,
                problem,
            })?;
        }
        draft
            .finish()
            .map_err(|problem| ConfigError { line: 0, problem })
    }
}

#[derive(Default)]
struct Draft {
    cpus: Option<Vec<u32>>,
    memory: Vec<Range>,
    cache: Option<(u64, u32)>,
    delays: BTreeMap<(u32, u32), u32>,
    transfer: Option<(u32, u32)>,
}

impl Draft {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            "cpus" => set(
                &mut self.cpus,
                key,
                rest.split(' ').map(number).collect::<Result<_, _>>()?,
            ),
            "memory" => {
                let [start, bytes, node] = numbers(rest)?;
                self.range(Range {
                    start,
                    bytes,
                    node: narrow(node)?,
                })
            }
            "cache" => {
                let [bytes, ways] = numbers(rest)?;
                set(&mut self.cache, key, (bytes, narrow(ways)?))
            }
            "delay" => {
                let [from, to, ns] = numbers(rest)?;
                match self
                    .delays
                    .insert((narrow(from)?, narrow(to)?), nanoseconds(ns)?)
                {
                    None => Ok(()),
                    Some(_) => Err(format!("nodes {from} to {to} a second time")),
                }
            }
            "transfer" => {
                let [same, other] = numbers(rest)?;
                set(
                    &mut self.transfer,
                    key,
                    (nanoseconds(same)?, nanoseconds(other)?),
                )
            }
            other => Err(format!(
                "{other:?} is not cpus, memory, cache, delay or transfer"
            )),
        }
    }

    fn range(&mut self, range: Range) -> Result<(), String> {
        if range.bytes == 0 || (range.start | range.bytes) & (LINE_BYTES - 1) != 0 {
            return Err(format!(
                "start and bytes must be multiples of {LINE_BYTES}, bytes not 0"
            ));
        }
        let Some(end) = range.start.checked_add(range.bytes) else {
            return Err("it ends beyond 64 bits".to_owned());
        };
        match self.memory.last() {
            Some(last) if range.start < last.start + last.bytes => Err(format!(
                "{:#x} to {end:#x} overlaps or precedes the line before",
                range.start
            )),
            _ => {
                self.memory.push(range);
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<Config, String> {
        let cpus = self.cpus.ok_or("there is no line \"cpus\"")?;
        let (cache_bytes, cache_ways) = self.cache.ok_or("there is no line \"cache\"")?;
        let (transfer_same, transfer_other) =
            self.transfer.ok_or("there is no line \"transfer\"")?;
        if self.memory.is_empty() {
            return Err("there is no line \"memory\"".to_owned());
        }
        let nodes: BTreeSet<u32> = cpus.iter().copied().collect();
        if cpus.len() > MOST_VCPUS || nodes.len() > MOST_CPU_NODES {
            return Err(format!(
                "more than {MOST_VCPUS} vCPUs or {MOST_CPU_NODES} nodes with vCPUs"
            ));
        }
        let lines = self
            .memory
            .iter()
            .try_fold(0u64, |sum, range| sum.checked_add(range.bytes / LINE_BYTES));
        if lines.is_none_or(|lines| lines >= u64::from(u32::MAX)) {
            return Err("256 GiB of memory or more".to_owned());
        }
        if cache_ways == 0
            || cache_ways > 64
            || cache_bytes / LINE_BYTES < u64::from(cache_ways)
            || cache_bytes > 1 << 32
        {
            return Err(format!(
                "a cache of {cache_bytes} bytes and {cache_ways} ways (1 to 64; at most 4 GiB)"
            ));
        }
        for &from in &nodes {
            for range in &self.memory {
                if !self.delays.contains_key(&(from, range.node)) {
                    return Err(format!("no delay from node {from} to node {}", range.node));
                }
            }
        }
        let (memory, delays) = (self.memory, self.delays);
        Ok(Config {
            cpus,
            memory,
            cache_bytes,
            cache_ways,
            delays,
            transfer_same,
            transfer_other,
        })
    }
}

fn set<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} a second time")),
    }
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    // FromStr takes a plus sign; one way to write a number is enough.
    match word.starts_with('+') {
        false => word
            .parse()
            .map_err(|_| format!("{word:?} is not a number of the right size")),
        true => Err(format!("{word:?} has a sign")),
    }
}

fn numbers<const N: usize>(text: &str) -> Result<[u64; N], String> {
    let all: Vec<u64> = text.split(' ').map(number).collect::<Result<_, _>>()?;
    let found = all.len();
    all.try_into()
        .map_err(|_| format!("{N} numbers expected, {found} found"))
}

fn narrow(value: u64) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| format!("{value} is too large"))
}

fn nanoseconds(value: u64) -> Result<u32, String> {
    match narrow(value) {
        Ok(ns) if ns <= MOST_NS => Ok(ns),
        _ => Err(format!("{value} ns is more than {MOST_NS}")),
    }
}
