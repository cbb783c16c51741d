//! Signals to threads at random moments. The handler takes a tag: it may interrupt the allocator anywhere.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nearfar_tags::Tags;

use crate::owners::{HANDLER, Owner, Owners};
use crate::system::{self, ThreadId};

/// What the handler works on.
pub struct Target {
    pub tags: Tags,
    pub owners: Owners,
    pub handled: AtomicU64,
}

static TARGET: AtomicPtr<Target> = AtomicPtr::new(null_mut());

thread_local! {
    /// What the handler may do in this thread.
    static MAY: Cell<May> = const { Cell::new(May::Nothing) };
    /// The tag + 1 that the handler took and the thread has to put; 0 for none.
    static TAKEN: AtomicU32 = const { AtomicU32::new(0) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum May {
    Nothing,
    /// `try_take`: the thread puts the tag. Where callers wait, `put` locks their queue, which a handler must not.
    Take,
    TakeAndPut,
}

extern "C" fn handler(_: libc::c_int) {
    // SAFETY: the target outlives the threads that are signalled.
    let Some(target) = (unsafe { TARGET.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    target.handled.fetch_add(1, Ordering::Relaxed);
    let may = MAY.get();
    if may == May::Nothing || may == May::Take && TAKEN.with(|tag| tag.load(Ordering::Relaxed)) != 0
    {
        return;
    }
    let Some(tag) = target.tags.try_take() else {
        return;
    };
    target.owners.claim(tag, HANDLER);
    if may == May::Take {
        TAKEN.with(|taken| taken.store(tag + 1, Ordering::Relaxed));
    } else {
        target.owners.release(tag, HANDLER);
        target.tags.put(tag);
    }
}

/// What the handler may do in the calling thread from now on.
pub fn allow(may: May) {
    MAY.set(may);
}

/// Puts the tag that the handler took in the calling thread.
pub fn put_taken(target: &Target, owner: Owner) {
    let taken = TAKEN.with(|tag| tag.swap(0, Ordering::Relaxed));
    if let Some(tag) = taken.checked_sub(1) {
        target.owners.pass(tag, HANDLER, owner);
        target.owners.release(tag, owner);
        target.tags.put(tag);
    }
}

/// The handler's work on a target; ends when it is dropped. One at a time in a process.
pub struct Storm<'a>(&'a Target);

impl<'a> Storm<'a> {
    pub fn new(target: &'a Target) -> Self {
        TARGET.store(std::ptr::from_ref(target).cast_mut(), Ordering::Release);
        // SAFETY: the handler calls atomics, thread-locals without a destructor, and functions of the allocator that are
        // async-signal-safe where `allow` lets it.
        unsafe { system::handle(libc::SIGUSR2, handler) };
        Self(target)
    }

    /// Signals one thread after another until `is_over`.
    pub fn send(&self, threads: &[AtomicU32], is_over: impl Fn() -> bool) {
        while !is_over() {
            for thread in threads {
                let id = thread.load(Ordering::Relaxed);
                if id != 0 {
                    ThreadId(id as libc::pid_t).signal(libc::SIGUSR2);
                }
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn handled(&self) -> u64 {
        self.0.handled.load(Ordering::Relaxed)
    }
}

impl Drop for Storm<'_> {
    fn drop(&mut self) {
        TARGET.store(null_mut(), Ordering::Release);
    }
}
