//! Kernels for guests: distribution kernels in a cache, or one of the user's own.

use std::path::PathBuf;

use serde::Serialize;

use crate::arch::Arch;
use crate::error::LabError;

/// A kernel that can be booted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Kernel {
    /// For which guests.
    pub arch: Arch,
    /// Its release, as `uname -r` says it.
    pub release: String,
    /// The image QEMU loads (`vmlinuz`, `Image`, `vmlinux`).
    pub image: PathBuf,
    /// The folder with `modules.dep` (`.../lib/modules/RELEASE`); `None` for a kernel without modules.
    pub modules: Option<PathBuf>,
}

/// What a user writes for a kernel: a series of the distribution (`6.12`), a path to an image or a build tree; nothing for the newest
/// cached series.
pub fn find(spec: Option<&str>, arch: Arch) -> Result<Kernel, LabError> {
    let spec = spec.unwrap_or("any").to_owned();
    Err(LabError::Kernel { spec, arch, problem: "not written yet".to_owned() })
}
