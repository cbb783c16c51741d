//! `bench command` in guests of simulated time: programs whose best placement is known, and one that places itself.
//!
//! The programs are ignored tests of this program, which the guest runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::guests;
use nearfar_machine::{CpuId, CpuSet};
use nearfar_proc::affinity;
use serde_json::Value;

/// Two nodes of four CPUs and a last-level cache, as a guest's CPUs show it; a node's memory and a link are slower than a stream of a CPU.
const MACHINE: &str = r#"
distances = [[10, 20], [20, 10]]
[[node]]
cpus = 4
memory = "384M"
package = 0
[[node]]
cpus = 4
memory = "384M"
package = 1
[[cache]]
level = 3
cpus = ["0-3", "4-7"]
[timing]
latency = [[80, 160], [160, 80]]
cache = "256K/16/5"
transfer = "40/40/190"
bandwidth = 8
link = 8
stream = 12
instruction = 0.1
sources = ["a machine of this test"]
"#;

/// What `bench command` prints for a test of this program.
fn printed(options: &str, test: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml");
    std::fs::write(&machine, MACHINE).unwrap();
    let time = ["--time", "simulated", "--delay", "auto"];
    let mut command = guests::lab_run(
        machine.to_str().unwrap(),
        &[&time[..], &guests::IN_TIME].concat(),
    );
    command
        .arg(guests::NEARFAR)
        .args("bench command --no-store --regex figure=([0-9.]+)".split(' '));
    command
        .args(options.split_whitespace())
        .arg("--")
        .arg(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        &format!("command::{test}"),
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    let output = guests::output(&mut command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn answer(options: &str, test: &str) -> Value {
    serde_json::from_str(&printed(&format!("--format json {options}"), test)).unwrap()
}

/// The best placement, where it is better than the first by more than chance, and the numactl command for it.
fn best(answer: &Value) -> Option<(String, String, String)> {
    let found = &answer["answer"];
    if found["best"].is_null() {
        return None;
    }
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let best = &found["best"];
    Some((
        text(&best["cpus"]),
        text(&best["memory"]),
        text(&found["commands"]["numactl"]),
    ))
}

#[test]
fn memory_of_the_own_node_is_best_for_dependent_loads() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let answer = answer(
        "--better lower --samples 6 --factor cpus=0 --factor memory=1,0",
        "loads_of_one_thread",
    );
    let (cpus, memory, numactl) = best(&answer).unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((cpus.as_str(), memory.as_str()), ("0", "0"));
    assert!(
        numactl.starts_with("numactl --cpunodebind=0 --membind=0 "),
        "{numactl}"
    );
    let change = answer["answer"]["steps"][0]["compared"]["change"]["value"]
        .as_f64()
        .unwrap();
    // 80 ns instead of 160, and what the program does besides.
    assert!((-0.5..-0.4).contains(&change), "{change}");
    let near: Vec<f64> = answer["summary"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| {
            let mut metrics = cell["metrics"].as_array().unwrap().iter();
            metrics.find(|it| it["metric"] == "near_share").unwrap()["median"]
                .as_f64()
                .unwrap()
        })
        .collect();
    assert!(near[0] < near[1], "{near:?}");
}

#[test]
fn a_run_that_is_not_where_it_was_put_is_no_sample() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let text = printed(
        "--better lower --samples 1 --factor cpus=0",
        "loads_on_a_cpu_of_its_own_choice",
    );
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("it sets its own affinity"), "{text}");
    assert!(
        text.contains("may run on CPUs 5, not only on 0-3"),
        "{text}"
    );
}

/// Of the placements that are proposed.
#[test]
fn each_program_has_the_placement_that_is_best_for_it() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let proposed = |better, test| best(&answer(&format!("--better {better} --samples 9"), test));
    let (cpus, memory, _) = proposed("lower", "loads_of_four_threads").unwrap();
    assert!(
        ["0", "1"].contains(&cpus.as_str()) && memory == "bind",
        "{cpus} {memory}"
    );
    let (cpus, memory, _) = proposed("higher", "streams_of_eight_threads").unwrap();
    assert_eq!((cpus.as_str(), memory.as_str()), ("all", "interleave"));
    let (cpus, ..) = proposed("lower", "line_handed_over").unwrap();
    assert!(["0", "1"].contains(&cpus.as_str()), "{cpus}");
    assert_eq!(proposed("lower", "arithmetic"), None);
}

const LINE_WORDS: usize = 8;

/// Runs this in threads, each with its number, and prints what the slowest took, in ns.
fn in_threads(count: u64, work: impl Fn(u64) + Send + Sync) -> f64 {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..count {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
    begun.elapsed().as_secs_f64() * 1e9
}

fn chase(words: &[u64], steps: u64, seed: u64) {
    let mut line = seed as usize;
    for _ in 0..steps {
        line = words[line * LINE_WORDS] as usize;
    }
    std::hint::black_box(line);
}

/// Lines in one cycle, touched by this thread: the multiplier is 1 more than a multiple of 4, the summand odd (Hull and Dobell, 1962).
fn cycle() -> Vec<u64> {
    const LINES: usize = 1 << 17;
    let mut words = vec![0; LINES * LINE_WORDS];
    for line in 0..LINES {
        words[line * LINE_WORDS] = ((line * 0x9e375 + 0x3779) % LINES) as u64;
    }
    words
}

fn loads(threads: u64, steps: u64) {
    let words = cycle();
    let ns = in_threads(threads, |thread| chase(&words, steps, thread * 1000));
    println!("figure={:.3}", ns / steps as f64);
}

#[test]
#[ignore = "part of memory_of_the_own_node_is_best_for_dependent_loads: runs in a guest"]
fn loads_of_one_thread() {
    loads(1, 60_000);
}

/// So many that the scheduler spreads the threads over the CPUs meanwhile.
#[test]
#[ignore = "part of each_program_has_the_placement_that_is_best_for_it: runs in a guest"]
fn loads_of_four_threads() {
    loads(4, 150_000);
}

#[test]
#[ignore = "part of a_run_that_is_not_where_it_was_put_is_no_sample: runs in a guest"]
fn loads_on_a_cpu_of_its_own_choice() {
    affinity::set(0, &CpuSet::single(CpuId(5))).unwrap();
    let words = cycle();
    // For several looks: while pages of this program are read from the host, simulated time passes as the host's does.
    let ns = in_threads(1, |thread| chase(&words, 2_000_000, thread));
    println!("figure={ns:.3}");
}

#[test]
#[ignore = "part of each_program_has_the_placement_that_is_best_for_it: runs in a guest"]
fn streams_of_eight_threads() {
    const LINES: usize = 1 << 18;
    let mut words: Vec<u64> = vec![0; LINES * LINE_WORDS];
    // This thread touches all.
    words
        .iter_mut()
        .step_by(LINE_WORDS)
        .for_each(|word| *word = 1);
    let ns = in_threads(8, |thread| {
        let part = words.len() / 8;
        let words = &words[thread as usize * part..][..part];
        std::hint::black_box(words.iter().step_by(LINE_WORDS).sum::<u64>());
    });
    assert_eq!(words[0], 1);
    println!("figure={:.3}", (LINES * 64) as f64 / ns);
}

#[test]
#[ignore = "part of each_program_has_the_placement_that_is_best_for_it: runs in a guest"]
fn line_handed_over() {
    const TURNS: u64 = 5000;
    let line = AtomicU64::new(0);
    let ns = in_threads(2, |thread| {
        for turn in 0..TURNS {
            while line.load(Ordering::Acquire) != 2 * turn + thread {
                std::hint::spin_loop();
            }
            line.store(2 * turn + thread + 1, Ordering::Release);
        }
    });
    println!("figure={:.3}", ns / TURNS as f64);
}

#[test]
#[ignore = "part of each_program_has_the_placement_that_is_best_for_it: runs in a guest"]
fn arithmetic() {
    // Timed within the thread: where it is made costs something.
    let ns = AtomicU64::new(0);
    in_threads(1, |seed| {
        let begun = Instant::now();
        let mut value = seed;
        for step in 0..500_000_u64 {
            value = std::hint::black_box(value.wrapping_mul(31).wrapping_add(step));
        }
        ns.store(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    });
    println!("figure={}", ns.into_inner());
}
