//! One sample: tasks are placed, started, counted, traced and killed.

use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nearfar_experiment::{BoxError, unmeasured};
use nearfar_machine::{CpuSet, Known, Machine, NodeId, NodeSet};
use nearfar_proc::meminfo;
use nearfar_trace::locks::{self, Recorded, Recorder};
use nearfar_trace::profile::Sampler;
use nearfar_trace::symbols::Symbols;

use super::Sample;
use super::findings::{Contention, Hot};
use super::tasks::{TaskCounters, TaskSpec, Tasks, TasksSpec};
use super::workload::Workload;
use crate::child::ChildError;
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
    let counters = TaskCounters::new(plan.tasks.len())?;
    // Before the load: opening events under load has been seen to crash emulated guests.
    let begin = || {
        let opened = (open_trace(plan), open_profile(plan));
        Ok::<_, ChildError>((opened, start(plan, &counters, cancel)?))
    };
    let ((recorder, sampler), mut tasks) = unmeasured(plan.machine, begin)??;
    tasks.begin()?;
    wait(plan.warm_up, cancel)?;
    let counted = count_for(plan, &tasks, &counters, sampler, cancel)?;
    let recorder = recorder.and_then(|mut it| Known::from_result(it.begin().map(|()| it)));
    if recorder.get().is_some() {
        wait(plan.trace, cancel)?;
    }
    // What they do from now on is of no interest, and they would take the CPUs from what follows.
    tasks.stop(cancel)?;
    let recorded = recorder.and_then(|it| Known::from_result(it.finish()));
    let named = || named(plan.tasks.len(), tasks, counted.sampler, recorded);
    let (profile, contention) = unmeasured(plan.machine, named)?;
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
        user_s: counted.cpu_s.map(|it| it.0),
        system_s: counted.cpu_s.map(|it| it.1),
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
    /// In programs and in the kernel. `None` in simulated time: to read it of many takes longer than is measured, and it is counted in
    /// ticks.
    cpu_s: Option<(f64, f64)>,
    sampler: Known<Sampler>,
}

fn count_for(
    plan: &Plan<'_>,
    tasks: &Tasks,
    counters: &TaskCounters,
    mut sampler: Known<Sampler>,
    cancel: &AtomicBool,
) -> Result<CountedTasks, BoxError> {
    if let Known::Yes(opened) = &sampler
        && let Err(error) = opened.enable()
    {
        sampler = Known::no(error.to_string());
    }
    let cpu_time = || (!plan.machine.origin.is_simulated()).then(|| cpu_time(tasks));
    let (cpu_before, before) = (cpu_time(), (Instant::now(), counters.read()));
    match &mut sampler {
        Known::Yes(sampler) => pause(plan.time, LOOK, cancel, || {
            sampler.drain();
            Ok(())
        })?,
        Known::No { .. } => wait(plan.time, cancel)?,
    }
    let (after, seconds) = (counters.read(), before.0.elapsed().as_secs_f64());
    let cpu_after = cpu_time();
    let counts = before.1.iter().zip(&after);
    let rates = counts.map(|(before, after)| (after - before) as f64 / seconds);
    Ok(CountedTasks {
        seconds,
        rates: rates.collect(),
        cpu_s: cpu_before
            .zip(cpu_after)
            .map(|(before, after)| (after.0 - before.0, after.1 - before.1)),
        sampler: sampler.and_then(|mut it| Known::from_result(it.end().map(|()| it))),
    })
}

fn start(
    plan: &Plan<'_>,
    counters: &TaskCounters,
    cancel: &AtomicBool,
) -> Result<Tasks, ChildError> {
    let each = if plan.is_threads { plan.tasks.len() } else { 1 };
    let spec = TasksSpec {
        workload: plan.workload,
        bytes: plan.bytes,
        directory: plan.directory.to_owned(),
        counters: (counters.descriptor(), plan.tasks.len()),
        processes: plan.tasks.chunks(each).map(<[_]>::to_vec).collect(),
    };
    Tasks::start(&spec, cancel)
}

fn wait(time: Duration, cancel: &AtomicBool) -> Result<(), BoxError> {
    Ok(pause(time, LOOK, cancel, || Ok(()))?)
}

/// Seconds of all tasks in programs and in the kernel.
fn cpu_time(tasks: &Tasks) -> (f64, f64) {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let of = |pid: &i32| nearfar_proc::tasks::stat(*pid).ok();
    let all = tasks.processes().iter().filter_map(of);
    all.fold((0.0, 0.0), |(user, system), stat| {
        (
            user + stat.user_ticks as f64 / ticks,
            system + stat.system_ticks as f64 / ticks,
        )
    })
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

/// Ends the tasks, and names what they did.
fn named(
    count: usize,
    tasks: Tasks,
    sampler: Known<Sampler>,
    recorded: Known<Recorded>,
) -> (Known<Hot>, Known<Contention>) {
    let processes = tasks.processes().iter().copied().collect();
    drop(tasks);
    let profile = sampler.map(|it| Hot::new(it.profile(&processes, &SYMBOLS)));
    let contention = recorded.map(|it| {
        let waits = locks::answer(it.waits, Some(&processes), &SYMBOLS);
        Contention::new(waits, it.finished, count)
    });
    (profile, contention)
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
