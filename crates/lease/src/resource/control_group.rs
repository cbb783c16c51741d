//! Control groups that end with a lease.

use std::fs;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::removed;
use crate::UndoStatus;

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
    fs::write(path.join("cgroup.kill"), "1")?;
    let until = Instant::now() + EMPTY_WITHIN;
    loop {
        match remove_tree(path) {
            // A task that was killed counts until it has ended.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                sleep(POLL);
            }
            answer => return removed(answer),
        }
    }
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
