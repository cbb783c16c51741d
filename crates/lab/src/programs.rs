//! Finding programs.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// A program on `PATH`, or where the system keeps those for administrators, which users' `PATH`s leave out.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}
