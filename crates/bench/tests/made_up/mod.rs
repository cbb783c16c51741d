//! Made-up samples of the matrix on a machine of two nodes, whose truth is known.

use nearfar_bench::matrix::{
    Balancing, DECLARATION, MatrixCell, Places, Sample, Selection, Taken, choose,
};
use nearfar_bench::probe::Where;
use nearfar_machine::NodeId;
use serde_json::json;

/// Seconds of a run that is near and never moves.
pub const NEAR_S: f64 = 10.0;
/// What a run costs that is far all the time.
pub const FAR: f64 = 0.24;
/// What each migration from node to node costs.
pub const MIGRATION_S: f64 = 0.0128;

/// A cell as `--cell` takes it.
pub fn cell(text: &str) -> MatrixCell {
    MatrixCell::of(&DECLARATION.cell(text).unwrap()).unwrap()
}

/// The published matrix.
pub fn two_nodes() -> Vec<MatrixCell> {
    let nodes = vec![NodeId(0), NodeId(1)];
    let places = Places {
        memory: nodes.clone(),
        cpus: nodes,
    };
    choose(&places, &Balancing::Settable, &Selection::default())
        .unwrap()
        .cells
}

/// What happens to a run of a cell in this world: the share of its time on node 1, and its migrations.
fn fate(cell: &MatrixCell, chance: f64) -> (f64, f64) {
    let at_home = cell
        .policy
        .preferred_node
        .filter(|_| cell.cpu_node == Where::Floating);
    match (cell.cpu_node, at_home) {
        (Where::Node(node), _) => (f64::from(node.0), 0.0),
        (_, Some(node)) => (f64::from(node.0), 2.0),
        (Where::Floating, None) => (chance, (100.0 + 80.0 * (0.5 - chance)).round()),
    }
}

/// A number between 0 and 1 that looks random and is the same in every run of the tests.
pub fn chance(cell: usize, round: u32) -> f64 {
    let mixed = (cell as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ u64::from(round).wrapping_mul(0xd1b5_4a32_d192_ed03);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) as f64 / u64::MAX as f64
}

/// A sample of a run with memory on node 0 or 1 (floating: on node 0), drifting with the rounds by a quarter.
fn taken(number: usize, cell: MatrixCell, round: u32, noise: f64) -> Taken {
    let chance = chance(number, round);
    let (on_one, migrations) = fate(&cell, chance);
    let home = cell.memory_node.node().unwrap_or(NodeId(0));
    let far = if home == NodeId(0) {
        on_one
    } else {
        1.0 - on_one
    };
    let drift = 1.0 + 0.25 * f64::from(round) / 20.0;
    let seconds = (NEAR_S * (1.0 + FAR * far) + MIGRATION_S * migrations)
        * drift
        * (1.0 + noise * (chance - 0.5));
    Taken {
        cell,
        round,
        sample: Ok(sample(seconds, home, on_one, migrations as u64)),
    }
}

/// A sample with memory on one node.
pub fn sample(seconds: f64, home: NodeId, on_one: f64, cross_node: u64) -> Sample {
    let pages = json!({"looked_at": 100, "by_node": [{"node": home, "pages": 100}], "nowhere": 0});
    let sample = json!({
        "probe": {
            "seconds": seconds, "on_cpu_s": seconds, "waited_s": 0.0, "elapsed_life_s": seconds, "counts": 1, "steps": 1,
            "round_s": [], "rounds_a_figure": 1, "faults": {"minor": 0, "major": 0},
            "switches": {"voluntary": 0, "involuntary": 0}, "stolen_s": 0.0, "throttled": 0, "numa_balancing": false,
            "cpus": "0-3", "buffer_bytes": 4096, "page_kind": "base", "pages_before": pages, "pages_after": pages,
            "warnings": [],
        },
        "load_percent": 60.0,
        "trace": {
            "seconds": seconds,
            "losses": {"occurred": cross_node, "read": cross_node, "lost": 0, "damaged": 0, "throttled": 0},
            "numa_balancing_of_task": {"unknown_reason": "made up"},
            "migrations": {"same_core": 0, "same_cache": 1, "same_node": 2, "cross_node": cross_node, "unknown": 0},
            "caches_known": true, "matrix": [],
            "time": [{"node": 0, "seconds": seconds * (1.0 - on_one)}, {"node": 1, "seconds": seconds * on_one}],
            "tasks": [], "gaps": 0,
            "numa_balancing": {"tasks": {"unknown_reason": "made up"}, "machine": {"unknown_reason": "made up"}},
        },
    });
    serde_json::from_value(sample).unwrap()
}

/// Rounds of all cells.
pub fn world(cells: &[MatrixCell], rounds: u32, noise: f64) -> Vec<Taken> {
    let of_round = |round| {
        cells
            .iter()
            .enumerate()
            .map(move |(number, &cell)| taken(number, cell, round, noise))
    };
    (0..rounds).flat_map(of_round).collect()
}
