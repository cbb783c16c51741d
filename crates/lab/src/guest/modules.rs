//! Which kernel modules a guest needs before it has the host's files, and for the devices it has; in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::unpack;
use crate::arch::Arch;
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
        let (late, devices): (Vec<_>, Vec<_>) = devices_of(arguments)
            .into_iter()
            .partition(|name| LATE.contains(name));
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
        modules.hot_plug = hot_plug
            .iter()
            .map(|name| ((*name).to_owned(), dependencies.order(&[name])))
            .collect();
        let all: BTreeSet<_> = modules.names().cloned().collect();
        for name in all {
            if let Some(file) = dependencies.files.get(&name) {
                modules
                    .contents
                    .insert(name, unpack::unpacked(&folder.join(file), cache)?);
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
        self.boot
            .iter()
            .chain(&self.devices)
            .chain(&self.late)
            .chain(later)
    }
}

/// The modules of the devices among QEMU's arguments.
fn devices_of(arguments: &[String]) -> Vec<&'static str> {
    let named: BTreeSet<_> = arguments
        .windows(2)
        .filter(|pair| pair[0] == "-device")
        .map(|pair| pair[1].split(',').next().unwrap_or_default())
        .collect();
    OF_DEVICE
        .iter()
        .filter(|(device, _)| named.contains(device))
        .flat_map(|(_, modules)| *modules)
        .copied()
        .collect()
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
            all.files.insert(module_name(file), PathBuf::from(file));
            all.needs.insert(
                module_name(file),
                needs.split_whitespace().map(module_name).collect(),
            );
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
