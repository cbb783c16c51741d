//! One at a time: a process that changes the system holds a lock that the kernel releases when it dies.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_proc::error_text;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::state::{LOCK_FILE, StateDir, StateError};

const POLL: Duration = Duration::from_millis(20);

/// Held until dropped.
pub struct Lock(File);

impl Lock {
    /// Takes the lock, waiting for it at most this long.
    ///
    /// # Errors
    /// When another process holds it for that long, or `cancel` is set meanwhile.
    pub fn take(
        state: &StateDir,
        wait: Option<Duration>,
        cancel: Option<&AtomicBool>,
    ) -> Result<Self, StateError> {
        let refused = |reason: String| StateError::Directory {
            place: state.place.clone(),
            reason,
        };
        let mut file = state
            .open_lock()
            .map_err(|error| refused(format!("lock: {}", error_text(&error))))?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(refused(format!("lock: {}", error_text(&error)))),
            }
            if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(StateError::Cancelled);
            }
            if wait.is_none_or(|wait| begun.elapsed() >= wait) {
                tracing::warn!(path = %format_args!("{}/lock", state.place), "lock refused: another process holds it");
                return Err(StateError::Locked {
                    holder: holder(&mut file),
                    lock: format!("{}/lock", state.place),
                });
            }
            sleep(POLL);
        }
        // The holder is written for people; a full disk must not prevent a rollback.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "{}", std::process::id());
        tracing::debug!(path = %format_args!("{}/lock", state.place), "lock taken");
        Ok(Self(file))
    }
}

/// The process whose number is in the lock file and that is alive; `None` also where this user may not read the file. Takes no
/// lock: that would be in the way of a process that is about to take it.
pub fn lock_holder(state: &StateDir) -> Option<u32> {
    let mut file = state.open_file(LOCK_FILE, OFlags::RDONLY).ok()?;
    let pid = read_pid(&mut file)?;
    let is_alive = i32::try_from(pid).is_ok_and(nearfar_proc::tasks::is_alive);
    is_alive.then_some(pid)
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.set_len(0);
        // Closing alone would not do: a process that another thread is just starting has a copy until its exec.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn holder(file: &mut File) -> String {
    match read_pid(file) {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
