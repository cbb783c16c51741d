//! What tracing a task's migrations costs the task: nothing, `nearfar trace migrations`, `perf trace`, `perf record` and
//! `trace-cmd record`, in turns.
//!
//! `cargo build --release -p nearfar && cargo run --release -p nearfar-trace --example against_tracers -- [ROUNDS [MOVES]]`
//!
//! The task is a probe-like loop (random read, then write, in 32 MiB) that moves itself between CPUs 0 and 1 MOVES times;
//! the tracer runs it and traces its migrations from all CPUs. A round is each way once, in an order of its own, so what else
//! the machine does falls on all. Printed are the medians of the ratios of a way to nothing within a round, with the
//! median's 95 % confidence interval and the quartiles: of the task's CPU time, and of the elapsed time, in which what the
//! mover pays for an event (it happens in the kernel's migration thread here) and the tracer's use of a CPU show as well, and
//! on a busy machine much else. What one event costs, the example `cost` measures better. Needs root, CPUs 0 and 1 and a mounted
//! tracefs. NEARFAR names another build of nearfar than the one in the same directory.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nearfar_statistics::{Interval, Summary};
use rustix::thread::{CpuSet as Affinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Words of the buffer: 32 MiB.
const WORDS: usize = 4 << 20;
/// Random accesses in all.
const STEPS: usize = 40_000_000;
const EVENT: &str = "sched:sched_migrate_task";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, file, moves] = &arguments[..]
        && word == "work"
    {
        return work(Path::new(file), moves.parse().expect("a number"));
    }
    let number = |at: usize, default| {
        arguments
            .get(at)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (rounds, moves) = (number(0, 21), number(1, 100));
    let scratch = std::env::temp_dir().join(format!("against_tracers.{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("a directory for temporary files");
    let ways = ways(&scratch);
    let mut ratios = vec![(Vec::new(), Vec::new()); ways.len()];
    for round in 0..rounds {
        let mut times = vec![None; ways.len()];
        for turn in 0..ways.len() {
            // Each way stands at each place equally often.
            let way = (turn * (1 + round % 2 * (ways.len() - 2)) + round) % ways.len();
            times[way] = run(&ways[way].1, &scratch, moves);
        }
        let Some((cpu, elapsed)) = times[0] else {
            panic!("the task alone does not run")
        };
        for (ratios, time) in ratios.iter_mut().zip(times) {
            let Some(time) = time else { continue };
            ratios.0.push(time.0 / cpu);
            ratios.1.push(time.1 / elapsed);
        }
    }
    println!(
        "{rounds} rounds, {moves} moves each; ratio to nothing: median (95 % confidence; quartiles)"
    );
    for ((name, _), (cpu, elapsed)) in ways.iter().zip(&ratios).skip(1) {
        println!(
            "{name:<18} CPU time {}   elapsed {}",
            shown(cpu),
            shown(elapsed)
        );
    }
    let _ = std::fs::remove_dir_all(&scratch);
}

/// Each way with the words that go before the task's own.
fn ways(scratch: &Path) -> Vec<(&'static str, Vec<String>)> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect();
    let file = |name: &str| scratch.join(name).display().to_string();
    let same_directory = || {
        std::env::current_exe()
            .expect("this program")
            .parent()
            .expect("a folder")
            .join("../nearfar")
    };
    let own = std::env::var_os("NEARFAR").map_or_else(same_directory, PathBuf::from);
    vec![
        ("nothing", Vec::new()),
        (
            "nearfar trace",
            words(format!(
                "{} trace migrations --output {} --",
                own.display(),
                file("nearfar")
            )),
        ),
        (
            "perf trace",
            words(format!(
                "perf trace -a -e {EVENT} -o {} --",
                file("perf-trace")
            )),
        ),
        (
            "perf record",
            words(format!(
                "perf record -a -e {EVENT} -o {} --",
                file("perf.data")
            )),
        ),
        (
            "trace-cmd record",
            words(format!(
                "trace-cmd record -e {EVENT} -o {}",
                file("trace.dat")
            )),
        ),
    ]
}

/// CPU and elapsed seconds of the task; `None` where the tracer is not there or does not run it.
fn run(before: &[String], scratch: &Path, moves: usize) -> Option<(f64, f64)> {
    let result = scratch.join("result");
    let _ = std::fs::remove_file(&result);
    let own = std::env::current_exe()
        .expect("this program")
        .display()
        .to_string();
    let words = [
        before,
        &[
            own,
            "work".to_owned(),
            result.display().to_string(),
            moves.to_string(),
        ],
    ]
    .concat();
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .current_dir(scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().ok()?;
    let text = std::fs::read_to_string(&result).ok()?;
    let (cpu, elapsed) = text.split_once(' ')?;
    Some((cpu.parse().ok()?, elapsed.parse().ok()?))
}

/// The task: writes what it took into the file.
fn work(file: &Path, moves: usize) {
    let mut buffer = vec![1u64; WORDS];
    let mut random = 1u64;
    let clocks = [ClockId::ThreadCPUTime, ClockId::Monotonic];
    let now = || {
        clocks.map(|clock| {
            Duration::try_from(clock_gettime(clock)).expect("a clock that runs forward")
        })
    };
    move_to(0);
    let begin = now();
    for turn in 0..moves {
        move_to((turn + 1) % 2);
        for _ in 0..STEPS / moves {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let word = &mut buffer[(random >> 42) as usize % WORDS];
            *word = word.wrapping_add(random);
        }
    }
    let end = now();
    black_box(&buffer);
    let [cpu, elapsed] = [0, 1].map(|clock| (end[clock] - begin[clock]).as_secs_f64());
    std::fs::write(file, format!("{cpu} {elapsed}")).expect("a file for the result");
}

fn move_to(cpu: usize) {
    let mut set = Affinity::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("CPUs 0 and 1");
}

fn shown(ratios: &[f64]) -> String {
    let Some(Summary {
        low,
        median,
        high,
        confidence,
        ..
    }) = Summary::of(ratios)
    else {
        return "not here".to_owned();
    };
    let sure = confidence.map_or_else(
        || "?".to_owned(),
        |Interval { low, high }| format!("{low:.4} to {high:.4}"),
    );
    format!("{median:.4} ({sure}; {low:.4} to {high:.4})")
}
