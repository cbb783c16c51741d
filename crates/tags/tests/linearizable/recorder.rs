//! Lets threads call an allocator at random and records the history.

use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nearfar_tags::Tags;

use super::history::{Call, History, Operation};
use crate::system::ThreadId;
#[cfg(not(miri))]
use crate::system::handle;

/// Turns of a thread that waits for others before it yields; under Miri, turns are slow and nothing runs in parallel.
const SPINS: u32 = if cfg!(miri) { 1 } else { 20_000 };

/// What is recorded: the crate's allocator, or one with a fault.
pub trait Allocate: Sync {
    fn try_take(&self) -> Option<u32>;
    fn take_timeout(&self, timeout: Duration) -> Option<u32>;
    fn put(&self, tag: u32);
    fn resize(&self, tags: u32);
}

impl Allocate for Tags {
    fn try_take(&self) -> Option<u32> {
        Tags::try_take(self)
    }

    fn take_timeout(&self, timeout: Duration) -> Option<u32> {
        Tags::take_timeout(self, timeout)
    }

    fn put(&self, tag: u32) {
        Tags::put(self, tag);
    }

    fn resize(&self, tags: u32) {
        Tags::resize(self, tags).expect("the size is in range");
    }
}

/// What the threads of a history do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub threads: usize,
    /// Calls of each thread.
    pub calls: usize,
    /// Tags that a thread holds before it puts one.
    pub most_held: usize,
    /// The sizes that `resize` sets; empty where the size stays.
    pub sizes: &'static [u32],
    pub timeouts: bool,
}

/// Runs the plan once. Returns the history and the tags that are held at its end.
///
/// A handler that yields interrupts the threads: on few CPUs an operation would rarely meet another one otherwise.
pub fn record(allocator: &impl Allocate, plan: Plan, seed: u64) -> (History, Vec<u32>) {
    let clock = AtomicU64::new(0);
    let workers = Workers::new(plan.threads);
    let mut history = History::new();
    let mut held = Vec::new();
    thread::scope(|scope| {
        let (clock, workers) = (&clock, &workers);
        let handles: Vec<_> = (0..plan.threads)
            .map(|thread| {
                scope.spawn(move || {
                    let random = fastrand::Rng::with_seed(seed.wrapping_mul(64) + thread as u64);
                    let mut worker = Worker::new(allocator, clock, plan, random);
                    workers.begin(thread);
                    for _ in 0..plan.calls {
                        worker.step();
                    }
                    workers.running.fetch_sub(1, Ordering::Relaxed);
                    (worker.operations, worker.held)
                })
            })
            .collect();
        interrupt(workers);
        for handle in handles {
            let (operations, kept) = handle.join().expect("a worker does not panic");
            history.push(operations);
            held.extend(kept);
        }
    });
    (history, held)
}

#[cfg(not(miri))]
fn interrupt(workers: &Workers) {
    use std::sync::Once;

    extern "C" fn yield_now(_: libc::c_int) {
        // SAFETY: sched_yield has no arguments and is a bare system call.
        unsafe { libc::sched_yield() };
    }
    static HANDLER: Once = Once::new();
    // SAFETY: the handler calls nothing but sched_yield, which is a bare system call.
    HANDLER.call_once(|| unsafe { handle(libc::SIGUSR1, yield_now) });
    for thread in workers.threads.iter().cycle() {
        // A thread that is interrupted all the time would not finish.
        thread::sleep(Duration::from_micros(50));
        if workers.running.load(Ordering::Relaxed) == 0 {
            break;
        }
        ThreadId(thread.load(Ordering::Relaxed)).signal(libc::SIGUSR1);
    }
}

/// Miri preempts threads by itself and sends no signals.
#[cfg(miri)]
fn interrupt(_: &Workers) {}

/// The threads of a history and those that are not done.
struct Workers {
    threads: Vec<AtomicI32>,
    running: AtomicUsize,
    ready: AtomicUsize,
}

impl Workers {
    fn new(threads: usize) -> Self {
        Self {
            threads: (0..threads).map(|_| AtomicI32::new(0)).collect(),
            running: AtomicUsize::new(threads),
            ready: AtomicUsize::new(0),
        }
    }

    fn begin(&self, thread: usize) {
        if cfg!(not(miri)) {
            self.threads[thread].store(ThreadId::current().0, Ordering::Relaxed);
        }
        self.ready.fetch_add(1, Ordering::SeqCst);
        self.wait_for_all();
    }

    /// Threads that sleep until the last one arrives would run one after another.
    fn wait_for_all(&self) {
        for turn in 1.. {
            if self.ready.load(Ordering::SeqCst) == self.threads.len() {
                return;
            }
            match turn % SPINS {
                0 => thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

struct Worker<'a, A> {
    allocator: &'a A,
    clock: &'a AtomicU64,
    plan: Plan,
    random: fastrand::Rng,
    held: Vec<u32>,
    operations: Vec<Operation>,
}

impl<'a, A: Allocate> Worker<'a, A> {
    fn new(allocator: &'a A, clock: &'a AtomicU64, plan: Plan, random: fastrand::Rng) -> Self {
        Self {
            allocator,
            clock,
            plan,
            random,
            held: Vec::new(),
            operations: Vec::with_capacity(plan.calls),
        }
    }

    fn step(&mut self) {
        let put = if self.held.len() < self.plan.most_held {
            50
        } else {
            100
        };
        match self.random.u32(0..100) {
            choice if choice < put && !self.held.is_empty() => {
                let tag = self.held.swap_remove(self.random.usize(..self.held.len()));
                self.timed(|allocator| {
                    allocator.put(tag);
                    Call::Put(tag)
                });
            }
            50..55 if !self.plan.sizes.is_empty() => {
                let size = self.plan.sizes[self.random.usize(..self.plan.sizes.len())];
                self.timed(|allocator| {
                    allocator.resize(size);
                    Call::Resize(size)
                });
            }
            55..65 if self.plan.timeouts => {
                let timeout = Duration::from_micros(self.random.u64(0..50));
                self.timed(|allocator| Call::Take(allocator.take_timeout(timeout)));
            }
            _ => self.timed(|allocator| Call::Take(allocator.try_take())),
        }
    }

    fn timed(&mut self, call: impl FnOnce(&A) -> Call) {
        let invoked = self.clock.fetch_add(1, Ordering::SeqCst);
        let call = call(self.allocator);
        let returned = self.clock.fetch_add(1, Ordering::SeqCst);
        if let Call::Take(Some(tag)) = call {
            self.held.push(tag);
        }
        self.operations.push(Operation {
            call,
            invoked,
            returned,
        });
    }
}
