//! Processes from look to look: those with enough memory as [`Task`]s with the CPU time since the look before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use nearfar_machine::{CpuId, CpuTime, Known, Machine, NodeId, Task, Thread};
use nearfar_proc::tasks::{self, OpenStat};
use nearfar_proc::{Stat, TaskId};
use nearfar_sources::tree::Tree;
use nearfar_sources::{TaskScope, Want, sysfs};

use crate::{Cost, LiveError, MemoryAge, Options, thread_seconds};

/// Threads that one look reads; a process with more is read alone.
const MAX_THREADS: u64 = 1000;
/// CPU seconds of looking for memory, for each second.
const MEMORY_CPU_SHARE: f64 = 0.005;
/// Of the longest rest, that a look may use at once.
const MAX_MEMORY_CPU_S: f64 = 0.05;
/// The memory of a process is looked for at most this often: a sample once a second cannot be noticed, one after another can.
const MIN_MEMORY_AGE: Duration = Duration::from_secs(10);

/// A process that may run another program is as urgent as one with so many times the memory.
const RENAMED_WEIGHT: f64 = 1000.0;

/// What a look found.
pub(crate) struct Scan {
    pub tasks: Vec<Task>,
    pub processes: usize,
    pub threads: u64,
    pub node_changes: u64,
    pub cost: Cost,
}

#[derive(Default)]
pub(crate) struct Processes {
    known: HashMap<i32, Process>,
    /// Since then a process that is not known has started.
    has_looked: bool,
}

/// A process from look to look.
struct Process {
    stat: OpenStat,
    now: Stat,
    name: String,
    /// CPU time since the look before.
    since_ms: u64,
    recent: RecentTime,
    /// Of the last time that they were read.
    threads: Vec<ProcessThread>,
    threads_read: Option<Instant>,
    /// With its memory, of the last time that it was looked for.
    read: Option<Read>,
}

struct Read {
    task: Task,
    at: Instant,
    /// Whether the process had another name then: it may run another program now.
    is_of_other_name: bool,
}

struct ProcessThread {
    id: TaskId,
    name: String,
    ticks: u64,
    since_ms: u64,
    cpu: Option<CpuId>,
}

impl Processes {
    pub fn look(
        &mut self,
        tree: &Tree,
        machine: &Machine,
        options: &Options,
        seconds: f64,
    ) -> Result<Scan, LiveError> {
        let own = std::process::id().cast_signed();
        let pids = tasks::processes().map_err(LiveError::List)?;
        let there: HashSet<i32> = pids.iter().copied().collect();
        self.known.retain(|pid, _| there.contains(pid));
        let mut node_changes = 0;
        for &pid in pids.iter().filter(|&&pid| pid != own) {
            node_changes += u64::from(self.look_at(pid, machine, seconds));
        }
        self.has_looked = true;
        let large = self.wanted(options);
        node_changes += self.read_threads(&large, machine);
        let cost = self.read_memory(tree, &large, seconds);
        let tasks = large.iter().filter_map(|pid| self.known[pid].task(*pid));
        Ok(Scan {
            tasks: tasks.collect(),
            processes: self.known.len(),
            threads: self
                .known
                .values()
                .map(|it| u64::from(it.now.threads))
                .sum(),
            node_changes,
            cost,
        })
    }

    /// Processes with enough memory, by number.
    fn wanted(&self, options: &Options) -> Vec<i32> {
        let known = self.known.iter();
        let wanted = known.filter(|(pid, process)| process.is_wanted(options, **pid));
        let mut pids: Vec<i32> = wanted.map(|(pid, _)| *pid).collect();
        pids.sort_unstable();
        pids
    }

    /// The tasks of the last look, each with its CPU time since it started.
    pub fn since_start(&self, options: &Options) -> Vec<Task> {
        let wanted = self.wanted(options).into_iter();
        let tasks = wanted.filter_map(|pid| self.known[&pid].task_since_start(pid));
        tasks.collect()
    }

    /// How long ago the memory of each process was looked for.
    pub fn memory_ages(&self) -> Vec<MemoryAge> {
        let age = |(&pid, process): (&i32, &Process)| {
            let seconds = process.read.as_ref()?.at.elapsed().as_secs_f64();
            Some(MemoryAge { pid, seconds })
        };
        let mut ages: Vec<MemoryAge> = self.known.iter().filter_map(age).collect();
        ages.sort_by_key(|age| age.pid);
        ages
    }

    /// Its stat; a number that another process has by now starts again. Returns whether its only thread is on another node than it
    /// was.
    fn look_at(&mut self, pid: i32, machine: &Machine, seconds: f64) -> bool {
        let known = self.known.remove(&pid);
        let before = known.as_ref().map(|process| process.now);
        let mut process = known.unwrap_or_else(|| Process::new(pid));
        let again = |_| {
            let mut new = Process::new(pid);
            new.stat.read().map(|read| (read, Some(new)))
        };
        let first = process.stat.read().map(|read| (read, None));
        let (mut now, mut name) = match first.or_else(again) {
            Ok((read, new)) => {
                process = new.unwrap_or(process);
                read
            }
            Err(error) => {
                // One that cannot be read at the moment goes on later: as a new one it would have all of its CPU time at once.
                if before.is_some() && !tasks::is_gone(&error) {
                    process.since_ms = 0;
                    self.known.insert(pid, process);
                }
                return false;
            }
        };
        if before.is_some_and(|before| before.id != now.id) {
            process = Process::new(pid);
            match process.stat.read() {
                Ok(read) => (now, name) = read,
                Err(_) => return false,
            }
        }
        let same = before.filter(|before| before.id == now.id);
        let then = match same {
            Some(before) => ticks(&before),
            None if self.has_looked => 0,
            None => ticks(&now),
        };
        process.since_ms = milliseconds(ticks(&now).saturating_sub(then));
        process.recent.fade(seconds);
        let is_alone = now.threads <= 1;
        if let Some(cpu) = now.cpu.filter(|_| is_alone && process.since_ms > 0) {
            process.recent.add(cpu, process.since_ms);
        }
        let was_on = same.and_then(|before| node(machine, before.cpu));
        let has_moved = is_alone && was_on.is_some() && was_on != node(machine, now.cpu);
        if process.name.as_bytes() != name.as_bytes() {
            // Another program, whose memory is another one, or a process that renames itself all the time.
            process.name = name.to_string();
            if let Some(read) = &mut process.read {
                read.is_of_other_name = true;
            }
        }
        process.now = now;
        self.known.insert(pid, process);
        has_moved
    }

    /// Reads the threads of processes that ran, those first that waited longest. Returns how many of them are on another node than
    /// they were.
    fn read_threads(&mut self, large: &[i32], machine: &Machine) -> u64 {
        let mut due: Vec<(Option<Instant>, i32)> = large
            .iter()
            .map(|pid| (*pid, &self.known[pid]))
            .filter(|(_, it)| it.now.threads > 1 && (it.since_ms > 0 || it.threads_read.is_none()))
            .map(|(pid, process)| (process.threads_read, pid))
            .collect();
        due.sort_unstable();
        let (mut count, mut changes) = (0, 0);
        for (_, pid) in due {
            let Some(process) = self.known.get_mut(&pid) else {
                continue;
            };
            let threads = u64::from(process.now.threads);
            if count > 0 && count + threads > MAX_THREADS {
                break;
            }
            count += threads;
            changes += process.read_threads(pid, machine);
        }
        changes
    }

    /// Looks for the memory of processes until the CPU time for it is used: those first whose memory is unknown, then those with
    /// most memory for the longest time.
    fn read_memory(&mut self, tree: &Tree, large: &[i32], seconds: f64) -> Cost {
        let begun = thread_seconds();
        let budget = (MEMORY_CPU_SHARE * seconds.max(1.0)).min(MAX_MEMORY_CPU_S);
        let mut cost = Cost::default();
        let now = Instant::now();
        let mut due: Vec<(f64, i32)> = Vec::new();
        for pid in large {
            let process = &self.known[pid];
            let pages = process.now.resident_pages as f64;
            match &process.read {
                None => due.push((f64::MAX.min(1e30 * (1.0 + pages)), *pid)),
                Some(read) if now - read.at >= MIN_MEMORY_AGE => {
                    let weight = match read.is_of_other_name {
                        true => RENAMED_WEIGHT,
                        false => 1.0,
                    };
                    due.push((weight * pages * (now - read.at).as_secs_f64(), *pid));
                }
                Some(_) => {}
            }
        }
        due.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, pid) in due {
            if cost.memory_reads > 0 && thread_seconds() - begun > budget {
                break;
            }
            cost.memory_reads += 1;
            let want = Want {
                tasks: TaskScope::Of(vec![pid]),
                ..Want::placement()
            };
            let read = sysfs::read_tasks(tree, &want).known().unwrap_or_default();
            if let (Some(process), Some(task)) = (self.known.get_mut(&pid), read.into_iter().next())
            {
                process.read = Some(Read {
                    task,
                    at: Instant::now(),
                    is_of_other_name: false,
                });
            }
        }
        let unread = large.iter().filter(|pid| self.known[pid].read.is_none());
        cost.memory_unread = unread.count();
        cost
    }
}

impl Process {
    fn new(pid: i32) -> Self {
        Self {
            stat: OpenStat::new(pid),
            now: Stat::default(),
            name: String::new(),
            since_ms: 0,
            recent: RecentTime::default(),
            threads: Vec::new(),
            threads_read: None,
            read: None,
        }
    }

    fn is_wanted(&self, options: &Options, pid: i32) -> bool {
        let bytes = self.now.resident_pages * rustix::param::page_size() as u64;
        let is_large = !self.now.is_kernel_thread() && bytes >= options.min_bytes.max(1);
        is_large || options.pids.contains(&pid)
    }

    fn read_threads(&mut self, pid: i32, machine: &Machine) -> u64 {
        let before: BTreeMap<TaskId, (u64, Option<CpuId>)> = self
            .threads
            .iter()
            .map(|thread| (thread.id, (thread.ticks, thread.cpu)))
            .collect();
        let is_first = self.threads_read.is_none();
        self.threads_read = Some(Instant::now());
        self.threads.clear();
        let mut changes = 0;
        for tid in tasks::threads(pid).unwrap_or_default() {
            let Ok((stat, name)) = tasks::stat_of_with_name(pid, tid) else {
                continue;
            };
            let ticks = ticks(&stat);
            let known = before.get(&stat.id).copied();
            // One that started meanwhile ran since then; of the first time, all of it would be the past.
            let then = known.map_or(if is_first { ticks } else { 0 }, |(ticks, _)| ticks);
            let since_ms = milliseconds(ticks.saturating_sub(then));
            if let Some(cpu) = stat.cpu.filter(|_| since_ms > 0) {
                self.recent.add(cpu, since_ms);
            }
            let was_on = known.and_then(|(_, cpu)| node(machine, cpu));
            changes += u64::from(was_on.is_some() && was_on != node(machine, stat.cpu));
            self.threads.push(ProcessThread {
                id: stat.id,
                name: name.to_string(),
                ticks,
                since_ms,
                cpu: stat.cpu,
            });
        }
        changes
    }

    /// With the CPU time since the look before; where it ran, of the last seconds.
    fn task(&self, pid: i32) -> Option<Task> {
        let mut task = self.read_task(pid)?;
        let times = self.recent.times();
        task.cpu_ms = Known::Yes(self.since_ms);
        // Where it ran before it was watched, until it runs.
        if !times.is_empty() {
            task.cpu_times = Known::Yes(times);
        }
        task.threads = self.threads.iter().map(ProcessThread::thread).collect();
        Some(task)
    }

    /// With the CPU time since its start, as it is read once: of a thread, all of it counts for the CPU that it ran on last.
    fn task_since_start(&self, pid: i32) -> Option<Task> {
        let mut task = self.read_task(pid)?;
        let cpu_ms = milliseconds(ticks(&self.now));
        task.cpu_ms = Known::Yes(cpu_ms);
        let times: Vec<CpuTime> = match (self.now.cpu, &self.threads[..]) {
            (Some(cpu), _) if self.now.threads <= 1 => vec![CpuTime { cpu, ms: cpu_ms }],
            (_, threads) => threads.iter().filter_map(ProcessThread::time).collect(),
        };
        // Threads that were not read yet ran where they did when its memory was read.
        if !times.is_empty() {
            task.cpu_times = Known::Yes(times);
        }
        if let (Known::Yes(age_ms), Some(read)) = (&mut task.age_ms, &self.read) {
            let since = u64::try_from(read.at.elapsed().as_millis());
            *age_ms = age_ms.saturating_add(since.unwrap_or(u64::MAX));
        }
        Some(task)
    }

    /// With its memory as it was read last; `None` where that was another process.
    fn read_task(&self, pid: i32) -> Option<Task> {
        let mut task = match &self.read {
            Some(read) => Task {
                name: self.name.clone(),
                ..read.task.clone()
            },
            None => Task {
                memory: Known::no("not read yet"),
                start: Known::Yes(self.now.id.start),
                ..Task::new(pid, &self.name)
            },
        };
        if task
            .start
            .get()
            .is_some_and(|start| *start != self.now.id.start)
        {
            return None;
        }
        task.last_cpu = Known::from_option(self.now.cpu, || "its stat does not say");
        Some(task)
    }
}

impl ProcessThread {
    /// Its CPU time since its start.
    fn time(&self) -> Option<CpuTime> {
        let ms = milliseconds(self.ticks);
        Some(CpuTime { cpu: self.cpu?, ms })
    }

    fn thread(&self) -> Thread {
        Thread {
            tid: self.id.tid,
            name: self.name.clone(),
            start: self.id.start,
            last_cpu: Known::from_option(self.cpu, || "its stat does not say"),
            cpu_ms: self.since_ms,
        }
    }
}

fn node(machine: &Machine, cpu: Option<CpuId>) -> Option<NodeId> {
    machine.cpu(cpu?)?.node
}

fn ticks(stat: &Stat) -> u64 {
    stat.user_ticks.saturating_add(stat.system_ticks)
}

fn milliseconds(ticks: u64) -> u64 {
    ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1)
}

/// After this long, CPU time counts half. Of a thread that changes its node all the time, one look of a second was up to 23 points
/// wrong, and 30 looks were 4.4.
const HALF_LIFE_S: f64 = 10.0;
/// Less is forgotten, in milliseconds.
const MIN_MS: f64 = 1.0;

#[derive(Clone, Debug, Default)]
struct RecentTime {
    ms: BTreeMap<CpuId, f64>,
}

impl RecentTime {
    /// `seconds` later: what was counted fades.
    fn fade(&mut self, seconds: f64) {
        let factor = 0.5f64.powf(seconds / HALF_LIFE_S);
        self.ms.retain(|_, ms| {
            *ms *= factor;
            *ms >= MIN_MS
        });
    }

    fn add(&mut self, cpu: CpuId, ms: u64) {
        *self.ms.entry(cpu).or_default() += ms as f64;
    }

    /// Rounded; empty where nothing ran.
    fn times(&self) -> Vec<CpuTime> {
        let time = |(&cpu, &ms): (&CpuId, &f64)| CpuTime {
            cpu,
            ms: ms.round() as u64,
        };
        self.ms.iter().map(time).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use nearfar_machine::CpuSet;
    use rustix::process::Pid;
    use rustix::thread::{CpuSet as Affinity, sched_getaffinity, sched_setaffinity};

    use super::*;

    #[test]
    fn time_counts_half_after_the_half_life_and_is_forgotten_in_the_end() {
        let mut recent = RecentTime::default();
        recent.add(CpuId(3), 400);
        recent.fade(HALF_LIFE_S);
        recent.add(CpuId(1), 100);
        let ms = |recent: &RecentTime| -> Vec<(u32, u64)> {
            let times = recent.times();
            times.iter().map(|it| (it.cpu.0, it.ms)).collect()
        };
        assert_eq!(ms(&recent), [(1, 100), (3, 200)]);
        recent.fade(10.0 * HALF_LIFE_S);
        assert_eq!(ms(&recent), []);
    }

    /// A shell that computes; killed when dropped.
    struct Burner(Child);

    impl Drop for Burner {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn a_process_with_one_thread_is_seen_on_another_node() {
        let allowed = sched_getaffinity(None).unwrap();
        let cpus: Vec<usize> = (0..Affinity::MAX_CPU)
            .filter(|&cpu| allowed.is_set(cpu))
            .take(2)
            .collect();
        let [a, b] = cpus[..] else {
            return println!("skipped: cpus: one CPU");
        };
        let request = nearfar_sources::Request::source("node:2 core:1 pu:1", Want::all());
        let mut machine = nearfar_sources::read(&request).unwrap();
        for (index, cpu) in [a, b].into_iter().enumerate() {
            machine.cpus[index].id = CpuId(cpu as u32);
            machine.nodes[index].cpus = CpuSet::range(CpuId(cpu as u32), CpuId(cpu as u32)).into();
        }
        let shell = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        let burner = Burner(shell.unwrap());
        let pid = Pid::from_raw(burner.0.id().cast_signed());
        let mut processes = Processes::default();
        let mut has_moved_to = |cpu: usize| {
            let mut set = Affinity::new();
            set.set(cpu);
            sched_setaffinity(pid, &set).unwrap();
            processes.look_at(burner.0.id().cast_signed(), &machine, 1.0)
        };
        let moved = [a, b, b, a].map(&mut has_moved_to);
        assert_eq!(moved, [false, true, false, true]);
    }

    #[test]
    fn a_task_has_the_cpu_time_of_the_interval_or_since_its_start() {
        let per_s = rustix::param::clock_ticks_per_second();
        let mut process = Process::new(7);
        process.now.user_ticks = 3 * per_s;
        process.now.threads = 1;
        process.now.cpu = Some(CpuId(2));
        process.since_ms = 40;
        let of = |task: Option<Task>| {
            let task = task.unwrap();
            let times = task.cpu_times.known().unwrap_or_default();
            let times: Vec<(u32, u64)> = times.iter().map(|it| (it.cpu.0, it.ms)).collect();
            (task.cpu_ms.known().unwrap(), times)
        };
        assert_eq!(of(process.task(7)), (40, vec![]));
        assert_eq!(of(process.task_since_start(7)), (3000, vec![(2, 3000)]));
        let thread = |tid: i32, seconds: u64, cpu: u32| ProcessThread {
            id: TaskId { tid, start: 0 },
            name: String::new(),
            ticks: seconds * per_s,
            since_ms: 0,
            cpu: Some(CpuId(cpu)),
        };
        process.now.threads = 2;
        process.threads = vec![thread(7, 1, 0), thread(8, 2, 5)];
        let times = vec![(0, 1000), (5, 2000)];
        assert_eq!(of(process.task_since_start(7)), (3000, times));
    }
}
