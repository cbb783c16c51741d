//! What the lease's journal says of kept threads: what undoes everything after a kill.

use std::collections::BTreeSet;

use nearfar_change::lease::{Lease, Masks, Member, whole_sessions};
use nearfar_machine::CpuSet;
use nearfar_proc::TaskId;
use nearfar_proc::tasks::is_gone;

use super::KeeperError;

/// Members below which a journal is not worth rewriting.
const MIN_MEMBERS_TO_REWRITE: usize = 4096;

pub(super) struct Record {
    lease: Lease,
    /// Members in the journal; far more than there are now means that it is to be rewritten.
    noted: usize,
    /// Sessions all of whose processes were kept when one was taken in.
    whole_sessions: BTreeSet<i32>,
}

impl Record {
    pub(super) fn new(lease: Lease) -> Self {
        Self {
            lease,
            noted: 0,
            whole_sessions: BTreeSet::new(),
        }
    }

    pub(super) fn is_guarded(&self) -> bool {
        self.lease.is_guarded()
    }

    /// Processes made earlier were not made by one that is kept; in clock ticks since boot.
    pub(super) fn since(&self) -> u64 {
        self.lease.since()
    }

    /// Which other lease confines a task, and what that is for.
    pub(super) fn confined_by(&self, task: TaskId) -> Option<(u32, String)> {
        self.lease.confined_by(task, task.tid)
    }

    /// Notes the sessions all of whose processes are among these.
    pub(super) fn note_sessions(&mut self, ours: &BTreeSet<i32>) {
        // Once it was so, whatever the session makes later descends from one that is kept.
        self.whole_sessions.extend(whole_sessions(ours));
    }

    fn member(&self, member: Member) -> Member {
        let whole_session = self.whole_sessions.contains(&member.session);
        Member {
            whole_session,
            ..member
        }
    }

    /// Puts threads (process, thread) on record, before their masks change. The answer: those that are there. A thread that has
    /// ended needs no record.
    ///
    /// # Errors
    /// When a thread that may be there cannot be identified, or the journal cannot be written: its mask must not be changed.
    pub(super) fn hold(
        &mut self,
        masks: &Masks,
        threads: &[(i32, i32)],
    ) -> Result<Vec<i32>, KeeperError> {
        let mut members = Vec::with_capacity(threads.len());
        for &(pid, tid) in threads {
            match Member::of(pid, tid) {
                Ok(member) => members.push(self.member(member)),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(KeeperError::of_process(pid, &error)),
            }
        }
        let tids = members.iter().map(|member| member.task.tid).collect();
        self.noted += members.len();
        if !members.is_empty() {
            self.lease.hold_masks(Masks {
                members,
                ..masks.clone()
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

    /// Whether most that the journal names have ended.
    pub(super) fn is_worth_rewriting(&self, threads: usize) -> bool {
        self.noted >= MIN_MEMBERS_TO_REWRITE && self.noted >= 4 * threads
    }

    /// Rewrites the journal with these groups, whose members are the threads that are there: each with its process, its masks
    /// as a place in `groups` or the one that it chose, and since when what it makes may have inherited them.
    pub(super) fn rewrite(
        &mut self,
        mut groups: Vec<Masks>,
        threads: impl Iterator<Item = (i32, i32, Result<usize, CpuSet>, Option<u64>)>,
    ) {
        let mut chosen: std::collections::HashMap<CpuSet, Vec<Member>> = Default::default();
        for (pid, tid, masks, since) in threads {
            let Ok(mut member) = Member::of(pid, tid).map(|member| self.member(member)) else {
                continue;
            };
            member.since = since.unwrap_or(member.since);
            match masks {
                Ok(group) => groups[group].members.push(member),
                Err(mask) => chosen.entry(mask).or_default().push(member),
            }
        }
        let chosen = chosen.into_iter();
        groups.extend(chosen.map(|(mask, members)| Masks::new(mask.clone(), mask, members)));
        self.noted = groups.iter().map(|group| group.members.len()).sum();
        // Where it cannot be written the old one remains in force.
        let _ = self.lease.rewrite_masks(groups);
    }

    /// Puts every mask back.
    ///
    /// # Errors
    /// When one could not be put back.
    pub(super) fn release(self) -> Result<(), KeeperError> {
        self.lease.release()?;
        Ok(())
    }
}
