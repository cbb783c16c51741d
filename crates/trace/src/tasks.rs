//! Which threads there are: of a process, of a control group.

use std::io;
use std::path::{Component, Path, PathBuf};

use nearfar_machine::{CpuId, Known};

use crate::TraceError;

/// Where control groups are found by name: the unified tree alone, or beside the ones of version 1.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// A thread that is there already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its number.
    pub tid: i32,
    /// The kernel's name of it.
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
    let listed = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)?;
    let tids = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let threads: Vec<Thread> = tids.filter_map(thread).collect();
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

/// The number of the first thread of a thread's process, which may have ended.
pub fn leader(tid: i32) -> Option<i32> {
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    let line = status
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Whether a thread is there and has not ended.
pub fn is_alive(tid: i32) -> bool {
    // The name between the brackets may hold any bytes.
    let stat = std::fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
    let state = stat
        .windows(2)
        .rposition(|bytes| bytes == b") ")
        .and_then(|at| stat.get(at + 2));
    state.is_some_and(|state| !b"ZXx".contains(state))
}

/// How often the kernel has moved a thread that is alive from CPU to CPU since it began: `se.nr_migrations` of its `sched` file
/// (kernel/sched/debug.c; with CONFIG_SCHED_DEBUG).
pub fn moves_by_kernel(tid: i32) -> Known<u64> {
    let file = format!("/proc/{tid}/sched");
    match std::fs::read(&file) {
        // It begins with the task's name, which may be any bytes.
        Ok(text) => moves_in(&String::from_utf8_lossy(&text)).map_or_else(
            || Known::no(format!("{file} has no count of moves")),
            Known::Yes,
        ),
        Err(error) => Known::no(format!(
            "{file}: {error}; it takes CONFIG_SCHED_DEBUG and a task that is alive"
        )),
    }
}

fn moves_in(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("se.nr_migrations"))?;
    line.trim_start().strip_prefix(':')?.trim().parse().ok()
}

/// The directory of a control group.
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
    // A name is any bytes: the kernel cuts it after 15, also within a character.
    let stat = std::fs::read(format!("/proc/{tid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (name, cpu) = name_and_cpu(&stat).filter(|_| !is_zombie(&stat))?;
    Some(Thread {
        tid,
        name: name.to_owned(),
        cpu,
    })
}

/// Whether it has ended; its number stands for nobody any more.
fn is_zombie(stat: &str) -> bool {
    stat.rsplit_once(") ")
        .is_some_and(|(_, after)| after.starts_with(['Z', 'X']))
}

/// `4711 (a name) S ...`: the name may hold anything, the CPU is the 39th field (proc_pid_stat(5)).
fn name_and_cpu(stat: &str) -> Option<(&str, Option<CpuId>)> {
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once(" (")?;
    let cpu = after
        .split(' ')
        .nth(36)
        .and_then(|field| field.parse().ok())
        .map(CpuId);
    Some((name, cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_of_moves_is_found_by_its_name() {
        let text = "sh (7, #threads: 1)\nse.sum_exec_runtime : 1.5\nse.nr_migrations                    :        12\n";
        assert_eq!(moves_in(text), Some(12));
        assert_eq!(moves_in("se.nr_migrations_cold : 3\nnr_switches : 4"), None);
        assert_eq!(moves_in("se.nr_migrations : -1"), None);
    }

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_move_the_fields() {
        let after = "S 1 4711 4711 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 3 0 0 0";
        let stat = format!("4711 (a) S (b c) {after}");
        assert_eq!(name_and_cpu(&stat), Some(("a) S (b c", Some(CpuId(3)))));
        assert_eq!(name_and_cpu("4711"), None);
        assert!(!is_zombie(&stat) && is_zombie("4711 (Z) Z) Z 1"));
    }
}
