//! `nearfar prefer` as a command, on the machine that tests run on: signals, the terminal, exit codes and memory policies.
//! Who moves where between nodes is in guest_prefer.rs.

mod harness;
mod keys;
mod tasks;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tasks::{Owned, control_group, node};
use tempfile::TempDir;

const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");

/// A command that is kept, which prints a line when it is ready.
struct Kept {
    child: Owned,
    dir: TempDir,
}

impl Kept {
    fn start(options: &[&str], words: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(NEARFAR);
        command
            .args(["prefer", "--node", &node(), "--format", "json", "--output"])
            .arg(dir.path().join("report"));
        command
            .args(options)
            .arg("--")
            .args(words)
            .env("XDG_STATE_HOME", dir.path())
            .process_group(0);
        let child = Owned(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        Self { child, dir }
    }

    fn shell(script: &str) -> Self {
        let mut kept = Self::start(&[], &["sh", "-c", script]);
        let mut line = String::new();
        BufReader::new(kept.child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        kept
    }

    /// Of what it prints.
    fn second_handle(&self) -> File {
        self.child
            .stdout
            .as_ref()
            .unwrap()
            .as_fd()
            .try_clone_to_owned()
            .unwrap()
            .into()
    }

    /// What it printed, its exit code, and the report.
    fn end(mut self) -> (String, Option<i32>, Value) {
        let mut text = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let code = self.child.wait().unwrap().code();
        let report = std::fs::read_to_string(self.dir.path().join("report")).unwrap();
        (text, code, serde_json::from_str(&report).unwrap())
    }
}

/// Ends with this code when it gets the signal; otherwise waits for its standard input.
fn catching(signal: &str, code: i32) -> String {
    format!("trap 'exit {code}' {signal}; echo ready; while :; do sleep 0.05; done")
}

#[test]
fn a_commands_output_and_exit_code_are_its_own_and_the_report_tells_of_it() {
    let (text, code, report) = Kept::start(&[], &["sh", "-c", "echo mine; exit 7"]).end();
    assert_eq!(
        (text.as_str(), code, &report["command"]["exit_code"]),
        ("mine\n", Some(7), &Value::from(7))
    );
    assert_eq!(report["schema"], "prefer/1");
    keys::documented([&report]);
}

/// Runs it to its end: its exit code, and what it said on both streams.
fn prefer(options: &[&str]) -> (Option<i32>, String, String) {
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(NEARFAR);
    command
        .args(["prefer", "--node", &node()])
        .args(options)
        .env("XDG_STATE_HOME", state.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_process_that_is_not_there_is_wrong_usage() {
    let (code, _, errors) = prefer(&["--pid", "999999999"]);
    assert_eq!(
        (code, errors.as_str()),
        (Some(2), "nearfar: there is no process 999999999\n")
    );
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id().to_string();
    while !std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap()
        .contains(") Z ")
    {
        std::thread::yield_now();
    }
    let (code, _, errors) = prefer(&["--pid", &pid]);
    ended.wait().unwrap();
    assert_eq!(
        (code, errors.contains("it has ended")),
        (Some(2), true),
        "{errors}"
    );
}

#[test]
fn a_command_that_cannot_be_started_ends_as_in_a_shell() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("not-executable");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let not_there = "No such file or directory";
    for (program, expected, reason) in [
        ("/nonexistent", 127, not_there),
        ("nearfar-test-no-such-command", 127, not_there),
        (file, 126, "Permission denied"),
        ("/", 126, "Permission denied"),
        ("/dev/null/x", 126, "Not a directory"),
    ] {
        let (code, text, errors) = prefer(&["--", program]);
        assert_eq!((code, text.as_str()), (Some(expected), ""), "{errors}");
        assert!(
            errors.starts_with(&format!("nearfar: cannot start {program}: {reason}")),
            "{errors}"
        );
    }
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_the_command_or_given_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no/such/directory/report");
    let (code, text, errors) = prefer(&["--output", file.to_str().unwrap(), "--", "echo", "mine"]);
    assert_eq!((code, text.as_str()), (Some(3), ""), "{errors}");
    assert!(
        errors.contains("directory/report: No such file"),
        "{errors}"
    );
    let (code, text, errors) = prefer(&["--output", "/dev/full", "--", "echo", "mine"]);
    assert_eq!((code, text.as_str()), (Some(3), "mine\n"), "{errors}");
    assert!(
        errors.contains("1 thread of 1 process") && errors.contains("No space left"),
        "{errors}"
    );
}

#[test]
fn a_control_group_that_is_gone_is_kept_no_longer() {
    let name = format!("nearfar-prefer-test-{}", std::process::id());
    let Some(group) = control_group(&name) else {
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(NEARFAR);
    command.args([
        "prefer",
        "--node",
        &node(),
        "--cgroup",
        &format!("/{name}"),
        "--through",
        "threads",
    ]);
    command
        .env("XDG_STATE_HOME", state.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut kept = Owned(command.spawn().unwrap());
    let mut errors = String::new();
    // It has found the group when the thread is there that keeps.
    let threads = format!("/proc/{}/task", kept.id());
    let keeps = || {
        let mut tasks = std::fs::read_dir(&threads)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        tasks.any(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "keeper\n")
        })
    };
    while kept.try_wait().unwrap().is_none() && !keeps() {
        std::thread::yield_now();
    }
    std::fs::remove_dir(&group).unwrap();
    kept.stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    let code = kept.wait().unwrap().code();
    if code == Some(3) {
        return println!("skipped: root: {errors}");
    }
    assert_eq!(
        (code, errors.contains("the group is gone")),
        (Some(0), true),
        "{errors}"
    );
}

#[test]
fn sigterm_and_sighup_are_handed_on_and_the_commands_answer_counts() {
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP")] {
        let kept = Kept::shell(&catching(name, 5));
        kill_process(Pid::from_child(&kept.child), signal).unwrap();
        let (_, code, report) = kept.end();
        assert_eq!(
            (code, &report["command"]["exit_code"]),
            (Some(5), &Value::from(5)),
            "{name}"
        );
    }
}

#[test]
fn a_command_that_a_signal_ends_counts_as_in_a_shell() {
    let kept = Kept::shell("echo ready; exec sleep 60");
    kill_process(Pid::from_child(&kept.child), Signal::TERM).unwrap();
    let (_, code, report) = kept.end();
    assert_eq!(
        (code, &report["command"]["signal"]),
        (Some(128 + 15), &Value::from(15))
    );
}

/// A terminal sends Ctrl-C to its whole foreground process group.
#[test]
fn ctrl_c_is_the_commands_affair_as_often_as_it_is_typed() {
    let kept = Kept::shell(
        "n=0; trap 'n=$((n+1)); echo $n' INT; echo ready; while [ $n -lt 2 ]; do sleep 0.05; done; exit 3",
    );
    let mut lines = BufReader::new(kept.second_handle()).lines();
    for expected in ["1", "2"] {
        kill_process_group(Pid::from_child(&kept.child), Signal::INT).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), expected);
    }
    let (_, code, report) = kept.end();
    assert_eq!(
        (code, &report["command"]["exit_code"]),
        (Some(3), &Value::from(3))
    );
}

#[test]
fn a_command_at_a_terminal_reads_it_and_gets_its_ctrl_c() {
    let dir = tempfile::tempdir().unwrap();
    let inner = "trap 'echo caught; exit 4' INT; echo ready; read line; echo got $line; while :; do sleep 0.05; done";
    let line = format!(
        "exec {NEARFAR} prefer --node {} -- sh -c \"{}\"",
        node(),
        inner.replace('$', r"\$")
    );
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .env("XDG_STATE_HOME", dir.path());
    let Ok(mut terminal) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        return println!("skipped: tools: no script(1) to make a terminal");
    };
    let mut typed = terminal.stdin.take().unwrap();
    let mut text = String::new();
    for line in BufReader::new(terminal.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        match line.trim_end() {
            "ready" => typed.write_all(b"word\n").unwrap(),
            "got word" => typed.write_all(b"\x03").unwrap(),
            _ => {}
        }
        text += &format!("{line}\n");
    }
    assert_eq!(terminal.wait().unwrap().code(), Some(4), "{text}");
    assert!(
        text.contains("caught") && text.contains("Preferred node"),
        "{text}"
    );
}

#[test]
fn a_command_has_the_memory_policy_that_was_asked_for() {
    if !std::path::Path::new("/proc/self/numa_maps").exists() {
        return println!("skipped: kernel: this kernel has no memory policies");
    }
    let policies = |options: &[&str]| {
        let (text, code, _) = Kept::start(options, &["cat", "/proc/self/numa_maps"]).end();
        assert_eq!(code, Some(0));
        let mut found: Vec<String> = text
            .lines()
            .map(|line| line.split(' ').nth(1).unwrap().to_owned())
            .collect();
        found.sort();
        found.dedup();
        found
    };
    assert_eq!(
        policies(&["--memory", "bind"]),
        [format!("bind:{}", node())]
    );
    assert_eq!(
        policies(&["--memory", "preferred"]),
        [format!("prefer:{}", node())]
    );
    assert_eq!(policies(&["--memory", "follow"]), ["default"]);
    assert_eq!(policies(&[]), ["default"]);
}
