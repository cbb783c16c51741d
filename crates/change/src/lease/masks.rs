//! Threads that are confined for a while, and how the lease describes them.
//!
//! A thread is on record by number and start. What it makes from then on inherits its mask and is on record as soon as the
//! owner of the lease sees it; what the owner has not seen is found by [`crate::lease::descendants`].

use std::io;

use nearfar_machine::CpuSet;
use serde::{Deserialize, Serialize};

use nearfar_proc::affinity;
use nearfar_proc::cpuset::Cpusets;
use nearfar_proc::{TaskId, tasks};

/// Threads whose mask is `own` and is confined to `narrow` for a while.
///
/// Where both are the same, nothing is changed and nothing is given back: a later record of a thread decides, so this also
/// ends the confinement of a thread that has set its affinity itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Masks {
    /// What the program asked for.
    pub own: CpuSet,
    /// What it gets for a while, as requested from the kernel: a cpuset may allow less.
    pub narrow: CpuSet,
    /// Whether the program asked for no CPUs: it had all that are online or all that its cpuset allows. It gets all possible
    /// CPUs back, and follows when its cpuset changes or CPUs come online.
    pub unconfined: bool,
    /// The threads that are on record; what they make from then on belongs to them.
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
    /// When it was put on record, in clock ticks since boot: what it made earlier did not inherit the confinement. 0 in journals
    /// of versions that did not note it.
    #[serde(default)]
    pub since: u64,
    /// Whether every process of its session was confined by this lease then, so that whatever the session makes later
    /// descends from confined threads.
    #[serde(default)]
    pub whole_session: bool,
}

impl Member {
    /// A thread by number, from now on.
    ///
    /// # Errors
    /// When there is none, or /proc does not show it ([`tasks::is_gone`] tells the two apart).
    pub fn find(tid: i32) -> io::Result<Self> {
        Self::of(tasks::process_of(tid)?, tid)
    }

    /// A thread of a process, from now on.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn of(process: i32, tid: i32) -> io::Result<Self> {
        let stat = tasks::stat_of(process, tid)?;
        let since = nearfar_proc::system::ticks_since_boot();
        Ok(Self {
            task: stat.id,
            process,
            session: stat.session,
            since,
            whole_session: false,
        })
    }
}

impl Masks {
    /// These threads asked for CPUs `own`, and may run on `narrow`.
    pub fn new(own: CpuSet, narrow: CpuSet, members: Vec<Member>) -> Self {
        Self {
            own,
            narrow,
            unconfined: false,
            members,
        }
    }

    /// These threads asked for no CPUs, and may run on `narrow`.
    pub fn unconfined(cpusets: &Cpusets, narrow: CpuSet, members: Vec<Member>) -> Self {
        Self {
            own: cpusets.possible().clone(),
            narrow,
            unconfined: true,
            members,
        }
    }

    /// Whether it changes anything.
    pub fn confines(&self) -> bool {
        self.own != self.narrow
    }

    /// Whether a thread with this mask has what was requested by us.
    pub fn is_narrow(&self, tid: i32, mask: &CpuSet, cpusets: &mut Cpusets) -> bool {
        is_made_of(&self.narrow, tid, mask, cpusets)
    }

    /// Whether a thread with this mask has what its program asked for.
    pub fn is_own(&self, tid: i32, mask: &CpuSet, cpusets: &mut Cpusets) -> bool {
        match self.unconfined {
            true => cpusets.asked_for_none(tid, mask),
            false => is_made_of(&self.own, tid, mask, cpusets),
        }
    }

    /// Gives a thread what its program asked for.
    ///
    /// # Errors
    /// When the thread is gone, or is another user's now.
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

/// Whether a mask is what the kernel makes of a requested one: the CPUs of it that are online or, in a cpuset that lacks some of
/// them, what [`Cpusets::effective`] says.
fn is_made_of(requested: &CpuSet, tid: i32, mask: &CpuSet, cpusets: &mut Cpusets) -> bool {
    if mask == requested || *mask == requested.intersection(cpusets.online()) {
        return true;
    }
    // Only a part of the requested CPUs or, where none of them is allowed, none.
    if !mask.is_subset(requested) && mask.intersects(requested) {
        return false;
    }
    cpusets
        .allowed(tid)
        .is_some_and(|allowed| cpusets.effective(requested, &allowed) == *mask)
}
