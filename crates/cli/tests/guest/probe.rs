//! Case 2 in a guest of two nodes with delays, in the slow tier: the whole matrix of the probe under load at a small size. probe_cells.rs
//! has what is not time.
//!
//! Needs QEMU 8.2.4 or newer with its delay plugin, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them
//! it says so and passes. `cargo test -p nearfar --test guest probe:: -- --nocapture` prints the figures. NEARFAR_CASE2_SAMPLES=16 takes
//! as many of each cell of the matrix instead of 5; NEARFAR_CASE2_COUNTS=250 makes each as long as in the run of docs/case-2.md, and
//! NEARFAR_CASE2_KEEP=FOLDER keeps the store, the table and the samples.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guests;
use nearfar_lab::qemu::Qemu;
use nearfar_lab::{Arch, delay};
use nearfar_statistics::spearman;
use serde_json::Value;

/// docs/case-2.md says where each figure comes from: bound to the other node the probe takes 1.24 times as long; a line that was changed
/// on the other node is what makes a migration dear.
const DELAYS: &str = "near=400,far=507,cache=384K/16,transfer=100/5000";
/// The probe, the load, and NUMA balancing's clock: its first scan when the probe has certainly started, which takes 0.15 to
/// 0.3 s here, then one every fiftieth of a second, for runs that are a hundredth of the published ones.
const PROBE: &str = "--bytes 1M --steps 30000 --load 10 --scan-delay-ms 400 --scan-period-ms 20";

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

/// Where runs of a cell bound to one node have a standard deviation of more, as a share of their average, other work on the host
/// decides about all cells: alone it is two percent.
const LOUD: f64 = 0.08;

pub const CASE_2: &str = include_str!("../scripts/case2.sh");

/// What a policy is called here: no preferred node with NUMA balancing off and on, and each node preferred.
const POLICIES: [&str; 4] = ["off", "on", "0", "1"];

/// Says why there are no delays here, if so.
fn without_delays() -> bool {
    let plugin = Qemu::find(Arch::X86_64).and_then(|qemu| delay::find_plugin(&qemu));
    plugin
        .inspect_err(|error| println!("skipped: guests: {error}"))
        .is_err()
}

/// A cell summed up.
pub struct Row {
    policy: &'static str,
    memory: String,
    cpus: String,
    mean: f64,
    median: f64,
    /// The standard deviation, as a share of the mean.
    scatter: f64,
    cross_node: f64,
    pages_migrated: f64,
}

impl Row {
    fn read(row: &Value) -> Self {
        let policy = match (
            row["preferred_node"].as_u64(),
            row["numa_balancing"].as_bool().unwrap(),
        ) {
            (None, false) => "off",
            (None, true) => "on",
            (Some(node), true) => POLICIES[2 + node as usize],
            (Some(_), false) => panic!("not of this matrix: {row}"),
        };
        let place = |key: &str| {
            row[key]
                .as_u64()
                .map_or_else(|| "F".to_owned(), |node| node.to_string())
        };
        let moment = |key: &str| row["moments"][key].as_f64().unwrap();
        let (mean, median) = (moment("mean"), row["seconds"]["median"].as_f64().unwrap());
        Self {
            policy,
            memory: place("memory_node"),
            cpus: place("cpu_node"),
            mean,
            median,
            // One sample has none.
            scatter: row["moments"]["stdev"].as_f64().unwrap_or(f64::INFINITY) / mean,
            cross_node: row["migrations"]["cross_node"].as_f64().unwrap(),
            pages_migrated: row["pages_migrated"].as_f64().unwrap(),
        }
    }
}

/// The matrix that was measured.
pub struct Matrix(pub Vec<Row>);

impl Matrix {
    fn row(&self, policy: &str, memory: &str, cpus: &str) -> &Row {
        let is = |row: &&Row| row.policy == policy && row.memory == memory && row.cpus == cpus;
        self.0.iter().find(is).unwrap()
    }

    /// A figure of cells added up, each cell written as memory and CPUs: "0F".
    fn sum(&self, policy: &str, cells: &[&str], figure: fn(&Row) -> f64) -> f64 {
        cells
            .iter()
            .map(|cell| figure(self.row(policy, &cell[..1], &cell[1..])))
            .sum()
    }

    /// How many times as long cells take under one policy as the same or others under another, by their medians.
    fn ratio(&self, of: (&str, &[&str]), to: (&str, &[&str])) -> f64 {
        let mean = |(policy, cells): (&str, &[&str])| {
            self.sum(policy, cells, |row| row.median) / cells.len() as f64
        };
        mean(of) / mean(to)
    }

    /// Whether the host left the guest alone: cells that have nothing to scatter for, memory and CPUs bound to one node, hardly do.
    fn is_quiet(&self) -> bool {
        let same = self
            .0
            .iter()
            .filter(|row| row.memory == row.cpus && row.memory != "F");
        let mut scatter: Vec<f64> = same.map(|row| row.scatter).collect();
        scatter.sort_by(f64::total_cmp);
        let median = scatter[scatter.len() / 2];
        println!(
            "bound to the same node: standard deviation {:.1} % of the mean",
            100.0 * median
        );
        median < LOUD
    }

    /// Rank correlation of the averages with the published ones.
    fn rank_correlation(&self) -> f64 {
        let measured = PUBLISHED.map(|(memory, cpus, _)| self.row("off", memory, cpus).mean);
        spearman(&measured, &PUBLISHED.map(|(_, _, seconds)| seconds)).unwrap()
    }
}

pub fn matrix(answer: &Value) -> Matrix {
    let rows = answer["answer"]["rows"].as_array().unwrap();
    Matrix(rows.iter().map(Row::read).collect())
}

/// Takes cells of the matrix in a guest with this script, which another command may precede; its answer. The store, the table and the
/// samples go to `results`.
pub fn measure(
    results: &Path,
    options: &[&str],
    before: &[&str],
    script: &str,
    words: &str,
) -> Value {
    let results_option = ["--results", results.to_str().unwrap()];
    let options = [
        &["--scale", "cpus=2,memory=512M"][..],
        options,
        &results_option,
    ]
    .concat();
    let mut command = guests::lab_run("two-node", &options);
    command
        .args(before)
        .args(["sh", "-c", script, guests::NEARFAR])
        .args(words.split(' '));
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    println!(
        "{}",
        std::fs::read_to_string(results.join("table.txt")).unwrap()
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A probe that is bound to a node does not leave it.
pub fn check_migrations(matrix: &Matrix) {
    for row in matrix.0.iter().filter(|row| row.cpus != "F") {
        assert_eq!(
            row.cross_node, 0.0,
            "{} {}{}: bound",
            row.policy, row.memory, row.cpus
        );
    }
}

/// How often the scheduler moves a floating probe: counted, and yet what the host leaves the guest decides about it.
fn check_moves(matrix: &Matrix) {
    let [off, on] = ["off", "on"].map(|policy| matrix.row(policy, "F", "F").cross_node);
    println!("all floating: {off} cross-node migrations per run, with NUMA balancing on {on}");
    assert!(
        off >= 1.0,
        "the load makes the scheduler move a floating probe"
    );
    for node in ["0", "1"] {
        let moves = matrix.row(node, node, "F").cross_node;
        assert!(
            moves <= 12.0,
            "node {node} preferred: {moves} cross-node migrations"
        );
    }
}

/// NUMA balancing moves no memory that is bound.
pub fn check_bound_pages(matrix: &Matrix) {
    let is_bound = |row: &&Row| row.memory != "F" || row.policy == "off";
    let moved = matrix
        .0
        .iter()
        .filter(is_bound)
        .find(|row| row.pages_migrated != 0.0);
    assert!(
        moved.is_none(),
        "{:?}",
        moved.map(|row| (row.policy, &row.memory, &row.cpus, row.pages_migrated))
    );
}

/// NUMA balancing moves memory that floats.
fn check_floating_pages(matrix: &Matrix) {
    let pages: f64 = matrix.0.iter().map(|row| row.pages_migrated).sum();
    println!("pages that NUMA balancing moved in the middle run, over all cells: {pages}");
    assert!(pages > 0.0);
}

/// Far is slower, summed over all policies.
fn check_far(matrix: &Matrix) {
    let all = |cells| {
        POLICIES
            .iter()
            .map(|policy| matrix.sum(policy, cells, |row| row.median))
            .sum::<f64>()
    };
    let far = all(&["01", "10"]) / all(&["00", "11"]);
    println!("bound to the other node {far:.3} times as long as to the same");
    assert!(far > 1.03, "{far}");
}

/// Bounds here are four standard deviations and more from what sixteen samples a cell gave (docs/case-2.md), drawn five at a time: what
/// they refuse is no chance. Sums over policies and nodes make them narrow all the same.
fn check_bound(matrix: &Matrix) {
    const OTHER: &[&str] = &["01", "10"];
    let all = |cells| {
        POLICIES
            .iter()
            .map(|policy| matrix.sum(policy, cells, |row| row.median))
            .sum::<f64>()
    };
    let far = all(OTHER) / all(&["00", "11"]);
    assert!((1.13..1.36).contains(&far), "{far}");
    let by_median = |cells: &[&str]| -> Vec<f64> {
        cells
            .iter()
            .map(|cell| matrix.sum("off", &[cell], |row| row.median))
            .collect()
    };
    let [same, other] = [
        by_median(&["00", "11"]),
        by_median(&["01", "10", "0F", "1F"]),
    ];
    let slowest = same.into_iter().fold(0.0, f64::max);
    assert!(
        other.iter().all(|&seconds| seconds > slowest),
        "bound to the same node {slowest}, elsewhere {other:?}"
    );
    let floating = matrix.ratio(("off", &["0F", "1F", "FF"]), ("off", OTHER));
    println!("off: floating {floating:.3} times as long as bound to the other node");
    assert!(floating > 0.88, "{floating}");
}

fn check_balancing(matrix: &Matrix) {
    const FLOATING: &[&str] = &["F0", "F1", "FF"];
    const BOUND: &[&str] = &["00", "01", "10", "11", "0F", "1F"];
    // By averages: floating memory begins on one node or the other, so its runs are short or long, and a median says which.
    let ratio =
        |cells| matrix.sum("on", cells, |row| row.mean) / matrix.sum("off", cells, |row| row.mean);
    let [floating, bound] = [FLOATING, BOUND].map(ratio);
    println!(
        "NUMA balancing on: memory floating {floating:.3}, bound {bound:.3} times as long as off"
    );
    // Sixteen samples tell that it helps; five tell that it does not hurt.
    assert!(floating < 1.05, "{floating}");
    assert!((0.9..1.1).contains(&bound), "{bound}");
}

fn check_preferred(matrix: &Matrix) {
    let of = |policy: &str, cell: &[&str]| matrix.sum(policy, cell, |row| row.median);
    let preferred = (of("0", &["0F"]) + of("1", &["1F"])) / of("off", &["00", "11"]);
    println!("memory's node preferred: {preferred:.3} times as long as bound");
    assert!(preferred < 1.1, "{preferred}");
}

/// DuckDB's answer from the exported samples is the same.
pub fn check_export(matrix: &Matrix, parquet: &Path) {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/probe-table");
    // `make test` makes it; DuckDB for any Python serves as well.
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python/bin/python3");
    let python = if ours.exists() {
        ours.as_path()
    } else {
        Path::new("python3")
    };
    let output = match Command::new(python).arg(tool).arg(parquet).output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            // Any other reason is a fault of the export.
            assert!(why.contains("Python has no duckdb"), "{why}");
            return println!("skipped: tools: {why}");
        }
        Err(error) => return println!("skipped: tools: python3: {error}"),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect())
        .collect();
    assert_eq!(lines.len(), matrix.0.len());
    for (line, row) in lines.iter().zip(&matrix.0) {
        let [mean, median] = [4, 8].map(|column: usize| line[column].parse::<f64>().unwrap());
        assert_eq!(
            (line[2], line[3]),
            (row.memory.as_str(), row.cpus.as_str()),
            "{text}"
        );
        assert!(
            (mean - row.mean).abs() < 1e-9 && (median - row.median).abs() < 1e-9,
            "{line:?}"
        );
    }
    println!(
        "DuckDB works out the same averages and medians of {} cells",
        lines.len()
    );
}

/// In the slow tier: the run times of 36 cells are compared, on a host without other work.
#[test]
fn the_published_findings_hold_in_a_guest() {
    if guests::skipped() || without_delays() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("NEARFAR_CASE2_KEEP").map(PathBuf::from);
    let results = kept.as_deref().unwrap_or(temporary.path());
    let asked = |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    let samples = asked("NEARFAR_CASE2_SAMPLES", "5");
    let counts = asked("NEARFAR_CASE2_COUNTS", "150");
    // Of five samples a cell it takes eleven minutes.
    let limit = (300 * samples.parse::<u32>().unwrap()).to_string();
    // docs/lab-guests.md says what a start from a saved guest costs measurements.
    let options = ["--cold", "--delay", DELAYS, "--command-timeout", &limit];
    let words = format!("{PROBE} --samples {samples} --counts {counts}");
    let prepared = [
        "sh",
        "-c",
        include_str!("../../../bench/src/cases/preferred_node.sh"),
        "prepare",
    ];
    let answer = measure(results, &options, &prepared, CASE_2, &words);

    assert!(answer["emulation"]["delays"].is_object(), "{answer}");
    let matrix = matrix(&answer);
    assert_eq!(matrix.0.len(), 36);
    let correlation = matrix.rank_correlation();
    println!("rank correlation with the nine published averages at hand: {correlation:.3}");
    check_export(&matrix, &results.join("run.parquet"));
    check_migrations(&matrix);
    check_moves(&matrix);
    check_bound_pages(&matrix);
    check_floating_pages(&matrix);
    check_far(&matrix);
    let is_quiet = matrix.is_quiet();
    assert!(is_quiet, "other work on the host decides about run times");
    check_bound(&matrix);
    check_balancing(&matrix);
    check_preferred(&matrix);
    // Five samples settle the groups of these nine, which `check_bound` looks at, and not the order within a group.
    assert!(correlation >= 0.2, "{correlation}");
}
