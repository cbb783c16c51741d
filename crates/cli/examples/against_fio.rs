//! I/Os per second of `nearfar bench io` against fio alone with the command that nearfar prints, in turn in one run.
//!
//! ```text
//! make bench
//! against_fio [PAIRS [DIRECTORY]]
//! ```
//!
//! A file in memory is read through the page cache, so that the cost of an I/O is CPU time and anything of nearfar's in the way
//! would show. With a DIRECTORY a file there is read with direct I/O. Both sides begin after the same pause, since nearfar reads
//! the machine before it starts fio. What is printed is the median of the pairwise ratios with its 95 % interval.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

mod measured;

use measured::pairs::Pairs;
use measured::{beside_us, print_goal};

const FILE_BYTES: usize = 64 << 20;
const SECONDS: &str = "1";
/// How many times as many I/Os fio alone may do.
const MAX_LOST: f64 = 1.02;
/// Before each measurement. Longer than nearfar takes to read a machine.
const PAUSE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let rounds: u32 = rounds.unwrap_or(20);
    if Command::new("fio").arg("--version").output().is_err() {
        println!("skipped: fio is not installed");
        return Ok(());
    }
    let nearfar = beside_us("nearfar")?;
    let directory = std::env::args().nth(2);
    let is_direct = directory.is_some();
    let directory = directory.unwrap_or_else(|| "/dev/shm".to_owned());
    let file = Path::new(&directory).join(format!("against-fio-{}", std::process::id()));
    fs::write(&file, vec![1; FILE_BYTES])?;
    let pairs = measure(&nearfar, &file, is_direct, rounds);
    fs::remove_file(&file)?;
    let pairs = pairs?;
    println!(
        "bench io against fio alone, {rounds} pairs of {SECONDS} s, I/Os per second: {}",
        pairs.change()?
    );
    print_goal(
        "I/Os per second of fio alone by bench io",
        &pairs.lost(),
        "x",
        MAX_LOST,
    );
    Ok(())
}

fn measure(
    nearfar: &Path,
    file: &Path,
    is_direct: bool,
    rounds: u32,
) -> Result<Pairs, Box<dyn Error>> {
    let (_, command) = with_nearfar(nearfar, file, is_direct)?;
    let ours = || Ok(with_nearfar(nearfar, file, is_direct)?.0);
    Pairs::take(rounds, PAUSE, ours, || alone(&command))
}

/// I/Os per second, and the command that measures the same.
fn with_nearfar(
    nearfar: &Path,
    file: &Path,
    is_direct: bool,
) -> Result<(f64, String), Box<dyn Error>> {
    let output = Command::new(nearfar)
        .args(["bench", "io", "--one-sample", "--seconds", SECONDS])
        .args((!is_direct).then_some("--buffered"))
        .args(["--factor", "cpu_node=near", "--file"])
        .arg(file)
        .output()?;
    let sample: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let detail = &sample["detail"];
    let iops = detail["fio"]["iops"].as_f64();
    let command = detail["command"].as_str().map(str::to_owned);
    iops.zip(command)
        .ok_or_else(|| format!("no figures in {sample}").into())
}

fn alone(command: &str) -> Result<f64, Box<dyn Error>> {
    // Without numactl the memory is where the CPUs are: it is near in both.
    let has_numactl = Command::new("numactl").arg("--show").output().is_ok();
    let (_, bare) = command.split_once(" fio ").ok_or("no fio in the command")?;
    let command = match has_numactl {
        true => command.to_owned(),
        false => format!("fio {bare}"),
    };
    let output = Command::new("sh").args(["-c", &command]).output()?;
    Ok(nearfar_bench::io::Answer::parse(&output.stdout)?.iops)
}
