//! Threads of processes, kept one by one through their affinity masks: what each asked for (its *own*), and the part of that on the
//! preferred node (*narrow*). What the lease's journal says of them undoes everything after a kill.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nearfar_change::lease::{Lease, Leases, Masks, Member, whole_sessions};
use nearfar_machine::{CpuSet, Machine, NodeId, NodeSet};
use nearfar_proc::cpuset::Cpusets;
use nearfar_proc::tasks::{self, ForkWatch, OpenTask, is_gone};
use nearfar_proc::{RunTime, Stat, TaskId, affinity};

use crate::keeper::actuator::{Actuator, Effort, Load, Looked};
use crate::keeper::lineage::{Lineage, Observer};
use crate::keeper::look::Ignored;
use crate::keeper::memory::Mover;
use crate::keeper::{
    KeeperError, KeeperOptions, KeeperReport, LISTED, Memory, OpenProcess, SkippedTask, Targets,
};
use crate::rule::{Look, NodeController, Place, Sample};
use crate::{cgroup, near};

/// A thread, and what it had done at the last look.
pub(crate) struct Thread {
    pub(crate) process: i32,
    /// Which masks; none for one that is skipped.
    pub(crate) group: Option<usize>,
    pub(crate) before: Option<RunTime>,
    /// Whether it ran between the last two looks.
    pub(crate) moving: bool,
    /// How long it had run when its children were read: who has not run since has made none.
    pub(crate) children_at: Option<u64>,
    pub(crate) files: OpenTask,
    pub(crate) seen: Option<SeenMask>,
    /// What its cpuset allowed when it was taken in, where a change of that replaces its mask (before Linux 6.2).
    pub(crate) cpuset: Option<CpuSet>,
}

impl Thread {
    pub(crate) fn new(process: i32, tid: i32, group: Option<usize>) -> Self {
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
    pub(crate) options: KeeperOptions,
    pub(crate) threads: BTreeMap<i32, Thread>,
    pub(crate) processes: BTreeMap<i32, Process>,
    pub(crate) masks: MaskTable,
    pub(crate) record: Record,
    pub(crate) controller: NodeController,
    pub(crate) lineage: Lineage,
    pub(crate) mover: Option<Mover>,
    pub(crate) counts: KeeperReport,
    pub(crate) cgroup: Option<PathBuf>,
    /// Children of this very process that are not kept: they were there before the keeper, or are waited for by its owner.
    pub(crate) orphans_except: Option<BTreeSet<i32>>,
    pub(crate) ignored: Ignored,
    pub(crate) forks: ForkWatch,
    /// Whether the next look lists processes and threads though none was made since this one.
    pub(crate) unsettled: bool,
    /// This very process, for the orphans it is given.
    pub(crate) me: OpenTask,
}

/// A process that is kept.
pub(crate) struct Process {
    /// When it began, in clock ticks since boot.
    pub(crate) start: u64,
    /// When its threads were narrowed for the first time: those that began earlier have not inherited a narrow mask.
    pub(crate) since: Option<u64>,
    pub(crate) threads: BTreeSet<i32>,
    /// Those its threads can have inherited.
    pub(crate) groups: BTreeSet<usize>,
}

impl Process {
    pub(crate) fn new(stat: &Stat, since: Option<u64>) -> Self {
        Self {
            start: stat.id.start,
            since,
            threads: BTreeSet::new(),
            groups: BTreeSet::new(),
        }
    }
}

impl ThreadMasks {
    pub(crate) fn new(
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

    pub(crate) fn adopt_targets(&mut self, targets: Targets) -> Result<(), KeeperError> {
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
                let pids = cgroup::processes(&group)?;
                self.cgroup = Some(group);
                // One that ends meanwhile or is confined elsewhere does not keep the others from being kept.
                pids.into_iter().for_each(|pid| drop(self.adopt(pid, None)));
                Ok(())
            }
        }
    }

    /// From now on this thread is kept.
    pub(crate) fn keep(&mut self, pid: i32, tid: i32, group: usize, place: Place) {
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
    pub(crate) fn skip(&mut self, tid: i32, pid: i32, cpus: CpuSet) {
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

    pub(crate) fn follow_home(&self, pid: i32) {
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

/// Threads that asked for the same are one group, named by its place here.
pub(crate) struct MaskTable {
    pub(crate) home: CpuSet,
    pub(crate) groups: Vec<Masks>,
    pub(crate) cpusets: Cpusets,
    /// By what was asked for and whether that was nothing.
    index: HashMap<(CpuSet, bool), usize>,
    asker: affinity::Asker,
    /// By group and whether on the preferred node, the mask that was found to be ours at the last look, as the kernel gives it.
    ours: BTreeMap<(usize, bool), Vec<libc::c_ulong>>,
}

/// A mask that was found to be ours in the cpuset of a thread: whether on the preferred node, and as the kernel gives it.
type SeenMask = (bool, Vec<libc::c_ulong>);

impl MaskTable {
    pub(crate) fn new(home: CpuSet) -> Self {
        Self {
            home,
            groups: Vec::new(),
            cpusets: Cpusets::of_this_system(),
            index: HashMap::new(),
            asker: affinity::Asker::default(),
            ours: BTreeMap::new(),
        }
    }

    /// Whether the narrow mask differs from the own one.
    pub(crate) fn confines(&self, group: usize) -> bool {
        self.groups[group].confines()
    }

    /// The group of a thread with this mask; none where none of its CPUs is the node's.
    pub(crate) fn group_of(&mut self, tid: i32, mask: &CpuSet) -> Option<usize> {
        if !mask.intersects(&self.home) {
            return None;
        }
        let unconfined = self.cpusets.asked_for_none(tid, mask);
        let own = if unconfined {
            self.cpusets.possible().clone()
        } else {
            mask.clone()
        };
        let key = (own, unconfined);
        if let Some(&group) = self.index.get(&key) {
            return Some(group);
        }
        self.groups.push(self.masks_of(&key.0, unconfined));
        self.index.insert(key, self.groups.len() - 1);
        Some(self.groups.len() - 1)
    }

    /// What threads that asked for these CPUs get while they are kept.
    fn masks_of(&self, own: &CpuSet, unconfined: bool) -> Masks {
        // The preferred node's CPUs as a whole also where a cpuset allows fewer: it may allow more later.
        let narrow = match unconfined && self.cpusets.online().is_subset(&self.home) {
            true => own.clone(),
            false if unconfined => self.home.clone(),
            false => own.intersection(&self.home),
        };
        match unconfined {
            true => Masks::unconfined(&self.cpusets, narrow, Vec::new()),
            false => Masks::new(own.clone(), narrow, Vec::new()),
        }
    }

    /// The node has these CPUs from now on. The groups whose narrow masks change, with the new ones.
    pub(crate) fn rehome(&mut self, home: CpuSet) -> Vec<(usize, Masks)> {
        self.cpusets.refresh();
        self.home = home;
        self.ours.clear();
        let new = |old: &Masks| self.masks_of(&old.own, old.unconfined);
        let renewed = self.groups.iter().map(new).enumerate();
        renewed
            .filter(|(group, new)| {
                new.narrow != self.groups[*group].narrow && !new.narrow.is_empty()
            })
            .collect()
    }

    /// Where a thread with this mask is, if it has one of the group's two.
    pub(crate) fn place_of(&mut self, tid: i32, mask: &CpuSet, group: usize) -> Option<Place> {
        [Place::Home, Place::Anywhere]
            .into_iter()
            .find(|&place| self.is_at(tid, mask, group, place))
    }

    fn is_at(&mut self, tid: i32, mask: &CpuSet, group: usize, place: Place) -> bool {
        let masks = &self.groups[group];
        match place {
            Place::Home => masks.is_narrow(tid, mask, &mut self.cpusets),
            Place::Anywhere => masks.is_own(tid, mask, &mut self.cpusets),
        }
    }

    /// The mask of a thread, where it is not as we left it. `seen`: what was found to be ours at the last look.
    ///
    /// # Errors
    /// When the thread is gone.
    pub(crate) fn foreign(
        &mut self,
        tid: i32,
        group: usize,
        place: Place,
        seen: &mut Option<SeenMask>,
    ) -> io::Result<Option<CpuSet>> {
        let words = self.asker.ask(tid)?;
        let key = (group, place == Place::Home);
        let is_known = self.ours.get(&key).is_some_and(|known| known == words);
        if is_known || matches!(seen, Some((at_home, seen)) if *at_home == key.1 && seen == words) {
            return Ok(None);
        }
        let (mask, words) = (affinity::cpus_of(words), words.to_vec());
        let masks = &self.groups[group];
        let requested = if key.1 { &masks.narrow } else { &masks.own };
        if mask == requested.intersection(self.cpusets.online()) {
            self.ours.insert(key, words);
            return Ok(None);
        }
        // Its cpuset or the CPUs that are online may have changed.
        self.cpusets.refresh();
        if self.is_at(tid, &mask, group, place) {
            *seen = Some((key.1, words));
            return Ok(None);
        }
        Ok(Some(mask))
    }
}

/// Members below which a journal is not worth rewriting.
const MIN_MEMBERS_TO_REWRITE: usize = 4096;

pub(crate) struct Record {
    lease: Lease,
    /// Members in the journal; far more than there are now means that it is to be rewritten.
    noted: usize,
    /// Sessions all of whose processes were kept when one was taken in.
    whole_sessions: BTreeSet<i32>,
}

impl Record {
    pub(crate) fn new(lease: Lease) -> Self {
        Self {
            lease,
            noted: 0,
            whole_sessions: BTreeSet::new(),
        }
    }

    fn is_guarded(&self) -> bool {
        self.lease.is_guarded()
    }

    /// Processes made earlier were not made by one that is kept; in clock ticks since boot.
    pub(crate) fn since(&self) -> u64 {
        self.lease.since()
    }

    /// Which other lease confines a task, and what that is for.
    pub(crate) fn confined_by(&self, task: TaskId) -> Option<(u32, String)> {
        self.lease.confined_by(task, task.tid)
    }

    /// Notes the sessions all of whose processes are among these.
    pub(crate) fn note_sessions(&mut self, ours: &BTreeSet<i32>) {
        // Once it was so, whatever the session makes later descends from one that is kept.
        self.whole_sessions.extend(whole_sessions(ours));
    }

    fn member(&self, member: Member) -> Member {
        let whole_session = self.whole_sessions.contains(&member.session);
        Member {
            whole_session,
            ..member
        }
    }

    /// Puts threads (process, thread) on record, before their masks change. The answer: those that are there. A thread that has
    /// ended needs no record.
    ///
    /// # Errors
    /// When a thread that may be there cannot be identified, or the journal cannot be written: its mask must not be changed.
    pub(crate) fn hold(
        &mut self,
        masks: &Masks,
        threads: &[(i32, i32)],
    ) -> Result<Vec<i32>, KeeperError> {
        let mut members = Vec::with_capacity(threads.len());
        for &(pid, tid) in threads {
            match Member::of(pid, tid) {
                Ok(member) => members.push(self.member(member)),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(KeeperError::of_process(pid, &error)),
            }
        }
        let tids = members.iter().map(|member| member.task.tid).collect();
        self.noted += members.len();
        if !members.is_empty() {
            self.lease.hold_masks(Masks {
                members,
                ..masks.clone()
            })?;
        }
        Ok(tids)
    }

    /// Puts on record that a thread's mask is its own from now on: nothing is given back to it, nor to what it makes.
    pub(crate) fn note_chosen(&mut self, pid: i32, tid: i32, mask: &CpuSet) {
        if let Ok(member) = Member::of(pid, tid) {
            self.noted += 1;
            if let Err(error) = self.lease.note_choice(mask.clone(), member) {
                tracing::warn!(tid, pid, %error, "cannot put on record that the thread has a mask of its own");
            }
        }
    }

    /// Whether most that the journal names have ended.
    fn is_worth_rewriting(&self, threads: usize) -> bool {
        self.noted >= MIN_MEMBERS_TO_REWRITE && self.noted >= 4 * threads
    }

    /// Rewrites the journal with these groups, whose members are the threads that are there: each with its process, its masks
    /// as a place in `groups` or the one that it chose, and since when what it makes may have inherited them.
    fn rewrite(
        &mut self,
        mut groups: Vec<Masks>,
        threads: impl Iterator<Item = (i32, i32, Result<usize, CpuSet>, Option<u64>)>,
    ) {
        let mut chosen: std::collections::HashMap<CpuSet, Vec<Member>> = Default::default();
        for (pid, tid, masks, since) in threads {
            let Ok(mut member) = Member::of(pid, tid).map(|member| self.member(member)) else {
                continue;
            };
            member.since = since.unwrap_or(member.since);
            match masks {
                Ok(group) => groups[group].members.push(member),
                Err(mask) => chosen.entry(mask).or_default().push(member),
            }
        }
        let chosen = chosen.into_iter();
        groups.extend(chosen.map(|(mask, members)| Masks::new(mask.clone(), mask, members)));
        self.noted = groups.iter().map(|group| group.members.len()).sum();
        // Where it cannot be written the old one remains in force.
        let _ = self.lease.rewrite_masks(groups);
    }

    /// Puts every mask back.
    ///
    /// # Errors
    /// When one could not be put back.
    pub(crate) fn release(self) -> Result<(), KeeperError> {
        self.lease.release()?;
        Ok(())
    }
}
