//! `nearfar bench latency` as a command: its three forms, its failures, and being interrupted.

mod keys;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command
        .args(["bench", "latency"])
        .args(arguments)
        .env("NO_COLOR", "1")
        .env(
            "NEARFAR_STORE",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench.db"),
        )
        .stdin(Stdio::null());
    command
}

const SMALL: [&str; 6] = ["--budget", "1", "--samples", "3", "--buffer", "8M"];

#[track_caller]
fn answer(arguments: &[&str]) -> String {
    let output = bench(&[&SMALL, arguments].concat()).output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_three_forms_of_a_survey() {
    let table = answer(&["--what", "latency,bandwidth", "--details"]);
    assert!(
        table.starts_with("Near and far memory") && table.contains("Bandwidth, copy"),
        "{table}"
    );
    assert!(table.contains("quartiles"), "{table}");
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );
    let svg = answer(&["--what", "latency", "--format", "svg"]);
    assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"));
    let json: Value =
        serde_json::from_str(&answer(&["--what", "bandwidth", "--format", "json"])).unwrap();
    assert_eq!(json["schema"], "bench-latency/1");
    assert!(
        json["latency"].is_null()
            && json["bandwidth"]["pairs"][0]["bytes_per_s"]["median"].as_f64() > Some(1e6)
    );
}

#[test]
fn every_key_of_a_survey_is_documented() {
    keys::documented([&serde_json::from_str(&answer(&["--format", "json"])).unwrap()]);
}

#[test]
fn what_cannot_be_measured_or_understood_is_named() {
    let cases: [(&[&str], &str); 8] = [
        (
            &["--buffer", "99999T"],
            "the most is 16384 MiB|of memory|more memory",
        ),
        (&["--buffer", "4K"], "less than 4194304"),
        (&["--from", "900"], "node 900"),
        (&["--to", "0,901"], "node 901"),
        (&["--buffer", "0"], "--buffer"),
        (&["--budget", "0"], "--budget"),
        (&["--threads", "0"], "--threads"),
        (&["--what", "everything"], "everything"),
    ];
    for (arguments, names) in cases {
        let output = bench(arguments).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(
            names.split('|').any(|name| message.contains(name)) && output.stdout.is_empty(),
            "{arguments:?}: {message}"
        );
    }
}

#[test]
fn an_interrupted_survey_ends_at_once_and_prints_nothing() {
    // Small samples without end, and a buffer that takes a while to be placed.
    for arguments in [
        ["--samples", "100000", "--buffer", "8M"],
        ["--samples", "9", "--buffer", "2G"],
    ] {
        let mut command = bench(&arguments);
        command.args(["--budget", "600", "--what", "latency"]);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Long enough for its signal handlers, short of any end: waiting for a sign of it would need one.
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        // SAFETY: a signal to a child that was not waited for yet, so its number is still its own.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
        let output = child.wait_with_output().unwrap();
        assert!(
            told.elapsed() < Duration::from_secs(60),
            "{arguments:?}: {:?}",
            told.elapsed()
        );
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
}
