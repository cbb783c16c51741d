//! Case 2 in a guest of two nodes with delays: the whole matrix of the probe under load at a small size.
//!
//! Needs QEMU 8.2.4 or newer with its delay plugin, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them
//! it says so and passes. `cargo test -p nearfar --test guest_probe -- --nocapture` prints the figures. NEARFAR_CASE2_SAMPLES=16 takes as
//! many of each cell instead of 5, and NEARFAR_CASE2_KEEP=FOLDER keeps the store, the table and the samples: so the run of
//! docs/case-2.md was made.

mod guests;

use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_lab::qemu::Qemu;
use nearfar_lab::{Arch, delay};
use nearfar_statistics::spearman;
use serde_json::Value;

/// So that a far access costs 1.24 times a near one, with the skew between the nodes that the published machine has (docs/case-2.md).
const DELAYS: &str = "0:0=400,1:1=402,0:1=497,1:0=505,cache=512K/16,transfer=500/2000";
/// The probe, the load, and NUMA balancing's clock: its first scan after the start of a probe, which takes a third of a second here, then
/// one every fiftieth of a second, for runs that are a hundredth of the published ones.
const PROBE: &str = "--bytes 2M --counts 100 --steps 30000 --load 10 --scan-delay-ms 400 --scan-period-ms 20";

/// The published averages without NUMA balancing and without a preferred node, in seconds, by memory and CPUs: "How effective is
/// numa_preferred_nid w.r.t. NUMA performance?" (RFC, linux-kernel, December 2023).
const PUBLISHED: [(&str, &str, f64); 9] = [
    ("0", "0", 136.50),
    ("0", "1", 168.78),
    ("0", "F", 173.15),
    ("1", "0", 165.95),
    ("1", "1", 137.23),
    ("1", "F", 179.90),
    ("F", "0", 163.87),
    ("F", "1", 168.96),
    ("F", "F", 180.71),
];

/// What a policy is called here: no preferred node with NUMA balancing off and on, and each node preferred.
const POLICIES: [&str; 4] = ["off", "on", "0", "1"];

/// Says why there are no delays here, if so.
fn without_delays() -> bool {
    let plugin = Qemu::find(Arch::X86_64).and_then(|qemu| delay::find_plugin(&qemu));
    plugin.inspect_err(|error| println!("skipped: {error}")).is_err()
}

/// A cell summed up.
struct Row {
    policy: &'static str,
    memory: String,
    cpus: String,
    mean: f64,
    median: f64,
    cross_node: f64,
}

impl Row {
    fn read(row: &Value) -> Self {
        let policy = match (row["preferred"].as_u64(), row["numa_balancing"].as_bool().unwrap()) {
            (None, false) => "off",
            (None, true) => "on",
            (Some(node), true) => POLICIES[2 + node as usize],
            (Some(_), false) => panic!("not of this matrix: {row}"),
        };
        let place = |key: &str| row[key].as_u64().map_or_else(|| "F".to_owned(), |node| node.to_string());
        Self {
            policy,
            memory: place("memory"),
            cpus: place("cpus"),
            mean: row["moments"]["mean"].as_f64().unwrap(),
            median: row["seconds"]["median"].as_f64().unwrap(),
            cross_node: row["migrations"]["cross_node"].as_f64().unwrap(),
        }
    }
}

/// The matrix that was measured.
struct Matrix(Vec<Row>);

impl Matrix {
    fn row(&self, policy: &str, memory: &str, cpus: &str) -> &Row {
        let is = |row: &&Row| row.policy == policy && row.memory == memory && row.cpus == cpus;
        self.0.iter().find(is).unwrap()
    }

    /// The mean of the medians of cells, each written as memory and CPUs: "0F".
    fn of(&self, policy: &str, cells: &[&str]) -> f64 {
        cells.iter().map(|cell| self.row(policy, &cell[..1], &cell[1..]).median).sum::<f64>() / cells.len() as f64
    }

    /// How many times as long cells take under one policy as the same or others under another.
    fn ratio(&self, of: (&str, &[&str]), to: (&str, &[&str])) -> f64 {
        self.of(of.0, of.1) / self.of(to.0, to.1)
    }

    /// Rank correlation of the averages with the published ones.
    fn rank_correlation(&self) -> f64 {
        let measured = PUBLISHED.map(|(memory, cpus, _)| self.row("off", memory, cpus).mean);
        spearman(&measured, &PUBLISHED.map(|(_, _, seconds)| seconds)).unwrap()
    }
}

/// Takes the matrix in a guest; its answer. The store, the table and the samples go to `results`.
fn measure(results: &Path, samples: &str) -> Value {
    let scale = ["--scale", "cpus=2,memory=512M", "--delay", DELAYS, "--results"];
    let options: Vec<&str> = scale.into_iter().chain([results.to_str().unwrap()]).collect();
    let mut command = guests::lab_run("two-node", &options);
    command
        .args(["sh", "-c", include_str!("scripts/case2.sh"), guests::NEARFAR])
        .args(PROBE.split(' '))
        .args(["--samples", samples]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    println!("{}", std::fs::read_to_string(results.join("table.txt")).unwrap());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn check_bound(matrix: &Matrix) {
    const SAME: &[&str] = &["00", "11"];
    const OTHER: &[&str] = &["01", "10"];
    for policy in POLICIES {
        let far = matrix.ratio((policy, OTHER), (policy, SAME));
        println!("{policy}: bound to the other node {far:.3} times as long as to the same");
        assert!((1.14..1.34).contains(&far), "{policy}: {far}");
        for (memory, other) in [("0", "1"), ("1", "0")] {
            let [same, other] = [memory, other].map(|cpus| matrix.row(policy, memory, cpus).median);
            assert!(same < other, "{policy}, memory {memory}: {same} and {other} s");
        }
    }
    let floating = matrix.ratio(("off", &["0F", "1F", "FF"]), ("off", OTHER));
    println!("off: floating {floating:.3} times as long as bound to the other node");
    assert!(floating > 0.95, "{floating}");
}

fn check_balancing(matrix: &Matrix) {
    const FLOATING: &[&str] = &["F0", "F1", "FF"];
    const BOUND: &[&str] = &["00", "01", "10", "11", "0F", "1F"];
    let [floating, bound] = [FLOATING, BOUND].map(|cells| matrix.ratio(("on", cells), ("off", cells)));
    println!("NUMA balancing on: memory floating {floating:.3}, bound {bound:.3} times as long as off");
    assert!(floating < 0.95, "{floating}");
    assert!((0.93..1.07).contains(&bound), "{bound}");
    assert!(floating < bound - 0.03, "{floating} and {bound}");
}

fn check_preferred(matrix: &Matrix) {
    for node in ["0", "1"] {
        let kept = [node, "F"].concat();
        let bound = [node, node].concat();
        let preferred = matrix.ratio((node, &[&kept]), ("off", &[&bound]));
        let moves = matrix.row(node, node, "F").cross_node;
        println!(
            "memory's node {node} preferred: {preferred:.3} times as long as bound, {moves} cross-node migrations"
        );
        assert!(preferred < 1.05, "{preferred}");
        assert!(moves <= 12.0, "{moves}");
    }
}

/// DuckDB's answer from the exported samples is the same.
fn check_export(matrix: &Matrix, parquet: &Path) {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/probe-table");
    let output = match Command::new("python3").arg(tool).arg(parquet).output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            // Any other reason is a fault of the export.
            assert!(why.contains("Python has no duckdb"), "{why}");
            return println!("skipped: {why}");
        }
        Err(error) => return println!("skipped: python3: {error}"),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), matrix.0.len());
    for (line, row) in lines.iter().zip(&matrix.0) {
        let [mean, median] = [4, 8].map(|column: usize| line[column].parse::<f64>().unwrap());
        assert_eq!((line[2], line[3]), (row.memory.as_str(), row.cpus.as_str()), "{text}");
        assert!((mean - row.mean).abs() < 1e-9 && (median - row.median).abs() < 1e-9, "{line:?}");
    }
    println!("DuckDB works out the same averages and medians of {} cells", lines.len());
}

#[test]
fn the_published_findings_hold_in_a_guest() {
    if guests::skipped() || without_delays() {
        return;
    }
    let _turn = guests::turn();
    let samples = std::env::var("NEARFAR_CASE2_SAMPLES").unwrap_or_else(|_| "5".to_owned());
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("NEARFAR_CASE2_KEEP").map(PathBuf::from);
    let results = kept.as_deref().unwrap_or(temporary.path());
    let answer = measure(results, &samples);

    assert!(answer["emulated"].as_str().unwrap().contains("delays"), "{}", answer["emulated"]);
    let matrix = Matrix(answer["rows"].as_array().unwrap().iter().map(Row::read).collect());
    assert_eq!(matrix.0.len(), 36);
    let correlation = matrix.rank_correlation();
    println!("rank correlation with the nine published averages at hand: {correlation:.3}");
    check_export(&matrix, &results.join("run.parquet"));
    check_bound(&matrix);
    check_balancing(&matrix);
    check_preferred(&matrix);
    assert!(correlation >= 0.7, "{correlation}");
}
