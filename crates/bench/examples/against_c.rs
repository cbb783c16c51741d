//! Judges the latency that nearfar measures by a pointer chase written in C and compiled with `cc -O2`: same order of
//! lines, same buffer, same CPU, runs interleaved. Prints both medians and their ratio; more than 3 % apart fails.
//!
//! `cargo run --release -p nearfar-bench --example against_c -- [MIB] [ROUNDS]`

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use nearfar_bench::latency::measure;
use nearfar_bench::options::{HugePages, ProbeOptions};
use nearfar_machine::{Cpu, CpuId, CpuSet, Machine, Node, NodeId, Origin, SourceKind};
use nearfar_statistics::Summary;

/// How far apart the two may be.
const TOLERANCE: f64 = 0.03;
const SAMPLES: usize = 41;
const LINE: u64 = 64;
/// Loads a sample: what nearfar takes where time allows.
const STEPS: u64 = 20_000;

type Problem = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Problem> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u64>());
    let mebibytes = arguments.next().transpose()?.unwrap_or(128);
    let rounds = arguments.next().transpose()?.unwrap_or(9);
    let folder = tempfile::tempdir()?;
    let program = compile(folder.path())?;
    let machine = one_cpu()?;
    let cpu = machine.cpus[0].id;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    println!("{mebibytes} MiB, lines of {LINE} B in one random cycle, CPU {cpu}, ns per load");
    println!("round       C  nearfar");
    for round in 1..=rounds {
        // The first may find the machine in another state, so the order alternates.
        let (c, nearfar) = match round % 2 {
            0 => (
                chase(&program, mebibytes, cpu)?,
                nearfar(&machine, mebibytes)?,
            ),
            _ => {
                let ours = nearfar(&machine, mebibytes)?;
                (chase(&program, mebibytes, cpu)?, ours)
            }
        };
        println!("{round:>5}  {c:>6.1}   {nearfar:>6.1}");
        theirs.push(c);
        ours.push(nearfar);
    }
    let (Some(theirs), Some(ours)) = (Summary::of(&theirs), Summary::of(&ours)) else {
        return Err("at least one round is needed".into());
    };
    let ratio = ours.median / theirs.median;
    println!(
        "median {:>5.1}   {:>6.1}   nearfar/C {ratio:.3}",
        theirs.median, ours.median
    );
    Ok(if (ratio - 1.0).abs() <= TOLERANCE {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn compile(folder: &Path) -> Result<PathBuf, Problem> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/chase.c");
    let program = folder.join("chase");
    let status = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(source)
        .status()?;
    if status.success() {
        Ok(program)
    } else {
        Err("cc could not compile chase.c".into())
    }
}

fn chase(program: &Path, mebibytes: u64, cpu: CpuId) -> Result<f64, Problem> {
    let arguments = [mebibytes, LINE, u64::from(cpu.0), SAMPLES as u64, STEPS]
        .map(|argument| argument.to_string());
    let output = Command::new(program).args(arguments).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

fn nearfar(machine: &Machine, mebibytes: u64) -> Result<f64, Problem> {
    let options = ProbeOptions {
        budget: Duration::from_secs(20),
        buffer_bytes: Some(mebibytes << 20),
        max_samples: SAMPLES,
        // The program in C knows no pool.
        huge_pages: HugePages::Transparent,
        ..ProbeOptions::default()
    };
    Ok(measure(machine, &options)?
        .answer
        .pairs
        .first()
        .ok_or("nothing was measured")?
        .median_ns)
}

/// This system as one node with one CPU: the last that may be used.
fn one_cpu() -> Result<Machine, Problem> {
    let mut machine = Machine::empty(
        Origin::new(SourceKind::Live, "this system"),
        "not read by this example",
    );
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let last = (0..1024)
        .rev()
        .find(|&cpu| allowed.is_set(cpu))
        .ok_or("no CPU below 1024 may be used")?;
    let cpu = CpuId(last as u32);
    machine.cpus = vec![Cpu::new(cpu, Some(NodeId(0)))];
    machine.cpu_states.online = CpuSet::single(cpu);
    machine
        .nodes
        .push(Node::new(NodeId(0), CpuSet::single(cpu)));
    Ok(machine)
}
