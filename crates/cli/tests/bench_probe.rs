//! `nearfar bench probe` as it is typed: a tiny matrix on whatever machine this is, interrupted, resumed, killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::keys;
use crate::waiting::wait_until;
use nearfar_experiment::fingerprint;
use nearfar_runs::{Host, RunId, RunState, Store};
use nearfar_sources::{Request, Want};
use serde_json::Value;

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
    answer["answer"]["rows"]
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
            &[
                "--samples",
                "2",
                "--factor",
                "preferred_node=-1",
                "--factor",
                "numa_balancing=0",
                "--seed",
                "7",
            ],
        ]
        .concat(),
    );
    assert_eq!(found["schema"], "runs-show/2");
    let rows = samples(&found);
    assert!(
        rows.len() >= 4 && rows.iter().all(|&samples| samples == 2),
        "{rows:?}"
    );
    assert_eq!(
        (
            &found["answer"]["rows"][0]["row"],
            &found["answer"]["rows"][0]["preferred_node"]
        ),
        (&Value::from(0), &Value::Null)
    );
    assert!(
        found["answer"]["rows"][0]["moments"]["mean"]
            .as_f64()
            .unwrap()
            > 0.0
    );
    assert_eq!(found["run"], 1);
    keys::documented([&found]);
    let nodes = found["parameters"]["nodes"].as_array().unwrap().len();
    let whole = answer(
        &store,
        &[
            &TINY[..],
            &[
                "--samples",
                "1",
                "--factor",
                "memory_node=0",
                "--factor",
                "cpu_node=F",
            ],
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
        "--factor",
        "preferred_node=-1",
        "--factor",
        "numa_balancing=0",
        "--factor",
        "memory_node=F",
        "--factor",
        "cpu_node=F",
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
            "--factor",
            "preferred_node=-1",
            "--factor",
            "numa_balancing=0",
            "--factor",
            "memory_node=0,F",
            "--factor",
            "cpu_node=F",
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
            "{before} of 80 samples are kept in run 1; `nearfar bench probe --resume=1`"
        )),
        "{errors}"
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains(&format!("{before} of 80 in 2 cells")),
        "{printed}"
    );
    assert!(before < 80, "it was interrupted before its end");
    let resumed = answer(&store, &["--resume"]);
    assert_eq!(samples(&resumed), [40, 40]);
    assert_eq!(
        (stored(), resumed["run"].as_u64()),
        (80, Some(1)),
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
            "--factor",
            "preferred_node=-1",
            "--factor",
            "numa_balancing=0",
            "--factor",
            "memory_node=F",
            "--factor",
            "cpu_node=F",
            "--no-store",
        ],
    ]
    .concat();
    let mut child = probe(&store, &many).spawn().unwrap();
    // Its last words before the first sample; from then on a signal is an interruption.
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("not stored: ") {
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
fn a_run_that_is_not_stored_has_no_number() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let one = ["--no-store", "--samples", "1", "--factor", "cpu_node=0"];
    let found = answer(&store, &[&TINY[..], &one].concat());
    assert_eq!(found["run"], Value::Null);
    let row = &found["answer"]["rows"][0];
    assert_eq!(
        (&row["memory_node"], &row["cpu_node"]),
        (&Value::from(0), &Value::from(0))
    );
    assert!(!store.exists(), "nothing is stored");
}

/// A run of the first layout, of which half was measured, with the factors' names of that time.
#[test]
fn an_interrupted_run_of_the_first_layout_is_not_continued() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let machine = nearfar_sources::read(&Request::live(Want::topology())).unwrap();
    let here = fingerprint(&machine, &Host::here());
    let old = rusqlite::Connection::open(&store).unwrap();
    let layout = include_str!("../../runs/tests/version-1.sql");
    old.execute_batch(layout).unwrap();
    let cells = r#"[{"cpu":"F","mem":"F","nb":0,"pnid":-1}]"#;
    let parameters = r#"{"pattern":"random_read_write","bytes":4194304,"counts":4,"steps":20000,
        "calibrated_to_s":null,"load_percent":5.0,"huge_pages":false,"settings":[],"nodes":[0],"left_out":[]}"#;
    old.execute_batch(&format!(
        r#"UPDATE run SET state = 'interrupted', fingerprint = '{here}';
           UPDATE sample SET cell = '{{"cpu":"F","mem":"F","nb":0,"pnid":-1}}';
           UPDATE detail SET parameters = '{parameters}', plan = '{cells}', factors =
               '[{{"name":"pnid","levels":[-1]}},{{"name":"nb","levels":[0]}},{{"name":"mem","levels":["F"]}},
                 {{"name":"cpu","levels":["F"]}}]';"#
    ))
    .unwrap();
    drop(old);
    let (code, message) = failure(&store, &["--resume", "--label", "quiet"]);
    assert_eq!(code, Some(3), "{message}");
    let says =
        "run 3 cannot be continued: its samples, by nearfar 0.1.0, have other metrics (elapsed_s)";
    assert!(message.contains(says), "{message}");
    let run = Store::open(&store).unwrap().run(RunId(3)).unwrap();
    assert_eq!((run.state, run.samples), (RunState::Interrupted, 2));
}

#[test]
fn one_node_is_refused_before_the_first_sample_unless_cells_are_named() {
    let machine = nearfar_sources::read(&Request::live(Want::topology())).unwrap();
    if machine.online_nodes().count() > 1 {
        return println!("skipped: cpus: this machine has several nodes");
    }
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let (code, message) = failure(&store, &TINY);
    assert_eq!(code, Some(2), "{message}");
    assert!(
        message.contains("this machine has one node") && message.contains("nearfar lab run"),
        "{message}"
    );
}

#[test]
fn what_is_not_here_is_refused_with_what_is() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("runs.db");
    let cases: [(&[&str], &str); 10] = [
        (&["--factor", "memory_node=4000"], "memory_node=4000"),
        (
            &[
                "--cell",
                "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=4000",
            ],
            "cpu_node=4000",
        ),
        (
            &["--cell", "preferred_node=-1,memory_node=0"],
            "numa_balancing is missing",
        ),
        (&["--factor", "numa_balancing=sometimes"], "sometimes"),
        (&["--load", "100"], "0 to 99"),
        (&["--steps", "1", "--seconds", "1"], "--seconds"),
        (&["--bytes", "0", "--steps", "1"], "--bytes"),
        (&["--resume", "--counts", "3"], "--counts"),
        (&["--resume", "--factor", "cpu_node=0"], "--factor"),
        (&["--resume", "--label", "lost"], "with the label \"lost\""),
    ];
    for (arguments, names) in cases {
        let (code, message) = failure(&store, arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {message}");
        assert!(message.contains(names), "{arguments:?}: {message}");
    }
}
