//! Threads that work on memory together: one a CPU, pinned there, started by a barrier.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_experiment::sampler::Attempt;
use nearfar_machine::CpuId;

use super::part::{BLOCK_WORDS, Part, Work};
use nearfar_proc::affinity;

/// The time before and after counting in which all threads run, as a share of the counted time.
const RAMP_SHARE: f64 = 0.125;

/// The least between two looks at the clock, which are system calls in some guests: a hundredth of what is counted, and less.
const BETWEEN_LOOKS: Duration = Duration::from_micros(20);

/// Why threads could not move memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("a buffer of {} KiB is too small for {threads} threads", bytes >> 10)]
    SmallBuffer { bytes: usize, threads: usize },
    #[error("cannot run on CPU {cpu}: {source}")]
    Pin { cpu: CpuId, source: io::Error },
    /// The threads ended early, not all at once.
    #[error("interrupted")]
    Cancelled,
}

impl WorkerError {
    /// What became of the attempt at a sample: lost where it was cancelled. Otherwise these items are not measured any more, and
    /// `skip` receives the reason.
    pub(crate) fn attempt<V>(self, items: Vec<usize>, skip: impl FnOnce(String)) -> Attempt<V> {
        match self {
            Self::Cancelled => Attempt::Lost,
            _ => {
                skip(self.to_string());
                Attempt::Exclude(items)
            }
        }
    }
}

/// A thread.
pub(crate) struct Worker<'a> {
    pub(crate) cpu: CpuId,
    /// Its part of the memory.
    pub(crate) words: &'a mut [u64],
    /// How far it was, and is afterwards.
    pub(crate) at: &'a mut usize,
    /// What it does, one after the other; all threads have as much to do.
    pub(crate) works: &'a [Work],
}

/// How long to count.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub(crate) window: Duration,
    pub(crate) cancel: &'a AtomicBool,
}

/// The parts of so many threads: whole blocks, so that no two share a line or a base page.
///
/// # Errors
/// When the buffer is too small.
pub(crate) fn parts(
    words: &mut [u64],
    threads: usize,
) -> Result<impl Iterator<Item = &mut [u64]>, WorkerError> {
    match part_words(words.len(), threads) {
        0 => Err(WorkerError::SmallBuffer {
            bytes: size_of_val(words),
            threads,
        }),
        part => Ok(words.chunks_exact_mut(part)),
    }
}

fn part_words(words: usize, threads: usize) -> usize {
    let part = words / threads.max(1);
    if part >= 2 * BLOCK_WORDS {
        part / BLOCK_WORDS * BLOCK_WORDS
    } else {
        part / 512 * 512
    }
}

/// Has all threads work; gives bytes a second of each, for each of its works.
///
/// # Errors
/// When a thread cannot run on its CPU, or it was cancelled meanwhile.
pub(crate) fn work(
    workers: Vec<Worker<'_>>,
    counted: Counted<'_>,
) -> Result<Vec<Vec<f64>>, WorkerError> {
    let barrier = Barrier::new(workers.len());
    let (barrier, failed) = (&barrier, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let start = |worker| scope.spawn(move || run(worker, counted, barrier, failed));
        let threads: Vec<_> = workers.into_iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // All are waited for, whatever happened to one.
        let rates: Vec<Result<_, _>> = threads.into_iter().map(join).collect();
        match counted.cancel.load(Ordering::Relaxed) {
            true => Err(WorkerError::Cancelled),
            false => rates.into_iter().collect(),
        }
    })
}

/// One thread's part in it. All reach every barrier, whatever happens to them.
fn run(
    worker: Worker<'_>,
    counted: Counted<'_>,
    barrier: &Barrier,
    failed: &AtomicBool,
) -> Result<Vec<f64>, WorkerError> {
    let cpu = worker.cpu;
    let pinned = affinity::pin(cpu).map_err(|source| WorkerError::Pin { cpu, source });
    if pinned.is_err() {
        failed.store(true, Ordering::Relaxed);
    }
    let mut part = Part::new(worker.words, *worker.at);
    let mut rates = Vec::new();
    for &work in worker.works {
        barrier.wait();
        rates.push(if failed.load(Ordering::Relaxed) {
            0.0
        } else {
            rate(counted, work, &mut part)
        });
    }
    *worker.at = part.at();
    pinned.map(|()| rates)
}

/// Bytes a second of one thread, counted while the others surely run too.
fn rate(counted: Counted<'_>, work: Work, part: &mut Part<'_>) -> f64 {
    let begin = Instant::now();
    let ramp = counted.window.mul_f64(RAMP_SHARE);
    let run_until = |end: Duration, part: &mut Part<'_>| {
        let (mut bytes, mut elapsed) = (0u64, begin.elapsed());
        let (from, mut blocks) = (elapsed, 1);
        // At least one block, however slow the machine.
        loop {
            bytes += (0..blocks).map(|_| part.step(work)).sum::<u64>();
            let before = std::mem::replace(&mut elapsed, begin.elapsed());
            if elapsed - before < BETWEEN_LOOKS {
                blocks *= 2;
            }
            if elapsed >= end || counted.cancel.load(Ordering::Relaxed) {
                return bytes as f64 / (elapsed - from).as_secs_f64().max(1e-9);
            }
        }
    };
    run_until(ramp, part);
    let rate = run_until(ramp + counted.window, part);
    run_until(2 * ramp + counted.window, part);
    rate
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Traffic;
    use super::*;

    /// Each CPU moves its part of the words in all ways.
    fn move_all(
        cpus: &[CpuId],
        words: &mut [u64],
        positions: &mut [usize],
    ) -> Result<Vec<Vec<f64>>, WorkerError> {
        let works = Traffic::ALL.map(Work::Move);
        let parts = parts(words, cpus.len())?;
        let workers = cpus.iter().zip(parts).zip(positions);
        let workers = workers.map(|((&cpu, words), at)| Worker {
            cpu,
            words,
            at,
            works: &works,
        });
        let counted = Counted {
            window: Duration::from_millis(2),
            cancel: &AtomicBool::new(false),
        };
        work(workers.collect(), counted)
    }

    #[test]
    fn every_cpu_moves_memory_and_goes_on_where_it_was() {
        let cpus: Vec<CpuId> = affinity::get(0).unwrap().iter().collect();
        let mut positions = vec![0; cpus.len()];
        let rates = move_all(&cpus, &mut vec![1; 1 << 18], &mut positions).unwrap();
        assert_eq!(rates.len(), cpus.len());
        assert!(
            rates
                .iter()
                .flatten()
                .all(|&rate| rate > 1e6 && rate < 1e13),
            "{rates:?}"
        );
        assert!(positions.iter().all(|&at| at > 0), "{positions:?}");
    }

    #[test]
    fn a_cpu_that_is_not_there_fails_all_without_hanging() {
        let first = affinity::get(0).unwrap().first().unwrap();
        let cpus = [first, CpuId(60_000)];
        let error = move_all(&cpus, &mut vec![0; 1 << 16], &mut [0; 2]).unwrap_err();
        assert!(error.to_string().contains("CPU 60000"), "{error}");
    }

    #[test]
    fn a_buffer_without_a_page_for_each_thread_is_refused() {
        let cpus: Vec<CpuId> = (0..64).map(CpuId).collect();
        let error = move_all(&cpus, &mut vec![0; 4096], &mut [0; 64]).unwrap_err();
        assert!(error.to_string().contains("64 threads"), "{error}");
    }

    proptest! {
        #[test]
        fn parts_fit_and_are_whole_pages(words in 0usize..1 << 30, threads in 1usize..5000) {
            let part = part_words(words, threads);
            prop_assert!(part * threads <= words);
            prop_assert_eq!(part % 512, 0);
        }
    }
}
