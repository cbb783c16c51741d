//! The CPUs that a thread may run on: sched_getaffinity(2) and sched_setaffinity(2).
//!
//! By raw system calls: the sets of libc and rustix end at CPU 1023, machines do not.

use std::io;

use nearfar_machine::{CpuId, CpuSet, MAX_NUMBER};

const WORD_BITS: u32 = libc::c_ulong::BITS;

/// The CPUs a thread may run on: what it was allowed by sched_setaffinity(2) or its creator, its cpuset, and the CPUs that
/// are online. 0 is the calling thread.
///
/// # Errors
/// `ESRCH` where there is no such thread.
pub fn get(tid: i32) -> io::Result<CpuSet> {
    Ok(cpus_of(Asker::default().ask(tid)?))
}

/// Asks for the CPUs of many threads, many times.
#[derive(Debug)]
pub struct Asker {
    words: Vec<libc::c_ulong>,
}

impl Default for Asker {
    fn default() -> Self {
        Self {
            words: vec![0; (MAX_NUMBER / WORD_BITS) as usize + 1],
        }
    }
}

impl Asker {
    /// As [`get`], as the kernel gives it: a bit for each CPU ([`cpus_of`]). Two threads with the same CPUs get the same words.
    ///
    /// # Errors
    /// As [`get`].
    pub fn ask(&mut self, tid: i32) -> io::Result<&[libc::c_ulong]> {
        let words = &mut self.words;
        // SAFETY: the kernel writes at most as many bytes as the argument says.
        let written = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                tid,
                std::mem::size_of_val(&words[..]),
                words.as_mut_ptr(),
            )
        };
        if written < 0 {
            return Err(io::Error::last_os_error());
        }
        // The kernel says how much it wrote.
        let size = usize::try_from(written).unwrap_or(0) / size_of::<libc::c_ulong>();
        Ok(&words[..size.min(words.len())])
    }
}

/// The CPUs whose bits are set.
pub fn cpus_of(words: &[libc::c_ulong]) -> CpuSet {
    let some = (0..).zip(words).filter(|(_, word)| **word != 0);
    let cpus = some.flat_map(|(index, &word)| {
        (0..WORD_BITS)
            .filter(move |bit| word >> bit & 1 == 1)
            .map(move |bit| CpuId(index * WORD_BITS + bit))
    });
    cpus.collect()
}

/// Lets a thread run on these CPUs and no others. 0 is the calling thread.
///
/// # Errors
/// `ESRCH` where there is no such thread, `EPERM` where it belongs to another user, `EINVAL` where none of the CPUs is in its
/// cpuset and online.
pub fn set(tid: i32, cpus: &CpuSet) -> io::Result<()> {
    set_words(tid, &Confinement::to(cpus).0)
}

/// CPUs in the form the kernel takes: setting them takes no memory, so it may stand between fork and exec.
#[derive(Clone, Debug)]
pub struct Confinement(Vec<libc::c_ulong>);

impl Confinement {
    /// To these CPUs.
    pub fn to(cpus: &CpuSet) -> Self {
        let last = cpus.last().map_or(0, |cpu| cpu.0);
        let mut words: Vec<libc::c_ulong> = vec![0; (last / WORD_BITS) as usize + 1];
        for cpu in cpus.iter() {
            words[(cpu.0 / WORD_BITS) as usize] |= 1 << (cpu.0 % WORD_BITS);
        }
        Self(words)
    }

    /// Of the calling thread.
    ///
    /// # Errors
    /// As [`set`].
    pub fn calling_thread(&self) -> io::Result<()> {
        set_words(0, &self.0)
    }
}

/// Lets a thread run on all CPUs of its cpuset, also on those that come online later, as a thread that never set a mask.
///
/// # Errors
/// As [`set`].
pub fn unconfine(tid: i32) -> io::Result<()> {
    // The kernel takes as many bits as it has CPUs, and what its cpuset has of them (kernel/sched/syscalls.c).
    set_words(
        tid,
        &vec![libc::c_ulong::MAX; (MAX_NUMBER / WORD_BITS) as usize + 1],
    )
}

/// Lets the calling thread run on those of these CPUs that are online and in its cpuset, and verifies that it does.
///
/// # Errors
/// `EINVAL` where none of them is online and in the cpuset; an error without a number where the thread still runs elsewhere: a
/// sandbox may report success and do nothing.
pub fn run_on(cpus: &CpuSet) -> io::Result<()> {
    set(0, cpus)?;
    match u32::try_from(rustix::thread::sched_getcpu()).is_ok_and(|cpu| cpus.contains(CpuId(cpu))) {
        true => Ok(()),
        false => Err(io::Error::other(
            "the thread runs on another CPU than it was set to",
        )),
    }
}

/// As [`run_on`], with one CPU.
///
/// # Errors
/// As [`run_on`].
pub fn pin(cpu: CpuId) -> io::Result<()> {
    run_on(&CpuSet::single(cpu))
}

fn set_words(tid: i32, words: &[libc::c_ulong]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the buffer has.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            std::mem::size_of_val(words),
            words.as_ptr(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_confined_to_each_cpu_it_may_use() {
        std::thread::spawn(|| {
            for cpu in get(0).unwrap().iter() {
                pin(cpu).unwrap();
                assert_eq!(get(0).unwrap(), CpuSet::single(cpu));
                unconfine(0).unwrap();
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        assert!(pin(CpuId(MAX_NUMBER)).is_err());
    }
}
