//! Threads of processes, kept one by one through their affinity masks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use nearfar_change::lease::{Leases, Masks};
use nearfar_machine::{CpuSet, Machine, NodeId, NodeSet};
use nearfar_proc::tasks::{ForkWatch, OpenTask};
use nearfar_proc::{RunTime, Stat};
use nearfar_proc::{affinity, tasks};

use super::actuator::{Actuator, Effort, Looked};
use super::ignored::Ignored;
use super::lineage::Lineage;
use super::masks::{MaskTable, SeenMask};
use super::memory::Mover;
use super::observer::Observer;
use super::pace::Load;
use super::record::Record;
use super::report::{KeeperReport, LISTED, SkippedTask};
use super::{KeeperError, KeeperOptions, Memory, OpenProcess, Targets};
use crate::cgroup::members;
use crate::near;
use crate::rule::{Look, NodeController, Place, Sample};

/// A thread, and what it had done at the last look.
pub(super) struct Thread {
    pub(super) process: i32,
    /// Which masks; none for one that is skipped.
    pub(super) group: Option<usize>,
    pub(super) before: Option<RunTime>,
    /// Whether it ran between the last two looks.
    pub(super) moving: bool,
    /// How long it had run when its children were read: who has not run since has made none.
    pub(super) children_at: Option<u64>,
    pub(super) files: OpenTask,
    pub(super) seen: Option<SeenMask>,
    /// What its cpuset allowed when it was taken in, where a change of that replaces its mask (before Linux 6.2).
    pub(super) cpuset: Option<CpuSet>,
}

impl Thread {
    pub(super) fn new(process: i32, tid: i32, group: Option<usize>) -> Self {
        let files = OpenTask::new(process, tid);
        let mut thread = Self {
            process,
            group,
            before: None,
            moving: true,
            children_at: None,
            files,
            seen: None,
            cpuset: None,
        };
        thread.before = thread.files.run_time().ok();
        thread
    }
}

/// The threads that are kept, with their processes.
pub struct ThreadMasks {
    pub(super) options: KeeperOptions,
    pub(super) threads: BTreeMap<i32, Thread>,
    pub(super) processes: BTreeMap<i32, Process>,
    pub(super) masks: MaskTable,
    pub(super) record: Record,
    pub(super) controller: NodeController,
    pub(super) lineage: Lineage,
    pub(super) mover: Option<Mover>,
    pub(super) counts: KeeperReport,
    pub(super) cgroup: Option<PathBuf>,
    /// Children of this very process that are not kept: they were there before the keeper, or are waited for by its owner.
    pub(super) orphans_except: Option<BTreeSet<i32>>,
    pub(super) ignored: Ignored,
    pub(super) forks: ForkWatch,
    /// Whether the next look lists processes and threads though none was made since this one.
    pub(super) unsettled: bool,
    /// This very process, for the orphans it is given.
    pub(super) me: OpenTask,
}

/// A process that is kept.
pub(super) struct Process {
    /// When it began, in clock ticks since boot.
    pub(super) start: u64,
    /// When its threads were narrowed for the first time: those that began earlier have not inherited a narrow mask.
    pub(super) since: Option<u64>,
    pub(super) threads: BTreeSet<i32>,
    /// Those its threads can have inherited.
    pub(super) groups: BTreeSet<usize>,
}

impl Process {
    pub(super) fn new(stat: &Stat, since: Option<u64>) -> Self {
        Self {
            start: stat.id.start,
            since,
            threads: BTreeSet::new(),
            groups: BTreeSet::new(),
        }
    }
}

impl ThreadMasks {
    pub(super) fn new(
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<Self, KeeperError> {
        let known = machine.node(near::node(machine, node)?);
        let online = &machine.cpu_states.online;
        let home = known.map(|node| node.known_cpus().intersection(online));
        let home = home.unwrap_or_default();
        counts_waits()?;
        let leases = match &options.leases {
            Some(leases) => leases.clone(),
            None => Leases::of_user()?,
        };
        let record = Record::new(leases.take(&format!("prefer node {node}"))?);
        let others: NodeSet = machine
            .online_nodes()
            .map(|node| node.id)
            .filter(|&id| id != node)
            .collect();
        let follow = options.memory == Memory::Follow && !others.is_empty();
        let observer = options.observe.then(|| Observer::open(online)).flatten();
        let me = std::process::id().cast_signed();
        Ok(Self {
            controller: NodeController::new(options.rule),
            counts: KeeperReport::new(node, &home, record.is_guarded()),
            options,
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            masks: MaskTable::new(home),
            record,
            lineage: Lineage::new(observer),
            mover: follow.then(|| Mover::start(&others, node)),
            cgroup: None,
            orphans_except: None,
            ignored: Ignored::default(),
            forks: ForkWatch::default(),
            unsettled: true,
            me: OpenTask::new(me, me),
        })
    }

    pub(super) fn adopt_targets(&mut self, targets: Targets) -> Result<(), KeeperError> {
        match targets {
            Targets::Pids(pids) => {
                let open = |pid: i32| {
                    OpenProcess::open(pid).map_err(|error| KeeperError::of_process(pid, &error))
                };
                let processes: Vec<_> = pids.into_iter().map(open).collect::<Result<_, _>>()?;
                self.adopt_targets(Targets::Processes(processes))
            }
            Targets::Processes(processes) => processes.into_iter().try_for_each(|process| {
                let pid = process.pid();
                match tasks::stat(pid) {
                    Ok(stat) if stat.state == 'Z' => {
                        Err(KeeperError::NoProcess { pid, ended: true })
                    }
                    _ => self.adopt_open(&process),
                }
            }),
            Targets::Cgroup(group) => {
                let pids = members::processes(&group)?;
                self.cgroup = Some(group);
                // One that ends meanwhile or is confined elsewhere does not keep the others from being kept.
                pids.into_iter().for_each(|pid| drop(self.adopt(pid, None)));
                Ok(())
            }
        }
    }

    /// From now on this thread is kept.
    pub(super) fn keep(&mut self, pid: i32, tid: i32, group: usize, place: Place) {
        self.threads.insert(tid, Thread::new(pid, tid, Some(group)));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.groups.insert(group);
            process.threads.insert(tid);
        }
        self.counts.threads += 1;
        if self.masks.confines(group) {
            self.controller.put(tid, place);
        }
        let cpusets = &mut self.masks.cpusets;
        let cpuset = (!cpusets.keeps_requests()).then(|| cpusets.allowed(tid));
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.cpuset = cpuset.flatten();
        }
    }

    /// From now on this thread is not.
    pub(super) fn skip(&mut self, tid: i32, pid: i32, cpus: CpuSet) {
        tracing::info!(tid, pid, old = %cpus, reason = "it has an affinity of its own", "thread skipped");
        self.controller.remove(tid);
        self.record.note_chosen(pid, tid, &cpus);
        self.threads.insert(tid, Thread::new(pid, tid, None));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads.insert(tid);
        }
        self.counts.skipped_count += 1;
        if self.counts.skipped.len() < LISTED {
            let name = tasks::name(tid).unwrap_or_default().to_text();
            self.counts.skipped.push(SkippedTask {
                tid,
                pid,
                name,
                cpus,
            });
        }
    }

    pub(super) fn follow_home(&self, pid: i32) {
        if let Some(mover) = &self.mover {
            mover.follow(pid);
        }
    }

    /// Rewrites the journal where most that it names have ended.
    fn tidy(&mut self) {
        if !self.record.is_worth_rewriting(self.threads.len()) {
            return;
        }
        let threads = self.threads.iter().map(|(&tid, thread)| {
            let pid = thread.process;
            // What it made since its process was narrowed may have inherited.
            let since = self.processes.get(&pid).and_then(|process| process.since);
            let chosen = || affinity::get(tid).unwrap_or_default();
            (pid, tid, thread.group.ok_or_else(chosen), since)
        });
        self.record.rewrite(self.masks.groups.clone(), threads);
    }
}

impl Actuator for ThreadMasks {
    type Samples = BTreeMap<i32, Sample>;
    type Report = KeeperReport;

    fn home(&self) -> &CpuSet {
        &self.masks.home
    }

    /// What cannot be read is gone or will be read the next time.
    fn look(&mut self, passed: Duration) -> Result<Looked<Self::Samples>, KeeperError> {
        // Before any thread is looked at: what is made later is found by the next look.
        let forks = self.forks.any();
        self.observe();
        self.rehome();
        let samples = self.samples(passed);
        let known = self.counts.threads;
        self.newcomers(forks);
        let contended = self.controller.is_contended(&samples);
        let load = match self.controller.has_released() {
            _ if contended => Load::Contended,
            true => Load::Spilled,
            false => Load::Idle,
        };
        Ok(Looked {
            load,
            has_newcomers: known != self.counts.threads,
            samples,
        })
    }

    fn act(
        &mut self,
        now: Duration,
        offer: Option<f64>,
        samples: Self::Samples,
    ) -> Result<(), KeeperError> {
        let look = Look {
            now,
            offer,
            samples,
        };
        for (tid, decision) in self.controller.step(&look) {
            self.carry_out(tid, decision);
        }
        self.tidy();
        self.counts.looks += 1;
        Ok(())
    }

    fn report(&self, effort: &Effort) -> KeeperReport {
        let kept = || {
            self.threads
                .iter()
                .filter(|(_, thread)| thread.group.is_some())
        };
        let is_out = |tid: &i32| self.controller.place(*tid) == Some(Place::Anywhere);
        let groups = &self.masks.groups;
        KeeperReport {
            seconds: effort.seconds(),
            cpu_s: effort.cpu.as_secs_f64(),
            longest_pause_s: effort.longest_pause.as_secs_f64(),
            threads_now: kept().count() as u64,
            out_now: kept().filter(|(tid, _)| is_out(tid)).count() as u64,
            nothing_to_narrow: !groups.is_empty() && !groups.iter().any(Masks::confines),
            memory: self.mover.as_ref().map(Mover::moved),
            ..self.counts.clone()
        }
    }

    fn restore(
        mut self,
        _ended: Option<KeeperError>,
        effort: &Effort,
    ) -> Result<KeeperReport, KeeperError> {
        self.last_newcomers();
        let mut report = self.report(effort);
        let mover = self.mover.take();
        self.record.release()?;
        // Not before the masks are back: gigabytes take seconds.
        report.memory = mover.map(Mover::end);
        Ok(report)
    }
}

/// Where the kernel counts, the calling thread has begun to run at least once (third number); where it does not, all three
/// are 0 (fs/proc/base.c, proc_pid_schedstat). How long it ran is 0 until the first tick.
fn counts_waits() -> Result<(), KeeperError> {
    let reason = match tasks::own_run_time() {
        Ok(time) if time.starts > 0 => return Ok(()),
        Ok(_) => "it says that this thread never ran".to_owned(),
        Err(error) => nearfar_proc::error_text(&error),
    };
    Err(KeeperError::NoWaits { reason })
}
