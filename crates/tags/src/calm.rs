//! When the gate in front of the caches may open, and how many tags each CPU may cache then.
//!
//! A membarrier interrupts all CPUs that run the process. So the gate stays closed for a while after the last get that failed; caches
//! are smaller after an opening that did not last, and when they cannot be smaller, the gate stays closed for longer.

use crate::sync::{AtomicU32, AtomicU64, Ordering, now_us};

/// A cache has space for at least this many: N / active CPUs is 8 or more.
const MIN_SHARE: u32 = 4;
/// The gate is closed for this long at least.
const MIN_CLOSED_US: u64 = 1_000;
const MAX_CLOSED_US: u64 = 256_000;
/// An opening that lasted less than this many times the closing before it was too early.
const OPEN_FACTOR: u64 = 8;
/// A CPU takes and puts alone if no other did for this long, which is more than the time slices of a few threads: one that is preempted
/// for a moment comes back.
const ALONE_US: u64 = 32_000;
/// More than one CPU, in `cpu`.
const SEVERAL: u32 = u32::MAX;

#[repr(align(128))]
pub(crate) struct Calm {
    /// The most that a cache can hold.
    most: u32,
    /// 1 if a get failed since `since_us`.
    missed: AtomicU32,
    /// Number + 1 of the only CPU that looked since `since_us`, 0 for none.
    cpu: AtomicU32,
    /// When several CPUs were last seen to take and put, 0 for never.
    several_us: AtomicU64,
    /// The fewest free tags of all looks since `since_us`.
    fewest: AtomicU32,
    /// When the gate opened or closed, or when it last had to stay closed.
    since_us: AtomicU64,
    /// How long the gate is closed without a get that fails.
    closed_us: AtomicU64,
    /// How often `share` is halved.
    halvings: AtomicU32,
    /// Tags that a CPU may cache.
    share: AtomicU32,
    /// Tags that all caches may hold now, their sum.
    claimed: AtomicU32,
    /// CPUs that gave their share back since the gate was closed.
    active: AtomicU32,
    revocations: AtomicU64,
}

impl Calm {
    /// For caches of `most` tags, at first those of `cpus` CPUs.
    pub(crate) fn new(most: u32, size: u32, cpus: usize) -> Self {
        let this = Self {
            most,
            missed: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            several_us: AtomicU64::new(0),
            fewest: AtomicU32::new(u32::MAX),
            since_us: AtomicU64::new(0),
            closed_us: AtomicU64::new(MIN_CLOSED_US),
            halvings: AtomicU32::new(0),
            share: AtomicU32::new(0),
            claimed: AtomicU32::new(0),
            active: AtomicU32::new(0),
            revocations: AtomicU64::new(0),
        };
        let share = this.share_of(cpus as u32, size / 2);
        this.share.store(share, Ordering::Relaxed);
        this
    }

    pub(crate) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Relaxed)
    }

    /// Tags that all caches may hold now.
    pub(crate) fn claimed(&self) -> u32 {
        self.claimed.load(Ordering::SeqCst)
    }

    /// A share of `budget` for one more cache; `None` if all is claimed.
    pub(crate) fn claim(&self, budget: u32) -> Option<u32> {
        let share = self.share.load(Ordering::Relaxed);
        let add = |claimed: u32| (claimed + share <= budget).then_some(claimed + share);
        let claimed = self
            .claimed
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        claimed.is_ok().then_some(share)
    }

    /// A share that was claimed is not used.
    pub(crate) fn unclaim(&self, share: u32) {
        self.claimed.fetch_sub(share, Ordering::SeqCst);
    }

    /// A CPU that cached, or would have, for the size of the next shares.
    pub(crate) fn note_active(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_miss(&self) {
        // Read first: all CPUs keep the line while gets go on to fail.
        if self.missed.load(Ordering::Relaxed) == 0 {
            self.missed.store(1, Ordering::Relaxed);
        }
    }

    /// A caller waited: another CPU wants tags, even if it does not run a caller now.
    pub(crate) fn note_wait(&self) {
        self.cpu.store(SEVERAL, Ordering::Relaxed);
        self.note_miss();
    }

    pub(crate) fn note_closing(&self) {
        let now = now_us();
        let opened = self.since_us.swap(now, Ordering::Relaxed);
        let closed = self.closed_us.load(Ordering::Relaxed);
        let is_first = self.revocations.fetch_add(1, Ordering::Relaxed) == 0;
        let lasted = now.saturating_sub(opened);
        if is_first || lasted >= closed * OPEN_FACTOR {
            self.closed_us.store(MIN_CLOSED_US, Ordering::Relaxed);
            self.halvings.store(0, Ordering::Relaxed);
        } else if self.share.load(Ordering::Relaxed) > MIN_SHARE {
            self.halvings.fetch_add(1, Ordering::Relaxed);
        } else {
            let longer = (closed * 2).min(MAX_CLOSED_US);
            self.closed_us.store(longer, Ordering::Relaxed);
        }
    }

    /// A look while the gate is closed, on this CPU, at so many free tags of `size`: true if the gate may open.
    pub(crate) fn look(&self, cpu: usize, free: u32, size: u32) -> bool {
        // A thread without an area has the highest number: it counts as several CPUs.
        let cpu = u32::try_from(cpu).map_or(SEVERAL, |cpu| cpu.saturating_add(1));
        let seen = self.cpu.load(Ordering::Relaxed);
        if seen != cpu && seen != SEVERAL {
            let now = if seen == 0 { cpu } else { SEVERAL };
            self.cpu.store(now, Ordering::Relaxed);
        }
        self.fewest.fetch_min(free, Ordering::Relaxed);
        let now = now_us();
        let since = self.since_us.load(Ordering::Relaxed);
        let order = (Ordering::Relaxed, Ordering::Relaxed);
        if now.saturating_sub(since) < self.closed_us.load(Ordering::Relaxed)
            || (self.since_us.compare_exchange(since, now, order.0, order.1)).is_err()
        {
            return false;
        }
        let has_missed = self.missed.swap(0, Ordering::Relaxed) != 0;
        let only = self.cpu.swap(0, Ordering::Relaxed);
        if only == SEVERAL {
            self.several_us.store(now, Ordering::Relaxed);
        }
        let is_sole = only == cpu && self.is_alone(cpu, now);
        let fewest = self.fewest.swap(u32::MAX, Ordering::Relaxed);
        let share = match (is_sole, has_missed) {
            // Where one CPU takes and puts, a cache makes no get fail.
            (true, _) => self.share_of(1, size / 2),
            (false, true) => return false,
            (false, false) => {
                let active = self.active.load(Ordering::Relaxed).max(2);
                let budget = (fewest / 2).min(size / 2);
                if budget / active < MIN_SHARE {
                    return false;
                }
                self.share_of(active.next_power_of_two(), budget)
            }
        };
        self.share.store(share, Ordering::Relaxed);
        true
    }

    /// Whether this CPU, the only one since the last look in time, has been that for long.
    fn is_alone(&self, cpu: u32, now: u64) -> bool {
        if cpu == SEVERAL {
            return false;
        }
        let several = self.several_us.load(Ordering::Relaxed);
        several == 0 || now.saturating_sub(several) >= ALONE_US
    }

    /// The gate is open.
    pub(crate) fn note_opening(&self) {
        self.active.store(0, Ordering::Relaxed);
    }

    fn share_of(&self, cpus: u32, budget: u32) -> u32 {
        let share = (budget / cpus.max(1)).min(self.most);
        let halved = share >> self.halvings.load(Ordering::Relaxed).min(31);
        halved.max(MIN_SHARE)
    }
}
