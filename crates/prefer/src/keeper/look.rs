//! One look: who came, who went, who set its own mask, who waits; and what follows from it.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use nearfar_apply::{affinity, tasks};

use super::kept::{Kept, Process, Thread, is_gone};
use super::report;
use crate::cgroup::members;
use crate::rule::{Decision, Look, Place, Sample, offer};

impl Kept {
    /// Looks, decides, does. What cannot be read is gone or will be read the next time.
    pub(super) fn look(&mut self) {
        let before = report::cpu_time();
        let now = Instant::now();
        let passed = now.duration_since(self.last_look).max(Duration::from_millis(1));
        self.last_look = now;
        self.newcomers();
        let samples = self.samples(passed);
        let offer = match self.house.needs_offer(&samples) {
            true => self.idle.since_last(&self.home).map(offer),
            false => {
                // What was idle before now says nothing of the time in which it will matter.
                self.idle = Default::default();
                None
            }
        };
        let look = Look { now: now.duration_since(self.begun), offer, samples };
        for (tid, decision) in self.house.step(&look) {
            self.carry_out(tid, decision);
        }
        self.tidy();
        self.said.looks += 1;
        self.said.cpu_s += report::cpu_time().saturating_sub(before).as_secs_f64();
    }

    pub(super) fn paused(&mut self, pause: Duration) {
        self.said.longest_pause_s = self.said.longest_pause_s.max(pause.as_secs_f64());
    }

    /// Threads and processes that came and went.
    fn newcomers(&mut self) {
        if let Some(group) = self.cgroup.clone() {
            for pid in members::processes(&group).unwrap_or_default() {
                if !self.processes.contains_key(&pid) && !self.strangers.contains(&pid) && self.adopt(pid).is_err() {
                    self.strangers.insert(pid);
                }
            }
        }
        let mut children = Vec::new();
        for pid in self.processes.keys().copied().collect::<Vec<_>>() {
            match self.threads_of(pid) {
                None => self.gone(pid),
                Some(tids) if self.options.children => {
                    let made = tids.iter().flat_map(|&tid| tasks::children(pid, tid).unwrap_or_default());
                    children.extend(made.map(|child| (pid, child)));
                }
                Some(_) => {}
            }
        }
        children.extend(self.orphans());
        children.retain(|(_, child)| !self.processes.contains_key(child) && !self.strangers.contains(child));
        for (parent, child) in children {
            if !self.inherit(parent, child) {
                self.strangers.insert(child);
            }
        }
        // A number that is free may be given to somebody else.
        if !self.strangers.is_empty() && self.said.looks.is_multiple_of(64) {
            self.strangers.retain(|&pid| tasks::stat(pid).is_ok());
        }
    }

    fn gone(&mut self, pid: i32) {
        self.processes.remove(&pid);
        let ended: Vec<i32> =
            self.threads.iter().filter(|(_, thread)| thread.process == pid).map(|(&tid, _)| tid).collect();
        ended.into_iter().for_each(|tid| self.forget(tid));
    }

    fn forget(&mut self, tid: i32) {
        self.threads.remove(&tid);
        self.house.remove(tid);
    }

    /// The threads of a process, new ones taken in and ended ones forgotten; none where it has ended.
    fn threads_of(&mut self, pid: i32) -> Option<Vec<i32>> {
        let tids = tasks::threads(pid).ok()?;
        // A zombie's thread is still listed.
        if tids.len() == 1 && tasks::stat(pid).map_or(true, |stat| stat.state == 'Z' || self.reused(pid, stat.id.start))
        {
            return None;
        }
        let ended: Vec<i32> = self
            .threads
            .iter()
            .filter(|(tid, thread)| thread.process == pid && !tids.contains(tid))
            .map(|(&tid, _)| tid)
            .collect();
        ended.into_iter().for_each(|tid| self.forget(tid));
        for &tid in &tids {
            if !self.threads.contains_key(&tid) {
                self.take_in(pid, tid);
            }
        }
        Some(tids)
    }

    fn reused(&self, pid: i32, start: u64) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.start != start)
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
        self.processes.insert(child, Process { start: stat.id.start, groups });
        self.said.processes += 1;
        // So that it is found if this keeper is killed and its maker has ended.
        let _ = self.note(group, child);
        self.threads_of(child);
        self.follow_home(child);
        true
    }

    /// Processes whose parent has ended before it was seen as theirs: given to this process, where it asked for them.
    fn orphans(&self) -> Vec<(i32, i32)> {
        let Some(except) = &self.orphans_except else { return Vec::new() };
        let me = std::process::id().cast_signed();
        let mine = tasks::threads(me).unwrap_or_default();
        let children = mine.into_iter().flat_map(|tid| tasks::children(me, tid).unwrap_or_default());
        children.filter(|child| !except.contains(child)).map(|child| (me, child)).collect()
    }

    /// An orphan that has ended has nobody else to wait for it.
    fn reap(&self, parent: i32, child: i32) {
        let mine = parent == std::process::id().cast_signed();
        if let Some(pid) = rustix::process::Pid::from_raw(child).filter(|_| mine) {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
        }
    }

    /// What each kept thread did since the last look, as parts of the time. Who set its own mask is left in peace here.
    fn samples(&mut self, passed: Duration) -> BTreeMap<i32, Sample> {
        let mut samples = BTreeMap::new();
        let tids: Vec<i32> = self.threads.keys().copied().collect();
        for tid in tids {
            match self.sample(tid, passed.as_nanos() as f64) {
                Ok(Some(sample)) => drop(samples.insert(tid, sample)),
                Ok(None) => {}
                Err(error) if is_gone(&error) => self.forget(tid),
                Err(_) => {}
            }
        }
        samples
    }

    fn sample(&mut self, tid: i32, passed_ns: f64) -> io::Result<Option<Sample>> {
        let Some(Thread { process, group: Some(group), before }) = self.threads.get(&tid) else { return Ok(None) };
        let (process, masks, before) = (*process, &self.groups[*group], *before);
        let Some(place) = self.house.place(tid) else { return Ok(None) };
        let mask = affinity::get(tid)?;
        let ours = match place {
            Place::Home => masks.is_narrow(&mask),
            Place::Anywhere => masks.is_own(&mask),
        };
        if !ours {
            self.leave_in_peace(tid, process, mask);
            return Ok(None);
        }
        let (run, wait) = tasks::run_and_wait(tid)?;
        let away = place == Place::Anywhere && !self.home.contains(tasks::stat(tid)?.cpu);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.before = Some((run, wait));
        }
        let part = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed_ns;
        Ok(before.map(|(run_before, wait_before)| Sample {
            ran: part(run, run_before),
            waited: part(wait, wait_before),
            away,
        }))
    }

    fn carry_out(&mut self, tid: i32, decision: Decision) {
        let Some(Thread { process, group: Some(group), .. }) = self.threads.get(&tid) else { return };
        let (process, masks) = (*process, self.groups[*group].clone());
        // A moment ago it had the mask we gave it; what is set in this moment is not seen.
        let done = match decision {
            Decision::Widen => masks.give_back(tid),
            Decision::Narrow => affinity::set(tid, &masks.narrow),
        };
        match (done, decision) {
            (Ok(()), Decision::Widen) => self.said.widened += 1,
            (Ok(()), Decision::Narrow) => {
                self.said.narrowed += 1;
                self.follow_home(process);
            }
            (Err(error), _) if is_gone(&error) => self.forget(tid),
            // Its cpuset has changed under it, or it belongs to somebody else now.
            (Err(_), _) => {
                let cpus = affinity::get(tid).unwrap_or_default();
                self.leave_in_peace(tid, process, cpus);
            }
        }
    }
}
