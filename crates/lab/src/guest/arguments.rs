//! QEMU's command line for a guest: the design's hardware, the kernel, and the channels.
//!
//! What QEMU inherits is named by a [`Part`]; on the command line that is shown it reads `/dev/fd/{initramfs}`, on the
//! one that is run it is a number.

use std::ffi::OsStr;
use std::path::Path;

use nearfar_machine::Acceleration;

use crate::arch::Arch;
use crate::design::{Design, LateDevice};
use crate::guest::modules::Modules;
use crate::guest::{PreparedGuest, Root, Start, tsc};
use crate::shell::quoted;

/// Something that QEMU inherits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// The archive with the guest's first root.
    Initramfs,
    /// The monitor.
    Monitor,
    /// The kernel's console.
    Console,
    /// The guest's terminal.
    Terminal,
    /// A port, by its place in [`PORTS`].
    Port(usize),
    /// The content of a disk, by its name.
    Disk(String),
    /// The memory shared with the delay plugin.
    Delays,
    /// The plugin's file, which is also preloaded. Not on the command line, and by descriptor: `LD_PRELOAD` has no way to write a
    /// path with spaces.
    Plugin,
    /// The memory of a node, of a guest that is saved or starts from a saved one.
    Memory(usize),
    /// Where a guest's state is saved to, or loaded from. Not on the command line: a command of the monitor names it.
    State,
}

/// The ports between the guest's agent and us.
pub const PORTS: [&str; 5] = ["run", "link", "in", "out", "err"];

/// Bytes of a disk that is plugged in at run time.
pub const SPARE_DISK_BYTES: u64 = 64 << 20;

/// The block node of the disk for a spare port.
pub fn spare_disk(port: &str) -> String {
    format!("spare-{port}")
}

/// The block nodes a guest gets, those for its spare ports among them: name and bytes.
pub fn disks(design: &Design) -> Vec<(String, u64)> {
    let own = design.disks.iter();
    let own = own.map(|disk| (disk.name.clone(), disk.bytes));
    let spare = design.spare_ports.iter();
    let spare = spare.map(|port| (spare_disk(&port.id), SPARE_DISK_BYTES));
    own.chain(spare).collect()
}

/// All of QEMU's arguments. `kernel` is the image that is loaded, `number` names what is inherited.
pub fn arguments(
    prepared: &PreparedGuest,
    start: Start,
    kernel: &Path,
    number: &dyn Fn(&Part) -> String,
) -> Vec<String> {
    let first = ["-nodefaults", "-no-user-config", "-no-reboot"];
    let mut all = Arguments(first.map(str::to_owned).into());
    all.option("-display", "none");
    let memory = |access: &str, node: usize| {
        format!("{access},mem-path=/dev/fd/{}", number(&Part::Memory(node)))
    };
    let (qemu, acceleration) = (&prepared.qemu, prepared.acceleration);
    let memory_file = |node: usize| match start {
        // The guest writes to copies of the pages: the file may belong to several guests.
        Start::Load => memory("share=off,readonly=on,rom=off", node),
        Start::Boot | Start::Save => memory("share=on", node),
    };
    let design = &prepared.design;
    all.0
        .extend(design.start_arguments(qemu, acceleration, start, &memory_file));
    if start == Start::Load {
        all.option("-incoming", "defer");
    }
    all.option("-kernel", kernel.display());
    all.option("-initrd", format!("/dev/fd/{}", number(&Part::Initramfs)));
    all.option("-append", kernel_words(prepared).join(" "));
    all.channel("monitor", number(&Part::Monitor));
    all.option("-mon", "chardev=monitor,mode=control");
    all.channel("console", number(&Part::Console));
    all.option("-serial", "chardev:console");
    folders(prepared, &mut all);
    ports(prepared, number, &mut all);
    let time = prepared.delay.as_ref().and_then(|delay| delay.time);
    let disk_ns = time.and_then(|time| time.disk_ns);
    for (place, (name, bytes)) in disks(&prepared.design).into_iter().enumerate() {
        if let Some(ns) = disk_ns {
            let disk = format!("node-name={name},size={bytes},latency-ns={ns}");
            all.option("-blockdev", format!("driver=null-co,read-zeroes=on,{disk}"));
            continue;
        }
        let (set, fd) = (place + 1, number(&Part::Disk(name.clone())));
        all.option("-add-fd", format!("fd={fd},set={set},opaque={name}"));
        all.option(
            "-blockdev",
            format!("driver=raw,node-name={name},file.driver=file,file.filename=/dev/fdset/{set},file.locking=off"),
        );
    }
    if let Some(delay) = &prepared.delay {
        all.0.extend(delay.arguments(number(&Part::Delays)));
    }
    all.0
}

/// The kernel's command line. A later word wins over an earlier one, so the user's come last.
fn kernel_words(prepared: &PreparedGuest) -> Vec<String> {
    let console = console_device(prepared.design.arch);
    // What a kernel prints that has met an exception is no measurement any more, and some such kernels hang: it ends there.
    let mut words = vec![format!("console={console}")];
    words.extend(["oops=panic", "panic=-1", "printk.devkmsg=on"].map(str::to_owned));
    if !prepared.request.console {
        words.push("quiet".to_owned());
    }
    // Self tests and initialisations that a guest of minutes has no use for; measured in docs/lab-guests.md.
    words.push("cryptomgr.notests".to_owned());
    if prepared.design.arch == Arch::X86_64 {
        words.extend(["no_timer_check", "tsc=reliable", "8250.nr_uarts=1"].map(str::to_owned));
        if prepared.acceleration == Acceleration::Tcg {
            // Each CPU that comes up measures its delay loop against the timer's ticks. Under emulation on few host CPUs ticks are lost,
            // and with 64 vCPUs the boot got no further. Any generous figure does: the kernel delays by the TSC.
            words.push("lpj=5000000".to_owned());
            words.extend(tsc::mhz().map(|mhz| format!("tsc_early_khz={mhz}000")));
        }
    }
    if starts_cpus_late(prepared) {
        words.push("maxcpus=1".to_owned());
    }
    words.push(format!("initcall_blacklist={}", SKIPPED.join(",")));
    words.extend(prepared.design.append.iter().cloned());
    words.extend(prepared.request.append.iter().cloned());
    words
}

/// More vCPUs than this are started by the guest's first process. Until a kernel has its timers, each CPU that it has started is
/// interrupted 250 times a second; of 96, a host that does other work emulates no more of these than come, and the boot stands still.
const MOST_CPUS_AT_BOOT: usize = 32;

fn starts_cpus_late(prepared: &PreparedGuest) -> bool {
    prepared.acceleration == Acceleration::Tcg
        && prepared.design.cpu_nodes.len() > MOST_CPUS_AT_BOOT
}

/// Entropy collection by jitter, certificates of module signatures, and trusted keys: slow to set up under emulation.
const SKIPPED: [&str; 3] = [
    "jent_mod_init",
    "load_system_certificate_list",
    "init_encrypted",
];

/// The device of the kernel's console.
fn console_device(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "ttyS0",
        Arch::Aarch64 => "ttyAMA0",
        Arch::Powerpc64le => "hvc0",
    }
}

/// The device of the guest's terminal: the first of the kernel's hypervisor consoles that is not its console.
fn terminal_device(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 | Arch::Aarch64 => "/dev/hvc0",
        Arch::Powerpc64le => "/dev/hvc1",
    }
}

/// The first root bus.
fn root_bus(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 | Arch::Aarch64 => "pcie.0",
        Arch::Powerpc64le => "pci.0",
    }
}

/// The host's root, the kernel's modules and the results folder, by 9p.
fn folders(prepared: &PreparedGuest, all: &mut Arguments) {
    let bus = root_bus(prepared.design.arch);
    let mut share = |name: &str, folder: &Path, slot: u32, access: &str| {
        // A comma in a value is doubled (QEMU's manual, "-option values").
        let path = folder.display().to_string().replace(',', ",,");
        all.option(
            "-fsdev",
            format!("local,id={name},path={path},security_model=none,multidevs=remap{access}"),
        );
        all.option(
            "-device",
            format!("virtio-9p-pci,fsdev={name},mount_tag=nearfar.{name},disable-legacy=on,bus={bus},addr={slot:#x}"),
        );
    };
    share("root", Path::new("/"), 0x18, ",readonly=on");
    if let Some(modules) = &prepared.kernel.modules {
        share("modules", modules, 0x19, ",readonly=on");
    }
    // Always there, so that a saved guest fits with and without such a folder; without one nothing mounts it.
    match &prepared.request.results {
        Some(results) => share("results", results, 0x1a, ""),
        None => share("results", Path::new("/"), 0x1a, ",readonly=on"),
    }
}

/// The terminal and the ports of the agent.
fn ports(prepared: &PreparedGuest, number: &dyn Fn(&Part) -> String, all: &mut Arguments) {
    let bus = root_bus(prepared.design.arch);
    all.option(
        "-device",
        format!("virtio-serial-pci,id=ports,disable-legacy=on,max_ports=8,bus={bus},addr=0x1b"),
    );
    all.channel("terminal", number(&Part::Terminal));
    all.option("-device", "virtconsole,chardev=terminal,bus=ports.0,nr=0");
    for (place, name) in PORTS.iter().enumerate() {
        all.channel(name, number(&Part::Port(place)));
        let nr = place + 1;
        all.option(
            "-device",
            format!("virtserialport,chardev={name},bus=ports.0,nr={nr},name=nearfar.{name}"),
        );
    }
}

/// What every guest of a design has to know, as assignments of a shell; part of the first root, and so of a saved guest.
pub fn settings_of_design(prepared: &PreparedGuest, modules: &Modules) -> String {
    format!(
        "BOOT_MODULES='{}'\nDEVICE_MODULES='{}'\nLATE_MODULES='{}'\nSHARE_MODULES={}\nRELEASE='{}'\nFOREIGN={}\nLATE_CPUS={}\nPARK_CPUS={}\nTERMINAL={}\n",
        modules.boot.join(" "),
        modules.devices.join(" "),
        modules.late.join(" "),
        flag(prepared.kernel.modules.is_some()),
        prepared.kernel.release,
        flag(prepared.foreign.is_some()),
        flag(starts_cpus_late(prepared)),
        flag(prepared.design.arch == Arch::Powerpc64le),
        terminal_device(prepared.design.arch),
    )
}

/// What one guest has to know, as assignments of a shell; sent to it once it has booted or its state is loaded.
pub fn settings_of_guest(
    prepared: &PreparedGuest,
    token: &str,
    machine_id: &str,
    late: &[LateDevice],
) -> String {
    let root = match prepared.request.root {
        Root::Overlay => "overlay",
        Root::ReadOnly => "read-only",
    };
    let addresses = late.iter().map(|device| device.address.to_string());
    let addresses: Vec<_> = addresses.collect();
    let drmgr = prepared.drmgr.as_ref().map(|it| it.as_os_str());
    format!(
        "ROOT={root}\nRESULTS={}\nTOKEN={token}\nMACHINE_ID={machine_id}\nLATE_DEVICES='{}'\nEMULATION={}\nDRMGR={}\n",
        results_folder(prepared).unwrap_or_default(),
        addresses.join(" "),
        quoted(OsStr::new(&emulation_word(prepared))),
        quoted(drmgr.unwrap_or_default()),
    )
}

/// The guest's description as one word of a kernel's command line: JSON without spaces. Compact JSON has some in strings only,
/// where they can be escaped.
fn emulation_word(prepared: &PreparedGuest) -> String {
    let json = serde_json::to_string(&prepared.emulated_guest()).unwrap_or_default();
    json.replace(' ', "\\u0020")
}

/// Where a guest finds the folder that it may write to, if it has one. A root that is read-only has no place of its own for it.
pub fn results_folder(prepared: &PreparedGuest) -> Option<&'static str> {
    let folder = match prepared.request.root {
        Root::Overlay => "/results",
        Root::ReadOnly => "/run/nearfar-lab/results",
    };
    prepared.request.results.as_ref().map(|_| folder)
}

fn flag(is_set: bool) -> &'static str {
    if is_set { "yes" } else { "" }
}

struct Arguments(Vec<String>);

impl Arguments {
    fn option(&mut self, name: &str, value: impl ToString) {
        self.0.extend([name.to_owned(), value.to_string()]);
    }

    fn channel(&mut self, name: &str, number: impl ToString) {
        let fd = number.to_string();
        self.option("-chardev", format!("socket,id={name},fd={fd}"));
    }
}
