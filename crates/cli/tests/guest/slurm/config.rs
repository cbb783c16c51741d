//! The files of a cluster.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PARTITION, find};

/// The directories of the daemons that are no node's.
pub const MUNGED: &str = "munged";
pub const SLURMCTLD: &str = "slurmctld";
pub const KEY: &str = "munge.key";
pub const SOCKET: &str = "munge.socket";

/// How long a node may not answer before the controller takes it for down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// 14 to 18 s: the controller pings every 7 s, and needs two pings without an answer and 8 s.
    Short,
    /// Longer than any test takes: nodes answer late on a busy host, and [`super::Cluster::set_down`] sets those down that do not.
    Long,
}

/// The first series of Slurm that can do without control groups only if told so.
const FIRST_WITH_CGROUPS: u32 = 24;

pub fn file(directory: &Path) -> PathBuf {
    directory.join("slurm.conf")
}

pub fn socket(directory: &Path) -> PathBuf {
    directory.join(SOCKET)
}

/// Writes the configuration and the key, and makes the directories of the daemons.
pub fn write(directory: &Path, nodes: &[&str], silence: Silence) {
    write_key(&directory.join(KEY));
    for name in nodes.iter().copied().chain([MUNGED, SLURMCTLD]) {
        fs::DirBuilder::new()
            .mode(0o755)
            .create(directory.join(name))
            .unwrap();
    }
    fs::write(file(directory), text(directory, nodes, silence)).unwrap();
    if series().is_some_and(|series| series >= FIRST_WITH_CGROUPS) {
        fs::write(directory.join("cgroup.conf"), "CgroupPlugin=disabled\n").unwrap();
    }
}

fn write_key(path: &Path) {
    let mut key = [0; 128];
    let mut random = fs::File::open("/dev/urandom").unwrap();
    random.read_exact(&mut key).unwrap();
    let mut file = fs::OpenOptions::new();
    let file = file.write(true).create_new(true).mode(0o600).open(path);
    std::io::Write::write_all(&mut file.unwrap(), &key).unwrap();
}

/// The year of the version: 22 of `slurm-wlm 22.05.8`.
fn series() -> Option<u32> {
    let output = Command::new(find("slurmd")?).arg("-V").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace()
        .nth(1)?
        .split('.')
        .next()?
        .parse()
        .ok()
}

/// slurm.conf. Daemons listen at all addresses: to listen at one, they resolve the name of the machine, which a container may not
/// know. They accept what has the key. Times are several times what a busy host needs.
fn text(directory: &Path, nodes: &[&str], silence: Silence) -> String {
    let slurmd_timeout = match silence {
        Silence::Short => 8,
        Silence::Long => 1200,
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap();
    let ports = free_ports(nodes.len() + 1);
    let at = directory.display();
    let mut text = format!(
        "ClusterName=nearfar
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={at}/{SOCKET}
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd-%n.pid
StateSaveLocation={at}/{SLURMCTLD}
SlurmdSpoolDir={at}/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdTimeout={slurmd_timeout}
MessageTimeout=60
BatchStartTimeout=300
MinJobAge=3600
UnkillableStepTimeout=300
KillWait=2
ReturnToService=1
MailProg=/bin/true
",
        controller = ports[0],
    );
    for (node, port) in nodes.iter().zip(&ports[1..]) {
        text += &format!(
            "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=256 State=UNKNOWN\n"
        );
    }
    text + &format!("PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=60 State=UP\n")
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let ports = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().port());
    ports.collect()
}
