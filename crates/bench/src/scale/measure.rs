//! One sample: tasks are placed, started, counted, traced and killed. A child is one task, or several as its threads; parent and tasks
//! share memory with a counter for each task.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, unmeasured};
use nearfar_machine::{CpuSet, Known, Machine, NodeId, NodeSet};
use nearfar_proc::{affinity, meminfo, tasks};
use nearfar_trace::locks::{self, Recorded, Recorder, Symbols};
use nearfar_trace::profile::Sampler;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};

use super::Sample;
use super::findings::{Contention, Hot};
use super::workload::Workload;
use crate::child::{Child, ChildError, Conversation, ReadyLine, ServeError};
use crate::node_buffers::set_policy;
use crate::sampling::pause;

/// Between two looks at the cancel flag.
const LOOK: Duration = Duration::from_millis(50);
/// Read once for all samples, and where there is something to name: it takes an emulated guest seconds.
static SYMBOLS: LazyLock<Known<Symbols>> = LazyLock::new(Symbols::read);
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
    let counters = TaskCounters::new(count)?;
    // Before the load: opening events under load has been seen to crash emulated guests.
    let begin = || {
        let opened = (open_trace(plan), open_profile(plan));
        Ok::<_, ChildError>((opened, start(plan, &counters, cancel)?))
    };
    let ((recorder, sampler), mut children) = unmeasured(plan.machine, begin)??;
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
struct CountedTasks {
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
    counters: &TaskCounters,
    mut sampler: Known<Sampler>,
    cancel: &AtomicBool,
) -> Result<CountedTasks, BoxError> {
    if let Known::Yes(opened) = &sampler
        && let Err(error) = opened.enable()
    {
        sampler = Known::no(error.to_string());
    }
    let (cpu_before, before) = (cpu_time(children), (Instant::now(), counters.read()));
    match &mut sampler {
        Known::Yes(sampler) => pause(plan.time, LOOK, cancel, || {
            sampler.drain();
            Ok(())
        })?,
        Known::No { .. } => wait(plan.time, cancel)?,
    }
    let (after, seconds) = (counters.read(), before.0.elapsed().as_secs_f64());
    let cpu_after = cpu_time(children);
    let counts = before.1.iter().zip(&after);
    let rates = counts.map(|(before, after)| (after - before) as f64 / seconds);
    Ok(CountedTasks {
        seconds,
        rates: rates.collect(),
        user_s: cpu_after.0 - cpu_before.0,
        system_s: cpu_after.1 - cpu_before.1,
        sampler: sampler.and_then(|mut it| Known::from_result(it.end().map(|()| it))),
    })
}

fn start(
    plan: &Plan<'_>,
    counters: &TaskCounters,
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
    Ok(pause(time, LOOK, cancel, || Ok(()))?)
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
    let profile = sampler.map(|it| Hot::new(it.profile(&processes, &SYMBOLS)));
    let contention = recorded.map(|it| {
        let waits = locks::answer(it.waits, Some(&processes), &SYMBOLS);
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

/// How the tasks of a cell are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placing {
    pub(super) tasks: usize,
    /// A CPU each, in ascending order; else wherever the scheduler puts them.
    pub(super) is_bound: bool,
    /// Each task's memory on one of the nodes that its CPU belongs to, in turn; else where the kernel takes it from.
    pub(super) is_spread: bool,
    /// CPUs of so many nodes, the lowest first; `None` for all.
    pub(super) nodes: Option<usize>,
}

/// The tasks of a cell.
///
/// # Errors
/// When there are more bound tasks than CPUs, or fewer nodes with CPUs than are to be used.
pub(super) fn place(
    machine: &Machine,
    allowed: &CpuSet,
    placing: Placing,
) -> Result<Vec<TaskSpec>, String> {
    let cpus = match placing.nodes {
        None => allowed.clone(),
        Some(count) => cpus_of_nodes(machine, allowed, count)?,
    };
    let in_order: Vec<_> = cpus.iter().collect();
    if placing.is_bound && placing.tasks > in_order.len() {
        let (tasks, count) = (placing.tasks, in_order.len());
        return Err(format!(
            "{tasks} bound tasks need as many CPUs; there are {count}"
        ));
    }
    let of = |number: usize| {
        let own = match placing.is_bound {
            true => CpuSet::from_iter([in_order[number]]),
            false => cpus.clone(),
        };
        let nodes: Vec<NodeId> = machine.nodes_of_cpus(&own).iter().collect();
        let in_turn = || nodes.get(number.checked_rem(nodes.len())?).copied();
        TaskSpec {
            number,
            memory_node: placing.is_spread.then(in_turn).flatten(),
            cpus: own,
        }
    };
    Ok((0..placing.tasks).map(of).collect())
}

fn cpus_of_nodes(machine: &Machine, allowed: &CpuSet, count: usize) -> Result<CpuSet, String> {
    let nodes = machine.nodes_of_cpus(allowed);
    if count > nodes.len() {
        return Err(format!(
            "nodes_used={count}: the machine has {} nodes with CPUs",
            nodes.len()
        ));
    }
    let nodes = nodes.iter().take(count).filter_map(|id| machine.node(id));
    Ok(nodes
        .flat_map(|node| {
            node.known_cpus()
                .intersection(allowed)
                .iter()
                .collect::<Vec<_>>()
        })
        .collect())
}

/// The numbers of tasks of a sweep: each one, or powers of two and all.
pub(super) fn sweep(cpus: usize, is_full: bool) -> Vec<usize> {
    let cpus = cpus.max(1);
    match is_full {
        true => (1..=cpus).collect(),
        false => {
            let powers = (0..)
                .map(|power| 1 << power)
                .take_while(|tasks| *tasks < cpus);
            powers.chain([cpus]).collect()
        }
    }
}

/// What a child does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TasksSpec {
    pub(super) workload: Workload,
    /// Bytes of a mapping or file.
    pub(super) bytes: u64,
    /// Where files are made.
    pub(super) directory: PathBuf,
    /// The descriptor of the counters, and how many there are.
    pub(super) counters: (i32, usize),
    /// A thread each; one alone is the process itself.
    pub(super) tasks: Vec<TaskSpec>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskSpec {
    /// Its counter.
    pub(super) number: usize,
    /// Where it may run.
    pub(super) cpus: CpuSet,
    /// Where its memory comes from; `None` for wherever it runs.
    memory_node: Option<NodeId>,
}

/// Does what `nearfar bench child scale` is for: tasks that are described over standard input, started by "go", and ended by
/// a signal.
///
/// # Errors
/// When they cannot run as described.
pub fn serve() -> Result<(), ServeError> {
    let mut caller = Conversation::open("scale");
    let spec: TasksSpec = caller.spec()?;
    let (descriptor, count) = spec.counters;
    let counters = TaskCounters::inherited(descriptor, count)
        .map_err(|error| ServeError::refused("mapping the counters of tasks", error))?;
    caller.answer(&ReadyLine {
        ready: spec.tasks.len(),
    })?;
    caller.wait_for("go")?;
    let run = |task: &TaskSpec| {
        let failed = match run(&spec, task, &counters) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        let workload = spec.workload;
        ServeError::refused(
            format!("task {} of {}", task.number, workload.name()),
            failed,
        )
    };
    match spec.tasks.as_slice() {
        [task] => Err(run(task)),
        tasks => thread::scope(|scope| {
            let (failed, failure) = channel();
            for task in tasks {
                let (failed, run) = (failed.clone(), &run);
                scope.spawn(move || failed.send(run(task)));
            }
            drop(failed);
            match failure.recv() {
                // The other threads go on until the process ends.
                Ok(error) => {
                    eprintln!("nearfar: {error}");
                    std::process::exit(3)
                }
                Err(_) => Err(ServeError::BadSpec("no task was described".to_owned())),
            }
        }),
    }
}

fn run(spec: &TasksSpec, task: &TaskSpec, counters: &TaskCounters) -> io::Result<Infallible> {
    affinity::run_on(&task.cpus)?;
    set_policy(task.memory_node)?;
    let counter = counters
        .of(task.number)
        .ok_or(io::ErrorKind::InvalidInput)?;
    spec.workload
        .run(spec.bytes as usize, &spec.directory, counter)
}

/// Bytes from one counter to the next: two cache lines of the largest known size, for processors that fetch pairs of them.
const STRIDE: usize = 256;

pub(super) struct TaskCounters {
    file: File,
    start: NonNull<u8>,
    count: usize,
}

// SAFETY: the mapping belongs to this value, and is only ever accessed as atomic numbers.
unsafe impl Sync for TaskCounters {}

impl TaskCounters {
    /// All 0. Children inherit the descriptor.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let file: File = memfd_create("nearfar-scale", MemfdFlags::empty())?.into();
        ftruncate(&file, (count * STRIDE) as u64)?;
        Self::map(file, count)
    }

    /// Those that the parent has as this descriptor.
    fn inherited(descriptor: i32, count: usize) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(path)?;
        match file.metadata()?.len() == (count * STRIDE) as u64 {
            true => Self::map(file, count),
            false => Err(io::Error::other("the counters have another size")),
        }
    }

    fn map(file: File, count: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = count * STRIDE;
        // SAFETY: a new mapping where the kernel likes; nothing that exists is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, start, count })
    }

    fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub(super) fn of(&self, task: usize) -> Option<&AtomicU64> {
        (task < self.count).then(|| {
            let place = self.start.as_ptr().wrapping_add(task * STRIDE);
            // SAFETY: within the mapping, aligned, only ever accessed atomically, and mapped as long as `self` is borrowed.
            unsafe { AtomicU64::from_ptr(place.cast()) }
        })
    }

    pub(super) fn read(&self) -> Vec<u64> {
        let all = (0..self.count).filter_map(|task| self.of(task));
        all.map(|it| it.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for TaskCounters {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; what `of` gave out borrows `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * STRIDE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_nodes() -> Machine {
        let request = nearfar_sources::Request {
            sources: vec!["two-node".to_owned()],
            ..nearfar_sources::Request::live(nearfar_sources::Want::topology())
        };
        nearfar_sources::read(&request).unwrap()
    }

    const PLACING: Placing = Placing {
        tasks: 2,
        is_bound: true,
        is_spread: false,
        nodes: None,
    };

    #[test]
    fn a_sweep_ends_with_all_cpus() {
        assert_eq!(sweep(1, false), [1]);
        assert_eq!(sweep(8, false), [1, 2, 4, 8]);
        assert_eq!(sweep(12, false), [1, 2, 4, 8, 12]);
        assert_eq!(sweep(3, true), [1, 2, 3]);
    }

    #[test]
    fn bound_tasks_have_a_cpu_each_and_fake_nodes_in_turn() {
        let mut machine = two_nodes();
        // As numa=fake shows it: both nodes have all CPUs.
        let all = machine.cpu_states.online.clone();
        machine
            .nodes
            .iter_mut()
            .for_each(|node| node.cpus = all.clone().into());
        let tasks = place(
            &machine,
            &all,
            Placing {
                is_spread: true,
                ..PLACING
            },
        )
        .unwrap();
        let found: Vec<_> = tasks
            .iter()
            .map(|it| (it.cpus.to_string(), it.memory_node.map(|it| it.0)))
            .collect();
        assert_eq!(
            found,
            [("0".to_owned(), Some(0)), ("1".to_owned(), Some(1))]
        );
    }

    #[test]
    fn tasks_use_the_cpus_of_so_many_nodes() {
        let machine = two_nodes();
        let all = machine.cpu_states.online.clone();
        let one = Placing {
            nodes: Some(1),
            is_bound: false,
            ..PLACING
        };
        let tasks = place(&machine, &all, one).unwrap();
        assert_eq!(
            tasks[0].cpus,
            machine.nodes[0].known_cpus().intersection(&all)
        );
        assert!(
            place(
                &machine,
                &all,
                Placing {
                    nodes: Some(9),
                    ..PLACING
                }
            )
            .unwrap_err()
            .contains("2 nodes")
        );
        let many = Placing {
            tasks: 10_000,
            ..PLACING
        };
        assert!(
            place(&machine, &all, many)
                .unwrap_err()
                .contains("bound tasks")
        );
    }
}
