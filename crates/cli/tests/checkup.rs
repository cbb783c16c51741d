//! The probe of floating tasks that `nearfar checkup` runs, with the command as its children. On a machine of one node it is made
//! to run all the same: then floating costs nothing, and every part of it is still at work.

mod keys;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearfar_bench::floating::{Floating, FloatingError, FloatingOptions, homes, measure};
use nearfar_machine::{Machine, NodeId};
use nearfar_sources::{Request, Want, read};

const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");

fn options(seconds: f64, cancel: &Arc<AtomicBool>) -> FloatingOptions {
    let (program, budget) = (PathBuf::from(NEARFAR), Duration::from_secs_f64(seconds));
    FloatingOptions { program, budget, load_percent: 5.0, cancel: Arc::clone(cancel) }
}

fn this_machine() -> (Machine, NodeId) {
    let machine = read(&Request::live(Want::topology())).unwrap();
    let node = machine.online_nodes().find(|node| !node.cpus.is_empty()).unwrap().id;
    (machine, node)
}

/// Processes that this one started and that are still there.
fn children() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The longest probe that these tests take, in seconds.
const MAX_SECONDS: f64 = 60.0;

fn measured(seconds: f64) -> Option<Floating> {
    let (machine, node) = this_machine();
    match measure(&machine, &[node], &options(seconds, &Arc::default())) {
        Ok(found) => Some(found),
        // A slow machine, as the error says. The time scatters, hence twice as much.
        Err(FloatingError::TooLittleTime { needed_s, left_s, .. }) if seconds < MAX_SECONDS => {
            measured((seconds + 2.0 * (needed_s - left_s)).min(MAX_SECONDS))
        }
        Err(error @ (FloatingError::TooLittleTime { .. } | FloatingError::Child(_) | FloatingError::Run(_))) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// One test, because another one's children would be taken for its own.
#[test]
fn a_probe_of_floating_tasks_tells_its_ratio_or_why_not_and_leaves_nothing_behind() {
    compared();
    cancelled();
    let (machine, node) = this_machine();
    let error = measure(&machine, &[node], &options(0.2, &Arc::default())).unwrap_err().to_string();
    assert!(error.contains("too little time: 6 rounds of 3 runs take"), "{error}");
    assert_eq!(children(), Vec::<String>::new());
}

fn compared() {
    let Some(found) = measured(12.0) else { return };
    assert_eq!(children(), Vec::<String>::new(), "load and probes have ended");
    let cells: Vec<String> = found.rows.iter().map(|row| format!("{}/{}", row.cell.memory, row.cell.cpus)).collect();
    let node = found.parameters.nodes[0];
    assert_eq!(cells, [format!("{node}/{node}"), format!("{node}/F"), "F/F".to_owned()]);
    assert_eq!(found.contrasts.len(), 2);
    for floated in &found.contrasts {
        let ratio = floated.ratio.get().expect("every round is whole");
        assert!(ratio.median > 0.1 && ratio.median < 10.0 && ratio.rounds >= 1, "{ratio:?}");
        assert!(floated.cross_node.get().is_none_or(|&moves| moves == 0 || homes(&this_machine().0).is_ok()));
        println!("{:?}: {:.3} times ({:?})", floated.question, ratio.median, ratio.confidence);
    }
    keys::documented([&serde_json::to_value(&found).unwrap()]);
}

fn cancelled() {
    let cancel = Arc::new(AtomicBool::new(false));
    let (machine, node) = this_machine();
    let later = Arc::clone(&cancel);
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        later.store(true, Ordering::Relaxed);
    });
    let started = Instant::now();
    let ended = measure(&machine, &[node], &options(600.0, &cancel));
    canceller.join().unwrap();
    assert!(matches!(ended, Err(FloatingError::Cancelled)), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
    assert_eq!(children(), Vec::<String>::new(), "nothing goes on after it was cancelled");
}

#[test]
fn help_says_what_load_it_makes_and_how_to_leave_it_out() {
    let output = Command::new(NEARFAR).args(["checkup", "--help"]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    for says in ["a load of 5 % runs on each CPU", "--probe 5", "--probe 0"] {
        assert!(text.contains(says), "{text}");
    }
}
