//! What an experiment makes and what outlives a process: in a lease from the first one on.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_change::lease::{Lease, LeaseError, Leases, Process};

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
