//! Taking a sample: the workers of a cell, each on its CPU, for a while.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, LabHost};
use nearfar_machine::CpuId;
use nearfar_proc::affinity;
use nearfar_tags::Steals;

use super::allocator::Allocator;
use super::device::{Config, Device};
use super::groups::Groups;
use super::sample::{Meanwhile, Sample, StealCounts};
use super::worker::{ENDED, MEASURING, Measured, Shared, WARMING_UP, Worker};
use crate::conditions::Ticks;
use crate::line_transfers::LineTransfers;

/// Between two looks at whether it was cancelled.
const CANCEL_CHECK: Duration = Duration::from_millis(20);
/// The warm-up's part of a sample's time.
const WARM_UP_PART: u32 = 4;
/// How often it is seen whether all workers have begun to measure, and for how long at most.
const START_CHECK: Duration = Duration::from_micros(100);
const LATEST_START: Duration = Duration::from_secs(5);

/// Which worker completes an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Completion {
    /// The one that submitted it.
    Submitter,
    /// Any of them.
    Any,
    /// One on the device's node.
    Device,
}

impl Completion {
    pub(super) fn of(level: &str) -> Option<Self> {
        match level {
            "submitter" => Some(Self::Submitter),
            "any" => Some(Self::Any),
            "device" => Some(Self::Device),
            _ => None,
        }
    }

    /// The workers that may complete an I/O of this one, where `on_device_node` are on the device's node.
    fn handlers(self, submitter: usize, workers: usize, on_device_node: usize) -> Range<usize> {
        match self {
            Self::Submitter => submitter..submitter + 1,
            Self::Any => 0..workers,
            Self::Device => 0..on_device_node,
        }
    }
}

/// What a cell measures.
pub(super) struct Spec<'a> {
    pub(super) groups: &'a Groups,
    pub(super) completion: Completion,
    /// I/Os that each worker keeps in flight.
    pub(super) shares: Vec<u64>,
    pub(super) batch: u32,
    pub(super) is_queueing: bool,
    pub(super) time: Duration,
    pub(super) device: Config,
    /// Who counts line transfers; `None` where they are not counted.
    pub(super) counts: Option<&'a LabHost>,
}

/// Measures.
///
/// # Errors
/// When a worker cannot run on its CPU, a tag was handed out twice, or `cancel` was set.
pub(super) fn take(
    spec: &Spec<'_>,
    tags: &Allocator,
    memory: &[AtomicU64],
    cancel: &AtomicBool,
) -> Result<Sample, BoxError> {
    let (cpus, on_device_node) = (spec.groups.workers(), spec.groups.device_cpus.len());
    let workers = cpus.len();
    let handlers = |index| spec.completion.handlers(index, workers, on_device_node);
    let completes = |submitter, handler| handlers(submitter).contains(&handler);
    let shared = &Shared {
        tags,
        device: Device::new(spec.device, memory, workers, completes),
        phase: AtomicU8::new(WARMING_UP),
        measuring: AtomicUsize::new(0),
        started: Instant::now(),
        sleepers: (0..workers).map(|_| Default::default()).collect(),
        batch: spec.batch,
        is_queueing: spec.is_queueing,
    };
    std::thread::scope(|scope| {
        let (arrived, arrivals) = mpsc::channel();
        let spawn = |(index, &cpu): (usize, &CpuId)| {
            let (arrived, share, handlers) = (arrived.clone(), spec.shares[index], handlers(index));
            let thread = std::thread::Builder::new().name("nearfar-worker".to_owned());
            thread.spawn_scoped(scope, move || -> Result<Measured, BoxError> {
                let pinned = affinity::pin(cpu);
                let pinned = pinned.map_err(|error| format!("cannot run on CPU {cpu}: {error}"));
                sleep_exactly();
                let _ = arrived.send(pinned.is_ok());
                pinned?;
                Ok(Worker::new(shared, index, share, handlers).run()?)
            })
        };
        let threads: Vec<_> = cpus.iter().enumerate().map(spawn).collect();
        let started = threads.iter().all(Result::is_ok);
        let all_run = started && (0..workers).all(|_| arrivals.recv() == Ok(true));
        let measured = match all_run {
            true => measure(shared, spec, cancel),
            false => Err("interrupted"),
        };
        shared.set_phase(ENDED);
        let mut workers = Vec::new();
        for thread in threads {
            let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
            workers.push(thread.join().map_err(|_| "a worker panicked")?);
        }
        let workers: Vec<Measured> = workers.into_iter().collect::<Result<_, _>>()?;
        let (before, after) = measured?;
        let sample = Sample::new(&workers, after.since(&before, spec.groups));
        match sample.operations_per_s > 0.0 {
            true => Ok(sample),
            false => Err("no I/O ended while it was measured: it needs a longer time".into()),
        }
    })
}

/// What is counted outside the workers, at one moment.
struct Reading {
    transfers: Option<Result<LineTransfers, String>>,
    steals: Option<Steals>,
    ticks: Ticks,
}

impl Reading {
    fn now(tags: &Allocator, counts: Option<&LabHost>) -> Self {
        let ticks = Ticks::now();
        Self {
            transfers: counts.map(LineTransfers::so_far),
            steals: tags.steals(),
            ticks,
        }
    }

    fn since(self, before: &Self, groups: &Groups) -> Meanwhile {
        let warnings = self.ticks.warnings_since(&before.ticks, groups.workers());
        let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let line_transfers = match (&before.transfers, self.transfers) {
            (Some(Ok(before)), Some(Ok(after))) => Some(after.since(before)),
            (Some(Err(error)), _) => {
                warnings.push(error.to_string());
                None
            }
            (_, Some(Err(error))) => {
                warnings.push(error.to_string());
                None
            }
            (None, _) | (_, None) => None,
        };
        Meanwhile {
            groups: groups.clone(),
            steals: before
                .steals
                .zip(self.steals)
                .map(|(before, after)| StealCounts::between(&before, &after)),
            line_transfers,
            warnings,
        }
    }
}

/// Lets the workers warm up and measure. What was counted before and after.
///
/// # Errors
/// When it was cancelled, or a worker did not run.
fn measure(
    shared: &Shared<'_>,
    spec: &Spec<'_>,
    cancel: &AtomicBool,
) -> Result<(Reading, Reading), &'static str> {
    let pause = |time| pause(time, cancel).ok_or("interrupted");
    pause(spec.time / WARM_UP_PART)?;
    // The workers go on while the counts are read, before and after: both readings are as far from the phase's change.
    let before = Reading::now(shared.tags, spec.counts);
    shared.set_phase(MEASURING);
    // On a busy host a worker may not run for longer than the sample takes.
    let workers = shared.sleepers.len();
    let until = Instant::now() + LATEST_START;
    while shared.measuring.load(Ordering::Relaxed) < workers {
        if Instant::now() > until {
            return Err("a worker did not run for 5 s, on a CPU that others use");
        }
        pause(START_CHECK)?;
    }
    pause(spec.time)?;
    Ok((before, Reading::now(shared.tags, spec.counts)))
}

/// The end of a sleep is not put off by the thread's timer slack, 50 us unless it is set: more than an I/O takes.
fn sleep_exactly() {
    // SAFETY: sets a property of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

fn pause(time: Duration, cancel: &AtomicBool) -> Option<()> {
    let end = Instant::now() + time;
    loop {
        if cancel.load(Ordering::Relaxed) {
            return None;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(());
        }
        sleep(left.min(CANCEL_CHECK));
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::NodeId;

    use super::*;

    /// Workers on the CPUs of this process, in turns.
    fn sample(
        policy: &str,
        completion: Completion,
        workers: usize,
        depth: u64,
        tags: u32,
    ) -> Sample {
        let here: Vec<CpuId> = affinity::get(0).unwrap().iter().collect();
        let mut cpus: Vec<CpuId> = here.iter().copied().cycle().take(workers).collect();
        let other_cpus = cpus.split_off(workers.div_ceil(2));
        let groups = Groups {
            device_node: NodeId(0),
            device_cpus: cpus,
            other_node: Some(NodeId(1)),
            other_cpus,
        };
        let device = Config {
            tags,
            request_bytes: 64,
            service_ns: 1000,
            interval_ns: 0,
        };
        let words = Device::request_memory(&device) / 8 + 1024;
        let memory: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let spec = Spec {
            groups: &groups,
            completion,
            shares: vec![depth / workers as u64; workers],
            batch: 8,
            is_queueing: true,
            time: Duration::from_millis(40),
            device,
            counts: None,
        };
        let tags = Allocator::new(policy, tags, |it| it).unwrap();
        take(&spec, &tags, &memory, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn every_completion_goes_on_with_more_io_than_tags() {
        for completion in [Completion::Submitter, Completion::Any, Completion::Device] {
            for policy in ["auto", "mutex_vec", "array_queue"] {
                let sample = sample(policy, completion, 4, 32, 9);
                assert!(sample.operations_per_s > 0.0, "{policy} {completion:?}");
                assert!(sample.wait_share > 0.0, "{policy} {completion:?}");
                assert!(sample.hand_over_ns.count() > 0, "{policy} {completion:?}");
            }
        }
    }

    #[test]
    fn a_worker_alone_with_tags_to_spare_never_waits() {
        let sample = sample("auto", Completion::Submitter, 1, 4, 16);
        assert_eq!((sample.wait_share, sample.fairness), (0.0, Some(1.0)));
        assert_eq!(sample.hand_over_ns.count(), 0);
    }
}
