//! Tests of the parts that the public interface hides: the policies, used from chosen CPUs by one thread, whose answers are compared
//! with a set; and their memory: less than 1 MiB for 4096 possible CPUs and 255 tags, and most of it only once every CPU has used the
//! allocator.

mod waiters_bound;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::coarse::Coarse;
use crate::deferred::Deferred;
use crate::locked::{Locked, Search};
use crate::topology::{Cpu, Group, Order, Steals, Topology};
use crate::word::Size;

/// Four nodes on a line, each with two last-level caches of two core groups of two cores with two hardware threads: 16 CPUs a node.
fn four_nodes() -> Topology {
    let cpu = |number: u32| Cpu {
        core: number / 2,
        core_group: number / 4,
        llc: number / 8,
        node: number / 16,
    };
    let distance = |from: u32, to: u32| 10 + 5 * from.abs_diff(to);
    Topology {
        cpus: (0..64).map(|number| Some(cpu(number))).collect(),
        distances: (0..4)
            .map(|from| (0..4).map(|to| distance(from, to)).collect())
            .collect(),
    }
}

enum Kept {
    Locked(Box<Locked>),
    Deferred(Deferred),
    Coarse(Coarse),
}

impl Kept {
    fn all(tags: u32, capacity: u32) -> Vec<Self> {
        let limits = (1, tags, capacity);
        let locked = |order, search, divisor| {
            Self::Locked(Box::new(Locked::new(order, search, divisor, limits)))
        };
        let coarse = |group| Self::Coarse(Coarse::new(&four_nodes(), group, limits));
        let order = Order::new(&four_nodes(), None);
        vec![
            locked(Order::unknown(64), Search::InTurns, 64),
            locked(Order::unknown(64), Search::InTurns, 4),
            locked(order, Search::NearestFirst, 8),
            coarse(Group::Core),
            coarse(Group::Llc),
            coarse(Group::Node),
            Self::Deferred(Deferred::new(64, limits)),
        ]
    }

    fn take(&self, cpu: usize) -> Option<u32> {
        match self {
            Self::Locked(policy) => policy.take(cpu),
            Self::Deferred(policy) => policy.take(cpu),
            Self::Coarse(policy) => policy.take(cpu),
        }
    }

    fn put(&self, cpu: usize, tag: u32) {
        match self {
            Self::Locked(policy) => policy.put(cpu, tag),
            Self::Deferred(policy) => policy.put(cpu, tag),
            Self::Coarse(policy) => policy.put(cpu, tag),
        }
    }

    /// How many tags from `tags` on are held.
    fn resize(&self, tags: u32) -> u32 {
        match self {
            Self::Locked(policy) => policy.resize(tags),
            Self::Deferred(policy) => policy.resize(tags),
            Self::Coarse(policy) => policy.resize(tags),
        }
    }

    fn free(&self) -> u32 {
        match self {
            Self::Locked(policy) => policy.free(),
            Self::Deferred(policy) => policy.free(),
            Self::Coarse(policy) => policy.free(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    /// A held tag, by its rank.
    Put(usize, usize),
    Resize(u32),
}

fn step() -> impl Strategy<Value = Step> {
    // The CPUs above 63 were added after the topology was read.
    let cpu = 0..70_usize;
    prop_oneof![
        8 => cpu.clone().prop_map(Step::Take),
        6 => (cpu, any::<usize>()).prop_map(|(cpu, rank)| Step::Put(cpu, rank)),
        1 => (2..=40_u32).prop_map(Step::Resize),
    ]
}

/// Tag 0 is reserved: it is not handed out.
fn check(policy: &Kept, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut limit = 24;
    let mut held = BTreeSet::new();
    for step in steps {
        match *step {
            Step::Take(cpu) => match policy.take(cpu) {
                Some(tag) => {
                    prop_assert!((1..limit).contains(&tag), "{tag} is no tag");
                    prop_assert!(held.insert(tag), "{tag} was handed out twice");
                }
                None => prop_assert!((1..limit).all(|tag| held.contains(&tag))),
            },
            Step::Put(cpu, rank) => {
                let tag = held.iter().copied().nth(rank % held.len().max(1));
                if let Some(tag) = tag {
                    held.remove(&tag);
                    policy.put(cpu, tag);
                }
            }
            Step::Resize(tags) => {
                limit = tags;
                let above = held.range(tags..).count();
                prop_assert_eq!(policy.resize(tags) as usize, above);
            }
        }
        let free = (1..limit).filter(|tag| !held.contains(tag)).count();
        prop_assert_eq!(policy.free() as usize, free);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_policy_hands_out_what_a_set_would(steps in prop::collection::vec(step(), 0..400)) {
        for policy in Kept::all(24, 40) {
            check(&policy, &steps)?;
        }
    }

    #[test]
    fn ranges_reach_every_cache_the_nearest_first(
        cpus in prop::collection::vec(prop::option::of((0..4_u32, 0..3_u32, 0..3_u32, 0..3_u32)), 1..80),
        group in prop::option::of(prop::sample::select(vec![Group::Core, Group::Llc, Group::Node])),
    ) {
        // A core's number is its own in the whole machine.
        let cpu = |(node, llc, core_group, core)| {
            let core = ((node * 3 + llc) * 3 + core_group) * 3 + core;
            Cpu { core, core_group, llc, node }
        };
        let mut cpus: Vec<Option<Cpu>> = cpus.into_iter().map(|known| known.map(cpu)).collect();
        cpus.push(Some(Cpu::default()));
        let topology = Topology { cpus, ..four_nodes() };
        let order = Order::new(&topology, group);
        for own in 0..order.len() {
            let mut reached = BTreeSet::from([own as u32]);
            for range in order.nearest_first(own) {
                reached.extend(range);
            }
            prop_assert_eq!(reached.len(), order.len());
            let others: Vec<usize> = order.others(own).collect();
            let nearness = |other: &usize| order.nearness(own, *other).expect("it is known");
            prop_assert!(others.is_sorted_by_key(nearness));
            let others: BTreeSet<usize> = others.into_iter().collect();
            prop_assert_eq!(others, (0..order.len()).filter(|other| *other != own).collect());
        }
        let position = |number: usize| topology.cpus[number].as_ref();
        let known = (0..topology.cpus.len()).filter(|number| position(*number).is_some());
        for number in known {
            let same = order.cache(number) == order.cache(topology.cpus.len() - 1);
            let shares = match (group, position(number), position(topology.cpus.len() - 1)) {
                (Some(Group::Core), Some(one), Some(other)) => one.core == other.core,
                (Some(Group::Llc), Some(one), Some(other)) => (one.llc, one.node) == (other.llc, other.node),
                (Some(Group::Node), Some(one), Some(other)) => one.node == other.node,
                _ => number == topology.cpus.len() - 1,
            };
            prop_assert_eq!(same, shares);
        }
    }
}

fn near_first(tags: u32) -> Locked {
    let order = Order::new(&four_nodes(), None);
    Locked::new(order, Search::NearestFirst, 8, (0, tags, tags))
}

/// Every tag is in the cache of some CPU: two at most in each, 64 tags in all.
fn fill(policy: &Locked, cpus: &[usize]) {
    let held: Vec<u32> = std::iter::from_fn(|| policy.take(0)).collect();
    let turns = cpus.iter().cycle();
    held.into_iter()
        .zip(turns)
        .for_each(|(tag, cpu)| policy.put(*cpu, tag));
}

/// A search that runs while the size changes; `found` has its results in turn, and each but the last comes with other sizes.
fn take_while_resized(sizes: &[u32], found: [Option<u32>; 2]) -> (Option<u32>, Vec<u32>) {
    let size = Size::new(4);
    let put = RefCell::new(Vec::new());
    let searches = RefCell::new(found.into_iter());
    let search = |limit| {
        let mut searches = searches.borrow_mut();
        let found = searches.next().expect("two searches");
        if searches.len() != 0 {
            assert_eq!(limit, 4);
            sizes.iter().for_each(|tags| size.set(*tags));
        }
        found
    };
    let tag = size.take(search, |tag| put.borrow_mut().push(tag));
    (tag, put.into_inner())
}

#[test]
fn a_tag_that_the_size_excludes_meanwhile_is_put_again() {
    let excluded = take_while_resized(&[3], [Some(3), Some(1)]);
    assert_eq!(excluded, (Some(1), vec![3]));
    let below = take_while_resized(&[3], [Some(2), Some(1)]);
    assert_eq!(below, (Some(2), vec![]));
}

/// While the size was larger there may have been a free tag, also if it is the same again.
#[test]
fn a_search_that_finds_none_while_the_size_changes_is_repeated() {
    for sizes in [[8].as_slice(), &[8, 4]] {
        let (tag, _) = take_while_resized(sizes, [None, Some(1)]);
        assert_eq!(tag, Some(1), "sizes {sizes:?}");
    }
}

#[test]
fn the_nearest_cache_is_emptied_first() {
    let policy = near_first(64);
    // Of CPU 17: its sibling, its core group, its last-level cache, its node, the nodes at distance 15 (0 and 2) and 20 (3).
    let others = [63, 5, 33, 28, 21, 18, 16];
    let held: Vec<u32> = std::iter::from_fn(|| policy.take(17)).collect();
    let mut tags = held.into_iter();
    for cpu in others {
        tags.by_ref().take(2).for_each(|tag| policy.put(cpu, tag));
    }
    (0..2 * others.len()).for_each(|_| assert!(policy.take(17).is_some()));
    assert_eq!(policy.take(17), None);
    let steals = policy.counts().1;
    let near = [steals.core, steals.core_group, steals.llc, steals.node];
    assert_eq!(near, [1, 1, 1, 1]);
    assert_eq!((steals.remote, steals.remote_distance), (3, 15 + 15 + 20));
    assert_eq!(steals.tags, 2 * others.len() as u64, "a whole cache each");
}

#[test]
fn a_near_tag_is_taken_before_a_far_one() {
    let policy = near_first(64);
    fill(&policy, &(0..64).collect::<Vec<_>>());
    let before = policy.counts().1;
    assert!(policy.take(40).is_some(), "its own");
    assert!(policy.take(40).is_some(), "its sibling's");
    let after = policy.counts().1;
    assert_eq!((after.core - before.core, after.remote), (1, before.remote));
}

#[test]
fn a_search_in_turns_continues_after_the_last_one() {
    let order = Order::new(&four_nodes(), None);
    let policy = Locked::new(order, Search::InTurns, 8, (0, 64, 64));
    let held: Vec<u32> = std::iter::from_fn(|| policy.take(0)).collect();
    for (cpu, pair) in [3, 20, 50].into_iter().zip(held.chunks(2)) {
        pair.iter().for_each(|tag| policy.put(cpu, *tag));
    }
    // CPU 0 empties the caches of 3, 20 and 50; CPU 51 then starts behind them and finds what CPU 60 has, not what CPU 2 or 50 has.
    (0..6).for_each(|_| assert!(policy.take(0).is_some()));
    for (cpu, tag) in [2, 50, 60].into_iter().zip(&held) {
        policy.put(cpu, *tag);
    }
    assert_eq!(policy.take(51), Some(held[2]));
}

/// As published: a put that fills a cache moves half of it to the pool, so that a cache of one tag holds none.
#[test]
fn a_full_cache_gives_half_of_its_tags_to_the_pool() {
    for (size, puts, cached) in [(1, 1, 0), (4, 3, 3), (4, 4, 2), (16, 15, 15), (16, 16, 8)] {
        let order = Order::new(&four_nodes(), None);
        let policy = Locked::new(order, Search::InTurns, 64 / size, (0, 64, 64));
        let held: Vec<u32> = std::iter::from_fn(|| policy.take(0)).collect();
        held[..puts].iter().for_each(|tag| policy.put(0, *tag));
        // CPU 1 takes those of the pool before it empties the cache.
        let before = |_: &usize| {
            assert!(policy.take(1).is_some());
            let steals = policy.counts().1;
            steals == Steals::default()
        };
        let of_pool = (0..puts).take_while(before).count();
        assert_eq!(puts - of_pool, cached, "{puts} puts into a cache of {size}");
    }
}

#[test]
fn a_search_takes_the_whole_cache() {
    let policy = near_first(64);
    let held: Vec<u32> = std::iter::from_fn(|| policy.take(0)).collect();
    held[..5].iter().for_each(|tag| policy.put(1, *tag));
    assert!(policy.take(63).is_some());
    let steals = policy.counts().1;
    (0..4).for_each(|_| assert!(policy.take(63).is_some()));
    assert_eq!(policy.counts().1, steals, "the rest was moved with it");
}

#[test]
fn puts_are_gathered_and_moved_at_once() {
    let policy = Deferred::new(1, (0, 128, 128));
    let held: Vec<u32> = (0..32).filter_map(|_| policy.take(0)).collect();
    assert_eq!(held, (0..32).collect::<Vec<_>>(), "the hint advances");
    // The last put sets the hint to tag 0, whose word has no tag until the 32 that were put are moved.
    held.iter().rev().for_each(|tag| policy.put(0, *tag));
    let again: BTreeSet<u32> = (0..32).filter_map(|_| policy.take(0)).collect();
    assert_eq!(again, held.into_iter().collect());
}

#[test]
fn a_group_takes_one_tag_from_the_nearest_group() {
    let policy = Coarse::new(&four_nodes(), Group::Llc, (0, 64, 64));
    let held: Vec<u32> = std::iter::from_fn(|| policy.take(0)).collect();
    let before = policy.steals();
    assert_eq!(
        (before.node, before.remote),
        (8, 48),
        "eight tags per group"
    );
    // CPUs 63, 33 and 24 are at the distances 20, 15 and 0 of CPU 16.
    for (cpu, pair) in [63, 33, 24].into_iter().zip(held.chunks(2)) {
        pair.iter().for_each(|tag| policy.put(cpu, *tag));
    }
    let taken: Vec<u32> = std::iter::from_fn(|| policy.take(16)).collect();
    let groups = |tag: &u32| held.iter().position(|held| held == tag).map(|at| at / 2);
    let groups: Vec<Option<usize>> = taken.iter().map(groups).collect();
    assert_eq!(
        groups,
        [Some(2), Some(2), Some(1), Some(1), Some(0), Some(0)]
    );
    let after = policy.steals();
    assert_eq!(after.node - before.node, 2);
    assert_eq!(after.remote - before.remote, 4);
    assert_eq!(
        after.remote_distance - before.remote_distance,
        2 * (15 + 20)
    );
}

const CPUS: u32 = 4096;
const TAGS: u32 = 255;
const MIB: isize = 1 << 20;

/// Counts the bytes that each thread has in use.
struct Counting;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.set(IN_USE.get() + layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.set(IN_USE.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn bytes_of<T>(make: impl FnOnce() -> T) -> (T, isize) {
    let before = IN_USE.get();
    let made = make();
    (made, IN_USE.get() - before)
}

fn check_bytes(name: &str, made: isize, touched: isize) {
    println!("{name}: {made} bytes, {touched} when every CPU has used it");
    assert!(made < MIB / 4, "{name}: {made} bytes");
    assert!(made + touched < MIB, "{name}: {made} + {touched} bytes");
}

/// 16 nodes of 256 CPUs.
fn sixteen_nodes() -> Topology {
    let cpu = |number: u32| Cpu {
        core: number / 2,
        core_group: number / 8,
        llc: number / 32,
        node: number / 256,
    };
    Topology {
        cpus: (0..CPUS).map(|number| Some(cpu(number))).collect(),
        distances: vec![vec![10; 16]; 16],
    }
}

#[test]
fn allocators_of_4096_cpus_stay_under_a_mebibyte() {
    let topology = sixteen_nodes();
    let limits = (0, TAGS, TAGS);
    for (name, search, divisor) in [
        ("Stock", Search::InTurns, CPUS),
        ("LimitTopology", Search::NearestFirst, 8),
    ] {
        let make = || Locked::new(Order::new(&topology, None), search, divisor, limits);
        let (policy, made) = bytes_of(make);
        let ((), touched) = bytes_of(|| {
            for cpu in 0..CPUS as usize {
                let tag = policy.take(cpu).expect("all are free");
                policy.put(cpu, tag);
            }
        });
        check_bytes(name, made, touched);
    }
    for group in [Group::Core, Group::Llc, Group::Node] {
        let (_policy, made) = bytes_of(|| Coarse::new(&topology, group, limits));
        check_bytes(&format!("Coarse of {group:?}"), made, 0);
    }
    let (policy, made) = bytes_of(|| Deferred::new(CPUS as usize, limits));
    let ((), touched) = bytes_of(|| {
        for cpu in 0..CPUS as usize {
            let tag = policy.take(cpu).expect("all are free");
            policy.put(cpu, tag);
        }
    });
    check_bytes("Bitmap", made, touched);
}
