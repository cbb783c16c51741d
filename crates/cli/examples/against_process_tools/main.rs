//! What looking costs: `nearfar tasks`, `top` and `exporter` against tools that show processes, interleaved in one run.
//!
//! ```text
//! make bench
//! cargo run --release -p nearfar --example against_process_tools -- --part watching --rounds 5
//! ```
//!
//! The first two parts look at 2000 processes with 10,000 threads that this example starts. The third has a process that maps and
//! unmaps memory all the time, and measures what it loses when it is watched. Ratios are those of the same round.

mod faults;
mod population;
mod watching;

#[path = "../measured/mod.rs"]
mod measured;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use clap::{Parser, Subcommand, ValueEnum};

use measured::process::{Cost, run};
use measured::{Contender, Spread, beside_us, print_goal, race};
use population::Population;

/// Wall time of `nearfar tasks`, in milliseconds.
const MAX_TASKS_MS: f64 = 150.0;

/// Measures what looking at processes costs
#[derive(Parser)]
struct Arguments {
    /// Measure these only
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Tasks, Part::Watching, Part::Faults])]
    part: Vec<Part>,
    /// Runs of each command, after one to warm up
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Times that each tool is watched
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Pairs of a watched and an unwatched measurement
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..))]
    pairs: u16,
    #[command(subcommand)]
    child: Option<Child>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A whole run: time of `nearfar tasks`
    Tasks,
    /// A refresh a second: CPU time and memory of `nearfar top` and `exporter`
    Watching,
    /// What the watched process loses
    Faults,
}

/// What this example starts itself as.
#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
enum Child {
    #[command(hide = true)]
    Populate(population::Process),
    #[command(hide = true)]
    Fault(faults::Process),
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    match arguments.child {
        Some(Child::Populate(process)) => return process.run(),
        Some(Child::Fault(process)) => return process.run(),
        None => {}
    }
    let nearfar = beside_us("nearfar")?;
    let has = |part| arguments.part.contains(&part);
    println!("load average before: {}", load_average()?);
    if has(Part::Tasks) || has(Part::Watching) {
        let population = Population::start()?;
        println!("{population}\n");
        if has(Part::Tasks) {
            compare_commands(&nearfar, usize::from(arguments.runs))?;
        }
        if has(Part::Watching) {
            watching::compare(&nearfar, usize::from(arguments.rounds))?;
        }
    }
    if has(Part::Faults) {
        faults::compare(&nearfar, u32::from(arguments.pairs))?;
    }
    println!("load average after: {}", load_average()?);
    Ok(())
}

fn load_average() -> std::io::Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let averages: Vec<&str> = text.split_whitespace().take(3).collect();
    Ok(averages.join(" "))
}

/// Whole runs of commands that print processes once.
fn compare_commands(nearfar: &Path, runs: usize) -> Result<(), Box<dyn Error>> {
    let ours = |words: &'static [&'static str]| move || run(Command::new(nearfar).args(words));
    let theirs = |name: &'static str, words: &'static [&'static str]| {
        move || run(Command::new(name).args(words))
    };
    let numastat = ["-p", population::NAME];
    let mut contenders = [
        Contender::new("nearfar tasks", ours(&["tasks"])),
        Contender::new(
            "nearfar tasks --min-memory 0",
            ours(&["tasks", "--min-memory", "0"]),
        ),
        Contender::new("numastat -p (all of them)", move || {
            run(Command::new("numastat").args(numastat))
        }),
        Contender::new(
            "ps -eLo pid,tid,psr,pcpu,comm",
            theirs("ps", &["-eLo", "pid,tid,psr,pcpu,comm"]),
        ),
    ];
    race(&mut contenders, runs, &mut |text| println!("{text}"));
    println!("{runs} runs of each in turn, median (lowest to highest); ratios to nearfar tasks:");
    println!(
        "{:30} {:28} {:28} {:22} peak memory",
        "", "wall time", "CPU time", "wall time, ratio"
    );
    let [first, ..] = &contenders;
    for contender in &contenders {
        match contender.costs.is_empty() {
            true => println!("{:30} -", contender.name),
            false => println!("{}", row(contender, &first.costs)),
        }
    }
    if first.costs.is_empty() {
        return Err("nearfar tasks failed twice in a row".into());
    }
    let wall = milliseconds(&first.costs, |cost| cost.wall.as_secs_f64());
    print_goal("wall time of nearfar tasks", &wall, "ms", MAX_TASKS_MS);
    println!();
    Ok(())
}

fn row(contender: &Contender<'_, Cost>, first: &[Cost]) -> String {
    let costs = &contender.costs;
    let pairs = costs.iter().zip(first);
    let ratio =
        Spread::of(pairs.map(|(it, first)| it.wall.as_secs_f64() / first.wall.as_secs_f64()));
    format!(
        "{:30} {:28} {:28} {:22} {:.1} MiB",
        contender.name,
        milliseconds(costs, |cost| cost.wall.as_secs_f64()).with_unit("ms"),
        milliseconds(costs, |cost| cost.cpu.as_secs_f64()).with_unit("ms"),
        ratio.with_unit("x"),
        Spread::of(costs.iter().map(|cost| cost.peak_kib as f64 / 1024.0)).median
    )
}

fn milliseconds(costs: &[Cost], seconds: impl Fn(&Cost) -> f64) -> Spread {
    Spread::of(costs.iter().map(|cost| seconds(cost) * 1e3))
}
