//! The right to change a system under a label, and the note that the label was undone.
//!
//! A rollback of many systems can come while an apply of the same label has not begun on one of them, waits or measures. It would find
//! nothing to undo, and the apply would come after it.

use std::io::{Read as _, Seek as _, Write as _};

use crate::state::{StateDir, StateError};
use nearfar_proc::error_text;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::error::ApplyError;
use crate::target::Target;

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
