//! How many instructions of a guest the host executes in a second: in simulated time, without and with the model of memory, in
//! the host's time (QEMU's multi-threaded emulation), and with QEMU's own count of instructions (`-icount`), in turn in one run.
//!
//! ```text
//! make bench
//! ```
//!
//! In the guest, so many threads execute a loop of known length, each on a CPU of its own: this very program, with `inside` as its first
//! argument. What is counted is the host's time between two lines that it prints, before and after. Loops that miss every cache follow,
//! with the model only: what a line of theirs takes the host.

use std::fs::Permissions;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use nearfar_loops::{access, chase};
use nearfar_machine::CpuId;
use nearfar_proc::affinity;

mod measured;

use measured::{Contender, Spread, beside_us, print_goal, race};

/// Busy vCPUs, and those of the guest; the least instructions per second of the host, in millions, of the first.
const GUESTS: [(u64, &str, &str); 3] = [
    (1, "node:2 core:4", "1 of 8 vCPUs busy"),
    (4, "node:2 core:4", "4 of 8 vCPUs busy"),
    (4, "node:2 core:48", "4 of 96 vCPUs busy"),
];
/// Of each thread. A load in eleven, of an array that the caches hold.
const INSTRUCTIONS: u64 = 44_000_000;
const INSTRUCTIONS_OF_A_TURN: u64 = 11;
/// What each thread does so often with a line, by how many threads.
const LINES: [(&str, u64, u64); 3] = [
    ("stream", 1, 1 << 23),
    ("chase", 1, 1 << 21),
    ("contended", 4, 1 << 18),
];
/// Words of a buffer four times as large as the modelled cache, and of a line.
const WORDS: usize = 4 << 20;
const LINE_WORDS: usize = 8;
/// Most that a guest of 96 vCPUs takes, compared with one of 8, for the same work.
const MAX_RATIO: f64 = 1.3;
/// Nanoseconds of the host for a simulated instruction, without and with the model of memory: 80 and 40 million a second.
const MOST_NS: [f64; 2] = [12.5, 25.0];

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("inside") => {
            let busy = arguments.next().and_then(|it| it.parse().ok());
            inside(busy.unwrap_or(1), &arguments.next().unwrap_or_default())
        }
        rounds => outside(rounds.and_then(|it| it.parse().ok()).unwrap_or(5)),
    }
}

fn outside(rounds: usize) -> io::Result<()> {
    let nearfar = &beside_us("nearfar")?;
    let counting = counting_qemu()?;
    let path = std::env::var("PATH").unwrap_or_default();
    let with_counting = format!("{}:{path}", counting.path().display());
    let ways: [(&str, &[&str], &str); 4] = [
        ("host's time", &["--accel", "tcg"], &path),
        ("-icount", &["--accel", "tcg", "--cold"], &with_counting),
        ("simulated", &["--time", "simulated"], &path),
        (
            "with --delay auto",
            &["--time", "simulated", "--delay", "auto"],
            &path,
        ),
    ];
    println!(
        "nanoseconds of the host for an instruction of the guest, {rounds} rounds after one warm-up, median (lowest to highest)\n"
    );
    let mut small = None;
    for (busy, machine, what) in GUESTS {
        let mut contenders: Vec<_> = ways
            .iter()
            .map(|&(name, options, path)| {
                Contender::new(name, move || {
                    let mut command = Command::new(nearfar);
                    command.env("PATH", path);
                    seconds(command, machine, options, busy, "instructions")
                })
            })
            .collect();
        race(&mut contenders, rounds, &mut |text| println!("{text}"));
        println!("{what}");
        let instructions = (INSTRUCTIONS * busy) as f64;
        let ns = |costs: &[f64]| Spread::of(costs.iter().map(|it| it * 1e9 / instructions));
        for contender in contenders.iter().filter(|it| !it.costs.is_empty()) {
            println!(
                "  {:20} {}",
                contender.name,
                ns(&contender.costs).with_unit("ns")
            );
        }
        let [.., simulated, modelled] = &contenders[..] else {
            return Ok(());
        };
        if simulated.costs.is_empty() || modelled.costs.is_empty() {
            continue;
        }
        if busy == 1 {
            let [most, most_modelled] = MOST_NS;
            print_goal(
                "host time of a simulated instruction",
                &ns(&simulated.costs),
                "ns",
                most,
            );
            let what = "host time of a simulated instruction with delays";
            print_goal(what, &ns(&modelled.costs), "ns", most_modelled);
        } else if let Some(small) = small.replace(simulated.costs.clone()) {
            let ratios = simulated
                .costs
                .iter()
                .zip(&small)
                .map(|(large, small)| large / small);
            let what = "time of 4 busy vCPUs of 96, by that of 4 of 8";
            print_goal(what, &Spread::of(ratios), "x", MAX_RATIO);
        }
    }
    let (_, with_model, _) = ways[3];
    for (work, busy, lines) in LINES {
        let mut contenders = [Contender::new(work, || {
            let command = Command::new(nearfar);
            seconds(command, GUESTS[0].1, with_model, busy, work)
        })];
        race(&mut contenders, rounds, &mut |text| println!("{text}"));
        let [contender] = &contenders;
        if !contender.costs.is_empty() {
            let ns = contender
                .costs
                .iter()
                .map(|it| it * 1e9 / (lines * busy) as f64);
            println!(
                "a line of {work}, {busy} vCPUs: {}",
                Spread::of(ns).with_unit("ns")
            );
        }
    }
    Ok(())
}

/// A folder with a program of QEMU's name that runs QEMU with one count of instructions for all CPUs, half a nanosecond each, in turns of
/// one thread. The lab has no such guests.
fn counting_qemu() -> io::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("qemu-system-x86_64");
    let script = "#!/bin/bash\nexec -a qemu-system-x86_64 \"$(PATH=${PATH#*:} command -v qemu-system-x86_64)\" \
                  \"${@/tcg,thread=multi/tcg,thread=single}\" ${2:+-icount shift=1,sleep=off}\n";
    std::fs::write(&program, script)?;
    std::fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// The host's time for the loops, in seconds.
fn seconds(
    mut command: Command,
    machine: &str,
    options: &[&str],
    busy: u64,
    work: &str,
) -> io::Result<f64> {
    command.args(["lab", "run", "--machine", machine, "--scale", "memory=512M"]);
    command
        .args(options)
        .arg("--")
        .arg(std::env::current_exe()?);
    command
        .args(["inside", &busy.to_string(), work])
        .stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
    let begun = lines.next().transpose()?;
    let start = Instant::now();
    let ended = lines.next().transpose()?;
    let seconds = start.elapsed().as_secs_f64();
    let output = child.wait_with_output()?;
    match (begun.as_deref(), ended.as_deref()) {
        (Some("begun"), Some("ended")) => Ok(seconds),
        _ => Err(io::Error::other(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

fn inside(busy: u64, work: &str) -> io::Result<()> {
    let say = |line: &str| {
        println!("{line}");
        io::stdout().flush()
    };
    let lines = LINES.iter().find(|(name, ..)| *name == work);
    let lines = lines.map_or(0, |(.., lines)| *lines);
    let never = AtomicBool::new(false);
    let mut words = vec![1; if lines == 0 { 0 } else { WORDS }];
    let own_lines = (words.len() / LINE_WORDS) as u32;
    if let Some(next) = chase::cycle(own_lines, &mut fastrand::Rng::with_seed(1), &never) {
        chase::link(&mut words, &next, LINE_WORDS, &never);
    }
    let contended = AtomicU64::new(0);
    let do_it = |cpu: u64| {
        affinity::pin(CpuId(u32::try_from(cpu).unwrap_or(0)))?;
        match work {
            "stream" => (0..lines / u64::from(own_lines)).for_each(|_| {
                std::hint::black_box(access::read(&words));
            }),
            "chase" => _ = chase::follow(&words, 0, lines),
            "contended" => (0..lines).for_each(|_| _ = contended.fetch_add(1, Ordering::Relaxed)),
            _ => execute(INSTRUCTIONS / INSTRUCTIONS_OF_A_TURN),
        }
        Ok(())
    };
    say("begun")?;
    std::thread::scope(|threads| {
        let started: Vec<_> = (0..busy)
            .map(|cpu| threads.spawn(move || do_it(cpu)))
            .collect();
        let ended = started.into_iter().map(|it| it.join().unwrap_or(Ok(())));
        ended.collect::<io::Result<()>>()
    })?;
    say("ended")
}

/// Turns of eleven instructions, one of which loads.
#[cfg(target_arch = "x86_64")]
fn execute(turns: u64) {
    let array = [0u64; 64];
    // SAFETY: loads the first word of the array, and changes no memory.
    unsafe {
        core::arch::asm!(
            "2:",
            "mov {loaded}, [{array}]",
            "add {sum}, {loaded}",
            "add {sum}, 1",
            "xor {sum}, 3",
            "add {sum}, 5",
            "xor {sum}, 7",
            "add {sum}, 9",
            "xor {sum}, 11",
            "add {sum}, 13",
            "dec {turns}",
            "jnz 2b",
            turns = inout(reg) turns => _,
            array = in(reg) array.as_ptr(),
            loaded = out(reg) _,
            sum = inout(reg) 0u64 => _,
            options(nostack, readonly)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn execute(turns: u64) {
    (0..turns).for_each(|turn| _ = std::hint::black_box(turn));
}
