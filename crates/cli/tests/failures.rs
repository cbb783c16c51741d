//! What the harness prints of a failed expectation, and how it runs commands.

use crate::harness::{NEARFAR, Sandbox, nearfar};
use nearfar_lab::shell::word;
use rustix::process::Signal;

/// The text of the panic of an expectation that fails.
fn failure(expectation: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let payload = std::panic::catch_unwind(expectation).expect_err("the expectation held");
    *payload.downcast::<String>().unwrap()
}

#[test]
fn a_failed_expectation_prints_command_directory_listing_and_outputs() {
    let sandbox = Sandbox::new();
    sandbox.write("tree/empty", "12345");
    let answer = sandbox
        .nearfar(["audit", "--explain", "no such rule"])
        .run()
        .exited(2);
    let directory = sandbox.path("").parent().unwrap().display().to_string();
    let called = format!("{} audit --explain 'no such rule'", word(NEARFAR.as_ref()));
    let text = failure(std::panic::AssertUnwindSafe(|| drop(answer.succeeded())));
    for part in [
        "wanted exit code 0",
        called.as_str(),
        directory.as_str(),
        "work/tree/empty  5 bytes",
        "exit status: 2",
        "standard output, 0 bytes",
        "  | nearfar: there is no audit rule",
    ] {
        assert!(text.contains(part), "lacks {part:?}:\n{text}");
    }
}

#[test]
fn a_line_that_does_not_come_is_a_failure_with_all_lines() {
    let sandbox = Sandbox::new();
    let mut shell = sandbox
        .program("sh")
        .args(["-c", "echo one >&2; echo two >&2"])
        .start();
    assert_eq!(shell.wait_for_error("on"), "one");
    let text = failure(std::panic::AssertUnwindSafe(|| {
        drop(shell.wait_for_error("three"))
    }));
    assert!(
        text.contains("it ended") && text.contains("one\ntwo\n"),
        "{text}"
    );
}

#[test]
fn commands_have_an_environment_of_their_own() {
    let sandbox = Sandbox::new();
    let printed = sandbox.program("env").env("GIVEN_BY_TEST", "1").prints();
    for line in printed.lines() {
        let (name, value) = line.split_once('=').unwrap();
        let is_kept = ["PATH", "LD_LIBRARY_PATH", "CARGO_TARGET_DIR"].contains(&name);
        let is_given = ["GIVEN_BY_TEST", "NO_COLOR"].contains(&name);
        let root = sandbox.path("").parent().unwrap().display().to_string();
        assert!(is_kept || is_given || value.starts_with(&root), "{line}");
    }
}

#[test]
fn input_reaches_a_command_and_a_signal_ends_it() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.program("cat").stdin("text").prints(), "text");
    let mut shell = sandbox
        .program("sh")
        .args(["-c", "echo ready; exec sleep 100"])
        .start();
    shell.stdout.wait_for("ready");
    let answer = shell.end_by(Signal::TERM);
    assert_eq!(answer.status.code(), None, "{answer}");
}

#[test]
fn wrong_usage_is_told_from_other_failures() {
    nearfar(["audit", "--explain", "interupt-far"])
        .run()
        .refused(&["did you mean", "interrupt-far"]);
}
