//! Whole runs of the command with a shell script that answers as libtest does.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// What the configuration says in these tests. Tests take some hundredths of a second.
const CONFIG: &str = "jobs = 2\npause_s = 0.2\nlimit_s = 30\n";
const RULE: &str = "[[rule]]\ntests = \"*/hangs\"\nlimit_s = 0.5\n";

/// A folder with a test executable and a configuration.
struct Fake(tempfile::TempDir);

impl Fake {
    /// Each test is a name and a shell script that runs in the folder.
    fn new(tests: &[(&str, &str)]) -> Self {
        let list: String = tests
            .iter()
            .map(|(name, _)| format!("echo '{name}: test'; "))
            .collect();
        let cases: String = tests
            .iter()
            .map(|(name, script)| format!("{name}) {script};;\n"))
            .collect();
        let text = format!(
            "#!/bin/sh\n\
             case \"$*\" in *--ignored*) exit;; --list*) {list} exit;; esac\n\
             pass() {{ echo ok; printf '\\ntest result: ok. 1 passed; 0 failed; 0 ignored\\n'; exit 0; }}\n\
             printf 'running 1 test\\ntest %s ... ' \"$2\"\n\
             case \"$2\" in\n{cases}esac\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("fake");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let rule = if list.contains("hangs") { RULE } else { "" };
        let fake = Self(folder);
        fake.configure(rule);
        fake
    }

    fn configure(&self, rule: &str) {
        fs::write(self.path().join("suite.toml"), format!("{CONFIG}{rule}")).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar-suite"));
        command
            .args(["--config", "suite.toml", "--executable", "fake"])
            .current_dir(self.path());
        command.env_remove("NEARFAR_REQUIRE");
        command
    }

    fn run(&self) -> (Output, String) {
        let output = self.command().output().unwrap();
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        (output, text)
    }

    /// Whether the process whose number this file holds still exists.
    fn exists(&self, file: &str) -> bool {
        let pid = fs::read_to_string(self.path().join(file)).unwrap();
        Path::new("/proc").join(pid.trim()).exists()
    }
}

#[test]
fn the_last_line_has_the_counts() {
    let fake = Fake::new(&[
        ("passes", "echo free text; pass"),
        ("skips", "echo 'skipped: guests: no QEMU'; pass"),
        ("fails", "echo 'assertion failed: false'; exit 101"),
        ("exits", "exit 0"),
    ]);
    let (output, text) = fake.run();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.ends_with("\n1 passed, 2 failed, 1 skipped\n"),
        "{text}"
    );
    assert!(
        text.contains("\nfailed: fake/fails (exit code 101, "),
        "{text}"
    );
    assert!(
        text.contains("  | test fails ... assertion failed: false\n"),
        "{text}"
    );
    assert!(
        text.contains("fake/exits (exit code 0, but libtest does not report one passed test, "),
        "{text}"
    );
    assert!(
        text.contains("\nskipped:\n  fake/skips: guests: no QEMU\n"),
        "{text}"
    );
    assert!(
        !text.contains("retries") && !text.contains("free text"),
        "{text}"
    );
}

#[test]
fn a_skip_of_a_required_kind_is_a_failure_with_its_reason() {
    let fake = Fake::new(&[
        ("boots", "echo 'skipped: guests: no QEMU'; pass"),
        ("measures", "echo 'skipped: cpus: there is one'; pass"),
        ("unclear", "echo 'skipped: no reason'; pass"),
    ]);
    let run = |require: &str| {
        let output = fake
            .command()
            .env("NEARFAR_REQUIRE", require)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text, _) = run("");
    assert!(
        code == Some(1) && text.ends_with("\n0 passed, 1 failed, 2 skipped\n"),
        "{text}"
    );
    assert!(
        text.contains("failed: fake/unclear (a line that begins with `skipped: `: no kind of skip"),
        "{text}"
    );
    let (code, text, _) = run("guests,root,perf");
    assert!(
        code == Some(1) && text.ends_with("\n0 passed, 2 failed, 1 skipped\n"),
        "{text}"
    );
    assert!(
        text.contains("failed: fake/boots (skipped, but guests required: guests: no QEMU, "),
        "{text}"
    );
    assert!(
        text.contains("\nskipped:\n  fake/measures: cpus: there is one\n"),
        "{text}"
    );
    let (code, _, errors) = run("guest");
    assert!(
        code == Some(2) && errors.contains("NEARFAR_REQUIRE: no kind of skip: \"guest\""),
        "{errors}"
    );
}

#[test]
fn a_hung_test_is_killed_with_its_processes_and_runs_once_more() {
    // The child ignores SIGTERM and is in a session of its own; its parent ends.
    let script = "echo started; (setsid sh -c 'trap \"\" TERM; echo $$ >>pids; while :; do sleep 1; done' &); sleep 60";
    let fake = Fake::new(&[("hangs", script), ("passes", "pass")]);
    let (output, text) = fake.run();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.ends_with("\n1 passed, 1 failed, 0 skipped\n"),
        "{text}"
    );
    for expected in [
        "over its limit of 500ms, killed, runs once more: fake/hangs\n",
        "over its limit of 500ms, killed, failed: fake/hangs\n",
        "sleep 60\n",
        "  | test hangs ... started\n",
        "\nretries:\n  fake/hangs: over its limit of 500ms\n",
        "\nfailed: fake/hangs (over its limit of 500ms, ",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    let pids = fs::read_to_string(fake.path().join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 2, "one for each attempt");
    assert!(
        pids.lines()
            .all(|pid| !Path::new("/proc").join(pid).exists()),
        "{pids}"
    );
}

#[test]
fn a_test_that_passes_the_second_time_has_passed_and_counts_as_a_retry() {
    let fake = Fake::new(&[
        ("hangs", "[ -e second ] && pass; : >second; sleep 60"),
        ("retries", "echo 'retried: the guest hung'; pass"),
    ]);
    let (output, text) = fake.run();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.ends_with("\n2 passed, 0 failed, 0 skipped\n"),
        "{text}"
    );
    assert!(
        text.contains("  fake/hangs: over its limit of 500ms\n  fake/retries: the guest hung\n"),
        "{text}"
    );
    assert!(
        text.contains("\nfinding: 2 retries in one run, look into them\n"),
        "{text}"
    );
}

#[test]
fn an_orphan_that_holds_the_output_is_killed_and_named() {
    let fake = Fake::new(&[("leaves", "(setsid sleep 60 & echo $! >pid); pass")]);
    let begin = Instant::now();
    let (output, text) = fake.run();
    assert!(begin.elapsed() < Duration::from_secs(20), "{text}");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("\nprocesses left by tests, killed:\n  fake/leaves: process "),
        "{text}"
    );
    assert!(!fake.exists("pid"));
}

#[test]
fn tests_end_with_a_runner_that_is_killed() {
    let fake = Fake::new(&[("waits", "echo $$ >pid.new; mv pid.new pid; sleep 60")]);
    let mut runner = fake
        .command()
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the test runs", || fake.path().join("pid").exists());
    runner.kill().unwrap();
    runner.wait().unwrap();
    wait_until("the test has ended", || !fake.exists("pid"));
}

#[test]
fn a_signal_ends_the_run_with_a_summary_and_without_a_process() {
    // Of one class and without known durations, tests start in the order of their names, two at a time: the third starts
    // when one of the others has ended.
    let waits = "echo $$ >pid.new; mv pid.new pid; sleep 60";
    let fake = Fake::new(&[("a", "exit 3"), ("b", "sleep 60"), ("c", waits)]);
    let runner = fake
        .command()
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the test runs", || fake.path().join("pid").exists());
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&runner),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let output = runner.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(128 + 15), "{text}");
    assert!(text.contains("failed: fake/c (interrupted, "), "{text}");
    assert!(text.ends_with("0 passed, 3 failed, 0 skipped\n"), "{text}");
    wait_until("the test has ended", || !fake.exists("pid"));
}

#[test]
fn a_rule_that_matches_no_test_is_an_error() {
    let fake = Fake::new(&[("passes", "pass")]);
    fake.configure(RULE);
    let output = fake.command().output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), errors.trim()),
        (Some(2), "nearfar-suite: rules that match no test: */hangs")
    );
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{what}: not within 20 s"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn slow_tests_run_when_asked_for_with_ordinary_ones_and_without_guests() {
    let fake = Fake::new(&[
        ("quick", "echo quick >>ran; pass"),
        ("boots", "echo boots >>ran; pass"),
        ("compares", "echo compares >>ran; pass"),
    ]);
    fake.configure(
        "[[rule]]\ntests = \"*/boots\"\nclass = \"guest\"\n[[rule]]\ntests = \"*/compares\"\nclass = \"alone\"\nslow = true\n",
    );
    for (options, expected) in [
        (&[][..], ["boots", "quick"]),
        (&["--slow"], ["compares", "quick"]),
    ] {
        let output = fake.command().args(options).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let ran = fake.path().join("ran");
        let text = fs::read_to_string(&ran).unwrap();
        let mut names: Vec<&str> = text.lines().collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{options:?}");
        fs::remove_file(ran).unwrap();
    }
}
