//! What is changed: the live system, or the same files below a directory.

use std::io;
use std::path::PathBuf;

use crate::error::ApplyError;
use crate::system::{Rooted, System, first_line};

/// Where the journal lies unless somebody says otherwise.
pub(crate) const STATE_DIR: &str = "/var/lib/nearfar";

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

    /// Where the journal is, for messages.
    pub(crate) fn place(&self) -> String {
        let below = || self.root.as_ref().map(|root| root.join(&STATE_DIR[1..]));
        let place = self
            .state_dir
            .clone()
            .or_else(below)
            .unwrap_or_else(|| STATE_DIR.into());
        place.display().to_string()
    }

    /// The target's host name, where it tells.
    pub(crate) fn host(&self, system: &dyn System) -> Option<String> {
        first_line(system, "/proc/sys/kernel/hostname")
            .or_else(|| first_line(system, "/etc/hostname"))
    }
}

/// The system's own words for an error, without Rust's "(os error 28)".
pub(crate) fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => {
            let text = error.to_string();
            text.strip_suffix(&format!(" (os error {code})"))
                .map(str::to_owned)
                .unwrap_or(text)
        }
        None => error.to_string(),
    }
}
