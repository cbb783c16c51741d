//! What a kernel image says about itself: for which architecture it is, and which release.
//!
//! ```text
//! x86 bzImage   0x202 "HdrS"   0x20e offset of the version string - 0x200   (Documentation/arch/x86/boot.rst)
//! arm64 Image   0x038 "ARM\x64"                                             (Documentation/arch/arm64/booting.rst)
//!   packed      0x000 "MZ\0\0zimg"   8 offset, 12 size, 24 kind of packing   (efi/libstub/zboot-header.S)
//! vmlinux       ELF; e_machine 62 x86-64, 183 arm64, 21 ppc64
//! ```
//!
//! Everything but bzImage has its release only in the banner "Linux version 6.12.95 (", somewhere in the data.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nearfar_sources::packed::{self, Packing};

use crate::arch::Arch;

/// What is looked for in images without a version field (`linux_banner` in init/version.c).
const BANNER: &[u8] = b"Linux version ";

/// The longest image read into memory: debug kernels with symbols have a few hundred MiB.
const LONGEST: u64 = 2 << 30;

/// The longest release `uname` can tell (`__NEW_UTS_LEN`).
const LONGEST_RELEASE: usize = 64;

/// What an image is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// For which machines.
    pub arch: Arch,
    /// As `uname -r` will say it; `None` when it is packed in a way that is not read here.
    pub release: Option<String>,
}

/// Reads an image's file. `Ok(None)`: not a kernel of an architecture of the lab.
pub fn read(path: &Path) -> io::Result<Option<Image>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(parse(&bytes))
}

/// Reads an image.
pub fn parse(bytes: &[u8]) -> Option<Image> {
    match Packing::of(bytes) {
        Some(_) => parse_unpacked(&unpacked(bytes)?),
        None => parse_unpacked(bytes),
    }
}

fn parse_unpacked(bytes: &[u8]) -> Option<Image> {
    let (arch, release) = if bytes.get(0x202..0x206) == Some(b"HdrS") {
        (Arch::X86_64, version_field(bytes))
    } else if bytes.get(0x38..0x3c) == Some(b"ARM\x64") {
        (Arch::Aarch64, banner(bytes))
    } else if bytes.get(..8) == Some(b"MZ\0\0zimg") {
        let arch = arch_of_pe(bytes)?;
        (arch, payload(bytes).as_deref().and_then(banner))
    } else {
        (arch_of_elf(bytes)?, banner(bytes))
    };
    Some(Image { arch, release })
}

/// The version string of a bzImage: `6.12.107+deb12-amd64 (builder) #1 SMP ...`.
fn version_field(bytes: &[u8]) -> Option<String> {
    let at = usize::from(number16(bytes, 0x20e)?);
    // Zero says that there is none.
    let text = (at != 0).then(|| bytes.get(0x200 + at..))?;
    release_at(text?)
}

/// The release in the banner. The words also stand in format strings and messages, which no digit follows.
fn banner(bytes: &[u8]) -> Option<String> {
    memchr::memmem::find_iter(bytes, BANNER).find_map(|at| release_at(&bytes[at + BANNER.len()..]))
}

/// The word at the start, if it is a release.
fn release_at(bytes: &[u8]) -> Option<String> {
    let mut start = bytes.iter().take(LONGEST_RELEASE + 1);
    let length = start.position(|byte| !is_release_byte(*byte))?;
    let word = std::str::from_utf8(&bytes[..length]).ok()?;
    is_release(word).then(|| word.to_owned())
}

/// Whether this may be a release: it becomes part of paths, so nothing else is taken for one.
pub fn is_release(word: &str) -> bool {
    word.len() <= LONGEST_RELEASE
        && word.starts_with(|first: char| first.is_ascii_digit())
        && word.contains('.')
        && !word.contains("..")
        && word.bytes().all(is_release_byte)
}

fn is_release_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".+-_~".contains(&byte)
}

/// The architecture of a 64-bit little-endian ELF file, from its first bytes.
pub(crate) fn arch_of_elf(bytes: &[u8]) -> Option<Arch> {
    // EI_CLASS 2: 64 bits; EI_DATA 1: little-endian. Big-endian Power has no user programs here.
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    match number16(bytes, 18)? {
        62 => Some(Arch::X86_64),
        183 => Some(Arch::Aarch64),
        21 => Some(Arch::Powerpc64le),
        _ => None,
    }
}

/// The machine field of the PE header, whose place is at 0x3c.
fn arch_of_pe(bytes: &[u8]) -> Option<Arch> {
    let header = number32(bytes, 0x3c)? as usize;
    match number16(bytes, header.checked_add(4)?)? {
        0x8664 => Some(Arch::X86_64),
        0xaa64 => Some(Arch::Aarch64),
        _ => None,
    }
}

/// The kernel within an EFI zboot image; only gzip, which arm64's default is.
fn payload(bytes: &[u8]) -> Option<Vec<u8>> {
    let start = number32(bytes, 8)? as usize;
    let end = start.checked_add(number32(bytes, 12)? as usize)?;
    let is_gzip = bytes.get(24..28)? == b"gzip";
    is_gzip.then(|| unpacked(bytes.get(start..end)?))?
}

fn unpacked(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut kernel = Vec::new();
    // What comes before an error may still hold the banner: packed kernels carry their size behind the stream.
    let reader = packed::reader(bytes).ok()?;
    let _ = reader.take(LONGEST).read_to_end(&mut kernel);
    (!kernel.is_empty()).then_some(kernel)
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
