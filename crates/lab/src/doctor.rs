//! What the lab finds on this machine, what it does without, and the command that brings each missing part.
//!
//! ```text
//! programs ─ QEMU a guest architecture, KVM, delay plugin, busybox, depmod, emulators of foreign programs
//! files ──── kernels in the cache, with 9p for the host's files
//! machine ── CPUs, memory, the distribution that packages come from
//! ```

use std::fs;

use nearfar_machine::Acceleration;
use nearfar_proc::meminfo;
use serde::Serialize;

use crate::advice::{self, Installer};
use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::LabError;
use crate::kernels::{self, Kernel};
use crate::qemu::{self, PLUGINS_SINCE, Qemu};
use crate::{delay, foreign};

/// How a part is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// The lab works, with the consequence named.
    Degraded,
    /// What needs it does not work.
    Missing,
}

/// A part of the lab.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Item {
    /// Its name: "QEMU for arm64 guests".
    pub what: String,
    /// How it is.
    pub state: State,
    /// What was seen: a version, a path, a refusal.
    pub detail: String,
    /// What does not work, or works worse; nothing for a part that is as it should be.
    pub consequence: Option<String>,
    /// A shell command that fixes it; nothing where none is known.
    pub command: Option<String>,
}

impl Item {
    fn ok(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state: State::Ok,
            detail: detail.into(),
            consequence: None,
            command: None,
        }
    }

    fn degraded(
        what: impl Into<String>,
        detail: impl Into<String>,
        consequence: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Degraded,
            consequence: Some(consequence.into()),
            ..Self::ok(what, detail)
        }
    }

    fn missing(
        what: impl Into<String>,
        detail: impl Into<String>,
        consequence: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Missing,
            ..Self::degraded(what, detail, consequence)
        }
    }

    fn fixed_by(mut self, command: Option<String>) -> Self {
        self.command = command;
        self
    }
}

/// All parts, the most important first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Doctor {
    /// The parts.
    pub items: Vec<Item>,
}

impl Doctor {
    /// How many parts are in a state.
    pub fn count(&self, state: State) -> usize {
        self.items.iter().filter(|item| item.state == state).count()
    }
}

/// Looks at everything that the lab uses. Changes nothing but the kept answer of the KVM probe, which takes up to 20 s
/// the first time after a boot of the host; asks no network.
pub fn examine(cache: &Cache) -> Doctor {
    let installer = Installer::of_system();
    let mut items = qemus(&installer);
    items.push(kvm(cache));
    items.push(delay_plugin());
    items.extend(kernels(cache));
    items.push(busybox(cache, &installer));
    items.extend(emulators(cache));
    items.push(depmod(&installer));
    items.push(host());
    items.push(packages(&installer));
    items.push(kernel_builder(&installer));
    items.extend(programs(&installer));
    Doctor { items }
}

/// The memory that the smaller machines of the gallery take, with QEMU's own.
const ENOUGH_MIB: u64 = 2048;

/// QEMU for each architecture, the host's first.
fn qemus(installer: &Installer) -> Vec<Item> {
    let mut all = Arch::ALL;
    all.sort_by_key(|arch| Some(*arch) != Arch::host());
    all.map(|arch| qemu_for(arch, installer)).into()
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
            let command = installer.install_qemu(arch);
            return Item::missing(what, detail, format!("no {arch} guests")).fixed_by(command);
        }
    };
    let version = format!("{} {}", found.program.display(), found.version_text());
    let mut lacks = Vec::new();
    if !found.plugins {
        let why = match found.version < PLUGINS_SINCE {
            true => "is older than",
            false => "was built without plugins, although it is",
        };
        let since = qemu::dotted(PLUGINS_SINCE);
        lacks.push(format!(
            "far memory is as fast as near memory: it {why} {since}"
        ));
    }
    if arch != Arch::Powerpc64le && !found.has_device("igb") {
        lacks.push("no multi-queue igb cards (since 8.0)".to_owned());
    }
    if lacks.is_empty() {
        return Item::ok(what, format!("{version}, with plugins"));
    }
    Item::degraded(what, version, lacks.join("; ")).fixed_by(installer.newer_qemu(arch))
}

fn kvm(cache: &Cache) -> Item {
    let host = Arch::host().and_then(|arch| Qemu::find(arch).ok());
    let consequence = "guests run in software emulation: slower, and enough for everything (delays need it anyway)";
    let Some(qemu) = host else {
        let detail = "not tried without a QEMU for this machine's architecture";
        return Item::degraded("KVM", detail, consequence);
    };
    let answer = qemu::acceleration(cache, &qemu, None);
    match (answer.acceleration, answer.reason) {
        (Acceleration::Kvm, _) => Item::ok("KVM", "a guest was seen to live under it"),
        (Acceleration::Tcg, reason) => {
            Item::degraded("KVM", reason.unwrap_or_default(), consequence)
        }
    }
}

fn delay_plugin() -> Item {
    let what = "delay plugin";
    let consequence = "far memory is as fast as near memory";
    let all = Arch::ALL.into_iter();
    let mut qemus = all.filter_map(|arch| Qemu::find(arch).ok());
    let Some(qemu) = qemus.find(|qemu| qemu.plugins) else {
        return Item::missing(what, "no QEMU here loads it", consequence);
    };
    match delay::find_plugin(&qemu) {
        Ok(path) => Item::ok(what, path.display().to_string()),
        Err(error) => Item::missing(what, error.to_string(), consequence),
    }
}

/// The known kernels, and others in the cache.
fn kernels(cache: &Cache) -> Vec<Item> {
    let all = kernels::list(cache);
    let item = |entry| kernel(cache, entry, &all);
    all.iter().map(item).collect()
}

fn kernel(cache: &Cache, entry: &kernels::Entry, all: &[kernels::Entry]) -> Item {
    let what = format!("kernel {} for {}", entry.series, entry.arch);
    let arch = entry.arch;
    let absent = |detail: String| {
        let mut others = all.iter();
        let item = match others.any(|other| other.arch == arch && other.cached) {
            true => {
                let consequence =
                    format!("what compares it with others cannot run for {arch} guests");
                Item::degraded(&what, detail, consequence)
            }
            false => {
                let consequence =
                    format!("{arch} guests need a kernel, this or one by --kernel PATH");
                Item::missing(&what, detail, consequence)
            }
        };
        item.fixed_by(Some(advice::get_kernel(entry.series, arch)))
    };
    let Some(release) = entry.release.as_deref().filter(|_| entry.cached) else {
        let damage = entry.damage.clone();
        return absent(damage.unwrap_or_else(|| "not cached".to_owned()));
    };
    let kernel = match kernels::find_in(cache, Some(release), entry.arch) {
        Ok(kernel) => kernel,
        Err(error) => return absent(error.to_string()),
    };
    let lacks = without(&kernel).join(", ");
    if lacks.is_empty() {
        return Item::ok(what, kernel.release);
    }
    let consequence = format!("guests with it do not see the host's files: no {lacks}");
    Item::degraded(what, kernel.release, consequence)
}

/// The modules for the host's files that a kernel does not have, neither as a module nor built in.
fn without(kernel: &Kernel) -> Vec<&'static str> {
    let read = |name| {
        let folder = kernel.modules.as_ref();
        let list = folder.and_then(|folder| fs::read_to_string(folder.join(name)).ok());
        list.unwrap_or_default()
    };
    let lists = ["modules.dep", "modules.builtin"].map(read);
    let has = |module: &str| {
        let file = format!("/{module}.ko");
        let mut lines = lists.iter().flat_map(|list| list.lines());
        lines.any(|line| line.split(':').next().unwrap_or_default().contains(&file))
    };
    let needed = ["9p", "9pnet_virtio", "overlay", "virtio_pci"];
    needed.into_iter().filter(|module| !has(module)).collect()
}

fn busybox(cache: &Cache, installer: &Installer) -> Item {
    let what = "static busybox";
    let Some(host) = Arch::host() else {
        let detail = "this machine's architecture is not one of the lab's";
        return Item::missing(what, detail, "no guests");
    };
    match foreign::installed_busybox(host).or_else(|| foreign::cached_busybox(cache, host)) {
        Some(path) => Item::ok(what, path.display().to_string()),
        None => {
            let consequence = "the first guest fetches it into the cache";
            let item = Item::degraded(what, "not installed", consequence);
            item.fixed_by(installer.install("busybox-static"))
        }
    }
}

/// What foreign guests need to run the host's programs.
fn emulators(cache: &Cache) -> Vec<Item> {
    let all = Arch::ALL.into_iter();
    let foreign_ones = all.filter(|arch| Some(*arch) != Arch::host());
    let item = |arch| {
        let what = format!("the host's programs in {arch} guests");
        match foreign::cached(cache, arch) {
            Some(found) => Item::ok(what, found.user_emulator.display().to_string()),
            None => {
                let consequence = "the first such guest fetches an emulator and a busybox (65 MB)";
                let item = Item::degraded(what, "not cached", consequence);
                item.fixed_by(Some(advice::GET_ALL.to_owned()))
            }
        }
    };
    foreign_ones.map(item).collect()
}

fn depmod(installer: &Installer) -> Item {
    let consequence = "busybox's is used, which takes longer when a kernel is fetched";
    program(installer, "depmod", "kmod", consequence)
}

/// CPUs and memory.
fn host() -> Item {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let meminfo = fs::read("/proc/meminfo").unwrap_or_default();
    let Some(mib) = meminfo::bytes(&meminfo, "MemAvailable").map(|bytes| bytes >> 20) else {
        let consequence = "how much memory is free is not known";
        return Item::degraded("this machine", format!("{cpus} CPUs"), consequence);
    };
    let detail = format!("{cpus} CPUs, {mib} MiB of memory available");
    if mib < ENOUGH_MIB {
        let consequence = "larger machines do not fit; --scale memory=256M takes less on each node";
        return Item::degraded("this machine", detail, consequence);
    }
    if cpus < 2 {
        let consequence = "vCPUs take turns, which makes timings within guests coarse";
        return Item::degraded("this machine", detail, consequence);
    }
    Item::ok("this machine", detail)
}

/// Whether kernels can be fetched.
fn packages(installer: &Installer) -> Item {
    let what = "fetching kernels";
    let consequence = "what is not cached cannot be fetched; --kernel PATH works everywhere";
    let archive = match &installer.archive {
        Ok(archive) => archive,
        Err(problem) => return Item::degraded(what, problem, consequence),
    };
    let mut programs = ["apt-get", "apt-cache", "dpkg-deb"].into_iter();
    match programs.find(|name| advice::find_program(name).is_none()) {
        Some(program) => Item::degraded(what, format!("{program} is missing"), consequence),
        None => {
            let mirrors = archive.main.uris.join(" ");
            Item::ok(what, format!("{} from {mirrors}", archive.name))
        }
    }
}

/// What builds kernels of a git repository for this host's architecture.
fn kernel_builder(installer: &Installer) -> Item {
    const WHAT: &str = "compiler for kernels of a git repository";
    let programs = ["git", "gcc", "make", "flex", "bison", "bc"];
    let mut missing: Vec<&str> = programs.into();
    missing.retain(|name| advice::find_program(name).is_none());
    // objtool, which a build makes for itself, needs it.
    if !std::path::Path::new("/usr/include/libelf.h").exists() {
        missing.push("libelf-dev");
    }
    match missing.is_empty() {
        true => Item::ok(WHAT, programs.join(", ")),
        false => Item::degraded(
            WHAT,
            format!("not installed: {}", missing.join(", ")),
            "no --kernel git:REVISION",
        )
        .fixed_by(installer.install(&missing.join(" "))),
    }
}

/// What examples and experiments run, in guests as on the host.
fn programs(installer: &Installer) -> Vec<Item> {
    let useful = [
        ("fio", "no disk load in guests but nearfar's own"),
        ("redis-server", "the examples with a database are left out"),
        ("numactl", "guests cannot be compared with numactl's view"),
        ("strace", "no look at system calls in guests"),
    ];
    let item = |(name, consequence)| program(installer, name, name, consequence);
    useful.map(item).into()
}

/// An installed program, or the package that has it.
fn program(installer: &Installer, name: &str, package: &str, consequence: &str) -> Item {
    match advice::find_program(name) {
        Some(path) => Item::ok(name, path.display().to_string()),
        None => {
            Item::degraded(name, "not installed", consequence).fixed_by(installer.install(package))
        }
    }
}
