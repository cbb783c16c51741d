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

use anyhow::{Context as _, bail};
use nearfar_proc::{Comm, Stat, tasks};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, setsid, wait,
};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

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
        let left = deadline.saturating_duration_since(Instant::now());
        // A time of zero would mean no limit.
        let left = left.max(Duration::from_millis(1));
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

/// Runs an order in a supervisor.
pub fn supervise(order: &Order) -> anyhow::Result<Ending> {
    // Not by its path: the build may have replaced this program's file.
    let mut child = Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a supervisor")?;
    let input = child.stdin.take().context("no standard input")?;
    serde_json::to_writer(input, order).context("cannot write the order")?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let program = order.program.display();
        bail!("the supervisor of {program}: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("cannot read what the supervisor wrote")
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
        bail!("the runner has ended");
    }
    let ending = run(&order, events)?;
    serde_json::to_writer(std::io::stdout(), &ending).context("cannot write the ending")
}

fn start(order: &Order) -> anyhow::Result<Pid> {
    let log = File::options().append(true).create(true).open(&order.log);
    let log = log.context("cannot open the log")?;
    let child = Command::new(&order.program)
        .args(&order.arguments)
        .current_dir(&order.directory)
        .envs(&order.environment)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn();
    let child = child.with_context(|| format!("cannot start {}", order.program.display()))?;
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
        let killed;
        (killed, ending.unkillable) = end_all(test, order.pause, &mut events);
        if matches!(ending.how, How::Exited(_) | How::Signalled(_)) {
            ending.left = killed;
        }
    }
    Ok(ending)
}

/// Waits as long as the pause for all processes to end, then kills them until none is left. Returns those that it had to kill, and
/// those that it could not.
fn end_all(test: Pid, pause: Duration, events: &mut Events) -> (Vec<String>, Vec<String>) {
    let deadline = Instant::now() + pause;
    while Instant::now() < deadline {
        if !reap(test, &mut None) {
            return Default::default();
        }
        events.wait_until(deadline);
    }
    let killed = describe();
    let deadline = Instant::now() + KILL_WAIT;
    while reap(test, &mut None) {
        if Instant::now() >= deadline {
            return (killed, describe());
        }
        // Again each time, since a process may have started others after the list was read.
        kill(&descendants());
        events.wait_until(Instant::now() + Duration::from_millis(20));
    }
    (killed, Vec::new())
}

fn describe() -> Vec<String> {
    descendants().iter().map(Process::describe).collect()
}

/// A process as /proc describes it at one moment.
#[derive(Debug, Clone)]
struct Process {
    pid: i32,
    stat: Stat,
    /// Its short name, which a process that ended and was not waited for still has.
    name: Comm,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let (stat, name) = tasks::stat_with_name(pid).ok()?;
        Some(Self { pid, stat, name })
    }

    /// One line for a person: number, state, what it waits for in the kernel, command line.
    fn describe(&self) -> String {
        let text = |file: &str| {
            let mut content = Vec::new();
            let read = tasks::open(self.pid, file);
            // A process that ended meanwhile has nothing to show.
            let _ = read.and_then(|mut file| file.read_to_end(&mut content));
            let content = String::from_utf8_lossy(&content).replace('\0', " ");
            content.trim().to_owned()
        };
        let command = match text("cmdline") {
            none if none.is_empty() => format!("[{}]", self.name),
            command => command,
        };
        let (pid, state, wchan) = (self.pid, self.stat.state, text("wchan"));
        let line = format!("process {pid} (state {state}, {wchan}): {command}");
        line.chars().take(160).collect()
    }
}

/// The processes below this one that have not ended. This process is a subreaper, so a process whose parent ended is still
/// below it.
fn descendants() -> Vec<Process> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let all = tasks::processes().unwrap_or_default().into_iter();
    let all: BTreeMap<i32, Process> = all
        .filter_map(|pid| Some((pid, Process::read(pid)?)))
        .collect();
    let is_below = |process: &&Process| {
        let mut parent = process.stat.parent;
        // The list is read while processes come and go, so a chain of parents may not end: no chain is longer than the list.
        for _ in 0..all.len() {
            match all.get(&parent) {
                _ if parent == own => return true,
                Some(above) => parent = above.stat.parent,
                None => return false,
            }
        }
        false
    };
    let running = all.values().filter(|process| !process.stat.is_ended());
    running.filter(is_below).cloned().collect()
}

/// Sends SIGKILL to each.
fn kill(processes: &[Process]) {
    let pids = processes.iter().map(|process| process.pid);
    for pid in pids.filter_map(Pid::from_raw) {
        // It may have ended meanwhile, which is what is wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_a_descendant_until_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let number = child.id().cast_signed();
        let found: Vec<_> = descendants()
            .into_iter()
            .filter(|process| process.pid == number)
            .collect();
        assert_eq!(found.len(), 1);
        kill(&found);
        child.wait().unwrap();
        assert!(!descendants().iter().any(|process| process.pid == number));
    }
}
