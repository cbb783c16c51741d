//! Who is there: threads and processes that are made by who is kept, and those that have ended.
//!
//! Nothing is listed while no thread and no process is made on the whole machine.

use std::collections::BTreeSet;

use nearfar_apply::{affinity, tasks};

use super::kept::{Kept, Process};
use super::look::THOROUGH;
use crate::cgroup::members;
use crate::rule::Place;

impl Kept {
    /// Threads and processes that came and went. `births`: whether anybody was made on this machine since the last look.
    pub(super) fn newcomers(&mut self, births: bool) {
        let due = births || self.unsettled || self.said.looks.is_multiple_of(THOROUGH);
        if let Some(group) = self.cgroup.clone().filter(|_| due || self.said.looks.is_multiple_of(THOROUGH / 8)) {
            for pid in members::processes(&group).unwrap_or_default() {
                if !self.processes.contains_key(&pid) && !self.strangers.contains(&pid) && self.adopt(pid).is_err() {
                    self.strangers.insert(pid);
                }
            }
        }
        if !due {
            return;
        }
        // A maker that runs has perhaps not been charged yet for the time in which it made somebody; and what a newcomer
        // has made is not listed in this round.
        self.unsettled = births;
        let mut children = Vec::new();
        for pid in self.processes.keys().copied().collect::<Vec<_>>() {
            match self.threads_of(pid) {
                false => self.gone(pid),
                true if self.options.children => self.children_of(pid, &mut children),
                true => {}
            }
        }
        children.extend(self.orphans());
        children.retain(|(_, child)| !self.processes.contains_key(child) && !self.strangers.contains(child));
        for (parent, child) in children {
            self.unsettled = true;
            if !self.inherit(parent, child) {
                self.strangers.insert(child);
            }
        }
        // A number that is free may be given to somebody else.
        if !self.strangers.is_empty() && self.said.looks.is_multiple_of(THOROUGH) {
            self.strangers.retain(|&pid| tasks::stat(pid).is_ok());
        }
    }

    /// The children of a process, with it; only of those of its threads that ran since theirs were read.
    fn children_of(&mut self, pid: i32, children: &mut Vec<(i32, i32)>) {
        let Some(process) = self.processes.get(&pid) else { return };
        for tid in &process.threads {
            let Some(thread) = self.threads.get_mut(tid) else { continue };
            let ran = thread.group.and(thread.before).map(|(run, _)| run);
            if ran.is_some() && ran == thread.children_at {
                continue;
            }
            thread.children_at = ran;
            children.extend(thread.files.children().unwrap_or_default().into_iter().map(|child| (pid, child)));
        }
    }

    /// Whether a process has only its number left, or not even that.
    pub(super) fn has_ended(&self, pid: i32) -> bool {
        let Some(process) = self.processes.get(&pid) else { return true };
        // While other threads live, the first may have ended.
        process.threads.len() <= 1
            && tasks::stat(pid).map_or(true, |stat| stat.state == 'Z' || stat.id.start != process.start)
    }

    /// A thread that is there no more.
    pub(super) fn ended(&mut self, tid: i32) {
        let Some(process) = self.threads.get(&tid).map(|thread| thread.process) else { return };
        self.forget(tid);
        self.unsettled = true;
        // The first thread may have ended long before.
        if let Some(leader) = self.threads.get_mut(&process) {
            leader.moving = true;
        }
        if self.processes.get(&process).is_some_and(|process| process.threads.is_empty()) && self.has_ended(process) {
            self.gone(process);
        }
    }

    pub(super) fn gone(&mut self, pid: i32) {
        let ended = self.processes.remove(&pid).map(|process| process.threads).unwrap_or_default();
        ended.into_iter().for_each(|tid| self.forget(tid));
        // It may have left orphans, or have to be waited for.
        self.unsettled = true;
    }

    fn forget(&mut self, tid: i32) {
        let process = self.threads.remove(&tid).map(|thread| thread.process);
        if let Some(process) = process.and_then(|pid| self.processes.get_mut(&pid)) {
            process.threads.remove(&tid);
        }
        self.house.remove(tid);
    }

    /// Takes in new threads of a process and forgets those that have ended; whether the process itself lives.
    fn threads_of(&mut self, pid: i32) -> bool {
        let Ok(tids) = tasks::threads(pid) else { return false };
        let known = self.processes.get(&pid).map(|process| process.threads.clone()).unwrap_or_default();
        for tid in known.iter().filter(|tid| !tids.contains(tid)) {
            self.forget(*tid);
        }
        let new = tids.iter().filter(|tid| !known.contains(tid));
        for &tid in new {
            self.unsettled = true;
            self.take_in(pid, tid);
        }
        // A zombie's thread is still listed.
        !(tids.len() == 1 && self.has_ended(pid))
    }

    /// A thread that was made meanwhile has its maker's mask: narrow, or its own where its maker was let out.
    fn take_in(&mut self, pid: i32, tid: i32) {
        let Ok(mask) = affinity::get(tid) else { return };
        let groups = self.processes.get(&pid).map(|process| process.groups.clone()).unwrap_or_default();
        let fitting = |narrow: bool| {
            let fits = |&&index: &&usize| match narrow {
                true => self.groups[index].is_narrow(&mask),
                false => self.groups[index].is_own(&mask),
            };
            // Of several makers with the same narrow mask, as if it were made by the one that asked for most.
            groups.iter().filter(fits).max_by_key(|&&index| self.groups[index].own.len()).copied()
        };
        match (fitting(true), fitting(false)) {
            (Some(group), _) => self.keep(pid, tid, group, Place::Home),
            (None, Some(group)) => self.keep(pid, tid, group, Place::Anywhere),
            (None, None) => self.leave_in_peace(tid, pid, mask),
        }
    }

    /// A process made by a kept one; whether it is kept.
    fn inherit(&mut self, parent: i32, child: i32) -> bool {
        let (Ok(stat), Ok(mask)) = (tasks::stat(child), affinity::get(child)) else { return true };
        if stat.state == 'Z' {
            self.reap(parent, child);
            return true;
        }
        // An orphan may be anybody's.
        let groups = match self.processes.get(&parent) {
            Some(process) => process.groups.clone(),
            None => (0..self.groups.len()).collect(),
        };
        let ours = |&&index: &&usize| self.groups[index].is_narrow(&mask) || self.groups[index].is_own(&mask);
        let Some(&group) = groups.iter().find(ours) else { return false };
        if stat.id.start < self.since {
            return false;
        }
        self.processes.insert(child, Process { start: stat.id.start, threads: BTreeSet::new(), groups });
        self.said.processes += 1;
        // So that it is found if this keeper is killed and its maker has ended.
        let _ = self.note(group, child);
        self.threads_of(child);
        self.follow_home(child);
        true
    }

    /// Processes whose parent has ended before it was seen as theirs: given to this process, where it asked for them. The
    /// kernel gives them to a process's first thread while that lives (find_new_reaper in kernel/exit.c).
    fn orphans(&mut self) -> Vec<(i32, i32)> {
        let Some(except) = &self.orphans_except else { return Vec::new() };
        let me = std::process::id().cast_signed();
        let children = self.me.children().unwrap_or_default();
        children.into_iter().filter(|child| !except.contains(child)).map(|child| (me, child)).collect()
    }

    /// An orphan that has ended has nobody else to wait for it.
    fn reap(&self, parent: i32, child: i32) {
        let mine = parent == std::process::id().cast_signed();
        if let Some(pid) = rustix::process::Pid::from_raw(child).filter(|_| mine) {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
        }
    }
}
