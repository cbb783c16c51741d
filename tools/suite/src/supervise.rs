//! A process between the runner and one test: it adopts what the test leaves behind, and kills all of it.
//!
//! The runner starts itself again with [`ARGUMENT`], writes an [`Order`] to the standard input of that process and reads an
//! [`Ending`] from its standard output. One such process for each test is what makes "all of the test" exact: it is a
//! subreaper, so each process that the test starts stays below it, also in a session of its own and after its parent ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, setsid, wait,
};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

use crate::processes::{self, descendants};

/// The only argument of the process that supervises.
pub const ARGUMENT: &str = "--supervise";

/// How long processes may take to end after SIGKILL. One in an uninterruptible call of the kernel takes longer.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// What to run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub directory: PathBuf,
    /// Set in addition to the environment of the runner.
    pub environment: BTreeMap<String, String>,
    /// Receives standard output and standard error. A file, since an orphan that holds a pipe open would block its reader.
    pub log: PathBuf,
    pub limit: Duration,
    /// The time between SIGTERM and SIGKILL, and the time that processes have to end after the test.
    pub pause: Duration,
    /// The runner's process number; the supervisor ends with the runner.
    pub runner: i32,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum How {
    Exited(i32),
    Signalled(i32),
    OverLimit,
    /// The runner ended or asked for the end.
    Interrupted,
}

/// What was seen of a test from the outside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ending {
    pub how: How,
    pub seconds: f64,
    /// The processes of a test over its limit before they were killed, each in one line.
    pub hung: Vec<String>,
    /// Processes that were there after the test had ended, and after the pause. They were killed.
    pub left: Vec<String>,
    /// Processes that SIGKILL did not end.
    pub unkillable: Vec<String>,
}

/// Wakes up where a child ends or a signal asks for the end.
struct Events {
    wakeups: UnixStream,
    interrupted: Arc<AtomicBool>,
}

impl Events {
    fn new() -> anyhow::Result<Self> {
        let (wakeups, sender) = UnixStream::pair()?;
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        for signal in [SIGTERM, SIGINT, SIGCHLD] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self {
            wakeups,
            interrupted,
        })
    }

    /// Returns at the next event, at the deadline, or before either.
    fn wait_until(&mut self, deadline: Instant) {
        // A time of zero would mean no limit.
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        if self.wakeups.set_read_timeout(Some(left)).is_ok() {
            let _ = self.wakeups.read(&mut [0; 64]);
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// Waits for all children that ended; whether there are others, and how `test` ended if it did.
fn reap(test: Pid, how: &mut Option<How>) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == test => *how = Some(decode(status)),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn decode(status: WaitStatus) -> How {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Signalled(signal.unwrap_or_default()),
    }
}

/// Runs the order that standard input holds and writes the ending to standard output.
pub fn main() -> anyhow::Result<()> {
    let order: Order =
        serde_json::from_reader(std::io::stdin()).context("cannot read the order")?;
    let events = Events::new()?;
    set_child_subreaper(Some(getpid()))?;
    // No terminal: a test that asks one for input fails instead of being stopped.
    setsid()?;
    set_parent_process_death_signal(Some(Signal::TERM))?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != order.runner) {
        anyhow::bail!("the runner has ended");
    }
    let ending = run(&order, events)?;
    serde_json::to_writer(std::io::stdout(), &ending).context("cannot write the ending")
}

fn start(order: &Order) -> anyhow::Result<Pid> {
    let log = File::options()
        .append(true)
        .create(true)
        .open(&order.log)
        .context("cannot open the log")?;
    let mut command = Command::new(&order.program);
    command
        .args(&order.arguments)
        .current_dir(&order.directory)
        .envs(&order.environment);
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {}", order.program.display()))?;
    Ok(Pid::from_child(&child))
}

fn run(order: &Order, mut events: Events) -> anyhow::Result<Ending> {
    let begin = Instant::now();
    let test = start(order)?;
    let mut ended = None;
    let mut has_children = true;
    let deadline = begin + order.limit;
    while ended.is_none() && !events.is_interrupted() && Instant::now() < deadline {
        events.wait_until(deadline);
        has_children = reap(test, &mut ended);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let mut ending = Ending {
        how: How::Interrupted,
        seconds,
        hung: Vec::new(),
        left: Vec::new(),
        unkillable: Vec::new(),
    };
    if let Some(how) = ended {
        ending.how = how;
    } else {
        if !events.is_interrupted() {
            ending.how = How::OverLimit;
            ending.hung = describe();
        }
        let _ = kill_process_group(test, Signal::TERM);
    }
    if has_children {
        let rest = end_all(test, order.pause, &mut events);
        ending.unkillable = rest.unkillable;
        if matches!(ending.how, How::Exited(_) | How::Signalled(_)) {
            ending.left = rest.killed;
        }
    }
    Ok(ending)
}

/// What [`end_all`] had to kill, and what it could not.
struct Rest {
    killed: Vec<String>,
    unkillable: Vec<String>,
}

/// Waits as long as the pause for all processes to end, then kills them until none is left.
fn end_all(test: Pid, pause: Duration, events: &mut Events) -> Rest {
    let mut rest = Rest {
        killed: Vec::new(),
        unkillable: Vec::new(),
    };
    let deadline = Instant::now() + pause;
    while Instant::now() < deadline {
        if !reap(test, &mut None) {
            return rest;
        }
        events.wait_until(deadline);
    }
    rest.killed = describe();
    let deadline = Instant::now() + KILL_WAIT;
    while reap(test, &mut None) {
        if Instant::now() >= deadline {
            rest.unkillable = describe();
            break;
        }
        // Again each time, since a process may have started others after the list was read.
        processes::kill(&descendants());
        events.wait_until(Instant::now() + Duration::from_millis(20));
    }
    rest
}

fn describe() -> Vec<String> {
    descendants()
        .iter()
        .map(processes::Process::describe)
        .collect()
}
