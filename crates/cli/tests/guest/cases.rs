//! The published cases in guests, as small as they can be: the run made there is in the store afterwards, and what the
//! kernel counts differs before and after. Times are judged in simulated time only.
//!
//! Needs what crates/cli/tests/guest/leftovers.rs needs; without it says so and passes.

use crate::guests;
use crate::harness::Sandbox;
use serde_json::{Value, json};

/// The answer of a case in a guest, and what its run is shown with.
fn repeated(own: &Sandbox, words: &str) -> (Value, Value) {
    let store = own.file("runs.db");
    let case = own
        .nearfar(words.split_whitespace())
        .env("NEARFAR_STORE", &store);
    let answer = case.with_user_cache().json();
    assert_eq!(answer["run"], json!(1));
    let show = ["runs", "show", "1", "--store", &store, "--format", "json"];
    let shown = own.nearfar(show).json();
    assert_eq!(shown["state"], json!("complete"), "{shown}");
    (answer, shown)
}

/// The medians of a metric in the cells where a factor has a level.
fn medians(shown: &Value, (factor, level): (&str, &str), metric: &str) -> Vec<f64> {
    let cells = shown["summary"].as_array().unwrap().iter();
    let of_level = cells.filter(|it| it["cell"][factor] == json!(level));
    let medians = of_level.map(|it| {
        let metrics = it["metrics"].as_array().unwrap();
        let found = metrics.iter().find(|it| it["metric"] == json!(metric));
        found?["median"].as_f64()
    });
    medians.collect::<Option<_>>().unwrap()
}

/// Every round measures before and after: the plan's undoing has to bring back the kernel's choice of a path too.
#[test]
fn case_1_takes_the_distant_path_before_and_the_near_one_after_in_every_sample() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let own = Sandbox::new();
    let words = "case 1 --samples 2 --format json";
    let (answer, shown) = repeated(&own, words);
    let share = "nearest_path_share";
    assert_eq!(medians(&shown, ("plan", "before"), share), [0.0], "{shown}");
    assert_eq!(medians(&shown, ("plan", "after"), share), [1.0], "{shown}");
    let emulation = &shown["emulation"];
    assert_eq!(emulation["delays"]["device"]["other_node_ns"], json!(170));
    assert_eq!(emulation["simulated_time"]["disk_ns"], json!(20000));
    let rows = answer["comparison"]["rows"].as_array().unwrap();
    assert_eq!(
        rows.len(),
        4,
        "the published table has four metrics: {rows:?}"
    );
}

/// In simulated time, so runs can be compared. 16 CPUs are under load.
#[test]
fn case_2_has_a_probe_that_moves_where_it_floats_and_stays_where_it_prefers() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let own = Sandbox::new();
    // The last cell is none of `--quick`: memory that floats is first touched far from the CPUs.
    let cells = [
        "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=0",
        "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=F",
        "preferred_node=0,numa_balancing=1,memory_node=0,cpu_node=F",
        "preferred_node=-1,numa_balancing=1,memory_node=F,cpu_node=0",
    ];
    let cells = cells.map(|cell| format!(" --cell={cell}")).concat();
    let words = format!("case 2 --quick --samples 2 --format json --{cells}");
    let (_, shown) = repeated(&own, &words);
    let of = |cell: Value, metric| {
        let cells = shown["summary"].as_array().unwrap();
        let cell = cells.iter().find(|it| it["cell"] == cell).unwrap();
        let metrics = cell["metrics"].as_array().unwrap();
        let found = metrics.iter().find(|it| it["metric"] == json!(metric));
        found.unwrap()["median"].as_f64().unwrap()
    };
    let cell = |preferred, balancing, cpus| json!({ "preferred_node": preferred, "numa_balancing": balancing, "memory_node": "0", "cpu_node": cpus });
    let [bound, floating, preferred] = [cell(-1, 0, "0"), cell(-1, 0, "F"), cell(0, 1, "F")];
    let far = |cell: &Value| of(cell.clone(), "remote_access_share");
    assert_eq!(far(&bound), 0.0, "{shown}");
    assert!(far(&floating) > 0.1 && far(&preferred) < 0.1, "{shown}");
    let moves = |cell: &Value| of(cell.clone(), "cross_node_migrations");
    assert!(
        moves(&floating) > 1.0 && moves(&preferred) <= 1.0,
        "{shown}"
    );
    // NUMA balancing brings floating memory near: more than half of 48 MiB.
    for row in shown["answer"]["rows"].as_array().unwrap() {
        let moved = row["pages_migrated"].as_f64().unwrap() * 4096.0;
        let floats = row["memory_node"] == json!("floating");
        assert_eq!(moved > f64::from(24 << 20), floats, "{row}");
    }
}

/// In simulated time, so requests can be compared.
#[test]
fn case_4_serves_the_adjacent_nodes_interrupts_far_before_and_near_after() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let own = Sandbox::new();
    let words = "case 4 --samples 1 --format json -- --seconds 0.003 --warm-up 0.002 --factor server_node=adjacent";
    let (_, shown) = repeated(&own, words);
    let served = |spread: &str| {
        let of = |metric| medians(&shown, ("interrupts", spread), metric)[0];
        (of("interrupts_near"), of("interrupts_far"))
    };
    let (near, far) = served("kernel_pre_6_3");
    assert!(near == 0.0 && far > 0.0, "{shown}");
    let (near, far) = served("nearest_first");
    assert!(near > 0.0 && far == 0.0, "{shown}");
    let requests = |spread| medians(&shown, ("interrupts", spread), "requests_per_s")[0];
    let [before, after] = ["kernel_pre_6_3", "nearest_first"].map(requests);
    println!("requests/s: {before} {after}");
    assert!(after > 1.05 * before, "{before} {after}");
}

#[test]
fn the_run_of_a_case_in_a_guest_is_in_the_store() {
    if guests::skipped() {
        return;
    }
    let own = Sandbox::new();
    let words = "case 3 --samples 1 --format json -- --factor distance=alone --factor depth=248 \
                 --factor policy=stock,limit";
    let (_, shown) = repeated(&own, words);
    assert_eq!(
        (&shown["label"], &shown["experiment"]),
        (&json!("case-3"), &json!("tags"))
    );
    assert!(shown["emulation"]["delays"].is_object(), "{shown}");
}

/// In simulated time, so times can be compared.
#[test]
fn case_5_has_a_lock_that_is_less_hot_with_two_nodes() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let own = Sandbox::new();
    let words = "case 5 --quick --samples 1 --format json -- --trace-seconds 0.001";
    let (_, shown) = repeated(&own, words);
    let of = |nodes, metric| {
        let level = format!("numa=fake={nodes} clearcpuid=hypervisor");
        let medians = medians(&shown, ("append", &level), metric);
        let [median] = medians[..] else {
            panic!("{nodes} nodes: {shown}");
        };
        median
    };
    let [one, two] = [1, 2].map(|nodes| of(nodes, "hot_lock_share"));
    println!("hot lock: {one} {two}");
    assert!(one > 1.2 * two && one > 0.7, "{one} {two}");
    let [one, two] = [1, 2].map(|nodes| of(nodes, "operations_per_s"));
    println!("operations/s: {one} {two}");
    assert!(two > 1.3 * one, "{one} {two}");
}
