//! One look: who went, who set its own mask, who waits; and what follows from it.
//!
//! Of a thread that is on the preferred node and runs it costs two system calls, of one that sleeps one.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use nearfar_machine::CpuSet;
use nearfar_proc::affinity;
use nearfar_proc::tasks::is_gone;

use super::kept::{Kept, Thread};
use super::pace::Load;
use crate::rule::{Decision, Look, Place, Sample, offer};

/// Every so many looks also what gives no sign of a change is looked at.
pub(super) const THOROUGH: u64 = 64;

impl Kept {
    /// Looks, decides, does. What cannot be read is gone or will be read the next time.
    pub(super) fn look(&mut self) -> Load {
        let now = Instant::now();
        let passed = now
            .duration_since(self.last_look)
            .max(Duration::from_millis(1));
        self.last_look = now;
        // Before anybody is looked at: who is made later is found by the next look.
        let forks = self.forks.any();
        self.observe();
        self.rehome();
        let samples = self.samples(passed);
        let known = self.counts.threads;
        self.newcomers(forks);
        let load = match (
            self.controller.is_contended(&samples),
            self.controller.has_released(),
        ) {
            (true, _) => Load::Contended,
            (false, true) => Load::Spilled,
            (false, false) => Load::Idle,
        };
        let offer = if load == Load::Idle && known == self.counts.threads {
            // What was idle before now says nothing of the time in which it will matter: when somebody waits, or may at
            // the next look because somebody is new.
            self.idle.begin_anew();
            None
        } else {
            self.idle.since_last(&self.home).map(offer)
        };
        let look = Look {
            now: now.duration_since(self.begun),
            offer,
            samples,
        };
        for (tid, decision) in self.controller.step(&look) {
            self.carry_out(tid, decision);
        }
        self.tidy();
        self.counts.looks += 1;
        load
    }

    /// What each kept thread did since the last look, as parts of the time. Who set its own mask is skipped here.
    fn samples(&mut self, passed: Duration) -> BTreeMap<i32, Sample> {
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
        // Its end is the last thing a process does: who has come to rest may be waited for by its parent.
        if was_moving && !ran && tid == process && self.has_ended(process) {
            self.gone(process);
            return Ok(None);
        }
        let Some(place) = self.controller.place(tid) else {
            return Ok(None);
        };
        // Who sleeps sets nothing; what others set for it is found when it runs, or in some seconds.
        let check = ran || self.counts.looks.is_multiple_of(THOROUGH / 4);
        if check && let Some(mask) = self.foreign_mask(tid, group, place)? {
            self.skip(tid, process, mask);
            return Ok(None);
        }
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(None);
        };
        let is_away = |cpu| !self.home.contains(cpu);
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
        let words = self.asker.ask(tid)?;
        let at_home = place == Place::Home;
        let seen = self
            .threads
            .get(&tid)
            .and_then(|thread| thread.seen.as_ref());
        if self
            .ours
            .get(&(group, at_home))
            .is_some_and(|known| known == words)
            || seen.is_some_and(|(seen_at_home, seen)| *seen_at_home == at_home && seen == words)
        {
            return Ok(None);
        }
        let (mask, words) = (affinity::cpus_of(words), words.to_vec());
        let masks = &self.groups[group];
        let requested = if at_home { &masks.narrow } else { &masks.own };
        if mask == requested.intersection(self.cpusets.online()) {
            self.ours.insert((group, at_home), words);
            return Ok(None);
        }
        // Its cpuset or the CPUs that are online may have changed.
        self.cpusets.refresh();
        let ours = match at_home {
            true => masks.is_narrow(tid, &mask, &mut self.cpusets),
            false => masks.is_own(tid, &mask, &mut self.cpusets),
        };
        if ours {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.seen = Some((at_home, words));
            }
            return Ok(None);
        }
        if self.is_overwritten(tid, &mask) {
            return Ok(None);
        }
        Ok(Some(mask))
    }

    /// Before Linux 6.2, a change of a cpuset replaces the masks of its tasks by its CPUs. Such a thread has no mask of its own
    /// any more, with or without a keeper, and is kept as one that asked for none.
    fn is_overwritten(&mut self, tid: i32, mask: &CpuSet) -> bool {
        if self.cpusets.keeps_requests() {
            return false;
        }
        let allowed = self.cpusets.allowed(tid);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return false;
        };
        let changed = allowed.is_some() && thread.cpuset != allowed;
        if !changed
            || allowed
                .map(|allowed| allowed.intersection(self.cpusets.online()))
                .as_ref()
                != Some(mask)
        {
            return false;
        }
        let process = thread.process;
        let Some(group) = self.group_of(tid, mask) else {
            return false;
        };
        if !self
            .note(group, &[(process, tid)])
            .is_ok_and(|noted| !noted.is_empty())
        {
            return false;
        }
        let home = !self.groups[group].confines()
            || affinity::set(tid, &self.groups[group].narrow).is_ok();
        self.keep(
            process,
            tid,
            group,
            if home { Place::Home } else { Place::Anywhere },
        );
        true
    }

    fn carry_out(&mut self, tid: i32, decision: Decision) {
        let Some(Thread {
            process,
            group: Some(group),
            ..
        }) = self.threads.get(&tid)
        else {
            return;
        };
        let (process, group) = (*process, *group);
        let masks = self.groups[group].clone();
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
            // It belongs to somebody else now.
            (Err(_), _) => {
                let cpus = affinity::get(tid).unwrap_or_default();
                self.skip(tid, process, cpus);
            }
        }
    }
}
