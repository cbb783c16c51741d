//! Files of /proc that stay open: who looks at a thread ten times a second pays more for opening them than for what they
//! say.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

use super::{Stat, no_schedstat, no_stat, numbers_in, parse, two_numbers};

/// A file of /proc that is read again and again from its begin: kept open while this process has few of them, otherwise opened
/// each time. While it is open it cannot become that of another thread with the same number.
#[derive(Debug, Default)]
struct Reread {
    file: Option<Counted>,
}

/// So many are open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Half of what this process may have open (RLIMIT_NOFILE): the other half is its own.
fn most() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
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

/// One read of /proc gives a page at most; what is shorter than half of one is whole.
const SURELY_WHOLE: usize = 2048;

impl Reread {
    /// What it says now.
    fn read(&mut self, path: impl FnOnce() -> String) -> io::Result<Vec<u8>> {
        if let Some(Counted(file)) = &self.file {
            return whole(file);
        }
        let file = File::open(path())?;
        let text = whole(&file);
        if text.is_ok() && OPEN.fetch_add(1, Ordering::Relaxed) < most() {
            self.file = Some(Counted(file));
        } else if text.is_ok() {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        text
    }
}

fn whole(file: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; 2 * SURELY_WHOLE];
    let mut length = 0;
    loop {
        let more = file.read_at(&mut text[length..], length as u64)?;
        length += more;
        if more == 0 || length < SURELY_WHOLE {
            text.truncate(length);
            return Ok(text);
        }
        text.resize(length + 16 * SURELY_WHOLE, 0);
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

    /// How long it ran and how long it waited for a CPU, in nanoseconds (Documentation/scheduler/sched-stats.rst). A wait
    /// counts when it is over.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` when the thread is gone; otherwise the kernel was built without CONFIG_SCHED_INFO.
    pub fn run_and_wait(&mut self) -> io::Result<(u64, u64)> {
        let text = self
            .schedstat
            .read(|| format!("/proc/{}/task/{}/schedstat", self.pid, self.tid))?;
        two_numbers(&text).ok_or_else(no_schedstat)
    }

    /// Its state, its parent, the CPU it is on.
    ///
    /// # Errors
    /// As [`OpenTask::run_and_wait`].
    pub fn stat(&mut self) -> io::Result<Stat> {
        let text = self
            .stat
            .read(|| format!("/proc/{}/task/{}/stat", self.pid, self.tid))?;
        parse(&text).ok_or_else(no_stat)
    }

    /// The processes that it made and has to wait for; incomplete where they come and go meanwhile.
    ///
    /// # Errors
    /// When the thread is gone, or the kernel was built without CONFIG_PROC_CHILDREN.
    pub fn children(&mut self) -> io::Result<Vec<i32>> {
        let text = self
            .children
            .read(|| format!("/proc/{}/task/{}/children", self.pid, self.tid))?;
        Ok(numbers_in(&text))
    }
}

/// Tells whether any thread or process at all was made since the last time, by one read: numbers are given out in order, and
/// /proc/loadavg ends with the last one (proc_loadavg(5)).
#[derive(Debug, Default)]
pub struct Births {
    loadavg: Reread,
    last: Option<Vec<u8>>,
    genuine: Option<bool>,
}

impl Births {
    /// Whether somebody was made since the last time this was asked. True at the first time, and where it cannot be told:
    /// containers may see a file of their runtime (lxcfs) in its place.
    pub fn any(&mut self) -> bool {
        let genuine = *self.genuine.get_or_insert_with(|| {
            let system = rustix::fs::statfs("/proc/loadavg");
            system.is_ok_and(|system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
        });
        let now = self.loadavg.read(|| "/proc/loadavg".to_owned()).ok();
        let now = now.and_then(|text| text.rsplit(|&byte| byte == b' ').next().map(<[u8]>::to_vec));
        let same = now.is_some() && now == self.last;
        self.last = now;
        !(genuine && same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_read_again_and_again() {
        let pid = std::process::id().cast_signed();
        let mut task = OpenTask::new(pid, rustix::thread::gettid().as_raw_nonzero().get());
        let before = task.run_and_wait().unwrap();
        while task.run_and_wait().unwrap() == before {
            std::hint::black_box((0..100_000_u64).sum::<u64>());
        }
        assert!(task.run_and_wait().unwrap().0 > before.0);
        assert_eq!(task.stat().unwrap().state, 'R');
        assert_eq!(
            task.children().unwrap(),
            super::super::children(pid, task.tid).unwrap()
        );
    }

    #[test]
    fn who_has_ended_is_gone_though_its_file_is_open() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let mut task = OpenTask::new(pid, pid);
        task.run_and_wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            task.run_and_wait().unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    fn a_birth_is_told() {
        let mut births = Births::default();
        assert!(births.any());
        std::thread::spawn(|| {}).join().unwrap();
        assert!(births.any());
        // Others on this machine make threads as well; now and then none does for a moment.
        assert!((0..100_000).any(|_| !births.any()));
    }
}
