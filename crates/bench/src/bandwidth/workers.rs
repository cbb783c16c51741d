//! Threads that move memory together: one a CPU, pinned there, started by a barrier.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_machine::CpuId;

use super::Traffic;
use super::part::{BLOCK_WORDS, Part};
use nearfar_proc::affinity;

/// The time before and after counting in which all threads run, as a share of the counted time.
const RAMP_SHARE: f64 = 0.125;

/// Why threads could not move memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerError {
    #[error("a buffer of {} KiB is too small for {threads} threads", bytes >> 10)]
    SmallBuffer { bytes: usize, threads: usize },
    #[error("cannot run on CPU {cpu}: {source}")]
    Pin { cpu: CpuId, source: io::Error },
}

/// What the threads are to do.
pub(super) struct Task<'a> {
    pub(super) cpus: &'a [CpuId],
    /// In this order, one after the other.
    pub(super) traffics: &'a [Traffic],
    /// How long to count.
    pub(super) window: Duration,
    pub(super) cancel: &'a AtomicBool,
}

/// Words of the part of each of `threads` threads: whole blocks, so that no two share a line or a base page.
pub(super) fn part_words(words: usize, threads: usize) -> usize {
    let part = words / threads.max(1);
    if part >= 2 * BLOCK_WORDS {
        part / BLOCK_WORDS * BLOCK_WORDS
    } else {
        part / 512 * 512
    }
}

/// Has all CPUs work on their parts of `words`; gives bytes a second of all together, for each kind of traffic.
/// `positions` says how far each thread was, and afterwards how far it is.
///
/// # Errors
/// When the buffer is too small or a thread cannot run on its CPU.
pub(super) fn work(
    task: &Task<'_>,
    words: &mut [u64],
    positions: &mut Vec<usize>,
) -> Result<Vec<f64>, WorkerError> {
    let threads = task.cpus.len();
    let part = part_words(words.len(), threads);
    if part == 0 {
        let bytes = size_of_val(words);
        return Err(WorkerError::SmallBuffer { bytes, threads });
    }
    positions.resize(threads, 0);
    let barrier = Barrier::new(threads);
    let (barrier, failed) = (&barrier, &AtomicBool::new(false));
    let results: Vec<Result<Vec<f64>, WorkerError>> = std::thread::scope(|scope| {
        let parts = task
            .cpus
            .iter()
            .zip(words.chunks_exact_mut(part))
            .zip(positions.iter_mut());
        let workers: Vec<_> = parts
            .map(|((&cpu, words), at)| {
                scope.spawn(move || worker(task, cpu, words, at, barrier, failed))
            })
            .collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    });
    let mut sums = vec![0.0; task.traffics.len()];
    for rates in results {
        sums.iter_mut()
            .zip(rates?)
            .for_each(|(sum, rate)| *sum += rate);
    }
    Ok(sums)
}

/// One thread's part in it. All reach every barrier, whatever happens to them.
fn worker(
    task: &Task<'_>,
    cpu: CpuId,
    words: &mut [u64],
    at: &mut usize,
    barrier: &Barrier,
    failed: &AtomicBool,
) -> Result<Vec<f64>, WorkerError> {
    let pinned = affinity::pin(cpu).map_err(|source| WorkerError::Pin { cpu, source });
    if pinned.is_err() {
        failed.store(true, Ordering::Relaxed);
    }
    let mut part = Part::new(words, *at);
    let mut rates = Vec::new();
    for &traffic in task.traffics {
        barrier.wait();
        rates.push(if failed.load(Ordering::Relaxed) {
            0.0
        } else {
            rate(task, traffic, &mut part)
        });
    }
    *at = part.at();
    pinned.map(|()| rates)
}

/// Bytes a second of one thread, counted while the others surely run too.
fn rate(task: &Task<'_>, traffic: Traffic, part: &mut Part<'_>) -> f64 {
    let begin = Instant::now();
    let ramp = task.window.mul_f64(RAMP_SHARE);
    let run_until = |end: Duration, part: &mut Part<'_>| {
        let (mut bytes, mut elapsed) = (0u64, begin.elapsed());
        let from = elapsed;
        // At least one block, however slow the machine.
        loop {
            bytes += part.step(traffic);
            elapsed = begin.elapsed();
            if elapsed >= end || task.cancel.load(Ordering::Relaxed) {
                return bytes as f64 / (elapsed - from).as_secs_f64().max(1e-9);
            }
        }
    };
    run_until(ramp, part);
    let rate = run_until(ramp + task.window, part);
    run_until(2 * ramp + task.window, part);
    rate
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task<'a>(cpus: &'a [CpuId], cancel: &'a AtomicBool) -> Task<'a> {
        Task {
            cpus,
            traffics: &Traffic::ALL,
            window: Duration::from_millis(2),
            cancel,
        }
    }

    #[test]
    fn every_cpu_moves_memory_and_goes_on_where_it_was() {
        let cpus: Vec<CpuId> = affinity::get(0).unwrap().iter().collect();
        let mut words = vec![1; 1 << 18];
        let mut positions = Vec::new();
        let cancel = AtomicBool::new(false);
        let rates = work(&task(&cpus, &cancel), &mut words, &mut positions).unwrap();
        assert!(
            rates.iter().all(|&rate| rate > 1e6 && rate < 1e13),
            "{rates:?}"
        );
        assert_eq!(positions.len(), cpus.len());
        assert!(positions.iter().all(|&at| at > 0), "{positions:?}");
    }

    #[test]
    fn a_cpu_that_is_not_there_fails_all_without_hanging() {
        let first = affinity::get(0).unwrap().first().unwrap();
        let cpus = [first, CpuId(60_000)];
        let error = work(
            &task(&cpus, &AtomicBool::new(false)),
            &mut vec![0; 1 << 16],
            &mut Vec::new(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("CPU 60000"), "{error}");
    }

    #[test]
    fn a_buffer_without_a_page_for_each_thread_is_refused() {
        let cpus: Vec<CpuId> = (0..64).map(CpuId).collect();
        let error = work(
            &task(&cpus, &AtomicBool::new(false)),
            &mut vec![0; 4096],
            &mut Vec::new(),
        )
        .unwrap_err();
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
