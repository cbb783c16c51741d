//! `nearfar bench latency` as a command: its three forms, its failures, and being interrupted.

use std::time::{Duration, Instant};

use crate::harness::{Answer, Nearfar, nearfar};
use crate::keys;
use nearfar_compare::answers::{CommandRun, ValueSelection};
use rustix::process::Signal;
use serde_json::Value;

fn bench(arguments: &[&str]) -> Nearfar {
    nearfar(["bench", "latency"]).args(arguments)
}

const SMALL: [&str; 6] = ["--budget", "1", "--samples", "3", "--buffer", "8M"];

#[track_caller]
fn answer(arguments: &[&str]) -> Answer {
    bench(&SMALL).args(arguments).run().succeeded()
}

#[test]
fn the_three_forms_of_a_survey() {
    // Time enough for two samples also on a busy host.
    let words =
        "bench latency --budget 6 --samples 2 --buffer 8M --what latency,bandwidth --details";
    let table = nearfar(words.split(' ')).run().succeeded().text();
    assert!(
        table.starts_with("Near and far memory") && table.contains("Bandwidth, copy"),
        "{table}"
    );
    assert!(table.contains("quartiles"), "{table}");
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );
    let svg = answer(&["--what", "latency", "--format", "svg"]).text();
    assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"));
    let json: Value = answer(&["--what", "bandwidth", "--format", "json"]).json();
    assert_eq!(json["schema"], "bench-latency/1");
    assert!(
        json["latency"].is_null()
            && json["bandwidth"]["pairs"][0]["bytes_per_s"]["median"].as_f64() > Some(1e6)
    );
}

#[test]
fn every_key_of_a_survey_is_documented() {
    keys::documented([&answer(&["--format", "json"]).json()]);
}

#[test]
fn the_example_of_the_help_of_ab_selects_values_of_the_command_it_runs() {
    let help = nearfar(["ab", "--help"]).run().succeeded().text();
    // Long ones are wrapped.
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, examples) = words.split_once("Examples:").unwrap();
    let examples = examples.split(" nearfar ab ");
    let mut checked = 0;
    for example in examples.filter(|example| example.contains("--value '")) {
        let (_, rest) = example.split_once("--value '").unwrap();
        let (pattern, _) = rest.split_once('\'').unwrap();
        let (_, command) = rest.split_once("-- nearfar ").unwrap();
        let words = command.split_whitespace();
        let answer = nearfar(words).args(SMALL).run().succeeded();
        let run = CommandRun {
            elapsed_s: 1.0,
            exit_code: 0,
            stdout: answer.text(),
            stderr: String::new(),
            kernel: None,
        };
        let selection = ValueSelection::new(vec![pattern.to_owned()]);
        assert_eq!(selection.check([&run]), Ok(()), "{example}");
        checked += 1;
    }
    assert_eq!(checked, 1, "{help}");
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
        let answer = bench(arguments).run().refused(&[]);
        let message = answer.errors();
        assert!(
            names.split('|').any(|name| message.contains(name)),
            "{names}: {answer}"
        );
    }
}

#[test]
fn an_interrupted_survey_ends_at_once_and_prints_what_it_has() {
    // Small samples without end, and a buffer that takes a while to be placed.
    for arguments in [
        ["--samples", "100000", "--buffer", "8M"],
        ["--samples", "9", "--buffer", "2G"],
    ] {
        let running = bench(&arguments)
            .args(["--budget", "600", "--what", "latency"])
            .start();
        // Long enough for its signal handlers, short of any end: waiting for a sign of it would need one.
        std::thread::sleep(Duration::from_millis(300));
        let signalled = Instant::now();
        let answer = running.end_by(Signal::INT);
        let elapsed = signalled.elapsed();
        assert!(elapsed < Duration::from_secs(60), "{elapsed:?}: {answer}");
        // How far it came is the host's affair.
        let (printed, errors) = (answer.text(), answer.errors());
        let has_samples = printed.contains("interrupted after ");
        assert!(!answer.status.success(), "{answer}");
        assert_eq!(has_samples, !printed.is_empty(), "{answer}");
        assert_eq!(has_samples, errors.contains("until then"), "{answer}");
    }
}
