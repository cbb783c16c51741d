//! Who is kept: masks, threads, processes, and how they come in.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearfar_apply::lease::{Lease, Leases, Masks, Member};
use nearfar_apply::tasks::{Births, OpenTask};
use nearfar_apply::{affinity, tasks};
use nearfar_machine::{CpuSet, Machine, NodeId, NodeSet};

use super::report::{KeeperReport, LISTED, LeftInPeace, cpu_time};
use super::{KeeperError, KeeperOptions, Memory, Mover, OpenProcess, Targets, home_of};
use crate::cgroup::members;
use crate::idle::IdleTime;
use crate::rule::{House, Place};

/// A thread, and what it had done at the last look.
pub(super) struct Thread {
    pub(super) process: i32,
    /// Which masks; none for one that is left in peace.
    pub(super) group: Option<usize>,
    pub(super) before: Option<(u64, u64)>,
    /// Whether it ran between the last two looks.
    pub(super) moving: bool,
    /// How long it had run when its children were read: who has not run since has made none.
    pub(super) children_at: Option<u64>,
    pub(super) files: OpenTask,
}

impl Thread {
    pub(super) fn new(process: i32, tid: i32, group: Option<usize>) -> Self {
        let files = OpenTask::new(process, tid);
        let mut thread = Self { process, group, before: None, moving: true, children_at: None, files };
        thread.before = thread.files.run_and_wait().ok();
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
    pub(super) house: House,
    pub(super) idle: IdleTime,
    pub(super) begun: Instant,
    pub(super) last_look: Instant,
    pub(super) said: KeeperReport,
    pub(super) mover: Option<Mover>,
    pub(super) cgroup: Option<PathBuf>,
    /// Children of this very process that are not kept: there before the keeper, or somebody's business.
    pub(super) orphans_except: Option<BTreeSet<i32>>,
    /// Processes that were looked at and are not kept.
    pub(super) strangers: BTreeSet<i32>,
    pub(super) births: Births,
    /// Whether the next look lists processes and threads though nobody was made since this one.
    pub(super) unsettled: bool,
    /// This very process, for the orphans it is given.
    pub(super) me: OpenTask,
    pub(super) asker: affinity::Asker,
    /// By group and place, the mask that was found to be ours at the last look, as the kernel gives it.
    pub(super) ours: BTreeMap<(usize, bool), Vec<libc::c_ulong>>,
    /// Processes made earlier were not made by who is kept; in clock ticks since boot.
    pub(super) since: u64,
    spent: Duration,
    lease: Lease,
    /// Members noted in the lease's journal; far more than there are now means that it is written anew.
    noted: usize,
}

/// A process that is kept.
pub(super) struct Process {
    /// When it began, in clock ticks since boot.
    pub(super) start: u64,
    pub(super) threads: BTreeSet<i32>,
    /// Those its threads can have inherited.
    pub(super) groups: BTreeSet<usize>,
}

impl Kept {
    pub(super) fn new(node: NodeId, machine: &Machine, options: KeeperOptions) -> Result<Self, KeeperError> {
        let home = home_of(node, machine)?;
        counts_waits()?;
        let leases = match &options.leases {
            Some(leases) => leases.clone(),
            None => Leases::of_user()?,
        };
        let lease = leases.take(&format!("prefer node {node}"))?;
        let others: NodeSet = machine.online_nodes().map(|node| node.id).filter(|&id| id != node).collect();
        let mover = (options.memory == Memory::Follow && !others.is_empty()).then(|| Mover::start(&others, node));
        let now = Instant::now();
        let me = std::process::id().cast_signed();
        Ok(Self {
            house: House::new(options.rule),
            said: nothing_yet(node, &home, lease.is_guarded()),
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
            strangers: BTreeSet::new(),
            births: Births::default(),
            unsettled: true,
            me: OpenTask::new(me, me),
            asker: affinity::Asker::default(),
            ours: BTreeMap::new(),
            since: lease.since(),
            spent: Duration::ZERO,
            lease,
            noted: 0,
        })
    }

    pub(super) fn adopt_targets(&mut self, targets: Targets) -> Result<(), KeeperError> {
        match targets {
            Targets::Pids(pids) => {
                let open = |pid: i32| OpenProcess::open(pid).map_err(|error| of_process(pid, &error));
                let processes: Vec<_> = pids.into_iter().map(open).collect::<Result<_, _>>()?;
                self.adopt_targets(Targets::Processes(processes))
            }
            Targets::Processes(processes) => processes.into_iter().try_for_each(|process| {
                let pid = process.pid();
                match tasks::stat(pid) {
                    Ok(stat) if stat.state == 'Z' => Err(KeeperError::NoProcess { pid, ended: true }),
                    _ => self.adopt_open(&process),
                }
            }),
            Targets::Cgroup(group) => {
                let pids = members::processes(&group)?;
                self.cgroup = Some(group);
                // Who ends meanwhile, or is confined elsewhere, keeps nobody else from being kept.
                pids.into_iter().for_each(|pid| drop(self.adopt(pid)));
                Ok(())
            }
        }
    }

    /// Takes in a process with all its threads, and narrows them.
    pub(super) fn adopt(&mut self, pid: i32) -> Result<(), KeeperError> {
        let stat = tasks::stat(pid).map_err(|error| of_process(pid, &error))?;
        if self.processes.get(&pid).is_some_and(|process| process.start == stat.id.start) {
            return Ok(());
        }
        let process = Process { start: stat.id.start, threads: BTreeSet::new(), groups: BTreeSet::new() };
        self.processes.insert(pid, process);
        self.strangers.remove(&pid);
        if self.options.children && self.cgroup.is_none() && self.orphans_except.is_none() {
            // Whoever is there already was not made by one that is kept; the clock of starts is too coarse to tell.
            let tids = tasks::threads(pid).unwrap_or_default();
            let children = tids.into_iter().flat_map(|tid| tasks::children(pid, tid).unwrap_or_default());
            self.strangers.extend(children.filter(|child| !self.processes.contains_key(child)));
        }
        let adopted = self.adopt_threads(pid);
        self.unsettled = true;
        if adopted.is_err() || self.processes[&pid].threads.is_empty() {
            self.processes.remove(&pid);
        } else {
            self.said.processes += 1;
            self.follow_home(pid);
            tracing::info!(pid, node = self.said.node.0, "keep process");
        }
        if let Err(error) = &adopted {
            tracing::warn!(pid, node = self.said.node.0, reason = %error, "process not kept");
        }
        adopted
    }

    /// Until no thread is found that a thread not narrowed yet has made.
    fn adopt_threads(&mut self, pid: i32) -> Result<(), KeeperError> {
        let mut elsewhere = None;
        let (listed, counted) = (self.said.left_in_peace.len(), self.said.left_in_peace_count);
        loop {
            let tids = tasks::threads(pid);
            let tids = tids.map_err(|error| of_process(pid, &error))?;
            let new: Vec<i32> = tids.into_iter().filter(|tid| !self.threads.contains_key(tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                match self.adopt_thread(pid, tid) {
                    Err(KeeperError::Elsewhere { own, .. }) => {
                        self.leave_in_peace(tid, pid, own.clone());
                        elsewhere = Some(own);
                    }
                    adopted => adopted?,
                }
            }
        }
        let threads = self.processes.get(&pid).map(|process| process.threads.clone()).unwrap_or_default();
        let kept = threads.iter().any(|tid| self.threads.get(tid).is_some_and(|thread| thread.group.is_some()));
        match elsewhere {
            Some(own) if !kept => {
                threads.iter().for_each(|tid| drop(self.threads.remove(tid)));
                // Refused as a whole, and perhaps asked for again and again.
                self.said.left_in_peace.truncate(listed);
                self.said.left_in_peace_count = counted;
                let other = tasks::stat(pid).ok().and_then(|stat| self.lease.confined_by(stat.id));
                Err(match other {
                    Some((by, what)) => KeeperError::Kept { pid, by, what },
                    None => self.elsewhere(format!("process {pid}"), own),
                })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn elsewhere(&self, who: String, own: CpuSet) -> KeeperError {
        KeeperError::Elsewhere { who, own, node: self.said.node, home: self.home.clone() }
    }

    /// Narrows a thread that is kept from now on.
    fn adopt_thread(&mut self, pid: i32, tid: i32) -> Result<(), KeeperError> {
        let failed = |error: &io::Error| of_process(pid, error);
        let own = match affinity::get(tid) {
            Err(error) if is_gone(&error) => return Ok(()),
            own => own.map_err(|error| failed(&error))?,
        };
        // What a command was started with, or a thread made by one that is narrow already.
        let inherited = self.groups.iter().position(|group| group.own != group.narrow && group.is_narrow(&own));
        let group = match inherited {
            Some(group) => group,
            None => self.group_of(&own).ok_or_else(|| self.elsewhere(format!("thread {tid}"), own.clone()))?,
        };
        self.note(group, tid)?;
        if inherited.is_none() && self.groups[group].own != self.groups[group].narrow {
            match affinity::set(tid, &self.groups[group].narrow) {
                Err(error) if is_gone(&error) => return Ok(()),
                set => set.map_err(|error| failed(&error))?,
            }
            tracing::debug!(tid, pid, old = %own, new = %self.groups[group].narrow, "confine thread");
            self.said.narrowed += 1;
        }
        self.keep(pid, tid, group, Place::Home);
        Ok(())
    }

    /// The masks of threads that may run on these CPUs; none where none of them is the node's.
    pub(super) fn group_of(&mut self, own: &CpuSet) -> Option<usize> {
        let narrow = own.intersection(&self.home);
        if narrow.is_empty() {
            return None;
        }
        Some(self.groups.iter().position(|group| group.own == *own).unwrap_or_else(|| {
            self.groups.push(Masks::new(own.clone(), narrow, Vec::new()));
            self.groups.len() - 1
        }))
    }

    /// Notes a thread's masks in the lease, before they change. Who is gone needs no note.
    pub(super) fn note(&mut self, group: usize, tid: i32) -> Result<(), KeeperError> {
        if let Ok(member) = Member::find(tid) {
            let Masks { own, narrow, unconfined, .. } = self.groups[group].clone();
            self.lease.hold_masks(Masks { own, narrow, unconfined, members: vec![member] })?;
            self.noted += 1;
        }
        Ok(())
    }

    /// From now on this thread is kept.
    pub(super) fn keep(&mut self, pid: i32, tid: i32, group: usize, place: Place) {
        self.threads.insert(tid, Thread::new(pid, tid, Some(group)));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.groups.insert(group);
            process.threads.insert(tid);
        }
        self.said.threads += 1;
        if self.groups[group].own != self.groups[group].narrow {
            self.house.put(tid, place);
        }
    }

    /// From now on this thread is not.
    pub(super) fn leave_in_peace(&mut self, tid: i32, pid: i32, cpus: CpuSet) {
        tracing::info!(tid, pid, old = %cpus, reason = "it has an affinity of its own", "thread skipped");
        self.house.remove(tid);
        self.threads.insert(tid, Thread::new(pid, tid, None));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads.insert(tid);
        }
        self.said.left_in_peace_count += 1;
        if self.said.left_in_peace.len() < LISTED {
            let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
            self.said.left_in_peace.push(LeftInPeace { tid, pid, name: name.trim_end().to_owned(), cpus });
        }
    }

    pub(super) fn paused(&mut self, pause: Duration) {
        self.said.longest_pause_s = self.said.longest_pause_s.max(pause.as_secs_f64());
    }

    /// The CPU time that the calling thread, which does nothing but keep, took since this was asked for last.
    pub(super) fn spent(&mut self) -> Duration {
        let spent = cpu_time();
        self.said.cpu_s = spent.as_secs_f64();
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
        for (&tid, thread) in &self.threads {
            let Some(group) = thread.group else { continue };
            masks[group].members.extend(Member::find(tid));
        }
        self.noted = masks.iter().map(|group| group.members.len()).sum();
        // Where it cannot be written the old one goes on to count.
        let _ = self.lease.rewrite_masks(masks);
    }

    pub(super) fn report(&self) -> KeeperReport {
        let mut report = self.said.clone();
        report.seconds = self.begun.elapsed().as_secs_f64();
        let kept = || self.threads.iter().filter(|(_, thread)| thread.group.is_some());
        report.threads_now = kept().count() as u64;
        report.out_now = kept().filter(|(tid, _)| self.house.place(**tid) == Some(Place::Anywhere)).count() as u64;
        report.nothing_to_narrow = !self.groups.is_empty() && self.groups.iter().all(|group| group.own == group.narrow);
        report.memory = self.mover.as_ref().map(Mover::moved);
        report
    }

    /// Puts every mask back.
    pub(super) fn end(mut self) -> Result<KeeperReport, KeeperError> {
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
        left_in_peace: Vec::new(),
        left_in_peace_count: 0,
        guarded,
        memory: None,
    }
}

/// Where the kernel counts, the calling thread has begun to run at least once (third number); where it does not, all three
/// are 0 (fs/proc/base.c, proc_pid_schedstat). How long it ran is 0 until the first tick.
fn counts_waits() -> Result<(), KeeperError> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat");
    let because = match text {
        Ok(text) if text.split_ascii_whitespace().nth(2).is_some_and(|times| times != "0") => return Ok(()),
        Ok(_) => "it says that this thread never ran".to_owned(),
        Err(error) => plain(&error),
    };
    Err(KeeperError::NoWaits { because })
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// The system's own words, without Rust's "(os error 3)".
pub(super) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// What the system said of a process.
fn of_process(pid: i32, error: &io::Error) -> KeeperError {
    let because = plain(error);
    match error.kind() {
        _ if is_gone(error) => KeeperError::NoProcess { pid, ended: false },
        io::ErrorKind::PermissionDenied => {
            KeeperError::Process { pid, because: format!("{because}; it takes its owner, or root (CAP_SYS_NICE)") }
        }
        _ => KeeperError::Process { pid, because },
    }
}
