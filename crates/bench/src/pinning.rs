//! Which CPUs the calling thread may run on, asked and set.
//!
//! By raw system calls: the sets of libc and rustix end at CPU 1023, machines do not.

use std::io;

use nearfar_machine::{CpuId, CpuSet, MAX_NUMBER};

const WORD_BITS: u32 = libc::c_ulong::BITS;

/// The CPUs the calling thread may run on.
pub(crate) fn allowed() -> io::Result<CpuSet> {
    let mut words: Vec<libc::c_ulong> = vec![0; (MAX_NUMBER / WORD_BITS) as usize + 1];
    let this_thread: libc::pid_t = 0;
    // SAFETY: the kernel writes at most as many bytes as it is told the buffer has.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            this_thread,
            std::mem::size_of_val(&words[..]),
            words.as_mut_ptr(),
        )
    };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    let cpus = (0..).zip(&words).flat_map(|(index, &word)| {
        (0..WORD_BITS)
            .filter(move |bit| word >> bit & 1 == 1)
            .map(move |bit| CpuId(index * WORD_BITS + bit))
    });
    Ok(cpus.collect())
}

/// Confines the calling thread to one CPU; the thread runs there when this returns, which is verified.
pub(crate) fn pin(cpu: CpuId) -> io::Result<()> {
    confine(&CpuSet::single(cpu))
}

/// Confines the calling thread to those of these CPUs that are online; it runs on one of them when this returns, which
/// is verified. The kernel refuses with EINVAL when none of them is online and in the cpuset.
pub(crate) fn confine(cpus: &CpuSet) -> io::Result<()> {
    let last = cpus.last().map_or(0, |cpu| cpu.0);
    let mut words: Vec<libc::c_ulong> = vec![0; (last / WORD_BITS) as usize + 1];
    for cpu in cpus.iter() {
        words[(cpu.0 / WORD_BITS) as usize] |= 1 << (cpu.0 % WORD_BITS);
    }
    let this_thread: libc::pid_t = 0;
    // SAFETY: the kernel reads as many bytes as the buffer has.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            this_thread,
            std::mem::size_of_val(&words[..]),
            words.as_ptr(),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // A sandbox may pretend to have done what it was asked.
    match u32::try_from(rustix::thread::sched_getcpu()).is_ok_and(|cpu| cpus.contains(CpuId(cpu))) {
        true => Ok(()),
        false => Err(io::Error::other(
            "the thread does not run where it was pinned to",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_confined_to_each_cpu_it_may_use() {
        for cpu in allowed().unwrap().iter() {
            pin(cpu).unwrap();
            assert_eq!(allowed().unwrap(), CpuSet::single(cpu));
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        assert!(pin(CpuId(MAX_NUMBER)).is_err());
    }
}
