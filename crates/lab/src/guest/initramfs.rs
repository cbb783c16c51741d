//! What is in the archive that QEMU loads: busybox, two scripts, and modules.

use std::collections::BTreeSet;

use super::archive::Archive;
use super::modules::Modules;
use super::{PreparedGuest, arguments, read_needed, renew};
use crate::error::LabError;

/// What init.sh calls, apart from what the shell has itself.
const TOOLS: [&str; 9] = [
    "cp",
    "insmod",
    "ln",
    "mkdir",
    "mount",
    "mv",
    "sh",
    "switch_root",
    "cat",
];

/// What `udev` would make in `/dev`.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Where the kernel finds the emulator of the host's programs while it registers it.
const EMULATOR: &str = "bin/emulator";

/// The archive for all guests of a design: nothing in it is of one guest.
///
/// # Errors
/// When busybox or the emulator of a foreign guest cannot be read.
pub fn build(prepared: &PreparedGuest, modules: &Modules) -> Result<Vec<u8>, LabError> {
    let mut archive = Archive::new();
    for folder in ["bin", "dev", "proc", "sys", "modules", "later", "links"] {
        archive.folder(folder);
    }
    // The kernel opens it for the first process before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    let busybox = read_needed(
        &prepared.busybox,
        "install it with: apt install busybox-static",
    )?;
    archive.file("bin/busybox", 0o755, &busybox);
    for tool in TOOLS {
        archive.link(&format!("bin/{tool}"), "busybox");
    }
    archive.file("bin/renew", 0o755, &renew::program(prepared.design.arch));
    archive.file("init", 0o755, include_bytes!("init.sh"));
    archive.file("agent.sh", 0o755, include_bytes!("agent.sh"));
    archive.file("nearfar-lab", 0o755, include_bytes!("nearfar-lab.sh"));
    archive.file("guest.fstab", 0o644, include_bytes!("guest.fstab"));
    let mut settings = arguments::settings_of_design(prepared, modules);
    for (name, order) in &modules.hot_plug {
        settings += &format!("PLUG_{name}='{}'\n", order.join(" "));
    }
    archive.file("guest.conf", 0o644, settings.as_bytes());
    for name in modules
        .boot
        .iter()
        .chain(&modules.devices)
        .chain(&modules.late)
    {
        archive.file(&format!("modules/{name}.ko"), 0o644, modules.content(name));
    }
    for (link, target) in LINKS {
        archive.link(&format!("links/{link}"), target);
    }
    let later: BTreeSet<_> = modules
        .hot_plug
        .iter()
        .flat_map(|(_, order)| order)
        .collect();
    for name in later {
        archive.file(&format!("later/{name}.ko"), 0o644, modules.content(name));
    }
    if let Some(foreign) = &prepared.foreign {
        let emulator = read_needed(
            &foreign.user_emulator,
            &format!("run: {}", crate::advice::GET_ALL),
        )?;
        archive.file(EMULATOR, 0o755, &emulator);
        archive.file("foreign.binfmt", 0o644, registration().as_bytes());
    }
    Ok(archive.finish())
}

/// How x86-64 programs are recognised: Documentation/admin-guide/binfmt-misc.rst of the kernel; magic and mask as in QEMU's
/// scripts/qemu-binfmt-conf.sh. P keeps the program's own first argument, F opens the emulator at registration.
fn registration() -> String {
    let magic = concat!(
        r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00:",
        r"\xff\xff\xff\xff\xff\xfe\xfe\xfc\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    );
    format!(":nearfar-x86_64:M::{magic}:/{EMULATOR}:PF\n")
}
