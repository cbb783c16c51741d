//! Six cells of the matrix of the probe in a guest of two nodes: every factor is set, read back, stored, summarised and compared. What
//! its run times are in simulated time is in cases.rs.
//!
//! Needs QEMU, a cached kernel (`nearfar lab kernels get 6.12`) and a static busybox; without them it says so and passes.

use std::path::Path;
use std::process::Command;

use crate::guests;
use serde_json::{Value, json};

/// Each level of each factor, and three cells that differ in nothing but the memory's node.
const CELLS: [&str; 6] = [
    "preferred_node=-1,numa_balancing=0,memory_node=0,cpu_node=1",
    "preferred_node=-1,numa_balancing=0,memory_node=1,cpu_node=1",
    "preferred_node=-1,numa_balancing=0,memory_node=F,cpu_node=1",
    "preferred_node=-1,numa_balancing=1,memory_node=1,cpu_node=F",
    "preferred_node=0,numa_balancing=1,memory_node=F,cpu_node=F",
    "preferred_node=1,numa_balancing=1,memory_node=F,cpu_node=1",
];
/// `compare` gives no verdict on fewer: of two sides that differ in each of 6 rounds, p is 2 x 2/2^6 = 0.0625.
const FEW_SAMPLES: usize = 7;

/// Run as `sh -c SCRIPT NEARFAR OPTIONS`: `bench probe OPTIONS`, its answer as JSON, and in the folder of results the store and the samples
/// as Parquet. Fails where a setting that the run changes is not as before.
const PROBE: &str = r#"
set -e
sched=/sys/kernel/debug/sched
[ -e $sched ] || mount -t debugfs none /sys/kernel/debug
settings() { cat /proc/sys/kernel/numa_balancing $sched/numa_balancing/scan_*_ms; }
before=$(settings)
trap '[ "$before" = "$(settings)" ] || { echo "$before" became "$(settings)" >&2; exit 9; }' EXIT
store=$NEARFAR_RESULTS/runs.db
"$0" bench probe --store "$store" --format json "$@"
"$0" runs export last --store "$store" --format parquet -o "$NEARFAR_RESULTS/run.parquet"
"#;

/// A cell summed up.
struct Row {
    numa_balancing: bool,
    memory: String,
    cpus: String,
    mean: f64,
    median: f64,
    cross_node: f64,
    pages_migrated: f64,
}

impl Row {
    fn read(row: &Value) -> Self {
        let place = |key: &str| {
            row[key]
                .as_u64()
                .map_or_else(|| "F".to_owned(), |node| node.to_string())
        };
        Self {
            numa_balancing: row["numa_balancing"].as_bool().unwrap(),
            memory: place("memory_node"),
            cpus: place("cpu_node"),
            mean: row["moments"]["mean"].as_f64().unwrap(),
            median: row["seconds"]["median"].as_f64().unwrap(),
            cross_node: row["migrations"]["cross_node"].as_f64().unwrap(),
            pages_migrated: row["pages_migrated"].as_f64().unwrap(),
        }
    }
}

/// DuckDB's answer from the exported samples is the same.
fn check_export(rows: &[Row], parquet: &Path) {
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
    assert_eq!(lines.len(), rows.len());
    for (line, row) in lines.iter().zip(rows) {
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

/// A stored sample: what the probe read back of its cell.
fn check_sample(sample: &Value) {
    let (cell, detail) = (&sample["cell"], &sample["detail"]);
    let probe = &detail["probe"];
    let is_on = |node: &Value, level: &Value| level == "F" || *level == json!(node.to_string());
    assert_eq!(
        probe["numa_balancing"],
        json!(cell["numa_balancing"] == 1),
        "{sample}"
    );
    for pages in ["pages_before", "pages_after"] {
        let pages = probe[pages]["by_node"].as_array().unwrap();
        let mut nodes = pages.iter().map(|it| &it["node"]);
        assert!(nodes.all(|it| is_on(it, &cell["memory_node"])), "{sample}");
        assert!(!pages.is_empty(), "{sample}");
        // Bound to the node it prefers before it touches anything.
        if detail["kept"]["by"] == json!("binding") {
            assert_eq!(pages[0]["node"], cell["preferred_node"], "{sample}");
        }
    }
    let times = detail["trace"]["time"].as_array().unwrap();
    let spent = times.iter().filter(|it| it["seconds"] != 0.0);
    let mut nodes = spent.map(|it| &it["node"]).peekable();
    assert!(nodes.peek().is_some(), "{sample}");
    assert!(nodes.all(|it| is_on(it, &cell["cpu_node"])), "{sample}");

    let preferred = cell["preferred_node"].as_u64();
    let kept_by = match preferred {
        None => Value::Null,
        Some(_) if cell["cpu_node"] == "F" => json!("keeper"),
        Some(_) => json!("binding"),
    };
    assert_eq!(detail["kept"]["by"], kept_by, "{sample}");
    let is_confined = preferred.is_some() && detail["kept"]["widened"] == 0;
    let node = match cell["cpu_node"].as_str().unwrap() {
        "F" => preferred.filter(|_| is_confined),
        node => Some(node.parse().unwrap()),
    };
    let cpus = ["0-1", "2-3", "0-3"][node.unwrap_or(2) as usize];
    assert_eq!(probe["cpus"], cpus, "{sample}");
}

/// Times are not judged: the shares of remote accesses are counted from pages and moves.
#[test]
fn every_factor_is_set_read_back_stored_summarised_and_compared() {
    if guests::skipped() {
        return;
    }
    let results = tempfile::tempdir().unwrap();
    let cells = CELLS.map(|cell| format!(" --cell {cell}")).concat();
    let words = format!(
        "--bytes 1M --steps 10000 --counts 4 --load 5 --first-touch far --scan-delay-ms 400 --scan-period-ms 20 --samples {FEW_SAMPLES}{cells}"
    );
    let options = ["--scale", "cpus=2,memory=512M", "--results"];
    let options = [
        &options[..],
        &[results.path().to_str().unwrap()],
        &guests::IN_TIME,
    ]
    .concat();
    let mut command = guests::lab_run("two-node", &options);
    command
        .args(["sh", "-c", PROBE, guests::NEARFAR])
        .args(words.split(' '));
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = answer["answer"]["rows"].as_array().unwrap();
    let rows: Vec<Row> = rows.iter().map(Row::read).collect();
    assert_eq!(rows.len(), CELLS.len());
    for row in rows.iter().filter(|row| row.cpus != "F") {
        assert_eq!(row.cross_node, 0.0, "{} {}: bound", row.memory, row.cpus);
    }
    let is_left = |row: &&Row| row.memory != "F" || !row.numa_balancing;
    for row in rows.iter().filter(is_left) {
        assert_eq!(row.pages_migrated, 0.0, "{} {}", row.memory, row.cpus);
    }
    check_export(&rows, &results.path().join("run.parquet"));

    let nearfar = |words: &str| -> Value {
        let output = Command::new(guests::NEARFAR)
            .args(words.split(' '))
            .env("NEARFAR_STORE", results.path().join("runs.db"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let exported = nearfar("runs export 1 --format json");
    let taken = exported["runs"][0]["taken"].as_array().unwrap();
    assert_eq!(taken.len(), CELLS.len() * FEW_SAMPLES);
    taken.iter().for_each(check_sample);

    let compared = nearfar("compare 1 --by memory_node --metric remote_access_share --format json");
    let rows = compared["rows"].as_array().unwrap();
    let sides: Vec<_> = rows.iter().map(|row| &row["side"]).collect();
    assert_eq!(sides, ["memory_node=1", "memory_node=F"], "{compared:#}");
    for row in rows {
        assert_eq!(
            row["cell"],
            json!({ "preferred_node": -1, "numa_balancing": 0, "cpu_node": "1" })
        );
    }
    assert_eq!(rows[1]["b"]["median"], json!(1.0), "touched from node 0");
    let (far, near) = (&rows[0]["a"]["median"], &rows[0]["b"]["median"]);
    assert_eq!(
        (far, near, &rows[0]["verdict"]),
        (&json!(1.0), &json!(0.0), &json!("better")),
        "{compared:#}"
    );
}
