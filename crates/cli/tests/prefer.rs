//! `nearfar prefer` as a command, on the machine that tests run on: signals, the terminal, exit codes and memory policies.
//! Who moves where between nodes is in guest_prefer.rs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::harness;
use crate::harness::{Answer, Running, Sandbox, nearfar};
use crate::keys;
use crate::tasks::{control_group, node};
use nearfar_lab::shell::word;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

/// A command that is kept, in a process group of its own.
struct Kept {
    running: Running,
    sandbox: Sandbox,
}

impl Kept {
    fn start(options: &[&str], words: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let running = sandbox
            .nearfar(["prefer", "--node", &node(), "--format", "json"])
            .args(["--output", "report"])
            .args(options)
            .arg("--")
            .args(words)
            .configure(|command| {
                command.process_group(0);
            })
            .start();
        Self { running, sandbox }
    }

    /// A shell that prints a line when it is ready.
    fn shell(script: &str) -> Self {
        let mut kept = Self::start(&[], &["sh", "-c", script]);
        kept.running.stdout.wait_for("ready");
        kept
    }

    /// What it answered, and its report.
    fn end(self) -> (Answer, Value) {
        let answer = self.running.wait();
        let report = std::fs::read_to_string(self.sandbox.path("report")).unwrap();
        (answer, serde_json::from_str(&report).unwrap())
    }
}

/// A shell script that ends with this code at the signal and otherwise runs without end.
fn catching(signal: &str, code: i32) -> String {
    format!("trap 'exit {code}' {signal}; echo ready; while :; do sleep 0.05; done")
}

#[test]
fn a_commands_output_and_exit_code_are_its_own_and_the_report_tells_of_it() {
    let (answer, report) = Kept::start(&[], &["sh", "-c", "echo mine; exit 7"]).end();
    assert_eq!(answer.exited(7).text(), "mine\n");
    assert_eq!(report["command"]["exit_code"], 7);
    assert_eq!(report["schema"], "prefer/1");
    keys::documented([&report]);
}

fn prefer(options: &[&str]) -> Answer {
    nearfar(["prefer", "--node", &node()]).args(options).run()
}

#[test]
fn a_process_that_is_not_there_is_wrong_usage() {
    let answer = prefer(&["--pid", "999999999"]).exited(2);
    assert_eq!(answer.errors(), "nearfar: there is no process 999999999\n");
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id().to_string();
    while !std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap()
        .contains(") Z ")
    {
        std::thread::yield_now();
    }
    let answer = prefer(&["--pid", &pid]);
    ended.wait().unwrap();
    answer.refused(&["it has ended"]);
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
        let answer = prefer(&["--", program]).exited(expected);
        assert!(answer.stdout.is_empty(), "{answer}");
        let start = format!("nearfar: cannot start {program}: {reason}");
        assert!(answer.errors().starts_with(&start), "{answer}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_the_command_or_given_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no/such/directory/report");
    let answer = prefer(&["--output", file.to_str().unwrap(), "--", "echo", "mine"]);
    let answer = answer.exited(3).says(&["directory/report: No such file"]);
    assert!(answer.stdout.is_empty(), "{answer}");
    let answer = prefer(&["--output", "/dev/full", "--", "echo", "mine"])
        .exited(3)
        .says(&["1 thread of 1 process", "No space left"]);
    assert_eq!(answer.text(), "mine\n", "{answer}");
}

#[test]
fn a_control_group_that_is_gone_is_kept_no_longer() {
    let name = format!("nearfar-prefer-test-{}", std::process::id());
    let Some(group) = control_group(&name) else {
        return;
    };
    let group_name = format!("/{name}");
    let mut kept = nearfar(["prefer", "--node", &node(), "--group", &group_name])
        .args(["--through", "threads"])
        .start();
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
    while !kept.has_ended() && !keeps() {
        std::thread::yield_now();
    }
    std::fs::remove_dir(&group).unwrap();
    let answer = kept.wait();
    if answer.status.code() == Some(3) {
        return println!("skipped: root: {}", answer.errors());
    }
    answer.exited(0).says(&["the group is gone"]);
}

#[test]
fn sigterm_and_sighup_are_handed_on_and_the_commands_answer_counts() {
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP")] {
        let kept = Kept::shell(&catching(name, 5));
        kept.running.signal(signal);
        let (answer, report) = kept.end();
        answer.exited(5);
        assert_eq!(report["command"]["exit_code"], 5, "{name}");
    }
}

#[test]
fn a_command_that_a_signal_ends_counts_as_in_a_shell() {
    let kept = Kept::shell("echo ready; exec sleep 60");
    kept.running.signal(Signal::TERM);
    let (answer, report) = kept.end();
    answer.exited(128 + 15);
    assert_eq!(report["command"]["signal"], 15);
}

/// A terminal sends Ctrl-C to its whole foreground process group.
#[test]
fn ctrl_c_is_the_commands_affair_as_often_as_it_is_typed() {
    let mut kept = Kept::shell(
        "n=0; trap 'n=$((n+1)); echo $n' INT; echo ready; while [ $n -lt 2 ]; do sleep 0.05; done; exit 3",
    );
    for expected in ["1", "2"] {
        let group = Pid::from_raw(kept.running.id() as i32).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        assert_eq!(kept.running.stdout.wait_for(""), expected);
    }
    let (answer, report) = kept.end();
    answer.exited(3);
    assert_eq!(report["command"]["exit_code"], 3);
}

#[test]
fn a_command_at_a_terminal_reads_it_and_gets_its_ctrl_c() {
    let inner = "trap 'echo caught; exit 4' INT; echo ready; read line; echo got $line; while :; do sleep 0.05; done";
    let line = format!(
        "exec {} prefer --node {} -- sh -c \"{}\"",
        word(harness::NEARFAR.as_ref()),
        node(),
        inner.replace('$', r"\$")
    );
    let mut terminal = Sandbox::new()
        .program("script")
        .args(["-qec", &line, "/dev/null"]);
    let command: &mut Command = &mut terminal;
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
        let (answer, _) = Kept::start(options, &["cat", "/proc/self/numa_maps"]).end();
        let mut found: Vec<String> = answer
            .succeeded()
            .text()
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
