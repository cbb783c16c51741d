//! The examples as processes that can be killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nearfar_change::Plan;

use super::examples::example;

/// Writes the plan outside the tree.
pub fn plan_file(directory: &Path, plan: &Plan) -> PathBuf {
    let file = directory.join("plan.json");
    std::fs::write(&file, serde_json::to_vec(plan).unwrap()).unwrap();
    file
}

/// Runs the example to its end or its death at a step.
pub fn run(arguments: &[&Path], die_at: Option<u64>) -> Output {
    let mut command = Command::new(example("in_tree"));
    command.args(arguments);
    if let Some(step) = die_at {
        command.env("DIE_AT", step.to_string());
    }
    command.output().unwrap()
}
