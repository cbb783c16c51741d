//! QEMU's `virt` for arm64, with UEFI firmware and without.
//!
//! UEFI hands the guest ACPI tables, which say on which node a host bridge is. Without it there is a device tree, which
//! knows one host bridge and not where it is: nodes, CPUs, memory and distances are there, devices are on no node.

use std::path::{Path, PathBuf};

use nearfar_machine::{Acceleration, RootBus};

use crate::arch::Arch;
use crate::design::MemoryRange;
use crate::design::board::{Board, MOST_BRIDGES, NodeNumbers, contiguous, ports};
use crate::design::hardware::Bridge;

/// See hw/arm/virt.c in QEMU. Version 3 of the interrupt controller: with 2 there are at most 8 CPUs.
const MACHINE: &str = "virt,gic-version=3";
/// Has atomic instructions, which cost less to emulate than exclusive loads and stores, and none of the pointer
/// authentication that makes `max` slow.
const CPU: &str = "neoverse-n1";
const MOST_CPUS: usize = 512;
/// QEMU wants clusters not to span nodes, so the nodes of a package are its clusters.
const SOCKET_PARTS: Option<&str> = Some("clusters");
/// Where memory starts.
const BASE: u64 = 1 << 30;

/// With UEFI firmware.
pub(super) struct Virt;

impl Board for Virt {
    fn machine(&self, _: Acceleration) -> &'static str {
        MACHINE
    }

    fn emulated_cpu(&self) -> &'static str {
        CPU
    }

    fn most_cpus(&self) -> usize {
        MOST_CPUS
    }

    fn socket_parts(&self) -> Option<&'static str> {
        SOCKET_PARTS
    }

    fn memory_map(&self, sizes: &[u64]) -> Vec<MemoryRange> {
        contiguous(BASE, sizes)
    }
}

/// With a device tree: all devices on ports of the first root bus.
pub(super) struct VirtDeviceTree;

impl Board for VirtDeviceTree {
    fn machine(&self, _: Acceleration) -> &'static str {
        MACHINE
    }

    fn emulated_cpu(&self) -> &'static str {
        CPU
    }

    fn most_cpus(&self) -> usize {
        MOST_CPUS
    }

    fn socket_parts(&self) -> Option<&'static str> {
        SOCKET_PARTS
    }

    fn memory_map(&self, sizes: &[u64]) -> Vec<MemoryRange> {
        contiguous(BASE, sizes)
    }

    fn node_numbers(&self) -> NodeNumbers {
        NodeNumbers::AsGiven
    }

    fn has_hmat(&self) -> bool {
        false
    }

    fn has_nodes_of_devices(&self) -> bool {
        false
    }

    fn most_bridges(&self) -> usize {
        1
    }

    fn most_devices(&self) -> usize {
        MOST_BRIDGES - 1
    }

    fn place(&self, bridges: &mut [Bridge]) -> bool {
        for bridge in bridges {
            bridge.root = RootBus { domain: 0, bus: 0 };
        }
        true
    }

    fn bridge(&self, bridge: &Bridge, index: usize) -> Vec<String> {
        ports(bridge, "pcie.0", 1, index)
    }
}

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
pub(crate) fn find_firmware(arch: Arch) -> Option<PathBuf> {
    let images = match arch {
        Arch::Aarch64 => &IMAGES[..],
        Arch::X86_64 | Arch::Powerpc64le => &[],
    };
    let image = images.iter().map(Path::new).find(|image| works(image));
    image.map(Path::to_path_buf)
}

/// Whether an image is known to work or of unknown age.
fn works(image: &Path) -> bool {
    let is_new = |content: Vec<u8>| release(&content).is_none_or(|it| it >= WORKS_SINCE);
    std::fs::read(image).is_ok_and(is_new)
}

/// Year and month of an image's EDK2.
fn release(content: &[u8]) -> Option<(u32, u32)> {
    let mut windows = content.windows(MARK.len());
    let at = windows.position(|window| window == MARK)? + MARK.len();
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
