//! Which tasks there are: threads and processes that kept ones make, and those that have ended.
//!
//! None is listed while no thread and no process is made on the whole machine.

use std::collections::BTreeSet;

use nearfar_proc::tasks;

use super::look::THOROUGH;
use super::threads::{Process, ThreadMasks};
use crate::cgroup::members;

impl ThreadMasks {
    /// Threads and processes that came and went. `forks`: whether a task was made on this machine since the last look.
    pub(super) fn newcomers(&mut self, forks: bool) {
        let due = forks || self.unsettled || self.counts.looks.is_multiple_of(THOROUGH);
        if let Some(group) = self
            .cgroup
            .clone()
            .filter(|_| due || self.counts.looks.is_multiple_of(THOROUGH / 8))
        {
            for pid in members::processes(&group).unwrap_or_default() {
                if !self.processes.contains_key(&pid)
                    && !self.ignored.has(pid)
                    && self.adopt(pid, None).is_err()
                {
                    self.ignored.add(pid);
                }
            }
        }
        if !due {
            return;
        }
        // A newcomer's mask is what the kernel makes of the request within the cpuset as it is now.
        self.masks.cpusets.refresh();
        // A maker that runs has perhaps not been charged yet for the time in which it made another; and what a newcomer
        // has made is not listed in this round.
        self.unsettled = forks;
        let mut children = Vec::new();
        for pid in self.processes.keys().copied().collect::<Vec<_>>() {
            match self.threads_of(pid) {
                false => self.gone(pid),
                true if self.options.children => self.children_of(pid, &mut children),
                true => {}
            }
        }
        children.extend(self.orphans());
        if self.options.children {
            children.extend(self.observed());
        }
        children.sort_unstable_by_key(|&(_, child)| child);
        children.dedup_by_key(|&mut (_, child)| child);
        children
            .retain(|(_, child)| !self.processes.contains_key(child) && !self.ignored.has(*child));
        for (parent, child) in children {
            self.unsettled = true;
            if !self.inherit(parent, child) {
                self.ignored.add(child);
            }
        }
        if self.counts.looks.is_multiple_of(THOROUGH) {
            self.ignored.forget_ended();
        }
    }

    /// The children of a process, with it; only of those of its threads that ran since theirs were read.
    fn children_of(&mut self, pid: i32, children: &mut Vec<(i32, i32)>) {
        let Some(process) = self.processes.get(&pid) else {
            return;
        };
        for tid in &process.threads {
            let Some(thread) = self.threads.get_mut(tid) else {
                continue;
            };
            let ran = thread.group.and(thread.before).map(|time| time.run_ns);
            if ran.is_some() && ran == thread.children_at {
                continue;
            }
            thread.children_at = ran;
            children.extend(
                thread
                    .files
                    .children()
                    .unwrap_or_default()
                    .into_iter()
                    .map(|child| (pid, child)),
            );
        }
    }

    /// Whether a process has only its number left, or not even that.
    pub(super) fn has_ended(&self, pid: i32) -> bool {
        let Some(process) = self.processes.get(&pid) else {
            return true;
        };
        // While other threads live, the first may have ended.
        process.threads.len() <= 1
            && tasks::stat(pid).map_or(true, |stat| {
                stat.state == 'Z' || stat.id.start != process.start
            })
    }

    /// A thread that is there no more.
    pub(super) fn ended(&mut self, tid: i32) {
        let Some(process) = self.threads.get(&tid).map(|thread| thread.process) else {
            return;
        };
        self.forget(tid);
        self.unsettled = true;
        // The first thread may have ended long before.
        if let Some(leader) = self.threads.get_mut(&process) {
            leader.moving = true;
        }
        if self
            .processes
            .get(&process)
            .is_some_and(|process| process.threads.is_empty())
            && self.has_ended(process)
        {
            self.gone(process);
        }
    }

    pub(super) fn gone(&mut self, pid: i32) {
        let ended = self
            .processes
            .remove(&pid)
            .map(|process| process.threads)
            .unwrap_or_default();
        ended.into_iter().for_each(|tid| self.forget(tid));
        // It may have left orphans, or have to be waited for.
        self.unsettled = true;
    }

    pub(super) fn forget(&mut self, tid: i32) {
        let process = self.threads.remove(&tid).map(|thread| thread.process);
        if let Some(process) = process.and_then(|pid| self.processes.get_mut(&pid)) {
            process.threads.remove(&tid);
        }
        self.controller.remove(tid);
    }

    /// Takes in new threads of a process and forgets those that have ended; whether the process itself lives.
    fn threads_of(&mut self, pid: i32) -> bool {
        let Ok(tids) = tasks::threads(pid) else {
            return false;
        };
        let known = self.threads_in(pid);
        let new: Vec<i32> = tids
            .iter()
            .filter(|tid| !known.contains(tid))
            .copied()
            .collect();
        if !new.is_empty() {
            self.unsettled = true;
            // Those that cannot be put on record are found again by the next look.
            let _ = self.take_in(pid, &new, None);
        }
        let listed: BTreeSet<i32> = tids.iter().copied().collect();
        for tid in known.difference(&listed) {
            self.forget(*tid);
        }
        // A zombie's thread is still listed.
        !(tids.len() == 1 && self.has_ended(pid))
    }

    /// A process made by a kept one; whether it is kept.
    fn inherit(&mut self, parent: i32, child: i32) -> bool {
        let Ok(stat) = tasks::stat(child) else {
            return true;
        };
        let tids = tasks::threads(child).unwrap_or_default();
        // While other threads live, the first may have ended.
        if stat.state == 'Z' && tids.len() <= 1 {
            self.reap(parent, child);
            return true;
        }
        let (groups, since) = self.inheritance(parent, &tids);
        if stat.id.start < since {
            return false;
        }
        let mut process = Process::new(&stat, Some(stat.id.start));
        process.groups = groups;
        self.processes.insert(child, process);
        self.threads_of(child);
        let is_kept = |tid| {
            self.threads
                .get(tid)
                .is_some_and(|thread| thread.group.is_some())
        };
        if !self
            .processes
            .get(&child)
            .is_some_and(|process| process.threads.iter().any(is_kept))
        {
            // All its threads have masks of their own choice, which is on record now, or it has ended.
            self.gone(child);
            return false;
        }
        self.counts.processes += 1;
        self.follow_home(child);
        true
    }

    /// What the threads of a child can have inherited, and since when its maker had it. One of them may have chosen a mask after
    /// it made another.
    fn inheritance(&self, parent: i32, tids: &[i32]) -> (BTreeSet<usize>, u64) {
        let known: Vec<Option<usize>> = tids
            .iter()
            .filter_map(|&tid| self.lineage.of(tid))
            .collect();
        match self.processes.get(&parent) {
            _ if !known.is_empty() => (known.into_iter().flatten().collect(), 0),
            Some(process) => (
                process.groups.clone(),
                process.since.unwrap_or_else(|| self.record.since()),
            ),
            // An orphan of this process's command.
            None => ((0..self.masks.groups.len()).collect(), self.record.since()),
        }
    }

    /// The processes of descendants that were observed: they may have left their session, or lost their parent.
    fn observed(&self) -> Vec<(i32, i32)> {
        let waiting = self
            .lineage
            .waiting()
            .into_iter()
            .filter(|tid| !self.threads.contains_key(tid));
        let processes: BTreeSet<i32> = waiting
            .filter_map(|tid| tasks::process_of(tid).ok())
            .collect();
        processes
            .into_iter()
            .filter_map(|pid| Some((tasks::stat(pid).ok()?.parent, pid)))
            .collect()
    }

    /// Takes in, at the end, the tasks that were made since the last look and can be found now: so that they are on record.
    pub(super) fn last_newcomers(&mut self) {
        self.observe();
        self.unsettled = true;
        self.newcomers(true);
    }

    /// Processes whose parent has ended before it was seen as theirs: given to this process, where it asked for them. The
    /// kernel gives them to a process's first thread while that lives (find_new_reaper in kernel/exit.c).
    fn orphans(&mut self) -> Vec<(i32, i32)> {
        let Some(except) = &self.orphans_except else {
            return Vec::new();
        };
        let me = std::process::id().cast_signed();
        let children = self.me.children().unwrap_or_default();
        children
            .into_iter()
            .filter(|child| !except.contains(child))
            .map(|child| (me, child))
            .collect()
    }

    /// An orphan that has ended: no other process waits for it.
    fn reap(&self, parent: i32, child: i32) {
        let mine = parent == std::process::id().cast_signed();
        if let Some(pid) = rustix::process::Pid::from_raw(child).filter(|_| mine) {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
        }
    }
}
