//! One measurement of one contestant.

use std::io;
use std::mem;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::loops::{Contestant, Flags};
use crate::ring::Ring;

/// Before fairness is measured: several time slices of each thread.
const WARM_UP: Duration = Duration::from_millis(200);

/// What the threads do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// Each holds one tag at a time.
    Plenty,
    /// Each wants an equal share of 1.5 times what there is, and does not wait.
    Saturated,
    /// Each gives its tags to a thread on another CPU, which puts them.
    Cross,
    /// Each waits for one of 1 or 4 tags.
    Blocking,
    /// As saturated, for longer; a thread without a tag waits for one.
    Fairness,
}

/// A regime with its size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cell {
    pub regime: Regime,
    pub tags: u32,
    pub threads: usize,
}

/// What a measurement found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Nanoseconds of a get and a put: of CPU time, of the time that passed for blocking; of fairness, the fewest operations of a
    /// thread by the most.
    pub figure: f64,
    /// Tags that one thread could not take afterwards, when no thread held any.
    pub unreachable: usize,
}

/// # Errors
/// Why this cell cannot be measured here.
pub fn measure(
    contestant: &dyn Contestant,
    cell: Cell,
    time: Duration,
) -> io::Result<Option<Found>> {
    let cpus = allowed_cpus()?;
    if cell.regime == Regime::Cross && cpus.len() < 2 {
        return Err(io::Error::other("cpus: a get and its put need two CPUs"));
    }
    let rings: Vec<_> = match cell.regime {
        Regime::Cross => (0..cell.threads / 2)
            .map(|_| Ring::of(cell.threads / 2))
            .collect(),
        _ => Vec::new(),
    };
    let flags = Flags::default();
    let ready = Barrier::new(cell.threads + 1);
    let run = |index: usize| {
        if cell.regime == Regime::Cross {
            bind(cpus[index % 2]);
        }
        contestant.enter();
        ready.wait();
        let (start, before) = (Instant::now(), cpu_time());
        let puts = one_thread(contestant, cell, rings.get(index / 2), index, &flags);
        let (end, after) = (Instant::now(), cpu_time());
        contestant.leave();
        Some(Thread {
            puts: puts?,
            wall: (start, end),
            cpu: after.saturating_sub(before),
        })
    };
    let threads: Option<Vec<_>> = thread::scope(|scope| {
        let run = &run;
        let spawn = |index| scope.spawn(move || run(index));
        let threads: Vec<_> = (0..cell.threads).map(spawn).collect();
        ready.wait();
        if cell.regime == Regime::Fairness {
            thread::sleep(WARM_UP);
        }
        flags.begin.store(true, Ordering::Relaxed);
        thread::sleep(time);
        flags.stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(joined).collect()
    });
    let Some(threads) = threads else {
        return Ok(None);
    };
    let count = || {
        contestant.enter();
        let reachable = contestant.reachable();
        contestant.leave();
        reachable
    };
    let reachable = thread::scope(|scope| joined(scope.spawn(count)));
    Ok(Some(Found {
        figure: figure(cell.regime, &threads),
        unreachable: cell.tags as usize - reachable,
    }))
}

/// What a thread did.
struct Thread {
    puts: u64,
    /// From and to.
    wall: (Instant, Instant),
    cpu: Duration,
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().expect("a loop does not panic")
}

/// What the thread with this index does: how many tags it put, `None` where the contestant cannot do this.
fn one_thread(
    contestant: &dyn Contestant,
    cell: Cell,
    ring: Option<&Ring>,
    index: usize,
    flags: &Flags,
) -> Option<u64> {
    let stop = &flags.stop;
    let depth = (cell.tags as usize * 3 / 2 / cell.threads).max(1);
    match (cell.regime, ring) {
        (Regime::Plenty, _) => Some(contestant.plenty(stop)),
        (Regime::Saturated, _) => Some(contestant.saturated(depth, stop)),
        (Regime::Blocking, _) => contestant.blocking(stop),
        (Regime::Fairness, _) => contestant.fair(depth, flags),
        (Regime::Cross, None) => Some(0),
        (Regime::Cross, Some(ring)) if index.is_multiple_of(2) => {
            contestant.cross_take(ring, stop);
            Some(0)
        }
        (Regime::Cross, Some(ring)) => Some(contestant.cross_put(ring)),
    }
}

fn figure(regime: Regime, threads: &[Thread]) -> f64 {
    let puts = || threads.iter().map(|thread| thread.puts);
    let by_put = |time: Duration| time.as_nanos() as f64 / puts().sum::<u64>().max(1) as f64;
    match regime {
        // What other programs take of the CPUs is not counted, nor is a sleep for a lock.
        Regime::Plenty | Regime::Saturated => by_put(threads.iter().map(|thread| thread.cpu).sum()),
        // Those that take share a CPU, as do those that put: the time that passes is that of the side that takes longer.
        Regime::Cross => {
            let side = |first| threads.iter().skip(first).step_by(2).map(|it| it.cpu).sum();
            by_put(Duration::max(side(0), side(1)))
        }
        Regime::Blocking => {
            let starts = threads.iter().map(|thread| thread.wall.0).min();
            let ends = threads.iter().map(|thread| thread.wall.1).max();
            let elapsed = starts.zip(ends).map(|(start, end)| end - start);
            by_put(elapsed.unwrap_or_default())
        }
        Regime::Fairness => {
            let (least, most) = (puts().min(), puts().max());
            least.unwrap_or(0) as f64 / most.unwrap_or(0).max(1) as f64
        }
    }
}

/// The CPU time of the calling thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert!(answer == 0, "each thread has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPUs this program may use.
fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero set is an empty one, and the call writes to a set of the size it is told.
    let (answer, set) = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        (libc::sched_getaffinity(0, size_of_val(&set), &mut set), set)
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: each index is one of the set's bits.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect())
}

/// Lets the calling thread run on this CPU only.
fn bind(cpu: usize) {
    // SAFETY: an all-zero set is an empty one; the CPU is one of its bits; the call reads a set of the size it is told.
    let answer = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert!(answer == 0, "CPU {cpu} was allowed a moment ago");
}
