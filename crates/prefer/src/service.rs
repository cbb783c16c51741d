//! The service: rules from a file, tasks as they come, keepers that hold them.
//!
//! ```text
//! prefer.toml ──► rules ──┐                          ┌─► keeper of rule 1 (node 1)
//!                         ├─► roster ──► new tasks ──┼─► keeper of rule 2 (node 0)
//! /proc, now and then ────┘                          └─► ...
//! SIGHUP: the file is read again        SIGTERM: every keeper ends, and leaves its tasks as they were
//! ```
//!
//! What happens is an event of `tracing`, of the level INFO or WARN, whose message is a whole sentence and whose fields say
//! the same for programs; nothing is printed here.

pub mod roster;

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_change::trusted::{self, TrustError, TrustedDir};
use nearfar_machine::{Machine, NodeId};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::Serialize;

use crate::config::{Config, ConfigError, Place, Rule};
use crate::keeper::{Keeper, KeeperError, KeeperOptions, OpenProcess, Targets};
use crate::near::{self, NearError};
use crate::psi;
use roster::{Found, Roster};

/// How long a rule whose node or device is not there waits until it is looked for again.
const AGAIN: Duration = Duration::from_secs(60);
/// The configuration is a file that people write.
const LARGEST: u64 = 1 << 20;

/// Why a service does not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The configuration cannot be read.
    #[error("{}: {reason}", file.display())]
    Unreadable {
        file: PathBuf,
        /// The system's answer, or who else could change it.
        reason: TrustError,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is one already.
    #[error(transparent)]
    NotAlone(#[from] NotAlone),
    /// /proc cannot be read, or waiting failed.
    #[error("looking for tasks: {0}")]
    System(#[from] std::io::Error),
}

/// Controls a running service: flags that signals set, and a pipe that they wake it with.
#[derive(Debug)]
pub struct Control {
    /// End, and leave everything as it was.
    pub stop: Arc<AtomicBool>,
    /// Read the configuration again.
    pub reload: Arc<AtomicBool>,
    /// Can be read once one of them is set.
    pub wake: OwnedFd,
}

/// Why the machine cannot be read.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a service needs from the program that runs it.
pub struct Surroundings<'a> {
    /// Reads the running system, with its devices.
    pub machine: &'a dyn Fn() -> Result<Machine, BoxError>,
}

/// A rule and the processes it would have now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Checked {
    /// The rule's name.
    pub rule: String,
    /// Where its table begins in the file.
    pub line: usize,
    /// As in the file: `node 1`, `near eth0`.
    pub place: String,
    /// The node that means here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// How the node is known, or why there is none.
    pub located: String,
    /// The processes it would have.
    pub tasks: Vec<CheckedTask>,
}

/// A process that a rule would have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckedTask {
    pub pid: i32,
    /// The kernel's name for it.
    pub name: String,
    /// Rules that match it as well, and come too late.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
}

/// Reads and checks a configuration file. It says what is done with the rights of who reads it, so root or this user has to
/// have written it, and no other user can be able to change it.
///
/// # Errors
/// When it cannot be read, when another user could have written it, or something in it is wrong.
pub fn load(file: &std::path::Path) -> Result<Config, ServiceError> {
    let unreadable = |reason| ServiceError::Unreadable {
        file: file.to_owned(),
        reason,
    };
    let text = read(file).map_err(unreadable)?;
    Ok(crate::config::parse(&text, &file.display().to_string())?)
}

fn read(file: &std::path::Path) -> Result<String, TrustError> {
    let mut text = String::new();
    // What it says of its length may be of a moment ago.
    trusted::open_to_read(file)?
        .take(LARGEST + 1)
        .read_to_string(&mut text)?;
    match text.len() as u64 > LARGEST {
        true => {
            Err(std::io::Error::other("larger than a mebibyte, which no configuration is").into())
        }
        false => Ok(text),
    }
}

/// The node that a rule means on this machine, and how that is known.
///
/// # Errors
/// When there is no such node or device, or its node is unknown.
pub fn resolve(machine: &Machine, place: &Place) -> Result<(NodeId, String), NearError> {
    match place {
        Place::Node(node) => near::node(machine, *node).map(|node| (node, format!("node {node}"))),
        Place::Near(device) => {
            let home = near::find(machine, std::path::Path::new("/sys"), device)?;
            Ok((home.node, format!("near {device}: {home}")))
        }
    }
}

/// What each rule would have now. Nothing is changed.
///
/// # Errors
/// When /proc cannot be read.
pub fn check(config: &Config, machine: &Machine) -> Result<Vec<Checked>, ServiceError> {
    let checked = |rule: &Rule| {
        let (node, located) = match resolve(machine, &rule.place) {
            Ok((node, located)) => (Some(node), located),
            Err(error) => (None, error.to_string()),
        };
        let (name, place) = (rule.name.clone(), rule.place.to_string());
        Checked {
            rule: name,
            line: rule.line,
            place,
            node,
            located,
            tasks: Vec::new(),
        }
    };
    let mut answer: Vec<_> = config.rules.iter().map(checked).collect();
    for Found {
        pid,
        name,
        rule,
        also,
        ..
    } in Roster::default().round(&config.rules)?
    {
        let also = also
            .into_iter()
            .map(|rule| config.rules[rule].name.clone())
            .collect();
        answer[rule].tasks.push(CheckedTask { pid, name, also });
    }
    for rule in &mut answer {
        rule.tasks.sort_by_key(|task| task.pid);
    }
    Ok(answer)
}

/// Runs until it is asked to stop, and leaves every task as it was.
///
/// # Errors
/// When it cannot begin: the configuration is wrong, or there is another service. Later faults are logged.
pub fn run(
    file: &std::path::Path,
    control: &Control,
    surroundings: &Surroundings<'_>,
) -> Result<(), ServiceError> {
    let config = load(file)?;
    let _only = Only::take(&Only::directory())?;
    let mut shift = Shift::begin(config, surroundings);
    notify("READY=1");
    while !control.stop.load(Ordering::Relaxed) {
        if control.reload.swap(false, Ordering::Relaxed) {
            shift = reload(shift, file, surroundings);
        }
        shift.round(surroundings)?;
        wait(control, shift.config.scan)?;
    }
    notify("STOPPING=1");
    shift.end();
    Ok(())
}

/// Until something is to be done or the time is over.
fn wait(control: &Control, limit: Duration) -> Result<(), ServiceError> {
    if psi::wait(None, control.wake.as_fd(), Some(limit))? == psi::Woken::ByOther {
        // The flags say what was meant; only one byte, so that one signal more is one round more.
        let _ = rustix::io::read(&control.wake, &mut [0; 1]);
    }
    Ok(())
}

/// The configuration as it is now; the old one stays where that is wrong.
fn reload(shift: Shift, file: &std::path::Path, surroundings: &Surroundings<'_>) -> Shift {
    match load(file) {
        Err(error) => {
            tracing::warn!(path = %file.display(), reason = %error, "the configuration stays as it was: {error}");
            shift
        }
        Ok(config) if config == shift.config => {
            tracing::info!(path = %file.display(), "the configuration is the same");
            shift
        }
        Ok(config) => {
            shift.end();
            tracing::info!(path = %file.display(), "{} read again", file.display());
            Shift::begin(config, surroundings)
        }
    }
}

/// The time under one configuration.
struct Shift {
    config: Config,
    roster: Roster,
    posts: Vec<Post>,
    machine: Option<Machine>,
    looked: Instant,
}

/// The state of a rule.
enum Post {
    /// Its node is not known yet.
    Waiting,
    /// It has a node, and no task so far.
    Idle(NodeId),
    /// It has tasks.
    Busy(NodeId, Keeper),
}

impl Shift {
    fn begin(config: Config, surroundings: &Surroundings<'_>) -> Self {
        let posts = config.rules.iter().map(|_| Post::Waiting).collect();
        let mut shift = Self {
            config,
            roster: Roster::default(),
            posts,
            machine: None,
            looked: Instant::now(),
        };
        let (scan, rules) = (shift.config.scan, shift.config.rules.len());
        tracing::info!(
            rules,
            "{rules} rules, new tasks are looked for every {} s",
            scan.as_secs_f64()
        );
        shift.place(surroundings, true);
        shift
    }

    /// Finds the nodes of rules that have none.
    fn place(&mut self, surroundings: &Surroundings<'_>, say: bool) {
        self.looked = Instant::now();
        let machine = match (surroundings.machine)() {
            Ok(machine) => machine,
            Err(error) => {
                return tracing::warn!(reason = %error, "cannot read the machine: {error}");
            }
        };
        for (index, (rule, post)) in self.config.rules.iter().zip(&mut self.posts).enumerate() {
            if !matches!(post, Post::Waiting) {
                continue;
            }
            match resolve(&machine, &rule.place) {
                Ok((node, located)) => {
                    tracing::info!(rule = rule.name, node = node.0, "{}: {located}", rule.name);
                    *post = Post::Idle(node);
                    // Tasks that it could not take so far.
                    self.roster.forget(index);
                }
                Err(error) if say => {
                    let (rule, seconds) = (&rule.name, AGAIN.as_secs());
                    tracing::warn!(
                        rule,
                        reason = %error,
                        "{rule}: {error}; looked for again every {seconds} s"
                    );
                }
                Err(_) => {}
            }
        }
        self.machine = Some(machine);
    }

    fn round(&mut self, surroundings: &Surroundings<'_>) -> Result<(), ServiceError> {
        let waiting = self.posts.iter().any(|post| matches!(post, Post::Waiting));
        if waiting && self.looked.elapsed() >= AGAIN {
            self.place(surroundings, false);
        }
        for found in self.roster.round(&self.config.rules)? {
            self.take(&found);
        }
        Ok(())
    }

    fn take(&mut self, found: &Found) {
        let rule = &self.config.rules[found.rule];
        let Some(machine) = &self.machine else { return };
        let who = format!("{}: {} (process {})", rule.name, found.name, found.pid);
        // It may have been kept so far as the child of a process of another rule.
        for (_, post) in self
            .posts
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != found.rule)
        {
            if let Post::Busy(_, keeper) = post {
                keeper.let_go(found.process.pid());
            }
        }
        let taken = self.posts[found.rule].take(&found.process, rule, machine);
        match taken {
            Ok(Some(node)) => {
                let late = found
                    .also
                    .iter()
                    .map(|&rule| self.config.rules[rule].name.as_str())
                    .collect::<Vec<_>>();
                let late = if late.is_empty() {
                    String::new()
                } else {
                    format!("; {} came too late", late.join(", "))
                };
                tracing::info!(
                    rule = rule.name,
                    pid = found.pid,
                    name = found.name,
                    node = node.0,
                    "{who} prefers node {node}{late}"
                );
            }
            // It has ended meanwhile, and the next round finds what has its number then.
            Ok(None) | Err(KeeperError::NoProcess { .. }) => {}
            Err(error) => {
                let reason = error.to_string();
                let is_news = match error {
                    // The rule's other tasks have lost their keeper too: all are found by the next round.
                    KeeperError::Died => {
                        self.roster.forget(found.rule);
                        true
                    }
                    _ => self.roster.again(found.pid, &reason),
                };
                if is_news {
                    tracing::warn!(
                        rule = rule.name,
                        pid = found.pid,
                        name = found.name,
                        reason,
                        "{who} is left as it is, and tried again: {reason}"
                    );
                }
            }
        }
    }

    /// Ends every keeper: the tasks are as they were.
    fn end(self) {
        for (rule, post) in self.config.rules.iter().zip(self.posts) {
            let Post::Busy(_, keeper) = post else {
                continue;
            };
            match keeper.stop() {
                Ok(report) => {
                    let (processes, out, cpu) = (report.processes, report.widened, report.cpu_s);
                    let did = format!(
                        "{processes} processes kept, threads released {out} times, {cpu:.3} s of CPU time"
                    );
                    tracing::info!(
                        rule = rule.name,
                        processes,
                        cpu_s = cpu,
                        "{}: given back ({did})",
                        rule.name
                    );
                }
                Err(error) => {
                    tracing::warn!(rule = rule.name, reason = %error, "{}: {error}", rule.name)
                }
            }
        }
    }
}

impl Post {
    /// Has the rule's keeper take a process; the node, or nothing where the rule has none.
    fn take(
        &mut self,
        process: &OpenProcess,
        rule: &Rule,
        machine: &Machine,
    ) -> Result<Option<NodeId>, KeeperError> {
        match self {
            Self::Waiting => Ok(None),
            Self::Busy(node, keeper) => {
                let (node, added) = (*node, keeper.add(process.clone()));
                if matches!(added, Err(KeeperError::Died)) {
                    *self = Self::Idle(node);
                }
                added.map(|()| Some(node))
            }
            Self::Idle(node) => {
                let node = *node;
                let targets = Targets::Processes(vec![process.clone()]);
                *self = Self::Busy(
                    node,
                    Keeper::start(targets, node, machine, options_of(rule))?,
                );
                Ok(Some(node))
            }
        }
    }
}

/// What a rule asks of its keeper. Processes that a kept one makes have inherited its mask and are kept with it, also as
/// daemons; the roster finds those that another rule has.
fn options_of(rule: &Rule) -> KeeperOptions {
    let nodes = Some(PathBuf::from("/sys/devices/system/node"));
    KeeperOptions {
        memory: rule.memory,
        observe: true,
        nodes,
        ..KeeperOptions::default()
    }
}

/// Tells the service manager something, such as `READY=1` (sd_notify(3)); nothing where none asked to be told.
pub fn notify(word: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    // A manager that does not listen is no reason to end.
    let _ = send(socket.as_bytes(), word.as_bytes());
}

fn send(socket: &[u8], word: &[u8]) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(socket)))?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(word, &address)
        .map(drop)
}

/// Whose holder is the one service; it says which process that is.
const LOCK: &str = "prefer-service.lock";

/// Held by the one service of a user, until it ends in whatever way.
#[derive(Debug)]
pub struct Only {
    _file: File,
}

/// Why there can be no service: another one has the lock, or it cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotAlone(String);

impl Only {
    /// Takes the lock in this directory, which is made if need be.
    ///
    /// # Errors
    /// When another service holds it, when another user can change what is in the directory, or it cannot be written.
    pub fn take(directory: &Path) -> Result<Self, NotAlone> {
        let path = directory.join(LOCK);
        let refused = |reason: TrustError| NotAlone(format!("{}: {reason}", path.display()));
        let trusted = TrustedDir::make(directory)
            .map_err(|reason| NotAlone(format!("{}: {reason}", directory.display())))?;
        let mut file = trusted
            .open_file(LOCK, OFlags::RDWR | OFlags::CREATE)
            .map_err(refused)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(refused(io::Error::from(error).into()));
            }
            let mut text = String::new();
            let read = (&file).take(32).read_to_string(&mut text);
            let holder = match text.trim().parse::<u32>() {
                Ok(pid) if read.is_ok() => format!("process {pid}"),
                _ => "another process".to_owned(),
            };
            return Err(NotAlone(format!(
                "{holder} is a nearfar prefer service already; kill -HUP makes it read its configuration again"
            )));
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|error| refused(error.into()))?;
        Ok(Self { _file: file })
    }

    /// Where the lock is: $RUNTIME_DIRECTORY, which systemd gives, /run/nearfar for root, $XDG_RUNTIME_DIR/nearfar for others,
    /// or the directory for temporary files.
    pub fn directory() -> PathBuf {
        let of = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        if let Some(given) = of("RUNTIME_DIRECTORY") {
            // One for each name in RuntimeDirectory=, with colons between them (systemd.exec(5)).
            let first = given
                .as_os_str()
                .as_bytes()
                .split(|&byte| byte == b':')
                .next()
                .unwrap_or_default();
            return PathBuf::from(std::ffi::OsStr::from_bytes(first));
        }
        let user = rustix::process::geteuid();
        if user.is_root() {
            return PathBuf::from("/run/nearfar");
        }
        match of("XDG_RUNTIME_DIR") {
            Some(runtime) => runtime.join("nearfar"),
            None => std::env::temp_dir().join(format!("nearfar-{}", user.as_raw())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_service_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("run/nearfar");
        let first = Only::take(&directory).unwrap();
        let text = Only::take(&directory).unwrap_err().to_string();
        assert!(
            text.contains(&format!(
                "process {} is a nearfar prefer service",
                std::process::id()
            )),
            "{text}"
        );
        drop(first);
        Only::take(&directory).unwrap();
    }

    #[test]
    fn a_manager_hears_it_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("nearfar-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let listening = [
            UnixDatagram::bind(&path).unwrap(),
            UnixDatagram::bind_addr(&abstract_name).unwrap(),
        ];
        send(path.as_os_str().as_bytes(), b"READY=1").unwrap();
        send(format!("@{name}").as_bytes(), b"READY=1").unwrap();
        for socket in listening {
            let mut buffer = [0; 16];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }
}
