//! The free tags of an allocator, kept as its policy says.

use crate::auto::{Auto, Sizes};
use crate::builder::Builder;
use crate::caches::{self, Caches};
use crate::coarse::Coarse;
use crate::cpu::{self, Possible};
use crate::deferred::Deferred;
use crate::locked::{CacheSize, Locked, Search};
use crate::order::Order;
use crate::policy::Policy;
use crate::shards;
use crate::statistics::Statistics;

/// CPUs among which the tags are divided at most, however many are online: as in the published patch.
const MOST_ACTIVE: usize = 8;

/// A batch has space for all tags of a cache.
const _: () = assert!(caches::MOST as usize <= shards::MAX_BATCH);

pub(crate) struct Pool {
    /// First, so that the shortest paths need not look which policy it is: without caches under the others.
    auto: Auto,
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
        let other = match builder.policy {
            Policy::Stock | Policy::Limit | Policy::LimitTopology => {
                Other::Locked(Box::new(locked(builder, capacity)))
            }
            Policy::Coarse(group) => {
                let tags = (builder.reserved, builder.tags, capacity);
                let topology = builder.topology.as_ref().expect("the builder was checked");
                Other::Coarse(Box::new(Coarse::new(topology, group, tags)))
            }
            Policy::Bitmap => {
                let tags = (builder.reserved, builder.tags, capacity);
                Other::Deferred(Deferred::new(possible(builder).numbers, tags))
            }
            Policy::Auto => {
                return Self {
                    auto: auto(builder, capacity),
                    other: None,
                };
            }
        };
        Self {
            auto: Auto::without_tags(),
            other: Some(other),
        }
    }

    /// A free tag by the shortest way, without a look at whether this is a forked child: `None` where the policy has no such way or
    /// it found none.
    #[inline]
    pub(crate) fn take_cached(&self) -> Option<u32> {
        self.auto.take_cached()
    }

    /// A free tag, after `take_cached`. `None` only if there was a moment without one, tags that another thread moves counted as held.
    /// Also whether it made other tags free that waiters may not have seen.
    #[inline]
    pub(crate) fn take_shared(&self) -> (Option<u32>, bool) {
        let tag = match &self.other {
            None => return self.auto.take(),
            Some(Other::Locked(pool)) => pool.take(cpu::current()),
            Some(Other::Deferred(pool)) => pool.take(cpu::current()),
            Some(Other::Coarse(pool)) => pool.take(cpu::current()),
        };
        (tag, false)
    }

    /// Makes a tag free by the shortest way, without a look at waiters: false, and nothing done, where the policy has no such way or
    /// a thread waits (between `revoke` and `calm`).
    #[inline]
    pub(crate) fn put_cached(&self, tag: u32) -> bool {
        self.auto.put_cached(tag)
    }

    /// Makes a tag free. The caller looks at waiters before and after. Between `revoke` and `calm` the tag is where `take` of any
    /// thread finds it.
    #[inline]
    pub(crate) fn put(&self, tag: u32) -> bool {
        match &self.other {
            None => return self.auto.put(tag),
            Some(Other::Locked(pool)) => pool.put(cpu::current(), tag),
            Some(Other::Deferred(pool)) => pool.put(cpu::current(), tag),
            Some(Other::Coarse(pool)) => pool.put(cpu::current(), tag),
        }
        false
    }

    /// A thread is about to wait: makes every free tag reachable by `take` of any thread, now and until each `revoke` had its `calm`.
    /// Tags that another thread was moving meanwhile are reachable as well when this returns, or that thread calls `put`.
    pub(crate) fn revoke(&self) {
        if self.other.is_none() {
            self.auto.revoke();
        }
    }

    /// A waiter has ended its wait: one for each `revoke`.
    pub(crate) fn calm(&self) {
        if self.other.is_none() {
            self.auto.calm();
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

    pub(crate) fn statistics(&self) -> Statistics {
        match &self.other {
            None => self.auto.statistics(),
            Some(Other::Deferred(_)) => Statistics::default(),
            Some(Other::Locked(pool)) => pool.statistics(),
            Some(Other::Coarse(pool)) => pool.statistics(),
        }
    }
}

/// Those of the builder, with numbers for the CPUs of this machine at least.
fn possible(builder: &Builder) -> Possible {
    let mut possible = Possible::read();
    if let Some(topology) = &builder.topology {
        possible.count = topology.cpus.len();
        possible.numbers = possible.numbers.max(topology.cpus.len());
    }
    if let Some(cpus) = builder.possible_cpus {
        possible.count = cpus as usize;
        possible.numbers = possible.numbers.max(cpus as usize);
    }
    possible
}

fn auto(builder: &Builder, capacity: u32) -> Auto {
    let sizes = Sizes {
        reserved: builder.reserved,
        size: builder.tags,
        capacity,
    };
    let cpus = possible(builder).numbers;
    let caches = match builder.without_rseq {
        true => None,
        false => Caches::new(cpus),
    };
    Auto::new(&sizes, caches, (cpus, cpu::online().min(MOST_ACTIVE)))
}

fn locked(builder: &Builder, capacity: u32) -> Locked {
    let possible = possible(builder);
    let (order, online) = match &builder.topology {
        Some(topology) => {
            let online = topology.cpus.iter().flatten().count();
            (Order::new(topology, None), online)
        }
        None => (Order::unknown(possible.numbers), cpu::online()),
    };
    let divisor = match builder.policy {
        Policy::Stock => possible.count,
        _ => online.min(MOST_ACTIVE),
    };
    let search = match builder.policy {
        Policy::Stock | Policy::Limit => Search::InTurns,
        _ => Search::NearestFirst,
    };
    let size = CacheSize {
        divisor: divisor as u32,
    };
    Locked::new(
        order,
        search,
        size,
        (builder.reserved, builder.tags, capacity),
    )
}
