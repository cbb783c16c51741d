//! Who changed what where: `audit.jsonl` in the folder of a rollout, a line for each step, only appended to.

use nearfar_runs::now_s;
use serde::{Deserialize, Serialize};

use crate::folder::{Folder, FolderError, append_line, one_line, read_lines};
use crate::hosts::HostName;

const FILE: &str = "audit.jsonl";
/// Changes of a host that a line has.
const MAX_CHANGES: usize = 1000;

/// A line of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Seconds since 1970.
    pub at_s: f64,
    /// `user@host`: who asked for it.
    pub by: String,
    pub host: HostName,
    pub action: AuditAction,
    /// The change set on the host.
    pub change_set: Option<u64>,
    /// The files that were written, each with the value before and after.
    pub changes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    /// A step is about to begin: from here on the host may be changed.
    Starting,
    Applied,
    /// Applied and undone in the same step, because the host got worse or not every change could be made.
    AppliedAndUndone,
    /// Nothing was changed, because of the reason.
    NotApplied,
    /// Neither known to be changed nor known to be as it was.
    Unknown,
    NothingToChange,
    RolledBack,
    NotRolledBack,
}

impl AuditAction {
    /// Whether the host is as it was before the rollout.
    pub fn is_as_before(self) -> bool {
        matches!(
            self,
            Self::AppliedAndUndone | Self::NotApplied | Self::NothingToChange | Self::RolledBack
        )
    }
}

/// What is said of a step.
pub(super) struct Noted {
    pub action: AuditAction,
    pub change_set: Option<u64>,
    pub changes: Vec<String>,
    pub reason: Option<String>,
}

impl From<AuditAction> for Noted {
    fn from(action: AuditAction) -> Self {
        Self {
            action,
            change_set: None,
            changes: Vec::new(),
            reason: None,
        }
    }
}

pub(super) fn write(
    folder: &Folder,
    by: &str,
    host: &HostName,
    noted: Noted,
) -> Result<(), FolderError> {
    let entry = AuditEntry {
        at_s: now_s(),
        by: by.to_owned(),
        host: host.clone(),
        action: noted.action,
        change_set: noted.change_set,
        changes: some_changes(noted.changes),
        reason: noted.reason.as_deref().map(one_line),
    };
    append_line(&folder.path().join(FILE), &entry)
}

/// The first of many: the host's answer and its `nearfar rollback --list` have all.
fn some_changes(mut changes: Vec<String>) -> Vec<String> {
    let more = changes.len().saturating_sub(MAX_CHANGES);
    changes.truncate(MAX_CHANGES);
    let mut changes: Vec<String> = changes.iter().map(|change| one_line(change)).collect();
    if more > 0 {
        changes.push(format!("and {more} more"));
    }
    changes
}

/// Every entry, oldest first.
pub(super) fn read(folder: &Folder) -> Result<Vec<AuditEntry>, FolderError> {
    read_lines(&folder.path().join(FILE))
}
