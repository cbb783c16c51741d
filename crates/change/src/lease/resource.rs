//! What a lease makes that outlives a process: removed at release, by the guard, or by the next nearfar.
//!
//! ```text
//!  journal: {"resource":{"directory":{"path":"/tmp/nearfar-9f..."}}}   on disk before the directory exists
//!  mkdir /tmp/nearfar-9f...
//!  ...                                                                 SIGKILL at any point
//!  recover: the name is one that only nearfar gives, and it is ours ─► removed
//! ```
//!
//! A journal is not trusted: whatever it says, only things with a name that nearfar makes up are removed, and only
//! processes that have the start time or the token on record. Removing what is gone already is no error.

mod block;
mod control_group;
mod network;
mod process;

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_proc::system::{RANDOM_UUID, random_digits};
use nearfar_proc::{TaskId, error_text};
use serde::{Deserialize, Serialize};

use crate::lease::record::ForeignError;
use crate::lease::record::LeaseRecord;
use crate::lease::{Lease, LeaseError, UndoStatus, Undone};

pub use process::Process;

/// All names that a lease makes up begin so and end with a token.
const PREFIX: &str = "nearfar-";
/// Removed resources that a journal may name besides those that there are: 1000 records take 120 KiB, and a rewrite
/// costs as much as some records.
const MAX_REMOVED: usize = 1000;
/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 16;

/// Something that outlives the process that made it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Resource {
    /// A process and all that it starts: they have the token in their environment.
    Process {
        token: String,
        /// Known once it runs.
        started: Option<TaskId>,
    },
    Directory {
        path: PathBuf,
    },
    File {
        path: PathBuf,
    },
    /// A version 2 control group with all tasks in it.
    ControlGroup {
        path: PathBuf,
    },
    /// A null block device, by its directory in `/sys/kernel/config/nullb`.
    NullBlock {
        name: String,
    },
    /// The loop device of a file, by the file: the kernel chooses the device.
    LoopDevice {
        file: PathBuf,
    },
    /// A network interface that is up, has an address or is in another namespace for a while.
    Interface(network::Interface),
}

impl Resource {
    /// Whether it is one that a lease can have made.
    pub(crate) fn check(&self) -> Result<(), ForeignError> {
        let good = match self {
            Self::Process { token, .. } => is_token(token),
            Self::NullBlock { name } => is_ours(name),
            Self::Interface(interface) => interface.is_good(),
            Self::Directory { path }
            | Self::File { path }
            | Self::ControlGroup { path }
            | Self::LoopDevice { file: path } => {
                let name = path.file_name().and_then(|name| name.to_str());
                path.is_absolute()
                    && !path.components().any(|part| part.as_os_str() == "..")
                    && name.is_some_and(is_ours)
            }
        };
        good.then_some(())
            .ok_or_else(|| ForeignError::Resource(self.to_string()))
    }

    /// Removes it, if it is there.
    pub(crate) fn remove(&self, same_boot: bool) -> Undone {
        let removed = match self {
            Self::Directory { path } => remove_directory(path),
            Self::File { path } => remove_file(path),
            // The others do not outlive a boot.
            _ if !same_boot => Ok(UndoStatus::Gone),
            Self::Process { token, started } => process::end(token, *started),
            Self::ControlGroup { path } => control_group::remove(path),
            Self::NullBlock { name } => block::remove_null(name),
            Self::LoopDevice { file } => block::detach(file),
            Self::Interface(interface) => interface.restore(),
        };
        let status = removed.unwrap_or_else(|error| UndoStatus::Failed {
            reason: error_text(&error),
        });
        let subject = self.to_string();
        tracing::info!(subject, result = ?status, "remove");
        Undone { subject, status }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process {
                started: Some(task),
                ..
            } => write!(f, "process {}", task.tid),
            Self::Process { token, .. } => write!(f, "processes with token {token:.32}"),
            Self::Directory { path } => write!(f, "directory {}", path.display()),
            Self::File { path } => write!(f, "file {}", path.display()),
            Self::ControlGroup { path } => write!(f, "control group {}", path.display()),
            Self::NullBlock { name } => write!(f, "null block device {name:.64}"),
            Self::LoopDevice { file } => write!(f, "loop device of {}", file.display()),
            Self::Interface(interface) => write!(f, "interface {:.16}", interface.name),
        }
    }
}

impl Lease {
    /// Makes an empty directory among the temporary files, for this user only.
    ///
    /// # Errors
    /// When the journal cannot be written or the directory cannot be made.
    pub fn temporary_directory(&mut self) -> Result<PathBuf, LeaseError> {
        let path = temporary(&token()?)?;
        self.register(Resource::Directory { path: path.clone() })?;
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(cannot("make the directory", &path))?;
        Ok(path)
    }

    /// Makes a temporary file of this many bytes (a hole), for this user only.
    ///
    /// # Errors
    /// When the journal cannot be written or the file cannot be made.
    pub fn temporary_file(&mut self, bytes: u64) -> Result<PathBuf, LeaseError> {
        let (path, _) = self.file_in(&std::env::temp_dir(), bytes)?;
        Ok(path)
    }

    /// The same in a directory, and open. Who can write to the directory can replace the file: it is to be used by what is open.
    ///
    /// # Errors
    /// As there.
    pub fn file_in(&mut self, directory: &Path, bytes: u64) -> Result<(PathBuf, File), LeaseError> {
        let directory = fs::canonicalize(directory).map_err(cannot("use", directory))?;
        let path = directory.join(named(&token()?));
        self.register(Resource::File { path: path.clone() })?;
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|file: File| file.set_len(bytes).map(|()| file));
        let file = made.map_err(cannot("make the file", &path))?;
        Ok((path, file))
    }

    /// Starts a process, which ends with the lease together with all that it starts. It ends at once when the calling
    /// thread ends. Its environment has a token; it must hand that on to what it starts.
    ///
    /// # Errors
    /// When the journal cannot be written or the program cannot be started.
    pub fn start(&mut self, command: Command) -> Result<Process, LeaseError> {
        let token = token()?;
        let resource = |started| Resource::Process {
            token: token.clone(),
            started,
        };
        self.register(resource(None))?;
        let program = PathBuf::from(command.get_program());
        let process = process::start(command, &token).map_err(cannot("start", &program))?;
        let started = resource(process.task());
        self.note(LeaseRecord::Resource(started.clone()), true)?;
        if let Some(registered) = self.resources.last_mut() {
            *registered = started;
        }
        Ok(process)
    }

    /// Makes a control group below this one, which has to be of the version 2 hierarchy.
    ///
    /// # Errors
    /// When the journal cannot be written or the group cannot be made.
    pub fn control_group(&mut self, parent: &Path) -> Result<PathBuf, LeaseError> {
        let parent = fs::canonicalize(parent).map_err(cannot("make a control group in", parent))?;
        let path = parent.join(named(&token()?));
        self.register(Resource::ControlGroup { path: path.clone() })?;
        control_group::make(&path).map_err(cannot("make the control group", &path))?;
        Ok(path)
    }

    /// Makes a null block device with these attributes (Documentation/block/null_blk.rst: `size`, `memory_backed`) and
    /// gives its device file.
    ///
    /// # Errors
    /// When the journal cannot be written, null_blk is not loaded, or an attribute is refused.
    pub fn null_block(&mut self, attributes: &[(&str, &str)]) -> Result<PathBuf, LeaseError> {
        let name = named(&token()?);
        self.register(Resource::NullBlock { name: name.clone() })?;
        let made = block::make_null(&name, attributes);
        made.map_err(cannot(
            "make a null block device in",
            Path::new(block::NULL),
        ))
    }

    /// Makes a loop device of a file that [`Self::temporary_file`] made, and gives its device file.
    ///
    /// # Errors
    /// When the journal cannot be written or there is no loop device left.
    pub fn loop_device(&mut self, file: &Path) -> Result<PathBuf, LeaseError> {
        let file = file.to_owned();
        self.register(Resource::LoopDevice { file: file.clone() })?;
        block::attach(&file).map_err(cannot("make a loop device of", &file))
    }

    /// Starts a network interface and gives it an address of 198.18.0.0/15, which is kept for benchmarks. Afterwards the
    /// address is taken away, and the interface is up or down as it was.
    ///
    /// # Errors
    /// When the journal cannot be written, there is no such interface, this machine has the address already, or `ip` of iproute2
    /// refuses.
    pub fn network_address(&mut self, name: &str, address: Ipv4Addr) -> Result<(), LeaseError> {
        let refused = cannot("give an address to", Path::new(name));
        match network::is_taken(address) {
            Ok(false) => {}
            Ok(true) => {
                let reason = format!("this machine has {address} already");
                return Err(refused(io::Error::other(reason)));
            }
            Err(error) => return Err(refused(error)),
        }
        self.interface(name, Some(address))?.set().map_err(refused)
    }

    /// Records a network interface that the caller is about to move to a network namespace of its own. When that namespace is
    /// gone, the interface comes back; it is then up or down as it was.
    ///
    /// # Errors
    /// When the journal cannot be written or there is no such interface.
    pub fn moved_interface(&mut self, name: &str) -> Result<(), LeaseError> {
        self.interface(name, None).map(drop)
    }

    fn interface(
        &mut self,
        name: &str,
        address: Option<Ipv4Addr>,
    ) -> Result<network::Interface, LeaseError> {
        let interface = network::Interface::now(name, address);
        let interface = interface.map_err(cannot("use the interface", Path::new(name)))?;
        self.register(Resource::Interface(interface.clone()))?;
        Ok(interface)
    }

    /// How many resources there are now, for [`Self::remove_since`].
    pub fn resource_mark(&self) -> usize {
        self.resources.len()
    }

    /// Removes the resources that were made after the mark, newest first. What cannot be removed stays with the lease.
    ///
    /// # Errors
    /// The first one that could not be removed, after all others were.
    pub fn remove_since(&mut self, mark: usize) -> Result<(), LeaseError> {
        let mut failed = None;
        let before = self.resources.len();
        for resource in self
            .resources
            .split_off(mark.min(self.resources.len()))
            .iter()
            .rev()
        {
            let Undone { subject, status } = resource.remove(true);
            if let UndoStatus::Failed { reason } = status {
                self.resources.push(resource.clone());
                failed = failed.or(Some(LeaseError::Undo { subject, reason }));
            }
        }
        self.removed += before - self.resources.len();
        if self.removed > MAX_REMOVED + self.resources.len() {
            // Where it cannot be, the longer journal goes on to count.
            let rewritten = self.rewrite();
            failed = failed.or(rewritten.err());
        }
        failed.map_or(Ok(()), Err)
    }

    fn register(&mut self, resource: Resource) -> Result<(), LeaseError> {
        resource.check().map_err(|error| LeaseError::Undo {
            subject: resource.to_string(),
            reason: error.to_string(),
        })?;
        self.note(LeaseRecord::Resource(resource.clone()), true)?;
        self.resources.push(resource);
        Ok(())
    }
}

fn cannot<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LeaseError + use<'a> {
    move |error| LeaseError::Make {
        doing,
        path: path.to_owned(),
        error,
    }
}

fn temporary(token: &str) -> Result<PathBuf, LeaseError> {
    let parent = std::env::temp_dir();
    let parent = fs::canonicalize(&parent).map_err(cannot("use", &parent))?;
    Ok(parent.join(named(token)))
}

fn named(token: &str) -> String {
    format!("{PREFIX}{token}")
}

/// A token that no other has.
fn token() -> Result<String, LeaseError> {
    let mut digits = random_digits().map_err(cannot("read", Path::new(RANDOM_UUID)))?;
    digits.truncate(TOKEN_DIGITS);
    Ok(digits)
}

fn is_token(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == TOKEN_DIGITS && text.bytes().all(digit)
}

fn is_ours(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(is_token)
}

fn remove_directory(path: &Path) -> io::Result<UndoStatus> {
    match fs::symlink_metadata(path) {
        Ok(found) if is_of_this_user(&found) && found.is_dir() => removed(fs::remove_dir_all(path)),
        found => gone_or_foreign(found),
    }
}

fn remove_file(path: &Path) -> io::Result<UndoStatus> {
    match fs::symlink_metadata(path) {
        Ok(found) if is_of_this_user(&found) && found.is_file() => removed(fs::remove_file(path)),
        found => gone_or_foreign(found),
    }
}

fn is_of_this_user(found: &fs::Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

fn gone_or_foreign(found: io::Result<fs::Metadata>) -> io::Result<UndoStatus> {
    match found {
        Ok(_) => Ok(UndoStatus::NotOurs {
            now: "of another kind or user".to_owned(),
        }),
        Err(error) => removed(Err(error)),
    }
}

/// Removed, or gone already.
fn removed(answer: io::Result<()>) -> io::Result<UndoStatus> {
    match answer {
        Ok(()) => Ok(UndoStatus::Removed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UndoStatus::Gone),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_cannot_name_what_nearfar_did_not_make() {
        let good = "nearfar-0123456789abcdef";
        let directory = |path: &str| Resource::Directory { path: path.into() };
        assert!(directory(&format!("/tmp/{good}")).check().is_ok());
        for path in [
            "/",
            "/tmp",
            "/home/user",
            "tmp/nearfar-0123456789abcdef",
            "/tmp/../nearfar-0123456789abcdef",
            "/tmp/nearfar-0123456789abcdeF",
            "/tmp/nearfar-0123456789abcdef/..",
            "/tmp/nearfar-0123456789abcdef0",
            "/tmp/nearfar-",
        ] {
            assert!(directory(path).check().is_err(), "{path}");
        }
        for token in [
            "",
            "0123456789abcde",
            "0123456789abcde\0",
            "../3456789abcdef",
        ] {
            let (token, started) = (token.to_owned(), None);
            assert!(Resource::Process { token, started }.check().is_err());
        }
        let name = format!("../{good}");
        assert!(Resource::NullBlock { name }.check().is_err());
    }

    #[test]
    fn a_link_with_such_a_name_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nearfar-0123456789abcdef");
        std::os::unix::fs::symlink("/etc", &path).unwrap();
        let undone = Resource::Directory { path: path.clone() }.remove(true);
        assert!(
            matches!(undone.status, UndoStatus::NotOurs { .. }),
            "{undone:?}"
        );
        assert!(path.symlink_metadata().is_ok());
    }
}
