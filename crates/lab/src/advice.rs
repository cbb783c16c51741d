//! The commands that bring what is missing: `lab doctor` and the errors of `lab run` take them from here.

use crate::arch::Arch;
use crate::doctor::Installer;
use crate::kernels::Series;
use crate::packages::sources::Archive;
use crate::qemu;

/// Installs QEMU for guests of an architecture; where the release's own is known to be too old for the delays, the newer
/// one. `None` where packages are not installed by apt.
pub(crate) fn install_qemu(installer: &Installer, arch: Arch) -> Option<String> {
    // Debian 12 has 7.2; later releases have 10.0 and newer.
    let is_old = |archive: &Archive| archive.codename == "bookworm";
    let newer = installer
        .archive
        .as_ref()
        .is_ok_and(is_old)
        .then(|| newer_qemu(installer, arch))
        .flatten();
    newer.or_else(|| installer.install(qemu::package(arch)))
}

/// Installs a QEMU newer than the release's own, for plugins and the devices it lacks.
pub(crate) fn newer_qemu(installer: &Installer, arch: Arch) -> Option<String> {
    installer.install_newer(qemu::package(arch))
}

/// Fetches a kernel of the distribution.
pub fn get_kernel(series: Series, arch: Arch) -> String {
    let option = if Arch::host() == Some(arch) {
        String::new()
    } else {
        format!(" --arch {arch}")
    };
    format!("nearfar lab kernels get {series}{option}")
}

/// Fetches what the tests use, and what guests of other architectures need to run this host's programs.
pub(crate) const GET_ALL: &str = "nearfar lab kernels get --all";
