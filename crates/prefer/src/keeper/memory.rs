//! Memory of who is kept: its policy where it is asked for, its pages where they are to follow.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nearfar_machine::{NodeId, NodeSet};

use super::report::MovedMemory;

const WORD_BITS: u32 = libc::c_ulong::BITS;

/// A memory policy of a process, inherited by what it makes and kept over exec (set_mempolicy(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPolicy {
    /// Of this node while it has some, then of the nearest.
    Preferred,
    /// Of this node only.
    Bind,
}

impl MemoryPolicy {
    /// Gives the calling thread this policy. `words` are of [`words`]; calls nothing but the kernel, so that it may stand
    /// between fork and exec.
    pub(super) fn set(self, words: &[libc::c_ulong]) -> io::Result<()> {
        let mode = match self {
            Self::Preferred => libc::MPOL_PREFERRED,
            Self::Bind => libc::MPOL_BIND,
        };
        // SAFETY: the kernel reads as many bits as it is told, which the slice has; it takes one bit less than it is told
        // (get_nodes in mm/mempolicy.c).
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, words.as_ptr(), bits(words)) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A set of nodes as the kernel takes it, with a bit to spare.
pub(super) fn words(nodes: &NodeSet) -> Vec<libc::c_ulong> {
    let last = nodes.last().map_or(0, |node| node.0);
    let mut words = vec![0; (last / WORD_BITS) as usize + 2];
    for node in nodes.iter() {
        words[(node.0 / WORD_BITS) as usize] |= 1 << (node.0 % WORD_BITS);
    }
    words
}

fn bits(words: &[libc::c_ulong]) -> libc::c_ulong {
    words.len() as libc::c_ulong * libc::c_ulong::from(WORD_BITS)
}

/// Moves pages in a thread of its own: gigabytes take seconds.
pub(super) struct Mover {
    orders: Option<Sender<i32>>,
    moved: Arc<Mutex<MovedMemory>>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// Moves from these nodes to this one.
    pub(super) fn start(from: &NodeSet, to: NodeId) -> Self {
        let (orders, inbox) = mpsc::channel::<i32>();
        let moved = Arc::new(Mutex::new(MovedMemory::default()));
        let (from, to) = (words(from), words(&NodeSet::single(to)));
        let count = Arc::clone(&moved);
        let thread = std::thread::Builder::new().name("mover".to_owned()).spawn(move || {
            while let Ok(first) = inbox.recv() {
                // Whoever is asked for twice meanwhile is moved once.
                let mut pids: Vec<i32> = std::iter::once(first).chain(inbox.try_iter()).collect();
                pids.sort_unstable();
                pids.dedup();
                for pid in pids {
                    let answer = migrate(pid, &from, &to);
                    take(&mut count.lock().unwrap_or_else(PoisonError::into_inner), answer);
                }
            }
        });
        Self { orders: Some(orders), moved, thread: thread.ok() }
    }

    /// This process's pages are to follow it home.
    pub(super) fn follow(&self, pid: i32) {
        let _ = self.orders.as_ref().map(|orders| orders.send(pid));
    }

    pub(super) fn moved(&self) -> MovedMemory {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Moves what it was asked for, to the end, and says all that was moved.
    pub(super) fn end(mut self) -> MovedMemory {
        self.finish();
        self.moved()
    }

    fn finish(&mut self) {
        drop(self.orders.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.finish();
    }
}

fn take(moved: &mut MovedMemory, answer: io::Result<u64>) {
    match answer {
        Ok(left) => {
            moved.moves += 1;
            moved.pages_left += left;
        }
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
        Err(error) => moved.refused = Some(error.to_string()),
    }
}

/// Says how many pages could not be moved. Pages that other processes map as well stay (MPOL_MF_MOVE).
fn migrate(pid: i32, from: &[libc::c_ulong], to: &[libc::c_ulong]) -> io::Result<u64> {
    let shortest = from.len().max(to.len());
    let padded = |words: &[libc::c_ulong]| {
        let mut words = words.to_vec();
        words.resize(shortest, 0);
        words
    };
    let (from, to) = (padded(from), padded(to));
    // SAFETY: the kernel reads as many bits of both as it is told, which both have.
    let left = unsafe { libc::syscall(libc::SYS_migrate_pages, pid, bits(&from), from.as_ptr(), to.as_ptr()) };
    u64::try_from(left).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_that_is_under_way_at_the_end_is_counted() {
        let node = NodeId(0);
        let mover = Mover::start(&NodeSet::single(node), node);
        mover.follow(std::process::id().cast_signed());
        let moved = mover.end();
        // Some containers and kernels refuse.
        assert!(moved.moves == 1 || moved.refused.is_some(), "{moved:?}");
    }
}
