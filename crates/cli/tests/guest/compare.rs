//! `compare` of runs of `bench latency` in guests whose far memory is 5 % slower, and in two equal ones: which differences of the
//! guests it names, and that it finds the regression. The guests are in simulated time: other work on the host changes nothing.
//!
//! Needs QEMU 9.1 or newer, a cached x86-64 kernel and the plugin that `cargo build` makes; without them it says so and passes.
//! `cargo test -p nearfar --test guest compare:: -- --nocapture` prints the comparisons.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guests;
use crate::guests::NEARFAR;

/// What a far access takes, in nanoseconds, and 5 % more.
const FAR_NS: u32 = 200;
const SLOWER_NS: u32 = 210;
/// Runs in each guest.
const RUNS: u32 = 3;

/// Options of a comparison that fails on a regression.
const FAILS: &str = "--across emulation --fail-on regression=2%";

/// The store of the runs in a guest in which far memory takes this long.
fn measured(directory: &Path, label: &str, far_ns: u32) -> PathBuf {
    let results = directory.join(label);
    std::fs::create_dir(&results).unwrap();
    let options = [
        "--scale",
        "cpus=1,memory=512M",
        "--time",
        "simulated",
        "--delay",
        &format!("near=100,far={far_ns},cache=1M/16"),
        "--results",
        results.to_str().unwrap(),
    ];
    // A timer interrupt hits one sample of 80 and makes it half as long again: so many that no median is hit.
    let script = format!(
        "for run in $(seq {RUNS}); do $0 bench latency --what latency --from 0 --buffer 4M --samples 15 --budget 1 \
         --label {label} --store /tmp/runs.db || exit; done; cp /tmp/runs.db /results"
    );
    guests::script("two-node", &options, &script);
    results.join("runs.db")
}

/// The exit code, the answer and the errors of a comparison.
fn compared(sides: [&str; 2], options: &str) -> (Option<i32>, String, String) {
    let output = Command::new(NEARFAR)
        .arg("compare")
        .args(sides)
        .args(options.split_whitespace())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (text, errors) = (text(&output.stdout), text(&output.stderr));
    println!("{text}{errors}");
    (output.status.code(), text, errors)
}

/// What is said of the delays of two guests.
fn check_named(text: &str) {
    assert!(text.contains("emulation delays.pairs"), "{text}");
    assert!(
        !text.contains("emulation label"),
        "said twice in other words: {text}"
    );
}

/// A row begins with the memory's node.
fn is_of_memory(line: &str, node: u32) -> bool {
    line.trim_start().starts_with(&format!("{node} "))
}

#[test]
fn five_percent_are_found_between_guests_and_nothing_is_between_equal_ones() {
    if guests::skipped_in_simulated_time() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let guests = [("before", FAR_NS), ("equal", FAR_NS), ("after", SLOWER_NS)];
    let runs = guests.map(|(name, far_ns)| {
        let store = measured(directory.path(), name, far_ns);
        let run = |number| format!("{}:{number}", store.display());
        (1..=RUNS).map(run).collect::<Vec<_>>()
    });
    // How much slower far memory is, is not judged from one run a side: too few for that.
    let [before, equal, after] = [&runs[0][0], &runs[1][0], &runs[2][0]];
    let (code, text, _) = compared([before, equal], "");
    assert_eq!(code, Some(0), "two equal guests are made alike");
    assert!(!text.contains("differs:"), "{text}");
    let cells = text.lines().filter(|line| is_of_memory(line, 0)).count();
    assert_eq!(cells, text.lines().filter(|it| is_of_memory(it, 1)).count());
    assert!(cells > 0, "each pair of nodes is compared: {text}");
    let (code, _, errors) = compared([before, after], "");
    assert_eq!(code, Some(2), "a difference of the guests is refused");
    assert!(errors.contains("emulation delays.pairs"), "{errors}");
    let (code, text, _) = compared([before, after], "--across emulation");
    assert_eq!(code, Some(0));
    check_named(&text);

    let [before, equal, after] = runs.map(|runs| runs.join(","));
    let (code, text, _) = compared([&before, &equal], FAILS);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("worse"), "{text}");
    assert!(
        !text.contains("differs:"),
        "two equal guests are made alike: {text}"
    );
    let (code, text, _) = compared([&before, &after], FAILS);
    assert_eq!(code, Some(1), "{text}");
    check_named(&text);
    let mut worse = text.lines().filter(|line| line.ends_with(" worse"));
    assert!(worse.any(|line| is_of_memory(line, 1)), "{text}");
}
