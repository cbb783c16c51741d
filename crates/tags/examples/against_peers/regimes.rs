//! One measurement of one contestant.

use std::io;
use std::mem;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::loops::Contestant;
use crate::ring::Ring;

/// What the threads do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// Each holds one tag at a time.
    Plenty,
    /// Each wants so many that all want 1.5 times what there is; nobody waits.
    Saturated,
    /// Each gives its tags to a thread on another CPU, which puts them.
    Cross,
    /// Each waits for one of 1 or 4 tags.
    Blocking,
    /// As saturated for longer; who has no tag waits for one.
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
    /// Nanoseconds of a get and a put; of fairness, the fewest operations of a thread by the most.
    pub figure: f64,
    /// Tags that one thread could not take afterwards, while nobody held any.
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
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(cell.threads + 1);
    let run = |index: usize| {
        if cell.regime == Regime::Cross {
            bind(cpus[index % 2]);
        }
        contestant.enter();
        ready.wait();
        let puts = one_thread(contestant, cell, rings.get(index / 2), index, &stop);
        contestant.leave();
        puts
    };
    let (elapsed, puts) = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..cell.threads)
            .map(|index| scope.spawn(move || run(index)))
            .collect();
        ready.wait();
        let start = Instant::now();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let elapsed = start.elapsed();
        let puts = threads
            .into_iter()
            .map(|thread| thread.join().expect("a loop does not panic"));
        (elapsed, puts.collect::<Option<Vec<u64>>>())
    });
    let Some(puts) = puts else { return Ok(None) };
    let unreachable = thread::scope(|scope| {
        scope
            .spawn(|| {
                contestant.enter();
                let reachable = contestant.reachable();
                contestant.leave();
                cell.tags as usize - reachable
            })
            .join()
            .expect("a loop does not panic")
    });
    let figure = figure(cell, elapsed, &puts, cpus.len());
    Ok(Some(Found {
        figure,
        unreachable,
    }))
}

/// What the thread with this index does: how many tags it put, `None` where the contestant cannot do this.
fn one_thread(
    contestant: &dyn Contestant,
    cell: Cell,
    ring: Option<&Ring>,
    index: usize,
    stop: &AtomicBool,
) -> Option<u64> {
    let depth = (cell.tags as usize * 3 / 2 / cell.threads).max(1);
    match (cell.regime, ring) {
        (Regime::Plenty, _) => Some(contestant.plenty(stop)),
        (Regime::Saturated, _) => Some(contestant.saturated(depth, stop)),
        (Regime::Blocking, _) => contestant.blocking(stop),
        (Regime::Fairness, _) => contestant.fair(depth, stop),
        (Regime::Cross, None) => Some(0),
        (Regime::Cross, Some(ring)) if index.is_multiple_of(2) => {
            contestant.cross_take(ring, stop);
            Some(0)
        }
        (Regime::Cross, Some(ring)) => Some(contestant.cross_put(ring)),
    }
}

fn figure(cell: Cell, elapsed: Duration, puts: &[u64], cpus: usize) -> f64 {
    let all: u64 = puts.iter().sum();
    let wall = elapsed.as_nanos() as f64 / all.max(1) as f64;
    match cell.regime {
        // A thread's time for an operation, as if it had its share of the CPUs to itself.
        Regime::Plenty | Regime::Saturated => wall * cell.threads.min(cpus) as f64,
        Regime::Cross | Regime::Blocking => wall,
        Regime::Fairness => {
            let (least, most) = (puts.iter().min(), puts.iter().max());
            *least.unwrap_or(&0) as f64 / (*most.unwrap_or(&0)).max(1) as f64
        }
    }
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
