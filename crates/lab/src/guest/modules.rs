//! Which kernel modules a guest needs before it has the host's files, and for the devices it has; in which order.
//!
//! Packed files are taken apart on the host, once: under emulation the guest would take seconds for it.
//!
//! ```text
//! nf.ko.xz  ─►                      ┌─► kept in the cache folder, under a name made of the file's identity
//! bzImage   ─► head | packed ELF ───┘   (path, size, time); written under another name and renamed, so two runs at once are fine
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nearfar_sources::packed::Packing;

use crate::arch::Arch;
use crate::cache::{mark_used, write_renamed};
use crate::error::LabError;
use crate::kernels::Kernel;

/// What mounting the host's files and talking to the host takes.
const BOOT: [&str; 5] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
];

/// Modules of QEMU's devices, by the device's name on the command line.
const OF_DEVICE: [(&str, &[&str]); 10] = [
    ("nvme", &["nvme"]),
    ("virtio-net-pci", &["virtio_net"]),
    ("virtio-blk-pci", &["virtio_blk"]),
    ("virtio-scsi-pci", &["virtio_scsi", "sd_mod"]),
    ("igb", &["igb"]),
    ("e1000e", &["e1000e"]),
    ("e1000", &["e1000"]),
    ("vmxnet3", &["vmxnet3"]),
    ("virtio-rng-pci", &["virtio_rng"]),
    ("cxl-type3", &["cxl_acpi", "cxl_pci", "cxl_mem"]),
];

/// Of those, the modules of devices that QEMU cannot save (`design::late`).
const LATE: [&str; 1] = ["nvme"];

/// What a device that is plugged in later may need; taken along, not loaded.
const HOT_PLUG: [&str; 3] = ["nvme", "virtio_blk", "virtio_net"];

/// The same on Power: the interface that drmgr uses.
const HOT_PLUG_ON_POWER: [&str; 2] = ["nvme", "rpadlpar_io"];

/// Modules for one guest, with their contents, each after those it depends on.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Modules {
    /// Loaded before anything is mounted.
    pub boot: Vec<String>,
    /// Loaded next, for the devices that are there when the kernel boots.
    pub devices: Vec<String>,
    /// Loaded before the first command, for the devices that a saved guest gets after its start.
    pub late: Vec<String>,
    /// All of them and those for hot plug: name and unpacked content.
    contents: BTreeMap<String, Vec<u8>>,
    /// For each that is kept for hot plug: itself and what it needs, in order.
    pub hot_plug: Vec<(String, Vec<String>)>,
}

impl Modules {
    /// Looks up what a guest with these `-device` arguments needs.
    ///
    /// # Errors
    /// When the modules folder has no `modules.dep` (it says which command makes it), a file of it is damaged or missing.
    pub fn collect(
        kernel: &Kernel,
        arguments: &[String],
        foreign: bool,
        cache: &Path,
    ) -> Result<Self, LabError> {
        let Some(folder) = &kernel.modules else {
            return Ok(Self::default());
        };
        let dependencies = Dependencies::read(folder, &kernel.release)?;
        let mut boot: Vec<_> = BOOT.to_vec();
        if foreign {
            boot.push("binfmt_misc");
        }
        let devices = devices_of(arguments).into_iter();
        let (late, devices): (Vec<_>, Vec<_>) = devices.partition(|name| LATE.contains(name));
        let mut modules = Self {
            boot: dependencies.order(&boot),
            ..Self::default()
        };
        modules.devices = dependencies.order(&devices);
        modules.devices.retain(|name| !modules.boot.contains(name));
        modules.late = dependencies.order(&late);
        modules
            .late
            .retain(|name| !modules.boot.contains(name) && !modules.devices.contains(name));
        let hot_plug: &[&str] = match kernel.arch {
            Arch::X86_64 | Arch::Aarch64 => &HOT_PLUG,
            Arch::Powerpc64le => &HOT_PLUG_ON_POWER,
        };
        let order = |name: &&str| ((*name).to_owned(), dependencies.order(&[name]));
        modules.hot_plug = hot_plug.iter().map(order).collect();
        let all: BTreeSet<_> = modules.names().cloned().collect();
        for name in all {
            if let Some(file) = dependencies.files.get(&name) {
                let content = unpacked(&folder.join(file), cache)?;
                modules.contents.insert(name, content);
            }
        }
        Ok(modules)
    }

    /// The unpacked file of one of them.
    pub fn content(&self, name: &str) -> &[u8] {
        self.contents.get(name).map_or(&[], Vec::as_slice)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        let later = self.hot_plug.iter().flat_map(|(_, names)| names);
        let loaded = self.boot.iter().chain(&self.devices).chain(&self.late);
        loaded.chain(later)
    }
}

/// The modules of the devices among QEMU's arguments.
fn devices_of(arguments: &[String]) -> Vec<&'static str> {
    let devices = arguments.windows(2).filter(|pair| pair[0] == "-device");
    let named = devices.map(|pair| pair[1].split(',').next().unwrap_or_default());
    let named: BTreeSet<_> = named.collect();
    let rows = OF_DEVICE
        .iter()
        .filter(|(device, _)| named.contains(device));
    rows.flat_map(|(_, modules)| *modules).copied().collect()
}

/// `modules.dep`, by module name. Format: modules.dep(5), `FILE: FILE ...`, a file's own dependencies all listed, those
/// to be loaded first last.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Dependencies {
    files: BTreeMap<String, PathBuf>,
    needs: BTreeMap<String, Vec<String>>,
}

impl Dependencies {
    fn read(folder: &Path, release: &str) -> Result<Self, LabError> {
        let path = folder.join("modules.dep");
        let text = fs::read_to_string(&path).map_err(|_| LabError::Missing {
            what: path.display().to_string(),
            hint: match folder.ancestors().nth(3) {
                Some(root) => format!("make it with: depmod -b {} {release}", root.display()),
                None => "make it with depmod".to_owned(),
            },
        })?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for (file, needs) in text.lines().filter_map(|line| line.split_once(':')) {
            let needs = needs.split_whitespace().map(module_name).collect();
            all.files.insert(module_name(file), PathBuf::from(file));
            all.needs.insert(module_name(file), needs);
        }
        all
    }

    /// These modules, each after what it needs; a module that is not there is built in, or this kernel has none.
    fn order(&self, wanted: &[&str]) -> Vec<String> {
        let mut order: Vec<String> = Vec::new();
        for name in wanted.iter().filter(|name| self.files.contains_key(**name)) {
            let needs = self.needs.get(*name).into_iter().flatten().rev().cloned();
            for module in needs.chain([(*name).to_owned()]) {
                if !order.contains(&module) {
                    order.push(module);
                }
            }
        }
        order
    }
}

/// `kernel/net/9p/9pnet-virtio.ko.xz` is `9pnet_virtio`: the kernel knows no dashes.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

/// More than any module or kernel has.
const LARGEST: u64 = 1 << 30;

/// The content of a file, unpacked if its first bytes say that it is packed. Only what was packed is kept in the cache.
///
/// # Errors
/// When the file cannot be read, or is packed and damaged. A cache that cannot be written is no error.
fn unpacked(path: &Path, cache: &Path) -> Result<Vec<u8>, LabError> {
    let kept = kept_at(path, cache)?;
    if let Ok(content) = fs::read(&kept) {
        mark_used(&kept);
        return Ok(content);
    }
    let packed = read(path)?;
    if Packing::of(&packed).is_none() {
        return Ok(packed);
    }
    let content = unpack(&packed).map_err(|error| LabError::Content {
        path: path.to_owned(),
        problem: format!("cannot be unpacked: {error}"),
    })?;
    // A cache that cannot be written costs time, nothing else.
    let _ = write_renamed(&kept, &content);
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
    let _ = write_renamed(&kept, &kernel);
    Ok(kept.exists().then_some(kept))
}

fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let packing = Packing::of(packed);
    let packing =
        packing.ok_or_else(|| io::Error::other("packed in a way that is not known here"))?;
    let reader = packing.reader(packed)?;
    reader.take(LARGEST).read_to_end(&mut content)?;
    Ok(content)
}

/// The packed kernel within a bzImage: Documentation/arch/x86/boot.rst, fields `setup_sects`, `payload_offset` and
/// `payload_length`. Its last four bytes are the unpacked size, which xz and gzip have no use for.
fn payload(image: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u32::from_le_bytes(*image.get(at..)?.first_chunk()?));
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + usize::try_from(word(0x248)?).ok()?;
    let length = usize::try_from(word(0x24c)?).ok()?.checked_sub(4)?;
    let payload = image.get(start..start.checked_add(length)?)?;
    Some(payload.to_vec())
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
        let mut windows = kernel.windows(note.len()).step_by(4);
        kernel.starts_with(b"\x7fELF") && windows.any(|window| window == note)
    })
}

/// The name under which a file's content is kept. It changes with the file.
fn kept_at(path: &Path, cache: &Path) -> Result<PathBuf, LabError> {
    let seen = fs::metadata(path).map_err(LabError::at("looking for", path))?;
    let mut identity = DefaultHasher::new();
    (path, seen.len(), seen.mtime(), seen.mtime_nsec()).hash(&mut identity);
    let stem = path.file_name().unwrap_or_default().to_string_lossy();
    let name = format!("{stem}-{:016x}", identity.finish());
    Ok(cache.join("unpacked").join(name))
}

fn read(path: &Path) -> Result<Vec<u8>, LabError> {
    fs::read(path).map_err(LabError::at("reading", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
        kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
        kernel/net/9p/9pnet.ko.xz: kernel/fs/netfs/netfs.ko.xz\nkernel/fs/netfs/netfs.ko.xz:\n\
        kernel/drivers/nvme/host/nvme-core.ko: kernel/drivers/nvme/common/nvme-auth.ko\n";

    #[test]
    fn a_module_comes_after_what_it_needs_and_once() {
        let order = Dependencies::parse(DEP).order(&["9pnet_virtio", "9p", "overlay", "nvme_core"]);
        assert_eq!(
            order,
            [
                "netfs",
                "9pnet",
                "9pnet_virtio",
                "9p",
                "nvme_auth",
                "nvme_core"
            ]
        );
    }

    #[test]
    fn devices_name_their_modules() {
        let words = [
            "-device",
            "nvme,id=a",
            "-device",
            "igb",
            "-device",
            "nvme-ns,drive=x",
            "-name",
            "e1000",
        ];
        assert_eq!(devices_of(&words.map(str::to_owned)), ["nvme", "igb"]);
    }
}
