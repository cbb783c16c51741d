//! UEFI firmware for arm64 guests: without it they get a device tree, which cannot say on which node a host bridge is.

use std::path::{Path, PathBuf};

use crate::arch::Arch;

/// Where distributions put QEMU's image for `-bios` (Debian, Fedora, Arch).
const IMAGES: [&str; 3] = [
    "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    "/usr/share/edk2/aarch64/QEMU_EFI.fd",
    "/usr/share/edk2-armvirt/aarch64/QEMU_EFI.fd",
];
/// EDK2 of this release was seen to work. That of 2022.11 tells the kernel of its flash as if it were memory; such memory is on
/// no node, and the kernel (`memblock_validate_numa_coverage`) then puts everything on one.
const WORKS_SINCE: (u32, u32) = (2025, 2);
/// How the builds of Debian and its derivatives carry their release: in the paths of debugging information.
const MARK: &[u8] = b"/edk2-";

/// The installed image that guests of an architecture want; `None` where they want none, or there is none that works.
pub fn find(arch: Arch) -> Option<PathBuf> {
    let images = match arch {
        Arch::Aarch64 => &IMAGES[..],
        Arch::X86_64 | Arch::Powerpc64le => &[],
    };
    images
        .iter()
        .map(Path::new)
        .find(|image| works(image))
        .map(Path::to_path_buf)
}

/// Whether an image is known to work or of unknown age.
pub fn works(image: &Path) -> bool {
    std::fs::read(image)
        .is_ok_and(|content| release(&content).is_none_or(|release| release >= WORKS_SINCE))
}

/// Year and month of an image's EDK2.
fn release(content: &[u8]) -> Option<(u32, u32)> {
    let at = content
        .windows(MARK.len())
        .position(|window| window == MARK)?
        + MARK.len();
    let text = std::str::from_utf8(content.get(at..at + "2025.02".len())?).ok()?;
    let (year, month) = text.split_once('.')?;
    Some((year.parse().ok()?, month.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_paths_of_debugging_information() {
        assert_eq!(
            release(b"\0\x7f/build/edk2-2022.11/Build/ArmVirtQemu"),
            Some((2022, 11))
        );
        for odd in [
            &b""[..],
            b"/edk2-",
            b"/edk2-2025.0",
            b"/edk2-stable2025",
            b"/edk2-\xff\xff\xff\xff.02",
        ] {
            assert_eq!(release(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn an_image_that_breaks_nodes_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let image = |text: &str| {
            let path = folder.path().join("QEMU_EFI.fd");
            std::fs::write(&path, text).unwrap();
            path
        };
        assert!(!works(&image("/b/edk2-2022.11/x")));
        assert!(works(&image("/b/edk2-2025.02/x")));
        assert!(works(&image("of unknown age")));
        assert!(!works(&folder.path().join("missing")));
    }
}
