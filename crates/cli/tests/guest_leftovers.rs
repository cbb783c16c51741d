//! Guests one after another, side by side, interrupted and killed: nothing of them is left.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes.
//! NEARFAR_GUESTS=20 boots twenty in a row instead of three.

mod guests;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nearfar_lab::cache::Cache;

/// A word on the kernel's command line of every guest of this process, to tell its QEMUs from others'.
fn mark() -> String {
    format!("nearfar.test={}", std::process::id())
}

/// QEMUs of this process's guests.
fn our_qemus() -> Vec<u32> {
    let mark = mark();
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_ours = |number: &u32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.split('\0').next().is_some_and(|program| program.contains("qemu-system")) && line.contains(&mark)
    };
    numbers.filter(is_ours).collect()
}

fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    let paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let below = paths.iter().filter(|path| path.is_dir() && !path.is_symlink()).flat_map(|path| files_below(path));
    below.chain(paths.iter().cloned()).collect()
}

/// What a guest could leave, in folders that nobody else uses, and mounts.
struct Traces {
    folder: tempfile::TempDir,
    mounts: String,
}

impl Traces {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        Self { folder: tempfile::tempdir().unwrap(), mounts }
    }

    /// `nearfar lab run` of a small guest whose temporary and runtime files would be ours alone.
    fn lab_run(&self, script: &str) -> Command {
        let append = mark();
        let mut command = guests::lab_run("two-node", &["--scale", "cpus=1,memory=384M", "--append", &append]);
        command.args(["sh", "-c", script]).stdin(Stdio::null());
        command.env("TMPDIR", self.folder.path()).env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    /// Fails when anything is left. A QEMU whose owner was killed may take a moment to end.
    fn check(&self) {
        wait_until("a QEMU is left", || our_qemus().is_empty());
        assert_eq!(fs::read_to_string("/proc/mounts").unwrap(), self.mounts);
        assert_eq!(files_below(self.folder.path()), BTreeSet::new());
        let cache = files_below(Cache::of_user().unwrap().root());
        let half_made =
            |path: &&PathBuf| path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("making-"));
        assert_eq!(cache.iter().find(half_made), None);
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a guest and waits until the script in it says "up".
fn up(mut command: Command) -> (Child, impl Iterator<Item = String>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
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
    let _turn = guests::turn();
    let traces = Traces::new();
    let count: u32 = std::env::var("NEARFAR_GUESTS").map_or(3, |count| count.parse().unwrap());
    let started = Instant::now();
    for number in 0..count {
        let output = traces.lab_run(&format!("echo {number}; exit 7")).output().unwrap();
        assert_eq!((output.status.code(), output.stdout), (Some(7), format!("{number}\n").into_bytes()));
    }
    println!("{count} guests one after another: {:.1} s", started.elapsed().as_secs_f64());
    traces.check();
    let mut children = ["a", "b", "c"].map(|name| (name, up(traces.lab_run(&format!("echo up; echo {name}; exit 3")))));
    for (name, (child, lines)) in &mut children {
        assert_eq!(lines.next().as_deref(), Some(*name));
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
    traces.check();
}

#[test]
fn a_nearfar_that_is_killed_while_it_boots_or_runs_leaves_nothing() {
    if guests::skipped() {
        return;
    }
    let _turn = guests::turn();
    let traces = Traces::new();
    let mut booting = traces.lab_run("true").spawn().unwrap();
    wait_until("no QEMU starts", || !our_qemus().is_empty());
    booting.kill().unwrap();
    booting.wait().unwrap();
    traces.check();
    let (mut running, _lines) = up(traces.lab_run("echo up; sleep 600"));
    assert_eq!(our_qemus().len(), 1);
    running.kill().unwrap();
    running.wait().unwrap();
    traces.check();
}

#[test]
fn the_first_interrupt_is_the_commands_and_the_second_ends_all() {
    if guests::skipped() {
        return;
    }
    let _turn = guests::turn();
    let traces = Traces::new();
    let script = "trap 'echo caught' INT; echo up; while :; do sleep 0.1; done";
    let (mut child, mut lines) = up(traces.lab_run(script));
    send(&child, libc::SIGINT);
    assert_eq!(lines.next().as_deref(), Some("caught"));
    assert_eq!(child.try_wait().unwrap(), None, "the command went on, and so does its guest");
    send(&child, libc::SIGINT);
    assert!(!ended(&mut child).success());
    traces.check();
}
