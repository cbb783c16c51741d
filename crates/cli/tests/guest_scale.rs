//! Case 5 in a guest whose real nodes are split in two: the nodes that a run sees, operations, and lock contention from the trace.
//!
//! Needs what crates/cli/tests/guest_leftovers.rs needs; without it says so and passes.

mod guests;

use serde_json::Value;

const SCALE: &str = "bench scale --no-store --format json --samples 1 --seconds 0.2 --warm-up 0.05 --trace-seconds 0.3 \
                     --memory-size 1M --factor tasks=2 --factor memory=spread";

#[test]
fn a_run_sees_fake_nodes_and_traces_locks() {
    if guests::skipped() {
        return;
    }
    let _turn = guests::turn();
    let options = ["--scale", "cpus=2,memory=512M", "--append", "numa=fake=2U"];
    let mut command = guests::lab_run("two-node", &[&options[..], &guests::IN_TIME].concat());
    command.arg(guests::NEARFAR).args(SCALE.split_whitespace());
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    let run: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(run["state"], "complete", "{errors}");
    let metrics = run["summary"][0]["metrics"].as_array().unwrap();
    let of = |name: &str| {
        metrics
            .iter()
            .find(|it| it["metric"] == name)
            .and_then(|it| it["median"].as_f64())
    };
    assert!(of("operations_per_s").unwrap() > 0.0, "{errors}");
    let share = of("lock_share").unwrap_or_else(|| panic!("not traced: {errors}"));
    assert!((0.0..=1.0).contains(&share), "{share}");
    assert_eq!(
        run["answer"]["curves"][0]["nodes"],
        serde_json::json!(["0-3"])
    );
}
