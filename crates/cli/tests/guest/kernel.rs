//! What needs a kernel of its own: settings in debugfs, and pressure stall information. A container's kernel often has neither,
//! and tests do not change the settings of the machine that they run on.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::guests;
use crate::waiting::wait_until;
use nearfar_prefer::psi::{Trigger, Woken};

const MIGRATION_COST: &str = "/sys/kernel/debug/sched/migration_cost_ns";

#[test]
fn settings_of_a_killed_run_are_restored_and_pressure_wakes_a_trigger() {
    if guests::skipped() {
        return;
    }
    for part in [
        "kernel::restores_the_settings_of_a_killed_run",
        "kernel::wakes_a_trigger_by_pressure",
    ] {
        guests::part("two-node", &["--scale", "cpus=1,memory=384M"], part);
    }
}

#[test]
#[ignore = "a part that runs in the guest"]
fn restores_the_settings_of_a_killed_run() {
    assert!(guests::is_inside());
    let before = std::fs::read_to_string(MIGRATION_COST).unwrap();
    let other = (before.trim().parse::<u64>().unwrap() + 1000).to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(guests::NEARFAR);
    command.args([
        "bench", "probe", "--bytes", "4M", "--counts", "4", "--steps", "20000", "--load", "5",
    ]);
    command.args([
        "--samples",
        "1000",
        "--factor",
        "preferred_node=-1",
        "--factor",
        "numa_balancing=0",
        "--migration-cost-ns",
        &other,
    ]);
    command
        .env("NEARFAR_STORE", folder.path().join("runs.db"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let now = || std::fs::read_to_string(MIGRATION_COST).unwrap();
    wait_until("the run writes the setting", || now().trim() == other);
    // SIGKILL, which no process can handle.
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the guard restores the setting", || now() == before);
}

#[test]
#[ignore = "a part that runs in the guest"]
fn wakes_a_trigger_by_pressure() {
    assert!(guests::is_inside());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let second = Duration::from_secs(1);
    let trigger = Trigger::arm(Path::new("/proc/pressure/cpu"), second / 10, second).unwrap();
    // More loops than CPUs, so that some of them wait at any time.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut load: Vec<_> = (0..3 * cpus)
        .map(|_| {
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
        })
        .collect();
    let woken = trigger
        .wait(std::os::fd::AsFd::as_fd(&reader), Some(60 * second))
        .unwrap();
    for child in load.iter_mut().flatten() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(woken, Woken::ByPressure);
    drop(writer);
    assert_eq!(
        trigger
            .wait(std::os::fd::AsFd::as_fd(&reader), None)
            .unwrap(),
        Woken::ByOther
    );
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}
