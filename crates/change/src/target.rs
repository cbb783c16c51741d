//! What is changed: the live system, or the same files below a directory.

use std::path::PathBuf;

use crate::state::{Location, STATE_DIR};

use crate::error::ApplyError;
use crate::system::{Rooted, System, first_line};

/// The live system or a directory tree, and where its journal is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub(crate) root: Option<PathBuf>,
    pub(crate) state_dir: Option<PathBuf>,
}

impl Target {
    /// The running system; the journal in `state_dir` or else /var/lib/nearfar.
    pub fn live(state_dir: Option<PathBuf>) -> Self {
        Self {
            root: None,
            state_dir,
        }
    }

    /// The sysfs and procfs files below `root`; the journal in `state_dir` or else in `root`/var/lib/nearfar.
    pub fn tree(root: PathBuf, state_dir: Option<PathBuf>) -> Self {
        Self {
            root: Some(root),
            state_dir,
        }
    }

    /// Whether this is a directory tree. A tree has no boots, no drivers, and is not restored by a reboot.
    pub fn is_tree(&self) -> bool {
        self.root.is_some()
    }

    /// The files of the target.
    ///
    /// # Errors
    /// When the tree's directory cannot be opened.
    pub fn system(&self) -> Result<Rooted, ApplyError> {
        let opened = match &self.root {
            Some(root) => Rooted::tree(root),
            None => Rooted::live(),
        };
        let place = || self.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        opened.map_err(|error| ApplyError::Root {
            root: place(),
            error,
        })
    }

    /// The boot the live system is in: what was written to sysfs and procfs in another boot is gone.
    pub(crate) fn boot(&self, system: &dyn System) -> Option<String> {
        let id = || first_line(system, "/proc/sys/kernel/random/boot_id");
        if self.is_tree() { None } else { id() }
    }

    /// Where its journals are kept.
    pub(crate) fn location(&self) -> Location {
        match (&self.state_dir, &self.root) {
            (Some(directory), _) => Location::Directory(directory.clone()),
            (None, Some(root)) => Location::InTree(root.clone()),
            (None, None) => Location::Directory(STATE_DIR.into()),
        }
    }

    /// The same, for messages.
    pub(crate) fn place(&self) -> String {
        self.location().path().display().to_string()
    }

    /// The target's host name, where it tells.
    pub(crate) fn host(&self, system: &dyn System) -> Option<String> {
        first_line(system, "/proc/sys/kernel/hostname")
            .or_else(|| first_line(system, "/etc/hostname"))
    }
}
