//! `bench scale` through the whole command: every workload on this machine, and what remains after it is killed.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const QUICK: &str = "--no-store --samples 1 --warm-up 0.02 --trace-seconds 0.05 --format json";
/// Options that a test may give another value.
const SHORT: [(&str, &str); 3] = [
    ("--seconds", "0.05"),
    ("--memory-size", "1M"),
    ("--factor", "tasks=1"),
];

fn scale(home: &tempfile::TempDir, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command
        .args(format!("bench scale {QUICK} {words}").split_whitespace())
        .args(
            SHORT
                .iter()
                .filter(|(name, _)| !words.contains(name))
                .flat_map(|(name, value)| [name, value]),
        )
        .env("HOME", home.path())
        .env("XDG_STATE_HOME", home.path().join("state"))
        .stdin(Stdio::null());
    command
}

#[test]
fn every_workload_counts_operations_as_processes_and_as_threads() {
    let home = tempfile::tempdir().unwrap();
    let words = "--seconds 0.3 --factor tasks=1 --factor kind=process,thread \
                 --factor workload=tlb_flush,page_fault,page_fault_file,file_lock,mmap,page_alloc,lru";
    // A busy machine may leave a task without a CPU for all of its time: then each is tried again.
    let mut counted = BTreeSet::new();
    let begun = Instant::now();
    let run = loop {
        let output = scale(&home, words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let run: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {errors}"));
        assert_eq!(run["state"], "complete", "{errors}");
        let cells = run["summary"].as_array().unwrap();
        assert_eq!(cells.len(), 14);
        let has_counted = |cell: &&Value| cell["metrics"][0]["median"].as_f64().unwrap() > 0.0;
        let names = cells
            .iter()
            .filter(has_counted)
            .map(|cell| cell["cell"].to_string());
        counted.extend(names);
        if counted.len() == 14 {
            break run;
        }
        assert!(begun.elapsed() < Duration::from_secs(150), "{run}");
    };
    let curves = run["answer"]["curves"].as_array().unwrap();
    assert_eq!(curves.len(), 14, "a curve for each workload and kind");
    let reason = curves[0]["law"]["unknown_reason"].as_str().unwrap();
    assert!(reason.contains("too few"), "{reason}");
}

#[test]
fn tasks_end_with_nearfar() {
    let home = tempfile::tempdir().unwrap();
    let mut nearfar = scale(&home, "--seconds 600")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let named = |pid: i32| {
        let all = nearfar_proc::tasks::children(pid, pid).unwrap_or_default();
        let is_task = |pid: &i32| {
            nearfar_proc::tasks::name(*pid).is_ok_and(|it| it.to_text() == "nearfar-scale")
        };
        all.into_iter().filter(is_task).collect::<Vec<_>>()
    };
    let limit = Instant::now() + Duration::from_secs(60);
    let tasks: Vec<i32> = loop {
        let starter = named(nearfar.id().cast_signed());
        let forked: Vec<i32> = starter.iter().flat_map(|pid| named(*pid)).collect();
        if !forked.is_empty() {
            break [starter, forked].concat();
        }
        assert!(Instant::now() < limit, "no task was started");
        sleep(Duration::from_millis(20));
    };
    nearfar.kill().unwrap();
    nearfar.wait().unwrap();
    while tasks.iter().any(|pid| nearfar_proc::tasks::is_alive(*pid)) {
        assert!(Instant::now() < limit, "{tasks:?} outlived their parent");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let home = tempfile::tempdir().unwrap();
    for (words, expected) in [
        (
            "--directory /nonexistent",
            "--directory /nonexistent: not a directory",
        ),
        (
            "--directory /proc",
            "cannot make a file without a name there",
        ),
        ("--memory-size 65537", "expected a multiple of"),
        ("--memory-size 900G", "give a smaller --memory-size"),
        ("--factor tasks=8000", "8000 bound tasks need as many CPUs"),
        ("--factor nodes_used=999", "nodes_used=999: the machine has"),
    ] {
        let output = scale(&home, words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(expected),
            "{words}: {errors}"
        );
    }
}
