//! Threads that are confined for a while: how the lease describes them, and who has inherited a mask from them.
//!
//! A thread is on record by number and start. What it makes from then on inherits its mask and is on record as soon as the
//! owner of the lease sees it; what the owner has not seen is found when the masks are undone:
//!
//! ```text
//!   on record:            4711 (own 0-7, narrow 0-3)      with mask 0-3: gets 0-7 back
//!                         4712 (own 0-3, narrow 0-3)      nothing was changed: left alone, whatever its mask is
//!   not on record:        threads of 4711's process and its descendants, made since it was confined, with mask 0-3:
//!                         inherited, get 0-7 back
//!                         orphans of a session all of whose processes were confined: the same
//!   all others            left alone
//! ```
//!
//! Time and memory are linear in the number of records, threads and processes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::thread::sleep;
use std::time::Duration;

use nearfar_machine::CpuSet;
use nearfar_proc::cpuset::Cpusets;
use nearfar_proc::{Stat, TaskId, affinity, error_text, tasks};
use serde::{Deserialize, Serialize};

use crate::lease::Undone;
use crate::lease::record::LeaseHeader;
use crate::outcome::UndoResult;

/// Threads whose mask is `own` and is confined to `narrow` for a while.
///
/// Where both are the same, nothing is changed and nothing is given back: a later record of a thread decides, so this also
/// ends the confinement of a thread that has set its affinity itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Masks {
    /// What the program asked for.
    pub own: CpuSet,
    /// What it gets for a while, as requested from the kernel: a cpuset may allow less.
    pub narrow: CpuSet,
    /// Whether the program asked for no CPUs: it had all that are online or all that its cpuset allows. It gets all possible
    /// CPUs back, and follows when its cpuset changes or CPUs come online.
    pub unconfined: bool,
    /// The threads that are on record; what they make from then on belongs to them.
    pub members: Vec<Member>,
}

/// A thread, and how to find what it made when it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The thread.
    pub task: TaskId,
    /// Its process.
    pub process: i32,
    /// Its session.
    pub session: i32,
    /// When it was put on record, in clock ticks since boot: what it made earlier did not inherit the confinement. 0 in journals
    /// of versions that did not note it.
    #[serde(default)]
    pub since: u64,
    /// Whether every process of its session was confined by this lease then, so that whatever the session makes later
    /// descends from confined threads.
    #[serde(default)]
    pub whole_session: bool,
}

impl Member {
    /// A thread by number, from now on.
    ///
    /// # Errors
    /// When there is none, or /proc does not show it ([`tasks::is_gone`] tells the two apart).
    pub fn find(tid: i32) -> io::Result<Self> {
        Self::of(tasks::process_of(tid)?, tid)
    }

    /// A thread of a process, from now on.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn of(process: i32, tid: i32) -> io::Result<Self> {
        let stat = tasks::stat_of(process, tid)?;
        let since = nearfar_proc::system::ticks_since_boot();
        Ok(Self {
            task: stat.id,
            process,
            session: stat.session,
            since,
            whole_session: false,
        })
    }
}

impl Masks {
    /// These threads asked for CPUs `own`, and may run on `narrow`.
    pub fn new(own: CpuSet, narrow: CpuSet, members: Vec<Member>) -> Self {
        Self {
            own,
            narrow,
            unconfined: false,
            members,
        }
    }

    /// These threads asked for no CPUs, and may run on `narrow`.
    pub fn unconfined(cpusets: &Cpusets, narrow: CpuSet, members: Vec<Member>) -> Self {
        Self {
            own: cpusets.possible().clone(),
            narrow,
            unconfined: true,
            members,
        }
    }

    /// Whether it changes anything.
    pub fn confines(&self) -> bool {
        self.own != self.narrow
    }

    /// Whether a thread with this mask has what was requested by us.
    pub fn is_narrow(&self, tid: i32, mask: &CpuSet, cpusets: &mut Cpusets) -> bool {
        is_made_of(&self.narrow, tid, mask, cpusets)
    }

    /// Whether a thread with this mask has what its program asked for.
    pub fn is_own(&self, tid: i32, mask: &CpuSet, cpusets: &mut Cpusets) -> bool {
        match self.unconfined {
            true => cpusets.asked_for_none(tid, mask),
            false => is_made_of(&self.own, tid, mask, cpusets),
        }
    }

    /// Gives a thread what its program asked for.
    ///
    /// # Errors
    /// When the thread is gone, or is another user's now.
    pub fn give_back(&self, tid: i32) -> io::Result<()> {
        if self.unconfined {
            return affinity::unconfine(tid);
        }
        match affinity::set(tid, &self.own) {
            // Its cpuset has lost all of them since. Nothing that the program asked for is left to give.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => affinity::unconfine(tid),
            set => set,
        }
    }
}

/// Whether a mask is what the kernel makes of a requested one: the CPUs of it that are online or, in a cpuset that lacks some of
/// them, what [`Cpusets::effective`] says.
fn is_made_of(requested: &CpuSet, tid: i32, mask: &CpuSet, cpusets: &mut Cpusets) -> bool {
    if mask == requested || *mask == requested.intersection(cpusets.online()) {
        return true;
    }
    // Only a part of the requested CPUs or, where none of them is allowed, none.
    if !mask.is_subset(requested) && mask.intersects(requested) {
        return false;
    }
    cpusets
        .allowed(tid)
        .is_some_and(|allowed| cpusets.effective(requested, &allowed) == *mask)
}

/// Passes over /proc at most. Each finds threads made by one whose mask had not been put back yet.
const MAX_PASSES: usize = 50;

/// Waits before the passes that follow one that found nothing. fork copies the mask of its caller long before /proc shows the
/// child (`copy_process` in kernel/fork.c), so a child of a thread whose mask was just put back can appear later with the old one.
const SETTLING: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(75),
];

/// Puts all masks back. One line for each kind of result.
pub(crate) fn undo(groups: &[Masks], lease: &LeaseHeader) -> Vec<Undone> {
    let mut outcome = Restored::default();
    if groups.is_empty() {
        return Vec::new();
    }
    let mut cpusets = Cpusets::of_this_system();
    let records = Records::of(groups, lease);
    let mut settling = SETTLING.iter();
    for _ in 0..MAX_PASSES {
        let found = Descendants::find(&records);
        if found.put_back(&mut cpusets, &mut outcome) {
            settling = SETTLING.iter();
            continue;
        }
        let Some(&wait) = settling.next().filter(|_| found.has_confined()) else {
            break;
        };
        sleep(wait);
    }
    let mut undone = Vec::new();
    let mut say = |count: usize, what: &str, result: UndoResult| {
        if count > 0 {
            let threads = if count == 1 { "thread" } else { "threads" };
            let subject = format!("{count} {threads} {what}");
            undone.push(Undone { subject, result });
        }
    };
    say(
        outcome.put_back.len(),
        "that had been confined",
        UndoResult::MasksBack,
    );
    for (now, count) in outcome.not_ours {
        let by_change_set = None;
        let result = UndoResult::ChangedSince { now, by_change_set };
        say(count, "with a mask of their own", result);
    }
    if let Some(error) = outcome.failed {
        say(1, "or more", UndoResult::Failed { error });
    }
    undone
}

/// Whether a lease with these records confines a thread of this process, on record or by descent.
pub(crate) fn confines(groups: &[Masks], lease: &LeaseHeader, task: TaskId, process: i32) -> bool {
    let records = Records::of(groups, lease);
    match records.of_thread(task) {
        Some(noted) => records.groups[noted.newest()].confines(),
        None => Descendants::find(&records)
            .processes
            .get(&process)
            .is_some_and(|groups| !groups.is_empty()),
    }
}

/// The sessions whose every living process is one of these.
pub fn whole_sessions(processes: &BTreeSet<i32>) -> BTreeSet<i32> {
    let living = tasks::processes().unwrap_or_default();
    let stats = living
        .into_iter()
        .filter_map(|pid| tasks::stat(pid).ok())
        .filter(|stat| stat.state != 'Z');
    let mut whole: HashMap<i32, bool> = HashMap::new();
    for stat in stats {
        *whole.entry(stat.session).or_insert(true) &= processes.contains(&stat.id.tid);
    }
    // Session 0 is that of threads of the kernel and of what was started outside of this namespace.
    whole
        .into_iter()
        .filter(|&(session, whole)| whole && session != 0)
        .map(|(session, _)| session)
        .collect()
}

#[derive(Default)]
struct Restored {
    put_back: HashSet<TaskId>,
    /// By mask, in the last round.
    not_ours: BTreeMap<String, usize>,
    failed: Option<String>,
}

/// The groups that a process's threads can have inherited, each with the time since which.
type Inherited = BTreeMap<usize, u64>;

/// The records of a lease by thread, process and session.
struct Records<'a> {
    /// No two with the same masks.
    groups: Vec<&'a Masks>,
    threads: HashMap<i32, Noted>,
    processes: HashMap<i32, OfProcess>,
    sessions: HashMap<i32, Inherited>,
    since: u64,
}

/// What is on record of the thread that had a number last.
struct Noted {
    start: u64,
    /// The newest last.
    groups: Vec<usize>,
}

/// What is on record of a process's threads, by the thread's start and group.
#[derive(Default)]
struct OfProcess {
    /// The earliest start of a thread that is on record.
    first_start: Option<u64>,
    /// By group: the latest start of a thread of it, and since when.
    groups: BTreeMap<usize, (u64, u64)>,
}

impl Noted {
    fn newest(&self) -> usize {
        self.groups.last().copied().unwrap_or_default()
    }
}

impl<'a> Records<'a> {
    fn of(masks: &'a [Masks], lease: &LeaseHeader) -> Self {
        let mut records = Self {
            groups: Vec::new(),
            threads: HashMap::new(),
            processes: HashMap::new(),
            sessions: HashMap::new(),
            since: lease.since,
        };
        let mut known: HashMap<(&CpuSet, &CpuSet, bool), usize> = HashMap::new();
        for masks in masks {
            let groups = &mut records.groups;
            let index = *known
                .entry((&masks.own, &masks.narrow, masks.unconfined))
                .or_insert_with(|| {
                    groups.push(masks);
                    groups.len() - 1
                });
            records.add(index, masks);
        }
        records
    }

    fn add(&mut self, index: usize, masks: &Masks) {
        for member in &masks.members {
            let TaskId { tid, start } = member.task;
            let noted = self.threads.entry(tid).or_insert(Noted {
                start,
                groups: Vec::new(),
            });
            if noted.start != start {
                *noted = Noted {
                    start,
                    groups: Vec::new(),
                };
            }
            noted.groups.push(index);
            let process = self.processes.entry(member.process).or_default();
            process.first_start = Some(process.first_start.map_or(start, |first| first.min(start)));
            if !masks.confines() {
                continue;
            }
            let since = member.since.max(self.since);
            let of_process = process.groups.entry(index).or_insert((start, since));
            *of_process = (of_process.0.max(start), of_process.1.min(since));
            if member.whole_session {
                let of_session = self
                    .sessions
                    .entry(member.session)
                    .or_default()
                    .entry(index)
                    .or_insert(since);
                *of_session = since.min(*of_session);
            }
        }
    }

    fn of_thread(&self, task: TaskId) -> Option<&Noted> {
        self.threads
            .get(&task.tid)
            .filter(|noted| noted.start == task.start)
    }
}

/// The processes that belong to threads on record, each with what its threads can have inherited.
struct Descendants<'a> {
    records: &'a Records<'a>,
    processes: HashMap<i32, Inherited>,
}

impl<'a> Descendants<'a> {
    fn find(records: &'a Records<'a>) -> Self {
        let processes = tasks::processes().unwrap_or_default();
        let mut alive: Vec<Stat> = processes
            .iter()
            .filter_map(|&pid| tasks::stat(pid).ok())
            .collect();
        // Parents before children, so that going through them finds all descendants.
        alive.sort_by_key(|stat| (stat.id.start, stat.id));
        let mut found = Self {
            records,
            processes: HashMap::new(),
        };
        for stat in &alive {
            found.add_noted(stat);
        }
        let by_pid: HashMap<i32, &Stat> = alive.iter().map(|stat| (stat.id.tid, stat)).collect();
        let made_since = || alive.iter().filter(|stat| stat.id.start >= records.since);
        // Twice: numbers wrap around, so among those of one clock tick a child may stand before its maker.
        for stat in made_since().chain(made_since()) {
            found.add_descendant(stat, &by_pid);
        }
        found
    }

    /// A process of which threads are on record. One with its number that began later than all of them is another one.
    fn add_noted(&mut self, stat: &Stat) {
        let Some(noted) = self.records.processes.get(&stat.id.tid) else {
            return;
        };
        let same = |start: u64| stat.id.start <= start;
        let groups = noted.groups.iter().filter(|(_, (start, _))| same(*start));
        let groups: Inherited = groups.map(|(&group, &(_, since))| (group, since)).collect();
        if !groups.is_empty() || noted.first_start.is_some_and(same) {
            self.processes.insert(stat.id.tid, groups);
        }
    }

    fn add_descendant(&mut self, stat: &Stat, by_pid: &HashMap<i32, &Stat>) {
        if self.processes.contains_key(&stat.id.tid) {
            return;
        }
        let made_by = |of: &Inherited| -> Inherited {
            let made_since = of.iter().filter(|(_, since)| stat.id.start >= **since);
            made_since.map(|(&group, &since)| (group, since)).collect()
        };
        let of_parent = self
            .processes
            .get(&stat.parent)
            .map(made_by)
            .filter(|groups| !groups.is_empty());
        let groups = of_parent.or_else(|| {
            // Only the process that takes in orphans has a child in a session that is neither its own nor the child's.
            let in_session = by_pid
                .get(&stat.parent)
                .is_some_and(|parent| parent.session == stat.session);
            let orphan = stat.session != stat.id.tid && !in_session;
            // A session's number is given to no process while the session lasts: a leader that began later has another one.
            let leader = by_pid
                .get(&stat.session)
                .map_or(0, |leader| leader.id.start);
            let mut inherited = self
                .records
                .sessions
                .get(&stat.session)
                .filter(|_| orphan)
                .map(made_by)?;
            inherited.retain(|_, since| leader <= *since);
            Some(inherited)
        });
        if let Some(groups) = groups.filter(|groups| !groups.is_empty()) {
            self.processes.insert(stat.id.tid, groups);
        }
    }

    /// Whether any process can have inherited a mask.
    fn has_confined(&self) -> bool {
        self.processes
            .values()
            .any(|inherited| !inherited.is_empty())
    }

    /// Whether it put a mask back.
    fn put_back(&self, cpusets: &mut Cpusets, outcome: &mut Restored) -> bool {
        outcome.not_ours.clear();
        outcome.failed = None;
        let before = outcome.put_back.len();
        for (&pid, inherited) in self
            .processes
            .iter()
            .filter(|(_, inherited)| !inherited.is_empty())
        {
            for tid in tasks::threads(pid).unwrap_or_default() {
                self.put_thread_back(pid, tid, inherited, cpusets, outcome);
            }
        }
        outcome.put_back.len() > before
    }

    fn put_thread_back(
        &self,
        pid: i32,
        tid: i32,
        inherited: &Inherited,
        cpusets: &mut Cpusets,
        outcome: &mut Restored,
    ) {
        let Ok(mask) = affinity::get(tid) else { return };
        let groups = || inherited.keys().map(|&group| self.records.groups[group]);
        // Most have one of the two masks, and telling so is cheaper than reading who they are.
        if !groups().any(|group| group.is_narrow(tid, &mask, cpusets)) {
            if !groups().any(|group| group.is_own(tid, &mask, cpusets)) {
                *outcome.not_ours.entry(mask.to_string()).or_default() += 1;
            }
            return;
        }
        let Ok(stat) = tasks::stat_of(pid, tid) else {
            return;
        };
        if outcome.put_back.contains(&stat.id) {
            return;
        }
        let group = match self.records.of_thread(stat.id) {
            Some(noted) => self.group_on_record(noted, tid, &mask, cpusets),
            None => self.group_inherited(inherited, stat.id, &mask, cpusets),
        };
        let Some(group) = group else { return };
        match group.give_back(tid) {
            Ok(()) => drop(outcome.put_back.insert(stat.id)),
            Err(error) if tasks::is_gone(&error) => {}
            Err(error) => outcome.failed = Some(error_text(&error)),
        }
    }

    /// What a thread on record gets back: what its newest record says, if it still has what any record of it requested.
    fn group_on_record(
        &self,
        noted: &Noted,
        tid: i32,
        mask: &CpuSet,
        cpusets: &mut Cpusets,
    ) -> Option<&'a Masks> {
        let newest = self.records.groups[noted.newest()];
        let mut is_narrow =
            |&group: &usize| self.records.groups[group].is_narrow(tid, mask, cpusets);
        (newest.confines() && noted.groups.iter().rev().any(&mut is_narrow)).then_some(newest)
    }

    /// What a thread that is not on record has inherited: of several makers with the same narrow mask, from the one that asked
    /// for most.
    fn group_inherited(
        &self,
        inherited: &Inherited,
        task: TaskId,
        mask: &CpuSet,
        cpusets: &mut Cpusets,
    ) -> Option<&'a Masks> {
        let made_since = inherited.iter().filter(|(_, since)| task.start >= **since);
        let groups = made_since.map(|(&group, _)| self.records.groups[group]);
        groups
            .filter(|group| group.is_narrow(task.tid, mask, cpusets))
            .max_by_key(|group| (group.unconfined, group.own.len()))
    }
}
