//! Files of /proc that stay open: reading a thread ten times a second costs more for opening its files than for their
//! content.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{malformed, parse_run_time, parse_stat};
use crate::comm::Comm;
use crate::schedstat::RunTime;
use crate::stat::Stat;
use crate::text;

/// A file of /proc that is read again and again from its start: kept open while this process has few of them, otherwise
/// opened each time. While it is open it cannot become that of another thread with the same number.
#[derive(Debug, Default)]
pub(super) struct Reread {
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
    pub(super) fn read(&mut self, path: impl FnOnce() -> String) -> io::Result<Vec<u8>> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
            super::super::children(pid, task.tid).unwrap()
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
}
