//! Taking a sample: the workers of a cell, each on its CPU, for a while. A worker keeps its share of the depth in flight and completes what is done.
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

use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, LabHost};
use nearfar_machine::{CpuId, Machine};
use nearfar_proc::affinity;
use nearfar_runs::Histogram;
use nearfar_tags::{Get, Steals};
use serde::{Deserialize, Serialize};

use super::device::{Allocator, Config, Device, Duplicate, Padded};
use super::groups::Groups;
use super::{Meanwhile, Sample, StealCounts};
use crate::conditions::{self, Ticks, seconds_of, usage_of};
use crate::sampling::pause;

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
    /// A further one, which takes the device's interrupts, for submitters that share its last-level cache; it hands the I/O of others
    /// over to them (__blk_mq_complete_request of block/blk-mq.c in Linux 3.14).
    Interrupt,
}

impl Completion {
    pub(super) fn of(level: &str) -> Option<Self> {
        match level {
            "submitter" => Some(Self::Submitter),
            "any" => Some(Self::Any),
            "device" => Some(Self::Device),
            "interrupt" => Some(Self::Interrupt),
            _ => None,
        }
    }

    /// The workers that may take an I/O of this one from the device, where `on_device_node` are on the device's node.
    fn handlers(self, submitter: usize, workers: usize, on_device_node: usize) -> Range<usize> {
        match self {
            Self::Submitter => submitter..submitter + 1,
            Self::Any => 0..workers,
            Self::Device => 0..on_device_node,
            Self::Interrupt => workers..workers + 1,
        }
    }
}

/// What a cell measures.
pub(super) struct Spec<'a> {
    pub(super) groups: &'a Groups,
    /// Of each worker, whether its CPU shares a last-level cache with the one that takes the device's interrupts.
    pub(super) near_interrupts: Vec<bool>,
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
    let (mut cpus, on_device_node) = (spec.groups.workers(), spec.groups.device_cpus.len());
    let workers = cpus.len();
    let handlers = |index| spec.completion.handlers(index, workers, on_device_node);
    // blk_mq_complete_need_ipi() in block/blk-mq.c: one that shares no cache with the interrupt gets its I/O handed over.
    let is_handed_over = |submitter: usize| {
        let is_near = spec.near_interrupts.get(submitter);
        spec.completion == Completion::Interrupt && is_near == Some(&false)
    };
    let completes = |submitter, handler| {
        let is_own = handler == submitter && is_handed_over(submitter);
        is_own || handlers(submitter).contains(&handler)
    };
    let mut shares = spec.shares.clone();
    if spec.completion == Completion::Interrupt {
        let cpu = spec.groups.interrupt_cpu;
        cpus.push(cpu.ok_or("no CPU of the device's node is left for its interrupts")?);
        shares.push(0);
    }
    let shared = &Shared {
        tags,
        device: Device::new(spec.device, memory, cpus.len(), completes),
        phase: AtomicU8::new(WARMING_UP),
        measuring: AtomicUsize::new(0),
        started: Instant::now(),
        sleepers: cpus.iter().map(|_| Default::default()).collect(),
        batch: spec.batch,
        is_queueing: spec.is_queueing,
    };
    std::thread::scope(|scope| {
        let (arrived, arrivals) = mpsc::channel();
        let spawn = |(index, &cpu): (usize, &CpuId)| {
            let (arrived, share, handlers) = (arrived.clone(), shares[index], handlers(index));
            let thread = std::thread::Builder::new().name("nearfar-worker".to_owned());
            thread.spawn_scoped(scope, move || -> Result<Measured, BoxError> {
                let pinned = affinity::pin(cpu);
                let pinned = pinned.map_err(|error| format!("cannot run on CPU {cpu}: {error}"));
                sleep_exactly();
                let _ = arrived.send(pinned.is_ok());
                pinned?;
                Ok(TagWorker::new(shared, index, share, handlers).run()?)
            })
        };
        let threads: Vec<_> = cpus.iter().enumerate().map(spawn).collect();
        let started = threads.iter().all(Result::is_ok);
        let all_run = started && cpus.iter().all(|_| arrivals.recv() == Ok(true));
        let measured = match all_run {
            true => measure(shared, spec, cancel),
            false => Err("interrupted"),
        };
        shared.set_phase(ENDED);
        let mut joined = Vec::new();
        for thread in threads {
            let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
            joined.push(thread.join().map_err(|_| "a worker panicked")?);
        }
        let mut measurements: Vec<Measured> = joined.into_iter().collect::<Result<_, _>>()?;
        // The one that takes interrupts submits nothing.
        measurements.truncate(workers);
        let (before, after) = measured?;
        let sample = Sample::new(&measurements, after.since(&before, spec.groups));
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
    let pause = |time| pause(time, CANCEL_CHECK, cancel, || Ok(()));
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

/// What all workers do now.
const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const ENDED: u8 = 2;

/// The longest sleep of a worker that has nothing to complete.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// What all workers share.
pub(super) struct Shared<'a> {
    pub(super) tags: &'a Allocator,
    pub(super) device: Device<'a>,
    phase: AtomicU8,
    /// Workers that have begun to measure.
    measuring: AtomicUsize,
    started: Instant,
    sleepers: Vec<Padded<Sleeper>>,
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
    fn set_phase(&self, phase: u8) {
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
pub(super) struct TagWorker<'a> {
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

impl<'a> TagWorker<'a> {
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
        Mark {
            at_ns: self.shared.now_ns(),
            completed: self.shared.device.completed(self.index),
            waited_ns: self.waited_ns,
            cpu_s: conditions::thread_time().as_secs_f64(),
            user_s: seconds_of(usage.ru_utime),
            system_s: seconds_of(usage.ru_stime),
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
        // Without a share it takes interrupts.
        let takes_interrupts = self.share == 0;
        for submitter in (self.first..workers).chain(0..self.first) {
            let pair = (submitter, self.index);
            let is_done = || {
                device
                    .next_due(submitter, self.index)
                    .is_some_and(|due| due <= now)
            };
            let mut completed = false;
            while count < self.shared.batch && is_done() {
                if takes_interrupts && device.completes_own(submitter) {
                    device.forward(pair);
                    (count, completed) = (count + 1, true);
                    continue;
                }
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
        // Nothing wakes a worker that waits outside a queue and has nothing to complete.
        let is_woken = next.is_some() || self.wait.as_ref().is_none_or(|wait| wait.get.is_some());
        let completes_own_only =
            device.completes_own(self.index) && !device.completes_others(self.index);
        let time = match completes_own_only && is_woken {
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

/// Cache lines that all vCPUs of a guest have got from each other, as the lab's plugin counts them. Both readings of an interval are late
/// by the time that an answer takes, so their difference is the count of an interval of that length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LineTransfers {
    /// From another vCPU of the node.
    pub(crate) same_node: u64,
    /// From a vCPU of another node.
    pub(crate) other_node: u64,
}

impl LineTransfers {
    /// The host that counts them; `None` on a machine that is not a guest with delays.
    pub(crate) fn host(machine: &Machine) -> Option<LabHost> {
        machine.origin.emulation.as_ref()?.delays()?;
        Some(LabHost::default())
    }

    /// Those since the guest started, or why there are none.
    fn so_far(host: &LabHost) -> Result<Self, String> {
        let answer = host.ask("counts").map_err(|error| error.to_string())?;
        serde_json::from_str(&answer).map_err(|error| format!("{answer}: {error}"))
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            same_node: self.same_node.saturating_sub(before.same_node),
            other_node: self.other_node.saturating_sub(before.other_node),
        }
    }

    pub(crate) fn all(&self) -> u64 {
        self.same_node + self.other_node
    }
}

#[cfg(test)]
mod tests {
    use nearfar_machine::{NodeId, Origin, SourceKind};

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
            interrupt_cpu: cpus.first().copied(),
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
            near_interrupts: (0..workers)
                .map(|it| it < groups.device_cpus.len())
                .collect(),
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
        let all = ["submitter", "any", "device", "interrupt"].map(|it| Completion::of(it).unwrap());
        for completion in all {
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

    #[test]
    fn an_interval_has_what_came_in_between() {
        let [before, after]: [LineTransfers; 2] = serde_json::from_str(
            r#"[{"same_node":5,"other_node":20},{"same_node":7,"other_node":30}]"#,
        )
        .unwrap();
        assert_eq!(after.since(&before).all(), 12);
    }

    #[test]
    fn a_machine_without_delays_has_no_host_to_ask() {
        let machine = Machine::empty(Origin::new(SourceKind::Live, "test"), "test");
        assert!(LineTransfers::host(&machine).is_none());
    }
}
