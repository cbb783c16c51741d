//! Control groups that end with a lease.

use std::fs;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::removed;
use crate::lease::UndoStatus;

/// CGROUP2_SUPER_MAGIC (include/uapi/linux/magic.h).
const GROUPS_MAGIC: i64 = 0x6367_7270;
const EMPTY_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

pub(super) fn make(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    if rustix::fs::statfs(parent)?.f_type != GROUPS_MAGIC {
        let what = format!("{} is not in the version 2 hierarchy", parent.display());
        return Err(io::Error::other(what));
    }
    fs::create_dir(path)
}

/// Ends all tasks in a group and the groups below it, and removes them.
pub(super) fn remove(path: &Path) -> io::Result<UndoStatus> {
    match fs::symlink_metadata(path) {
        Err(error) => return removed(Err(error)),
        Ok(found) if !found.is_dir() || rustix::fs::statfs(path)?.f_type != GROUPS_MAGIC => {
            return Ok(UndoStatus::NotOurs {
                now: "not a control group".to_owned(),
            });
        }
        Ok(_) => {}
    }
    // Since 5.14: all tasks of the whole tree, also those that fork meanwhile.
    let has_kill = match fs::write(path.join("cgroup.kill"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        answer => answer.map(|()| true)?,
    };
    let until = Instant::now() + EMPTY_WITHIN;
    loop {
        // What forks meanwhile is found by the next pass.
        if !has_kill {
            kill_members(path)?;
        }
        match remove_tree(path) {
            // A task that was killed counts until it has ended.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                sleep(POLL);
            }
            answer => return removed(answer),
        }
    }
}

/// Ends the processes that are now in a group and in those below it.
fn kill_members(path: &Path) -> io::Result<()> {
    let members = fs::read_to_string(path.join("cgroup.procs"))?;
    // 0 is a process that cannot be seen from here.
    let members = members.lines().filter_map(|line| line.parse().ok());
    for pid in members.filter_map(Pid::from_raw) {
        match kill_process(pid, Signal::KILL) {
            Err(error) if error != Errno::SRCH => return Err(error.into()),
            _ => {}
        }
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            kill_members(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    /// As before Linux 5.14: the members are those of the files.
    #[test]
    fn without_the_file_that_kills_all_the_members_of_the_tree_are_killed() {
        let place = tempfile::tempdir().unwrap();
        let below = place.path().join("below");
        fs::create_dir(&below).unwrap();
        let sleeping = || Command::new("sleep").arg("600").spawn().unwrap();
        let (mut one, mut other) = (sleeping(), sleeping());
        fs::write(
            place.path().join("cgroup.procs"),
            format!("0\n{}\n", one.id()),
        )
        .unwrap();
        fs::write(below.join("cgroup.procs"), format!("{}\n", other.id())).unwrap();
        kill_members(place.path()).unwrap();
        for child in [&mut one, &mut other] {
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        kill_members(place.path()).unwrap();
    }
}
