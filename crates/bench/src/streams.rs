//! Threads that use the memory of nodes together, and the measurements that are made of them: bandwidth, loaded latency,
//! interleaved memory.
//!
//! ```text
//!  Visits      what an item is, and what threads do in a visit of it
//!  measure     items visited in random order, windows that fit into the budget, figures, warnings, the run for the store
//!  work        a thread a CPU, pinned there, started by a barrier, each on a part of a buffer, block by block
//! ```

use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_experiment::sampler::{Attempt, Source, Turn};
use nearfar_experiment::{Recording, RunPlan};
use nearfar_loops::access::{copy, read, read_pausing, write};
use nearfar_loops::chase;
use nearfar_machine::{CpuId, Machine};
use nearfar_proc::affinity;
use nearfar_runs::{Cell, Values};
use nearfar_statistics::Figures;
use serde_json::json;

use crate::bandwidth::{Method, Traffic};
use crate::buffer_size::BufferSize;
use crate::conditions::{self, Ticks};
use crate::node_buffers::NodeBuffers;
use crate::node_selection::{self, SkippedPair};
use crate::options::{ProbeError, ProbeOptions};
use crate::sampling::{self, Amount, Measured, Samples};

/// Most samples of a pair: threads and ramps make one far more expensive than a sample of latency.
const MAX_SAMPLES: usize = 15;
/// The shortest time to count: some blocks even where a block takes a millisecond.
const MIN_WINDOW: Duration = Duration::from_millis(2);
/// The longest.
const MAX_WINDOW: Duration = Duration::from_millis(50);
/// The longest in simulated time, in which little disturbs a sample, and each of its moments takes the host long.
const MAX_WINDOW_SIMULATED: Duration = Duration::from_millis(5);

/// What the streams need.
pub(crate) struct Streams<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) options: &'a ProbeOptions,
    pub(crate) sources: &'a [node_selection::Source],
    pub(crate) size: &'a BufferSize,
    pub(crate) buffers: &'a mut NodeBuffers,
    /// The most threads of a node; `None` for one on each of its CPUs.
    pub(crate) threads: Option<usize>,
    pub(crate) deadline: Instant,
}

impl Streams<'_> {
    /// How often so many items are measured.
    fn amount(&self, items: usize) -> Amount {
        Amount {
            items,
            max_samples: self.max_samples(),
            deadline: self.deadline,
            is_spread: self.options.is_spread,
        }
    }

    fn max_samples(&self) -> usize {
        self.options.max_samples.clamp(1, MAX_SAMPLES)
    }

    /// How long to count, when a first round of `items` visits, each with so many kinds of work, took `round` with the least window.
    fn window(
        &self,
        works: usize,
        round: Duration,
        items: usize,
        left: Option<Duration>,
    ) -> Duration {
        let left = left.unwrap_or_default();
        let window = fitting_window(works, round, items, left, self.max_samples());
        match self.machine.origin.is_simulated() {
            true => window.min(MAX_WINDOW_SIMULATED),
            false => window,
        }
    }

    /// The run of these cells, for the store.
    pub(crate) fn plan(&self, cells: Vec<Cell>) -> RunPlan {
        let (size, buffers) = (self.size.buffer_bytes, &self.buffers);
        let mut parameters = sampling::buffer_parameters(size, buffers.page_kind, self.options);
        parameters["threads"] = json!(self.threads);
        RunPlan::of_cells(parameters, cells)
    }
}

/// What threads do with the memory of nodes together, item by item: the part of [`measure`] in which the measurements differ.
pub(crate) trait Visits {
    /// What a visit of an item gives.
    type Sample;
    /// What the samples of one or more items say.
    type Found;
    type Answer;
    /// Kinds of work that a visit counts one after the other.
    const WORKS: usize;

    fn items(&self) -> usize;

    fn visit(
        &mut self,
        streams: &mut Streams<'_>,
        item: usize,
        counted: Counted<'_>,
    ) -> Result<Self::Sample, WorkerError>;

    /// The items that are not measured any more where this one cannot be, and what is said of them.
    fn excluded(
        &self,
        streams: &Streams<'_>,
        item: usize,
        reason: String,
    ) -> (Vec<usize>, SkippedPair);

    fn found(&self, streams: &Streams<'_>, samples: &Samples<Self::Sample>) -> Vec<Self::Found>;

    /// Those whose outliers count.
    fn figures(found: &Self::Found) -> Vec<&Figures>;

    /// As runs in the store declare it.
    fn declared(&self, streams: &Streams<'_>) -> Recording;

    /// The values of a sample, and how it was taken.
    fn stored(
        &self,
        streams: &Streams<'_>,
        item: usize,
        sample: &Self::Sample,
        window: Duration,
    ) -> (Values, serde_json::Value);

    fn answer(self, streams: &Streams<'_>, found: Vec<Self::Found>, method: Method)
    -> Self::Answer;
}

/// The source of samples: visits of all items.
struct Visiting<'a, V> {
    streams: Streams<'a>,
    visits: V,
    /// How long loads and bytes are counted.
    window: Duration,
    skipped: Vec<SkippedPair>,
}

impl<V: Visits> Source for Visiting<'_, V> {
    type Value = V::Sample;
    type Error = ProbeError;

    fn take(&mut self, turn: Turn) -> Result<Attempt<V::Sample>, ProbeError> {
        let (item, options) = (turn.slot.item, self.streams.options);
        let counted = Counted {
            window: self.window,
            cancel: &options.cancel,
        };
        Ok(match self.visits.visit(&mut self.streams, item, counted) {
            Ok(sample) => Attempt::Value(sample),
            Err(WorkerError::Cancelled) => Attempt::Lost,
            Err(error) => {
                let reason = error.to_string();
                let (items, skipped) = self.visits.excluded(&self.streams, item, reason);
                self.skipped.push(skipped);
                Attempt::Exclude(items)
            }
        })
    }

    fn warmed_up(&mut self, took: Duration, items: usize, left: Option<Duration>) {
        self.window = self.streams.window(V::WORKS, took, items, left);
    }
}

/// Measures on threads of its own. `prepare` gives what is visited, and what is skipped from the start.
pub(crate) fn measure<'a, V: Visits>(
    mut streams: Streams<'a>,
    prepare: impl FnOnce(&mut Streams<'a>) -> Result<(V, Vec<SkippedPair>), ProbeError>,
) -> Result<Measured<V::Answer>, ProbeError> {
    let (start, ticks) = (Instant::now(), Ticks::now());
    let (visits, skipped) = prepare(&mut streams)?;
    let (amount, options) = (streams.amount(visits.items()), streams.options);
    let mut visiting = Visiting {
        streams,
        visits,
        window: MIN_WINDOW,
        skipped,
    };
    let samples = sampling::sample(&amount, &options.cancel, &mut visiting)?;
    let Visiting {
        streams,
        visits,
        window,
        skipped,
    } = visiting;
    let found = visits.found(&streams, &samples);
    let figures = found.iter().flat_map(V::figures);
    let of_samples = samples.warnings(figures.map(|it| it.samples.as_slice()));
    let (size, buffers) = (streams.size, &streams.buffers);
    let mut warnings = [size.warnings.as_slice(), &buffers.warnings].concat();
    warnings.extend(conditions::governor(streams.machine));
    let cpus = streams.sources.iter().flat_map(|source| source.all.clone());
    warnings.extend(Ticks::now().warnings_since(&ticks, cpus));
    warnings.extend(of_samples);
    let declared = visits.declared(&streams);
    let recording = samples.recorded(declared, &warnings, |item, sample| {
        visits.stored(&streams, item, sample, window)
    });
    let method = Method {
        skipped: [buffers.skipped.as_slice(), &skipped].concat(),
        buffer_bytes: size.buffer_bytes,
        page_kind: buffers.page_kind,
        window_s: window.as_secs_f64(),
        elapsed_s: start.elapsed().as_secs_f64(),
        warnings,
        emulation: streams.machine.origin.emulation.clone(),
    };
    Ok(Measured {
        answer: visits.answer(&streams, found, method),
        recordings: vec![recording],
    })
}

/// The CPUs of a node that take part.
pub(crate) fn cpus_of(source: &node_selection::Source, threads: Option<usize>) -> &[CpuId] {
    &source.all[..threads.unwrap_or(usize::MAX).clamp(1, source.all.len())]
}

/// How long to count, when a first round of `items` visits with the least window took `round` and `wanted` rounds have
/// to fit into what is `left`. What a visit takes besides counting stays as it was.
fn fitting_window(
    works: usize,
    round: Duration,
    items: usize,
    left: Duration,
    wanted: usize,
) -> Duration {
    let a_visit = |total: Duration, rounds: usize| {
        total.as_secs_f64() / (rounds.max(1) * items.max(1)) as f64
    };
    // Threads run for the counted time and a quarter of it more.
    let counting = 1.25 * works as f64;
    let besides = (a_visit(round, 1) - counting * MIN_WINDOW.as_secs_f64()).max(0.0);
    let window = (a_visit(left, wanted) * 0.95 - besides) / counting;
    Duration::from_secs_f64(window.clamp(MIN_WINDOW.as_secs_f64(), MAX_WINDOW.as_secs_f64()))
}

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

/// A worker on each CPU, each on a part of these words.
///
/// # Errors
/// When the buffer is too small for so many.
pub(crate) fn workers<'w>(
    cpus: &'w [CpuId],
    words: &'w mut [u64],
    positions: impl Iterator<Item = &'w mut usize>,
    works: &'w [Work],
) -> Result<impl Iterator<Item = Worker<'w>>, WorkerError> {
    let all = cpus.iter().zip(parts(words, cpus.len())?).zip(positions);
    Ok(all.map(move |((&cpu, words), at)| Worker {
        cpu,
        words,
        at,
        works,
    }))
}

/// The parts of so many threads: whole blocks, so that no two share a line or a base page.
///
/// # Errors
/// When the buffer is too small.
fn parts(
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

/// Words done at once: 256 KiB, so that what a thread does in between hardly counts.
const BLOCK_WORDS: usize = 32_768;
/// The same where a thread pauses after each line.
const PAUSING_WORDS: usize = 512;
/// Loads of a chase at once.
const CHASE_LOADS: u64 = 256;

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Work {
    Move(Traffic),
    /// Reads, and computes for so many steps after each line.
    ReadPausing(u64),
    /// Follows the chain that its words are.
    Chase,
}

/// Where one thread works, and how far it is.
struct Part<'a> {
    words: &'a mut [u64],
    at: usize,
}

impl<'a> Part<'a> {
    /// A part that starts `at` words behind its beginning.
    fn new(words: &'a mut [u64], at: usize) -> Self {
        Self { words, at }
    }

    /// How far it is.
    fn at(&self) -> usize {
        self.at
    }

    /// Does a block and returns the bytes that were loaded and stored; at the end of the buffer it starts again.
    fn step(&mut self, work: Work) -> u64 {
        let moved = match work {
            Work::Move(Traffic::Read) => {
                let block = self.block(self.words.len(), BLOCK_WORDS);
                black_box(read(&self.words[block.clone()]));
                block.len()
            }
            Work::Move(Traffic::Write) => {
                let block = self.block(self.words.len(), BLOCK_WORDS);
                write(&mut self.words[block.clone()], black_box(block.end as u64));
                block.len()
            }
            Work::Move(Traffic::Copy) => {
                // From one half to the other.
                let half = self.words.len() / 2;
                let block = self.block(half, BLOCK_WORDS);
                let (from, to) = self.words.split_at_mut(half);
                copy(&from[block.clone()], &mut to[block.clone()]);
                2 * block.len()
            }
            Work::ReadPausing(steps) => {
                let block = self.block(self.words.len(), PAUSING_WORDS);
                black_box(read_pausing(&self.words[block.clone()], steps));
                block.len()
            }
            Work::Chase => {
                self.at = chase::follow(self.words, self.at as u64, CHASE_LOADS) as usize;
                CHASE_LOADS as usize
            }
        };
        (moved * size_of::<u64>()) as u64
    }

    /// The next block of the first `room` words.
    fn block(&mut self, room: usize, words: usize) -> Range<usize> {
        let start = if self.at < room { self.at } else { 0 };
        self.at = (start + words).min(room);
        start..self.at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bandwidth::Traffic;

    /// Each CPU moves its part of the words in all ways.
    fn move_all(
        cpus: &[CpuId],
        words: &mut [u64],
        positions: &mut [usize],
    ) -> Result<Vec<Vec<f64>>, WorkerError> {
        let works = Traffic::ALL.map(Work::Move);
        let workers = workers(cpus, words, positions.iter_mut(), &works)?;
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

    #[test]
    fn a_part_is_gone_through_from_end_to_end_and_again() {
        let mut words = vec![0; 2 * BLOCK_WORDS + 100];
        let mut part = Part::new(&mut words, 0);
        let moved: Vec<u64> = (0..4)
            .map(|_| part.step(Work::Move(Traffic::Read)) / 8)
            .collect();
        assert_eq!(
            moved,
            [
                BLOCK_WORDS as u64,
                BLOCK_WORDS as u64,
                100,
                BLOCK_WORDS as u64
            ]
        );
        assert_eq!(part.at(), BLOCK_WORDS);
    }

    #[test]
    fn a_copy_counts_both_directions_and_stays_in_its_halves() {
        let mut words = vec![1; 64];
        let mut part = Part::new(&mut words, 0);
        assert_eq!(part.step(Work::Move(Traffic::Copy)), 64 * 8);
        assert!(
            words[..32].iter().all(|&word| word == 1) && words[32..].iter().all(|&word| word == 2)
        );
    }

    #[test]
    fn a_chase_goes_on_where_it_was_and_pauses_leave_out_no_line() {
        // Each word names the next.
        let mut chain: Vec<u64> = (1..1000).chain([0]).collect();
        let mut part = Part::new(&mut chain, 0);
        assert_eq!(part.step(Work::Chase), CHASE_LOADS * 8);
        part.step(Work::Chase);
        assert_eq!(part.at() as u64, 2 * CHASE_LOADS);
        let mut words = vec![0; 600];
        let mut part = Part::new(&mut words, 0);
        let read: Vec<u64> = (0..3)
            .map(|_| part.step(Work::ReadPausing(1)) / 8)
            .collect();
        assert_eq!(read, [512, 88, 512]);
    }

    #[test]
    fn a_part_that_stood_behind_its_end_starts_anew() {
        let mut words = vec![0; 64];
        assert_eq!(
            Part::new(&mut words, 1000).step(Work::Move(Traffic::Write)),
            64 * 8
        );
        assert_eq!(Part::new(&mut [], 0).step(Work::Move(Traffic::Copy)), 0);
    }

    #[test]
    fn windows_fill_the_time_and_stay_within_bounds() {
        let second = Duration::from_secs(1);
        let milliseconds = |window: Duration| (window.as_secs_f64() * 1e3).round();
        let fitting = |round, items, left, wanted| fitting_window(3, round, items, left, wanted);
        // 16 pairs, 10 rounds, 8.5 ms a visit of which 1 ms is not counting: 3 s leave 17.8 ms, 4.5 ms each.
        let window = fitting(Duration::from_micros(136_000), 16, second * 3, 10);
        assert_eq!(milliseconds(window), 4.0);
        assert_eq!(fitting(second, 16, second, 10), MIN_WINDOW);
        assert_eq!(fitting(second / 100, 1, second * 100, 10), MAX_WINDOW);
        assert_eq!(fitting(Duration::ZERO, 0, Duration::ZERO, 0), MIN_WINDOW);
    }
}
