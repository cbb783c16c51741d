//! One look: which threads have ended, set their own mask, or wait; and what follows from it.
//!
//! Of a thread that is on the preferred node and runs it costs two system calls, of one that sleeps one.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use nearfar_machine::CpuSet;
use nearfar_proc::affinity;
use nearfar_proc::tasks::is_gone;

use super::threads::{Thread, ThreadMasks};
use crate::rule::{Decision, Place, Sample};

/// Every so many looks also what gives no sign of a change is looked at.
pub(super) const THOROUGH: u64 = 64;

impl ThreadMasks {
    /// What each kept thread did since the last look, as parts of the time. One that set its own mask is skipped here.
    pub(super) fn samples(&mut self, passed: Duration) -> BTreeMap<i32, Sample> {
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

    pub(super) fn carry_out(&mut self, tid: i32, decision: Decision) {
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
