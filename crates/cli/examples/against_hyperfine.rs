//! The time of a command as `nearfar bench command` has it against hyperfine's, in turn in one run.
//!
//! ```text
//! make bench
//! against_hyperfine [PAIRS]
//! ```
//!
//! The command computes a checksum of a file in memory. Both sides take the same number of runs without a shell of the command's own,
//! and compare means. What is printed is the median of the pairwise ratios with its 95 % interval.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

mod measured;

use measured::pairs::Pairs;
use measured::{beside_us, print_goal};

const FILE_BYTES: usize = 32 << 20;
/// Runs of the command in each measurement.
const RUNS: &str = "5";
/// How many times as long a run may take.
const MAX_TIMES: f64 = 1.01;
const PAUSE: Duration = Duration::from_millis(300);

fn main() -> Result<(), Box<dyn Error>> {
    let pairs = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let pairs: u32 = pairs.unwrap_or(12);
    if Command::new("hyperfine").arg("--version").output().is_err() {
        println!("skipped: hyperfine is not installed");
        return Ok(());
    }
    let nearfar = beside_us("nearfar")?;
    let file = format!("/dev/shm/against-hyperfine-{}", std::process::id());
    fs::write(&file, vec![1; FILE_BYTES])?;
    let results = format!("{file}.json");
    let measured = Pairs::take(
        pairs,
        PAUSE,
        || ours(&nearfar, &file),
        || theirs(&file, &results),
    );
    fs::remove_file(&file)?;
    let _ = fs::remove_file(&results);
    let measured = measured?;
    println!(
        "bench command against hyperfine, {pairs} pairs of {RUNS} runs, thousands of runs in 1000 s: {}",
        measured.change()?
    );
    print_goal(
        "time of a command by hyperfine, by bench command",
        &measured.lost(),
        "x",
        MAX_TIMES,
    );
    Ok(())
}

/// Thousands of runs in 1000 s, by the mean of the times.
fn rate(times: &[f64]) -> Result<f64, Box<dyn Error>> {
    match times.is_empty() {
        true => Err("no run was measured".into()),
        false => Ok(1000.0 * times.len() as f64 / times.iter().sum::<f64>()),
    }
}

fn ours(nearfar: &Path, file: &str) -> Result<f64, Box<dyn Error>> {
    let output = Command::new(nearfar)
        .args(
            "bench command --no-store --format json --warmup 0 --factor cpus=all --samples"
                .split(' '),
        )
        .args([RUNS, "--", "sha256sum", file])
        .output()?;
    let run: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let metric = &run["summary"][0]["metrics"][0];
    let mean = metric["moments"]["mean"].as_f64();
    rate(&[mean.ok_or_else(|| format!("no mean in {metric}"))?])
}

fn theirs(file: &str, results: &str) -> Result<f64, Box<dyn Error>> {
    let output = Command::new("hyperfine")
        .args([
            "-N",
            "--style",
            "none",
            "--runs",
            RUNS,
            "--export-json",
            results,
        ])
        .arg(format!("sha256sum {file}"))
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let all: Value = serde_json::from_slice(&fs::read(results)?)?;
    let times = all["results"][0]["times"].as_array().into_iter().flatten();
    rate(&times.filter_map(Value::as_f64).collect::<Vec<f64>>())
}
