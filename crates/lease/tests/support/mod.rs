//! Examples as processes that can be killed, of whichever package includes this file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
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
