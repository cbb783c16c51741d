//! Runs whose samples guests took: what counts is how the guests were made, not their hosts.

use std::collections::BTreeSet;

use nearfar_compare::{CompareError, Comparison, Difference, Kind, Options, Side, compare};
use nearfar_runs::export::Whole;
use serde_json::{Value, json};

/// A guest that took the samples of the cells with some levels.
struct Guest {
    levels: Value,
    kernel: &'static str,
    arguments: &'static str,
}

/// One guest for all cells.
fn guest(kernel: &'static str, arguments: &'static str) -> [Guest; 1] {
    [Guest {
        levels: json!({}),
        kernel,
        arguments,
    }]
}

/// A guest for each level of the factor `append`.
fn guests(arguments: [&'static str; 2]) -> [Guest; 2] {
    let levels = ["none", "some"];
    [0, 1].map(|index| Guest {
        levels: json!({"append": levels[index]}),
        kernel: "6.12",
        arguments: arguments[index],
    })
}

/// The target as the store keeps it.
fn target(guest: &Guest) -> Value {
    let Guest {
        levels,
        kernel,
        arguments,
    } = guest;
    let emulation = json!({
        "machine": "two-node", "kernel": kernel, "kernel_arguments": [arguments],
        "architecture": "x86_64", "acceleration": "tcg",
    });
    json!({
        "levels": levels,
        "fingerprint": arguments,
        "host": {
            "name": "nearfar-guest", "kernel": kernel, "kernel_version": "#1",
            "kernel_command_line": format!("nearfar.lab={emulation} quiet {arguments}"),
        },
        "emulation": emulation,
        "machine": {"origin": {"architecture": "x86_64", "emulation": emulation}, "nodes": [{"id": 0}]},
    })
}

/// A run of 16 samples of each guest's cell, made on a host of this name, which is also its kernel's.
fn run(number: i64, host: &str, guests: &[Guest]) -> Side {
    of_parameters(json!({}), number, host, guests)
}

fn of_parameters(parameters: Value, number: i64, host: &str, guests: &[Guest]) -> Side {
    let cells: Vec<&Value> = guests.iter().map(|guest| &guest.levels).collect();
    let sample = |round: usize, cell: &Value| {
        json!({
            "number": round, "round": round, "cell": cell, "started_at_s": 0.0, "took_s": 0.0,
            "values": {"elapsed_s": 1.0 + (7 * round % 16) as f64 / 100.0}, "failed": null, "warnings": [],
            "detail": null,
        })
    };
    let round = |round| cells.iter().map(move |cell| sample(round, cell));
    let whole = json!({
        "run": number, "uid": number.to_string(), "experiment": "fake", "title": "nothing is measured",
        "label": null, "state": "complete", "failure": null, "started_at_s": 0.0,
        "finished_at_s": 1.0, "samples": 16 * cells.len(), "with_warnings": 0, "failed": 0,
        "cells": cells.len(), "samples_per_cell": 16, "host": host, "kernel": "6.12",
        "emulation": null, "nearfar": "0.1.0", "fingerprint": host,
        "owner": {"pid": 1, "started_ticks": 1, "boot": "", "pid_namespace": ""},
        "parameters": parameters, "factors": [], "plan": cells, "seed": 7, "warnings": [],
        "metrics": [{
            "name": "elapsed_s", "unit": "s", "better": "lower", "primary": true, "kind": "real",
        }],
        "kernel_version": host, "kernel_command_line": host,
        "targets": guests.iter().map(target).collect::<Vec<_>>(),
        "machine": {"origin": {"product": host}, "nodes": []},
        "taken": (1..=16).flat_map(round).collect::<Vec<_>>(),
    });
    let whole: Whole = serde_json::from_value(whole).unwrap();
    Side::of_run(format!("run {number}"), &whole)
}

fn compared(sides: &[Side], across: &[Kind]) -> Result<Comparison, CompareError> {
    let options = Options {
        margin: 0.01,
        metrics: Vec::new(),
        across: BTreeSet::from_iter(across.iter().copied()),
        judges_single_runs: false,
    };
    compare(sides, &options)
}

#[track_caller]
fn refused(sides: &[Side]) -> Vec<Difference> {
    match compared(sides, &[]) {
        Err(CompareError::Differ(differences)) => differences,
        other => panic!("{other:?}"),
    }
}

fn texts(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

#[test]
fn another_kernel_or_command_line_of_the_guest_is_refused_and_can_be_allowed() {
    let fake = "numa=fake=2";
    for (other, difference) in [
        (
            guest("6.12", fake),
            "command_line: \"quiet\" in the baseline, \"quiet numa=fake=2\" in run 2",
        ),
        (
            guest("6.1", ""),
            "release: \"6.12\" in the baseline, \"6.1\" in run 2",
        ),
    ] {
        let sides = [run(1, "host", &guest("6.12", "")), run(2, "host", &other)];
        let expected = [format!("kernel {difference}")];
        assert_eq!(texts(&refused(&sides)), expected);
        let answer = compared(&sides, &[Kind::Kernel]).unwrap();
        assert_eq!(texts(&answer.differences), expected);
        assert_eq!(answer.rows.len(), 1);
    }
}

#[test]
fn equal_guests_on_different_hosts_are_accepted() {
    for guests in [&guest("6.12", "")[..], &guests(["", "numa=fake=2"])] {
        let sides = [run(1, "one", guests), run(2, "other", guests)];
        let answer = compared(&sides, &[]).unwrap();
        assert_eq!(answer.differences, []);
        assert_eq!(answer.rows.len(), guests.len());
    }
    let hosts = [run(1, "one", &[]), run(2, "other", &[])];
    let differences = refused(&hosts);
    assert!(differences.iter().any(|it| it.kind == Kind::Kernel));
    assert!(differences.iter().any(|it| it.kind == Kind::Machine));
}

#[test]
fn several_guests_are_matched_by_their_levels() {
    let one = run(1, "host", &guests(["", "numa=fake=2"]));
    let mut reversed = guests(["", "numa=fake=2"]);
    reversed.reverse();
    let same = run(2, "host", &reversed);
    assert_eq!(compared(&[one.clone(), same], &[]).unwrap().differences, []);
    let other = run(3, "host", &guests(["", "numa=fake=4"]));
    let expected = "kernel append=some.command_line: \"quiet numa=fake=2\" in the baseline, \
                    \"quiet numa=fake=4\" in run 3";
    assert_eq!(texts(&refused(&[one, other])), [expected]);
}

#[test]
fn runs_that_end_once_they_are_clear_have_the_share_of_their_looks() {
    let run = |number, is_until_clear| {
        let parameters = json!({"until_clear": is_until_clear});
        of_parameters(parameters, number, "host", &guest("6.12", ""))
    };
    let options = Options {
        margin: 0.01,
        metrics: Vec::new(),
        across: [Kind::Parameters].into(),
        judges_single_runs: true,
    };
    let width = |a, b| {
        let answer = compare(&[run(1, a), run(2, b)], &options).unwrap();
        let interval = answer.rows[0].compared.shift.confidence.unwrap();
        interval.high - interval.low
    };
    let (none, one, both) = (width(false, false), width(false, true), width(true, true));
    assert_eq!(one, width(true, false));
    assert!(none < one && one < both, "{none} {one} {both}");
}
