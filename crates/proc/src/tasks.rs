//! Processes and threads of the running system: the files of /proc/PID, read once or kept open.

mod fork_watch;
mod open;

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use crate::comm::Comm;
use crate::schedstat::RunTime;
use crate::stat::{Image, Stat};
use crate::status::Status;
use crate::text;

pub use fork_watch::ForkWatch;
pub use open::{OpenStat, OpenTask, raise_open_files};

/// A thread by number, of any process.
///
/// # Errors
/// When there is none, or /proc does not show it.
pub fn stat(tid: i32) -> io::Result<Stat> {
    parse_stat(&fs::read(format!("/proc/{tid}/stat"))?)
}

/// As [`stat`], with the name that stands in the same file.
///
/// # Errors
/// As [`stat`].
pub fn stat_with_name(tid: i32) -> io::Result<(Stat, Comm)> {
    let content = fs::read(format!("/proc/{tid}/stat"))?;
    Stat::parse_with_name(&content).ok_or_else(|| malformed("stat"))
}

/// What distinguishes the program that a process runs from an earlier one; `None` without ptrace access, and for a main
/// thread that has ended.
///
/// # Errors
/// As [`stat`].
pub fn image(pid: i32) -> io::Result<Option<Image>> {
    let content = fs::read(format!("/proc/{pid}/stat"))?;
    Ok(Image::parse(&content))
}

/// A thread of a process.
///
/// # Errors
/// When the process has no such thread, or /proc does not show it.
pub fn stat_of(pid: i32, tid: i32) -> io::Result<Stat> {
    parse_stat(&fs::read(format!("/proc/{pid}/task/{tid}/stat"))?)
}

/// As [`stat_of`], with the name that stands in the same file.
///
/// # Errors
/// As [`stat_of`].
pub fn stat_of_with_name(pid: i32, tid: i32) -> io::Result<(Stat, Comm)> {
    let content = fs::read(format!("/proc/{pid}/task/{tid}/stat"))?;
    Stat::parse_with_name(&content).ok_or_else(|| malformed("stat"))
}

fn parse_stat(content: &[u8]) -> io::Result<Stat> {
    Stat::parse(content).ok_or_else(|| malformed("stat"))
}

/// Whether a thread is there and has not ended.
pub fn is_alive(tid: i32) -> bool {
    stat(tid).is_ok_and(|stat| !stat.is_ended())
}

/// Whether an error of /proc or of a system call means that the thread has ended: `ENOENT` or `ESRCH`. Any other error
/// says nothing about the thread.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// The threads of a process.
///
/// # Errors
/// When there is no such process.
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    entries(&format!("/proc/{pid}/task"))
}

/// All processes that /proc shows.
///
/// # Errors
/// When there is no /proc.
pub fn processes() -> io::Result<Vec<i32>> {
    entries("/proc")
}

/// The processes that a thread made and has to wait for; incomplete where they come and go meanwhile.
///
/// # Errors
/// When the thread is gone, or the kernel was built without CONFIG_PROC_CHILDREN.
pub fn children(pid: i32, tid: i32) -> io::Result<Vec<i32>> {
    let content = fs::read(format!("/proc/{pid}/task/{tid}/children"))?;
    Ok(text::numbers(&content))
}

/// The process that a thread belongs to.
///
/// # Errors
/// When there is no such thread.
pub fn process_of(tid: i32) -> io::Result<i32> {
    let content = fs::read(format!("/proc/{tid}/status"))?;
    let process = Status::of(&content).process();
    process.ok_or_else(|| io::Error::other("/proc/PID/status has no field Tgid"))
}

/// The numbers of a thread, from this pid namespace's to its own's; one where that is the same.
///
/// # Errors
/// When there is no such thread, or the kernel does not say (before Linux 4.1).
pub fn numbers_of(tid: i32) -> io::Result<Vec<i32>> {
    let content = fs::read(format!("/proc/{tid}/status"))?;
    let numbers = Status::of(&content).numbers();
    numbers.ok_or_else(|| io::Error::other("/proc/PID/status has no field NSpid"))
}

/// The name of a thread.
///
/// # Errors
/// When there is no such thread.
pub fn name(tid: i32) -> io::Result<Comm> {
    Ok(Comm::of_file(&fs::read(format!("/proc/{tid}/comm"))?))
}

/// How long a thread ran and waited.
///
/// # Errors
/// When there is no such thread, or the kernel was built without CONFIG_SCHED_INFO.
pub fn run_time(tid: i32) -> io::Result<RunTime> {
    parse_run_time(&fs::read(format!("/proc/{tid}/schedstat"))?)
}

/// How long the calling thread ran and waited.
///
/// # Errors
/// When the kernel was built without CONFIG_SCHED_INFO.
pub fn own_run_time() -> io::Result<RunTime> {
    parse_run_time(&fs::read("/proc/thread-self/schedstat")?)
}

fn parse_run_time(content: &[u8]) -> io::Result<RunTime> {
    RunTime::parse(content).ok_or_else(|| malformed("schedstat"))
}

/// The content of /proc/TID/sched, for [`crate::sched::Sched`].
///
/// # Errors
/// When there is no such thread, or the kernel was built without CONFIG_SCHED_DEBUG.
pub fn sched(tid: i32) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{tid}/sched"))
}

/// The content of /proc/TID/cgroup, for [`crate::cgroup::groups`].
///
/// # Errors
/// When there is no such thread, or the kernel has no control groups.
pub fn groups(tid: i32) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{tid}/cgroup"))
}

/// The path of a process's executable; ` (deleted)` follows it when it was replaced while it runs.
///
/// # Errors
/// When there is no such process, it is a thread of the kernel, or another user's.
pub fn executable(pid: i32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe"))
}

/// A namespace of a thread, such as `pid:[4026531836]`; by its name in /proc/TID/ns: `pid`, `pid_for_children`.
///
/// # Errors
/// When there is no such thread, or it is another user's.
pub fn namespace(tid: i32, name: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{tid}/ns/{name}"))
}

/// A namespace of the calling process, as [`namespace`].
///
/// # Errors
/// When the kernel has no such namespaces.
pub fn own_namespace(name: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/ns/{name}"))
}

/// Opens a file of a process that is too large to read as a whole: `maps`, `numa_maps`, `pagemap`.
///
/// # Errors
/// When there is no such process, or it is another user's; some files open and fail when they are read.
pub fn open(pid: i32, name: &str) -> io::Result<File> {
    File::open(format!("/proc/{pid}/{name}"))
}

fn malformed(file: &str) -> io::Error {
    io::Error::other(format!("/proc/PID/{file} is malformed"))
}

fn entries(directory: &str) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn a_thread_with_any_name_is_found() {
        let (named, names) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: a text that ends with NUL; the kernel copies it.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"\xd1\x81\xff \n(Tgid:".as_ptr()) };
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            named.send(tid).unwrap();
            std::thread::park();
        });
        let tid = names.recv().unwrap();
        let (process, name) = (process_of(tid).unwrap(), name(tid).unwrap());
        let in_stat = stat_with_name(tid).unwrap().1;
        thread.thread().unpark();
        thread.join().unwrap();
        assert_eq!(process, me());
        assert_eq!(name.as_bytes(), b"\xd1\x81\xff \n(Tgid:");
        assert_eq!(in_stat, name);
        assert_eq!(name.to_text(), "\u{441}\u{fffd} \n(Tgid:");
        assert_eq!(name.to_string(), "\u{441}\u{fffd} \u{fffd}(Tgid:");
    }

    #[test]
    fn a_thread_of_this_namespace_has_one_number() {
        assert_eq!(numbers_of(me()).unwrap(), [me()]);
        assert!(is_gone(&numbers_of(i32::MAX).unwrap_err()));
    }

    #[test]
    fn this_process_finds_itself_and_its_threads() {
        assert_eq!(stat(me()).unwrap().id.tid, me());
        assert!(threads(me()).unwrap().contains(&me()));
        assert!(processes().unwrap().contains(&me()));
        assert!(is_alive(me()) && !is_alive(i32::MAX));
        assert!(run_time(me()).unwrap().run_ns > 0);
    }
}
