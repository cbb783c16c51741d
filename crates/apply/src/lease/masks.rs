//! Threads that are confined for a while: whose masks are put back, and who inherited one.
//!
//! ```text
//!   noted:      4711 (own 0-7, narrow 0-3)
//!   its threads, whatever they are     4711, 4712, 4713         with mask 0-3: inherited, put back
//!   their children, since the lease    4720, of 4720: 4721      the same
//!   an orphan of the same session      4730                     the same
//!   any of them with another mask                               has set it itself: left alone
//! ```

use std::collections::{BTreeMap, HashMap};
use std::io;

use nearfar_machine::CpuSet;
use serde::{Deserialize, Serialize};

use super::record::Header;
use super::{Fate, Undone};
use crate::affinity;
use crate::target::plain;
use crate::tasks::{self, Stat, TaskId};

/// Threads whose mask is `own` and is confined to `narrow` for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Masks {
    /// What the program asked for.
    pub own: CpuSet,
    /// What it gets for a while.
    pub narrow: CpuSet,
    /// Whether `own` was every CPU that is online, so that the thread follows when CPUs come online.
    pub unconfined: bool,
    /// The threads that are noted by name; what they make belongs to them.
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
}

impl Member {
    /// A thread by number.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(tid: i32) -> io::Result<Self> {
        let stat = tasks::stat(tid)?;
        Ok(Self { task: stat.id, process: tasks::process_of(tid)?, session: stat.session })
    }
}

impl Masks {
    /// These threads' masks.
    pub fn new(own: CpuSet, narrow: CpuSet, members: Vec<Member>) -> Self {
        let unconfined = online().is_some_and(|online| online.is_subset(&own));
        Self { own, narrow, unconfined, members }
    }

    /// Whether a thread with this mask was confined by us. A CPU that has gone offline is missing from what the kernel
    /// says.
    pub fn is_narrow(&self, mask: &CpuSet) -> bool {
        *mask == self.narrow || mask.is_subset(&self.narrow) && same_online(mask, &self.narrow)
    }

    /// Whether a thread with this mask has what its program asked for.
    pub fn is_own(&self, mask: &CpuSet) -> bool {
        *mask == self.own
            || mask.is_subset(&self.own) && same_online(mask, &self.own)
            || self.unconfined && self.own.is_subset(mask)
    }

    /// Gives a thread what its program asked for.
    ///
    /// # Errors
    /// When the thread is gone, or is somebody else's now.
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

/// Whether nothing but CPUs that are offline is missing.
fn same_online(mask: &CpuSet, of: &CpuSet) -> bool {
    online().is_some_and(|online| *mask == of.intersection(&online))
}

fn online() -> Option<CpuSet> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    CpuSet::parse_list(text.trim()).ok()
}

/// Rounds of looking for threads that were made by one whose mask had not been put back yet.
const ROUNDS: usize = 50;

/// Puts all masks back. One line for each group of threads with the same masks.
pub(super) fn undo(groups: &[Masks], lease: &Header) -> Vec<Undone> {
    let mut outcome = Outcome::default();
    if groups.is_empty() {
        return Vec::new();
    }
    for _ in 0..ROUNDS {
        let kin = Kin::find(groups, lease);
        if !kin.put_back(groups, &mut outcome) {
            break;
        }
    }
    let mut undone = Vec::new();
    let mut say = |count: usize, what: &str, fate: Fate| {
        if count > 0 {
            let threads = if count == 1 { "thread" } else { "threads" };
            undone.push(Undone { subject: format!("{count} {threads} {what}"), fate });
        }
    };
    say(outcome.put_back, "that had been confined", Fate::PutBack);
    for (mask, count) in outcome.not_ours {
        say(count, "with a mask of their own", Fate::NotOurs { now: mask });
    }
    if let Some(because) = outcome.failed {
        say(1, "or more", Fate::Failed { because });
    }
    undone
}

#[derive(Default)]
struct Outcome {
    put_back: usize,
    /// By mask, in the last round.
    not_ours: BTreeMap<String, usize>,
    failed: Option<String>,
}

/// The processes that belong to noted threads, each with the groups its threads may have their mask from.
struct Kin(HashMap<i32, Vec<usize>>);

impl Kin {
    fn find(groups: &[Masks], lease: &Header) -> Self {
        let processes = tasks::processes().unwrap_or_default();
        let mut alive: Vec<Stat> = processes.iter().filter_map(|&pid| tasks::stat(pid).ok()).collect();
        // Parents before children, so that going through them finds all descendants.
        alive.sort_by_key(|stat| stat.id);
        alive.sort_by_key(|stat| stat.id.start);
        let mut kin: HashMap<i32, Vec<usize>> = HashMap::new();
        let mut sessions: HashMap<i32, Vec<usize>> = HashMap::new();
        for (index, group) in groups.iter().enumerate() {
            for member in &group.members {
                let of_session = sessions.entry(member.session).or_default();
                if of_session.last() != Some(&index) {
                    of_session.push(index);
                }
                let lives = tasks::stat(member.task.tid).is_ok_and(|stat| stat.id == member.task);
                let of_process = kin.entry(member.process).or_default();
                // The process lives on without its thread; a later one with its number has a later begin.
                let process_lives = || {
                    let began = tasks::stat(member.process).map(|stat| stat.id.start);
                    began.is_ok_and(|began| began <= member.task.start)
                };
                if of_process.last() != Some(&index) && (lives || process_lives()) {
                    of_process.push(index);
                }
            }
        }
        let session_of: HashMap<i32, i32> = alive.iter().map(|stat| (stat.id.tid, stat.session)).collect();
        let made_since = || alive.iter().filter(|stat| stat.id.start >= lease.since);
        // Twice: numbers wrap around, so among those of one clock tick a child may stand before its maker.
        for stat in made_since().chain(made_since()) {
            if kin.get(&stat.id.tid).is_some_and(|groups| !groups.is_empty()) {
                continue;
            }
            let of_parent = kin.get(&stat.parent).filter(|groups| !groups.is_empty()).cloned();
            let groups = of_parent.or_else(|| {
                // Nobody but the one that takes in orphans has a child in a session that is neither its own nor the child's.
                let orphan = stat.session != stat.id.tid && session_of.get(&stat.parent) != Some(&stat.session);
                sessions.get(&stat.session).filter(|_| orphan).cloned()
            });
            kin.extend(groups.map(|groups| (stat.id.tid, groups)));
        }
        Self(kin)
    }

    /// Whether another round may find more.
    fn put_back(&self, groups: &[Masks], outcome: &mut Outcome) -> bool {
        outcome.not_ours.clear();
        outcome.failed = None;
        let mut any = false;
        for (&pid, candidates) in &self.0 {
            for tid in tasks::threads(pid).unwrap_or_default() {
                let Ok(mask) = affinity::get(tid) else { continue };
                let Some(group) = group_of(groups, candidates, tid, &mask) else {
                    let own = candidates.iter().any(|&index| groups[index].is_own(&mask));
                    if !own && !candidates.is_empty() {
                        *outcome.not_ours.entry(mask.to_string()).or_default() += 1;
                    }
                    continue;
                };
                match group.give_back(tid) {
                    Ok(()) => {
                        outcome.put_back += 1;
                        any = true;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => outcome.failed = Some(plain(&error)),
                }
            }
        }
        any
    }
}

/// The group that a confined thread has its mask from: the one it was noted in, or the one that asked for most.
fn group_of<'a>(groups: &'a [Masks], candidates: &[usize], tid: i32, mask: &CpuSet) -> Option<&'a Masks> {
    let fitting = || candidates.iter().map(|&index| &groups[index]).filter(|group| group.is_narrow(mask));
    let noted = |group: &&Masks| group.members.iter().any(|member| member.task.tid == tid);
    // Newest first: a program may have asked for something else since.
    let group = fitting().rfind(noted).or_else(|| fitting().max_by_key(|group| group.own.len()))?;
    (group.own != group.narrow).then_some(group)
}
