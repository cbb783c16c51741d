//! Each part of the lab, examined.

use std::fs;
use std::path::Path;

use nearfar_proc::meminfo;

use super::{Installer, Item};
use crate::advice;
use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::LabError;
use crate::kernels::{self, Kernel};
use crate::qemu::{self, PLUGINS_SINCE, Qemu};
use crate::{delay, foreign};
use nearfar_machine::Acceleration;

/// The memory that the smaller machines of the gallery take, with QEMU's own.
const ENOUGH_MIB: u64 = 2048;

/// QEMU for each architecture, the host's first.
pub(super) fn qemus(installer: &Installer) -> Vec<Item> {
    let mut all = Arch::ALL;
    all.sort_by_key(|arch| Some(*arch) != Arch::host());
    all.into_iter()
        .map(|arch| qemu_for(arch, installer))
        .collect()
}

fn qemu_for(arch: Arch, installer: &Installer) -> Item {
    let what = format!("QEMU for {arch} guests");
    let found = match Qemu::find(arch) {
        Ok(found) => found,
        Err(error) => {
            let detail = match error {
                LabError::Missing { what, .. } => format!("{what} is not installed"),
                other => other.to_string(),
            };
            let command = advice::install_qemu(installer, arch);
            return Item::missing(what, detail, format!("no {arch} guests")).mended_by(command);
        }
    };
    let version = format!("{} {}", found.program.display(), found.version_text());
    let mut lacks = Vec::new();
    if !found.plugins {
        let why = if found.version < PLUGINS_SINCE {
            "is older than"
        } else {
            "was built without plugins, although it is"
        };
        lacks.push(format!(
            "far memory is as fast as near memory: it {why} {}",
            qemu::dotted(PLUGINS_SINCE)
        ));
    }
    if arch != Arch::Powerpc64le && !found.has_device("igb") {
        lacks.push("no multi-queue igb cards (since 8.0)".to_owned());
    }
    if lacks.is_empty() {
        return Item::ok(what, format!("{version}, with plugins"));
    }
    Item::degraded(what, version, lacks.join("; ")).mended_by(advice::newer_qemu(installer, arch))
}

pub(super) fn kvm(cache: &Cache) -> Item {
    let host = Arch::host().and_then(|arch| Qemu::find(arch).ok());
    let consequence = "guests run in software emulation: slower, and enough for everything (delays need it anyway)";
    let Some(qemu) = host else {
        return Item::degraded(
            "KVM",
            "not tried without a QEMU for this machine's architecture",
            consequence,
        );
    };
    let answer = qemu::acceleration_with(cache, &qemu, None);
    match (answer.acceleration, answer.reason) {
        (Acceleration::Kvm, _) => Item::ok("KVM", "a guest was seen to live under it"),
        (Acceleration::Tcg, reason) => {
            Item::degraded("KVM", reason.unwrap_or_default(), consequence)
        }
    }
}

pub(super) fn delay_plugin() -> Item {
    let what = "delay plugin";
    let consequence = "far memory is as fast as near memory";
    let qemu = Arch::ALL
        .into_iter()
        .filter_map(|arch| Qemu::find(arch).ok())
        .find(|qemu| qemu.plugins);
    let Some(qemu) = qemu else {
        return Item::missing(what, "no QEMU here loads it", consequence);
    };
    match delay::find_plugin(&qemu) {
        Ok(path) => Item::ok(what, path.display().to_string()),
        Err(error) => Item::missing(what, error.to_string(), consequence),
    }
}

/// The known kernels, and others in the cache.
pub(super) fn kernels(cache: &Cache) -> Vec<Item> {
    let entries = kernels::list(cache);
    entries
        .iter()
        .map(|entry| kernel(cache, entry, &entries))
        .collect()
}

fn kernel(cache: &Cache, entry: &kernels::Entry, all: &[kernels::Entry]) -> Item {
    let what = format!("kernel {} for {}", entry.series, entry.arch);
    let absent = |detail: String| {
        let has_other = all
            .iter()
            .any(|other| other.arch == entry.arch && other.cached);
        let item = if has_other {
            Item::degraded(
                &what,
                detail,
                format!(
                    "what compares it with others cannot run for {} guests",
                    entry.arch
                ),
            )
        } else {
            Item::missing(
                &what,
                detail,
                format!(
                    "{} guests need a kernel, this or one by --kernel PATH",
                    entry.arch
                ),
            )
        };
        item.mended_by(Some(advice::get_kernel(entry.series, entry.arch)))
    };
    let Some(release) = entry.release.as_deref().filter(|_| entry.cached) else {
        return absent(
            entry
                .damage
                .clone()
                .unwrap_or_else(|| "not cached".to_owned()),
        );
    };
    let kernel = match kernels::find_in(cache, Some(release), entry.arch) {
        Ok(kernel) => kernel,
        Err(error) => return absent(error.to_string()),
    };
    let lacks = without(&kernel).join(", ");
    if lacks.is_empty() {
        return Item::ok(what, kernel.release);
    }
    Item::degraded(
        what,
        kernel.release,
        format!("guests with it do not see the host's files: no {lacks}"),
    )
}

/// The modules for the host's files that a kernel does not have, neither as a module nor built in.
fn without(kernel: &Kernel) -> Vec<&'static str> {
    let read = |name| {
        kernel
            .modules
            .as_ref()
            .and_then(|folder| fs::read_to_string(folder.join(name)).ok())
    };
    let lists = [read("modules.dep"), read("modules.builtin")].map(Option::unwrap_or_default);
    let has = |module: &str| {
        let file = format!("/{module}.ko");
        lists
            .iter()
            .flat_map(|list| list.lines())
            .any(|line| line.split(':').next().unwrap_or_default().contains(&file))
    };
    ["9p", "9pnet_virtio", "overlay", "virtio_pci"]
        .into_iter()
        .filter(|module| !has(module))
        .collect()
}

pub(super) fn busybox(cache: &Cache, installer: &Installer) -> Item {
    let what = "static busybox";
    let Some(host) = Arch::host() else {
        return Item::missing(
            what,
            "this machine's architecture is not one of the lab's",
            "no guests",
        );
    };
    let cached = cache
        .root()
        .join("foreign")
        .join(host.uname())
        .join("busybox");
    match foreign::installed_busybox(host)
        .or_else(|| Some(cached).filter(|path| foreign::is_static(path, host)))
    {
        Some(path) => Item::ok(what, path.display().to_string()),
        None => Item::degraded(
            what,
            "not installed",
            "the first guest fetches it into the cache",
        )
        .mended_by(installer.install("busybox-static")),
    }
}

/// What foreign guests need to run the host's programs.
pub(super) fn emulators(cache: &Cache) -> Vec<Item> {
    let foreign_ones = Arch::ALL
        .into_iter()
        .filter(|arch| Some(*arch) != Arch::host());
    let item = |arch| {
        let what = format!("the host's programs in {arch} guests");
        match foreign::cached(cache, arch) {
            Some(found) => Item::ok(what, found.user_emulator.display().to_string()),
            None => Item::degraded(
                what,
                "not cached",
                "the first such guest fetches an emulator and a busybox (65 MB)",
            )
            .mended_by(Some(advice::GET_ALL.to_owned())),
        }
    };
    foreign_ones.map(item).collect()
}

pub(super) fn depmod(installer: &Installer) -> Item {
    match crate::programs::find("depmod") {
        Some(path) => Item::ok("depmod", path.display().to_string()),
        None => Item::degraded(
            "depmod",
            "not installed",
            "busybox's is used, which takes longer when a kernel is fetched",
        )
        .mended_by(installer.install("kmod")),
    }
}

/// CPUs and memory.
pub(super) fn host() -> Item {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let meminfo = fs::read("/proc/meminfo").unwrap_or_default();
    let Some(mib) = meminfo::bytes(&meminfo, "MemAvailable").map(|bytes| bytes >> 20) else {
        return Item::degraded(
            "this machine",
            format!("{cpus} CPUs"),
            "how much memory is free is not known",
        );
    };
    let detail = format!("{cpus} CPUs, {mib} MiB of memory available");
    if mib < ENOUGH_MIB {
        let consequence = "larger machines do not fit; --scale memory=256M takes less on each node";
        return Item::degraded("this machine", detail, consequence);
    }
    if cpus < 2 {
        return Item::degraded(
            "this machine",
            detail,
            "vCPUs take turns, which makes timings within guests coarse",
        );
    }
    Item::ok("this machine", detail)
}

/// `MemAvailable` of `/proc/meminfo`, in MiB.
/// Whether kernels can be fetched.
pub(super) fn packages(installer: &Installer) -> Item {
    let what = "fetching kernels";
    let consequence = "what is not cached cannot be fetched; --kernel PATH works everywhere";
    let archive = match &installer.archive {
        Ok(archive) => archive,
        Err(problem) => return Item::degraded(what, problem.to_string(), consequence),
    };
    match ["apt-get", "apt-cache", "dpkg-deb"]
        .into_iter()
        .find(|name| crate::programs::find(name).is_none())
    {
        Some(program) => Item::degraded(what, format!("{program} is missing"), consequence),
        None => Item::ok(
            what,
            format!("{} from {}", archive.name, archive.main.uris.join(" ")),
        ),
    }
}

/// What examples and experiments run, in guests as on the host.
pub(super) fn programs(installer: &Installer) -> Vec<Item> {
    let useful = [
        ("fio", "fio", "no disk load in guests but nearfar's own"),
        (
            "redis-server",
            "redis-server",
            "the examples with a database are left out",
        ),
        (
            "numactl",
            "numactl",
            "guests cannot be compared with numactl's view",
        ),
        ("strace", "strace", "no look at system calls in guests"),
    ];
    let item = |(program, package, consequence)| match crate::programs::find(program) {
        Some(path) => Item::ok(program, Path::display(&path).to_string()),
        None => Item::degraded(program, "not installed", consequence)
            .mended_by(installer.install(package)),
    };
    useful.into_iter().map(item).collect()
}
