//! A process with remote memory is found, its memory is moved and moved back: in a guest in which remote memory is slow, it
//! computes as fast then as a process whose memory was always near, and as slow as before after the rollback.
//!
//! Two processes run on node 0, one with memory of node 0, one with memory of node 1, and compute one after the other. The guest
//! has a time of its own, so what the host does meanwhile does not matter. docs/apply.md has the figures that `cargo test -p nearfar --test
//! guest move_time:: -- --nocapture` prints.
//!
//! Needs what crates/cli/tests/guest/time.rs needs; without it says so and passes. The part named `inside` is this very program
//! once more, started in the guest.

use std::path::Path;
use std::process::Command;

use crate::guests;
use crate::holding;
use crate::holding::Holder;
use crate::moving::begin;
use serde_json::{Value, json};

const OPTIONS: [&str; 6] = [
    "--scale",
    "cpus=1,memory=512M",
    "--delay",
    "near=100,far=400,cache=1M/16",
    "--time",
    // Slow instructions: the second of CPU time that `tasks` wants to see takes the host less.
    "simulated,instruction=2",
];
/// Many times the modelled cache.
const BYTES: u64 = 64 << 20;
/// Dependent loads in one measurement.
const STEPS: u64 = 800;
const MEASUREMENTS: usize = 20;
/// Memory of node 1 takes four times that of node 0, of which some lines come from the modelled cache, and of which the loop's own
/// instructions take a part.
const MIN_GAIN: f64 = 2.1;
const MAX_RATIO: f64 = 1.02;

/// What nearfar prints; JSON, or text where it is none.
fn nearfar(words: &str) -> Value {
    let output = Command::new(guests::NEARFAR)
        .args(words.split(' '))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// How many times the near one's time the other one takes for the same work.
fn compare(what: &str, near: &mut Holder, other: &mut Holder) -> f64 {
    let [near, other] = [near, other].map(|it| {
        // The first ones find the cache as the move has left it.
        it.compute(MEASUREMENTS, STEPS);
        median(it.compute(MEASUREMENTS, STEPS))
    });
    let of_load = |ns: f64| format!("{:.1} ns", ns / STEPS as f64);
    let ratio = other / near;
    println!(
        "{what}: {} a load, near {}, {ratio:.3} times as long",
        of_load(other),
        of_load(near)
    );
    ratio
}

fn of_pid(rows: &Value, pid: i32) -> &Value {
    let mut rows = rows.as_array().unwrap().iter();
    rows.find(|row| row["pid"] == json!(pid))
        .expect("no row of the process")
}

/// `tasks`, `top` and `exporter` show it, the first with the remedy.
fn is_found(pid: i32) {
    let tasks = nearfar("tasks --format json");
    let task = of_pid(&tasks["tasks"], pid);
    assert!(task["remote"]["share"].as_f64().unwrap() > 0.9, "{task}");
    assert_eq!(
        (&task["remedy"]["action"], &task["remedy"]["node"]),
        (&json!("move-memory"), &json!(0)),
        "{task}"
    );
    println!("{}", nearfar("tasks").as_str().unwrap());
    let top = nearfar("top --batch --count 1 --seconds 0.2 --format json");
    let share = of_pid(&top["tasks"], pid)["remote"]["share"].as_f64();
    assert!(share.unwrap() > 0.9, "{top}");
    let metrics = nearfar("exporter --once");
    let metrics = metrics.as_str().unwrap();
    let on_node_1 = metrics.lines().filter(|line| {
        line.starts_with("nearfar_service_memory_bytes{") && line.contains("node=\"1\"")
    });
    let found = on_node_1.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    assert!(found.sum::<f64>() >= BYTES as f64, "{metrics}");
}

/// A process on node 0 with memory of node 1, which is moved to node 0 and back. `look` sees it in each of these states.
fn moved_and_back(mut look: impl FnMut(&str, &mut Holder)) {
    let state = tempfile::tempdir().unwrap();
    let state = |words: &str| format!("{words} --state {}", Path::display(state.path()));
    let mut far = holding::fill(1, BYTES);
    let pid = far.pid;
    assert!(far.nodes().iter().all(|&node| node == 1));
    far.read_all();

    look("far", &mut far);
    is_found(pid);
    let apply = format!("apply --memory {pid} --to-node 0 --yes");
    println!("{}", nearfar(&state(&apply)).as_str().unwrap());
    assert!(far.nodes().iter().all(|&node| node == 0));
    far.read_all();
    look("moved", &mut far);
    println!("{}", nearfar(&state("rollback")).as_str().unwrap());
    assert!(far.nodes().iter().all(|&node| node == 1));
    far.read_all();
    look("rolled back", &mut far);
    far.check_content();
}

/// The same process, compared each time with one whose memory is on node 0.
#[test]
#[ignore = "runs in the guest"]
fn inside() {
    begin();
    let mut near = holding::fill(0, BYTES);
    near.read_all();
    let mut ratios = Vec::new();
    moved_and_back(|what, far| {
        far.check_content();
        ratios.push(compare(what, &mut near, far));
    });
    let [before, moved, back] = ratios[..] else {
        panic!("{ratios:?}");
    };
    assert!(before > MIN_GAIN && back > MIN_GAIN, "{before} {back}");
    assert!((1.0 / MAX_RATIO..MAX_RATIO).contains(&moved), "{moved}");
}

#[test]
fn a_process_whose_memory_is_moved_computes_as_one_that_was_always_near() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    guests::part("two-node", &OPTIONS, "move_time::inside");
}
