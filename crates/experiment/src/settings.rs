//! What is set in the system for a cell, and put back afterwards.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nearfar_change::Change;
use nearfar_change::Setting;
use nearfar_change::lease::Lease;
use nearfar_proc::choice;

use crate::experiment::BoxError;

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
    before: BTreeMap<PathBuf, String>,
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
    pub(crate) fn make(&mut self, wanted: &[Change]) -> Result<(), (PathBuf, BoxError)> {
        let files: Vec<PathBuf> = wanted.iter().map(file).collect();
        let others: Vec<(PathBuf, String)> = self
            .before
            .iter()
            .filter(|(path, _)| !files.contains(path))
            .map(|(path, value)| (path.clone(), value.clone()))
            .collect();
        for (path, value) in others {
            self.set(&path, |now| content(now) == value, |_| value.clone())
                .map_err(|error| (path, error))?;
        }
        for (change, path) in wanted.iter().zip(files) {
            let setting = Setting::of(change);
            let failed = |error: BoxError| (path.clone(), error);
            setting.check().map_err(|reason| failed(reason.into()))?;
            self.set(
                &path,
                |now| setting.same(content(now), &value_of(change, now)),
                |now| value_of(change, now),
            )
            .map_err(failed)?;
        }
        Ok(())
    }

    /// Sets a file unless it is so already.
    fn set(
        &mut self,
        path: &Path,
        is_so: impl Fn(&str) -> bool,
        value: impl Fn(&str) -> String,
    ) -> Result<(), BoxError> {
        let now = self.text(path)?;
        if is_so(&now) {
            return Ok(());
        }
        self.before
            .entry(path.to_owned())
            .or_insert_with(|| content(&now).to_owned());
        self.settings.set(path, value(&now).as_bytes())
    }

    fn text(&mut self, path: &Path) -> Result<String, BoxError> {
        Ok(String::from_utf8(self.settings.current(path)?)?)
    }

    /// What is no longer as it was set, in sentences: warnings about the sample in between.
    pub(crate) fn changed(&mut self, wanted: &[Change]) -> Vec<String> {
        let mut changed = Vec::new();
        for change in wanted {
            let (setting, path) = (Setting::of(change), file(change));
            let Ok(now) = self.text(&path) else { continue };
            let value = value_of(change, &now);
            if !setting.same(content(&now), &value) {
                let (path, now) = (path.display(), setting.shown(content(&now)));
                let value = setting.shown(&value);
                changed.push(format!(
                    "another process set {path} to \"{now}\" during the sample; the cell needs \"{value}\""
                ));
            }
        }
        changed
    }

    pub(crate) fn restore(&mut self) -> Result<(), BoxError> {
        self.settings.restore()
    }
}

/// The file of a change.
fn file(change: &Change) -> PathBuf {
    Setting::of(change).path().into()
}

/// What a change writes, in the form that the file has now, without a line end.
fn value_of(change: &Change, now: &str) -> String {
    nearfar_change::wanted(change, now).trim_end().to_owned()
}

/// What would have to be written for a file to have this content.
fn content(said: &str) -> &str {
    choice::chosen(said).unwrap_or(said.trim())
}
