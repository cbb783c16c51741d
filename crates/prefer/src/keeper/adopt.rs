//! How threads come in: on record first, with what they asked for, then narrowed.
//!
//! ```text
//! read the masks of all threads ─► put them on record ─► narrow them ─► again, for threads that were made meanwhile
//! ```
//!
//! A mask that a thread had before its process was narrowed is its own, also where it equals the narrow one. What was made
//! later has inherited its mask if that is proven: it was observed ([`super::lineage`]), or it is of a kept process and began
//! after that was narrowed.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_lease::{Masks, Member, whole_sessions};
use nearfar_machine::CpuSet;
use nearfar_proc::tasks::is_gone;
use nearfar_proc::{affinity, tasks};

use super::KeeperError;
use super::kept::{Kept, Process, of_process};
use crate::rule::Place;

/// A thread that is about to come in.
struct Newcomer {
    tid: i32,
    mask: CpuSet,
    origin: Origin,
}

/// Where a thread's mask comes from.
enum Origin {
    /// It was made by a thread of these masks, on the preferred node or not.
    Inherited(usize, Place),
    /// It asked for it, and has these masks from now on.
    Own(usize),
    /// Its program chose it, or none of its CPUs is the node's.
    Chosen { elsewhere: bool },
}

impl Kept {
    /// Takes in a process with all its threads, and narrows them. `born`: the masks that its first thread began with, where
    /// this keeper started it.
    pub(super) fn adopt(&mut self, pid: i32, born: Option<usize>) -> Result<(), KeeperError> {
        self.observe();
        self.lineage.close();
        let stat = tasks::stat(pid).map_err(|error| of_process(pid, &error))?;
        if self
            .processes
            .get(&pid)
            .is_some_and(|process| process.start == stat.id.start)
        {
            return Ok(());
        }
        self.processes.insert(
            pid,
            Process::new(&stat, born.is_some().then_some(stat.id.start)),
        );
        self.ignored.remove(&pid);
        if self.options.children && self.cgroup.is_none() && self.orphans_except.is_none() {
            // Whoever is there already was not made by one that is kept; the clock of starts is too coarse to tell.
            let tids = tasks::threads(pid).unwrap_or_default();
            let children = tids
                .into_iter()
                .flat_map(|tid| tasks::children(pid, tid).unwrap_or_default());
            self.ignored
                .extend(children.filter(|child| !self.processes.contains_key(child)));
        }
        self.note_sessions();
        self.cpusets.refresh();
        let adopted = self.adopt_threads(pid, born);
        self.unsettled = true;
        if adopted.is_err() || self.processes[&pid].threads.is_empty() {
            self.let_go(pid);
        } else {
            self.counts.processes += 1;
            self.follow_home(pid);
            tracing::info!(pid, node = self.counts.node.0, "keep process");
        }
        if let Err(error) = &adopted {
            tracing::warn!(pid, node = self.counts.node.0, reason = %error, "process not kept");
        }
        adopted
    }

    /// Finds the sessions all of whose processes are kept.
    pub(super) fn note_sessions(&mut self) {
        let mut ours: BTreeSet<i32> = self.processes.keys().copied().collect();
        if self.orphans_except.is_some() {
            // It starts nothing but the command that it keeps.
            ours.insert(std::process::id().cast_signed());
        }
        // Once it was so, whatever the session makes later descends from who is kept.
        self.whole_sessions.extend(whole_sessions(&ours));
    }

    /// Until no thread is found that a thread not narrowed yet has made.
    fn adopt_threads(&mut self, pid: i32, born: Option<usize>) -> Result<(), KeeperError> {
        let mut elsewhere = None;
        let (listed, counted) = (self.counts.skipped.len(), self.counts.skipped_count);
        loop {
            let tids = tasks::threads(pid).map_err(|error| of_process(pid, &error))?;
            let new: Vec<i32> = tids
                .into_iter()
                .filter(|tid| !self.threads.contains_key(tid))
                .collect();
            if new.is_empty() {
                break;
            }
            let lies_elsewhere = self.take_in(pid, &new, born)?;
            elsewhere = elsewhere.or(lies_elsewhere);
        }
        let threads = self
            .processes
            .get(&pid)
            .map(|process| process.threads.clone())
            .unwrap_or_default();
        let kept = threads.iter().any(|tid| {
            self.threads
                .get(tid)
                .is_some_and(|thread| thread.group.is_some())
        });
        match elsewhere {
            Some(own) if !kept => {
                // Refused as a whole, and perhaps asked for again and again.
                self.counts.skipped.truncate(listed);
                self.counts.skipped_count = counted;
                let other = tasks::stat(pid)
                    .ok()
                    .and_then(|stat| self.lease.confined_by(stat.id, pid));
                Err(match other {
                    Some((by, what)) => KeeperError::Kept { pid, by, what },
                    None => self.elsewhere(format!("process {pid}"), own),
                })
            }
            _ => Ok(()),
        }
    }

    /// Takes in threads of a process. The mask of one that may not run on the node, if there is one.
    pub(super) fn take_in(
        &mut self,
        pid: i32,
        tids: &[i32],
        born: Option<usize>,
    ) -> Result<Option<CpuSet>, KeeperError> {
        let mut newcomers = Vec::with_capacity(tids.len());
        // All masks before the first one changes.
        for &tid in tids {
            let mask = match affinity::get(tid) {
                Err(error) if is_gone(&error) => continue,
                mask => mask.map_err(|error| of_process(pid, &error))?,
            };
            let origin = self.origin(pid, tid, &mask, born);
            newcomers.push(Newcomer { tid, mask, origin });
        }
        let mut by_group: BTreeMap<usize, Vec<(i32, i32)>> = BTreeMap::new();
        for newcomer in &newcomers {
            if let Origin::Inherited(group, _) | Origin::Own(group) = newcomer.origin {
                by_group.entry(group).or_default().push((pid, newcomer.tid));
            }
        }
        let mut on_record = BTreeSet::new();
        for (group, tids) in by_group {
            on_record.extend(self.note(group, &tids)?);
        }
        if let Some(process) = self
            .processes
            .get_mut(&pid)
            .filter(|process| process.since.is_none())
        {
            process.since = Some(nearfar_proc::system::ticks_since_boot());
        }
        let mut elsewhere = None;
        for Newcomer { tid, mask, origin } in newcomers {
            self.lineage.take(tid);
            match origin {
                Origin::Chosen {
                    elsewhere: is_elsewhere,
                } => {
                    self.skip(tid, pid, mask.clone());
                    elsewhere = elsewhere.or(is_elsewhere.then_some(mask));
                }
                // It ended before it was put on record.
                _ if !on_record.contains(&tid) => {}
                Origin::Inherited(group, place) => self.keep(pid, tid, group, place),
                Origin::Own(group) => self.narrow(pid, tid, group)?,
            }
        }
        Ok(elsewhere)
    }

    fn narrow(&mut self, pid: i32, tid: i32, group: usize) -> Result<(), KeeperError> {
        if self.groups[group].confines() {
            match affinity::set(tid, &self.groups[group].narrow) {
                Err(error) if is_gone(&error) => return Ok(()),
                set => set.map_err(|error| of_process(pid, &error))?,
            }
            tracing::debug!(tid, pid, new = %self.groups[group].narrow, "confine thread");
            self.counts.narrowed += 1;
        }
        self.keep(pid, tid, group, Place::Home);
        Ok(())
    }

    fn origin(&mut self, pid: i32, tid: i32, mask: &CpuSet, born: Option<usize>) -> Origin {
        let chosen = Origin::Chosen { elsewhere: false };
        match self.lineage.of(tid) {
            Some(None) => return chosen,
            Some(Some(group)) => {
                return self
                    .place_of(tid, mask, group)
                    .map_or(chosen, |place| Origin::Inherited(group, place));
            }
            None => {}
        }
        if let Some(place) = born.and_then(|group| self.place_of(tid, mask, group)) {
            return Origin::Inherited(born.unwrap_or_default(), place);
        }
        let since = self.processes.get(&pid).and_then(|process| process.since);
        let made_since = since
            .filter(|&since| tasks::stat_of(pid, tid).is_ok_and(|stat| stat.id.start >= since));
        if made_since.is_some() {
            return match self.inherited(pid, tid, mask) {
                Some((group, place)) => Origin::Inherited(group, place),
                None => chosen,
            };
        }
        match self.group_of(tid, mask) {
            Some(group) => Origin::Own(group),
            None => Origin::Chosen { elsewhere: true },
        }
    }

    /// What a thread that was made since its process was narrowed has its mask from. Of several makers with the same narrow mask,
    /// as if it were made by the one that asked for most.
    fn inherited(&mut self, pid: i32, tid: i32, mask: &CpuSet) -> Option<(usize, Place)> {
        let groups = self
            .processes
            .get(&pid)
            .map(|process| process.groups.clone())
            .unwrap_or_default();
        let fitting: Vec<(usize, Place)> = groups
            .into_iter()
            .filter_map(|group| Some((group, self.place_of(tid, mask, group)?)))
            .collect();
        fitting.into_iter().max_by_key(|&(group, place)| {
            let Masks {
                own, unconfined, ..
            } = &self.groups[group];
            (
                place == Place::Home && self.groups[group].confines(),
                *unconfined,
                own.len(),
            )
        })
    }

    /// Where a thread with this mask is, if it has one of these two.
    pub(super) fn place_of(&mut self, tid: i32, mask: &CpuSet, group: usize) -> Option<Place> {
        let masks = &self.groups[group];
        if masks.is_narrow(tid, mask, &mut self.cpusets) {
            return Some(Place::Home);
        }
        masks
            .is_own(tid, mask, &mut self.cpusets)
            .then_some(Place::Anywhere)
    }

    pub(super) fn elsewhere(&self, who: String, own: CpuSet) -> KeeperError {
        KeeperError::Elsewhere {
            who,
            own,
            node: self.counts.node,
            home: self.home.clone(),
        }
    }

    /// The masks of threads that have this mask now; none where none of its CPUs is the node's.
    pub(super) fn group_of(&mut self, tid: i32, mask: &CpuSet) -> Option<usize> {
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
        if let Some(&group) = self.group_index.get(&key) {
            return Some(group);
        }
        self.groups.push(self.masks_of(&key.0, unconfined));
        self.group_index.insert(key, self.groups.len() - 1);
        Some(self.groups.len() - 1)
    }

    /// What threads that asked for these CPUs get while they are kept.
    pub(super) fn masks_of(&self, own: &CpuSet, unconfined: bool) -> Masks {
        // The home node's CPUs as a whole also where a cpuset allows fewer: it may allow more later.
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

    /// Puts threads on record, before their masks change; those that are there. A thread that has ended needs no record.
    ///
    /// # Errors
    /// When a thread that may be there cannot be identified, or the journal cannot be written: its mask must not be changed.
    pub(super) fn note(
        &mut self,
        group: usize,
        threads: &[(i32, i32)],
    ) -> Result<Vec<i32>, KeeperError> {
        let Masks {
            own,
            narrow,
            unconfined,
            ..
        } = self.groups[group].clone();
        let mut members = Vec::with_capacity(threads.len());
        for &(pid, tid) in threads {
            match Member::of(pid, tid) {
                Ok(member) => {
                    let whole_session = self.whole_sessions.contains(&member.session);
                    members.push(Member {
                        whole_session,
                        ..member
                    });
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(of_process(pid, &error)),
            }
        }
        let tids = members.iter().map(|member| member.task.tid).collect();
        self.noted += members.len();
        if !members.is_empty() {
            self.lease.hold_masks(Masks {
                own,
                narrow,
                unconfined,
                members,
            })?;
        }
        Ok(tids)
    }

    /// Puts on record that a thread's mask is its own from now on: nothing is given back to it, nor to what it makes.
    pub(super) fn note_chosen(&mut self, pid: i32, tid: i32, mask: &CpuSet) {
        if let Ok(member) = Member::of(pid, tid) {
            self.noted += 1;
            if let Err(error) = self.lease.note_choice(mask.clone(), member) {
                tracing::warn!(tid, pid, %error, "cannot put on record that the thread has a mask of its own");
            }
        }
    }

    /// As [`Self::let_go`], also of a process that was not seen yet.
    pub(super) fn let_go_as_asked(&mut self, pid: i32) {
        // A child that the last look did not find has inherited all the same.
        self.newcomers(true);
        if self.processes.contains_key(&pid) {
            self.let_go(pid);
        }
        self.ignored.insert(pid);
    }

    /// Keeps a process no longer: its threads get their own masks back.
    pub(super) fn let_go(&mut self, pid: i32) {
        self.observe();
        self.cpusets.refresh();
        let threads = self
            .processes
            .get(&pid)
            .map(|process| process.threads.clone())
            .unwrap_or_default();
        for tid in threads {
            let Some(group) = self.threads.get(&tid).and_then(|thread| thread.group) else {
                continue;
            };
            let Ok(mask) = affinity::get(tid) else {
                continue;
            };
            let masks = &self.groups[group];
            if masks.confines()
                && masks.is_narrow(tid, &mask, &mut self.cpusets)
                && masks.give_back(tid).is_ok()
            {
                let mask = affinity::get(tid).unwrap_or(mask);
                self.note_chosen(pid, tid, &mask);
            }
        }
        self.gone(pid);
    }
}
