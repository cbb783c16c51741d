//! Which threads there are: of a process, of a control group.

use std::io;
use std::path::{Component, Path, PathBuf};

use nearfar_machine::{CpuId, Known};
use nearfar_proc::{Sched, tasks};

use crate::TraceError;

/// Where control groups are found by name: the unified tree alone, or next to those of version 1.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    pub tid: i32,
    pub name: String,
    /// The CPU it is on, or was last.
    pub cpu: Option<CpuId>,
}

/// The threads of a process, with what is known of them; one that ends meanwhile is left out.
///
/// # Errors
/// When there is no such process, or it has ended and its parent has not asked how: no event will tell of its end.
pub fn of_process(pid: i32) -> Result<Vec<Thread>, TraceError> {
    let failed = |error| TraceError::NoProcess { pid, error };
    let tids = tasks::threads(pid).map_err(failed)?;
    let threads: Vec<Thread> = tids.into_iter().filter_map(thread).collect();
    match threads.is_empty() {
        true => Err(failed(io::Error::other("it has ended"))),
        false => Ok(threads),
    }
}

/// The threads in a control group and in those below it: a path, or a name relative to where control groups are mounted, as
/// `systemctl status` shows it (`/system.slice/ssh.service`).
///
/// # Errors
/// When there is no such group, or its threads cannot be read.
pub fn of_cgroup(group: &str) -> Result<Vec<Thread>, TraceError> {
    let mut directories = vec![find_cgroup(group)?];
    let mut threads = Vec::new();
    while let Some(directory) = directories.pop() {
        // Version 2, else 1: both list threads.
        let listed =
            ["cgroup.threads", "tasks"]
                .into_iter()
                .find_map(|file| match std::fs::read_to_string(directory.join(file)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    listed => Some(listed),
                });
        let unreadable = |source| TraceError::Unreadable {
            file: directory.display().to_string(),
            source,
        };
        match listed {
            Some(Ok(text)) => {
                threads.extend(text.lines().filter_map(|tid| thread(tid.parse().ok()?)))
            }
            // A group that has ended meanwhile has no tasks.
            Some(Err(error))
                if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {}
            Some(Err(source)) => return Err(unreadable(source)),
            None => {}
        }
        let below = std::fs::read_dir(&directory)
            .map_err(unreadable)?
            .filter_map(Result::ok);
        directories.extend(
            below
                .filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
    Ok(threads)
}

fn find_cgroup(group: &str) -> Result<PathBuf, TraceError> {
    let is_group = |path: &Path| path.join("cgroup.procs").is_file();
    let given = Path::new(group);
    if given.is_absolute() && is_group(given) {
        return Ok(given.to_owned());
    }
    // A name leads down from the root of the groups, never out of it.
    let below: PathBuf = given
        .components()
        .filter(|part| !matches!(part, Component::RootDir))
        .collect();
    let plain = below
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let found = GROUPS
        .iter()
        .map(|root| Path::new(root).join(&below))
        .find(|path| plain && is_group(path));
    found.ok_or_else(|| TraceError::NoCgroup {
        group: group.to_owned(),
    })
}

fn thread(tid: i32) -> Option<Thread> {
    let (stat, name) = tasks::stat_with_name(tid).ok()?;
    (!stat.is_ended()).then(|| Thread {
        tid,
        name: name.to_text(),
        cpu: stat.cpu,
    })
}

/// How often the kernel has moved a thread that is alive from CPU to CPU since it began (with CONFIG_SCHED_DEBUG).
pub fn moves_by_kernel(tid: i32) -> Known<u64> {
    let file = format!("/proc/{tid}/sched");
    match tasks::sched(tid) {
        Ok(content) => Sched::of(&content).migrations().map_or_else(
            || Known::no(format!("{file} has no count of moves")),
            Known::Yes,
        ),
        Err(error) => Known::no(format!(
            "{file}: {error}; it takes CONFIG_SCHED_DEBUG and a task that is alive"
        )),
    }
}
