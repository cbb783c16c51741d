//! A regression that is there and one that is not: `compare` of runs of `bench latency` in guests whose far memory is 5 % slower, and
//! in two equal ones.
//!
//! Needs QEMU 8.2.4 or newer, a cached x86-64 kernel and the plugin that `cargo build` makes; without them it says so and passes.
//! `cargo test -p nearfar --test guest_compare -- --nocapture` prints the comparisons.

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

/// The store of a run in a guest in which far memory takes this long.
fn measured(directory: &Path, label: &str, far_ns: u32) -> PathBuf {
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
    command.args([
        "--from",
        "0",
        "--samples",
        "24",
        "--budget",
        "5",
        "--buffer",
        "4M",
    ]);
    command.args(["--label", label, "--store", "/results/runs.db"]);
    let output = guests::output(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    results.join("runs.db")
}

/// The exit code and the answer of a comparison that fails on a regression.
fn compared(a: &str, b: &str) -> (Option<i32>, String) {
    let output = Command::new(NEARFAR)
        .arg("compare")
        .args([a, b])
        .args(["--across", "emulation", "--fail-on", "regression=2%"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

/// Whether the far cell is worse in the slower guest, and nothing is in the equal one.
fn is_right() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let guests = [("before", FAR_NS), ("equal", FAR_NS), ("after", SLOWER_NS)];
    let mut runs = guests.map(|_| Vec::new());
    for boot in 1..=BOOTS {
        for (runs, (name, far_ns)) in runs.iter_mut().zip(guests) {
            let store = measured(directory.path(), &format!("{name}-{boot}"), far_ns);
            runs.push(format!("{}:1", store.display()));
        }
    }
    let [before, equal, after] = runs.map(|runs| runs.join(","));
    let (code, text) = compared(&before, &equal);
    let is_alike = code == Some(0) && !text.contains("worse");
    assert!(
        !text.contains("differs:"),
        "two equal guests are made alike: {text}"
    );
    let (code, text) = compared(&before, &after);
    assert!(text.contains("emulation delays.pairs"), "{text}");
    assert!(
        !text.contains("emulation label"),
        "said twice in other words: {text}"
    );
    // A row begins with the memory's node.
    let is_far = |line: &str| line.trim_start().starts_with("1 ");
    let mut worse = text.lines().filter(|line| line.ends_with(" worse"));
    let is_found = worse.any(is_far);
    is_alike && code == Some(1) && is_found
}

#[test]
fn five_percent_are_found_between_guests_and_nothing_is_between_equal_ones() {
    if guests::skipped() {
        return;
    }
    if let Err(error) = Qemu::find(nearfar_lab::Arch::X86_64).and_then(|it| delay::find_plugin(&it))
    {
        return println!("skipped: guests: {error}");
    }
    let _turn = guests::turn();
    let first_right = (1..=ATTEMPTS).find(|_| is_right());
    println!("right in attempt {first_right:?}");
    assert!(first_right.is_some(), "not in {ATTEMPTS} attempts");
}
