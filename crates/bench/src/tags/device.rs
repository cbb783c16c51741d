//! A device that holds a tag for a while: requests, queues, and when each I/O is done.
//!
//! ```text
//!  memory of the device's node
//!  ├─ requests   one for each tag, as the block layer has: written when it is submitted, read when it is completed
//!  └─ queue      one for all, as the device has one set of tags: its next line when an I/O is submitted, and when one is completed
//! ```
//!
//! A request is in the cache of the CPU that had the tag last, so a tag from afar brings its lines from afar. The queue
//! is so long that its lines are in no cache when their turn comes, as if the device had just written them. Its tail and its head are
//! lines that every CPU writes.
//!
//! Its memory is on its node. An [`Allocator`] hands the tags out: a policy of nearfar-tags, or what a program without it would use.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;
use nearfar_experiment::BoxError;
use nearfar_machine::{CpuSet, Machine, NodeId, NodeSet};
use nearfar_tags::{Builder, Cpu, Get, Group, Policy, Steals, Tags, Topology};

use crate::node_buffers::{self, Mapping};
use crate::node_selection;
use crate::options::{HugePages, ProbeError, ProbeOptions, on_own_thread};
use crate::warning::Warning;

/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Words of a request's first line.
const OWNER: usize = 0;
const DUE: usize = 1;
const FREED: usize = 2;

/// How fast the device is and how large what it keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) tags: u32,
    pub(super) request_bytes: usize,
    /// An I/O takes at least as long.
    pub(super) service_ns: u64,
    /// Between two I/Os of one worker that the device ends; 0 for no limit.
    pub(super) interval_ns: u64,
}

/// A tag that was handed out while it was held.
#[derive(Debug, thiserror::Error)]
#[error("tag {tag} was handed out while it was held")]
pub(super) struct Duplicate {
    tag: u32,
}

/// The device, shared by all workers.
pub(super) struct Device<'a> {
    config: Config,
    requests: &'a [AtomicU64],
    request_words: usize,
    queue: &'a [AtomicU64],
    /// Where the next I/O is submitted, and the next one completed.
    tail: Padded<AtomicU64>,
    head: Padded<AtomicU64>,
    /// Submitted and not completed, by submitter and then by handler; `None` where that handler completes none of it.
    rings: Vec<Option<Ring>>,
    completed: Vec<Padded<AtomicU64>>,
}

/// On cache lines that nothing else is on, nor on the one that the processor may fetch with it.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// Tags from one worker to another.
struct Ring {
    slots: Box<[AtomicU32]>,
    head: Padded<AtomicU32>,
    tail: Padded<AtomicU32>,
}

impl<'a> Device<'a> {
    /// Bytes of the requests.
    pub(super) fn request_memory(config: &Config) -> usize {
        config.tags as usize * words_of(config.request_bytes) * size_of::<u64>()
    }

    /// A device for so many workers. `memory` holds the requests, then the queue. `completes` says which
    /// handler may complete a submitter's I/O.
    pub(super) fn new(
        config: Config,
        memory: &'a [AtomicU64],
        workers: usize,
        completes: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let words = words_of(config.request_bytes);
        let (requests, queue) = memory.split_at(config.tags as usize * words);
        requests
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        let pairs = (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to)));
        let ring = |(from, to)| completes(from, to).then(|| Ring::new(config.tags));
        Self {
            config,
            requests,
            request_words: words,
            queue,
            tail: Padded::default(),
            head: Padded::default(),
            rings: pairs.map(ring).collect(),
            completed: (0..workers).map(|_| Padded::default()).collect(),
        }
    }

    fn request(&self, tag: u32) -> &[AtomicU64] {
        let start = tag as usize * self.request_words;
        &self.requests[start..start + self.request_words]
    }

    fn ring(&self, submitter: usize, handler: usize) -> Option<&Ring> {
        self.rings[submitter * self.completed.len() + handler].as_ref()
    }

    /// Whether a worker completes I/O that it submitted, at once or handed over.
    pub(super) fn completes_own(&self, worker: usize) -> bool {
        self.ring(worker, worker).is_some()
    }

    pub(super) fn completes_others(&self, worker: usize) -> bool {
        let mut others = (0..self.completed.len()).filter(|&other| other != worker);
        others.any(|submitter| self.ring(submitter, worker).is_some())
    }

    /// Starts an I/O, after the submitter's last one.
    ///
    /// # Errors
    /// When the tag is held already.
    pub(super) fn submit(
        &self,
        (submitter, handler): (usize, usize),
        last_due_ns: &mut u64,
        tag: u32,
        now_ns: u64,
    ) -> Result<(), Duplicate> {
        let request = self.request(tag);
        if request[OWNER].swap(submitter as u64 + 1, Ordering::Relaxed) != 0 {
            return Err(Duplicate { tag });
        }
        let done = *last_due_ns + self.config.interval_ns;
        let due = done.max(now_ns + self.config.service_ns);
        *last_due_ns = due;
        request[DUE].store(due, Ordering::Relaxed);
        for line in request.chunks(LINE_WORDS).skip(1) {
            line[LINE_WORDS - 1].store(now_ns, Ordering::Relaxed);
        }
        self.entry(&self.tail).store(now_ns, Ordering::Relaxed);
        if let Some(ring) = self.ring(submitter, handler) {
            ring.push(tag);
        }
        Ok(())
    }

    /// The queue's line at a position, which moves on.
    fn entry(&self, position: &Padded<AtomicU64>) -> &AtomicU64 {
        let line = position.0.fetch_add(1, Ordering::Relaxed) as usize;
        &self.queue[line * LINE_WORDS % self.queue.len()]
    }

    /// When the oldest I/O of a submitter is done that this handler completes; `None` without one.
    pub(super) fn next_due(&self, submitter: usize, handler: usize) -> Option<u64> {
        let tag = self.ring(submitter, handler)?.first()?;
        Some(self.request(tag)[DUE].load(Ordering::Relaxed))
    }

    /// Completes that I/O; its tag, to be put.
    pub(super) fn complete(
        &self,
        (submitter, handler): (usize, usize),
        now_ns: u64,
    ) -> Option<u32> {
        let tag = self.ring(submitter, handler)?.pop()?;
        self.entry(&self.head).load(Ordering::Relaxed);
        let request = self.request(tag);
        request[self.request_words - 1].load(Ordering::Relaxed);
        request[FREED].store(now_ns, Ordering::Relaxed);
        request[OWNER].store(0, Ordering::Relaxed);
        self.completed[submitter].0.fetch_add(1, Ordering::Release);
        Some(tag)
    }

    /// Hands the oldest I/O of a submitter that this handler has over to the submitter, which completes it.
    pub(super) fn forward(&self, (submitter, handler): (usize, usize)) {
        let from = self.ring(submitter, handler);
        let to = self.ring(submitter, submitter);
        if let (Some(tag), Some(to)) = (from.and_then(Ring::pop), to) {
            to.push(tag);
        }
    }

    /// When the last I/O of a tag was completed.
    pub(super) fn freed_ns(&self, tag: u32) -> u64 {
        self.request(tag)[FREED].load(Ordering::Relaxed)
    }

    /// How many of a worker's I/Os are completed.
    pub(super) fn completed(&self, submitter: usize) -> u64 {
        self.completed[submitter].0.load(Ordering::Acquire)
    }

    pub(super) fn service_ns(&self) -> u64 {
        self.config.service_ns
    }
}

fn words_of(request_bytes: usize) -> usize {
    request_bytes.div_ceil(LINE_WORDS * size_of::<u64>()).max(1) * LINE_WORDS
}

impl Ring {
    /// Room for all tags.
    fn new(tags: u32) -> Self {
        let slots = (0..tags.next_power_of_two()).map(|_| AtomicU32::new(0));
        Self {
            slots: slots.collect(),
            head: Padded::default(),
            tail: Padded::default(),
        }
    }

    fn slot(&self, position: u32) -> &AtomicU32 {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    fn push(&self, tag: u32) {
        let tail = self.tail.0.load(Ordering::Relaxed);
        self.slot(tail).store(tag, Ordering::Relaxed);
        self.tail.0.store(tail.wrapping_add(1), Ordering::Release);
    }

    fn first(&self) -> Option<u32> {
        let head = self.head.0.load(Ordering::Relaxed);
        let is_empty = self.tail.0.load(Ordering::Acquire) == head;
        (!is_empty).then(|| self.slot(head).load(Ordering::Relaxed))
    }

    fn pop(&self) -> Option<u32> {
        let tag = self.first()?;
        let head = self.head.0.load(Ordering::Relaxed);
        self.head.0.store(head.wrapping_add(1), Ordering::Release);
        Some(tag)
    }
}

/// The levels of the factor that are policies.
const LEVELS: [(&str, Policy); 8] = [
    ("stock", Policy::Stock),
    ("limit", Policy::Limit),
    ("limit_topology", Policy::LimitTopology),
    ("coarse_core", Policy::Coarse(Group::Core)),
    ("coarse_llc", Policy::Coarse(Group::Llc)),
    ("coarse_node", Policy::Coarse(Group::Node)),
    ("bitmap", Policy::Bitmap),
    ("auto", Policy::Auto),
];

/// Their names, in the order of tables.
pub(super) const POLICIES: &[&str] = &{
    let mut names = [""; LEVELS.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = LEVELS[place].0;
        place += 1;
    }
    names
};

const MUTEX_VEC: &str = "mutex_vec";
const ARRAY_QUEUE: &str = "array_queue";

/// The levels that are not policies of nearfar-tags.
pub(super) const PEERS: &[&str] = &[MUTEX_VEC, ARRAY_QUEUE];

/// All of them.
pub(super) const ALL: &[&str] = &{
    let mut names = [""; POLICIES.len() + PEERS.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = match place < POLICIES.len() {
            true => POLICIES[place],
            false => PEERS[place - POLICIES.len()],
        };
        place += 1;
    }
    names
};

/// An allocator with all of its tags free.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and a box is a further load for each tag"
)]
pub(super) enum Allocator {
    Tags {
        tags: Tags,
        /// Whether the policy takes tags from where another CPU has put them, and counts that.
        counts_steals: bool,
    },
    /// A stack: the tag that was put last is taken first.
    Mutex(Mutex<Vec<u32>>),
    /// A queue without a lock.
    Queue(ArrayQueue<u32>),
}

impl Allocator {
    /// `set_up` says more about a policy's.
    ///
    /// # Errors
    /// A level that there is not, or a policy that cannot be made so.
    pub(super) fn new(
        level: &str,
        tags: u32,
        set_up: impl FnOnce(Builder) -> Builder,
    ) -> Result<Self, BoxError> {
        if let Some((_, policy)) = LEVELS.into_iter().find(|(name, _)| *name == level) {
            let builder = set_up(Tags::builder(tags).policy(policy));
            return Ok(Self::Tags {
                tags: builder.build()?,
                counts_steals: !matches!(policy, Policy::Bitmap | Policy::Auto),
            });
        }
        match level {
            MUTEX_VEC => Ok(Self::Mutex(Mutex::new((0..tags).rev().collect()))),
            ARRAY_QUEUE => {
                let queue = ArrayQueue::new(tags as usize);
                // As many as there is room for.
                (0..tags).for_each(|tag| _ = queue.push(tag));
                Ok(Self::Queue(queue))
            }
            _ => Err(format!("{level} is no level of policy").into()),
        }
    }

    /// A free tag, `None` without one.
    pub(super) fn take(&self) -> Option<u32> {
        match self {
            Self::Tags { tags, .. } => tags.try_take(),
            Self::Mutex(tags) => lock(tags).pop(),
            Self::Queue(tags) => tags.pop(),
        }
    }

    pub(super) fn put(&self, tag: u32) {
        match self {
            Self::Tags { tags, .. } => tags.put(tag),
            Self::Mutex(tags) => lock(tags).push(tag),
            // There is room for all tags.
            Self::Queue(tags) => _ = tags.push(tag),
        }
    }

    /// A place among those that wait for a tag; `None` where there is no queue of them.
    pub(super) fn wait(&self) -> Option<Get<'_>> {
        match self {
            Self::Tags { tags, .. } => Some(tags.get_async()),
            Self::Mutex(_) | Self::Queue(_) => None,
        }
    }

    /// Since it was made; `None` where none are counted.
    pub(super) fn steals(&self) -> Option<Steals> {
        match self {
            Self::Tags {
                tags,
                counts_steals: true,
            } => Some(tags.statistics().steals),
            _ => None,
        }
    }
}

/// Nothing panics while the lock is held.
fn lock(tags: &Mutex<Vec<u32>>) -> MutexGuard<'_, Vec<u32>> {
    tags.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory on a node, and sentences about what of it may be elsewhere.
///
/// # Errors
/// When there is no such memory.
pub(super) fn on_node(
    machine: &Machine,
    allowed: &CpuSet,
    node: NodeId,
    bytes: usize,
) -> Result<(Mapping, Vec<String>), ProbeError> {
    on_own_thread(|| place(machine, allowed, node, bytes))
}

/// Leaves the calling thread pinned.
fn place(
    machine: &Machine,
    allowed: &CpuSet,
    node: NodeId,
    bytes: usize,
) -> Result<(Mapping, Vec<String>), ProbeError> {
    let options = ProbeOptions {
        to: Some(NodeSet::single(node)),
        // Those of the pool may be all that other programs can use.
        huge_pages: HugePages::Transparent,
        ..ProbeOptions::default()
    };
    let sources = node_selection::select(machine, allowed, &options)?.sources;
    let buffers = node_buffers::allocate(machine, &[node], &sources, bytes as u64, &options)?;
    // Translations of addresses are not what is compared.
    let is_about_pages = |warning: &&Warning| matches!(warning, Warning::BasePages);
    let warnings = buffers.warnings.iter().filter(|it| !is_about_pages(it));
    let warnings = warnings.map(ToString::to_string).collect();
    let buffer = buffers.buffers.into_iter().next();
    let reason = format!("node {node} has no memory for it");
    let buffer = buffer.ok_or(ProbeError::NothingToMeasure { reason })?;
    Ok((buffer.memory, warnings))
}

/// The distance of a pair of nodes that has none: the largest of ACPI's SLIT, which means unreachable.
const UNREACHABLE: u32 = 255;

/// The machine's topology, with numbers for all possible CPUs.
///
/// CPUs whose last-level cache is unknown share one with their node; without clusters a core is a group of its own.
pub(super) fn topology(machine: &Machine) -> Topology {
    let nodes: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    let mut cpus = vec![None; machine.mask_width() as usize];
    for cpu in machine.cpus.iter().filter(|cpu| cpu.is_online()) {
        let node = cpu
            .node
            .and_then(|node| nodes.iter().position(|&other| other == node));
        let (core, node) = (cpu.core.unwrap_or(cpu.id), node.unwrap_or(0));
        // By the lowest CPU that shares it.
        let cache = machine
            .last_level_cache(cpu.id)
            .and_then(|it| it.cpus.first());
        let place = Cpu::new(core.0, node as u32)
            .with_core_group(cpu.cluster.unwrap_or(core).0)
            .with_llc(cache.map_or(node as u32, |first| first.0));
        cpus[cpu.id.0 as usize] = Some(place);
    }
    let distance = |from, to| machine.distance(from, to).map_or(UNREACHABLE, |it| it.0);
    let row = |&from: &NodeId| nodes.iter().map(|&to| distance(from, to)).collect();
    Topology::new(cpus, nodes.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tags::groups::tests::machine;

    const CONFIG: Config = Config {
        tags: 3,
        request_bytes: 100,
        service_ns: 50,
        interval_ns: 20,
    };

    fn memory() -> Vec<AtomicU64> {
        (0..3 * 16 + 2 * 64).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn an_io_takes_the_service_time_and_those_of_a_queue_the_interval() {
        let memory = memory();
        let device = Device::new(CONFIG, &memory, 2, |_, _| true);
        let mut last_due = 0;
        for (tag, now) in [(2, 100), (0, 110), (1, 400)] {
            device.submit((0, 1), &mut last_due, tag, now).unwrap();
        }
        for (tag, due) in [(2, 150), (0, 170), (1, 450)] {
            assert_eq!(device.next_due(0, 1), Some(due));
            assert_eq!(device.complete((0, 1), due + 5), Some(tag));
            assert_eq!(device.freed_ns(tag), due + 5);
        }
        assert_eq!(device.next_due(0, 1), None);
        assert_eq!((device.completed(0), device.completed(1)), (3, 0));
    }

    #[test]
    fn a_tag_that_is_handed_out_twice_is_noticed() {
        let memory = memory();
        let device = Device::new(CONFIG, &memory, 2, |from, to| from == to);
        let mut last_due = 0;
        device.submit((0, 0), &mut last_due, 1, 0).unwrap();
        let error = device.submit((1, 1), &mut last_due, 1, 0).unwrap_err();
        assert!(error.to_string().contains("tag 1"));
        device.complete((0, 0), 50);
        device.submit((1, 1), &mut last_due, 1, 60).unwrap();
    }

    #[test]
    fn requests_are_whole_lines() {
        assert_eq!(Device::request_memory(&CONFIG), 3 * 128);
    }

    #[test]
    fn each_level_hands_every_tag_out_once_and_again_after_a_put() {
        let machine = machine();
        for level in ALL {
            let allocator =
                Allocator::new(level, 70, |it| it.topology(topology(&machine))).unwrap();
            for _ in 0..2 {
                let taken: BTreeSet<u32> = std::iter::from_fn(|| allocator.take()).collect();
                assert_eq!(taken, (0..70).collect(), "{level}");
                taken.into_iter().for_each(|tag| allocator.put(tag));
            }
        }
        assert_eq!(ALL.iter().collect::<BTreeSet<_>>().len(), 10);
    }

    #[test]
    fn only_policies_that_take_tags_of_other_cpus_count_steals() {
        let machine = machine();
        let counts = |level: &&&str| {
            let allocator =
                Allocator::new(level, 70, |it| it.topology(topology(&machine))).unwrap();
            allocator.steals().is_some()
        };
        let counting: Vec<_> = ALL.iter().filter(counts).collect();
        assert_eq!(counting, POLICIES[..6].iter().collect::<Vec<_>>());
    }

    #[test]
    fn peers_have_no_queue_and_an_unknown_level_is_named() {
        let made = |level| Allocator::new(level, 2, |it| it);
        assert!(
            PEERS
                .iter()
                .all(|peer| made(peer).unwrap().wait().is_none())
        );
        assert!(made("auto").unwrap().wait().is_some());
        let error = made("fifo").err().unwrap();
        assert!(error.to_string().contains("fifo"));
    }

    #[test]
    fn a_machine_without_caches_and_clusters_has_those_of_nodes_and_cores() {
        let topology = topology(&machine());
        assert_eq!(topology.cpus[5], Some(Cpu::new(4, 1)));
        assert_eq!(topology.distances[2], [25, 22, 10, 16]);
    }
}
