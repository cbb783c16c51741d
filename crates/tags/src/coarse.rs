//! The policy `Coarse`: words of free tags for each group of CPUs, those of the nearest groups next.
//!
//! ```text
//! take: own words of the group ─► its other words ─► the next group, nearest first ─► ... ─► all empty twice, no put between: none
//! put:  own words of the group
//!
//! group 0   line of cores 0, 4   line of cores 1, 5   line of cores 2, 6   line of cores 3, 7
//! group 1   ...
//! ```
//!
//! The author of the near-first search expected more of caches that several CPUs share. Caches under locks do not show it: the CPUs of a
//! group wait for its lock (a get and put of two threads took 15 times as long as with a cache for each). So a group
//! has words of bits instead, nothing is held while a tag is taken or put, a tag is never in transit, and one tag is taken from another
//! group, not all. There is no pool behind the words: each free tag is one write away from any thread. A group's words are on several
//! cache lines, so that its cores do not all write the same one.

use crate::shards::Shards;
use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::topology::{Group, Nearness, Order, Steals, Topology};
use crate::word::{Apart, Size, find};

/// A take without success reads these twice; more groups than this are merged to larger ones.
const MAX_BLOCKS: usize = 512;
/// The most lines of a group, for each block of tags.
const MAX_LINES: usize = 8;

pub(crate) struct Coarse {
    /// Of groups.
    order: Order,
    /// A group's shards follow each other.
    words: Shards,
    /// Shards of a group.
    lines: usize,
    /// The shard of each CPU number.
    homes: Box<[u16]>,
    size: Size,
    capacity: u32,
    /// By group.
    steals: Box<[Apart<Counters>]>,
}

/// The counts of [`Steals`] in its order, without that of tags: one for each steal.
type Counters = [AtomicU64; 6];

impl Coarse {
    /// Tags from `reserved` on are free, those at or above `tags` not handed out.
    pub(crate) fn new(
        topology: &Topology,
        group: Group,
        (reserved, tags, capacity): (u32, u32, u32),
    ) -> Self {
        let blocks = Shards::blocks_of(capacity);
        let order = groups(topology, group, MAX_BLOCKS / blocks);
        let groups = order.len();
        let cores = Order::new(topology, Some(Group::Core));
        let lines = cores.len().div_ceil(groups).min(MAX_LINES);
        let lines = lines.min(MAX_BLOCKS / blocks / groups).max(1);
        let home = |cpu| order.cache(cpu) * lines + cores.cache(cpu) % lines;
        let cpus = 0..topology.cpus.len();
        let words = Shards::with_shards(capacity, groups * lines);
        for tag in reserved..capacity {
            words.put(tag, tag as usize * groups * lines / capacity as usize);
        }
        Self {
            words,
            lines,
            homes: cpus.map(|cpu| home(cpu) as u16).collect(),
            size: Size::new(tags),
            capacity,
            steals: (0..groups).map(|_| Apart::default()).collect(),
            order,
        }
    }

    /// Any for a CPU that was added after the topology was read.
    #[inline]
    fn home(&self, cpu: usize) -> usize {
        let home = self.homes.get(cpu).or(self.homes.first());
        home.map_or(0, |home| usize::from(*home))
    }

    /// A free tag for a thread of this CPU. `None` only if there was a moment without one.
    #[inline]
    pub(crate) fn take(&self, cpu: usize) -> Option<u32> {
        let home = self.home(cpu);
        let take = |limit| match self.words.take_of(home, limit, home) {
            Ok(tag) => Some(tag),
            Err(_) => self.take_nearest(home, limit),
        };
        self.size.take(take, |tag| self.put(cpu, tag))
    }

    #[cold]
    fn take_nearest(&self, home: usize, limit: u32) -> Option<u32> {
        let own = home / self.lines;
        let pass = || {
            let mut puts = 0;
            for shard in self.nearest_first(home) {
                match self.words.take_of(shard, limit, home) {
                    Ok(tag) => {
                        self.count(own, shard / self.lines);
                        return Ok(tag);
                    }
                    Err(count) => puts += count,
                }
            }
            Err(puts)
        };
        find(pass, || self.words.puts(limit))
    }

    /// All shards; those of a group from the same one as its own on.
    fn nearest_first(&self, home: usize) -> impl Iterator<Item = usize> {
        let (own, first, lines) = (home / self.lines, home % self.lines, self.lines);
        let groups = std::iter::once(own).chain(self.order.others(own));
        groups.flat_map(move |group| {
            let line = move |line| group * lines + (first + line) % lines;
            (0..lines).map(line)
        })
    }

    fn count(&self, own: usize, other: usize) {
        if own == other {
            return;
        }
        let counters = &self.steals[own].0;
        let index = match self.order.nearness(own, other) {
            None => return,
            Some(Nearness::Core) => 0,
            Some(Nearness::CoreGroup) => 1,
            Some(Nearness::Llc) => 2,
            Some(Nearness::Node) => 3,
            Some(Nearness::Remote(distance)) => {
                counters[5].fetch_add(distance.into(), Relaxed);
                4
            }
        };
        counters[index].fetch_add(1, Relaxed);
    }

    /// Makes a tag free on this CPU.
    #[inline]
    pub(crate) fn put(&self, cpu: usize, tag: u32) {
        self.words.put(tag, self.home(cpu));
    }

    /// Sets the number of tags. Returns how many at or above it are held.
    pub(crate) fn resize(&self, tags: u32) -> u32 {
        self.size.set(tags);
        self.capacity - tags - self.words.free(tags..self.capacity)
    }

    pub(crate) fn size(&self) -> u32 {
        self.size.get()
    }

    /// Free tags, counted word by word.
    pub(crate) fn free(&self) -> u32 {
        self.words.free(0..self.size())
    }

    pub(crate) fn steals(&self) -> Steals {
        let sum = |index: usize| {
            let counts = self
                .steals
                .iter()
                .map(|counters| counters.0[index].load(Relaxed));
            counts.sum()
        };
        let [core, core_group, llc, node, remote, remote_distance] = std::array::from_fn(sum);
        Steals {
            core,
            core_group,
            llc,
            node,
            remote,
            remote_distance,
            tags: core + core_group + llc + node + remote,
        }
    }
}

/// At most this many groups: larger ones where there would be more, nodes at the most.
fn groups(topology: &Topology, group: Group, most: usize) -> Order {
    let larger = [Group::Core, Group::Llc, Group::Node];
    let larger = larger.into_iter().skip_while(|larger| *larger != group);
    let mut orders = larger.map(|group| Order::new(topology, Some(group)));
    orders
        .find(|order| order.len() <= most)
        .unwrap_or_else(|| Order::new(topology, Some(Group::Node)))
}
