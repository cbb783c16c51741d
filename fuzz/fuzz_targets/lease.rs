//! Journals of leases, as a crash or an attacker may leave them: each line gets its number, time and checksum, which fuzzing
//! would not find, and `@` is the directory of the leases, where `a` and `b` may be set. A journal of this boot may name
//! threads, whose masks are then set; its boot cannot be guessed.
#![no_main]
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nearfar_change::lease::Leases;
use serde_json::Value;

static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    std::fs::DirBuilder::new().mode(0o700).create(directory.path().join("state")).expect("a directory");
    directory
});

fuzz_target!(|text: &str| {
    let state = DIRECTORY.path().join("state");
    let outside: PathBuf = DIRECTORY.path().join("outside");
    for file in [&state.join("a"), &state.join("b"), &outside] {
        std::fs::write(file, "0").expect("a file");
    }
    let text = text.replace('@', state.to_str().expect("a name that is text"));
    let journal = state.join("lease-1-0.journal");
    std::fs::write(&journal, text.lines().enumerate().map(line).collect::<String>()).expect("a file");
    let recovered = Leases::at(state).recover();
    assert_eq!(recovered.is_ok(), !journal.exists(), "a journal that was not undone stays");
    assert_eq!(std::fs::read(outside).expect("a file"), b"0");
});

fn line((number, text): (usize, &str)) -> String {
    let text = match serde_json::from_str(text) {
        Ok(Value::Object(mut members)) => {
            members.entry("n").or_insert(number.into());
            members.entry("at_s").or_insert(0.into());
            Value::Object(members).to_string()
        }
        _ => text.to_owned(),
    };
    format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()))
}
