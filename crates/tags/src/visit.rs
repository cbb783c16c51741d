//! Runs the calling thread on one CPU after another. Async-signal-safe, on a stack with 32 KiB to spare.

/// CPU numbers of a mask: as many as there can be caches.
const MAX_CPUS: usize = 1 << 16;

type Mask = [u64; MAX_CPUS / 64];

/// Calls `run` on each of these CPUs that the thread may run on, then lets the thread run where it was allowed before. Nothing else
/// may set the thread's affinity meanwhile, or that is undone. Does nothing where the system refuses.
pub(crate) fn each(cpus: impl Iterator<Item = usize>, mut run: impl FnMut()) {
    let Some(before) = affinity() else { return };
    let mut mask: Mask = [0; MAX_CPUS / 64];
    for cpu in cpus.filter(|cpu| *cpu < MAX_CPUS) {
        mask[cpu / 64] = 1 << (cpu % 64);
        if set(&mask) {
            run();
        }
        mask[cpu / 64] = 0;
    }
    if !set(&before) {
        // Its CPUs have changed meanwhile: as many as the system allows are better than one.
        set(&[u64::MAX; MAX_CPUS / 64]);
    }
}

fn affinity() -> Option<Mask> {
    let mut mask: Mask = [0; MAX_CPUS / 64];
    let size = size_of_val(&mask);
    // SAFETY: the kernel writes at most `size` bytes to `mask`, of which each value is valid.
    let written = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size, mask.as_mut_ptr()) };
    (written > 0).then_some(mask)
}

/// On success the thread runs on one of the mask's CPUs.
fn set(mask: &Mask) -> bool {
    // SAFETY: the kernel reads the bytes of `mask`, which outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(mask),
            mask.as_ptr(),
        ) == 0
    }
}
