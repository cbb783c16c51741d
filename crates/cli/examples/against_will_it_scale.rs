//! Operations per second of `nearfar bench scale` against will-it-scale's own tests, in turn in one run.
//!
//! ```text
//! make tlb_flush1_processes page_fault1_processes    # in a checkout of will-it-scale
//! cargo run --release --example against_will_it_scale -- CHECKOUT [PAIRS]
//! ```
//!
//! Both bind each process to a CPU, map 128 MiB and count pages for as long, after a second of work that is not counted.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

mod measured;

use measured::beside_us;
use measured::pairs::Pairs;

const SECONDS: &str = "2";
/// Before each measurement. Longer than nearfar takes to read a machine.
const PAUSE: Duration = Duration::from_millis(500);
/// Ours, and theirs.
const WORKLOADS: [(&str, &str); 2] = [("tlb_flush", "tlb_flush1"), ("page_fault", "page_fault1")];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(checkout) = arguments.next() else {
        println!("skipped: no checkout of will-it-scale is given");
        return Ok(());
    };
    let rounds = arguments.next().and_then(|it| it.parse().ok());
    let rounds: u32 = rounds.unwrap_or(20);
    let nearfar = beside_us("nearfar")?;
    let cpus = std::thread::available_parallelism()?.get().to_string();
    for (workload, test) in WORKLOADS {
        let program = Path::new(&checkout).join(format!("{test}_processes"));
        for tasks in ["1", &cpus] {
            let ours = || with_nearfar(&nearfar, workload, tasks);
            let pairs = Pairs::take(rounds, PAUSE, ours, || alone(&program, tasks))?;
            println!(
                "bench scale {workload} against {test}, processes {tasks}, {rounds} pairs of {SECONDS} s: {}",
                pairs.change()?
            );
        }
    }
    Ok(())
}

fn with_nearfar(nearfar: &Path, workload: &str, tasks: &str) -> Result<f64, Box<dyn Error>> {
    let output = Command::new(nearfar)
        .args(["bench", "scale", "--one-sample", "--trace-seconds", "0"])
        .args(["--memory-size", "128M", "--seconds", SECONDS])
        .args(["--warm-up", "1"])
        .args(["--factor", &format!("workload={workload}")])
        .args(["--factor", &format!("tasks={tasks}")])
        .output()?;
    let sample: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let operations = sample["values"]["operations_per_s"].as_f64();
    operations.ok_or_else(|| format!("no figures in {sample}").into())
}

/// The average that it prints last.
fn alone(program: &Path, tasks: &str) -> Result<f64, Box<dyn Error>> {
    let mut command = Command::new(program);
    command.args(["-t", tasks, "-s", SECONDS]);
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let average = text
        .lines()
        .find_map(|line| line.strip_prefix("average:")?.trim().parse().ok());
    average.ok_or_else(|| format!("{}: no average in: {text}", program.display()).into())
}
