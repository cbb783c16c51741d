//! One allocator under stress, and what must hold at the end.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::owners::Owners;
use crate::storm::{Storm, Target};
use crate::variants::{Variant, possible_cpus};
use crate::workers::{Shared, Worker};

/// Threads for each CPU.
const OVERSUBSCRIPTION: u32 = 8;
/// A wait that lasts this long is a lost wake-up: at nice 19 a thread may not run for seconds.
const MAX_WAIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    tags: u32,
    is_resized: bool,
    may_wait: bool,
}

pub const SCENARIOS: [Scenario; 8] = [
    scenario(255, false, false),
    scenario(4, false, true),
    scenario(1000, true, false),
    scenario(1, false, true),
    scenario(20, true, true),
    scenario(255, false, true),
    scenario(20, false, false),
    scenario(255, true, true),
];

const fn scenario(tags: u32, is_resized: bool, may_wait: bool) -> Scenario {
    Scenario {
        tags,
        is_resized,
        may_wait,
    }
}

/// Counts of one scenario or of several.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    pub gets: u64,
    pub waits: u64,
    /// Caches that were filled: 0 if `Auto` has no restartable sequences.
    pub refills: u64,
    pub signals: u64,
    pub resizes: u64,
    pub duplicates: u64,
    pub lost: u64,
    pub longest_wait: Duration,
    /// Workers whose wait did not end.
    pub lost_wake_ups: Vec<usize>,
}

impl Counts {
    pub fn is_correct(&self) -> bool {
        self.duplicates == 0 && self.lost == 0 && self.lost_wake_ups.is_empty()
    }
}

/// Runs the scenario. If a wait does not end, its threads are left behind: the caller ends the process.
pub fn run(variant: Variant, scenario: Scenario, length: Duration, seed: u64) -> Counts {
    let tags = variant.builder(scenario.tags).build();
    // Leaked where threads are left behind.
    let target: &'static Target = Box::leak(Box::new(Target {
        tags: tags.expect("the size is possible"),
        owners: Owners::new(scenario.tags),
        handled: AtomicU64::new(0),
    }));
    let workers = (OVERSUBSCRIPTION * possible_cpus()) as usize;
    let shared: &'static Shared<'static> = Box::leak(Box::new(Shared {
        target,
        is_over: AtomicBool::new(false),
        may_wait: scenario.may_wait,
        handler_may_take: variant.is_async_signal_safe(),
        threads: (0..workers).map(|_| AtomicU32::new(0)).collect(),
        waiting: (0..workers).map(|_| AtomicU64::new(0)).collect(),
        start: Instant::now(),
        gets: AtomicU64::new(0),
        passed: Mutex::default(),
    }));
    let storm = Storm::new(target);
    let handles: Vec<_> = (0..workers)
        .map(|index| {
            let worker = Worker::new(shared, index, seed * 1000 + index as u64);
            thread::spawn(move || worker.run())
        })
        .collect();
    let is_over = || shared.is_over.load(Ordering::Relaxed);
    let mut counts = Counts::default();
    thread::scope(|scope| {
        let signals = scope.spawn(|| storm.send(&shared.threads, is_over));
        let resizes = scope.spawn(|| resize(target, scenario, is_over));
        counts.lost_wake_ups = watch(shared, length, &mut counts.longest_wait);
        shared.is_over.store(true, Ordering::Relaxed);
        counts.resizes = resizes.join().expect("the resizing thread does not panic");
        signals
            .join()
            .expect("the signalling thread does not panic");
    });
    if counts.lost_wake_ups.is_empty() {
        counts.lost_wake_ups = watch_end(shared, &handles, &mut counts.longest_wait);
    }
    counts.signals = storm.handled();
    counts.duplicates = target.owners.duplicates();
    if !counts.lost_wake_ups.is_empty() {
        return counts;
    }
    for handle in handles {
        handle.join().expect("a worker does not panic");
    }
    drop(storm);
    counts.gets = shared.gets.load(Ordering::Relaxed);
    let statistics = target.tags.statistics();
    (counts.waits, counts.refills) = (statistics.waits, statistics.refills);
    count_free(target, scenario, &mut counts);
    release(shared);
    counts
}

/// Frees what `run` leaked; no thread uses it any more.
fn release(shared: &'static Shared<'static>) {
    let target = std::ptr::from_ref(shared.target).cast_mut();
    let shared = std::ptr::from_ref(shared).cast_mut();
    // SAFETY: both come from `Box::leak`, every thread that used them was joined, and the signal handler lost its target.
    unsafe {
        drop(Box::from_raw(shared));
        drop(Box::from_raw(target));
    }
}

/// Workers that waited too long.
fn watch(shared: &Shared<'_>, length: Duration, longest: &mut Duration) -> Vec<usize> {
    while shared.start.elapsed() < length {
        thread::sleep(Duration::from_millis(20));
        let late = late(shared, longest);
        if !late.is_empty() {
            return late;
        }
    }
    Vec::new()
}

/// As `watch`, until all workers have ended.
fn watch_end(
    shared: &Shared<'_>,
    workers: &[thread::JoinHandle<()>],
    longest: &mut Duration,
) -> Vec<usize> {
    while workers.iter().any(|worker| !worker.is_finished()) {
        thread::sleep(Duration::from_millis(1));
        let late = late(shared, longest);
        if !late.is_empty() {
            return late;
        }
    }
    Vec::new()
}

fn late(shared: &Shared<'_>, longest: &mut Duration) -> Vec<usize> {
    let now = shared.start.elapsed();
    let mut late = Vec::new();
    for (index, since) in shared.waiting.iter().enumerate() {
        let since = since.load(Ordering::Relaxed);
        if since != 0 {
            let wait = now.saturating_sub(Duration::from_millis(since));
            *longest = wait.max(*longest);
            if wait > MAX_WAIT {
                late.push(index);
            }
        }
    }
    late
}

fn resize(target: &Target, scenario: Scenario, is_over: impl Fn() -> bool) -> u64 {
    let mut resizes = 0;
    while scenario.is_resized && !is_over() {
        thread::sleep(Duration::from_millis(1));
        let size = fastrand::u32(scenario.tags / 2..=scenario.tags);
        target.tags.resize(size).expect("the size is possible");
        resizes += 1;
    }
    resizes
}

/// One thread takes every tag: each exists once.
fn count_free(target: &Target, scenario: Scenario, counts: &mut Counts) {
    target
        .tags
        .resize(scenario.tags)
        .expect("the size is possible");
    let mut free = HashSet::new();
    while let Some(tag) = target.tags.try_take() {
        if !free.insert(tag) {
            counts.duplicates += 1;
            return;
        }
    }
    counts.lost += u64::from(scenario.tags) - free.len() as u64;
}
