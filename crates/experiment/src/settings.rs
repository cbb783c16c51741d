//! What is set in the system for a cell and put back afterwards, and what an experiment makes that outlives a process: both in a lease
//! from the first one on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_change::lease::{Lease, LeaseError, Leases, Process};
use nearfar_change::{Change, Setting};
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

/// Makes resources; they are removed after the sample or the run that they were made for, or after a kill.
#[derive(Default)]
pub struct Resources {
    what: String,
    /// `None` for those of this user.
    leases: Option<Leases>,
    lease: Option<Lease>,
}

impl Resources {
    /// None yet. `what` says in the lease what they are for.
    pub fn new(what: impl Into<String>) -> Self {
        let what = what.into();
        Self {
            what,
            ..Self::default()
        }
    }

    /// The same with leases in this directory.
    pub fn at(leases: Leases, what: impl Into<String>) -> Self {
        Self {
            leases: Some(leases),
            ..Self::new(what)
        }
    }

    /// As [`Lease::temporary_directory`].
    ///
    /// # Errors
    /// As there.
    pub fn temporary_directory(&mut self) -> Result<PathBuf, LeaseError> {
        self.lease()?.temporary_directory()
    }

    /// As [`Lease::temporary_file`].
    ///
    /// # Errors
    /// As there.
    pub fn temporary_file(&mut self, bytes: u64) -> Result<PathBuf, LeaseError> {
        self.lease()?.temporary_file(bytes)
    }

    /// As [`Lease::file_in`].
    ///
    /// # Errors
    /// As there.
    pub fn file_in(&mut self, directory: &Path, bytes: u64) -> Result<(PathBuf, File), LeaseError> {
        self.lease()?.file_in(directory, bytes)
    }

    /// As [`Lease::start`].
    ///
    /// # Errors
    /// As there.
    pub fn start(&mut self, command: Command) -> Result<Process, LeaseError> {
        self.lease()?.start(command)
    }

    /// The same with pipes to its standard input and output, for [`Process::ask`].
    ///
    /// # Errors
    /// As there.
    pub fn start_with_pipes(&mut self, mut command: Command) -> Result<Process, LeaseError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        self.start(command)
    }

    /// As [`Lease::control_group`].
    ///
    /// # Errors
    /// As there.
    pub fn control_group(&mut self, parent: &Path) -> Result<PathBuf, LeaseError> {
        self.lease()?.control_group(parent)
    }

    /// As [`Lease::null_block`].
    ///
    /// # Errors
    /// As there.
    pub fn null_block(&mut self, attributes: &[(&str, &str)]) -> Result<PathBuf, LeaseError> {
        self.lease()?.null_block(attributes)
    }

    /// As [`Lease::loop_device`].
    ///
    /// # Errors
    /// As there.
    pub fn loop_device(&mut self, file: &Path) -> Result<PathBuf, LeaseError> {
        self.lease()?.loop_device(file)
    }

    /// As [`Lease::network_address`].
    ///
    /// # Errors
    /// As there.
    pub fn network_address(&mut self, name: &str, address: Ipv4Addr) -> Result<(), LeaseError> {
        self.lease()?.network_address(name, address)
    }

    /// As [`Lease::moved_interface`].
    ///
    /// # Errors
    /// As there.
    pub fn moved_interface(&mut self, name: &str) -> Result<(), LeaseError> {
        self.lease()?.moved_interface(name)
    }

    pub(crate) fn mark(&self) -> usize {
        self.lease.as_ref().map_or(0, Lease::resource_mark)
    }

    pub(crate) fn remove_since(&mut self, mark: usize) -> Result<(), LeaseError> {
        self.lease
            .as_mut()
            .map_or(Ok(()), |lease| lease.remove_since(mark))
    }

    pub(crate) fn remove_all(&mut self) -> Result<(), LeaseError> {
        self.lease
            .take()
            .map_or(Ok(()), |lease| lease.release().map(drop))
    }

    fn lease(&mut self) -> Result<&mut Lease, LeaseError> {
        match &mut self.lease {
            Some(lease) => Ok(lease),
            none => {
                let lease = match &self.leases {
                    Some(leases) => leases.take(&self.what),
                    None => Lease::take(&self.what),
                };
                Ok(none.insert(lease?))
            }
        }
    }
}
