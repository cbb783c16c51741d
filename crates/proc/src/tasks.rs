//! Processes and threads of the running system: the files of /proc/PID, read once or kept open.
//!
//! A number is given to another process once its own has ended and was waited for. While a process lives, its number is its own: one
//! that lives after it was looked at was the same all the time since it was opened ([`OpenProcess`]).
//!
//! Files stay open ([`OpenTask`], [`OpenStat`]) because reading a thread ten times a second costs more for opening its files than for
//! their content.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use crate::task_files::{Comm, Image, RunTime, Stat, Status};
use crate::text;

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

/// The content of /proc/TID/sched, for [`crate::task_files::Sched`].
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

/// A process that cannot be mistaken for a later one with its number.
#[derive(Clone, Debug)]
pub struct OpenProcess {
    pid: i32,
    /// When it began, in clock ticks since boot.
    start: u64,
    /// None before Linux 5.3, and for a thread that is not the first of its process.
    fd: Option<Arc<OwnedFd>>,
}

impl PartialEq for OpenProcess {
    fn eq(&self, other: &Self) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }
}

impl Eq for OpenProcess {}

impl OpenProcess {
    /// Opens a process by its number: what is found out about it afterwards is about this one, if it lives then.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(pid: i32) -> io::Result<Self> {
        let fd = Pid::from_raw(pid)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .map(Arc::new);
        // After the descriptor: the start is then that of the process it stands for, or of one that is found out later.
        Ok(Self {
            pid,
            start: stat(pid)?.id.start,
            fd,
        })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// When it began, in clock ticks since boot.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether it lives, and has its number for that reason. An error that says nothing about the process, such as too many
    /// open files, is no sign of its end.
    pub fn is_alive(&self) -> bool {
        if let Some(fd) = &self.fd {
            // Readable when its last thread has ended (pidfd_open(2)).
            let mut polled = [PollFd::new(fd.as_ref(), PollFlags::IN)];
            if poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return false;
            }
        }
        match stat(self.pid) {
            Ok(stat) => stat.id.start == self.start,
            Err(error) => !is_gone(&error),
        }
    }
}

/// A file of /proc that is read again and again from its start: kept open while this process has few of them, otherwise
/// opened each time. While it is open it cannot become that of another thread with the same number.
#[derive(Debug, Default)]
struct Reread {
    file: Option<Counted>,
}

/// Number of files that are kept open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Half of what this process may have open (RLIMIT_NOFILE): the other half is left to its own files.
fn max_open() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(1024);
        usize::try_from(limit / 2).unwrap_or(usize::MAX).min(4096)
    })
}

#[derive(Debug)]
struct Counted(File);

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A read of /proc returns at most a page; less than half of one is the whole content.
const WHOLE_BELOW_BYTES: usize = 2048;

impl Reread {
    /// The content now.
    fn read(&mut self, path: impl FnOnce() -> String) -> io::Result<Vec<u8>> {
        if let Some(Counted(file)) = &self.file {
            return whole(file);
        }
        let file = File::open(path())?;
        let text = whole(&file);
        if text.is_ok() && OPEN.fetch_add(1, Ordering::Relaxed) < max_open() {
            self.file = Some(Counted(file));
        } else if text.is_ok() {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        text
    }
}

fn whole(file: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; 2 * WHOLE_BELOW_BYTES];
    let mut length = 0;
    loop {
        let more = file.read_at(&mut text[length..], length as u64)?;
        length += more;
        if more == 0 || length < WHOLE_BELOW_BYTES {
            text.truncate(length);
            return Ok(text);
        }
        text.resize(length + 16 * WHOLE_BELOW_BYTES, 0);
    }
}

/// A thread whose files stay open from the first time they are read.
#[derive(Debug)]
pub struct OpenTask {
    pid: i32,
    tid: i32,
    schedstat: Reread,
    stat: Reread,
    children: Reread,
}

impl OpenTask {
    /// A thread of a process. Opens nothing yet.
    pub fn new(pid: i32, tid: i32) -> Self {
        Self {
            pid,
            tid,
            schedstat: Reread::default(),
            stat: Reread::default(),
            children: Reread::default(),
        }
    }

    /// How long it ran and waited.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` when the thread is gone; otherwise the kernel was built without CONFIG_SCHED_INFO.
    pub fn run_time(&mut self) -> io::Result<RunTime> {
        let path = || format!("/proc/{}/task/{}/schedstat", self.pid, self.tid);
        parse_run_time(&self.schedstat.read(path)?)
    }

    /// Its state, its parent, the CPU it is on.
    ///
    /// # Errors
    /// As [`OpenTask::run_time`].
    pub fn stat(&mut self) -> io::Result<Stat> {
        let path = || format!("/proc/{}/task/{}/stat", self.pid, self.tid);
        parse_stat(&self.stat.read(path)?)
    }

    /// The processes that it made and has to wait for; incomplete where they come and go meanwhile.
    ///
    /// # Errors
    /// When the thread is gone, or the kernel was built without CONFIG_PROC_CHILDREN.
    pub fn children(&mut self) -> io::Result<Vec<i32>> {
        let path = || format!("/proc/{}/task/{}/children", self.pid, self.tid);
        Ok(text::numbers(&self.children.read(path)?))
    }
}

/// A process whose stat stays open from the first time it is read: the sums of its threads.
#[derive(Debug)]
pub struct OpenStat {
    pid: i32,
    stat: Reread,
}

impl OpenStat {
    /// Opens nothing yet.
    pub fn new(pid: i32) -> Self {
        Self {
            pid,
            stat: Reread::default(),
        }
    }

    /// Its times, its number of threads, its memory and its name now.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` when the process is gone.
    pub fn read(&mut self) -> io::Result<(Stat, Comm)> {
        let content = self.stat.read(|| format!("/proc/{}/stat", self.pid))?;
        Stat::parse_with_name(&content).ok_or_else(|| malformed("stat"))
    }
}

/// Lets this process have as many files open as its hard limit allows: more of them are kept open then. To be called before the
/// first is opened.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Where it is refused, files are opened each time.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Tells whether any thread or process at all was made since the last time, by one read: numbers are given out in order, and
/// /proc/loadavg ends with the last one (proc_loadavg(5)).
#[derive(Debug, Default)]
pub struct ForkWatch {
    loadavg: Reread,
    last: Option<Vec<u8>>,
    is_genuine: Option<bool>,
}

impl ForkWatch {
    /// Whether one was made since this was asked last. True at the first call, and where the file is not the kernel's:
    /// containers may see one of their runtime (lxcfs) in its place.
    pub fn any(&mut self) -> bool {
        let is_genuine = *self.is_genuine.get_or_insert_with(|| {
            let system = rustix::fs::statfs("/proc/loadavg");
            system.is_ok_and(|system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
        });
        let now = self.loadavg.read(|| "/proc/loadavg".to_owned()).ok();
        let now = now.and_then(|text| text.rsplit(|&byte| byte == b' ').next().map(<[u8]>::to_vec));
        let is_same = now.is_some() && now == self.last;
        self.last = now;
        !(is_genuine && is_same)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

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

    fn sleeping() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_has_ended_is_not_taken_for_another_with_its_number() {
        let (ended, other) = (sleeping(), sleeping());
        let pid = ended.id().cast_signed();
        let mut process = OpenProcess::open(pid).unwrap();
        assert!(process.is_alive());
        end(ended);
        assert!(!process.is_alive());
        // The number is another's now.
        let later = OpenProcess::open(other.id().cast_signed()).unwrap();
        (process.pid, process.start) = (later.pid, later.start);
        assert_eq!(
            process.is_alive(),
            process.fd.is_none(),
            "a process that began in the same tick"
        );
        process.start += 1;
        assert!(!process.is_alive());
        end(other);
    }

    #[test]
    fn this_thread_is_read_again_and_again() {
        let pid = std::process::id().cast_signed();
        let mut task = OpenTask::new(pid, rustix::thread::gettid().as_raw_nonzero().get());
        let before = task.run_time().unwrap();
        while task.run_time().unwrap() == before {
            std::hint::black_box((0..100_000_u64).sum::<u64>());
        }
        assert!(task.run_time().unwrap().run_ns > before.run_ns);
        assert_eq!(task.stat().unwrap().state, 'R');
        assert_eq!(
            task.children().unwrap(),
            super::children(pid, task.tid).unwrap()
        );
    }

    #[test]
    fn a_thread_that_ended_is_gone_though_its_file_is_open() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let mut task = OpenTask::new(pid, pid);
        task.run_time().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            task.run_time().unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    fn a_new_thread_is_reported() {
        let mut forks = ForkWatch::default();
        assert!(forks.any());
        std::thread::spawn(|| {}).join().unwrap();
        assert!(forks.any());
        // Other programs on this machine make threads as well; at some moment none does.
        assert!((0..100_000).any(|_| !forks.any()));
    }
}
