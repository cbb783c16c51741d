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
//!
//! A network namespace that only the maker's threads hold needs no record: the kernel removes it with the last of them, and with it
//! its virtual interfaces. Its cards come back to the first namespace, but down. Addresses and states are put back here.

mod process;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fmt, io};

use nearfar_proc::system::{RANDOM_UUID, random_digits};
use nearfar_proc::{TaskId, child};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde::{Deserialize, Serialize};

use crate::journal::Record;
use crate::lease::{Lease, LeaseError, Undone};
use crate::outcome::UndoResult;

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
    Interface(Interface),
}

impl Resource {
    /// Whether it is one that a lease can have made.
    pub(crate) fn check(&self) -> Result<(), String> {
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
        match good {
            true => Ok(()),
            false => Err(format!("{self} is nothing that nearfar makes")),
        }
    }

    /// Removes it, if it is there.
    pub(crate) fn remove(&self, same_boot: bool) -> Undone {
        let removed = match self {
            Self::Directory { path } => {
                remove_own(path, fs::Metadata::is_dir, |path| fs::remove_dir_all(path))
            }
            Self::File { path } => {
                remove_own(path, fs::Metadata::is_file, |path| fs::remove_file(path))
            }
            // The others do not outlive a boot.
            _ if !same_boot => Ok(UndoResult::GoneWithReboot),
            Self::Process { token, started } => process::end(token, *started),
            Self::ControlGroup { path } => remove(path),
            Self::NullBlock { name } => remove_null(name),
            Self::LoopDevice { file } => detach(file),
            Self::Interface(interface) => interface.restore(),
        };
        let result = removed.unwrap_or_else(|error| UndoResult::failed(&error));
        let subject = self.to_string();
        tracing::info!(subject, ?result, "remove");
        Undone { subject, result }
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
        self.note(Record::Resource(started.clone()), true)?;
        if let Some(registered) = self.contents.resources.last_mut() {
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
        make(&path).map_err(cannot("make the control group", &path))?;
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
        let made = make_null(&name, attributes);
        made.map_err(cannot("make a null block device in", Path::new(NULL)))
    }

    /// Makes a loop device of a file that [`Self::temporary_file`] made, and gives its device file.
    ///
    /// # Errors
    /// When the journal cannot be written or there is no loop device left.
    pub fn loop_device(&mut self, file: &Path) -> Result<PathBuf, LeaseError> {
        let file = file.to_owned();
        self.register(Resource::LoopDevice { file: file.clone() })?;
        attach(&file).map_err(cannot("make a loop device of", &file))
    }

    /// Starts a network interface and gives it an address of 198.18.0.0/15, which is kept for benchmarks. Afterwards the
    /// address is taken away, and the interface is up or down as it was.
    ///
    /// # Errors
    /// When the journal cannot be written, there is no such interface, this machine has the address already, or `ip` of iproute2
    /// refuses.
    pub fn network_address(&mut self, name: &str, address: Ipv4Addr) -> Result<(), LeaseError> {
        let refused = cannot("give an address to", Path::new(name));
        match is_taken(address) {
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
    ) -> Result<Interface, LeaseError> {
        let interface = Interface::now(name, address);
        let interface = interface.map_err(cannot("use the interface", Path::new(name)))?;
        self.register(Resource::Interface(interface.clone()))?;
        Ok(interface)
    }

    /// How many resources there are now, for [`Self::remove_since`].
    pub fn resource_mark(&self) -> usize {
        self.contents.resources.len()
    }

    /// Removes the resources that were made after the mark, newest first. What cannot be removed stays with the lease.
    ///
    /// # Errors
    /// The first one that could not be removed, after all others were.
    pub fn remove_since(&mut self, mark: usize) -> Result<(), LeaseError> {
        let mut failed = None;
        let before = self.contents.resources.len();
        let made = self.contents.resources.split_off(mark.min(before));
        for resource in made.iter().rev() {
            let Undone { subject, result } = resource.remove(true);
            if let UndoResult::Failed { error: reason } = result {
                self.contents.resources.push(resource.clone());
                failed = failed.or(Some(LeaseError::Undo { subject, reason }));
            }
        }
        self.removed += before - self.contents.resources.len();
        if self.removed > MAX_REMOVED + self.contents.resources.len() {
            // Where it cannot be, the longer journal goes on to count.
            let rewritten = self.rewrite();
            failed = failed.or(rewritten.err());
        }
        failed.map_or(Ok(()), Err)
    }

    fn register(&mut self, resource: Resource) -> Result<(), LeaseError> {
        resource.check().map_err(|reason| LeaseError::Undo {
            subject: resource.to_string(),
            reason,
        })?;
        self.note(Record::Resource(resource.clone()), true)?;
        self.contents.resources.push(resource);
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

/// Removes what has this name, if it is of this kind and this user's.
fn remove_own(
    path: &Path,
    is_of_kind: fn(&fs::Metadata) -> bool,
    remove: fn(&Path) -> io::Result<()>,
) -> io::Result<UndoResult> {
    match fs::symlink_metadata(path) {
        Err(error) => removed(Err(error)),
        Ok(found) if found.uid() == geteuid().as_raw() && is_of_kind(&found) => {
            removed(remove(path))
        }
        Ok(_) => Ok(foreign("of another kind or user")),
    }
}

/// What is not the lease's.
fn foreign(what: &str) -> UndoResult {
    UndoResult::ChangedSince {
        now: what.to_owned(),
        by_change_set: None,
    }
}

/// Removed, or gone already.
fn removed(answer: io::Result<()>) -> io::Result<UndoResult> {
    match answer {
        Ok(()) => Ok(UndoResult::Removed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UndoResult::Gone),
        Err(error) => Err(error),
    }
}

/// Where null_blk has its devices, once it is loaded and configfs is mounted.
const NULL: &str = "/sys/kernel/config/nullb";
/// include/uapi/linux/loop.h.
const LOOP_SET_FD: libc::Ioctl = 0x4c00;
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
/// Another process may take the free device first.
const MAX_ATTEMPTS: u32 = 16;

fn make_null(name: &str, attributes: &[(&str, &str)]) -> io::Result<PathBuf> {
    if !Path::new(NULL).is_dir() {
        let how = "there is no null_blk: modprobe null_blk nr_devices=0, with configfs mounted";
        return Err(io::Error::other(how));
    }
    let directory = Path::new(NULL).join(name);
    fs::create_dir(&directory)?;
    for (attribute, value) in attributes {
        let named = |error| io::Error::other(format!("{attribute} = {value}: {error}"));
        fs::write(directory.join(attribute), value).map_err(named)?;
    }
    fs::write(directory.join("power"), "1")?;
    // Named after the directory since 6.1, numbered before.
    let device = Path::new("/dev").join(name);
    if Path::new("/sys/block").join(name).exists() {
        return Ok(device);
    }
    let index = fs::read_to_string(directory.join("index"))?;
    Ok(format!("/dev/nullb{}", index.trim()).into())
}

fn remove_null(name: &str) -> io::Result<UndoResult> {
    let directory = Path::new(NULL).join(name);
    match fs::write(directory.join("power"), "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UndoResult::Gone),
        // One that never had power is removed all the same.
        _ => removed(fs::remove_dir(directory)),
    }
}

fn attach(file: &Path) -> io::Result<PathBuf> {
    let backing = OpenOptions::new().read(true).write(true).open(file)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    for _ in 0..MAX_ATTEMPTS {
        let free = ioctl(&control, LOOP_CTL_GET_FREE, 0)?;
        let path = PathBuf::from(format!("/dev/loop{free}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        match ioctl(&device, LOOP_SET_FD, backing.as_raw_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            answer => return answer.map(|_| path),
        }
    }
    Err(io::Error::other(
        "other processes take every free loop device",
    ))
}

/// Detaches the loop devices whose backing file this is.
fn detach(file: &Path) -> io::Result<UndoResult> {
    let mut status = UndoResult::Gone;
    let Ok(devices) = fs::read_dir("/sys/block") else {
        return Ok(status);
    };
    for device in devices {
        let name = device?.file_name();
        let backing = Path::new("/sys/block")
            .join(&name)
            .join("loop/backing_file");
        let Ok(backing) = fs::read_to_string(backing) else {
            continue;
        };
        let backing = backing
            .trim_end_matches('\n')
            .trim_end_matches(" (deleted)");
        if Path::new(backing) == file {
            let device = File::open(Path::new("/dev").join(&name))?;
            ioctl(&device, LOOP_CLR_FD, 0)?;
            status = UndoResult::Removed;
        }
    }
    Ok(status)
}

fn ioctl(file: &File, request: libc::Ioctl, argument: i32) -> io::Result<i32> {
    // SAFETY: these requests take an integer and no memory.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, argument) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// CGROUP2_SUPER_MAGIC (include/uapi/linux/magic.h).
const GROUPS_MAGIC: i64 = 0x6367_7270;
const EMPTY_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

pub(crate) fn make(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    if rustix::fs::statfs(parent)?.f_type != GROUPS_MAGIC {
        let what = format!("{} is not in the version 2 hierarchy", parent.display());
        return Err(io::Error::other(what));
    }
    fs::create_dir(path)
}

/// Ends all tasks in a group and the groups below it, and removes them.
pub(crate) fn remove(path: &Path) -> io::Result<UndoResult> {
    match fs::symlink_metadata(path) {
        Err(error) => return removed(Err(error)),
        Ok(found) if !found.is_dir() || rustix::fs::statfs(path)?.f_type != GROUPS_MAGIC => {
            return Ok(foreign("not a control group"));
        }
        Ok(_) => {}
    }
    // Since 5.14: all tasks of the whole tree, also those that fork meanwhile.
    let has_kill = match fs::write(path.join("cgroup.kill"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        answer => answer.map(|()| true)?,
    };
    let until = Instant::now() + EMPTY_WITHIN;
    loop {
        // What forks meanwhile is found by the next pass.
        if !has_kill {
            kill_members(path)?;
        }
        match remove_tree(path) {
            // A task that was killed counts until it has ended.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                sleep(POLL);
            }
            answer => return removed(answer),
        }
    }
}

/// Ends the processes that are now in a group and in those below it.
fn kill_members(path: &Path) -> io::Result<()> {
    let members = fs::read_to_string(path.join("cgroup.procs"))?;
    // 0 is a process that cannot be seen from here.
    let members = members.lines().filter_map(|line| line.parse().ok());
    for pid in members.filter_map(Pid::from_raw) {
        match kill_process(pid, Signal::KILL) {
            Err(error) if error != Errno::SRCH => return Err(error.into()),
            _ => {}
        }
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            kill_members(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// The kernel's IFNAMSIZ, with the zero at the end (include/uapi/linux/if.h).
const MAX_NAME_BYTES: usize = 16;
/// 198.18.0.0/15, which RFC 2544 keeps for benchmarks: the only addresses that a lease gives and takes.
const BENCHMARK_NET: [u8; 2] = [198, 18];
/// How long a card may take to come back from a namespace that is gone.
const BACK_WITHIN: Duration = Duration::from_secs(5);
const BACK_CHECK: Duration = Duration::from_millis(20);
/// include/uapi/linux/if.h.
const IFF_UP: u32 = 1;

/// An interface that is changed for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// The address that it gets.
    pub(crate) address: Option<Ipv4Addr>,
    /// Whether it was up before.
    was_up: bool,
}

impl Interface {
    /// The interface as it is now.
    ///
    /// # Errors
    /// Where there is none of this name.
    pub(crate) fn now(name: &str, address: Option<Ipv4Addr>) -> io::Result<Self> {
        let name = name.to_owned();
        let was_up = is_up(&name)?;
        let made = Self {
            name,
            address,
            was_up,
        };
        match made.is_good() {
            true => Ok(made),
            false => Err(io::Error::other(
                "not an interface's name, or an address outside 198.18.0.0/15",
            )),
        }
    }

    /// Whether a lease can have changed it.
    fn is_good(&self) -> bool {
        let name = self.name.as_bytes();
        let in_benchmark_net = |address: Ipv4Addr| {
            let [first, second, ..] = address.octets();
            [first, second & 0xfe] == BENCHMARK_NET
        };
        (1..MAX_NAME_BYTES).contains(&name.len())
            && !name.starts_with(b"-")
            && name
                .iter()
                .all(|&byte| byte.is_ascii_graphic() && byte != b'/')
            && ![".", ".."].contains(&self.name.as_str())
            && self.address.is_none_or(in_benchmark_net)
    }

    /// Adds the address, with a network of 256 addresses around it, and starts the interface.
    pub(crate) fn set(&self) -> io::Result<()> {
        if let Some(address) = self.address {
            ip(&[
                "address",
                "add",
                &format!("{address}/24"),
                "dev",
                &self.name,
            ])?;
        }
        ip(&["link", "set", "dev", &self.name, "up"])
    }

    pub(crate) fn restore(&self) -> io::Result<UndoResult> {
        let until = Instant::now() + BACK_WITHIN;
        while is_up(&self.name).is_err() {
            if Instant::now() > until {
                return Ok(UndoResult::Gone);
            }
            sleep(BACK_CHECK);
        }
        if let Some(address) = self.address {
            // One that is gone already is as wanted: what is left is asked below.
            let removed = ip(&[
                "address",
                "del",
                &format!("{address}/24"),
                "dev",
                &self.name,
            ]);
            if let (Err(error), true) = (removed, has_address(&self.name, address)?) {
                return Err(error);
            }
        }
        let state = if self.was_up { "up" } else { "down" };
        if is_up(&self.name)? != self.was_up {
            ip(&["link", "set", "dev", &self.name, state])?;
        }
        Ok(UndoResult::Removed)
    }
}

fn is_up(name: &str) -> io::Result<bool> {
    let path = Path::new("/sys/class/net").join(name).join("flags");
    let flags = fs::read_to_string(path)?;
    let digits = flags.trim().trim_start_matches("0x");
    let flags = u32::from_str_radix(digits, 16).map_err(|_| {
        io::Error::other(format!("its flags are {digits:?}, which is not a number"))
    })?;
    Ok(flags & IFF_UP != 0)
}

/// Whether any interface has an address. Undoing would take it from there.
fn is_taken(address: Ipv4Addr) -> io::Result<bool> {
    let address = address.to_string();
    let words = ["-oneline", "-4", "address", "show", "to", &address];
    Ok(!child::output("ip", &words)?.trim().is_empty())
}

fn has_address(name: &str, address: Ipv4Addr) -> io::Result<bool> {
    let mut command = Command::new("ip");
    command.args(["-oneline", "-4", "address", "show", "dev", name]);
    // It may be gone meanwhile, and has none then.
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.contains(&format!(" {address}/")))
}

/// Runs `ip` of iproute2.
fn ip(words: &[&str]) -> io::Result<()> {
    child::output("ip", words).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

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
            matches!(undone.result, UndoResult::ChangedSince { .. }),
            "{undone:?}"
        );
        assert!(path.symlink_metadata().is_ok());
    }

    /// As before Linux 5.14: the members are those of the files.
    #[test]
    fn without_the_file_that_kills_all_the_members_of_the_tree_are_killed() {
        let place = tempfile::tempdir().unwrap();
        let below = place.path().join("below");
        fs::create_dir(&below).unwrap();
        let sleeping = || Command::new("sleep").arg("600").spawn().unwrap();
        let (mut one, mut other) = (sleeping(), sleeping());
        fs::write(
            place.path().join("cgroup.procs"),
            format!("0\n{}\n", one.id()),
        )
        .unwrap();
        fs::write(below.join("cgroup.procs"), format!("{}\n", other.id())).unwrap();
        kill_members(place.path()).unwrap();
        for child in [&mut one, &mut other] {
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        kill_members(place.path()).unwrap();
    }

    #[test]
    fn a_journal_cannot_take_away_addresses_that_no_lease_gave() {
        let good = |name: &str, address: Option<&str>| {
            let address = address.map(|it| it.parse().unwrap());
            let name = name.to_owned();
            let was_up = false;
            Interface {
                name,
                address,
                was_up,
            }
            .is_good()
        };
        assert!(good("eth0", None) && good("enp0s31f6", Some("198.19.255.1")));
        for name in ["", "..", "-f", "a/b", "a b", "a234567890123456"] {
            assert!(!good(name, None), "{name}");
        }
        for address in ["198.20.0.1", "192.168.0.1", "127.0.0.1"] {
            assert!(!good("eth0", Some(address)), "{address}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_cannot_be_changed() {
        assert!(Interface::now("nearfar-none", None).is_err());
    }
}
