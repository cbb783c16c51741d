//! A worker: keeps its share of the depth in flight and completes what is done.
//!
//! ```text
//!  complete what is done ─► put ─► take a tag for each I/O that is missing ─► submit
//!       ▲                            │ none is free
//!       │                            ▼
//!       └───── sleep until the next I/O is done, or a tag is handed over
//! ```
//!
//! A worker that waits for a tag goes on completing: in the block layer the process sleeps and its CPU still takes the device's
//! interrupts.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use nearfar_runs::Histogram;
use nearfar_tags::Get;

use super::allocator::Allocator;
use super::device::{Device, Duplicate, Padded};
use crate::conditions::{self, usage_of};

/// What all workers do now.
pub(super) const WARMING_UP: u8 = 0;
pub(super) const MEASURING: u8 = 1;
pub(super) const ENDED: u8 = 2;

/// The longest sleep of a worker that has nothing to complete.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// What all workers share.
pub(super) struct Shared<'a> {
    pub(super) tags: &'a Allocator,
    pub(super) device: Device<'a>,
    pub(super) phase: AtomicU8,
    /// Workers that have begun to measure.
    pub(super) measuring: AtomicUsize,
    pub(super) started: Instant,
    pub(super) sleepers: Vec<Padded<Sleeper>>,
    /// Most completions before a worker submits again.
    pub(super) batch: u32,
    /// Whether a worker without a tag has a place among the waiters at once.
    pub(super) is_queueing: bool,
}

/// A worker that may sleep.
#[derive(Default)]
pub(super) struct Sleeper {
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Sleeper {
    fn wake(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn sleep(&self, time: Duration) {
        self.is_asleep.store(true, Ordering::SeqCst);
        std::thread::park_timeout(time);
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}

impl Shared<'_> {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Tells all workers what to do now.
    pub(super) fn set_phase(&self, phase: u8) {
        self.phase.store(phase, Ordering::Release);
        self.sleepers.iter().for_each(|sleeper| sleeper.0.wake());
    }
}

/// What one worker measured.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) elapsed_s: f64,
    /// CPU time, as the scheduler counts it.
    pub(super) cpu_s: f64,
    /// The kernel's part of it, 0 to 1, as getrusage(2) divides it; `None` where it counted no time.
    pub(super) system_share: Option<f64>,
    /// Without a tag that it wanted.
    pub(super) wait_s: f64,
    pub(super) hand_over_ns: Histogram,
    /// How long a wait that had not ended at the end had lasted.
    pub(super) open_wait_ns: Option<u64>,
}

/// One worker.
pub(super) struct Worker<'a> {
    shared: &'a Shared<'a>,
    index: usize,
    /// I/Os that it keeps in flight.
    share: u64,
    /// Who may complete its I/Os, one of them at random.
    handlers: std::ops::Range<usize>,
    random: fastrand::Rng,
    last_due_ns: u64,
    submitted: u64,
    /// Whose I/Os it completes first.
    first: usize,
    wait: Option<Wait<'a>>,
    waited_ns: u64,
    hand_over_ns: Histogram,
    waker: Waker,
}

struct Wait<'a> {
    /// Its place among the waiters.
    get: Option<Pin<Box<Get<'a>>>>,
    since_ns: u64,
    /// Counted from here: the beginning of the measurement where that is later.
    counted_from_ns: u64,
}

struct WakeThread(Thread);

impl Wake for WakeThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A worker's counts at one moment.
struct Mark {
    at_ns: u64,
    completed: u64,
    waited_ns: u64,
    cpu_s: f64,
    user_s: f64,
    system_s: f64,
}

impl Mark {
    fn system_share_since(&self, before: &Self) -> Option<f64> {
        let system_s = self.system_s - before.system_s;
        let both_s = system_s + self.user_s - before.user_s;
        (both_s > 0.0).then(|| system_s / both_s)
    }
}

impl<'a> Worker<'a> {
    /// A worker that runs on the calling thread.
    pub(super) fn new(
        shared: &'a Shared<'a>,
        index: usize,
        share: u64,
        handlers: std::ops::Range<usize>,
    ) -> Self {
        let thread = std::thread::current();
        let _ = shared.sleepers[index].0.thread.set(thread.clone());
        Self {
            shared,
            index,
            share,
            handlers,
            random: fastrand::Rng::new(),
            last_due_ns: 0,
            submitted: 0,
            first: 0,
            wait: None,
            waited_ns: 0,
            hand_over_ns: Histogram::new(),
            waker: Arc::new(WakeThread(thread)).into(),
        }
    }

    /// Works until the measurement ends.
    ///
    /// # Errors
    /// A tag that was handed out twice.
    pub(super) fn run(mut self) -> Result<Measured, Duplicate> {
        // Workers that begin at once would go on in step with each other and with those of other samples.
        let offset_ns = self.random.u64(0..=self.shared.device.service_ns());
        std::thread::sleep(Duration::from_nanos(offset_ns).min(LONGEST_SLEEP));
        let warmed_up = self.work_while(WARMING_UP);
        self.restart_wait();
        self.hand_over_ns = Histogram::new();
        let before = self.mark();
        self.shared.measuring.fetch_add(1, Ordering::Relaxed);
        warmed_up?;
        self.work_while(MEASURING)?;
        self.restart_wait();
        let after = self.mark();
        Ok(Measured {
            operations: after.completed - before.completed,
            elapsed_s: seconds(after.at_ns - before.at_ns),
            cpu_s: after.cpu_s - before.cpu_s,
            system_share: after.system_share_since(&before),
            wait_s: seconds(after.waited_ns - before.waited_ns),
            open_wait_ns: self.wait.map(|wait| after.at_ns - wait.since_ns),
            hand_over_ns: self.hand_over_ns,
        })
    }

    fn mark(&self) -> Mark {
        let usage = usage_of(libc::RUSAGE_THREAD);
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Mark {
            at_ns: self.shared.now_ns(),
            completed: self.shared.device.completed(self.index),
            waited_ns: self.waited_ns,
            cpu_s: conditions::thread_time().as_secs_f64(),
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
        }
    }

    /// Counts the wait so far.
    fn restart_wait(&mut self) {
        let now = self.shared.now_ns();
        if let Some(wait) = &mut self.wait {
            self.waited_ns += now - wait.counted_from_ns;
            wait.counted_from_ns = now;
        }
    }

    fn work_while(&mut self, phase: u8) -> Result<(), Duplicate> {
        while self.shared.phase.load(Ordering::Relaxed) == phase {
            let completed = self.complete();
            let submitted = self.submit()?;
            if completed == 0 && submitted == 0 {
                self.sleep();
            }
        }
        Ok(())
    }

    /// Completes what is done, up to a batch of it; another submitter's first each time, so that none has to wait for the others.
    fn complete(&mut self) -> u32 {
        let (device, now) = (&self.shared.device, self.shared.now_ns());
        let mut count = 0;
        let workers = self.shared.sleepers.len();
        self.first = (self.first + 1) % workers;
        for submitter in (self.first..workers).chain(0..self.first) {
            let pair = (submitter, self.index);
            let is_done = || {
                device
                    .next_due(submitter, self.index)
                    .is_some_and(|due| due <= now)
            };
            let mut completed = false;
            while count < self.shared.batch && is_done() {
                // Each tag is free from its own put on, not from the first of the batch.
                let Some(tag) = device.complete(pair, self.shared.now_ns()) else {
                    break;
                };
                self.shared.tags.put(tag);
                (count, completed) = (count + 1, true);
            }
            if completed && submitter != self.index {
                self.shared.sleepers[submitter].0.wake();
            }
        }
        count
    }

    /// Submits until its share is in flight or no tag is free.
    fn submit(&mut self) -> Result<u32, Duplicate> {
        let device = &self.shared.device;
        let mut count = 0;
        while self.submitted - device.completed(self.index) < self.share
            && let Some(tag) = self.tag()
        {
            let handler = self.random.usize(self.handlers.clone());
            let now = self.shared.now_ns();
            device.submit((self.index, handler), &mut self.last_due_ns, tag, now)?;
            self.submitted += 1;
            count += 1;
        }
        Ok(count)
    }

    /// A tag. Without one the worker waits: with I/O in flight it tries again after the next completions, as all that are woken do in
    /// the block layer; without, or where all have to, it has a place among the waiters.
    fn tag(&mut self) -> Option<u32> {
        let tags = self.shared.tags;
        if let Some(Wait { get: Some(get), .. }) = &mut self.wait {
            return match get.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                Poll::Ready(tag) => Some(self.end_wait(tag.into_number())),
                Poll::Pending => None,
            };
        }
        if let Some(tag) = tags.take() {
            return Some(self.end_wait(tag));
        }
        let now = self.shared.now_ns();
        let wait = self.wait.get_or_insert(Wait {
            get: None,
            since_ns: now,
            counted_from_ns: now,
        });
        let has_none_in_flight = self.submitted == self.shared.device.completed(self.index);
        if (self.shared.is_queueing || has_none_in_flight)
            && let Some(get) = tags.wait()
        {
            let mut get = Box::pin(get);
            if let Poll::Ready(tag) = get.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                return Some(self.end_wait(tag.into_number()));
            }
            wait.get = Some(get);
        }
        None
    }

    fn end_wait(&mut self, tag: u32) -> u32 {
        if let Some(wait) = self.wait.take() {
            let (now, freed) = (self.shared.now_ns(), self.shared.device.freed_ns(tag));
            self.waited_ns += now - wait.counted_from_ns;
            self.hand_over_ns
                .record(now.saturating_sub(freed.max(wait.since_ns)));
        }
        tag
    }

    /// Until the next I/O is done, another worker may have submitted one that is, or a tag is handed over.
    fn sleep(&self) {
        let (device, now) = (&self.shared.device, self.shared.now_ns());
        let due = |submitter| device.next_due(submitter, self.index);
        let next = (0..self.shared.sleepers.len()).filter_map(due).min();
        let longest = Duration::from_nanos(device.service_ns()).min(LONGEST_SLEEP);
        let time = next.map_or(LONGEST_SLEEP, |due| {
            Duration::from_nanos(due.saturating_sub(now))
        });
        let is_only_own = self.handlers.len() == 1 && self.handlers.start == self.index;
        // Nothing wakes a worker that waits outside a queue and has nothing to complete.
        let is_woken = next.is_some() || self.wait.as_ref().is_none_or(|wait| wait.get.is_some());
        let time = match is_only_own && is_woken {
            true => time,
            false => time.min(longest),
        };
        if !time.is_zero() {
            self.shared.sleepers[self.index].0.sleep(time);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
