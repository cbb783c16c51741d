// SPDX-License-Identifier: GPL-2.0-or-later
//! What the guest's caches would hold, shared by all vCPUs.
//!
//! Every step is a relaxed atomic operation. Two vCPUs that touch the same set or line at the same instant may make the
//! model forget a line (it then costs a miss more); nothing waits for anything, as a vCPU's thread may be off the host's
//! CPUs for long.

pub mod channel;
pub mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::config::{Config, LINE_BYTES};
use crate::model::channel::{BANKS_PS, Channel, Links, Stores};
use crate::model::lines::{Accessor, Cache, Cost, Lines, LinesError, Memory, Spot, Word};

/// A vCPU's place in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub vcpu: u16,
    pub core: u32,
    /// Its last-level cache.
    pub cache: usize,
    /// Its node's position.
    pub node: usize,
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
    /// The position of the node whose memory got a line back from the cache.
    pub written_back: Option<usize>,
}

/// What an access takes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Price {
    pub ps: u64,
    /// The part of it that it waits for others that use the memory or the link.
    pub wait_ps: u64,
    /// The position of the node of the other cache that the line comes from.
    pub from: Option<usize>,
}

/// Caches, lines and costs.
#[derive(Debug)]
pub struct Model {
    /// Numbers of the nodes with CPUs or memory, ascending. A position is one among these.
    nodes: Vec<u32>,
    places: Vec<Place>,
    memory: Memory,
    caches: Vec<Cache>,
    /// The node of each cache; one of them, where it is of several.
    cache_nodes: Vec<usize>,
    lines: Lines,
    hit_ps: u64,
    /// Picoseconds, by the vCPU's node and the memory's.
    delays: Vec<Vec<u64>>,
    transfer_core_ps: u64,
    transfer_same_ps: u64,
    /// Picoseconds, by the vCPU's cache and the cache that has the line.
    transfers_other: Vec<Vec<u64>>,
    transfer_home_ps: u64,
    /// The package of each node, where it is known.
    packages: Vec<Option<u32>>,
    /// Nanoseconds by the numbers of (node of the vCPU, node of the device).
    devices: BTreeMap<(u32, u32), u32>,
    /// The memory of each node.
    channels: Vec<Option<Channel>>,
    links: Links,
    stream_thousandths: u64,
    stores: Stores,
}

impl Model {
    /// A model with empty caches.
    ///
    /// # Errors
    /// When the host has no room for the table of lines.
    pub fn new(config: &Config) -> Result<Self, LinesError> {
        let nodes = config.memory.iter().map(|range| range.node);
        let nodes: BTreeSet<u32> = nodes.chain(config.cpus.iter().copied()).collect();
        let nodes = Vec::from_iter(nodes);
        let position = |node| nodes.binary_search(&node).unwrap_or(0);
        let memory = Memory::new(&config.memory, position);
        let place = |(vcpu, ((&node, &cache), &core)): (u16, ((&u32, &usize), &u32))| Place {
            vcpu,
            core,
            cache,
            node: position(node),
        };
        let cpus = config.cpus.iter().zip(&config.caches).zip(&config.cores);
        let places: Vec<Place> = (0..).zip(cpus).map(place).collect();
        let mut cache_nodes = vec![0; config.caches.iter().max().map_or(0, |most| most + 1)];
        for place in &places {
            cache_nodes[place.cache] = place.node;
        }
        let ps = |ns: u32| u64::from(ns) * 1000;
        let delay = |from: u32, to: u32| config.delays.get(&(from, to)).copied().map_or(0, ps);
        let row = |&from: &u32| nodes.iter().map(|&to| delay(from, to)).collect();
        let transfer = |from: usize, to: usize| match from == to {
            true => ps(config.transfer.same_node),
            false => {
                let own = config.transfer_pairs.get(&(nodes[from], nodes[to]));
                ps(own.copied().unwrap_or(config.transfer.other_node))
            }
        };
        let transfers = |&from: &usize| cache_nodes.iter().map(|&to| transfer(from, to)).collect();
        let sets = (config.cache_bytes / LINE_BYTES / u64::from(config.cache_ways)) as usize;
        let window_ps = config.time.map_or(0, |time| time.wide_window_ps);
        let channel = |&ps: &u32| Channel::new(ps.into(), BANKS_PS, window_ps);
        let channels = nodes
            .iter()
            .map(|node| config.bandwidth.get(node).map(channel));
        let packages = nodes.iter().map(|node| config.packages.get(node).copied());
        let packages = Vec::from_iter(packages);
        Ok(Self {
            caches: cache_nodes
                .iter()
                .map(|_| Cache::new(sets, config.cache_ways as usize))
                .collect(),
            lines: Lines::new(memory.lines())?,
            hit_ps: ps(config.cache_hit),
            delays: nodes.iter().map(row).collect(),
            transfer_core_ps: ps(config.transfer.same_core),
            transfer_same_ps: ps(config.transfer.same_cache),
            transfers_other: cache_nodes.iter().map(transfers).collect(),
            transfer_home_ps: ps(config.transfer_home),
            channels: channels.collect(),
            links: Links::new(config.link, &packages, window_ps),
            packages,
            devices: config.devices.clone(),
            stream_thousandths: config.stream_thousandths.into(),
            stores: Stores::new(window_ps),
            places,
            cache_nodes,
            memory,
            nodes,
        })
    }

    /// The place of each vCPU.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Numbers of the nodes with CPUs or memory, ascending.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The stores to lines, in simulated time.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The line at a guest physical address; `None` for what is not the guest's memory.
    pub fn spot(&self, physical: u64) -> Option<Spot> {
        self.memory.spot(physical)
    }

    /// Lets a vCPU load from or store to a line.
    pub fn touch(&self, place: Place, line: u32, write: bool) -> Touched<'_> {
        let touch = self.caches[place.cache].touch(line);
        let written_back = touch.evicted.and_then(|line| self.evict(place, line));
        let word = self.lines.word(line);
        loop {
            let old = Word(word.load(Relaxed));
            let writer = old
                .writer()
                .and_then(|vcpu| self.places.get(usize::from(vcpu)));
            let accessor = Accessor {
                vcpu: place.vcpu,
                cache: place.cache,
                present: touch.hit,
                with_writer: writer.is_some_and(|writer| writer.cache == place.cache),
                in_writers_core: writer.is_some_and(|writer| writer.core == place.core),
            };
            let (cost, left) = if write {
                lines::write(old, accessor)
            } else {
                lines::read(old, accessor)
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
                    written_back,
                };
            }
        }
    }

    /// A line leaves a cache; the position of the node whose memory it goes back to.
    fn evict(&self, place: Place, line: u32) -> Option<usize> {
        let drop = |word| Some(Word(word).without(place.cache).0);
        let before = self.lines.word(line).fetch_update(Relaxed, Relaxed, drop);
        let is_last = |&word: &u64| Word(word).is_dirty() && Word(word).at(place.cache);
        let was_dirty = before.ok().filter(is_last).is_some();
        was_dirty.then(|| self.memory.of_line(line))
    }

    /// The nanoseconds of a doorbell write to a device of a node.
    pub fn device_nanoseconds(&self, place: Place, device: u32) -> u32 {
        let pair = (self.nodes[place.node], device);
        self.devices.get(&pair).copied().unwrap_or(0)
    }

    /// The cache that a line comes from, where its word was `before`, and the picoseconds that takes. A line of several other caches is
    /// waited for until the last of them has answered.
    fn source(&self, place: Place, before: Word) -> Option<(usize, u64)> {
        let row = self.transfers_other[place.cache]
            .iter()
            .copied()
            .enumerate();
        row.filter(|&(cache, _)| cache != place.cache && before.at(cache))
            .max_by_key(|&(_, ps)| ps)
    }

    /// Whether two nodes are known to be of different packages.
    fn is_between_packages(&self, one: usize, other: usize) -> bool {
        let both = self.packages[one].zip(self.packages[other]);
        both.is_some_and(|(one, other)| one != other)
    }

    /// What an access takes that costs this, for a line at a spot. Where time is simulated, `now_ps` is the vCPU's: memory and links
    /// are busy for some time with each line.
    pub fn price(
        &self,
        place: Place,
        touched: &Touched<'_>,
        spot: Spot,
        is_in_stream: bool,
        now_ps: Option<u64>,
    ) -> Price {
        let carry = |channel: Option<&Channel>| match (channel, now_ps) {
            (Some(channel), Some(now_ps)) => channel.carry(place.vcpu, now_ps),
            _ => 0,
        };
        let link = |from| self.links.between(place.node, from);
        if let Some(node) = touched.written_back {
            // The vCPU does not wait for it.
            carry(self.channels[node].as_ref());
            carry(self.links.between(node, place.node));
        }
        let plain = |ps| Price {
            ps,
            ..Price::default()
        };
        match touched.cost {
            Cost::Hit => plain(self.hit_ps),
            Cost::TransferCore => plain(self.transfer_core_ps),
            Cost::TransferSame => plain(self.transfer_same_ps),
            Cost::TransferOther => {
                let Some((cache, ps)) = self.source(place, touched.before) else {
                    return Price::default();
                };
                let from = self.cache_nodes[cache];
                let wait_ps = carry(link(from));
                if touched.before.is_dirty() && !touched.left.is_dirty() {
                    // Both caches share it from now on, and memory has it.
                    carry(self.channels[spot.node].as_ref());
                }
                // A load asks the memory's node first. A store that does so, too, is not waited for by who polls the line.
                let is_home_far = !touched.left.is_dirty()
                    && self.is_between_packages(place.node, from)
                    && self.is_between_packages(spot.node, from);
                let home_ps = if is_home_far {
                    self.transfer_home_ps
                } else {
                    0
                };
                Price {
                    ps: ps + home_ps + wait_ps,
                    wait_ps,
                    from: Some(from),
                }
            }
            Cost::Memory => {
                let ps = self.delays[place.node][spot.node];
                let wait_ps = carry(self.channels[spot.node].as_ref()) + carry(link(spot.node));
                // The lines of a stream are on their way at the same time, also while they wait.
                let overlapped = |ps: u64| match is_in_stream {
                    true => ps * 1000 / self.stream_thousandths,
                    false => ps,
                };
                Price {
                    ps: overlapped(ps + wait_ps),
                    wait_ps: overlapped(wait_ps),
                    from: None,
                }
            }
        }
    }
}
