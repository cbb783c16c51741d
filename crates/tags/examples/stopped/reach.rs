//! How long another thread needs for the free tags of a thread that is stopped.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_tags::{Policy, Tags};

use crate::system::{ThreadId, run_on};
use crate::tracer::Tracer;
use crate::variants::{Variant, possible_cpus};

/// Where the thread is when it is stopped; the cache of its CPU is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Between two calls.
    Outside,
    /// Anywhere in a loop of `try_take` and `put`: only for policies without locks.
    Inside,
}

/// What was measured.
#[derive(Default, Debug)]
pub struct Reached {
    /// The longest time for one tag of each round, in ascending order.
    pub longest: Vec<Duration>,
    /// The time for all tags of each round, in ascending order.
    pub all: Vec<Duration>,
    /// Rounds that are not counted: the measuring thread was preempted.
    pub preempted: usize,
    /// Gets that returned no tag while one was free that no thread could be moving.
    pub misses: u64,
    /// The fewest tags that were reached in a round, of those that were free.
    pub fewest: u32,
    pub expected: u32,
    /// As long as fewer are reached, some are free that no thread is moving.
    certain: u32,
}

/// The value below which a share of sorted values lies.
pub fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let index = (sorted.len() as f64 * share) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(index.min(last)).copied().unwrap_or_default()
}

struct Stage {
    tags: Tags,
    /// The thread that is stopped.
    victim: AtomicI32,
    phase: AtomicU32,
    is_over: AtomicBool,
}

/// Phases of a round.
const FILL: u32 = 1;
const FILLED: u32 = 2;
const REST: u32 = 3;

/// Tags that a thread may hold or have on their way between its cache and shared words, or between these, under `Auto`.
const IN_TRANSIT: u32 = 32;
/// Threads that take and put meanwhile.
const MAX_LOADS: u32 = 8;
/// A tag that is not reached by then is stuck.
const STUCK: Duration = Duration::from_secs(30);

pub fn measure(
    variant: Variant,
    tags: u32,
    moment: Moment,
    length: Duration,
) -> io::Result<Reached> {
    let mut tracer = Tracer::new()?;
    let stage = Stage {
        tags: variant.builder(tags).build().expect("the size is possible"),
        victim: AtomicI32::new(0),
        phase: AtomicU32::new(REST),
        is_over: AtomicBool::new(false),
    };
    let loads = possible_cpus().min(MAX_LOADS);
    thread::scope(|scope| {
        scope.spawn(|| stage.victim(moment));
        for _ in 0..loads {
            scope.spawn(|| stage.load());
        }
        run_on(Some(0));
        let transit = match moment {
            Moment::Outside => 0,
            Moment::Inside => IN_TRANSIT,
        };
        let expected = tags - loads - transit;
        let moved = match variant.policy {
            Policy::Auto => loads * IN_TRANSIT,
            _ => 0,
        };
        let reached = Reached {
            expected,
            fewest: expected,
            certain: expected.saturating_sub(moved),
            ..Reached::default()
        };
        let result = rounds(&stage, &mut tracer, reached, length);
        stage.is_over.store(true, Ordering::Relaxed);
        run_on(None);
        result
    })
}

fn rounds(
    stage: &Stage,
    tracer: &mut Tracer,
    mut reached: Reached,
    length: Duration,
) -> io::Result<Reached> {
    let end = Instant::now() + length;
    let mut held = Vec::new();
    loop {
        stage.phase.store(FILL, Ordering::Release);
        while stage.phase.load(Ordering::Acquire) == FILL {
            thread::yield_now();
        }
        let victim = ThreadId(stage.victim.load(Ordering::Relaxed));
        tracer.stop(victim)?;
        reached.round(&stage.tags, &mut held);
        tracer.resume(victim)?;
        stage.phase.store(REST, Ordering::Release);
        held.drain(..).for_each(|tag| stage.tags.put(tag));
        if Instant::now() >= end {
            break;
        }
    }
    reached.longest.sort_unstable();
    reached.all.sort_unstable();
    Ok(reached)
}

impl Reached {
    fn round(&mut self, tags: &Tags, held: &mut Vec<u32>) {
        let preempted = preemptions();
        let start = Instant::now();
        let mut last = start;
        let mut longest = Duration::ZERO;
        while (held.len() as u32) < self.expected {
            match tags.try_take() {
                Some(tag) => {
                    held.push(tag);
                    let now = Instant::now();
                    longest = longest.max(now - last);
                    last = now;
                }
                None if last.elapsed() > STUCK => break,
                None => self.misses += u64::from((held.len() as u32) < self.certain),
            }
        }
        self.fewest = self.fewest.min(held.len() as u32);
        if preemptions() == preempted {
            self.longest.push(longest);
            self.all.push(last - start);
        } else {
            self.preempted += 1;
        }
    }
}

impl Stage {
    /// Fills the cache of the last CPU, over and over.
    fn victim(&self, moment: Moment) {
        run_on(Some(possible_cpus() - 1));
        self.victim.store(ThreadId::current().0, Ordering::Relaxed);
        let mut held = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            match self.phase.load(Ordering::Acquire) {
                FILL => {
                    held.extend(std::iter::from_fn(|| self.tags.try_take()));
                    held.drain(..).for_each(|tag| self.tags.put(tag));
                    self.phase.store(FILLED, Ordering::Release);
                }
                FILLED if moment == Moment::Inside => {
                    if let Some(tag) = self.tags.try_take() {
                        self.tags.put(tag);
                    }
                }
                FILLED => std::hint::spin_loop(),
                _ => thread::yield_now(),
            }
        }
    }

    /// Takes a tag and puts it, like any other user.
    fn load(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            for _ in 0..100 {
                if let Some(tag) = self.tags.try_take() {
                    self.tags.put(tag);
                }
            }
        }
    }
}

/// How often the calling thread was preempted.
fn preemptions() -> i64 {
    // SAFETY: zeroed is a valid rusage, and getrusage writes one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw
    }
}
