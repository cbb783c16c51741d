//! Taking packed files apart on the host, once: under emulation the guest would take seconds for it.
//!
//! ```text
//! nf.ko.xz  ─►                      ┌─► kept in the cache folder, under a name made of the file's identity
//! bzImage   ─► head | packed ELF ───┘   (path, size, time); written under another name and renamed, so two runs at once are fine
//! ```

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nearfar_sources::packed::Packing;

use crate::cache::mark_used;
use crate::error::LabError;

/// More than any module or kernel has.
const LARGEST: u64 = 1 << 30;

/// The content of a file, unpacked if its first bytes say that it is packed. Only what was packed is kept in the cache.
///
/// # Errors
/// When the file cannot be read, or is packed and damaged. A cache that cannot be written is no error.
pub fn unpacked(path: &Path, cache: &Path) -> Result<Vec<u8>, LabError> {
    let kept = kept_at(path, cache)?;
    if let Ok(content) = fs::read(&kept) {
        mark_used(&kept);
        return Ok(content);
    }
    let packed = read(path)?;
    if Packing::of(&packed).is_none() {
        return Ok(packed);
    }
    let content = unpack(&packed).map_err(|error| damaged(path, &error))?;
    keep(&kept, &content);
    Ok(content)
}

/// Where QEMU finds an uncompressed kernel to enter directly (PVH: the guest skips the firmware's real-mode path and the
/// kernel's own unpacking, which under emulation take longer than everything after them). `None` for an image in
/// which there is no such kernel; it is then booted as it is.
///
/// # Errors
/// When the image cannot be read.
pub fn direct_kernel(image: &Path, cache: &Path) -> Result<Option<PathBuf>, LabError> {
    let kept = kept_at(image, cache)?;
    if kept.exists() {
        mark_used(&kept);
        return Ok(Some(kept));
    }
    let Some(kernel) = payload(&read(image)?).and_then(|packed| unpack(&packed).ok()) else {
        return Ok(None);
    };
    if !enters_directly(&kernel) {
        return Ok(None);
    }
    keep(&kept, &kernel);
    Ok(kept.exists().then_some(kept))
}

fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let packing = Packing::of(packed)
        .ok_or_else(|| io::Error::other("packed in a way that is not known here"))?;
    let reader = packing.reader(packed)?;
    reader.take(LARGEST).read_to_end(&mut content)?;
    Ok(content)
}

/// The packed kernel within a bzImage: Documentation/arch/x86/boot.rst, fields `setup_sects`, `payload_offset` and
/// `payload_length`. Its last four bytes are the unpacked size, which xz and gzip have no use for.
fn payload(image: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| {
        image
            .get(at..at + 4)?
            .try_into()
            .ok()
            .map(u32::from_le_bytes)
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + usize::try_from(word(0x248)?).ok()?;
    let length = usize::try_from(word(0x24c)?).ok()?.checked_sub(4)?;
    image
        .get(start..start.checked_add(length)?)
        .map(<[u8]>::to_vec)
}

/// Whether an ELF file carries the note with the address of its PVH entry (Xen's `XEN_ELFNOTE_PHYS32_ENTRY`, 18), without
/// which QEMU refuses it.
fn enters_directly(kernel: &[u8]) -> bool {
    // Size of the name, size of the content, type; then the name. The content is 4 or 8 bytes.
    [4_u32, 8].iter().any(|size| {
        let mut note = Vec::from(4_u32.to_le_bytes());
        note.extend(size.to_le_bytes());
        note.extend(18_u32.to_le_bytes());
        note.extend(b"Xen\0");
        kernel.starts_with(b"\x7fELF")
            && kernel
                .windows(note.len())
                .step_by(4)
                .any(|window| window == note)
    })
}

/// The name under which a file's content is kept. It changes with the file.
fn kept_at(path: &Path, cache: &Path) -> Result<PathBuf, LabError> {
    let seen = fs::metadata(path)
        .map_err(|error| LabError::system(format!("looking for {}", path.display()), error))?;
    let mut identity = DefaultHasher::new();
    (path, seen.len(), seen.mtime(), seen.mtime_nsec()).hash(&mut identity);
    let stem = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(cache
        .join("unpacked")
        .join(format!("{stem}-{:016x}", identity.finish())))
}

/// Best effort: a cache that cannot be written costs time, nothing else.
fn keep(kept: &Path, content: &[u8]) {
    let Some(folder) = kept.parent() else { return };
    let written = fs::create_dir_all(folder).and_then(|()| {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        file.persist(kept).map_err(|error| error.error)?;
        Ok(())
    });
    drop(written);
}

fn read(path: &Path) -> Result<Vec<u8>, LabError> {
    fs::read(path).map_err(|error| LabError::system(format!("reading {}", path.display()), error))
}

fn damaged(path: &Path, error: &io::Error) -> LabError {
    LabError::Content {
        path: path.to_owned(),
        problem: format!("cannot be unpacked: {error}"),
    }
}
