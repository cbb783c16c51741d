//! Guests in simulated time: what a guest measures follows from the instructions it executes, whatever the host does meanwhile.
//!
//! Needs QEMU 9.1 or newer and a cached x86-64 kernel; without them it says so and passes. `cargo test -p nearfar --test guest
//! time:: -- --nocapture` prints the figures.

use std::collections::BTreeMap;
use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_machine::CpuId;
use nearfar_proc::affinity;
use serde_json::Value;

use crate::guests;

/// A guest of eight vCPUs on a host of fewer.
const OPTIONS: [&str; 4] = ["--scale", "cpus=4,memory=512M", "--time", "simulated"];
const WINDOW: Duration = Duration::from_millis(4);
/// The kernel of a guest works now and then, so the best of some windows counts.
const ROUNDS: usize = 3;
/// Loops of a thread between two looks at the clock.
const LOOPS: u64 = 1000;

/// The most loops of one thread, and of all, by the number of threads.
type Figures = BTreeMap<u64, (u64, u64)>;

/// What the part prints: the number of threads, loops of the best, and of all.
fn figures() -> Figures {
    let output = guests::part("two-node", &OPTIONS, "time::inside");
    let line = |line: &str| {
        let words: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
        let [threads, best, all] = words?.try_into().ok()?;
        Some((threads, best, all))
    };
    let mut figures = Figures::new();
    for (threads, best, all) in output.lines().filter_map(line) {
        let known = figures.entry(threads).or_default();
        *known = (known.0.max(best), known.1.max(all));
    }
    figures
}

#[test]
fn private_work_scales_with_the_cpus_of_the_guest_also_on_a_busy_host() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let idle = figures();
    let is_over = AtomicBool::new(false);
    let busy = thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let busy = figures();
        is_over.store(true, Ordering::Relaxed);
        busy
    });
    assert_eq!(idle.keys().collect::<Vec<_>>(), [&1, &2, &4, &8]);
    let one = idle[&1].0 as f64;
    for (threads, (best, all)) in idle.into_iter().chain(busy) {
        let (best, all) = (best as f64 / one, all as f64 / (one * threads as f64));
        assert!((best - 1.0).abs() < 0.005, "{threads}: {best}");
        assert!((0.95..1.005).contains(&all), "{threads}: {all}");
    }
}

/// Lets simulated time begin and end some times, for moments in which most CPUs are idle, and prints the clock each time.
const BEGIN_AND_END: &str = r#"
    cd /run/nearfar-lab/pipe
    ask() {
        mkfifo answer.$$
        echo "ask $$ time $1" > link
        read -r line < answer.$$
        rm answer.$$
        echo "$line $(cut -d ' ' -f 1 /proc/uptime)"
    }
    for round in 1 2 3 4; do ask simulated; ask host; done
"#;

#[test]
fn a_loop_that_waits_for_a_line_is_not_executed_until_another_stores_to_it() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts.json");
    let options = ["--delay", "auto", "--counts", counts.to_str().unwrap()];
    let output = guests::part(
        "two-node",
        &[&OPTIONS[..], &options].concat(),
        "time::waiting",
    );
    let seen_ns = output
        .lines()
        .filter_map(|line| line.strip_prefix("seen ")?.parse::<u64>().ok());
    // Some are interrupted just then. Without a store a line would be looked at every 20 us.
    let mut seen_ns: Vec<u64> = seen_ns.collect();
    seen_ns.sort();
    assert_eq!(seen_ns.len(), WAITS * WAITING.len());
    let median_ns = seen_ns[seen_ns.len() / 2];
    assert!(median_ns < 5000, "{seen_ns:?}");
    let counts: Value = serde_json::from_slice(&std::fs::read(&counts).unwrap()).unwrap();
    let accesses = |cpu: usize| counts["vcpus"][cpu]["accesses"].as_u64().unwrap();
    // They have done other things as well. Executed, each 47 ns would have been a load: 4 million.
    let least = WAITING.map(accesses).into_iter().min().unwrap();
    println!("{median_ns} ns; {least} accesses");
    assert!(least < 2_000_000, "{least}");
}

/// Also on CPUs that were idle while time was simulated.
#[test]
fn clocks_go_on_when_simulated_time_begins_and_ends() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let options = ["--scale", "cpus=2,memory=512M", "--time", "simulated"];
    let text = guests::script("queues-on-node-2", &options, BEGIN_AND_END);
    let uptime_s = |line: &str| -> f64 { line.strip_prefix("ok ").unwrap().parse().unwrap() };
    let uptimes_s: Vec<f64> = text.lines().map(uptime_s).collect();
    assert_eq!(uptimes_s.len(), 8);
    assert!(uptimes_s.is_sorted(), "{uptimes_s:?}");
    // The guest has been up for some seconds, and the command takes some.
    assert!(uptimes_s[7] < 300.0, "{uptimes_s:?}");
}

/// Reads of 4 KiB, one after the other, and what they take together.
const READS: u32 = 200;

#[test]
fn a_disk_answers_after_its_time() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    for disk_us in [20, 100] {
        let time = format!("simulated,disk={disk_us}000");
        let options = ["--scale", "cpus=2,memory=512M", "--time", &time];
        let read = format!("dd if=/dev/nvme0n1 of=/dev/null bs=4k count={READS} iflag=direct 2>&1");
        let script = format!("{read}; {read}");
        let text = guests::script("queues-on-node-2", &options, &script);
        let took_s = |line: &str| -> Option<f64> {
            let (_, took) = line.split_once(" copied, ")?;
            took.split(' ').next()?.parse().ok()
        };
        let took: Vec<f64> = text.lines().filter_map(took_s).collect();
        // The first one also reads the program. The rest is the kernel's own work, some 6 us each.
        let each_us = took[1] * 1e6 / f64::from(READS);
        let disk_us = f64::from(disk_us);
        assert!(
            (disk_us..disk_us + 12.0).contains(&each_us),
            "{disk_us}: {each_us}"
        );
    }
}

/// What the kernel prints about clocks and CPUs that it no longer trusts (kernel/time, kernel/rcu/tree_stall.h, kernel/watchdog.c,
/// kernel/hung_task.c).
const COMPLAINTS: [&str; 6] = [
    "as unstable",
    "clocksource: timekeeping watchdog",
    "hrtimer: interrupt took",
    "detected stall",
    "soft lockup",
    "blocked for more than",
];

#[test]
fn five_idle_minutes_take_a_fraction_and_the_kernel_has_no_complaint() {
    idle(300);
}

/// In the slow tier.
#[test]
fn an_idle_hour_takes_no_hour_and_the_kernel_has_no_complaint() {
    idle(3600);
}

fn idle(seconds: u32) {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let options = [OPTIONS[0], OPTIONS[1], "--time", "simulated,idle=jump"];
    // What it said while it booted, in the time of a host that may be busy, is not judged.
    let script =
        format!("dmesg -c >/dev/null; sleep {seconds}; cut -d ' ' -f 1 /proc/uptime; dmesg");
    let text = guests::script("two-node", &options, &script);
    let uptime_s: f64 = text.lines().next().unwrap().parse().unwrap();
    assert!(uptime_s > seconds.into(), "{uptime_s}");
    for complaint in COMPLAINTS {
        assert!(!text.contains(complaint), "{complaint}");
    }
}

/// In a guest: how many loops 1, 2, 4 and 8 threads do in the window, each on a CPU of its own; and sleeps end when they are due.
#[test]
#[ignore = "runs in a guest"]
fn inside() {
    for threads in [1, 2, 4, 8].repeat(ROUNDS) {
        let start = Barrier::new(threads);
        let loops = |cpu: usize| {
            affinity::pin(CpuId(cpu as u32)).unwrap();
            // Its code comes from files of the host, which take the host's time.
            loops_for(WINDOW / 10);
            start.wait();
            loops_for(WINDOW)
        };
        let done: Vec<u64> = thread::scope(|scope| {
            let loops = &loops;
            let of_cpu = |cpu| scope.spawn(move || loops(cpu));
            let threads: Vec<_> = (0..threads).map(of_cpu).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        let best = done.iter().max().unwrap();
        println!("{threads} {best} {}", done.iter().sum::<u64>());
    }
    for ms in [1, 5, 20] {
        let (asked, started) = (Duration::from_millis(ms), Instant::now());
        thread::sleep(asked);
        let slept = started.elapsed();
        assert!(
            slept >= asked && slept < asked + Duration::from_millis(1),
            "{slept:?}"
        );
    }
}

/// CPUs that wait while the first works for 40 ms, and how often.
const WAITING: [usize; 3] = [5, 6, 7];
const WAITS: usize = 5;

/// In a guest: how long after a store the threads see it that wait for it.
#[test]
#[ignore = "runs in a guest"]
fn waiting() {
    /// What else is in the line is stored to.
    #[repr(align(256))]
    struct OwnLine(AtomicBool);
    // On the stack it would be in a huge page.
    static GO: [OwnLine; WAITS] = [const { OwnLine(AtomicBool::new(false)) }; WAITS];
    // To move it to the threads' node takes 800 us.
    std::fs::write("/proc/sys/kernel/numa_balancing", "0").unwrap();
    let start = Barrier::new(WAITING.len() + 1);
    let wait = |cpu: usize| {
        affinity::pin(CpuId(cpu as u32)).unwrap();
        let wait = |go: &OwnLine| {
            start.wait();
            wait_for(&go.0);
            Instant::now()
        };
        GO.each_ref().map(wait)
    };
    thread::scope(|scope| {
        let wait = &wait;
        let threads = WAITING.map(|cpu| scope.spawn(move || wait(cpu)));
        affinity::pin(CpuId(0)).unwrap();
        let stored = GO.each_ref().map(|go| {
            start.wait();
            loops_for(Duration::from_millis(40));
            let stored = Instant::now();
            go.0.store(true, Ordering::Release);
            // Where no vCPU does anything else none waits.
            loops_for(Duration::from_micros(100));
            stored
        });
        for thread in threads {
            for (seen, stored) in thread.join().unwrap().iter().zip(stored) {
                let seen = seen.saturating_duration_since(stored);
                println!("seen {}", seen.as_nanos());
            }
        }
    });
}

/// Without an access to any other memory, which a build without optimisation has.
fn wait_for(flag: &AtomicBool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it loads the byte that is borrowed, until that is not 0.
    unsafe {
        std::arch::asm!(
            "2:",
            "cmp byte ptr [{flag}], 0",
            "jne 3f",
            "pause",
            "jmp 2b",
            "3:",
            flag = in(reg) flag.as_ptr(),
            options(nostack),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    while !flag.load(Ordering::Acquire) {
        spin_loop();
    }
}

/// How many loops this thread does in such a time.
fn loops_for(window: Duration) -> u64 {
    let (started, mut loops) = (Instant::now(), 0u64);
    while started.elapsed() < window {
        for _ in 0..LOOPS {
            loops = black_box(loops + 1);
        }
    }
    (loops as f64 * window.as_secs_f64() / started.elapsed().as_secs_f64()) as u64
}
