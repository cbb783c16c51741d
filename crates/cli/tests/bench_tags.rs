//! `bench tags` through the whole command: every policy on this machine, and what it says about cells it cannot measure.

use std::process::{Command, Output, Stdio};

use crate::keys;
use serde_json::Value;

/// Short, but each worker gets its turn on a busy host, and with little memory.
const QUICK: &str =
    "--samples 1 --seconds 0.2 --queue-memory 64K --workers 2 --seed 3 --format json";

fn tags(store: &tempfile::TempDir, words: &str) -> Output {
    nearfar(store, &format!("bench tags {words} {QUICK}"))
}

fn nearfar(store: &tempfile::TempDir, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command
        .args(words.split_whitespace())
        .current_dir(store.path())
        .env("NEARFAR_STORE", store.path().join("runs.db"))
        .env("HOME", store.path())
        .env("XDG_STATE_HOME", store.path().join("state"))
        .stdin(Stdio::null());
    command.output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_policy_is_measured_where_there_is_a_node_for_it() {
    let store = tempfile::tempdir().unwrap();
    let output = tags(&store, "--factor depth=8 --tags 32");
    let run: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", errors(&output)));
    assert_eq!(run["state"], "complete", "{}", errors(&output));
    let cells = run["summary"].as_array().unwrap();
    let level = |cell: &Value, factor: &str| cell["cell"][factor].as_str().unwrap().to_owned();
    let alone = cells
        .iter()
        .filter(|cell| level(cell, "distance") == "alone");
    let alone: Vec<_> = alone.map(|cell| level(cell, "policy")).collect();
    let policies = [
        "stock",
        "limit",
        "limit_topology",
        "coarse_core",
        "coarse_llc",
        "coarse_node",
        "bitmap",
        "auto",
    ];
    assert_eq!(alone, policies);
    for distance in ["near", "far"] {
        let is_measured = cells.iter().any(|cell| level(cell, "distance") == distance);
        let is_named = errors(&output).contains(&format!("not measured: distance={distance}: "));
        assert_ne!(is_measured, is_named, "{distance}: {}", errors(&output));
        let has_hint = errors(&output).contains("--guest machine=");
        assert!(
            distance == "far" || is_named == has_hint,
            "{}",
            errors(&output)
        );
    }
    for cell in cells {
        let first = &cell["metrics"][0];
        assert_eq!(first["metric"], "operations_per_s");
        assert!(first["median"].as_f64().unwrap() > 0.0, "{cell}");
    }
}

#[test]
fn a_worker_alone_has_tags_to_spare_and_peers_are_measured_with_policies() {
    let store = tempfile::tempdir().unwrap();
    // Its share would be 8 of 4 tags.
    let words = "--factor policy=stock,auto --factor distance=alone --factor depth=32,64 --tags 4";
    let output = tags(&store, &format!("{words} --peers"));
    let run: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", errors(&output)));
    let cells = run["summary"].as_array().unwrap();
    let policies: Vec<_> = cells.iter().map(|it| &it["cell"]["policy"]).collect();
    assert_eq!(policies, ["stock", "auto", "mutex_vec", "array_queue"]);
    for cell in cells {
        let metrics = cell["metrics"].as_array().unwrap();
        let of = |name: &str| {
            let metric = metrics.iter().find(|it| it["metric"] == name);
            metric.and_then(|it| it["median"].as_f64())
        };
        assert_eq!(of("wait_share"), Some(0.0), "{cell}");
        assert!(of("cpu_ns_per_operation").unwrap() > 0.0, "{cell}");
        let counts_steals = cell["cell"]["policy"] == "stock";
        assert_eq!(of("steals_node").is_some(), counts_steals, "{cell}");
    }
    let shown = nearfar(&store, "runs show last");
    let shown = String::from_utf8(shown.stdout).unwrap();
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("alone: node 0 (the device's), CPUs "),
        "{shown}"
    );
}

#[test]
fn a_run_is_shown_as_a_mail_and_against_published_figures() {
    let store = tempfile::tempdir().unwrap();
    let run = tags(&store, "--factor policy=stock,auto --factor distance=alone");
    assert!(run.status.success(), "{}", errors(&run));
    let text = |words: &str| String::from_utf8(nearfar(&store, words).stdout).unwrap();

    let mail = text("runs show last --format mail");
    let command = "nearfar bench tags --factor=distance=alone";
    assert!(
        mail.contains(command) && mail.contains("--seed=3"),
        "{mail}"
    );
    assert!(
        mail.contains("Not claimed") && mail.contains("alone"),
        "{mail}"
    );
    assert!(
        mail.lines().all(|line| line.chars().count() <= 72),
        "{mail}"
    );
    assert!(text("runs show last --format markdown").contains("| alone |"));

    let file = store.path().join("figures.csv");
    let table = "# case 3\nscenario,variant,kiops,sys_percent\nfar-low,stock,600,72\n";
    std::fs::write(&file, table).unwrap();
    let shown = text("runs show last --published figures.csv");
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        shown.contains("far-low stock (the run does not have it)"),
        "{shown}"
    );
    let json = text("runs show last --published figures.csv --format json");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["published"][0]["metric"], "operations_per_s");
    keys::documented([&json["published"], &json["answer"]]);

    std::fs::write(&file, format!("{table}far-low,limit,many,71\n")).unwrap();
    let refused = nearfar(&store, "runs show last --published figures.csv");
    assert_eq!(refused.status.code(), Some(2));
    let says = "figures.csv: line 4: kiops is not a number of at least 0: \"many\"";
    assert!(errors(&refused).contains(says), "{}", errors(&refused));
    std::fs::write(&file, format!("{table}{}", " ".repeat(1 << 20))).unwrap();
    let refused = nearfar(&store, "runs show last --published figures.csv");
    let says = "figures.csv: it is larger than 1024 KiB";
    assert!(errors(&refused).contains(says), "{}", errors(&refused));
}

#[test]
fn published_figures_are_of_tags_only() {
    let store = tempfile::tempdir().unwrap();
    let run = nearfar(&store, "bench mock --samples 1 --factor speed=fast");
    assert!(run.status.success(), "{}", errors(&run));
    let table = "scenario,variant,kiops\nfar-low,stock,600\n";
    std::fs::write(store.path().join("figures.csv"), table).unwrap();
    let refused = nearfar(&store, "runs show last --published figures.csv");
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        errors(&refused).contains("run 1 is of mock"),
        "{}",
        errors(&refused)
    );
}

#[test]
fn what_cannot_be_is_refused_with_the_argument() {
    let store = tempfile::tempdir().unwrap();
    for (words, says) in [
        ("--tags 0", "'0' for '--tags <N>': expected 1 to 16777216"),
        (
            "--batch none",
            "'none' for '--batch <N>': expected 1 to 4294967295",
        ),
        (
            "--request-bytes 8",
            "'8' for '--request-bytes <SIZE>': expected a size of 32 to 1M",
        ),
    ] {
        let output = nearfar(&store, &format!("bench tags {words}"));
        assert_eq!(output.status.code(), Some(2));
        assert!(errors(&output).contains(says), "{}", errors(&output));
    }
}
