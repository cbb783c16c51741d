//! Tasks that do as they are told (examples/obey.rs), cpusets that a test makes, and a machine whose nodes have one CPU each.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::examples::example;
use nearfar_change::lease::Leases;
use nearfar_machine::{CpuId, CpuSet, Machine, NodeId};
use nearfar_prefer::rule::RuleOptions;
use nearfar_prefer::{Keeper, KeeperError, KeeperOptions, Targets};
use nearfar_proc::affinity;
use nearfar_sources::{Request, Want};

pub fn machine() -> Machine {
    let sources = vec!["node:2 core:1 pu:1".to_owned()];
    nearfar_sources::read(&Request {
        sources,
        root: None,
        fake: None,
        want: Want::topology(),
    })
    .unwrap()
}

pub fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// The node's CPUs.
pub fn home() -> CpuSet {
    cpus("0")
}

/// The CPUs of this test, if they are enough.
pub fn own() -> Option<CpuSet> {
    let own = affinity::get(0).unwrap();
    let enough = [0, 1].iter().all(|&cpu| own.contains(CpuId(cpu)));
    if !enough {
        println!("skipped: cpus: CPUs 0 and 1 stand for two nodes, and this test may use {own}");
    }
    enough.then_some(own)
}

/// A deadline against hanging: no test judges how fast something is.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Waits until it holds.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < MAX_WAIT,
            "{what}: not within {MAX_WAIT:?}"
        );
        sleep(Duration::from_millis(2));
    }
}

/// Options of a keeper that releases no task, however long tasks wait for CPU 0: other work on this host changes no mask.
pub fn confining() -> KeeperOptions {
    KeeperOptions {
        rule: RuleOptions {
            looks: u32::MAX,
            ..RuleOptions::default()
        },
        ..KeeperOptions::default()
    }
}

pub fn mask(tid: i32) -> CpuSet {
    affinity::get(tid).unwrap_or_default()
}

/// A task by its process and number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    pub pid: i32,
    pub tid: i32,
}

impl Task {
    pub fn mask(self) -> CpuSet {
        mask(self.tid)
    }
}

/// Tasks that do as they are told, each with a number. All end with this value.
pub struct Tasks {
    pub place: tempfile::TempDir,
    socket: UnixDatagram,
    pub tasks: BTreeMap<usize, Task>,
    first: Child,
    /// Every process there was.
    pids: Vec<i32>,
}

impl Tasks {
    /// The first one, number 0, in a session of its own.
    pub fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(place.path().join("test")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut command = Command::new("setsid");
        command.arg(example("obey")).arg(place.path()).arg("0");
        let first = command.stdin(Stdio::null()).spawn().unwrap();
        let mut tasks = Self {
            place,
            socket,
            tasks: BTreeMap::new(),
            first,
            pids: Vec::new(),
        };
        tasks.arrived(0);
        tasks
    }

    fn hear(&self) -> String {
        let mut bytes = [0; 256];
        let length = self.socket.recv(&mut bytes).expect("an answer of a task");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    fn arrived(&mut self, number: usize) -> Task {
        let answer = self.hear();
        let (pid, tid) = answer
            .split_once(' ')
            .unwrap_or_else(|| panic!("task {number}: {answer}"));
        let task = Task {
            pid: pid.parse().unwrap(),
            tid: tid.parse().unwrap(),
        };
        self.tasks.insert(number, task);
        self.pids.push(task.pid);
        task
    }

    fn say(&self, number: usize, command: &str) {
        self.socket
            .send_to(
                command.as_bytes(),
                self.place.path().join(number.to_string()),
            )
            .unwrap();
    }

    /// Has a task make another: `thread`, `fork` or `daemon`.
    pub fn make(&mut self, number: usize, how: &str, made: usize) -> Task {
        self.say(number, &format!("{how} {made}"));
        self.arrived(made)
    }

    pub fn exec(&mut self, number: usize) -> Task {
        self.say(number, "exec");
        let pid = self.tasks[&number].pid;
        self.tasks
            .retain(|&other, task| other == number || task.pid != pid);
        self.arrived(number)
    }

    /// Has it do something, which must succeed.
    #[track_caller]
    pub fn tell(&self, number: usize, command: &str) {
        assert_eq!(
            self.ask(number, command),
            "done",
            "task {number}: {command}"
        );
    }

    pub fn ask(&self, number: usize, command: &str) -> String {
        self.say(number, command);
        self.hear()
    }

    /// Has a thread end; returns when it is gone.
    pub fn end(&mut self, number: usize) {
        let Some(task) = self.tasks.remove(&number) else {
            return;
        };
        self.say(number, "end");
        wait_until("the thread ends", || {
            nearfar_proc::tasks::stat_of(task.pid, task.tid).map_or(true, |stat| stat.state == 'Z')
        });
    }

    /// Kills a process with SIGKILL; returns when it is gone.
    pub fn kill(&mut self, pid: i32) {
        self.tasks.retain(|_, task| task.pid != pid);
        end_process(pid);
        wait_until("the process ends", || {
            nearfar_proc::tasks::stat(pid).map_or(true, |stat| stat.state == 'Z')
        });
    }

    pub fn leases(&self) -> Leases {
        Leases::at(self.state())
    }

    pub fn state(&self) -> PathBuf {
        self.place.path().join("leases")
    }

    /// Keeps the first task's process.
    pub fn keeper(&self, options: KeeperOptions) -> Result<Keeper, KeeperError> {
        let options = KeeperOptions {
            leases: Some(self.leases()),
            ..options
        };
        Keeper::start(
            Targets::Pids(vec![self.tasks[&0].pid]),
            NodeId(0),
            &machine(),
            options,
        )
    }
}

fn end_process(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Only those that are still tasks of this test: a number may be another process's by now.
        let program = example("obey");
        for &pid in &self.pids {
            if std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program) {
                end_process(pid);
            }
        }
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

/// Whether the keeper can observe here: root, in the initial pid namespace, with tracefs.
pub fn can_observe() -> bool {
    let initial = nearfar_trace::migrations::in_first_pid_namespace();
    let event = |tracefs: nearfar_trace::Tracefs| {
        tracefs.tracepoint("syscalls", "sys_enter_sched_setaffinity")
    };
    let can = initial
        && rustix::process::geteuid().is_root()
        && nearfar_trace::Tracefs::find().and_then(event).is_ok();
    if !can {
        println!(
            "skipped: root: forks cannot be observed here (root, tracefs, the initial pid namespace)"
        );
    }
    can
}

/// A keeper in a process of its own, which can be killed; it releases no task ([`confining`]).
pub struct KeeperProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl KeeperProcess {
    /// None where it refuses.
    pub fn start(leases: &Path, pids: &[i32], observe: bool) -> Option<Self> {
        let mut command = Command::new(example("keep"));
        command
            .arg(leases)
            .args(pids.iter().map(i32::to_string))
            .env("CONFINE", "1");
        if observe {
            command.env("OBSERVE", "1");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let kept = lines.next().is_some_and(|line| line.unwrap() == "kept");
        if !kept {
            child.wait().unwrap();
            return None;
        }
        let stdin = child.stdin.take();
        Some(Self {
            child,
            stdin,
            lines,
        })
    }

    /// Until all that are there now are on record.
    pub fn settle(&mut self) {
        writeln!(self.stdin.as_mut().unwrap(), "settle").unwrap();
        assert_eq!(self.lines.next().unwrap().unwrap(), "settled");
    }

    pub fn stop(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A cpuset that is removed with this value, of whichever version of control groups has the controller.
pub struct Cpuset {
    directory: PathBuf,
    root: PathBuf,
    version_2: bool,
}

impl Cpuset {
    /// With all CPUs. None where this test may make none.
    pub fn new(name: &str) -> Option<Self> {
        let made = [
            ("/sys/fs/cgroup/cpuset", false),
            ("/sys/fs/cgroup/unified", true),
            ("/sys/fs/cgroup", true),
        ]
        .into_iter()
        .find_map(|(root, version_2)| Self::at(Path::new(root), name, version_2));
        if made.is_none() {
            println!(
                "skipped: root: no cpuset can be made here (root, a writable hierarchy with the cpuset controller)"
            );
        }
        made
    }

    fn at(root: &Path, name: &str, version_2: bool) -> Option<Self> {
        let (file, mems) = if version_2 {
            ("cgroup.subtree_control", None)
        } else {
            ("cpuset.mems", Some("0"))
        };
        if !root.join(file).exists()
            || version_2 && std::fs::write(root.join(file), "+cpuset").is_err()
        {
            return None;
        }
        let directory = root.join(format!("nearfar-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&directory).ok()?;
        let made = Self {
            directory,
            root: root.to_owned(),
            version_2,
        };
        if let Some(mems) = mems {
            std::fs::write(made.directory.join("cpuset.mems"), mems).ok()?;
        }
        made.set("0-1").then_some(made)
    }

    #[must_use]
    pub fn set(&self, cpus: &str) -> bool {
        std::fs::write(self.directory.join("cpuset.cpus"), cpus).is_ok()
    }

    /// Moves a process with all its threads here.
    pub fn take(&self, pid: i32) {
        std::fs::write(self.directory.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Moves a process to the root.
    pub fn release(&self, pid: i32) {
        std::fs::write(self.root.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let tasks =
            std::fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
        for pid in tasks.lines() {
            let _ = std::fs::write(self.root.join("cgroup.procs"), pid);
        }
        let begun = Instant::now();
        while std::fs::remove_dir(&self.directory).is_err() && begun.elapsed() < MAX_WAIT {
            sleep(Duration::from_millis(10));
        }
    }
}
