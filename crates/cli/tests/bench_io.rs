//! `nearfar bench io` with real fio: a short run on a file, and devices that are not written to.
//!
//! The devices are loop devices of files, so what a refusal leaves is compared byte for byte. They need root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::killing::{end, kill, kill_guards};
use crate::waiting::wait_until;
use serde_json::Value;
use tempfile::TempDir;

const DEVICE_BYTES: u64 = 8 << 20;

/// Whether there is no fio; says so.
fn is_without(tools: &[&str]) -> bool {
    let missing = |tool: &&&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .output();
        !found.unwrap().status.success()
    };
    let missing = tools.iter().find(missing);
    if let Some(tool) = missing {
        println!("skipped: tools: {tool} is not installed");
    }
    missing.is_some()
}

/// A root user's loop devices; says why there are none.
fn no_loop_devices() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: root: loop devices need root");
        return true;
    }
    if !Path::new("/dev/loop-control").exists() {
        println!("skipped: kernel: there is no /dev/loop-control");
        return true;
    }
    is_without(&["fio", "losetup", "blkid", "mkswap"])
}

fn nearfar<S: AsRef<OsStr>>(words: &[S]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(["bench", "io", "--no-store", "--seconds", "0.2"]);
    command.args(["--ramp-seconds", "0", "--samples", "1"]);
    command.args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(
        output.status.success(),
        "{words:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout).trim().to_owned()
}

/// A loop device of a file with known content, detached in the end.
struct Device {
    _directory: TempDir,
    file: PathBuf,
    path: String,
}

impl Device {
    fn new(prepare: impl Fn(&str)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("image");
        let content: Vec<u8> = (0..DEVICE_BYTES).map(|at| (at % 251) as u8).collect();
        // Without a signature at the begin, where most are.
        fs::write(&file, content).unwrap();
        prepare(file.to_str().unwrap());
        let path = run(&["losetup", "--find", "--show", file.to_str().unwrap()]);
        Self {
            _directory: directory,
            file,
            path,
        }
    }

    /// That a run that writes is refused with this reason because of what is on the device, and nothing of it has changed.
    fn refuses(&self, reason: &str) {
        let errors = self.refuses_with(&[], reason);
        assert!(errors.contains("--destroy"), "{errors}");
    }

    /// The same because something uses it: also where it is named again.
    fn refuses_always(&self, reason: &str) {
        self.refuses_with(&[], reason);
        let errors = self.refuses_with(&["--destroy", &self.path], reason);
        assert!(errors.contains("never written to"), "{errors}");
    }

    fn refuses_with(&self, more: &[&str], reason: &str) -> String {
        let before = fs::read(&self.file).unwrap();
        let words = ["--device", &self.path, "--factor", "pattern=randwrite"];
        let output = nearfar(&[&words[..], more].concat());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(reason), "{errors}");
        run(&["blockdev", "--flushbufs", &self.path]);
        assert!(
            before == fs::read(&self.file).unwrap(),
            "the device has changed"
        );
        errors
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .args(["--detach", &self.path])
            .output();
    }
}

#[test]
fn a_file_is_measured_and_removed() {
    if is_without(&["fio"]) {
        return;
    }
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let words = [
        "--file",
        place.path().to_str().unwrap(),
        "--size=4M",
        "--buffered",
        "--factor=pattern=randread,randrw",
        "--factor=cpu_node=near",
        "--format=json",
    ];
    let output = nearfar(&words);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    for cell in run["summary"].as_array().unwrap() {
        let of = |name: &str| {
            let metrics = cell["metrics"].as_array().unwrap();
            let metric = metrics.iter().find(|it| it["metric"] == name);
            metric.and_then(|it| it["median"].as_f64())
        };
        assert!(of("iops").unwrap() > 0.0, "{cell}");
        assert!(of("latency_p50_ns").unwrap() <= of("latency_p999_ns").unwrap());
        assert_eq!(of("nearest_path_share"), None, "{cell}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_file_of_the_user_is_read_and_not_written_to() {
    if is_without(&["fio"]) {
        return;
    }
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = place.path().join("data");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let path = file.to_str().unwrap();
    let words = ["--file", path, "--buffered", "--factor=cpu_node=near"];
    let output = nearfar(&[&words[..], &["--factor=pattern=write"]].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("nearfar did not make this file"),
        "{errors}"
    );
    let output = nearfar(&words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fs::read(&file).unwrap(), vec![7; 1 << 20]);
    let destroy = ["--factor=pattern=write", "--destroy", path];
    let output = nearfar(&[&words[..], &destroy].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_ne!(fs::read(&file).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn a_device_with_something_on_it_is_not_written_to() {
    if no_loop_devices() {
        return;
    }
    let swap = Device::new(|file| _ = run(&["mkswap", file]));
    swap.refuses("has a signature (TYPE swap)");
    let empty = Device::new(|_| ());
    // What the kernel or a program has open exclusively: mounts, swap space, device mapper and md all do.
    let held = rustix::fs::open(
        empty.path.as_str(),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let held = held.unwrap();
    empty.refuses_always("is in use");
    drop(held);
    // Reading is always allowed, and a free device is written to without being named again.
    let words = ["--device", &empty.path, "--factor=cpu_node=near"];
    for pattern in ["--factor=pattern=randread", "--factor=pattern=randwrite"] {
        let output = nearfar(&[&words[..], &[pattern]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    // It is held exclusively while fio writes, also where its signature may be destroyed.
    let words_of_swap = ["--device", &swap.path, "--factor=cpu_node=near"];
    let destroy = ["--factor=pattern=randwrite", "--destroy", &swap.path];
    let output = nearfar(&[&words_of_swap[..], &destroy].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let as_file = ["--file", &empty.path, "--factor=pattern=randwrite"];
    let refused = nearfar(&[&as_file[..], &["--destroy", &empty.path]].concat());
    let errors = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && errors.contains("measured with --device"),
        "{errors}"
    );
    let wrong = nearfar(&[&words[..], &["--destroy", &swap.path]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong.stderr).contains("what is measured is"),
        "{}",
        text(&wrong.stderr)
    );
}

#[test]
fn a_device_that_is_mounted_partitioned_or_held_is_not_written_to() {
    if no_loop_devices() || is_without(&["mkfs.ext4"]) {
        return;
    }
    let mounted = Device::new(|file| _ = run(&["mkfs.ext4", "-q", file]));
    // Before it is mounted: a mount namespace that a process made meanwhile has the mount for longer.
    mounted.refuses("has a signature (TYPE ext4)");
    let place = tempfile::tempdir().unwrap();
    let mount = |words: &[&str]| Command::new(words[0]).args(&words[1..]).output().unwrap();
    let place_name = place.path().to_str().unwrap();
    if mount(&["mount", "-o", "ro", &mounted.path, place_name])
        .status
        .success()
    {
        mounted.refuses_always(&format!("is mounted on {place_name}"));
        run(&["umount", place_name]);
    }
    let held = Device::new(|_| ());
    let name = format!("nearfar-test-{}", std::process::id());
    let table = format!("0 {} linear {} 0", DEVICE_BYTES / 512, held.path);
    let made = Command::new("dmsetup")
        .args(["create", &name, "--table", &table])
        .output();
    if made.is_ok_and(|it| it.status.success()) {
        let mut words = vec!["dmsetup", "remove", &name];
        let refused = std::panic::catch_unwind(|| held.refuses_always("is held by dm-"));
        run(&words.split_off(0));
        refused.unwrap();
    } else {
        println!("skipped: kernel: no device mapper");
    }
}

#[test]
fn a_failed_fio_is_an_error_with_its_reason() {
    if is_without(&["fio"]) {
        return;
    }
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = place.path().join("empty");
    fs::write(&file, "").unwrap();
    let output = nearfar(&["--file", file.to_str().unwrap(), "--factor=cpu_node=near"]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("fio"), "{said}");
}

/// Ctrl-C while the file is filled: it is removed, and the run is one that was interrupted.
#[test]
fn nothing_is_left_of_a_file_that_was_not_filled() {
    if is_without(&["fio"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_nearfar"))
        .args([
            "bench",
            "io",
            "--samples=1",
            "--size=1G",
            "--buffered",
            "--file",
        ])
        .arg(place.path())
        .env("HOME", home.path())
        .env("XDG_STATE_HOME", home.path().join("state"))
        .env("NEARFAR_STORE", home.path().join("runs.db"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let file = || fs::read_dir(place.path()).unwrap().next();
    // The file has its size from the begin on, and blocks once it is written to.
    wait_until("the file", || {
        file().is_some_and(|it| it.unwrap().metadata().is_ok_and(|it| it.blocks() > 0))
    });
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(
        errors.contains("interrupted: 0 of ") && errors.contains("--resume=1"),
        "{errors}"
    );
    assert!(file().is_none());
    assert!(fios_of(home.path()).is_empty());
}

/// Processes of fio with this home in their environment.
fn fios_of(home: &Path) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_fio = |pid: &i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let home = [b"HOME=", home.as_os_str().as_bytes()].concat();
        name.starts_with("fio") && environment.split(|byte| *byte == 0).any(|it| it == home)
    };
    pids.filter(is_fio).collect()
}

#[test]
fn nothing_is_left_of_a_run_that_was_killed_at_any_moment() {
    if is_without(&["fio"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let command = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command
            .args(words)
            .env("HOME", home.path())
            .env("XDG_STATE_HOME", home.path().join("state"))
            .env("NEARFAR_STORE", home.path().join("runs.db"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let path = place.path().to_str().unwrap();
    let words = ["bench", "io", "--no-store", "--samples=1000", "--buffered"];
    let words = [&words[..], &["--seconds=1", "--size=4M", "--file", path]].concat();
    for attempt in 0..8u64 {
        let mut run = command(&words).spawn().unwrap();
        // From before the file to well within the samples: the last one when there is a fio, however busy this machine is.
        match attempt {
            7 => wait_until("a sample", || !fios_of(home.path()).is_empty()),
            _ => sleep(Duration::from_millis(attempt * attempt * 30)),
        }
        let fios = fios_of(home.path());
        if attempt % 2 == 0 {
            kill_guards(run.id());
        }
        // fio first: its end is an error of the sample, and the run goes on to its end or ours.
        if let (0, Some(&fio)) = (attempt % 3, fios.first()) {
            kill(fio);
        }
        end(&mut run);
        assert!(command(&["runs", "list"]).status().unwrap().success());
        wait_until("fio", || fios_of(home.path()).is_empty());
        wait_until("the file", || {
            fs::read_dir(place.path()).unwrap().count() == 0
        });
    }
}
