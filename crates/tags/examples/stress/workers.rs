//! What the threads of a stress do with the allocator.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nearfar_tags::Get;

use crate::owners::Owner;
use crate::storm::{May, Target, allow, put_taken};
use crate::system::{ThreadId, run_on};
use crate::variants::possible_cpus;

/// What all workers share.
pub struct Shared<'a> {
    pub target: &'a Target,
    pub is_over: AtomicBool,
    /// Workers that wait for tags have work only if this is set.
    pub may_wait: bool,
    /// Whether the signal handler may use the allocator.
    pub handler_may_take: bool,
    pub threads: Box<[AtomicU32]>,
    /// Milliseconds from `start` to the beginning of the worker's wait; 0 for none.
    pub waiting: Box<[AtomicU64]>,
    pub start: Instant,
    pub gets: AtomicU64,
    /// Tags that one thread took and another will put.
    pub passed: Mutex<Vec<u32>>,
}

/// Whoever puts the tags of `Shared::passed`.
const ANYBODY: Owner = Owner(u32::MAX - 1);

pub struct Worker<'a> {
    shared: &'a Shared<'a>,
    index: usize,
    owner: Owner,
    random: fastrand::Rng,
    held: VecDeque<u32>,
    gets: u64,
}

impl<'a> Worker<'a> {
    pub fn new(shared: &'a Shared<'a>, index: usize, seed: u64) -> Self {
        Self {
            shared,
            index,
            owner: Owner(index as u32 + 1),
            random: fastrand::Rng::with_seed(seed),
            held: VecDeque::new(),
            gets: 0,
        }
    }

    /// Works until the end, at least one turn, then puts all tags.
    pub fn run(mut self) {
        let shared = self.shared;
        shared.threads[self.index].store(ThreadId::current().0 as u32, Ordering::Relaxed);
        loop {
            match self.random.u32(..64) {
                0 => run_on(Some(self.random.u32(..possible_cpus()))),
                1 => run_on(None),
                _ => {}
            }
            self.turn();
            while let Some(tag) = self.held.pop_front() {
                self.put(tag);
            }
            if shared.is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        allow(May::Nothing);
        put_taken(shared.target, self.owner);
        shared.threads[self.index].store(0, Ordering::Relaxed);
        shared.gets.fetch_add(self.gets, Ordering::Relaxed);
    }

    fn turn(&mut self) {
        match (self.index % 6, self.shared.may_wait) {
            (1, true) => self.wait(),
            (2, _) => self.batches(),
            (3, true) => self.futures(),
            (4, _) => self.brief_thread(),
            (5, _) => self.pass(),
            _ => self.try_and_hold(),
        }
    }

    /// Holds several tags; puts the oldest on a miss.
    fn try_and_hold(&mut self) {
        let may = match (self.shared.handler_may_take, self.shared.may_wait) {
            (false, _) => May::Nothing,
            (true, true) => May::Take,
            (true, false) => May::TakeAndPut,
        };
        allow(may);
        let depth = self.random.usize(1..=32);
        for _ in 0..200 {
            let tag = self.shared.target.tags.try_take();
            let is_miss = tag.is_none();
            self.held.extend(tag.inspect(|&tag| self.claim(tag)));
            if (is_miss || self.held.len() > depth)
                && let Some(tag) = self.held.pop_front()
            {
                self.put(tag);
            }
        }
        allow(May::Nothing);
        put_taken(self.shared.target, self.owner);
    }

    fn wait(&mut self) {
        let tags = &self.shared.target.tags;
        let tag = match self.random.u32(..4) {
            0 => tags.take_timeout(Duration::from_micros(self.random.u64(..200))),
            _ => {
                self.begin_wait();
                let tag = tags.take();
                self.end_wait();
                Some(tag)
            }
        };
        if let Some(tag) = tag {
            self.claim(tag);
            if self.random.u32(..8) == 0 {
                thread::yield_now();
            }
            self.put(tag);
        }
    }

    fn batches(&mut self) {
        let batch = self
            .shared
            .target
            .tags
            .try_get_batch(self.random.usize(1..=8));
        for &tag in batch.numbers() {
            self.claim(tag);
        }
        for &tag in batch.numbers() {
            self.shared.target.owners.release(tag, self.owner);
        }
    }

    /// Several futures at once; some are dropped before they are ready, some after.
    fn futures(&mut self) {
        let tags = &self.shared.target.tags;
        let wake = Arc::new(Unpark(thread::current()));
        let waker = Waker::from(wake);
        let mut context = Context::from_waker(&waker);
        let mut futures: Vec<Pin<Box<Get<'_>>>> = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            futures.push(Box::pin(tags.get_async()));
        }
        self.begin_wait();
        while !futures.is_empty() {
            let before = futures.len();
            futures.retain_mut(|future| match future.as_mut().poll(&mut context) {
                Poll::Ready(tag) => {
                    self.claim(tag.number());
                    self.shared.target.owners.release(tag.number(), self.owner);
                    false
                }
                Poll::Pending => true,
            });
            if futures.len() == before {
                if self.random.bool() {
                    drop(futures.swap_remove(0));
                } else {
                    thread::park();
                }
            }
        }
        self.end_wait();
    }

    /// A thread that ends at once, by a panic now and then.
    fn brief_thread(&mut self) {
        let shared = self.shared;
        // A release build of the workspace aborts instead.
        let panics = self.random.bool() && cfg!(panic = "unwind");
        let owner = self.owner;
        let ended = thread::scope(|scope| {
            let brief = scope.spawn(move || {
                let Some(tag) = shared.target.tags.try_get() else {
                    return;
                };
                shared.target.owners.claim(tag.number(), owner);
                shared.target.owners.release(tag.number(), owner);
                if panics {
                    // Without the panic hook, which prints.
                    resume_unwind(Box::new(()));
                }
            });
            brief.join()
        });
        self.gets += 1;
        drop(ended);
        thread::sleep(Duration::from_micros(200));
    }

    /// Puts tags that another thread took.
    fn pass(&mut self) {
        let shared = self.shared;
        for _ in 0..50 {
            let Some(tag) = shared.target.tags.try_take() else {
                break;
            };
            self.claim(tag);
            shared.target.owners.pass(tag, self.owner, ANYBODY);
            let mut passed = shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
            passed.push(tag);
            let most = if shared.may_wait { 1 } else { 8 };
            let other = if passed.len() > most {
                passed.swap_remove(0)
            } else {
                continue;
            };
            drop(passed);
            shared.target.owners.release(other, ANYBODY);
            shared.target.tags.put(other);
        }
        put_passed(shared);
    }

    fn claim(&self, tag: u32) {
        self.shared.target.owners.claim(tag, self.owner);
    }

    fn put(&mut self, tag: u32) {
        self.gets += 1;
        self.shared.target.owners.release(tag, self.owner);
        self.shared.target.tags.put(tag);
    }

    fn begin_wait(&self) {
        let since = self.shared.start.elapsed().as_millis() as u64;
        self.shared.waiting[self.index].store(since.max(1), Ordering::Relaxed);
    }

    fn end_wait(&mut self) {
        self.gets += 1;
        self.shared.waiting[self.index].store(0, Ordering::Relaxed);
    }
}

/// Puts every tag that was passed on.
fn put_passed(shared: &Shared<'_>) {
    let mut passed = shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
    let tags = std::mem::take(&mut *passed);
    drop(passed);
    for tag in tags {
        shared.target.owners.release(tag, ANYBODY);
        shared.target.tags.put(tag);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
