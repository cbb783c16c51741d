//! A process with remote memory is found, its memory is moved and moved back. What that gains is in the slow tier: in a guest in
//! which remote memory is slow, it computes as fast as a process whose memory was always near, and as slow as before after the
//! rollback.
//!
//! Two processes run on node 0, one with memory of node 0, one with memory of node 1. They compute in turns, and the lower deciles
//! of their times, of less than a millisecond each, are compared: other work on the host makes times longer, and never shorter.
//! docs/apply.md has figures of 256 MiB; `NEARFAR_MOVE_256=1 cargo test -p nearfar --test guest move_time:: -- --nocapture`
//! prints those of this host.
//!
//! Needs what crates/cli/tests/guest/delays.rs needs; without it says so and passes. The parts named `inside_...` are this very
//! program once more, started in the guest.

use std::path::Path;
use std::process::Command;

use crate::guests;
use crate::holding;
use crate::holding::Holder;
use crate::moving::begin;
use nearfar_lab::{Arch, delay, qemu::Qemu};
use serde_json::{Value, json};

const SCALE: [&str; 2] = ["--scale", "cpus=1,memory=1G"];
const DELAYED: [&str; 4] = [SCALE[0], SCALE[1], "--delay", "auto"];
/// Several times the modelled cache, and more than nine times what the program itself has on node 0. The emulated guest takes a minute and
/// more to touch and move 256 MiB.
const BYTES: u64 = 96 << 20;
const BYTES_OF_MEASUREMENT: u64 = 256 << 20;
/// Dependent loads in one measurement: less than a millisecond.
const STEPS: u64 = 800;
/// Measurements of one process, before it is the turn of the other.
const MEASUREMENTS: usize = 20;
const TURNS: usize = 60;
/// Memory of node 1 takes 2.1 times that of node 0, of which emulation hides a part.
const MIN_GAIN: f64 = 1.3;
/// A host with other work keeps this.
const MAX_RATIO: f64 = 1.10;

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

/// Of all measurements: the time that a tenth of them is below, and the median.
fn quantiles(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 10], times[times.len() / 2])
}

/// How many times the near one's lower decile the other one's is, for the same work.
fn compare(what: &str, near: &mut Holder, other: &mut Holder) -> f64 {
    let (mut near_times, mut other_times) = (Vec::new(), Vec::new());
    for turn in 0..=TURNS {
        let times = [&mut *near, &mut *other].map(|it| it.compute(MEASUREMENTS, STEPS));
        // The first is after a pause.
        if turn > 0 {
            let [one, two] = times;
            near_times.extend(one);
            other_times.extend(two);
        }
    }
    let (near, near_median) = quantiles(near_times);
    let (other, other_median) = quantiles(other_times);
    let of_load = |ns: f64| format!("{:.0} ns", ns / STEPS as f64);
    println!(
        "{what}: {} a load, near {}, {:.3} times as long; medians {} and {}, {:.3} times",
        of_load(other),
        of_load(near),
        other / near,
        of_load(other_median),
        of_load(near_median),
        other_median / near_median
    );
    other / near
}

fn of_pid(rows: &Value, pid: i32) -> &Value {
    let mut rows = rows.as_array().unwrap().iter();
    rows.find(|row| row["pid"] == json!(pid))
        .expect("no row of the process")
}

/// `tasks`, `top` and `exporter` show it, the first with the remedy.
fn is_found(pid: i32, bytes: u64) {
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
    assert!(found.sum::<f64>() >= bytes as f64, "{metrics}");
}

/// A process on node 0 with memory of node 1, which is moved to node 0 and back. `look` sees it in each of these states.
fn moved_and_back(bytes: u64, mut look: impl FnMut(&str, &mut Holder)) {
    begin();
    let state = tempfile::tempdir().unwrap();
    let state = |words: &str| format!("{words} --state {}", Path::display(state.path()));
    let mut far = holding::fill(1, bytes);
    let pid = far.pid;
    assert!(far.nodes().iter().all(|&node| node == 1));
    far.read_all();

    look("far", &mut far);
    is_found(pid, bytes);
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
fn near_far_and_back(bytes: u64) {
    begin();
    let mut near = holding::fill(0, bytes);
    near.read_all();
    let mut ratios = Vec::new();
    moved_and_back(bytes, |what, far| {
        ratios.push(compare(what, &mut near, far));
    });
    let [before, moved, back] = ratios[..] else {
        panic!("{ratios:?}");
    };
    assert!(before > MIN_GAIN && back > MIN_GAIN, "{before} {back}");
    assert!(
        moved < MAX_RATIO && moved < 1.0 + (before - 1.0) / 2.0,
        "{moved}"
    );
}

#[test]
#[ignore = "runs in the guest"]
fn inside_moved_and_back() {
    moved_and_back(BYTES, |_, far| far.check_content());
}

#[test]
#[ignore = "runs in the guest"]
fn inside_near_far_and_back() {
    near_far_and_back(BYTES);
}

#[test]
#[ignore = "runs in the guest"]
fn inside_measurement() {
    near_far_and_back(BYTES_OF_MEASUREMENT);
}

#[test]
fn a_process_with_remote_memory_is_found_and_its_memory_moved_and_moved_back() {
    if guests::skipped() {
        return;
    }
    guests::part("two-node", &SCALE, "move_time::inside_moved_and_back");
}

/// In the slow tier: run times are compared.
#[test]
fn a_moved_process_computes_as_one_that_was_always_near() {
    if guests::skipped() {
        return;
    }
    if let Err(error) = Qemu::find(Arch::X86_64).and_then(|qemu| delay::find_plugin(&qemu)) {
        return println!("skipped: guests: {error}");
    }
    let part = match std::env::var_os("NEARFAR_MOVE_256") {
        Some(_) => "move_time::inside_measurement",
        None => "move_time::inside_near_far_and_back",
    };
    guests::part("two-node", &DELAYED, part);
}
