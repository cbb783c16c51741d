//! What is set in the system for a cell, and put back afterwards.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nearfar_lease::Lease;
use nearfar_proc::choice::written;

use crate::experiment::BoxError;

/// A file of the kernel and what it is to hold, such as `/proc/sys/kernel/numa_balancing` and `0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The file.
    pub path: PathBuf,
    /// Its content, without a line end.
    pub value: Vec<u8>,
}

impl Setting {
    /// This file with this content.
    pub fn new(path: impl Into<PathBuf>, value: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            value: value.into(),
        }
    }
}

/// Where settings are made. A trait so that tests need no kernel and no privileges.
pub trait Settings {
    /// What a file holds now.
    ///
    /// # Errors
    /// The system's answer.
    fn current(&mut self, path: &Path) -> io::Result<Vec<u8>>;

    /// Gives a file this content, having made sure that what was there is put back even after a kill.
    ///
    /// # Errors
    /// The system's answer.
    fn set(&mut self, path: &Path, value: &[u8]) -> Result<(), BoxError>;

    /// Puts everything back.
    ///
    /// # Errors
    /// The system's answer.
    fn restore(&mut self) -> Result<(), BoxError>;
}

/// Settings of the running system, held by a lease from the first one on: it undoes them when this process ends,
/// however it ends.
#[derive(Default)]
pub struct Leased {
    what: String,
    lease: Option<Lease>,
}

impl Leased {
    /// Nothing set yet. `what` is what the lease is for, in words.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            lease: None,
        }
    }
}

impl Settings for Leased {
    fn current(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn set(&mut self, path: &Path, value: &[u8]) -> Result<(), BoxError> {
        let lease = match &mut self.lease {
            Some(lease) => lease,
            none => none.insert(Lease::take(&self.what)?),
        };
        Ok(lease.set_file(path, value)?)
    }

    fn restore(&mut self) -> Result<(), BoxError> {
        match self.lease.take() {
            Some(lease) => lease.release().map(|_| ()).map_err(Into::into),
            None => Ok(()),
        }
    }
}

/// Makes each cell's settings, and only those that are not so already.
pub(crate) struct Cells<'a> {
    settings: &'a mut dyn Settings,
    /// What the files that were set held before the run.
    before: BTreeMap<PathBuf, Vec<u8>>,
}

impl<'a> Cells<'a> {
    pub(crate) fn new(settings: &'a mut dyn Settings) -> Self {
        Self {
            settings,
            before: BTreeMap::new(),
        }
    }

    /// Makes the settings of a cell; what only other cells set is as before the run. The path of the one that could
    /// not be made comes with the error.
    pub(crate) fn make(&mut self, wanted: &[Setting]) -> Result<(), (PathBuf, BoxError)> {
        let others = self
            .before
            .iter()
            .filter(|(path, _)| !wanted.iter().any(|setting| setting.path == **path));
        let others: Vec<Setting> = others
            .map(|(path, value)| Setting::new(path, value.clone()))
            .collect();
        for Setting { path, value } in others.iter().chain(wanted) {
            let failed = |error: BoxError| (path.clone(), error);
            let now = self
                .settings
                .current(path)
                .map_err(|error| failed(error.into()))?;
            if !same(&now, value) {
                self.before
                    .entry(path.clone())
                    .or_insert_with(|| written(&now).to_vec());
                self.settings.set(path, value).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// What is no longer as it was set, in sentences: warnings of the sample in between.
    pub(crate) fn changed(&mut self, wanted: &[Setting]) -> Vec<String> {
        let mut changed = Vec::new();
        for Setting { path, value } in wanted {
            if let Ok(now) = self.settings.current(path)
                && !same(&now, value)
            {
                let text = |bytes: &[u8]| String::from_utf8_lossy(written(bytes)).into_owned();
                let (path, now, value) = (path.display(), text(&now), text(value));
                changed.push(format!(
                    "{path} was changed to \"{now}\" meanwhile, by somebody else: the cell needs \"{value}\""
                ));
            }
        }
        changed
    }

    pub(crate) fn restore(&mut self) -> Result<(), BoxError> {
        self.settings.restore()
    }
}

/// Whether a file says what is wanted.
fn same(now: &[u8], wanted: &[u8]) -> bool {
    written(now) == wanted.trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_what_stands_in_brackets() {
        assert!(same(b"1\n", b"1"));
        assert!(same(b"always [madvise] never\n", b"madvise"));
        assert!(!same(b"always [madvise] never\n", b"always"));
        assert!(!same(b"10\n", b"1"));
    }
}
