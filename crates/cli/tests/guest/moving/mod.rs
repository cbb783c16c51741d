//! `nearfar` in a guest, where it moves the memory of processes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::guests;

/// MB/s at which a move takes some seconds.
pub const SLOW: &str = "4";

/// Runs nearfar with the state directory behind its words; the answer and its exit code.
pub fn nearfar(state: &Path, words: &str) -> (Value, i32) {
    let output = run(state, words);
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = serde_json::from_str(&text).unwrap_or(Value::Null);
    (answer, output.status.code().unwrap())
}

pub fn run(state: &Path, words: &str) -> Output {
    let output = command(state, words).output().unwrap();
    println!(
        "# nearfar {words}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub fn command(state: &Path, words: &str) -> Command {
    let mut command = Command::new(guests::NEARFAR);
    command.args(words.split(' '));
    if !words.starts_with("plan") {
        command.arg("--state").arg(state);
    }
    command
}

pub fn begin() {
    assert!(
        guests::is_inside(),
        "this part moves memory between nodes: it runs in a guest"
    );
    std::fs::write("/proc/sys/kernel/numa_balancing", "0").unwrap();
}
