//! The free tags of an allocator, kept as its policy says; the reserved ones; and the CPUs of this machine, by number.

use crate::auto::Auto;
use crate::caches::{self, Caches};
use crate::coarse::Coarse;
use crate::deferred::Deferred;
use crate::locked::{Locked, Search};
use crate::shards;
use crate::sync::thread_number;
use crate::topology::Order;
use crate::waiters::Shared;
use crate::word::Bitmap;
use crate::{Builder, Policy, Statistics};

/// CPUs among which the tags are divided at most, however many are online: as in the published patch.
const MOST_ACTIVE: usize = 8;

/// A batch has space for all tags of a cache.
const _: () = assert!(caches::MOST as usize <= shards::MAX_BATCH);

pub(crate) struct Pool {
    /// First, so that the shortest paths, its `take_cached` and `put_cached`, need not look which policy it is: without caches and
    /// tags under the others.
    pub(crate) auto: Auto,
    other: Option<Other>,
}

/// Where the tags of another policy than `Auto` are.
enum Other {
    Locked(Box<Locked>),
    Deferred(Deferred),
    Coarse(Box<Coarse>),
}

impl Pool {
    /// The builder was checked.
    pub(crate) fn new(builder: &Builder, capacity: u32) -> Self {
        let tags = (builder.reserved, builder.tags, capacity);
        let other = match builder.policy {
            Policy::Stock | Policy::Limit | Policy::LimitTopology => {
                Other::Locked(Box::new(locked(builder, tags)))
            }
            Policy::Coarse(group) => {
                let topology = builder.topology.as_ref().expect("the builder was checked");
                Other::Coarse(Box::new(Coarse::new(topology, group, tags)))
            }
            Policy::Bitmap => Other::Deferred(Deferred::new(possible(builder).numbers, tags)),
            Policy::Auto => {
                let cpus = possible(builder).numbers;
                let caches = match builder.without_rseq {
                    true => None,
                    false => Caches::new(cpus),
                };
                let active = online_cpus().min(MOST_ACTIVE);
                return Self {
                    auto: Auto::new(tags, caches, (cpus, active)),
                    other: None,
                };
            }
        };
        Self {
            auto: Auto::new((0, 0, 0), None, (1, 1)),
            other: Some(other),
        }
    }

    /// Sets the number of tags. Those above it that are held or cached come back and stay. Returns how many above it are held. By
    /// one caller at a time.
    pub(crate) fn resize(&self, tags: u32) -> u32 {
        match &self.other {
            None => self.auto.resize(tags),
            Some(Other::Locked(pool)) => pool.resize(tags),
            Some(Other::Deferred(pool)) => pool.resize(tags),
            Some(Other::Coarse(pool)) => pool.resize(tags),
        }
    }

    pub(crate) fn size(&self) -> u32 {
        match &self.other {
            None => self.auto.size(),
            Some(Other::Locked(pool)) => pool.size(),
            Some(Other::Deferred(pool)) => pool.size(),
            Some(Other::Coarse(pool)) => pool.size(),
        }
    }

    /// Free tags, roughly: others take and put meanwhile.
    pub(crate) fn free(&self) -> u32 {
        match &self.other {
            None => self.auto.free(),
            Some(Other::Locked(pool)) => pool.free(),
            Some(Other::Deferred(pool)) => pool.free(),
            Some(Other::Coarse(pool)) => pool.free(),
        }
    }

    /// What the policy counts.
    pub(crate) fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        match &self.other {
            None => statistics.refills = self.auto.refills(),
            Some(Other::Locked(pool)) => {
                (statistics.refills, statistics.steals) = pool.counts();
            }
            Some(Other::Coarse(pool)) => statistics.steals = pool.steals(),
            Some(Other::Deferred(_)) => {}
        }
        statistics
    }
}

impl Shared for Pool {
    /// A free tag, after `take_cached`. `None` only if there was a moment without one, tags that another thread moves counted as held.
    /// Also whether it made other tags free that waiters may not have seen.
    #[inline]
    fn take(&self) -> (Option<u32>, bool) {
        let tag = match &self.other {
            None => return self.auto.take(),
            Some(Other::Locked(pool)) => pool.take(current_cpu()),
            Some(Other::Deferred(pool)) => pool.take(current_cpu()),
            Some(Other::Coarse(pool)) => pool.take(current_cpu()),
        };
        (tag, false)
    }

    /// Makes a tag free. The caller looks at waiters before and after. Between `revoke` and `calm` the tag is where `take` of any
    /// thread finds it.
    #[inline]
    fn put(&self, tag: u32) -> bool {
        match &self.other {
            None => return self.auto.put(tag),
            Some(Other::Locked(pool)) => pool.put(current_cpu(), tag),
            Some(Other::Deferred(pool)) => pool.put(current_cpu(), tag),
            Some(Other::Coarse(pool)) => pool.put(current_cpu(), tag),
        }
        false
    }

    /// A thread is about to wait: makes every free tag reachable by `take` of any thread, now and until each `revoke` had its `calm`.
    /// Tags that another thread was moving meanwhile are reachable as well when this returns, or that thread calls `put`.
    fn revoke(&self) {
        if self.other.is_none() {
            self.auto.revoke();
        }
    }

    /// A waiter has ended its wait: one for each `revoke`.
    fn calm(&self) {
        if self.other.is_none() {
            self.auto.calm();
        }
    }

    fn is_retired(&self, tag: u32) -> bool {
        tag >= self.size()
    }
}

/// Those of the builder, with numbers for the CPUs of this machine at least.
fn possible(builder: &Builder) -> Possible {
    let mut possible = Possible::read();
    let of_topology = builder.topology.as_ref().map(|it| it.cpus.len());
    let given = builder.possible_cpus.map(|cpus| cpus as usize);
    for cpus in of_topology.into_iter().chain(given) {
        possible.count = cpus;
        possible.numbers = possible.numbers.max(cpus);
    }
    possible
}

fn locked(builder: &Builder, tags: (u32, u32, u32)) -> Locked {
    let possible = possible(builder);
    let (order, online) = match &builder.topology {
        Some(topology) => {
            let online = topology.cpus.iter().flatten().count();
            (Order::new(topology, None), online)
        }
        None => (Order::unknown(possible.numbers), online_cpus()),
    };
    let active = online.min(MOST_ACTIVE);
    let (divisor, search) = match builder.policy {
        Policy::Stock => (possible.count, Search::InTurns),
        Policy::Limit => (active, Search::InTurns),
        _ => (active, Search::NearestFirst),
    };
    Locked::new(order, search, divisor as u32, tags)
}

/// The reserved tags. They are few and never cached.
pub(crate) struct Reserved {
    words: Bitmap,
    pub(crate) tags: u32,
}

impl Reserved {
    /// Tags 0..`tags`, all free.
    pub(crate) fn new(tags: u32) -> Self {
        let words = Bitmap::new(tags);
        (0..tags).for_each(|tag| words.put(tag));
        Self { words, tags }
    }

    pub(crate) fn has(&self, tag: u32) -> bool {
        tag < self.tags
    }
}

impl Shared for Reserved {
    fn take(&self) -> (Option<u32>, bool) {
        (self.words.take(self.tags), false)
    }

    fn put(&self, tag: u32) -> bool {
        self.words.put(tag);
        false
    }
}

/// The CPU that runs this thread; it may run on another one when this returns.
#[inline]
fn current_cpu() -> usize {
    // Miri has no CPUs: each thread is on one of its own.
    if cfg!(miri) {
        return thread_number();
    }
    // SAFETY: sched_getcpu has no arguments and writes no memory.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// CPUs that may come online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Possible {
    /// How many there are.
    count: usize,
    /// The highest number + 1: some machines leave numbers out.
    numbers: usize,
}

impl Possible {
    /// As the kernel lists them (/sys/devices/system/cpu/possible); without that, as many as the C library counts, 1 where the system
    /// does not say.
    fn read() -> Self {
        let list = match cfg!(miri) {
            true => None,
            false => std::fs::read_to_string("/sys/devices/system/cpu/possible").ok(),
        };
        list.and_then(|list| Self::parse(&list)).unwrap_or_else(|| {
            let numbers = configured(libc::_SC_NPROCESSORS_CONF);
            let count = numbers;
            Self { count, numbers }
        })
    }

    /// `None` of what is no list as "0-3,64-67".
    fn parse(list: &str) -> Option<Self> {
        let (mut count, mut numbers) = (0, 0);
        for range in list.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            count += (last + 1).checked_sub(first)?;
            numbers = numbers.max(last + 1);
        }
        Some(Self { count, numbers })
    }
}

/// CPUs that are online, 1 where the system does not say.
fn online_cpus() -> usize {
    configured(libc::_SC_NPROCESSORS_ONLN)
}

fn configured(name: libc::c_int) -> usize {
    // SAFETY: sysconf takes any name; an unknown one returns -1.
    let count = unsafe { libc::sysconf(name) };
    usize::try_from(count).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::Possible;

    #[test]
    fn numbers_that_are_left_out_are_not_counted() {
        let parsed = |list| Possible::parse(list).map(|it| (it.count, it.numbers));
        assert_eq!(parsed("0-3,64-67\n"), Some((8, 68)));
        assert_eq!(parsed("0\n"), Some((1, 1)));
        assert_eq!(parsed("2,5-6"), Some((3, 7)));
        assert_eq!(parsed("\n"), None);
        assert_eq!(parsed("3-1"), None);
    }
}
