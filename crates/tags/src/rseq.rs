//! Restartable sequences: a few instructions that the kernel sends back to their start when the thread is preempted, migrated or
//! handles a signal before the last of them, so that they need no lock and no atomic instruction for the data of their CPU.
//!
//! The C library (glibc 2.35) registers each thread's area with the kernel (Linux 4.18) and exports where it is. Without it, without
//! the kernel's `membarrier` for such sequences (Linux 5.10), or on another architecture there is no [`Rseq`].
//!
//! Where the kernel does not restart the sequences of other threads, [`visit`] preempts them.
//!
//! A sequence names its descriptor in the thread's area: first instruction, length, and where to go on when it is interrupted. It
//! stays named until the next one; a library that is unloaded while its threads live on would have to clear it.

use std::sync::atomic::{AtomicIsize, Ordering};

#[cfg_attr(
    all(
        target_os = "linux",
        target_env = "gnu",
        target_endian = "little",
        target_pointer_width = "64",
        not(miri)
    ),
    cfg_attr(target_arch = "x86_64", path = "rseq/x86_64.rs"),
    cfg_attr(target_arch = "aarch64", path = "rseq/aarch64.rs")
)]
// On other platforms the file of this name, which has none.
mod sequences;

pub(crate) use sequences::{pop, pop_some, push, push_some, sight};

const QUERY: libc::c_int = 0;
const PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;
const REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;
/// Calls of membarrier until it counts as refused.
pub(crate) const TRIES: u32 = 64;
/// Bytes of the area up to and with `rseq_cs`.
const MIN_SIZE: u32 = 16;

/// Instead of a tag, or of a number of tags: there is none.
pub(crate) const NONE: u32 = u32::MAX;

/// Offset of the area, once the system was asked.
static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);
const UNKNOWN: isize = isize::MIN;
const ABSENT: isize = isize::MIN + 1;

/// Restartable sequences are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rseq {
    /// From the thread pointer to the thread's area.
    pub(crate) offset: isize,
}

impl Rseq {
    /// `None` where the kernel, the C library or the process's limits do not offer them. Asks once, or several threads do at the same
    /// time: a lock that one holds while another one forks is never released in the child.
    pub(crate) fn probe() -> Option<Self> {
        let mut offset = OFFSET.load(Ordering::Acquire);
        if offset == UNKNOWN {
            offset = Self::ask().unwrap_or(ABSENT);
            OFFSET.store(offset, Ordering::Release);
        }
        (offset != ABSENT).then_some(Self { offset })
    }

    /// The offset of the area, once the process may restart sequences.
    fn ask() -> Option<isize> {
        let (offset, size) = sequences::symbols();
        // SAFETY: where glibc has them, they are constants of these types, set before main.
        let (offset, size) = unsafe { (*offset.as_ref()?, *size.as_ref()?) };
        let commands = membarrier(QUERY)?;
        let has_command = commands & i64::from(PRIVATE_EXPEDITED_RSEQ) != 0;
        (size >= MIN_SIZE && has_command).then_some(())?;
        membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ)?;
        Some(offset)
    }

    /// The CPU that runs this thread, or a number that is none (above all CPUs) where the thread has no area.
    #[inline]
    pub(crate) fn cpu(self) -> u32 {
        // SAFETY: `probe` found the area's offset, which holds for each thread of the process.
        unsafe { sequences::cpu(self.offset) }
    }

    /// On true, each sequence of this process that began before has ended or starts again, and what it wrote is visible. False if the
    /// kernel refuses, which it may from now on in the calling thread: a seccomp filter can be installed at any time. Allocators that
    /// are made later have no caches then.
    pub(crate) fn restart_all(self, tries: u32) -> bool {
        for _ in 0..tries {
            if membarrier(PRIVATE_EXPEDITED_RSEQ).is_some() {
                return true;
            }
            // The kernel may be short of memory for a moment; a child of fork may have to register again.
            membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ);
            std::thread::yield_now();
        }
        OFFSET.store(ABSENT, Ordering::Release);
        false
    }
}

/// `None` if the kernel refuses.
fn membarrier(command: libc::c_int) -> Option<i64> {
    // SAFETY: membarrier takes integers and writes no memory of the process.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    (answer >= 0).then_some(answer)
}

/// CPU numbers of a mask: as many as there can be caches.
const MAX_CPUS: usize = 1 << 16;

type Mask = [u64; MAX_CPUS / 64];

/// Calls `run` on each of these CPUs that the thread may run on, then lets the thread run where it was allowed before. Nothing else
/// may set the thread's affinity meanwhile, or that is undone. Does nothing where the system refuses. Async-signal-safe, on a stack
/// with 32 KiB to spare.
pub(crate) fn visit(cpus: impl Iterator<Item = usize>, mut run: impl FnMut()) {
    let Some(before) = get_affinity() else { return };
    let mut mask: Mask = [0; MAX_CPUS / 64];
    for cpu in cpus.filter(|cpu| *cpu < MAX_CPUS) {
        mask[cpu / 64] = 1 << (cpu % 64);
        if set_affinity(&mask) {
            run();
        }
        mask[cpu / 64] = 0;
    }
    if !set_affinity(&before) {
        // Its CPUs have changed meanwhile: as many as the system allows are better than one.
        set_affinity(&[u64::MAX; MAX_CPUS / 64]);
    }
}

fn get_affinity() -> Option<Mask> {
    let mut mask: Mask = [0; MAX_CPUS / 64];
    let size = size_of_val(&mask);
    // SAFETY: the kernel writes at most `size` bytes to `mask`, of which each value is valid.
    let written = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size, mask.as_mut_ptr()) };
    (written > 0).then_some(mask)
}

/// On success the thread runs on one of the mask's CPUs.
fn set_affinity(mask: &Mask) -> bool {
    let size = size_of_val(mask);
    // SAFETY: the kernel reads the bytes of `mask`, which outlives the call.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size, mask.as_ptr()) == 0 }
}
