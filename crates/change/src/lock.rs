//! One at a time: a process that changes the system, and one that does so under a label, holds a lock that the kernel releases when it
//! dies. That of a label also says whether the label was undone.
//!
//! A rollback of many systems can come while an apply of the same label has not begun on one of them, waits or measures. It would find
//! nothing to undo, and the apply would come after it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfar_proc::error_text;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::apply::ApplyError;
use crate::state::{LOCK_FILE, StateDir, StateError};
use crate::system::Target;

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

/// What the file says once the label was undone.
const UNDONE: &[u8] = b"undone\n";

/// Held until dropped, or until its process ends.
#[derive(Debug)]
pub struct LabelLock(std::fs::File);

impl LabelLock {
    /// Takes the lock of a label on the target. It is a file in the state directory: programs in other namespaces that share the
    /// journals share it.
    ///
    /// # Errors
    /// Another process holds it, or the state directory cannot be used.
    pub fn take(target: &Target, label: &str) -> Result<Self, ApplyError> {
        let state = StateDir::make(&target.location())?;
        let name = file_name(label);
        let failed = |error: &std::io::Error| StateError::Directory {
            place: state.place.clone(),
            reason: format!("{name}: {}", error_text(error)),
        };
        let file = state
            .open_file(&name, OFlags::RDWR | OFlags::CREATE)
            .map_err(|error| failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ApplyError::LabelInUse {
                label: label.to_owned(),
            }),
            Err(error) => Err(failed(&error.into()).into()),
        }
    }

    /// Whether the label was undone here: nothing is to be changed under it any more.
    pub fn is_undone(&mut self) -> bool {
        let mut text = Vec::new();
        let read = self.0.rewind().and_then(|()| {
            (&mut self.0)
                .take(UNDONE.len() as u64)
                .read_to_end(&mut text)
        });
        read.is_ok() && text == UNDONE
    }

    /// Notes that the label is undone, on disk when this returns.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn mark_undone(&mut self) -> std::io::Result<()> {
        self.0.rewind()?;
        self.0.write_all(UNDONE)?;
        self.0.sync_all()
    }
}

/// Of a label that is no name of a file its beginning, and a sum that tells it from others.
fn file_name(label: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let plain: String = label.chars().filter(|c| is_plain(*c)).take(60).collect();
    match plain == label {
        true => format!("label-{plain}.lock"),
        false => format!(
            "label-{plain}.{:08x}.lock",
            crc32fast::hash(label.as_bytes())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_a_label_and_an_undone_one_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::live(Some(directory.path().to_owned()));
        let mut first = LabelLock::take(&target, "fleet-1").unwrap();
        assert!(!first.is_undone());
        assert!(matches!(
            LabelLock::take(&target, "fleet-1"),
            Err(ApplyError::LabelInUse { .. })
        ));
        let other = LabelLock::take(&target, "../fleet 1").unwrap();
        first.mark_undone().unwrap();
        drop((first, other));
        assert!(LabelLock::take(&target, "fleet-1").unwrap().is_undone());
        assert!(!LabelLock::take(&target, "../fleet 1").unwrap().is_undone());
    }
}
