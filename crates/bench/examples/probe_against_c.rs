//! Judges the probe's loops by the same patterns written in C and compiled with `cc -O3 -march=native`: same generator,
//! same buffer, same pages, same CPU, runs interleaved. Prints both medians, their ratio and the spread of either; a
//! pattern that is more than 3 % slower than in C fails.
//!
//! `cargo run --release -p nearfar-bench --example probe_against_c -- [MIB] [RUNS]`

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;

use nearfar_bench::options::HugePages;
use nearfar_bench::probe::{Pattern, Probe, ProbeSpec, Where, serve};
use nearfar_machine::{CpuId, CpuSet, NodeId};
use nearfar_statistics::Summary;

/// How much slower the probe may be.
const TOLERANCE: f64 = 0.03;
/// Rounds a run: short ones, so that most of them end before the scheduler comes.
const COUNTS: u32 = 200;
/// Accesses a round.
const STEPS: u64 = 20_000;
/// The same where an access takes a tenth of the time.
const SEQUENTIAL_STEPS: u64 = 200_000;
/// The same where it takes ten times as long.
const CHAIN_STEPS: u64 = 2_000;

type Problem = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Problem> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["bench", "child", "probe"] {
        serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut numbers = arguments.iter().map(|argument| argument.parse::<u64>());
    let bytes = numbers.next().transpose()?.unwrap_or(256) << 20;
    let runs = numbers.next().transpose()?.unwrap_or(11);
    let folder = tempfile::tempdir()?;
    let program = compile(folder.path())?;
    let cpu = last_cpu()?;
    println!(
        "{} MiB of base pages, CPU {cpu}, {runs} runs of {COUNTS} rounds each, ns an access",
        bytes >> 20
    );
    println!(
        "pattern                            C  (quartiles)       nearfar  (quartiles)       nearfar/C"
    );
    let mut slower = false;
    for pattern in Pattern::ALL {
        let ratio = compare(&program, pattern, bytes, runs, cpu)?;
        slower |= ratio - 1.0 > TOLERANCE;
    }
    Ok(if slower {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Both in turn, one line of the table, and their ratio.
fn compare(
    program: &Path,
    pattern: Pattern,
    bytes: u64,
    runs: u64,
    cpu: CpuId,
) -> Result<f64, Problem> {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for run in 0..runs {
        // The first may find the machine in another state, so the order alternates.
        if run % 2 == 0 {
            theirs.push(in_c(program, pattern, bytes, cpu)?);
            ours.push(in_nearfar(pattern, bytes, cpu)?);
        } else {
            ours.push(in_nearfar(pattern, bytes, cpu)?);
            theirs.push(in_c(program, pattern, bytes, cpu)?);
        }
    }
    let (Some(theirs), Some(ours)) = (Summary::of(&theirs), Summary::of(&ours)) else {
        return Err("at least one run is needed".into());
    };
    let ratio = ours.median / theirs.median;
    let figures = |of: &Summary| format!("{:>8.3}  ({:.3} to {:.3})", of.median, of.low, of.high);
    println!(
        "{:<27} {:<26} {:<26} {ratio:>8.3}",
        pattern.to_string(),
        figures(&theirs),
        figures(&ours)
    );
    Ok(ratio)
}

fn steps(pattern: Pattern) -> u64 {
    match pattern {
        Pattern::SequentialReadWrite | Pattern::SequentialRead | Pattern::SequentialWrite => {
            SEQUENTIAL_STEPS
        }
        Pattern::Chain => CHAIN_STEPS,
        _ => STEPS,
    }
}

fn compile(folder: &Path) -> Result<PathBuf, Problem> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/probe.c");
    let program = folder.join("probe");
    let status = Command::new("cc")
        .args(["-O3", "-march=native", "-o"])
        .arg(&program)
        .arg(source)
        .status()?;
    if status.success() {
        Ok(program)
    } else {
        Err("cc could not compile probe.c".into())
    }
}

/// The median round of a run of the program in C, in nanoseconds an access.
fn in_c(program: &Path, pattern: Pattern, bytes: u64, cpu: CpuId) -> Result<f64, Problem> {
    let name = serde_json::to_value(pattern)?;
    let arguments =
        [bytes, COUNTS.into(), steps(pattern), cpu.0.into()].map(|number| number.to_string());
    let output = Command::new(program)
        .arg(name.as_str().unwrap_or_default())
        .args(arguments)
        .output()?;
    if !output.status.success() {
        return Err(format!("the program in C failed: {}", output.status).into());
    }
    let rounds: Vec<f64> = String::from_utf8(output.stdout)?
        .lines()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(Summary::of(&rounds)
        .ok_or("the program in C said nothing")?
        .median)
}

/// The same of the probe.
fn in_nearfar(pattern: Pattern, bytes: u64, cpu: CpuId) -> Result<f64, Problem> {
    let spec = ProbeSpec {
        pattern,
        bytes,
        counts: COUNTS,
        steps: steps(pattern),
        memory: Where::Floating,
        cpus: Where::Node(NodeId(0)),
        cpu_set: Some(CpuSet::single(cpu)),
        touch_cpus: None,
        huge_pages: HugePages::Off,
    };
    let result = Probe::prepare(&std::env::current_exe()?, &spec)?.run(&AtomicBool::new(false))?;
    for warning in &result.warnings {
        eprintln!("{pattern}: {warning}");
    }
    let rounds = Summary::of(&result.round_s)
        .ok_or("the clock of this machine is a system call: no rounds")?;
    Ok(rounds.median * 1e9 / spec.steps as f64)
}

/// The last CPU that may be used.
fn last_cpu() -> Result<CpuId, Problem> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let last = (0..1024)
        .rev()
        .find(|&cpu| allowed.is_set(cpu))
        .ok_or("no CPU below 1024 may be used")?;
    Ok(CpuId(last as u32))
}
