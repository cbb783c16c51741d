//! How threads come in: on record first, with what they asked for, then narrowed.
//!
//! ```text
//! read the masks of all threads ─► put them on record ─► narrow them ─► again, for threads that were made meanwhile
//! ```
//!
//! A mask that a thread had before its process was narrowed is its own, also where it equals the narrow one. What was made
//! later has inherited its mask if that is proven: it was observed ([`super::lineage`]), or it is of a kept process and began
//! after that was narrowed.
//!
//! A number is given to another process once its own has ended and was waited for:
//!
//! ```text
//! open (pidfd) ─► looked at, matched ─► adopted ─► still the same? ─ yes ─► kept
//!                                                                  └ no ──► masks back, refused
//! ```
//!
//! While a process lives, its number is its own: one that lives after it was adopted was the same all the time since it was
//! opened.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_change::lease::Masks;
use nearfar_machine::CpuSet;
use nearfar_proc::tasks::{self, is_gone};
use nearfar_proc::{OpenProcess, affinity};

use crate::keeper::KeeperError;
use crate::keeper::threads::{Process, ThreadMasks};
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

impl ThreadMasks {
    /// Takes in a process with all its threads, and narrows them. `born`: the masks that its first thread began with, where
    /// this keeper started it.
    pub(crate) fn adopt(&mut self, pid: i32, born: Option<usize>) -> Result<(), KeeperError> {
        self.observe();
        self.lineage.close();
        let stat = tasks::stat(pid).map_err(|error| KeeperError::of_process(pid, &error))?;
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
        self.ignored.remove(pid);
        if self.options.children && self.cgroup.is_none() && self.orphans_except.is_none() {
            // Those that are there already were not made by one that is kept; the clock of starts is too coarse to tell.
            let tids = tasks::threads(pid).unwrap_or_default();
            let children = tids
                .into_iter()
                .flat_map(|tid| tasks::children(pid, tid).unwrap_or_default());
            children
                .filter(|child| !self.processes.contains_key(child))
                .for_each(|child| self.ignored.add(child));
        }
        self.note_sessions();
        self.masks.cpusets.refresh();
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
    pub(crate) fn note_sessions(&mut self) {
        let mut ours: BTreeSet<i32> = self.processes.keys().copied().collect();
        if self.orphans_except.is_some() {
            // It starts nothing but the command that it keeps.
            ours.insert(std::process::id().cast_signed());
        }
        self.record.note_sessions(&ours);
    }

    /// Until no thread is found that a thread not narrowed yet has made.
    fn adopt_threads(&mut self, pid: i32, born: Option<usize>) -> Result<(), KeeperError> {
        let mut elsewhere = None;
        let (listed, counted) = (self.counts.skipped.len(), self.counts.skipped_count);
        loop {
            let tids = tasks::threads(pid).map_err(|error| KeeperError::of_process(pid, &error))?;
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
        let threads = self.threads_in(pid);
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
                    .and_then(|stat| self.record.confined_by(stat.id));
                Err(match other {
                    Some((by, what)) => KeeperError::Kept { pid, by, what },
                    None => self.elsewhere(format!("process {pid}"), own),
                })
            }
            _ => Ok(()),
        }
    }

    /// Takes in threads of a process. The mask of one that may not run on the node, if there is one.
    pub(crate) fn take_in(
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
                mask => mask.map_err(|error| KeeperError::of_process(pid, &error))?,
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
        if self.masks.confines(group) {
            match affinity::set(tid, &self.masks.groups[group].narrow) {
                Err(error) if is_gone(&error) => return Ok(()),
                set => set.map_err(|error| KeeperError::of_process(pid, &error))?,
            }
            tracing::debug!(tid, pid, new = %self.masks.groups[group].narrow, "confine thread");
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
                    .masks
                    .place_of(tid, mask, group)
                    .map_or(chosen, |place| Origin::Inherited(group, place));
            }
            None => {}
        }
        if let Some(place) = born.and_then(|group| self.masks.place_of(tid, mask, group)) {
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
        match self.masks.group_of(tid, mask) {
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
            .filter_map(|group| Some((group, self.masks.place_of(tid, mask, group)?)))
            .collect();
        fitting.into_iter().max_by_key(|&(group, place)| {
            let Masks {
                own, unconfined, ..
            } = &self.masks.groups[group];
            (
                place == Place::Home && self.masks.confines(group),
                *unconfined,
                own.len(),
            )
        })
    }

    pub(crate) fn elsewhere(&self, who: String, own: CpuSet) -> KeeperError {
        KeeperError::Elsewhere {
            who,
            own,
            node: self.counts.node,
            home: self.masks.home.clone(),
        }
    }

    /// Puts threads on record as members of a group, as [`Record::hold`](crate::keeper::threads::Record::hold).
    pub(crate) fn note(
        &mut self,
        group: usize,
        threads: &[(i32, i32)],
    ) -> Result<Vec<i32>, KeeperError> {
        self.record.hold(&self.masks.groups[group], threads)
    }

    /// The threads of a kept process that are known.
    pub(crate) fn threads_in(&self, pid: i32) -> BTreeSet<i32> {
        let process = self.processes.get(&pid);
        process.map_or_else(BTreeSet::new, |process| process.threads.clone())
    }

    /// As [`Self::let_go`], also of a process that was not seen yet.
    pub(crate) fn let_go_as_asked(&mut self, pid: i32) {
        // A child that the last look did not find has inherited all the same.
        self.newcomers(true);
        if self.processes.contains_key(&pid) {
            self.let_go(pid);
        }
        self.ignored.add(pid);
    }

    /// Keeps a process no longer: its threads get their own masks back.
    pub(crate) fn let_go(&mut self, pid: i32) {
        self.observe();
        self.masks.cpusets.refresh();
        let threads = self.threads_in(pid);
        for tid in threads {
            let Some(group) = self.threads.get(&tid).and_then(|thread| thread.group) else {
                continue;
            };
            let Ok(mask) = affinity::get(tid) else {
                continue;
            };
            let masks = &self.masks.groups[group];
            if masks.confines()
                && masks.is_narrow(tid, &mask, &mut self.masks.cpusets)
                && masks.give_back(tid).is_ok()
            {
                let mask = affinity::get(tid).unwrap_or(mask);
                self.record.note_chosen(pid, tid, &mask);
            }
        }
        self.gone(pid);
    }
}

impl ThreadMasks {
    /// Takes in a process, if it is that one still when all its threads are narrow.
    pub(crate) fn adopt_open(&mut self, process: &OpenProcess) -> Result<(), KeeperError> {
        let pid = process.pid();
        if !process.is_alive() {
            return Err(KeeperError::NoProcess { pid, ended: false });
        }
        self.adopt(pid, None)?;
        if process.is_alive() {
            return Ok(());
        }
        // The threads that were adopted under its number are another process's.
        self.let_go(pid);
        Err(KeeperError::NoProcess { pid, ended: false })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use nearfar_change::lease::Leases;
    use nearfar_machine::{CpuId, CpuSet, Machine, NodeId};
    use nearfar_proc::affinity;
    use nearfar_sources::{Request, Want};

    use super::*;
    use crate::keeper::KeeperOptions;

    /// As if each of the first two CPUs were a node.
    fn machine() -> Machine {
        let sources = vec!["node:2 core:1 pu:1".to_owned()];
        nearfar_sources::read(&Request {
            sources,
            root: None,
            fake: None,
            want: Want::topology(),
        })
        .unwrap()
    }

    fn sleeping() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_another_process_lost_while_it_was_adopted_is_given_back() {
        let own = affinity::get(0).unwrap();
        if !own.contains(CpuId(0)) || !own.contains(CpuId(1)) {
            return println!(
                "skipped: cpus: CPUs 0 and 1 stand for two nodes, and this test may use {own}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let leases = Some(Leases::at(dir.path().join("leases")));
        let options = KeeperOptions {
            leases,
            ..KeeperOptions::default()
        };
        let mut kept = ThreadMasks::new(NodeId(0), &machine(), options).unwrap();
        let child = sleeping();
        let pid = child.id().cast_signed();
        kept.adopt(pid, None).unwrap();
        assert_eq!(affinity::get(pid).unwrap(), CpuSet::single(CpuId(0)));
        kept.let_go(pid);
        assert_eq!(affinity::get(pid).unwrap(), own);
        assert!(kept.processes.is_empty() && kept.threads.is_empty());
        end(child);
    }
}
