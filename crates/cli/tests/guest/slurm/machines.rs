//! The machines of four nodes: a job's command runs in a guest of its node's machine.
//!
//! | node | differs from the others in |
//! |---|---|
//! | n1 | the distance of the other node, 31 instead of 21; its delays are theirs |
//! | n2 | the delay of far memory, 2000 instead of 800 ns |
//! | n3 | the card's receive interrupts, on the CPU of the other node |
//! | n4 | nothing |
//!
//! n2 to n4 start from the same saved guest.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::guests::{NEARFAR, SERIES};

pub const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Delays of near and far memory, in ns.
pub const NEAR_NS: u32 = 400;
pub const FAR_NS: u32 = 800;
/// That of far memory on n2.
pub const FAR_NS_OF_N2: u32 = 2000;

/// The control group of the command in its guest. Its memory may be on both nodes, its CPUs are those in JOB_CPUS, or all.
pub const GROUP: &str = "job.slice";

/// A guest that takes longer is ended, in seconds.
const COMMAND_TIMEOUT_S: u32 = 300;

/// The command in n1's guest does not begin before there is this file in the directory of the machines: n1 crashes before.
pub const REPAIRED: &str = "repaired";

/// Writes the machines and a program that runs `nearfar` with its arguments in a guest of the machine of the node in
/// SLURMD_NODENAME. Outside a node it is `nearfar`.
pub fn write_wrapper(directory: &Path) -> PathBuf {
    for distance in [21, 31] {
        // The guest is named after the file, which is the same on all nodes.
        let folder = directory.join(format!("distance-{distance}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("machine.toml"), machine(distance)).unwrap();
    }
    let file = directory.join("nearfar-in-guest");
    fs::write(&file, script(directory)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

/// Two nodes of one CPU, and a card on node 1, whose interrupts the kernel gives to CPU 1.
fn machine(distance: u32) -> String {
    format!(
        r#"architecture = "x86_64"
distances = [[10, {distance}], [{distance}, 10]]

[[node]]
cpus = 1
memory = "384M"
package = 0

[[node]]
cpus = 1
memory = "384M"
package = 1

[[bridge]]
root = "0000:20"
firmware_node = 1

[[nic]]
name = "eth0"
bridge = "0000:20"
queues = 2
"#
    )
}

fn script(directory: &Path) -> String {
    // A job has the environment of the command that submitted it: that of a sandbox, without kernels.
    let cache = ["XDG_CACHE_HOME", "HOME"].map(|name| match std::env::var(name) {
        Ok(value) => format!("export {name}='{value}'\n"),
        Err(_) => format!("unset {name}\n"),
    });
    let cache = cache.concat();
    let at = directory.display();
    let group = format!("/sys/fs/cgroup/{GROUP}");
    format!(
        r#"#!/bin/sh
{cache}distance=21 far={FAR_NS} before=:
case $SLURMD_NODENAME in
n1) distance=31 before='[ -e {at}/{REPAIRED} ] || sleep 600' ;;
n2) far={FAR_NS_OF_N2} ;;
n3) before='for irq in $(sed -n "s/^ *\([0-9]*\):.* eth0-rx-.*/\1/p" /proc/interrupts); do
        echo 0 > /proc/irq/$irq/smp_affinity_list || exit
    done' ;;
n4) ;;
*) exec '{NEARFAR}' "$@" ;;
esac
exec '{NEARFAR}' lab run --machine '{at}'/distance-$distance/machine.toml \
    --kernel {SERIES} --accel tcg --delay near={NEAR_NS},far=$far,cache=1M/16 --command-timeout {COMMAND_TIMEOUT_S} \
    -- sh -c "$before"'
    echo +cpuset +memory > /sys/fs/cgroup/cgroup.subtree_control && mkdir {group} &&
    echo '"$JOB_CPUS"' > {group}/cpuset.cpus && echo $$ > {group}/cgroup.procs && exec "$0" "$@"' '{NEARFAR}' "$@"
"#
    )
}
