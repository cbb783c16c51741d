//! Guests one after another, side by side, interrupted and killed: nothing of them is left.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes.
//! NEARFAR_GUESTS=20 runs twenty in a row instead of three, NEARFAR_STARTS=200 starts two hundred of several designs, three at a time.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::guests;
use crate::waiting::wait_until;
use nearfar_lab::cache::Cache;

/// QEMUs whose command line has this word.
fn qemus_with(word: &str) -> Vec<u32> {
    let numbers = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_ours = |number: &u32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.split('\0')
            .next()
            .is_some_and(|program| program.contains("qemu-system"))
            && line.contains(word)
    };
    numbers.filter(is_ours).collect()
}

fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return BTreeSet::new();
    };
    let paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    let below = paths
        .iter()
        .filter(|path| path.is_dir() && !path.is_symlink())
        .flat_map(|path| files_below(path));
    below.chain(paths.iter().cloned()).collect()
}

/// What a guest could leave, in folders of its own, and mounts.
struct Traces {
    folder: tempfile::TempDir,
    /// The guests' results folder. Its path is on the command line of each QEMU, and no part of what a saved guest depends on.
    results: tempfile::TempDir,
    mounts: String,
}

impl Traces {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            results: tempfile::tempdir().unwrap(),
            mounts,
        }
    }

    /// `nearfar lab run` of a small guest whose temporary and runtime files would be ours alone.
    fn lab_run(&self, script: &str) -> Command {
        self.lab_run_of("two-node", &["--scale", "cpus=1,memory=384M"], script)
    }

    fn lab_run_of(&self, machine: &str, options: &[&str], script: &str) -> Command {
        let results = self.results.path().to_str().unwrap();
        let mut command = guests::lab_run(machine, &[options, &["--results", results]].concat());
        command.args(["sh", "-c", script]).stdin(Stdio::null());
        command
            .env("TMPDIR", self.folder.path())
            .env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    /// `nearfar lab shell` of the guest of [`Traces::lab_run`].
    fn lab_shell(&self) -> Command {
        let mut command = Command::new(guests::NEARFAR);
        command.args([
            "lab",
            "shell",
            "--machine",
            "two-node",
            "--kernel",
            guests::SERIES,
            "--accel",
            "tcg",
        ]);
        command
            .args(["--scale", "cpus=1,memory=384M", "--results"])
            .arg(self.results.path())
            .env("SHELL", "/bin/sh");
        command
            .env("TMPDIR", self.folder.path())
            .env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    /// QEMUs of the guests of this test.
    fn qemus(&self) -> Vec<u32> {
        qemus_with(self.results.path().to_str().unwrap())
    }

    /// Fails when anything is left. A QEMU whose owner was killed may take a moment to end.
    fn check(&self) {
        wait_until("a QEMU is left", || self.qemus().is_empty());
        assert_eq!(fs::read_to_string("/proc/mounts").unwrap(), self.mounts);
        assert_eq!(files_below(self.folder.path()), BTreeSet::new());
        // What a killed nearfar was adding to the cache goes when the next one adds something.
        let cache = Cache::of_user().unwrap();
        drop(cache.lock(&mut || {}).unwrap());
        let cache = files_below(cache.root());
        let half_made = |path: &&PathBuf| {
            path.components()
                .any(|part| part.as_os_str().to_string_lossy().starts_with("making-"))
        };
        assert_eq!(cache.iter().find(half_made), None);
    }
}

/// Starts a guest and waits until the script in it says "up".
fn up(mut command: Command) -> (Child, impl Iterator<Item = String>) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("up"));
    (child, lines)
}

fn send(child: &Child, signal: libc::c_int) {
    // SAFETY: kill(2) of a child that was not waited for: the number is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
}

fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("nearfar does not end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn guests_in_a_row_and_side_by_side_leave_nothing() {
    if guests::skipped() {
        return;
    }
    let traces = Traces::new();
    let count: u32 = std::env::var("NEARFAR_GUESTS").map_or(3, |count| count.parse().unwrap());
    let started = Instant::now();
    for number in 0..count {
        let output = traces
            .lab_run(&format!("echo {number}; exit 7"))
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), output.stdout),
            (Some(7), format!("{number}\n").into_bytes())
        );
    }
    println!(
        "{count} guests one after another: {:.1} s",
        started.elapsed().as_secs_f64()
    );
    traces.check();
    let mut children = ["a", "b", "c"].map(|name| {
        (
            name,
            up(traces.lab_run(&format!("echo up; echo {name}; exit 3"))),
        )
    });
    for (name, (child, lines)) in &mut children {
        assert_eq!(lines.next().as_deref(), Some(*name));
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
    traces.check();
}

#[test]
fn a_shell_without_a_terminal_runs_the_commands_of_its_input() {
    if guests::skipped() {
        return;
    }
    let traces = Traces::new();
    let mut shell = traces.lab_shell();
    let mut child = shell
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"echo in the guest\nexit 7\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout),
        (Some(7), b"in the guest\n".to_vec())
    );
    assert_eq!(
        traces
            .lab_shell()
            .stdin(Stdio::null())
            .status()
            .unwrap()
            .code(),
        Some(0)
    );
    traces.check();
}

#[test]
fn a_nearfar_that_is_killed_while_it_boots_or_runs_leaves_nothing() {
    if guests::skipped() {
        return;
    }
    let traces = Traces::new();
    let mut booting = traces.lab_run("true").spawn().unwrap();
    wait_until("no QEMU starts", || !traces.qemus().is_empty());
    booting.kill().unwrap();
    booting.wait().unwrap();
    traces.check();
    let (mut running, _lines) = up(traces.lab_run("echo up; sleep 600"));
    assert_eq!(traces.qemus().len(), 1);
    running.kill().unwrap();
    running.wait().unwrap();
    traces.check();
}

#[test]
fn the_first_interrupt_is_the_commands_and_a_later_one_ends_all() {
    if guests::skipped() {
        return;
    }
    let traces = Traces::new();
    let script = "trap 'echo caught' INT; echo up; while :; do sleep 0.1; done";
    let (mut child, mut lines) = up(traces.lab_run(script));
    // As timeout(1) does: one request, which the command gets once.
    send(&child, libc::SIGINT);
    std::thread::sleep(Duration::from_millis(50));
    send(&child, libc::SIGINT);
    assert_eq!(lines.next().as_deref(), Some("caught"));
    assert_eq!(
        child.try_wait().unwrap(),
        None,
        "the command went on, and so does its guest"
    );
    std::thread::sleep(nearfar_lab::guest::SAME_REQUEST);
    send(&child, libc::SIGINT);
    assert!(!ended(&mut child).success());
    traces.check();
}

/// A guest that was started.
struct Started {
    number: u32,
    child: Child,
    /// When it is killed.
    killed: Option<Instant>,
}

/// The designs of guests that are started many times: one without and one with devices that are plugged in late, queues, and
/// simulated time. With the nodes that each has.
const DESIGNS: [(&str, &str, &str); 4] = [
    ("two-node", "--scale=cpus=1,memory=384M", "0-1"),
    ("nvme-two-controllers", "--scale=cpus=1,memory=384M", "0-1"),
    ("queues-on-node-2", "--scale=memory=256M", "0-3"),
    (
        "two-node",
        "--scale=cpus=4,memory=384M --time=simulated",
        "0-1",
    ),
];

#[test]
fn many_starts_side_by_side_answer_right_and_leave_nothing() {
    if guests::skipped() {
        return;
    }
    let traces = Traces::new();
    let count: u32 = std::env::var("NEARFAR_STARTS").map_or(12, |count| count.parse().unwrap());
    let started = Instant::now();
    let (mut running, mut killed, mut again) = (Vec::<Started>::new(), 0, 0);
    for number in 0..count {
        let (machine, options, _) = DESIGNS[number as usize % DESIGNS.len()];
        let options: Vec<&str> = options.split(' ').collect();
        let mut command = traces.lab_run_of(
            machine,
            &options,
            &format!("echo {number} $(cat /sys/devices/system/node/online)"),
        );
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let is_killed = number % 6 == 5;
        let after = Duration::from_millis(u64::from(number) * 137 % 1500);
        running.push(Started {
            number,
            child,
            killed: is_killed.then(|| Instant::now() + after),
        });
        let most = if number + 1 == count { 0 } else { 2 };
        while running.len() > most {
            wait_for_one(&mut running, &mut killed, &mut again);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{count} starts, 3 at a time: {seconds:.1} s; {killed} killed, {again} booted again");
    traces.check();
    let cache = Cache::of_user().unwrap();
    let total: u64 = cache
        .entries()
        .unwrap()
        .iter()
        .map(|entry| entry.bytes)
        .sum();
    assert!(
        total <= cache.limit().unwrap(),
        "the cache has {total} bytes"
    );
}

/// Waits until a guest has ended, and looks at its answer.
fn wait_for_one(running: &mut Vec<Started>, killed: &mut u32, again: &mut u32) {
    let mut place = None;
    wait_until("no guest ends", || {
        for guest in running.iter_mut() {
            if guest.killed.is_some_and(|at| Instant::now() >= at) {
                guest.child.kill().unwrap();
            }
        }
        place = running
            .iter_mut()
            .position(|guest| guest.child.try_wait().unwrap().is_some());
        place.is_some()
    });
    let guest = running.remove(place.unwrap());
    let output = guest.child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    *again += errors.matches("booted again").count() as u32;
    errors
        .lines()
        .filter(|line| line.contains("booted again"))
        .for_each(|line| println!("{line}"));
    match output.status.code() {
        None => {
            assert!(guest.killed.is_some(), "{errors}");
            *killed += 1;
        }
        code => {
            let (.., nodes) = DESIGNS[guest.number as usize % DESIGNS.len()];
            assert_eq!(code, Some(0), "{errors}");
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                format!("{} {nodes}\n", guest.number)
            );
        }
    }
}
