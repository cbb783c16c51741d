//! `compare` of runs of `bench latency` in guests whose far memory is 5 % slower, and in two equal ones: which differences of the
//! guests it names, and, in the slow tier, whether it finds the regression.
//!
//! Needs QEMU 8.2.4 or newer, a cached x86-64 kernel and the plugin that `cargo build` makes; without them it says so and passes.
//! `cargo test -p nearfar --test guest compare:: -- --nocapture` prints the comparisons.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guests;
use crate::guests::NEARFAR;
use nearfar_lab::delay;
use nearfar_lab::qemu::Qemu;

/// What a far access takes, in nanoseconds, and 5 % more. As short as distances may be here, so that few samples are interrupted
/// where the host is busy.
const FAR_NS: u32 = 1000;
const SLOWER_NS: u32 = 1050;
/// Boots of each guest, in turns. A boot has effects of its own: where its memory lies, what else the host did.
const BOOTS: u32 = 3;
/// Other work on the host may disturb the boots of one side more than those of the other. A wrong verdict stays.
const ATTEMPTS: u32 = 2;

/// Options of a comparison that fails on a regression.
const FAILS: &str = "--across emulation --fail-on regression=2%";

/// The store of a run in a guest in which far memory takes this long, of at most so many samples and seconds.
fn measured(directory: &Path, label: &str, far_ns: u32, effort: [&str; 2]) -> PathBuf {
    let results = directory.join(label);
    std::fs::create_dir(&results).unwrap();
    let options = [
        "--scale",
        "cpus=1,memory=512M",
        "--delay",
        &format!("near=500,far={far_ns},cache=1M/16"),
        "--results",
        results.to_str().unwrap(),
    ];
    let mut command = guests::lab_run("two-node", &[&options[..], &guests::IN_TIME].concat());
    command.args([NEARFAR, "bench", "latency", "--what", "latency"]);
    let [samples, budget] = effort;
    command.args(["--from", "0", "--buffer", "4M"]);
    command.args(["--samples", samples, "--budget", budget]);
    command.args(["--label", label, "--store", "/results/runs.db"]);
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
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

/// What both tests see of the delays of two guests.
fn check_named(text: &str) {
    assert!(text.contains("emulation delays.pairs"), "{text}");
    assert!(
        !text.contains("emulation label"),
        "said twice in other words: {text}"
    );
}

/// Says why no guest can have delays here, if so.
fn lacks() -> bool {
    let plugin = Qemu::find(nearfar_lab::Arch::X86_64).and_then(|it| delay::find_plugin(&it));
    plugin
        .inspect_err(|error| println!("skipped: guests: {error}"))
        .is_err()
}

/// How much slower far memory is, is not judged: one run a side is too few for that.
#[test]
fn another_delay_is_named_and_equal_guests_do_not_differ() {
    if guests::skipped() || lacks() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str, far_ns| {
        let store = measured(directory.path(), name, far_ns, ["6", "1"]);
        format!("{}:1", store.display())
    };
    let before = run("before", FAR_NS);
    let (equal, after) = (run("equal", FAR_NS), run("after", SLOWER_NS));

    let (code, text, _) = compared([&before, &equal], "");
    assert_eq!(code, Some(0), "two equal guests are made alike");
    assert!(!text.contains("differs:"), "{text}");
    let cells = text.lines().filter(|line| is_of_memory(line, 0)).count();
    assert_eq!(cells, text.lines().filter(|it| is_of_memory(it, 1)).count());
    assert!(cells > 0, "each pair of nodes is compared: {text}");

    let (code, _, errors) = compared([&before, &after], "");
    assert_eq!(code, Some(2), "a difference of the guests is refused");
    assert!(errors.contains("emulation delays.pairs"), "{errors}");
    let (code, text, _) = compared([&before, &after], "--across emulation");
    assert_eq!(code, Some(0));
    check_named(&text);
}

/// A row begins with the memory's node.
fn is_of_memory(line: &str, node: u32) -> bool {
    line.trim_start().starts_with(&format!("{node} "))
}

/// Whether the far cell is worse in the slower guest, and nothing is in the equal one.
fn is_right() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let guests = [("before", FAR_NS), ("equal", FAR_NS), ("after", SLOWER_NS)];
    let mut runs = guests.map(|_| Vec::new());
    for boot in 1..=BOOTS {
        for (runs, (name, far_ns)) in runs.iter_mut().zip(guests) {
            let store = measured(
                directory.path(),
                &format!("{name}-{boot}"),
                far_ns,
                ["24", "5"],
            );
            runs.push(format!("{}:1", store.display()));
        }
    }
    let [before, equal, after] = runs.map(|runs| runs.join(","));
    let (code, text, _) = compared([&before, &equal], FAILS);
    let is_alike = code == Some(0) && !text.contains("worse");
    assert!(
        !text.contains("differs:"),
        "two equal guests are made alike: {text}"
    );
    let (code, text, _) = compared([&before, &after], FAILS);
    check_named(&text);
    let mut worse = text.lines().filter(|line| line.ends_with(" worse"));
    let is_found = worse.any(|line| is_of_memory(line, 1));
    is_alike && code == Some(1) && is_found
}

/// In the slow tier: latencies of eighteen guests are compared.
#[test]
fn five_percent_are_found_between_guests_and_nothing_is_between_equal_ones() {
    if guests::skipped() || lacks() {
        return;
    }
    let first_right = (1..=ATTEMPTS).find(|_| is_right());
    println!("right in attempt {first_right:?}");
    assert!(first_right.is_some(), "not in {ATTEMPTS} attempts");
}
