//! One look: which threads have ended, set their own mask, or wait, and what follows from it; which tasks kept ones have made; which CPUs
//! the home node has, since CPUs come online and go.
//!
//! Of a thread that is on the preferred node and runs it costs two system calls, of one that sleeps one. No task is listed while no
//! thread and no process is made on the whole machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use nearfar_machine::CpuSet;
use nearfar_proc::tasks::{self, is_gone};
use nearfar_proc::{affinity, cpuset};

use crate::cgroup;
use crate::keeper::threads::{Process, Thread, ThreadMasks};
use crate::rule::{Decision, Place, Sample};

/// Every so many looks also what gives no sign of a change is looked at.
pub(crate) const THOROUGH: u64 = 64;

impl ThreadMasks {
    /// What each kept thread did since the last look, as parts of the time. One that set its own mask is skipped here.
    pub(crate) fn samples(&mut self, passed: Duration) -> BTreeMap<i32, Sample> {
        let mut samples = BTreeMap::new();
        let tids: Vec<i32> = self.threads.keys().copied().collect();
        for tid in tids {
            match self.sample(tid, passed.as_nanos() as f64) {
                Ok(Some(sample)) => drop(samples.insert(tid, sample)),
                Ok(None) => {}
                Err(error) if is_gone(&error) => self.ended(tid),
                Err(_) => {}
            }
        }
        samples
    }

    fn sample(&mut self, tid: i32, passed_ns: f64) -> io::Result<Option<Sample>> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(None);
        };
        let Some(group) = thread.group else {
            return Ok(None);
        };
        let process = thread.process;
        let now = thread.files.run_time()?;
        let before = thread.before.replace(now);
        let ran = before.is_none_or(|before| before.run_ns != now.run_ns);
        let was_moving = std::mem::replace(&mut thread.moving, ran);
        // Its end is the last thing a process does: one that has come to rest may be waited for by its parent.
        if was_moving && !ran && tid == process && self.has_ended(process) {
            self.gone(process);
            return Ok(None);
        }
        let Some(place) = self.controller.place(tid) else {
            return Ok(None);
        };
        // One that sleeps sets nothing; what others set for it is found when it runs, or in some seconds.
        let check = ran || self.counts.looks.is_multiple_of(THOROUGH / 4);
        if check && let Some(mask) = self.foreign_mask(tid, group, place)? {
            self.skip(tid, process, mask);
            return Ok(None);
        }
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(None);
        };
        let is_away = |cpu| !self.masks.home.contains(cpu);
        let away = place == Place::Anywhere && thread.files.stat()?.cpu.is_some_and(is_away);
        let part = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed_ns;
        Ok(before.map(|before| Sample {
            ran: part(now.run_ns, before.run_ns),
            waited: part(now.wait_ns, before.wait_ns),
            away,
        }))
    }

    /// Its mask, where it is not as we left it.
    fn foreign_mask(&mut self, tid: i32, group: usize, place: Place) -> io::Result<Option<CpuSet>> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(None);
        };
        let mask = self.masks.foreign(tid, group, place, &mut thread.seen)?;
        Ok(mask.filter(|mask| !self.is_overwritten(tid, mask)))
    }

    /// Before Linux 6.2, a change of a cpuset replaces the masks of its tasks by its CPUs. Such a thread has no mask of its own
    /// any more, with or without a keeper, and is kept as one that asked for none.
    fn is_overwritten(&mut self, tid: i32, mask: &CpuSet) -> bool {
        if self.masks.cpusets.keeps_requests() {
            return false;
        }
        let allowed = self.masks.cpusets.allowed(tid);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return false;
        };
        let changed = allowed.is_some() && thread.cpuset != allowed;
        if !changed
            || allowed
                .map(|allowed| allowed.intersection(self.masks.cpusets.online()))
                .as_ref()
                != Some(mask)
        {
            return false;
        }
        let process = thread.process;
        let Some(group) = self.masks.group_of(tid, mask) else {
            return false;
        };
        if !self
            .note(group, &[(process, tid)])
            .is_ok_and(|noted| !noted.is_empty())
        {
            return false;
        }
        let home = !self.masks.confines(group)
            || affinity::set(tid, &self.masks.groups[group].narrow).is_ok();
        self.keep(
            process,
            tid,
            group,
            if home { Place::Home } else { Place::Anywhere },
        );
        true
    }

    pub(crate) fn carry_out(&mut self, tid: i32, decision: Decision) {
        let Some(Thread {
            process,
            group: Some(group),
            ..
        }) = self.threads.get(&tid)
        else {
            return;
        };
        let (process, group) = (*process, *group);
        let masks = self.masks.groups[group].clone();
        let before = if decision == Decision::Widen {
            Place::Home
        } else {
            Place::Anywhere
        };
        if let Ok(Some(mask)) = self.foreign_mask(tid, group, before) {
            return self.skip(tid, process, mask);
        }
        // What is set by others in this moment is not seen.
        let done = match decision {
            Decision::Widen => masks.give_back(tid),
            Decision::Narrow => affinity::set(tid, &masks.narrow),
        };
        match (done, decision) {
            (Ok(()), Decision::Widen) => {
                tracing::debug!(tid, pid = process, new = %masks.own, reason = "the node is full", "release thread");
                self.counts.widened += 1;
            }
            (Ok(()), Decision::Narrow) => {
                tracing::debug!(tid, pid = process, new = %masks.narrow, "confine thread again");
                self.counts.narrowed += 1;
                self.follow_home(process);
            }
            (Err(error), _) if is_gone(&error) => self.ended(tid),
            // Its cpuset allows none of the node's CPUs now. It may do so again.
            (Err(error), Decision::Narrow) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.controller.put(tid, Place::Anywhere);
            }
            // It is another user's now.
            (Err(_), _) => {
                let cpus = affinity::get(tid).unwrap_or_default();
                self.skip(tid, process, cpus);
            }
        }
    }
}

impl ThreadMasks {
    /// Threads and processes that came and went. `forks`: whether a task was made on this machine since the last look.
    pub(crate) fn newcomers(&mut self, forks: bool) {
        let due = forks || self.unsettled || self.counts.looks.is_multiple_of(THOROUGH);
        if let Some(group) = self
            .cgroup
            .clone()
            .filter(|_| due || self.counts.looks.is_multiple_of(THOROUGH / 8))
        {
            for pid in cgroup::processes(&group).unwrap_or_default() {
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
    fn has_ended(&self, pid: i32) -> bool {
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
    pub(crate) fn ended(&mut self, tid: i32) {
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

    pub(crate) fn gone(&mut self, pid: i32) {
        let ended = self
            .processes
            .remove(&pid)
            .map(|process| process.threads)
            .unwrap_or_default();
        ended.into_iter().for_each(|tid| self.forget(tid));
        // It may have left orphans, or have to be waited for.
        self.unsettled = true;
    }

    pub(crate) fn forget(&mut self, tid: i32) {
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
    pub(crate) fn last_newcomers(&mut self) {
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

impl ThreadMasks {
    /// Reads the node's CPUs again; now and then.
    pub(crate) fn rehome(&mut self) {
        let Some(nodes) = self
            .options
            .nodes
            .as_ref()
            .filter(|_| self.counts.looks.is_multiple_of(THOROUGH / 8))
        else {
            return;
        };
        let file = nodes.join(format!("node{}/cpulist", self.counts.node));
        // A node that has gone, or has no CPU now: its tasks run where the kernel puts them, and it may return.
        let Ok(home) = cpuset::list_in(&file) else {
            return;
        };
        if home != self.masks.home && !home.is_empty() {
            self.move_home(home);
        }
    }

    /// The threads on the preferred node run on these CPUs from now on.
    fn move_home(&mut self, home: CpuSet) {
        self.counts.cpus = home.clone();
        for (group, new) in self.masks.rehome(home) {
            let threads = self.threads.iter();
            let threads: BTreeMap<i32, i32> = threads
                .filter(|(_, it)| it.group == Some(group))
                .map(|(&tid, it)| (tid, it.process))
                .collect();
            let listed: Vec<(i32, i32)> = threads
                .iter()
                .map(|(&tid, &process)| (process, tid))
                .collect();
            let old = std::mem::replace(&mut self.masks.groups[group], new);
            // Not on record, not changed: they stay on the CPUs that they have, and the next change is another chance.
            let Ok(noted) = self.note(group, &listed) else {
                self.masks.groups[group] = old;
                continue;
            };
            for tid in noted {
                if self
                    .controller
                    .place(tid)
                    .is_none_or(|place| place == Place::Home)
                {
                    self.renew(tid, threads[&tid], group, &old);
                }
            }
        }
    }

    fn renew(&mut self, tid: i32, process: i32, group: usize, old: &nearfar_change::lease::Masks) {
        let Ok(mask) = affinity::get(tid) else { return };
        if !old.is_narrow(tid, &mask, &mut self.masks.cpusets) {
            return self.skip(tid, process, mask);
        }
        let masks = &self.masks.groups[group];
        let renewed = if masks.confines() {
            affinity::set(tid, &masks.narrow)
        } else {
            masks.give_back(tid)
        };
        // Where its cpuset has none of them, the kernel still has the earlier ones.
        if renewed.is_ok() {
            self.controller.remove(tid);
            if self.masks.confines(group) {
                self.controller.put(tid, Place::Home);
            }
        }
    }
}

/// Processes that were looked at and are not kept. Start times, in clock ticks since boot, by process: a number is given again.
#[derive(Default)]
pub(crate) struct Ignored(BTreeMap<i32, u64>);

impl Ignored {
    pub(crate) fn add(&mut self, pid: i32) {
        // One that has ended meanwhile is not found again.
        if let Ok(stat) = tasks::stat(pid) {
            self.0.insert(pid, stat.id.start);
        }
    }

    pub(crate) fn remove(&mut self, pid: i32) {
        self.0.remove(&pid);
    }

    pub(crate) fn has(&self, pid: i32) -> bool {
        self.0.get(&pid).is_some_and(|&start| is_same(pid, start))
    }

    fn forget_ended(&mut self) {
        self.0.retain(|&pid, &mut start| is_same(pid, start));
    }
}

fn is_same(pid: i32, start: u64) -> bool {
    tasks::stat(pid).is_ok_and(|stat| stat.id.start == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_with_the_same_number_is_not_ignored() {
        let pid = std::process::id().cast_signed();
        let mut ignored = Ignored::default();
        ignored.add(pid);
        assert!(ignored.has(pid) && !ignored.has(1));
        // As one that had the number before.
        *ignored.0.get_mut(&pid).unwrap() -= 1;
        assert!(!ignored.has(pid));
        ignored.forget_ended();
        assert!(ignored.0.is_empty());
    }
}
