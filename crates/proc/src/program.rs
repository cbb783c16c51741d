//! Programs by name.

use std::env;
use std::path::PathBuf;

use rustix::fs::{Access, access};

/// The file of a program: a name without a slash is looked for in the directories of `PATH`.
///
/// # Errors
/// That there is none that can be executed.
pub fn find(name: &str) -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> = match name.contains('/') {
        true => vec![name.into()],
        false => env::split_paths(&path)
            .map(|directory| directory.join(name))
            .collect(),
    };
    let is_program = |file: &&PathBuf| file.is_file() && access(*file, Access::EXEC_OK).is_ok();
    let found = candidates.iter().find(is_program).cloned();
    found.ok_or_else(|| {
        let reason = match (
            candidates.iter().any(|file| file.exists()),
            name.contains('/'),
        ) {
            (true, _) => "it is not a program that may be executed",
            (false, true) => "there is no such program",
            (false, false) => "there is no such program in PATH",
        };
        format!("cannot run {name}: {reason}")
    })
}
