//! Case 5 in a guest whose real nodes are split in two: the nodes that a run sees, operations, and lock contention from the trace.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes.

use crate::guests;
use serde_json::Value;

const SCALE: &str = "bench scale --no-store --format json --samples 1 --seconds 0.02 --warm-up 0.005 \
                     --trace-seconds 0.02 --profile-frequency 1000 --factor workload=lru --factor tasks=4";

/// The run of four tasks, so that they wait for the lock even where one waiter is not traced, on one of four fake nodes, with these words of the kernel's command line.
fn run(append: &str) -> Value {
    let options = [
        "--scale",
        "cpus=4,memory=512M",
        "--time",
        "simulated",
        "--append",
        append,
    ];
    let mut command = guests::lab_run("two-node", &options);
    command.arg(guests::NEARFAR).args(SCALE.split_whitespace());
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    let run: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(run["state"], "complete", "{errors}");
    let nodes = &run["answer"]["curves"][0]["nodes"];
    assert_eq!(nodes, &serde_json::json!(["0-3"]));
    assert!(median(&run, "operations_per_s").unwrap() > 0.0, "{run}");
    run
}

fn median(run: &Value, metric: &str) -> Option<f64> {
    let mut metrics = run["summary"][0]["metrics"].as_array().unwrap().iter();
    metrics.find(|it| it["metric"] == metric)?["median"].as_f64()
}

#[test]
fn tasks_on_a_fake_node_wait_for_its_lock() {
    if guests::skipped() {
        return;
    }
    let run = run("numa=fake=2U clearcpuid=hypervisor");
    let share = median(&run, "hot_lock_share").unwrap_or_else(|| panic!("not traced: {run}"));
    assert!(share > 0.0 && share <= 1.0, "{run}");
}

/// An x86 kernel under a hypervisor does not trace waits for spinlocks. The share is unknown then, not 0.
#[test]
fn waits_that_the_kernel_does_not_trace_are_unknown() {
    if guests::skipped() {
        return;
    }
    let run = run("numa=fake=2U");
    assert_eq!(median(&run, "hot_lock_share"), None, "{run}");
    let share = median(&run, "lock_function_share").unwrap_or_else(|| panic!("not sampled: {run}"));
    // Of some forty samples four in five; on a busy host there are fewer, and all of them may be.
    assert!(share > 0.0 && share <= 1.0, "the profile has them: {run}");
    assert_eq!(run["with_warnings"], serde_json::json!(1), "{run}");
}
