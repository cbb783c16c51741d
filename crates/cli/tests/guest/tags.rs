//! Case 3 in a guest of four nodes with delays and line transfers: the published order of allocators, and the counts of lines.
//!
//! The cell is the one with the widest margin (2.4 times on an idle host): far, with as many I/Os as tags, completed by their
//! submitter. Small caches then go to the pool for each I/O, large ones keep their tags.
//!
//! Needs what crates/cli/tests/guest_leftovers.rs needs; without it says so and passes.

use crate::guests;
use serde_json::Value;

/// One worker a group: more vCPUs at work than the host has CPUs take time from each other.
const TAGS: &str = "bench tags --no-store --format json --samples 6 --seconds 0.3 --workers 1 --possible-cpus 64 \
                    --factor policy=stock,limit_topology --factor distance=far --factor depth=248 \
                    --factor completion=submitter";
/// As in [`TAGS`].
const SECONDS: f64 = 0.3;

#[test]
fn large_caches_and_near_steals_beat_small_caches_far_away() {
    if guests::skipped() {
        return;
    }
    let _turn = guests::turn();
    let options = ["--scale", "cpus=2,memory=512M", "--delay", "auto"];
    let mut command = guests::lab_run(
        "queues-on-node-2",
        &[&options[..], &guests::IN_TIME].concat(),
    );
    command.arg(guests::NEARFAR).args(TAGS.split_whitespace());
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    let run: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(run["state"], "complete", "{errors}");
    let median = |policy: &str| {
        let cells = run["summary"].as_array().unwrap();
        let cell = cells.iter().find(|it| it["cell"]["policy"] == policy);
        let first = &cell.unwrap()["metrics"][0];
        assert_eq!(first["metric"], "operations_per_s");
        first["median"].as_f64().unwrap()
    };
    let (stock, topology) = (median("stock"), median("limit_topology"));
    assert!(stock < topology, "stock {stock}, limit_topology {topology}");
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
    for cell in run["summary"].as_array().unwrap() {
        let of = |name: &str| {
            let metrics = cell["metrics"].as_array().unwrap();
            let metric = metrics.iter().find(|it| it["metric"] == name).unwrap();
            metric["median"].as_f64().unwrap()
        };
        let (all, remote) = (of("line_transfers"), of("line_transfers_remote"));
        // Both workers use the device's queue and are on different nodes.
        let operations = of("operations_per_s") * SECONDS;
        assert!(remote > operations && remote <= all, "{cell}");
    }
}
