//! Who is kept: masks, threads, processes, and how they come in.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearfar_lease::cpuset::Cpusets;
use nearfar_lease::{Lease, Leases, Masks, Member};
use nearfar_machine::{CpuSet, Machine, NodeId, NodeSet};
use nearfar_proc::tasks::{ForkWatch, OpenTask, is_gone};
use nearfar_proc::{RunTime, Stat};
use nearfar_proc::{affinity, tasks};

use super::lineage::Lineage;
use super::observer::Observer;
use super::report::{KeeperReport, LISTED, SkippedTask, cpu_time};
use super::{KeeperError, KeeperOptions, Memory, Mover, OpenProcess, Targets, home_of};
use crate::cgroup::members;
use crate::idle::IdleTime;
use crate::rule::{NodeController, Place};

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
    /// The mask that was found to be ours in its cpuset at the last look, as the kernel gives it, and whether on the preferred node.
    pub(super) seen: Option<(bool, Vec<libc::c_ulong>)>,
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

/// Everybody who is kept.
pub(super) struct Kept {
    pub(super) options: KeeperOptions,
    pub(super) home: CpuSet,
    pub(super) threads: BTreeMap<i32, Thread>,
    pub(super) processes: BTreeMap<i32, Process>,
    pub(super) groups: Vec<Masks>,
    pub(super) controller: NodeController,
    pub(super) idle: IdleTime,
    pub(super) begun: Instant,
    pub(super) last_look: Instant,
    pub(super) counts: KeeperReport,
    pub(super) mover: Option<Mover>,
    pub(super) cgroup: Option<PathBuf>,
    /// Children of this very process that are not kept: there before the keeper, or somebody's business.
    pub(super) orphans_except: Option<BTreeSet<i32>>,
    /// Processes that were looked at and are not kept.
    pub(super) ignored: BTreeSet<i32>,
    pub(super) forks: ForkWatch,
    /// Whether the next look lists processes and threads though nobody was made since this one.
    pub(super) unsettled: bool,
    /// This very process, for the orphans it is given.
    pub(super) me: OpenTask,
    pub(super) asker: affinity::Asker,
    /// By group and place, the mask that was found to be ours at the last look, as the kernel gives it.
    pub(super) ours: BTreeMap<(usize, bool), Vec<libc::c_ulong>>,
    /// Processes made earlier were not made by who is kept; in clock ticks since boot.
    pub(super) since: u64,
    pub(super) cpusets: Cpusets,
    /// By what was asked for and whether that was nothing, the place in `groups`.
    pub(super) group_index: HashMap<(CpuSet, bool), usize>,
    pub(super) lineage: Lineage,
    /// Sessions all of whose processes were kept when one was taken in.
    pub(super) whole_sessions: BTreeSet<i32>,
    spent: Duration,
    pub(super) lease: Lease,
    /// Members noted in the lease's journal; far more than there are now means that it is written anew.
    pub(super) noted: usize,
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

impl Kept {
    pub(super) fn new(
        node: NodeId,
        machine: &Machine,
        options: KeeperOptions,
    ) -> Result<Self, KeeperError> {
        let home = home_of(node, machine)?;
        counts_waits()?;
        let leases = match &options.leases {
            Some(leases) => leases.clone(),
            None => Leases::of_user()?,
        };
        let lease = leases.take(&format!("prefer node {node}"))?;
        let others: NodeSet = machine
            .online_nodes()
            .map(|node| node.id)
            .filter(|&id| id != node)
            .collect();
        let mover = (options.memory == Memory::Follow && !others.is_empty())
            .then(|| Mover::start(&others, node));
        let observer = options
            .observe
            .then(|| Observer::open(&machine.cpu_states.online))
            .flatten();
        let now = Instant::now();
        let me = std::process::id().cast_signed();
        Ok(Self {
            controller: NodeController::new(options.rule),
            counts: nothing_yet(node, &home, lease.is_guarded()),
            options,
            home,
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            groups: Vec::new(),
            idle: IdleTime::default(),
            begun: now,
            last_look: now,
            mover,
            cgroup: None,
            orphans_except: None,
            ignored: BTreeSet::new(),
            forks: ForkWatch::default(),
            unsettled: true,
            me: OpenTask::new(me, me),
            asker: affinity::Asker::default(),
            ours: BTreeMap::new(),
            since: lease.since(),
            cpusets: Cpusets::of_this_system(),
            group_index: HashMap::new(),
            lineage: Lineage::new(observer),
            whole_sessions: BTreeSet::new(),
            spent: Duration::ZERO,
            lease,
            noted: 0,
        })
    }

    pub(super) fn adopt_targets(&mut self, targets: Targets) -> Result<(), KeeperError> {
        match targets {
            Targets::Pids(pids) => {
                let open =
                    |pid: i32| OpenProcess::open(pid).map_err(|error| of_process(pid, &error));
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
                // Who ends meanwhile, or is confined elsewhere, keeps nobody else from being kept.
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
        if self.groups[group].confines() {
            self.controller.put(tid, place);
        }
        let cpuset = (!self.cpusets.keeps_requests())
            .then(|| self.cpusets.allowed(tid))
            .flatten();
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.cpuset = cpuset;
        }
    }

    /// From now on this thread is not.
    pub(super) fn skip(&mut self, tid: i32, pid: i32, cpus: CpuSet) {
        tracing::info!(tid, pid, old = %cpus, reason = "it has an affinity of its own", "thread skipped");
        self.controller.remove(tid);
        self.note_chosen(pid, tid, &cpus);
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

    pub(super) fn paused(&mut self, pause: Duration) {
        self.counts.longest_pause_s = self.counts.longest_pause_s.max(pause.as_secs_f64());
    }

    /// The CPU time that the calling thread, which does nothing but keep, took since this was asked for last.
    pub(super) fn spent(&mut self) -> Duration {
        let spent = cpu_time();
        self.counts.cpu_s = spent.as_secs_f64();
        spent.saturating_sub(std::mem::replace(&mut self.spent, spent))
    }

    pub(super) fn follow_home(&self, pid: i32) {
        if let Some(mover) = &self.mover {
            mover.follow(pid);
        }
    }

    /// Writes the journal anew where most that it names have ended.
    pub(super) fn tidy(&mut self) {
        if self.noted < 4096 || self.noted < 4 * self.threads.len() {
            return;
        }
        let mut masks = self.groups.clone();
        let mut chosen: HashMap<CpuSet, Vec<Member>> = HashMap::new();
        for (&tid, thread) in &self.threads {
            let Ok(mut member) = Member::of(thread.process, tid) else {
                continue;
            };
            // What it made since its process was narrowed may have inherited.
            let since = self
                .processes
                .get(&thread.process)
                .and_then(|process| process.since);
            (member.since, member.whole_session) = (
                since.unwrap_or(member.since),
                self.whole_sessions.contains(&member.session),
            );
            match thread.group {
                Some(group) => masks[group].members.push(member),
                None => chosen
                    .entry(affinity::get(tid).unwrap_or_default())
                    .or_default()
                    .push(member),
            }
        }
        masks.extend(
            chosen
                .into_iter()
                .map(|(mask, members)| Masks::new(mask.clone(), mask, members)),
        );
        self.noted = masks.iter().map(|group| group.members.len()).sum();
        // Where it cannot be written the old one goes on to count.
        let _ = self.lease.rewrite_masks(masks);
    }

    pub(super) fn report(&self) -> KeeperReport {
        let mut report = self.counts.clone();
        report.seconds = self.begun.elapsed().as_secs_f64();
        let kept = || {
            self.threads
                .iter()
                .filter(|(_, thread)| thread.group.is_some())
        };
        report.threads_now = kept().count() as u64;
        report.out_now = kept()
            .filter(|(tid, _)| self.controller.place(**tid) == Some(Place::Anywhere))
            .count() as u64;
        report.nothing_to_narrow =
            !self.groups.is_empty() && !self.groups.iter().any(Masks::confines);
        report.memory = self.mover.as_ref().map(Mover::moved);
        report
    }

    /// Puts every mask back.
    pub(super) fn end(mut self) -> Result<KeeperReport, KeeperError> {
        self.last_newcomers();
        let mut report = self.report();
        let mover = self.mover.take();
        self.lease.release()?;
        // Not before the masks are back: gigabytes take seconds.
        report.memory = mover.map(Mover::end);
        Ok(report)
    }
}

fn nothing_yet(node: NodeId, home: &CpuSet, guarded: bool) -> KeeperReport {
    KeeperReport {
        node,
        cpus: home.clone(),
        nothing_to_narrow: false,
        seconds: 0.0,
        cpu_s: 0.0,
        looks: 0,
        longest_pause_s: 0.0,
        processes: 0,
        threads: 0,
        threads_now: 0,
        narrowed: 0,
        widened: 0,
        out_now: 0,
        skipped: Vec::new(),
        skipped_count: 0,
        guarded,
        memory: None,
    }
}

/// Where the kernel counts, the calling thread has begun to run at least once (third number); where it does not, all three
/// are 0 (fs/proc/base.c, proc_pid_schedstat). How long it ran is 0 until the first tick.
fn counts_waits() -> Result<(), KeeperError> {
    let because = match tasks::own_run_time() {
        Ok(time) if time.starts > 0 => return Ok(()),
        Ok(_) => "it says that this thread never ran".to_owned(),
        Err(error) => nearfar_proc::error_text(&error),
    };
    Err(KeeperError::NoWaits { because })
}

/// What the system said of a process.
pub(super) fn of_process(pid: i32, error: &io::Error) -> KeeperError {
    let because = nearfar_proc::error_text(error);
    match error.kind() {
        _ if is_gone(error) => KeeperError::NoProcess { pid, ended: false },
        io::ErrorKind::PermissionDenied => KeeperError::Process {
            pid,
            because: format!("{because}; it takes its owner, or root (CAP_SYS_NICE)"),
        },
        _ => KeeperError::Process { pid, because },
    }
}
