//! A Slurm cluster on this machine: a controller, a `slurmd` for each node, and a munge daemon with a key of its own.
//!
//! ```text
//! sbatch, squeue ──► slurmctld ──► slurmd -N n1 ──► slurmstepd ──► job
//!      │                │     └──► slurmd -N n2 ...
//!      └──── munged ────┘          all on this machine, all files in one directory
//! ```
//!
//! Needs root: slurmd starts jobs as their users. Needs neither systemd nor a configuration of the system's Slurm or munge.

mod config;
pub mod machines;
mod processes;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use config::Silence;

use crate::harness::Owned;

/// The partition of all nodes.
pub const PARTITION: &str = "fleet";

const PROGRAMS: [&str; 6] = [
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "sinfo",
    "scontrol",
];
/// Several times what a start takes, what the controller takes to see that a node is down, and what a guest takes.
const MAX_WAIT: Duration = Duration::from_secs(180);

/// A cluster that runs. When it is dropped, its daemons and jobs are killed.
pub struct Cluster {
    directory: PathBuf,
    _munged: Owned,
    slurmctld: Option<Owned>,
    slurmd: BTreeMap<String, Owned>,
}

impl Cluster {
    /// Starts a cluster of these nodes in a new directory and waits until all are idle. Where that is impossible, it prints
    /// why and gives `None`.
    #[track_caller]
    pub fn start(directory: &Path, nodes: &[&str], silence: Silence) -> Option<Self> {
        if !can_start() {
            return None;
        }
        fs::create_dir(directory).unwrap();
        config::write(directory, nodes, silence);
        let mut cluster = Self {
            directory: directory.to_owned(),
            _munged: munged(directory),
            slurmctld: None,
            slurmd: BTreeMap::new(),
        };
        cluster.wait_until(|_| match config::socket(directory).exists() {
            true => Ok(()),
            false => Err("munged has no socket".to_owned()),
        });
        let controller = daemon(directory, config::SLURMCTLD, "slurmctld", &["-D", "-i"]);
        cluster.slurmctld = Some(controller);
        for node in nodes {
            cluster.start_slurmd(node);
        }
        cluster.wait_until_idle();
        Some(cluster)
    }

    /// What a command needs to find this cluster.
    pub fn environment(&self) -> [(&'static str, PathBuf); 1] {
        [("SLURM_CONF", config::file(&self.directory))]
    }

    /// The answer of one of Slurm's commands, which has to succeed.
    #[track_caller]
    pub fn command(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        let command = command
            .args(arguments)
            .envs(self.environment())
            .stdin(Stdio::null());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {errors}\n{}",
            self.logs()
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The state of each node, such as `idle`, `allocated`, `down*`.
    #[track_caller]
    pub fn node_states(&self) -> BTreeMap<String, String> {
        let text = self.command("sinfo", &["--noheader", "--Node", "--format", "%N %T"]);
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        pairs
            .map(|(node, state)| (node.to_owned(), state.to_owned()))
            .collect()
    }

    #[track_caller]
    pub fn wait_until_idle(&self) {
        self.wait_until(|cluster| {
            if !cluster.has_controller() {
                return Err("the controller does not answer".to_owned());
            }
            match cluster.node_states() {
                states if states.values().all(|state| state == "idle") => Ok(()),
                states => Err(format!("not all nodes are idle: {states:?}")),
            }
        });
    }

    fn has_controller(&self) -> bool {
        let mut command = Command::new("scontrol");
        let command = command
            .arg("ping")
            .envs(self.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().unwrap().success()
    }

    /// Kills the daemon of a node. Its jobs continue, and their end stays unknown to the controller.
    pub fn kill_slurmd(&mut self, node: &str) {
        drop(self.slurmd.remove(node).unwrap());
    }

    /// Kills all processes of a node, as a loss of power does.
    pub fn crash(&mut self, node: &str) {
        self.kill_slurmd(node);
        let (file, directory) = (config::file(&self.directory), self.directory.join(node));
        processes::kill_all(|process| {
            // The daemon of a step has the directory of its slurmd, and no variable of the job.
            process.has("SLURM_CONF", &file)
                && (process.is_in(&directory) || process.has("SLURMD_NODENAME", node))
        });
    }

    /// Whether a job of this node runs a guest.
    pub fn has_guest(&self, node: &str) -> bool {
        let file = config::file(&self.directory);
        processes::is_any(|process| {
            process.runs("qemu-system")
                && process.has("SLURM_CONF", &file)
                && process.has("SLURMD_NODENAME", node)
        })
    }

    /// Tells the controller that a node is down, so that its jobs have failed.
    #[track_caller]
    pub fn set_down(&self, node: &str) {
        self.update(node, &["State=DOWN", "Reason=crashed"]);
    }

    /// The opposite of [`Self::set_down`], when its slurmd runs again.
    #[track_caller]
    pub fn set_up(&self, node: &str) {
        self.update(node, &["State=RESUME"]);
    }

    #[track_caller]
    fn update(&self, node: &str, changes: &[&str]) {
        let node = format!("NodeName={node}");
        self.command(
            "scontrol",
            &[&["update", node.as_str()][..], changes].concat(),
        );
    }

    /// Starts the daemon of a node again. The controller then returns the node to service, unless it was set down.
    pub fn restart_slurmd(&mut self, node: &str) {
        self.start_slurmd(node);
    }

    fn start_slurmd(&mut self, node: &str) {
        let slurmd = daemon(&self.directory, node, "slurmd", &["-D", "-N", node]);
        let before = self.slurmd.insert(node.to_owned(), slurmd);
        assert!(before.is_none(), "the slurmd of {node} runs");
    }

    /// Waits until there is no problem; how long that took.
    #[track_caller]
    fn wait_until(&self, look: impl Fn(&Self) -> Result<(), String>) {
        let start = Instant::now();
        while let Err(problem) = look(self) {
            let in_time = start.elapsed() < MAX_WAIT;
            assert!(in_time, "{problem} in time:\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The end of each daemon's output.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(&self.directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "out") {
                let log = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                let lines: Vec<_> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(20)..].join("\n");
                text += &format!("{}\n{end}\n", path.display());
            }
        }
        text
    }
}

impl Drop for Cluster {
    /// Daemons of steps outlive their slurmd, and processes of jobs may have sessions of their own.
    fn drop(&mut self) {
        let file = config::file(&self.directory);
        processes::kill_all(|process| process.has("SLURM_CONF", &file));
    }
}

/// Whether a cluster can be started here; says why not.
fn can_start() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: root: slurmd starts jobs as other users");
        return false;
    }
    let missing = PROGRAMS.iter().find(|program| find(program).is_none());
    if let Some(missing) = missing {
        println!("skipped: tools: there is no {missing}");
    }
    missing.is_none()
}

/// Daemons are not on every user's PATH.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    directories.find_map(|directory| {
        let file = directory.join(program);
        file.exists().then_some(file)
    })
}

fn munged(directory: &Path) -> Owned {
    let option = |name: &str, file: &str| format!("--{name}={}", directory.join(file).display());
    let arguments = [
        "--foreground".to_owned(),
        // A directory for temporary files has no permissions that munged accepts.
        "--force".to_owned(),
        // The name of a container may have no address.
        "--origin=127.0.0.1".to_owned(),
        "--num-threads=10".to_owned(),
        option("key-file", config::KEY),
        option("socket", config::SOCKET),
        option("pid-file", "munged.pid"),
        option("log-file", "munged.log"),
        option("seed-file", "munged.seed"),
    ];
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    daemon(directory, config::MUNGED, "munged", &arguments)
}

/// Starts a daemon in the foreground, in the directory of its name and with its output beside that.
fn daemon(directory: &Path, name: &str, program: &str, arguments: &[&str]) -> Owned {
    let output = File::options()
        .create(true)
        .append(true)
        .open(directory.join(format!("{name}.out")))
        .unwrap();
    let mut command = Command::new(find(program).unwrap());
    command
        .args(arguments)
        .env("SLURM_CONF", config::file(directory))
        .current_dir(directory.join(name))
        .stdin(Stdio::null())
        .stderr(output.try_clone().unwrap())
        .stdout(output);
    Owned(command.spawn().unwrap())
}
