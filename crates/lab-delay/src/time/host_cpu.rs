// SPDX-License-Identifier: GPL-2.0-or-later
//! One CPU of the host for all threads that take turns: only one of them runs at a time, and to wake one on another CPU takes the
//! host longer than a turn.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Words of a set of CPUs: Linux has at most 8192.
const WORDS: usize = 8192 / libc::c_ulong::BITS as usize;
const NONE: i32 = -1;

/// The CPUs of a thread (sched_setaffinity(2)).
type Cpus = [libc::c_ulong; WORDS];

/// Where the threads of a guest run.
#[derive(Debug)]
pub struct HostCpu {
    /// The CPU that they share; [`NONE`] outside of simulated time.
    shared: AtomicI32,
    /// Where they run otherwise.
    own: OnceLock<Box<Cpus>>,
}

impl HostCpu {
    pub fn new() -> Self {
        Self {
            shared: AtomicI32::new(NONE),
            own: OnceLock::new(),
        }
    }

    /// From now on these threads, and each that [`Self::join`]s, share the CPU that the calling one runs on.
    pub fn share(&self, threads: impl Iterator<Item = i32>) {
        self.own.get_or_init(|| Box::new(cpus_of_this_thread()));
        // SAFETY: asks for a number.
        self.shared.store(unsafe { libc::sched_getcpu() }, Relaxed);
        threads.for_each(|thread| self.confine(thread));
    }

    /// These threads run where they did before.
    pub fn release(&self, threads: impl Iterator<Item = i32>) {
        self.shared.store(NONE, Relaxed);
        if let Some(own) = self.own.get() {
            threads.for_each(|thread| set(thread, own));
        }
    }

    /// The calling thread is one more.
    pub fn join(&self) {
        self.confine(0);
    }

    fn confine(&self, thread: i32) {
        if let Ok(cpu) = usize::try_from(self.shared.load(Relaxed)) {
            let mut cpus: Cpus = [0; WORDS];
            let bits = libc::c_ulong::BITS as usize;
            if let Some(word) = cpus.get_mut(cpu / bits) {
                *word = 1 << (cpu % bits);
                set(thread, &cpus);
            }
        }
    }
}

/// All, where the kernel does not say.
fn cpus_of_this_thread() -> Cpus {
    let mut cpus = [0; WORDS];
    // SAFETY: the kernel writes at most as many bytes as the array has.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of::<Cpus>(),
            cpus.as_mut_ptr(),
        )
    };
    match written > 0 {
        true => cpus,
        false => [libc::c_ulong::MAX; WORDS],
    }
}

/// A thread that is gone, or may not be moved, is none the worse for it: turns only take longer.
fn set(thread: i32, cpus: &Cpus) {
    // SAFETY: the kernel reads as many bytes as the array has.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            size_of::<Cpus>(),
            cpus.as_ptr(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_cpu_and_are_released_to_where_they_were() {
        let before = cpus_of_this_thread();
        let count = |cpus: &Cpus| cpus.iter().map(|word| word.count_ones()).sum::<u32>();
        let host = HostCpu::new();
        host.join();
        assert_eq!(cpus_of_this_thread(), before, "nothing is shared yet");
        host.share([0].into_iter());
        let shared = cpus_of_this_thread();
        assert_eq!(count(&shared), 1);
        std::thread::scope(|scope| {
            let joined = scope.spawn(|| {
                set(0, &before);
                host.join();
                cpus_of_this_thread()
            });
            assert_eq!(joined.join().unwrap(), shared);
        });
        host.release([0].into_iter());
        assert_eq!(cpus_of_this_thread(), before);
    }
}
