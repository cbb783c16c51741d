//! The CPUs that a thread may run on: sched_getaffinity(2) and sched_setaffinity(2).
//!
//! By raw system calls: the sets of libc and rustix end at CPU 1023, machines do not. [`RealTime`] puts a thread before all others on
//! its CPU.

use std::io;
use std::marker::PhantomData;

use nearfar_machine::{CpuId, CpuSet, MAX_NUMBER};

const WORD_BITS: u32 = libc::c_ulong::BITS;
const MAX_WORDS: usize = (MAX_NUMBER / WORD_BITS) as usize + 1;

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
            words: vec![0; MAX_WORDS],
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
    set_words(tid, &[libc::c_ulong::MAX; MAX_WORDS])
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

/// While this lives, the thread that made it does not wait for a CPU that others keep busy. Threads and processes that it
/// starts are ordinary ones. Where the system does not allow it (`CAP_SYS_NICE`, `RLIMIT_RTPRIO`), it changes nothing.
#[derive(Debug)]
#[must_use]
pub struct RealTime {
    before: Option<libc::c_int>,
    _is_of_this_thread: PhantomData<*const ()>,
}

impl RealTime {
    pub fn new() -> Self {
        // SAFETY: asks for a number; 0 is this thread.
        let before = unsafe { libc::sched_getscheduler(0) };
        let is_set = before >= 0 && set_scheduler(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
        Self {
            before: is_set.then_some(before),
            _is_of_this_thread: PhantomData,
        }
    }
}

impl Default for RealTime {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_scheduler(before, 0);
        }
    }
}

fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel reads the value above; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) == 0 }
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

    #[test]
    fn it_is_over_when_it_is_dropped() {
        fn policy() -> libc::c_int {
            // SAFETY: asks for a number.
            unsafe { libc::sched_getscheduler(0) }
        }
        let before = policy();
        let real_time = RealTime::new();
        match real_time.before {
            None => println!("skipped: root: this system allows no real-time thread"),
            Some(_) => assert_eq!(policy(), libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK),
        }
        let in_child = std::thread::spawn(policy);
        assert_eq!(in_child.join().unwrap(), libc::SCHED_OTHER);
        drop(real_time);
        assert_eq!(policy(), before);
    }
}
