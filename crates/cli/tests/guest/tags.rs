//! Case 3 in a guest of four nodes with delays and line transfers, in simulated time: the groups of workers, the counts of lines, and
//! the published order of allocators.
//!
//! The cell is the one with the widest margin: far, with as many I/Os as tags, completed by their
//! submitter. Small caches then go to the pool for each I/O, large ones keep their tags.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes.

use crate::guests;
use serde_json::Value;

/// A short time: the host takes some twenty times as long.
const TAGS: &str = "bench tags --no-store --format json --seconds 0.02 --workers 1 --possible-cpus 64 \
                    --factor policy=stock,limit_topology --factor distance=far --factor depth=248 \
                    --factor completion=submitter";
/// As in [`TAGS`].
const SECONDS: f64 = 0.02;

/// The median of a metric in a cell.
fn median(cell: &Value, metric: &str) -> f64 {
    let metrics = cell["metrics"].as_array().unwrap();
    let found = metrics.iter().find(|it| it["metric"] == metric).unwrap();
    found["median"].as_f64().unwrap()
}

/// The cells of a run in a guest, which are of both policies and whose workers are far from each other.
fn cells(samples: u32) -> Vec<Value> {
    let options = [
        "--scale",
        "cpus=2,memory=512M",
        "--delay",
        "auto",
        "--time",
        "simulated",
    ];
    let mut command = guests::lab_run(
        "queues-on-node-2",
        &[&options[..], &guests::IN_TIME].concat(),
    );
    command.arg(guests::NEARFAR).args(TAGS.split_whitespace());
    command.args(["--samples", &samples.to_string()]);
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    let run: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(run["state"], "complete", "{errors}");
    let groups = run["answer"]["groups"].as_array().unwrap();
    let [far] = groups.as_slice() else {
        panic!("{groups:?}");
    };
    let nodes = [&far["device_node"], &far["other_node"]].map(|it| it.as_u64().unwrap());
    assert!(far["distance"] == "far" && nodes[0] != nodes[1], "{far}");
    // Two CPUs a node, the first of each.
    for (cpus, node) in [("device_cpus", nodes[0]), ("other_cpus", nodes[1])] {
        assert_eq!(far[cpus], serde_json::json!([2 * node]), "{far}");
    }
    let cells = run["summary"].as_array().unwrap().clone();
    let policies: Vec<_> = cells.iter().map(|it| &it["cell"]["policy"]).collect();
    assert_eq!(policies.len(), 2, "{policies:?}");
    for policy in ["stock", "limit_topology"] {
        assert!(policies.iter().any(|it| **it == policy), "{policies:?}");
    }
    cells
}

/// Both workers use the device's queue and are on different nodes.
#[test]
fn large_caches_and_near_steals_beat_small_caches_far_away() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let cells = cells(2);
    let rate = |policy: &str| {
        let cell = cells.iter().find(|it| it["cell"]["policy"] == policy);
        let cell = cell.unwrap();
        assert_eq!(cell["metrics"][0]["metric"], "operations_per_s");
        median(cell, "operations_per_s")
    };
    let (stock, topology) = (rate("stock"), rate("limit_topology"));
    assert!(stock < topology, "stock {stock}, limit_topology {topology}");
    for cell in &cells {
        let remote = median(cell, "line_transfers_remote");
        let operations = median(cell, "operations_per_s") * SECONDS;
        assert!(remote > operations, "{cell}");
        assert!(remote <= median(cell, "line_transfers"), "{cell}");
    }
}
