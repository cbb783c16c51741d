//! One sample: tasks are started, counted, traced and killed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, unmeasured};
use nearfar_machine::{Known, Machine, NodeSet};
use nearfar_proc::{meminfo, tasks};
use nearfar_trace::locks::{self, Recorded, Recorder, Symbols};
use nearfar_trace::profile::Sampler;

use super::counters::Counters;
use super::hot::Hot;
use super::locks::Contention;
use super::sample::Sample;
use super::task::{TaskSpec, TasksSpec};
use super::workload::Workload;
use crate::child::{Child, ChildError, ReadyLine};

/// Between two looks at the cancel flag.
const LOOK: Duration = Duration::from_millis(50);
/// Of the memory that is available, what tasks may hold.
const MAX_MEMORY_SHARE: f64 = 0.75;

pub(super) struct Plan<'a> {
    pub(super) machine: &'a Machine,
    pub(super) workload: Workload,
    pub(super) bytes: u64,
    pub(super) directory: &'a Path,
    pub(super) is_threads: bool,
    pub(super) tasks: Vec<TaskSpec>,
    pub(super) warm_up: Duration,
    pub(super) time: Duration,
    /// No trace where this is zero.
    pub(super) trace: Duration,
    /// No profile where this is 0.
    pub(super) profile_hertz: u32,
}

/// Takes a sample.
///
/// # Errors
/// When the tasks cannot be started, or one of them ended.
pub(super) fn take(plan: &Plan<'_>, cancel: &AtomicBool) -> Result<Sample, BoxError> {
    check_memory(plan.workload, plan.bytes, plan.tasks.len())?;
    let count = plan.tasks.len();
    let counters = Counters::new(count)?;
    // Before the load: opening events under load has been seen to crash emulated guests.
    let recorder = open_trace(plan);
    let sampler = open_profile(plan);
    let mut children = unmeasured(plan.machine, || start(plan, &counters, cancel))??;
    for child in &mut children {
        child.say("go")?;
    }
    wait(plan.warm_up, cancel)?;
    let counted = count_for(plan, &children, &counters, sampler, cancel)?;
    let recorded = match recorder {
        Known::Yes(recorder) => traced(recorder, plan, &children, cancel)?,
        Known::No { unknown_reason } => Known::No { unknown_reason },
    };
    let named = || named(children, counted.sampler, recorded, cancel);
    let (profile, contention) = unmeasured(plan.machine, named)??;
    let memory_nodes: NodeSet = plan.tasks.iter().filter_map(|it| it.memory_node).collect();
    let untraced = contention
        .unknown_reason()
        .filter(|_| !plan.trace.is_zero())
        .map(|reason| format!("lock contention is unknown: {reason}"));
    let unsampled = profile
        .unknown_reason()
        .filter(|_| plan.profile_hertz > 0)
        .map(|reason| format!("where CPU time is spent is unknown: {reason}"));
    Ok(Sample {
        operations_per_s: counted.rates,
        user_s: counted.user_s,
        system_s: counted.system_s,
        seconds: counted.seconds,
        nodes: plan.machine.online_node_set(),
        memory_nodes,
        warnings: untraced.into_iter().chain(unsampled).collect(),
        contention,
        profile,
    })
}

/// What the tasks did for some time.
struct Counted {
    seconds: f64,
    /// Operations per second of each task.
    rates: Vec<f64>,
    user_s: f64,
    system_s: f64,
    sampler: Known<Sampler>,
}

fn count_for(
    plan: &Plan<'_>,
    children: &[Child],
    counters: &Counters,
    mut sampler: Known<Sampler>,
    cancel: &AtomicBool,
) -> Result<Counted, BoxError> {
    if let Known::Yes(opened) = &sampler
        && let Err(error) = opened.enable()
    {
        sampler = Known::no(error.to_string());
    }
    let (cpu_before, before) = (cpu_time(children), (Instant::now(), counters.read()));
    match &mut sampler {
        Known::Yes(sampler) => wait_and(plan.time, cancel, &mut || sampler.drain())?,
        Known::No { .. } => wait(plan.time, cancel)?,
    }
    let (after, seconds) = (counters.read(), before.0.elapsed().as_secs_f64());
    let cpu_after = cpu_time(children);
    let counts = before.1.iter().zip(&after);
    let rates = counts.map(|(before, after)| (after - before) as f64 / seconds);
    Ok(Counted {
        seconds,
        rates: rates.collect(),
        user_s: cpu_after.0 - cpu_before.0,
        system_s: cpu_after.1 - cpu_before.1,
        sampler: sampler.and_then(|mut it| Known::from_result(it.end().map(|()| it))),
    })
}

fn start(
    plan: &Plan<'_>,
    counters: &Counters,
    cancel: &AtomicBool,
) -> Result<Vec<Child>, ChildError> {
    let spec = |tasks: &[TaskSpec]| TasksSpec {
        workload: plan.workload,
        bytes: plan.bytes,
        directory: plan.directory.to_owned(),
        counters: (counters.descriptor(), plan.tasks.len()),
        tasks: tasks.to_vec(),
    };
    let each = if plan.is_threads { plan.tasks.len() } else { 1 };
    let program = PathBuf::from("/proc/self/exe");
    let start = |tasks| Child::start(&program, "scale", &spec(tasks));
    let mut children = plan
        .tasks
        .chunks(each)
        .map(start)
        .collect::<Result<Vec<_>, _>>()?;
    for child in &mut children {
        let ReadyLine::<usize> { ready: _ } = child.listen(cancel)?;
    }
    Ok(children)
}

fn wait(time: Duration, cancel: &AtomicBool) -> Result<(), BoxError> {
    wait_and(time, cancel, &mut || ())
}

/// Does something now and then meanwhile.
fn wait_and(
    time: Duration,
    cancel: &AtomicBool,
    meanwhile: &mut dyn FnMut(),
) -> Result<(), BoxError> {
    let end = Instant::now() + time;
    loop {
        meanwhile();
        if cancel.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left => sleep(left.min(LOOK)),
        }
    }
}

/// Seconds of all tasks in programs and in the kernel.
fn cpu_time(children: &[Child]) -> (f64, f64) {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let of = |child: &Child| tasks::stat(child.pid()).ok();
    let all = children.iter().filter_map(of);
    all.fold((0.0, 0.0), |(user, system), stat| {
        (
            user + stat.user_ticks as f64 / ticks,
            system + stat.system_ticks as f64 / ticks,
        )
    })
}

/// Why a task ended, if one did.
fn check_alive(children: &mut [Child], cancel: &AtomicBool) -> Result<(), BoxError> {
    let is_ended = |child: &Child| tasks::stat(child.pid()).map_or(true, |stat| stat.is_ended());
    match children.iter_mut().find(|child| is_ended(child)) {
        None => Ok(()),
        Some(child) => {
            let answer: serde_json::Value = child.listen(cancel)?;
            Err(format!("a task ended before it was to: {answer}").into())
        }
    }
}

fn open_trace(plan: &Plan<'_>) -> Known<Recorder> {
    match plan.trace.is_zero() {
        true => Known::no("it was not traced"),
        false => Known::from_result(Recorder::open(&plan.machine.cpu_states.online)),
    }
}

fn open_profile(plan: &Plan<'_>) -> Known<Sampler> {
    match plan.profile_hertz {
        0 => Known::no("it was not sampled"),
        hertz => Known::from_result(Sampler::open(&plan.machine.cpu_states.online, hertz)),
    }
}

fn traced(
    mut recorder: Recorder,
    plan: &Plan<'_>,
    children: &[Child],
    cancel: &AtomicBool,
) -> Result<Known<Recorded>, BoxError> {
    let begun = recorder.begin();
    wait(plan.trace, cancel)?;
    // What they do while the trace is read is of no interest, and they would take the CPU from the one that reads.
    children.iter().for_each(Child::stop);
    Ok(Known::from_result(begun.and_then(|()| recorder.finish())))
}

/// Ends the tasks, of which none has ended by itself, and names what they did.
fn named(
    mut children: Vec<Child>,
    sampler: Known<Sampler>,
    recorded: Known<Recorded>,
    cancel: &AtomicBool,
) -> Result<(Known<Hot>, Known<Contention>), BoxError> {
    check_alive(&mut children, cancel)?;
    let (processes, tasks) = (children.iter().map(Child::pid).collect(), children.len());
    drop(children);
    let symbols = Symbols::read();
    let profile = sampler.map(|it| Hot::new(it.profile(&processes, &symbols)));
    let contention = recorded.map(|it| {
        let waits = locks::answer(it.waits, Some(&processes), &symbols);
        Contention::new(waits, it.finished, tasks)
    });
    Ok((profile, contention))
}

/// # Errors
/// When so many tasks would hold more than their share of the memory that is available.
pub(super) fn check_memory(workload: Workload, bytes: u64, tasks: usize) -> Result<(), BoxError> {
    let needed = workload.resident(bytes).saturating_mul(tasks as u64);
    let content = std::fs::read("/proc/meminfo")?;
    let available = meminfo::bytes(&content, "MemAvailable").unwrap_or(u64::MAX);
    match needed as f64 > MAX_MEMORY_SHARE * available as f64 {
        false => Ok(()),
        true => Err(format!(
            "{} tasks would hold {} MiB of the {} MiB that are available: give a smaller --memory-size",
            tasks,
            needed >> 20,
            available >> 20
        )
        .into()),
    }
}
