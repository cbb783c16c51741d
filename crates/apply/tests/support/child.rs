//! The examples as processes that can be killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use nearfar_placement::change::Plan;

/// The binary of `in_tree`; `cargo test --test kill` alone does not build it.
pub fn in_tree() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| example("in_tree"))
}

/// Builds an example.
pub fn example(name: &str) -> PathBuf {
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
        "nearfar-apply",
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

/// Writes the plan beside the tree, not into it.
pub fn plan_file(directory: &Path, plan: &Plan) -> PathBuf {
    let file = directory.join("plan.json");
    std::fs::write(&file, serde_json::to_vec(plan).unwrap()).unwrap();
    file
}

/// Runs the example to its end or its death at a step.
pub fn run(arguments: &[&Path], die_at: Option<u64>) -> Output {
    let mut command = Command::new(in_tree());
    command.args(arguments);
    if let Some(step) = die_at {
        command.env("DIE_AT", step.to_string());
    }
    command.output().unwrap()
}
