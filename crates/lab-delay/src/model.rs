// SPDX-License-Identifier: GPL-2.0-or-later
//! What the guest's caches would hold, shared by all vCPUs.
//!
//! Every step is a relaxed atomic operation. Two vCPUs that touch the same set or line at the same instant may make the
//! model forget a line (it then costs a miss more); nothing waits for anything, as a vCPU's thread may be off the host's
//! CPUs for long.

pub mod cache;
pub mod doorbell;
pub mod lines;
pub mod memory;
pub mod ownership;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::config::{Config, LINE_BYTES};
use cache::Cache;
use lines::{Lines, LinesError};
use memory::{Memory, Spot};
use ownership::{Accessor, Cost, Word};

/// A vCPU's place in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub vcpu: u16,
    /// Its node's position among the nodes with CPUs.
    pub node: usize,
    pub node_number: u32,
}

/// What became of an access.
#[derive(Clone, Copy, Debug)]
pub struct Touched<'a> {
    /// What it costs.
    pub cost: Cost,
    /// The line's word, and what the access left in it.
    pub word: &'a AtomicU64,
    /// See above.
    pub left: Word,
    /// The line's word before the access.
    pub before: Word,
}

/// Caches, lines and costs.
#[derive(Debug)]
pub struct Model {
    places: Vec<Place>,
    memory: Memory,
    caches: Vec<Cache>,
    lines: Lines,
    delays: Vec<Vec<u32>>,
    transfer_same: u32,
    /// By the vCPU's node and the node that has the line, both by position.
    transfers_other: Vec<Vec<u32>>,
    /// Nanoseconds by (node of the vCPU, node of the device).
    devices: BTreeMap<(u32, u32), u32>,
}

impl Model {
    /// A model with empty caches.
    ///
    /// # Errors
    /// When the host has no room for the table of lines.
    pub fn new(config: &Config) -> Result<Self, LinesError> {
        let mut nodes: Vec<u32> = config.cpus.clone();
        nodes.sort_unstable();
        nodes.dedup();
        let memory = Memory::new(&config.memory);
        let place = |(vcpu, &node): (u16, &u32)| Place {
            vcpu,
            node: nodes.binary_search(&node).unwrap_or(0),
            node_number: node,
        };
        let delay = |from: u32, to: u32| config.delays.get(&(from, to)).copied().unwrap_or(0);
        let row = |&from: &u32| memory.nodes().iter().map(|&to| delay(from, to)).collect();
        let transfer = |from: u32, to: u32| {
            let own = config.transfer_pairs.get(&(from, to)).copied();
            own.unwrap_or(config.transfer_other)
        };
        let transfers = |&from: &u32| nodes.iter().map(|&to| transfer(from, to)).collect();
        let sets = (config.cache_bytes / LINE_BYTES / u64::from(config.cache_ways)) as usize;
        Ok(Self {
            places: (0..).zip(&config.cpus).map(place).collect(),
            caches: nodes
                .iter()
                .map(|_| Cache::new(sets, config.cache_ways as usize))
                .collect(),
            lines: Lines::new(memory.lines())?,
            delays: nodes.iter().map(row).collect(),
            transfer_same: config.transfer_same,
            transfers_other: nodes.iter().map(transfers).collect(),
            devices: config.devices.clone(),
            memory,
        })
    }

    /// The place of each vCPU.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Nodes with memory, ascending.
    pub fn memory_nodes(&self) -> &[u32] {
        self.memory.nodes()
    }

    /// The line at a guest physical address; `None` for what is not the guest's memory.
    pub fn spot(&self, physical: u64) -> Option<Spot> {
        self.memory.spot(physical)
    }

    /// Lets a vCPU load from or store to a line.
    pub fn touch(&self, place: Place, line: u32, write: bool) -> Touched<'_> {
        let touch = self.caches[place.node].touch(line);
        if let Some(evicted) = touch.evicted {
            let _ = self
                .lines
                .word(evicted)
                .fetch_update(Relaxed, Relaxed, |word| {
                    Some(Word(word).without(place.node).0)
                });
        }
        let word = self.lines.word(line);
        loop {
            let old = Word(word.load(Relaxed));
            let writer = old
                .writer()
                .and_then(|vcpu| self.places.get(usize::from(vcpu)));
            let accessor = Accessor {
                vcpu: place.vcpu,
                node: place.node,
                present: touch.hit,
                with_writer: writer.is_some_and(|writer| writer.node == place.node),
            };
            let (cost, left) = if write {
                ownership::write(old, accessor)
            } else {
                ownership::read(old, accessor)
            };
            if left == old
                || word
                    .compare_exchange_weak(old.0, left.0, Relaxed, Relaxed)
                    .is_ok()
            {
                return Touched {
                    cost,
                    word,
                    left,
                    before: old,
                };
            }
        }
    }

    /// The nanoseconds of a doorbell write to a device of a node.
    pub fn device_nanoseconds(&self, place: Place, device: u32) -> u32 {
        let pair = (place.node_number, device);
        self.devices.get(&pair).copied().unwrap_or(0)
    }

    /// The nanoseconds of a cost, for a line of the memory node at a position, whose word was `before`. A line of several other nodes
    /// is waited for until the last of them has answered.
    pub fn nanoseconds(&self, place: Place, cost: Cost, memory: usize, before: Word) -> u32 {
        match cost {
            Cost::Hit => 0,
            Cost::Memory => self.delays[place.node][memory],
            Cost::TransferSame => self.transfer_same,
            Cost::TransferOther => {
                let row = self.transfers_other[place.node].iter().enumerate();
                let has_copy = |&(node, _): &(usize, &u32)| node != place.node && before.at(node);
                row.filter(has_copy).map(|(_, &ns)| ns).max().unwrap_or(0)
            }
        }
    }
}
