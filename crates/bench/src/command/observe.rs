//! Where a program and all that it starts really are, while they run: on which CPUs their threads may run and did run, under which
//! memory policy, and on which nodes their pages are.
//!
//! ```text
//! look after 10 ms, 20, 40, ... up to a second   /proc/PID/task/TID/{stat, children}, sched_getaffinity(2), /proc/PID/numa_maps
//! ```
//!
//! Looks are rarer where they take long: a look at gigabytes of base pages holds the program's memory map for milliseconds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufReader;
use std::time::{Duration, Instant};

use nearfar_machine::{CpuSet, Machine, NodeId};
use nearfar_proc::affinity::{Asker, cpus_of};
use nearfar_proc::{TaskId, numa_maps, tasks};
use serde::{Deserialize, Serialize};

use super::placement::Placement;

const FIRST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// Looks take this share of the time at most.
const MOST_SHARE: u32 = 100;
/// Pages with another memory policy than that of the placement, as a share: a program's own buffers, not a page of a library.
const MAX_OTHER_POLICY: f64 = 0.05;

/// What was seen of one run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// CPU time by node, in seconds, as far as it was used between looks.
    pub(crate) cpu_s: BTreeMap<NodeId, f64>,
    /// Memory by node in bytes, at the last look that found some.
    pub(crate) memory_bytes: BTreeMap<NodeId, u64>,
    pub(crate) looks: u32,
}

impl Seen {
    /// The probability that a page is on the node of the CPU, by the time on each node: 0 to 1; `None` where nothing was seen.
    pub(crate) fn near_share(&self) -> Option<f64> {
        let (cpu_s, bytes) = (
            self.cpu_s.values().sum::<f64>(),
            self.memory_bytes.values().sum::<u64>(),
        );
        let near = |(node, time): (&NodeId, &f64)| {
            time * *self.memory_bytes.get(node).unwrap_or(&0) as f64
        };
        (cpu_s > 0.0 && bytes > 0)
            .then(|| self.cpu_s.iter().map(near).sum::<f64>() / cpu_s / bytes as f64)
    }
}

/// Looks at a process, and at what it starts.
pub(super) struct Observer<'a> {
    machine: &'a Machine,
    /// What its threads may run on.
    cpus: CpuSet,
    /// Its memory policy as numa_maps shows it, where the placement has one.
    policy: Option<String>,
    first: i32,
    processes: BTreeSet<i32>,
    /// CPU time of threads at their last look.
    threads: HashMap<TaskId, f64>,
    asker: Asker,
    seen: Seen,
    /// Where the program did not stay where it was put.
    violation: Option<String>,
    begun: Instant,
    last_look: Duration,
}

impl<'a> Observer<'a> {
    /// Of a process that begins now. `allowed` are the CPUs that it may use where the placement names none.
    pub(super) fn new(
        pid: i32,
        placement: &Placement,
        allowed: &CpuSet,
        machine: &'a Machine,
    ) -> Self {
        Self {
            machine,
            cpus: placement.cpus.clone().unwrap_or_else(|| allowed.clone()),
            policy: placement
                .memory
                .as_ref()
                .map(|(policy, nodes)| policy.shown(nodes)),
            first: pid,
            processes: BTreeSet::from([pid]),
            threads: HashMap::new(),
            asker: Asker::default(),
            seen: Seen::default(),
            violation: None,
            begun: Instant::now(),
            last_look: Duration::ZERO,
        }
    }

    /// How long the caller may wait for the program's end before it looks again.
    pub(super) fn until_next_look(&self) -> Duration {
        let doubled = FIRST_LOOK.max(self.begun.elapsed()).min(LONGEST_INTERVAL);
        doubled.max(self.last_look * MOST_SHARE)
    }

    /// Looks once.
    pub(super) fn look(&mut self) {
        let begin = Instant::now();
        self.seen.looks += 1;
        let mut bytes: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut other_policy: BTreeMap<String, u64> = BTreeMap::new();
        let mut todo: Vec<i32> = std::mem::take(&mut self.processes).into_iter().collect();
        // What is made meanwhile is found by the next look.
        while let Some(pid) = todo.pop() {
            // One that has ended is not looked for again.
            let Ok(threads) = tasks::threads(pid) else {
                continue;
            };
            if !self.processes.insert(pid) {
                continue;
            }
            for tid in threads {
                self.look_at_thread(pid, tid);
                todo.extend(tasks::children(pid, tid).unwrap_or_default());
            }
            self.look_at_memory(pid, &mut bytes, &mut other_policy);
        }
        let sum: u64 = bytes.values().sum();
        if sum > 0 {
            self.seen.memory_bytes = bytes;
        }
        let others: u64 = other_policy.values().sum();
        let most = other_policy.into_iter().max_by_key(|(_, bytes)| *bytes);
        if let (Some(policy), Some((other, _))) = (&self.policy, most)
            && others as f64 > MAX_OTHER_POLICY * sum as f64
        {
            let percent = 100.0 * others as f64 / sum as f64;
            self.violate(format!(
                "{percent:.0} % of the program's memory has the policy {other}, not {policy}: it sets a policy of its own"
            ));
        }
        self.last_look = begin.elapsed();
    }

    fn look_at_thread(&mut self, pid: i32, tid: i32) {
        let Ok(stat) = tasks::stat_of(pid, tid) else {
            return;
        };
        // In nanoseconds, where the kernel counts them; else in ticks.
        let exact = tasks::run_time(tid).ok().map(|it| it.run_ns as f64 / 1e9);
        let time = exact.unwrap_or_else(|| stat.cpu_seconds());
        let before = self.threads.insert(stat.id, time).unwrap_or(0.0);
        let node = stat.cpu.and_then(|cpu| self.machine.node_of(cpu));
        if let Some(node) = node.filter(|_| time > before) {
            *self.seen.cpu_s.entry(node).or_default() += time - before;
        }
        let Ok(words) = self.asker.ask(tid) else {
            return;
        };
        let cpus = cpus_of(words);
        // A kernel may leave CPUs out that went offline.
        if !cpus.is_subset(&self.cpus) {
            let wanted = &self.cpus;
            let reason = format!(
                "thread {tid} of the program may run on CPUs {cpus}, not only on {wanted}: it sets its own affinity"
            );
            self.violate(reason);
        }
    }

    fn look_at_memory(
        &self,
        pid: i32,
        bytes: &mut BTreeMap<NodeId, u64>,
        other_policy: &mut BTreeMap<String, u64>,
    ) {
        let page_bytes = rustix::param::page_size() as u64;
        // Of a process of another user nothing can be read.
        let Ok(file) = tasks::open(pid, "numa_maps") else {
            return;
        };
        // One that ends meanwhile has been seen in part.
        let _ = numa_maps::each(BufReader::new(file), |mapping| {
            let size = mapping.page_bytes.unwrap_or(page_bytes);
            let of_mapping = mapping
                .pages
                .iter()
                .map(|(node, pages)| (*node, pages.saturating_mul(size)));
            let of_mapping: Vec<(NodeId, u64)> = of_mapping.collect();
            let is_other = self
                .policy
                .as_ref()
                .is_some_and(|policy| mapping.policy != policy.as_bytes());
            if is_other {
                let policy = String::from_utf8_lossy(mapping.policy).into_owned();
                *other_policy.entry(policy).or_default() +=
                    of_mapping.iter().map(|(_, bytes)| bytes).sum::<u64>();
            }
            for (node, size) in of_mapping {
                *bytes.entry(node).or_default() += size;
            }
        });
    }

    fn violate(&mut self, reason: String) {
        self.violation.get_or_insert(reason);
    }

    /// How many processes that it saw, without the first, are alive.
    pub(super) fn left(&self) -> usize {
        let others = self.processes.iter().filter(|&&pid| pid != self.first);
        others
            .filter(|&&pid| tasks::stat(pid).is_ok_and(|stat| !stat.is_ended()))
            .count()
    }

    /// Forgets what CPU time was used until now.
    pub(super) fn forget_times(&mut self) {
        self.seen.cpu_s.clear();
    }

    /// What was seen.
    ///
    /// # Errors
    /// Why the run was not where it was put.
    pub(super) fn finish(self) -> Result<Seen, String> {
        self.violation.map_or(Ok(self.seen), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_near_memory_counts_time_and_pages_of_each_node() {
        let seen = |cpu: &[(u32, f64)], memory: &[(u32, u64)]| Seen {
            cpu_s: cpu
                .iter()
                .map(|&(node, time)| (NodeId(node), time))
                .collect(),
            memory_bytes: memory
                .iter()
                .map(|&(node, bytes)| (NodeId(node), bytes))
                .collect(),
            looks: 1,
        };
        assert_eq!(seen(&[(0, 2.0)], &[(0, 100)]).near_share(), Some(1.0));
        assert_eq!(seen(&[(0, 2.0)], &[(1, 100)]).near_share(), Some(0.0));
        assert_eq!(
            seen(&[(0, 1.0), (1, 3.0)], &[(0, 50), (1, 50)]).near_share(),
            Some(0.5)
        );
        assert_eq!(
            seen(&[(0, 1.0), (1, 3.0)], &[(1, 50)]).near_share(),
            Some(0.75)
        );
        assert_eq!(seen(&[], &[(1, 50)]).near_share(), None);
    }
}
