//! I/Os per second of `nearfar bench io` against fio alone with the command that nearfar prints, in turn in one run.
//!
//! ```text
//! make bench
//! ```
//!
//! A file in memory is read through the page cache, so that the cost of an I/O is CPU time and anything of nearfar's in the way
//! would show. Both sides begin after the same pause, since nearfar reads the machine before it starts fio. What is printed is the
//! median of the pairwise ratios with its 95 % interval.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use nearfar_statistics::compare::{Better, DEFAULT_MARGIN, Question, compare};
use serde_json::Value;

mod measured;

use measured::beside_us;

const FILE_BYTES: usize = 64 << 20;
const SECONDS: &str = "1";
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
    let file = Path::new("/dev/shm").join(format!("against-fio-{}", std::process::id()));
    fs::write(&file, vec![1; FILE_BYTES])?;
    let measured = measure(&nearfar, &file, rounds);
    fs::remove_file(&file)?;
    let (ours, theirs) = measured?;
    let pair = |values: &[f64]| (0u32..).zip(values.iter().copied()).collect();
    let question = Question::paired(&pair(&theirs), &pair(&ours), Some(Better::Higher));
    let compared = compare(&[question], DEFAULT_MARGIN).pop().flatten();
    let compared = compared.ok_or("there are no pairs")?;
    let change = compared.change.ok_or("fio made no I/O")?;
    let percent = |value: f64| format!("{:+.2} %", 100.0 * value);
    let interval = change.confidence;
    let interval = interval.map(|it| format!(" ({} to {})", percent(it.low), percent(it.high)));
    println!(
        "bench io against fio alone, {rounds} pairs of {SECONDS} s: {}{} I/Os per second, {}; medians {:.0} and {:.0}",
        percent(change.value),
        interval.unwrap_or_default(),
        format_args!("p = {:.2}", compared.p),
        compared.b.median,
        compared.a.median
    );
    Ok(())
}

/// Both sides, pair by pair; which is first alternates.
fn measure(
    nearfar: &Path,
    file: &Path,
    rounds: u32,
) -> Result<(Vec<f64>, Vec<f64>), Box<dyn Error>> {
    let (_, command) = with_nearfar(nearfar, file)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in 0..2 {
            sleep(PAUSE);
            match (round + turn) % 2 {
                0 => ours.push(with_nearfar(nearfar, file)?.0),
                _ => theirs.push(alone(&command)?),
            }
        }
    }
    Ok((ours, theirs))
}

/// I/Os per second, and the command that measures the same.
fn with_nearfar(nearfar: &Path, file: &Path) -> Result<(f64, String), Box<dyn Error>> {
    let output = Command::new(nearfar)
        .args([
            "bench",
            "io",
            "--one-sample",
            "--buffered",
            "--seconds",
            SECONDS,
        ])
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
