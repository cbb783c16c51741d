//! UEFI firmware for arm64 guests: without it they get a device tree, which cannot say on which node a host bridge is.

use std::path::{Path, PathBuf};

use crate::arch::Arch;

/// Where distributions put QEMU's image for `-bios` (Debian, Fedora, Arch).
const IMAGES: [&str; 3] = [
    "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    "/usr/share/edk2/aarch64/QEMU_EFI.fd",
    "/usr/share/edk2-armvirt/aarch64/QEMU_EFI.fd",
];

/// The installed image that guests of an architecture want; `None` where they want none or there is none.
pub fn find(arch: Arch) -> Option<PathBuf> {
    let images = match arch {
        Arch::Aarch64 => &IMAGES[..],
        Arch::X86_64 | Arch::Powerpc64le => &[],
    };
    images.iter().map(Path::new).find(|image| image.is_file()).map(Path::to_path_buf)
}
