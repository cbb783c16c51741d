//! How well the load keeps to its share: for each of some shares a load on one CPU, judged from outside by the kernel's
//! account of the process over a second at a time (its own clock against the wall's), wherever that second begins.
//!
//! `cargo run --release -p nearfar-bench --example load_accuracy -- [SECONDS]`

use std::process::ExitCode;
use std::time::{Duration, Instant};

use nearfar_bench::load::{Load, PERIOD_S, serve};
use nearfar_machine::{CpuId, CpuSet};

/// Shares that are tried, in percent.
const SHARES: [f64; 6] = [0.0, 1.0, 5.0, 60.0, 90.0, 99.0];
/// A load on a CPU that is free should be at most this far off in any second, in percent of the CPU.
const ACCURACY: f64 = 0.5;

type Problem = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Problem> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["bench", "child", "load"] {
        serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let seconds = arguments
        .first()
        .map_or(Ok(10), |argument| argument.parse::<u32>())?;
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let last = (0..1024)
        .rev()
        .find(|&cpu| allowed.is_set(cpu))
        .ok_or("no CPU below 1024 may be used")?;
    let cpus = CpuSet::single(CpuId(last as u32));
    println!("CPU {last}, {seconds} seconds each, percent of the CPU");
    println!("asked   mean    worst second off by   its own worst   waited for the CPU   given up");
    let mut off = false;
    for share in SHARES {
        let load = Load::start(&std::env::current_exe()?, &cpus, share, PERIOD_S, false)?;
        let pid = load.pids()[0];
        let (first, mut worst) = (Account::of(pid)?, 0.0f64);
        let mut before = first;
        for _ in 0..seconds {
            std::thread::sleep(Duration::from_secs(1));
            let now = Account::of(pid)?;
            worst = worst.max((now.share_since(before) - share).abs());
            before = now;
        }
        let report = load.stop()?;
        let waited = 100.0 * (before.waited - first.waited) / (before.at - first.at).as_secs_f64();
        println!(
            "{share:>5} {:>7.3} {worst:>12.3} {:>22} {waited:>16.2} {:>17.3} s",
            before.share_since(first),
            report.cpus[0]
                .worst_second_off
                .map_or("-".to_owned(), |off| format!("{off:.3}")),
            report.cpus[0].given_up_s,
        );
        off |= worst > ACCURACY;
    }
    Ok(if off {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What the kernel says of a process at some moment, in seconds: its clock, which is brought up to date when it is read,
/// and how long it waited for a CPU (Documentation/scheduler/sched-stats.rst).
#[derive(Clone, Copy)]
struct Account {
    at: Instant,
    used: f64,
    waited: f64,
}

impl Account {
    fn of(pid: i32) -> Result<Self, Problem> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
        let waited: f64 = text
            .split_whitespace()
            .nth(1)
            .ok_or("schedstat is short")?
            .parse()?;
        let (mut clock, mut time) = (
            0,
            libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
        );
        // SAFETY: both calls only write to variables of this function.
        let failed = unsafe {
            libc::clock_getcpuclockid(pid, &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        if failed {
            return Err("the load's clock cannot be read".into());
        }
        Ok(Self {
            at: Instant::now(),
            used: time.tv_sec as f64 + time.tv_nsec as f64 / 1e9,
            waited: waited / 1e9,
        })
    }

    fn share_since(self, before: Self) -> f64 {
        100.0 * (self.used - before.used) / (self.at - before.at).as_secs_f64()
    }
}
