//! Examples as processes that can be killed, of whichever package includes this file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The program of an example, built when it is first asked for.
pub fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let program = built
        .entry(name.to_owned())
        .or_insert_with_key(|name| build(name));
    program.clone()
}

fn build(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples")
        .join(name);
    // `nearfar-suite` built them together with the tests. Cargo alone would build the dependencies a second time, with the
    // features that this package alone asks for.
    if std::env::var_os("NEARFAR_EXAMPLES_ARE_BUILT").is_some() {
        return binary;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = [
        "build",
        "--quiet",
        "--package",
        env!("CARGO_PKG_NAME"),
        "--example",
        name,
    ];
    let built = Command::new(cargo).args(build).output();
    // What a whole `cargo test` built before is good too, where there is no cargo or a crate is being edited.
    let good = built.is_ok_and(|it| it.status.success()) || binary.exists();
    assert!(
        good,
        "cargo build --example {name} does not make {}",
        binary.display()
    );
    binary
}

/// How many writes to files below a directory, other than journals, the command makes, and how many of them while a line of a
/// journal may not be on disk. `None` where strace is not there or may not trace.
#[allow(dead_code, reason = "each of two programs includes this file")]
pub fn writes_and_early_ones(command: &Command, below: &Path) -> Option<(usize, usize)> {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut strace = Command::new("strace");
    strace
        .args([
            "-f",
            "-y",
            "-qq",
            "-e",
            "trace=write,pwrite64,fdatasync,fsync",
            "-o",
        ])
        .arg(log.path())
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    let ended = strace.output().ok()?;
    let text = std::fs::read_to_string(log.path()).unwrap();
    if text.is_empty() {
        println!(
            "skipped: tools: strace: {}",
            String::from_utf8_lossy(&ended.stderr)
        );
        return None;
    }
    let (mut writes, mut early, mut is_pending) = (0, 0, false);
    // 4711  write(5</var/lib/nearfar/change-1.journal>, "...", 80) = 80
    for line in text.lines() {
        let call = line.split_whitespace().nth(1).unwrap_or_default();
        let Some((_, file)) = line.split_once('<') else {
            continue;
        };
        let file = file.split_once('>').map_or(file, |(file, _)| file);
        match (call.contains("write"), file.ends_with(".journal")) {
            (true, true) => is_pending = true,
            (false, true) => is_pending = false,
            (true, false) if Path::new(file).starts_with(below) => {
                writes += 1;
                early += usize::from(is_pending);
            }
            _ => {}
        }
    }
    Some((writes, early))
}
