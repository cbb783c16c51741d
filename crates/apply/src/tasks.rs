//! Processes and threads as /proc shows them: who they are, whose they are, how long they ran and waited.

mod open;

use std::fs;
use std::io;

use nearfar_machine::CpuId;
use serde::{Deserialize, Serialize};

pub use open::{Births, OpenTask};

/// A thread that cannot be mistaken for a later one with its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TaskId {
    /// Its number.
    pub tid: i32,
    /// When it began, in clock ticks since boot (proc_pid_stat(5), field 22).
    pub start: u64,
}

/// What /proc/PID/stat says of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Who it is.
    pub id: TaskId,
    /// The letter of its state: R, S, D, Z...
    pub state: char,
    /// The process that has to wait for it.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// The CPU it runs on or ran on last (field 39).
    pub cpu: CpuId,
}

/// A thread by number, of whatever process.
///
/// # Errors
/// When there is none, or /proc does not show it.
pub fn stat(tid: i32) -> io::Result<Stat> {
    parse(&fs::read(format!("/proc/{tid}/stat"))?).ok_or_else(no_stat)
}

/// A thread of a process.
///
/// # Errors
/// When the process has no such thread, or /proc does not show it.
pub fn stat_of(pid: i32, tid: i32) -> io::Result<Stat> {
    parse(&fs::read(format!("/proc/{pid}/task/{tid}/stat"))?).ok_or_else(no_stat)
}

/// Now, in clock ticks since boot; rounded down, as the start of a task is (fs/proc/array.c).
pub fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec.unsigned_abs() * per_second + now.tv_nsec.unsigned_abs() * per_second / 1_000_000_000
}

fn no_stat() -> io::Error {
    io::Error::other("/proc/PID/stat cannot be read")
}

/// `4711 (a name) S 1 4711 4711 ...`; the name may hold anything.
fn parse(stat: &[u8]) -> Option<Stat> {
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let tid = std::str::from_utf8(&stat[..open])
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let after = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = after.split_ascii_whitespace().take(37).collect();
    let number = |index: usize| fields.get(index)?.parse().ok();
    Some(Stat {
        id: TaskId {
            tid,
            start: fields.get(19)?.parse().ok()?,
        },
        state: fields.first()?.chars().next()?,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        cpu: CpuId(fields.get(36)?.parse().ok()?),
    })
}

/// The threads of a process.
///
/// # Errors
/// When there is no such process.
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    numbers(&format!("/proc/{pid}/task"))
}

/// The process that a thread belongs to.
///
/// # Errors
/// When there is no such thread.
pub fn process_of(tid: i32) -> io::Result<i32> {
    let status = fs::read(format!("/proc/{tid}/status"))?;
    process_in(&status).ok_or_else(|| io::Error::other("/proc/PID/status has no field Tgid"))
}

/// The field `Tgid` of a status file, which begins with the task's name. The kernel escapes line feeds and backslashes of
/// names there and nothing else (proc_task_name() in fs/proc/array.c), so the text may be no UTF-8.
fn process_in(status: &[u8]) -> Option<i32> {
    std::str::from_utf8(field_in(status, b"Tgid:")?)
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// What stands behind a name at the start of a line of a status file.
fn field_in<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    status
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(name))
}

/// The numbers of a thread, from this pid namespace's to its own's; one where that is the same (`NSpid`,
/// proc_pid_status(5)).
///
/// # Errors
/// When there is no such thread, or the kernel does not say (before Linux 4.1).
pub fn numbers_of(tid: i32) -> io::Result<Vec<i32>> {
    let status = fs::read(format!("/proc/{tid}/status"))?;
    field_in(&status, b"NSpid:")
        .map(numbers_in)
        .ok_or_else(|| io::Error::other("/proc/PID/status has no field NSpid"))
}

/// The name of a thread (`comm`), of at most 15 bytes; what is not UTF-8 is replaced.
///
/// # Errors
/// When there is no such thread.
pub fn name(tid: i32) -> io::Result<String> {
    let name = fs::read(format!("/proc/{tid}/comm"))?;
    Ok(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}

/// Whether an answer of /proc or of a system call means that the thread has ended: `ENOENT` or `ESRCH`. Any other error
/// says nothing about the thread.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// All processes that /proc shows.
///
/// # Errors
/// When there is no /proc.
pub fn processes() -> io::Result<Vec<i32>> {
    numbers("/proc")
}

/// The processes that a thread made and has to wait for; incomplete where they come and go meanwhile.
///
/// # Errors
/// When the thread is gone, or the kernel was built without CONFIG_PROC_CHILDREN.
pub fn children(pid: i32, tid: i32) -> io::Result<Vec<i32>> {
    Ok(numbers_in(&fs::read(format!(
        "/proc/{pid}/task/{tid}/children"
    ))?))
}

fn numbers_in(text: &[u8]) -> Vec<i32> {
    let words = text.split(u8::is_ascii_whitespace);
    words
        .filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
        .collect()
}

/// The first two numbers of /proc/PID/schedstat.
fn two_numbers(text: &[u8]) -> Option<(u64, u64)> {
    let mut numbers = std::str::from_utf8(text)
        .ok()?
        .split_ascii_whitespace()
        .map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next())
}

fn no_schedstat() -> io::Error {
    io::Error::other("/proc/PID/schedstat cannot be read")
}

fn numbers(directory: &str) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_move_the_fields() {
        let line = b"4711 (a) S (b c) R 12 13 14 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 815 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 3 0 0\n";
        let stat = parse(line).unwrap();
        let expected = Stat {
            id: TaskId {
                tid: 4711,
                start: 815,
            },
            state: 'R',
            parent: 12,
            group: 13,
            session: 14,
            cpu: CpuId(3),
        };
        assert_eq!(stat, expected);
        assert_eq!(parse(b"4711"), None);
        assert_eq!(parse(b"1 )("), None);
    }

    #[test]
    fn a_name_that_is_no_utf8_does_not_hide_the_process() {
        let status = b"Name:\t\xd1\x81\xd0\xb5\xd1\nTgid: 9\nUmask:\t0022\nTgid:\t4711\nNgid:\t0\n";
        assert_eq!(process_in(b"Name:\t\xff\nTgid:\t4711\n"), Some(4711));
        assert_eq!(
            process_in(status),
            Some(9),
            "a line is a field: the kernel escapes line feeds of names"
        );
        assert_eq!(process_in(b"Name:\tTgid: 7\n"), None);
        assert_eq!(process_in(b"Tgid:\t\xff\n"), None);
    }

    #[test]
    fn a_thread_with_any_name_is_found() {
        let (named, names) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: a text that ends with NUL; the kernel copies it.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"\xd1\x81\xff \n(Tgid:".as_ptr()) };
            named
                .send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            std::thread::park();
        });
        let tid = names.recv().unwrap();
        let (process, name) = (process_of(tid).unwrap(), name(tid).unwrap());
        thread.thread().unpark();
        thread.join().unwrap();
        assert_eq!(process, std::process::id().cast_signed());
        assert_eq!(name, "\u{441}\u{fffd} \n(Tgid:");
    }

    #[test]
    fn a_thread_of_this_namespace_has_one_number() {
        let me = std::process::id().cast_signed();
        assert_eq!(numbers_of(me).unwrap(), [me]);
        assert!(is_gone(&numbers_of(i32::MAX).unwrap_err()));
    }

    #[test]
    fn this_process_finds_itself_and_its_threads() {
        let me = std::process::id().cast_signed();
        assert_eq!(stat(me).unwrap().id.tid, me);
        assert!(threads(me).unwrap().contains(&me));
        assert!(processes().unwrap().contains(&me));
    }
}
