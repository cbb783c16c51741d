//! Speed and memory of `nearfar audit` against `lstopo-no-graphics` on the same generated trees, interleaved in one run.
//!
//! ```text
//! make bench
//! ```
//!
//! Both read an extracted tree of 1024, 2048 and 4096 CPUs from the page cache; hwloc with its I/O devices on, nearfar
//! with devices and interrupts, which hwloc does not read. What is printed is the median of the pairwise ratios with
//! their range, so that a machine whose speed drifts does not favour either side.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

mod measured;

use measured::process::{Cost, run};
use measured::{Contender, Spread, beside_us, print_goal, race};

/// Of nearfar, which reads more, by lstopo.
const MAX_RATIO: f64 = 1.0;
const SIZES: [u32; 3] = [1024, 2048, 4096];

fn main() -> io::Result<()> {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(11);
    let nearfar = beside_us("nearfar")?;
    let directory = tempfile::tempdir()?;
    println!("{rounds} rounds a size after one warm-up, median (lowest to highest)\n");
    println!("{:>6}  {:24} {:24}", "CPUs", "nearfar audit", "lstopo");
    for cpus in SIZES {
        let tree = directory.path().join(cpus.to_string());
        generate(&tree, cpus)?;
        let ours = || run(Command::new(&nearfar).args(["audit", "--root"]).arg(&tree));
        let theirs = || {
            run(Command::new("lstopo-no-graphics")
                .args(["--whole-io", "--of", "console"])
                .envs([
                    ("HWLOC_FSROOT", tree.as_os_str()),
                    ("HWLOC_THISSYSTEM", "0".as_ref()),
                    // The processor of this machine is none of the tree's business.
                    ("HWLOC_COMPONENTS", "linux,stop".as_ref()),
                ]))
        };
        let mut both = [
            Contender::new("nearfar audit", ours),
            Contender::new("lstopo", theirs),
        ];
        // The first round fills the page cache.
        race(&mut both, rounds, &mut |text| println!("{text}"));
        let [ours, theirs] = both.map(|contender| contender.costs);
        print_row(cpus, &ours, &theirs);
        print_goals(cpus, &ours, &theirs);
        if ours.is_empty() {
            return Err(io::Error::other("nearfar audit failed twice in a row"));
        }
    }
    startup(&nearfar, rounds)
}

/// Of runs that followed each other; none where lstopo was left out.
fn print_goals(cpus: u32, ours: &[Cost], theirs: &[Cost]) {
    if ours.is_empty() || theirs.is_empty() {
        return;
    }
    let goal = |figure, of: fn(&Cost) -> f64| {
        let ratio = Spread::of(ours.iter().zip(theirs).map(|(a, b)| of(a) / of(b)));
        let what = format!("{figure} of nearfar audit by lstopo, {cpus} CPUs");
        print_goal(&what, &ratio, "x", MAX_RATIO);
    };
    goal("time", |cost| cost.wall.as_secs_f64());
    goal("peak memory", |cost| cost.peak_kib as f64);
}

fn print_row(cpus: u32, ours: &[Cost], theirs: &[Cost]) {
    // One that was left out has no costs.
    let wall = |costs: &[Cost]| match costs.is_empty() {
        true => "-".to_owned(),
        false => Spread::of(costs.iter().map(|cost| cost.wall.as_secs_f64() * 1e3)).with_unit("ms"),
    };
    println!("{cpus:>6}  {:24} {:24}", wall(ours), wall(theirs));
    let cpu =
        |costs: &[Cost]| Spread::of(costs.iter().map(|cost| cost.cpu.as_secs_f64() * 1e3)).median;
    let peak =
        |costs: &[Cost]| Spread::of(costs.iter().map(|cost| cost.peak_kib as f64 / 1024.0)).median;
    let both = |costs: &[Cost]| match costs.is_empty() {
        true => "-".to_owned(),
        false => format!("{:.0} ms of CPU, {:.1} MiB", cpu(costs), peak(costs)),
    };
    println!("{:>6}  {:24} {:24}", "", both(ours), both(theirs),);
}

/// 8192 queues over 8192 CPUs as a whole process.
fn startup(nearfar: &Path, rounds: usize) -> io::Result<()> {
    let machine = "node:64 core:64 pu:2 distance:20";
    let spread = || {
        run(Command::new(nearfar)
            .args(["spread", "--source", machine, "--node", "5"])
            .args(["--count", "8192", "--format", "list"]))
    };
    let mut contenders = [Contender::new("nearfar spread", spread)];
    race(&mut contenders, rounds, &mut |text| println!("{text}"));
    let [Contender { costs, .. }] = &contenders;
    if costs.is_empty() {
        return Ok(());
    }
    let wall = Spread::of(costs.iter().map(|cost| cost.wall.as_secs_f64() * 1e3));
    println!(
        "\n8192 queues spread over 8192 CPUs: {}",
        wall.with_unit("ms")
    );
    Ok(())
}

fn generate(tree: &Path, cpus: u32) -> io::Result<()> {
    let mut command = Command::new(beside_us("examples/generate_tree")?);
    command.arg(tree).args([
        "--cpus",
        &cpus.to_string(),
        "--nodes",
        &(cpus / 64).to_string(),
    ]);
    command
        .args([
            "--pci",
            &(cpus / 8).to_string(),
            "--interrupts",
            &cpus.to_string(),
        ])
        .stdout(Stdio::null());
    match command.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("generate_tree failed")),
    }
}
