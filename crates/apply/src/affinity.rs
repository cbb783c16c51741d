//! Which CPUs a thread may run on, asked and set.
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
        // SAFETY: the kernel writes at most as many bytes as it is told the buffer has.
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
/// `ESRCH` where there is no such thread, `EPERM` where it is somebody else's, `EINVAL` where none of the CPUs is in its
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

/// Lets a thread run wherever its cpuset lets it, also on CPUs that come online later: what a thread has that nobody
/// confined.
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
