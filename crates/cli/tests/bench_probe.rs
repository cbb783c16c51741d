//! `nearfar bench probe` as it is typed: a tiny matrix on whatever machine this is, interrupted, resumed, killed.

mod keys;
mod waiting;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use waiting::wait_until;

/// Small enough for seconds on one core: the cells that exist, 4 MiB, a hundredth of a second a run.
const TINY: [&str; 8] = [
    "--bytes", "4M", "--counts", "4", "--steps", "20000", "--load", "5",
];

fn probe(store: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command
        .args(["bench", "probe"])
        .args(arguments)
        .env("NO_COLOR", "1")
        .env("NEARFAR_STORE", store);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The answer in JSON of a run that has to work.
#[track_caller]
fn answer(store: &Path, arguments: &[&str]) -> Value {
    let output = probe(store, &[arguments, &["--format", "json"]].concat())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn failure(store: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = probe(store, arguments).output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

fn samples(answer: &Value) -> Vec<usize> {
    let of_row = |row: &Value| row["seconds"]["samples"].as_array().map_or(0, Vec::len);
    answer["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(of_row)
        .collect()
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: a signal to a child that was not waited for yet, so the number is still its own.
    let sent = unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) };
    assert_eq!(sent, 0);
}

#[test]
fn the_cells_that_exist_are_measured_and_the_others_are_said() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let found = answer(
        &store,
        &[
            &TINY[..],
            &["--samples", "2", "--policies", "off", "--seed", "7"],
        ]
        .concat(),
    );
    assert_eq!(found["schema"], "bench-probe/1");
    let rows = samples(&found);
    assert!(
        rows.len() >= 4 && rows.iter().all(|&samples| samples == 2),
        "{rows:?}"
    );
    assert_eq!(
        (
            &found["rows"][0]["row"],
            &found["rows"][0]["preferred_node"]
        ),
        (&Value::from(0), &Value::Null)
    );
    assert!(found["rows"][0]["moments"]["mean"].as_f64().unwrap() > 0.0);
    assert_eq!(found["run"], "1");
    keys::documented([&found]);
    let nodes = found["parameters"]["nodes"].as_array().unwrap().len();
    let whole = answer(
        &store,
        &[
            &TINY[..],
            &["--samples", "1", "--memory", "0", "--cpus", "F"],
        ]
        .concat(),
    );
    assert!(
        nodes > 1
            || !whole["parameters"]["left_out"]
                .as_array()
                .unwrap()
                .is_empty(),
        "{whole}"
    );
}

#[test]
fn a_stored_run_shows_the_table_that_was_printed() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let few = [
        "--samples",
        "2",
        "--policies",
        "off",
        "--memory",
        "F",
        "--cpus",
        "F",
    ];
    let printed = probe(&store, &[&TINY[..], &few].concat()).output().unwrap();
    let mut show = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    let shown = show
        .args(["runs", "show", "1"])
        .env("NEARFAR_STORE", &store)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let (printed, shown) = (text(&printed), text(&shown));
    let times = printed
        .lines()
        .skip_while(|line| !line.starts_with("Run times"))
        .take(3)
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        times.contains("median") && shown.contains(&times),
        "printed:\n{printed}\nshown:\n{shown}"
    );
}

#[test]
fn an_interrupted_run_is_completed_with_exactly_what_it_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let many = [
        &TINY[..],
        &[
            "--samples",
            "40",
            "--policies",
            "off",
            "--memory",
            "0,F",
            "--cpus",
            "F",
        ],
    ]
    .concat();
    let child = probe(&store, &many).spawn().unwrap();
    let stored = || answer_of_export(&store);
    wait_until("some samples", || stored() > 3);
    signal(&child, libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(3),
        "a script must not take it for the whole matrix: {errors}"
    );
    let before = stored();
    assert!(
        errors.contains(&format!(
            "{before} of 80 samples are kept in run 1; `nearfar bench probe --resume`"
        )),
        "{errors}"
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains(&format!("{before} of 80 samples are there")),
        "{printed}"
    );
    assert!(before < 80, "it was interrupted before its end");
    let resumed = answer(&store, &["--resume"]);
    assert_eq!(samples(&resumed), [40, 40]);
    assert_eq!(
        (stored(), resumed["run"].as_str()),
        (80, Some("1")),
        "nothing is measured twice"
    );
    let (code, message) = failure(&store, &["--resume"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("nothing to resume"), "{message}");
}

#[test]
fn an_interrupted_run_that_is_not_stored_does_not_promise_to_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let many = [
        &TINY[..],
        &[
            "--samples",
            "4000",
            "--policies",
            "off",
            "--memory",
            "F",
            "--cpus",
            "F",
            "--no-store",
        ],
    ]
    .concat();
    let mut child = probe(&store, &many).spawn().unwrap();
    // Its last words before the first sample; from then on a signal is an interruption.
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("run 1: ") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
    }
    signal(&child, libc::SIGTERM);
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(
        child.wait_with_output().unwrap().status.code(),
        Some(3),
        "{said}"
    );
    assert!(
        said.contains("nothing is kept") && !said.contains("--resume"),
        "{said}"
    );
}

/// How many samples the store's first run has.
fn answer_of_export(store: &Path) -> usize {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    let output = command
        .args(["runs", "list", "--format", "json"])
        .env("NEARFAR_STORE", store)
        .output()
        .unwrap();
    let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    list["runs"][0]["samples"].as_u64().unwrap_or(0) as usize
}

#[test]
fn one_probe_says_how_long_it_took_and_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let found = answer(&store, &[&TINY[..], &["--once", "--cpus", "0"]].concat());
    assert_eq!(found["schema"], "bench-probe-once/1");
    assert_eq!(
        (&found["memory_node"], &found["cpu_node"]),
        (&Value::from("floating"), &Value::from(0))
    );
    let late = found["trace"]["numa_balancing_of_task"]["unknown_reason"].as_str();
    assert!(
        !late.is_some_and(|because| because.contains("No such file")),
        "the child was asked too late: {late:?}"
    );
    assert!(found["probe"]["seconds"].as_f64().unwrap() > 0.0);
    keys::documented([&found]);
    assert!(!store.exists(), "one probe is not stored");
    let table = probe(&store, &[&TINY[..], &["--once"]].concat())
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains("memory floating, CPUs floating: "),
        "{table}"
    );
}

#[test]
fn what_is_not_here_is_refused_with_what_is() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let cases: [(&[&str], &str); 11] = [
        (&["--memory", "4000"], "--memory 4000"),
        (
            &[
                "--cell",
                "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=4000",
            ],
            "cpu_node=4000",
        ),
        (
            &["--cell", "preferred_node=-1,memory_node=0"],
            "preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=0",
        ),
        (&["--policies", "sometimes"], "sometimes"),
        (&["--load", "100"], "0 to 99"),
        (&["--once", "--memory", "0,F"], "--memory"),
        (
            &["--once", "--steps", "1", "--memory", "4000"],
            "no node 4000",
        ),
        (&["--resume", "--counts", "3"], "--counts"),
        (&["--resume", "--samples", "3"], "--samples"),
        (&["--resume", "--label", "lost"], "with the label \"lost\""),
        (
            &["--once", "--migration-cost-ns", "3"],
            "--migration-cost-ns",
        ),
    ];
    for (arguments, names) in cases {
        let (code, message) = failure(&store, arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {message}");
        assert!(message.contains(names), "{arguments:?}: {message}");
    }
}
