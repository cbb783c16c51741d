//! Which machine this is: kernel, architecture, product, host name.
//!
//! An extracted tree has no `uname`. What stands in for it, best first: files of `/proc/sys/kernel` and
//! `/proc/version`, the note that hwloc's gather script leaves in `proc/hwloc-nofile-info`, and for the architecture
//! the shape of `/proc/cpuinfo`.

use std::time::{SystemTime, UNIX_EPOCH};

use nearfar_machine::{Emulation, Known, Origin, SourceKind};

use super::cpuinfo::CpuInfo;
use crate::request::Want;
use crate::tree::Tree;
use crate::value;

/// Longer values are cut: nothing that names a machine is.
const LONGEST: usize = 256;

/// Reads where the tree comes from.
pub(super) fn read(tree: &Tree, cpuinfo: &CpuInfo<'_>, want: &Want) -> Origin {
    let place = tree.place().display().to_string();
    let mut origin = match tree.is_live() {
        true => Origin::new(SourceKind::Live, "this system"),
        false if tree.is_in_memory() => Origin::new(SourceKind::Archive, place),
        false => Origin::new(SourceKind::Tree, place),
    };
    let gathered = word(tree, "proc/hwloc-nofile-info", usize::MAX).unwrap_or_default();
    let gathered = |key: &str| {
        let value = cut(field(&gathered, key)?);
        Some(value).filter(|value| !value.is_empty())
    };
    origin.host = word(tree, "proc/sys/kernel/hostname", LONGEST)
        .or_else(|| word(tree, "etc/hostname", LONGEST))
        .or_else(|| gathered("HostName"));
    // A tree's boot ended, or is another machine's: what is written to it stays.
    let boot = || word(tree, "proc/sys/kernel/random/boot_id", LONGEST);
    origin.boot = tree.is_live().then(boot).flatten();
    let kernel = word(tree, "proc/sys/kernel/osrelease", LONGEST)
        .or_else(|| release(&word(tree, "proc/version", LONGEST)?))
        .or_else(|| gathered("OSRelease"));
    origin.kernel = Known::from_option(kernel, || {
        format!("{} does not have it", tree.display("proc/version"))
    });
    origin.kernel_base = word(tree, "proc/version_signature", LONGEST)
        .and_then(|signature| ubuntu(&signature))
        .or_else(|| debian(&word(tree, "proc/version", usize::MAX)?))
        .or_else(|| debian(&gathered("OSVersion")?));
    let own = || {
        rustix::system::uname()
            .machine()
            .to_string_lossy()
            .into_owned()
    };
    let architecture = word(tree, "proc/sys/kernel/arch", LONGEST)
        .or_else(|| tree.is_live().then(own))
        .or_else(|| gathered("Architecture"))
        .or_else(|| cpuinfo.architecture().map(str::to_owned));
    origin.architecture = Known::from_option(architecture, || {
        format!("{} does not have it", tree.display(super::cpuinfo::PATH))
    });
    origin.product = Known::from_option(
        product(tree, cpuinfo),
        || "neither DMI nor a device tree names the machine",
    );
    origin.firmware = firmware(tree);
    if want.cpu_model {
        origin.cpu_model = cpuinfo.model().map(str::to_owned);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let now = now.filter(|_| tree.is_live());
    origin.taken_at_s = now.map(|since| since.as_secs());
    let cmdline = word(tree, "proc/cmdline", usize::MAX);
    origin.emulation = cmdline.and_then(|cmdline| emulation(&cmdline));
    origin
}

/// A file of the firmware's DMI table (Documentation/ABI/testing/sysfs-class-dmi).
fn dmi(tree: &Tree, name: &str) -> Option<String> {
    word(tree, &format!("sys/class/dmi/id/{name}"), LONGEST)
        .or_else(|| word(tree, &format!("sys/devices/virtual/dmi/id/{name}"), LONGEST))
}

/// Version and date of the firmware; the date as ISO 8601 where DMI has its own form of it, MM/DD/YYYY.
fn firmware(tree: &Tree) -> Option<String> {
    let date = dmi(tree, "bios_date").map(|date| match date.split('/').collect::<Vec<_>>()[..] {
        [month, day, year] if year.len() == 4 => format!("{year}-{month:0>2}-{day:0>2}"),
        _ => date,
    });
    match (dmi(tree, "bios_version"), date) {
        (Some(version), Some(date)) => Some(format!("{version} ({date})")),
        (version, date) => version.or(date),
    }
}

fn product(tree: &Tree, cpuinfo: &CpuInfo<'_>) -> Option<String> {
    let both = match (dmi(tree, "sys_vendor"), dmi(tree, "product_name")) {
        (Some(vendor), Some(name)) if name.starts_with(&vendor) => Some(name),
        (Some(vendor), Some(name)) => Some(format!("{vendor} {name}")),
        (vendor, name) => vendor.or(name),
    };
    both.or_else(|| word(tree, "proc/device-tree/model", LONGEST))
        .or_else(|| word(tree, "sys/firmware/devicetree/base/model", LONGEST))
        .or_else(|| mainframe(&word(tree, "proc/sysinfo", usize::MAX)?))
        // On the live system and on x86 the other files are there; cpuinfo is large and not worth reading for this.
        .or_else(|| (!tree.is_live()).then(|| cpuinfo.machine().map(str::to_owned))?)
}

/// s390's `/proc/sysinfo`: `Manufacturer: IBM`, `Type: 2817`, `Model: 756 M15`.
fn mainframe(sysinfo: &str) -> Option<String> {
    let fields = ["Manufacturer", "Type", "Model"].into_iter();
    let fields = fields.filter_map(|key| field(sysinfo, key));
    let words: Vec<&str> = fields.flat_map(str::split_ascii_whitespace).collect();
    (!words.is_empty()).then(|| cut(&words.join(" ")))
}

/// The value of a line `key: value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.map(str::trim)
}

/// The description that the lab puts into its guests' command line as JSON: `nearfar.lab={"machine":"two-node",...}`; a
/// label in quotes before 0.1. The kernel takes a word with a dot for a module's parameter and passes it to no program.
fn emulation(cmdline: &str) -> Option<Emulation> {
    let (_, text) = cmdline.split_once("nearfar.lab=")?;
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    match values.next()? {
        Ok(Emulation::Label(label)) if label.is_empty() => None,
        Ok(emulation) => Some(emulation),
        Err(error) => Some(Emulation::Label(format!(
            "an emulated machine whose description cannot be read: {error}"
        ))),
    }
}

/// `Linux version 6.12.0-1-amd64 (builder@host) ...`
fn release(version: &str) -> Option<String> {
    let release = version.strip_prefix("Linux version ")?;
    release.split_ascii_whitespace().next().map(str::to_owned)
}

/// The base of an Ubuntu kernel, the last word of `/proc/version_signature`: `Ubuntu 5.15.0-112.122-generic 5.15.152`.
fn ubuntu(signature: &str) -> Option<String> {
    let [_, _, base] = signature.split_ascii_whitespace().collect::<Vec<_>>()[..] else {
        return None;
    };
    is_version(base).then(|| base.to_owned())
}

/// The base of a Debian kernel, in its build string: `... SMP PREEMPT_DYNAMIC Debian 6.1.90-1 (2024-05-03)`.
fn debian(build: &str) -> Option<String> {
    let (_, rest) = build.split_once(" Debian ")?;
    let package = rest.split_ascii_whitespace().next()?;
    let base = package.split(['-', '~', '+']).next()?;
    is_version(base).then(|| base.to_owned())
}

fn is_version(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    (2..=4).contains(&parts.len()) && parts.iter().all(|part| part.parse::<u32>().is_ok())
}

/// A file's content, trimmed; nothing when there is none in it.
fn word(tree: &Tree, path: &str, longest: usize) -> Option<String> {
    let text = tree.value(path, value::word)?;
    let text = if longest == LONGEST { cut(&text) } else { text };
    (!text.is_empty()).then_some(text)
}

fn cut(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mainframe_names_itself_in_sysinfo() {
        let sysinfo = "Manufacturer:         IBM             \nType:                 2817\nModel:     756   M15\n";
        assert_eq!(
            super::mainframe(sysinfo).as_deref(),
            Some("IBM 2817 756 M15")
        );
        assert_eq!(super::mainframe("garbage"), None);
    }

    #[test]
    fn distributions_name_the_kernel_they_started_from() {
        let debian = "Linux version 6.1.0-21-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld \
                  (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.90-1 (2024-05-03)";
        assert_eq!(super::debian(debian).as_deref(), Some("6.1.90"));
        assert_eq!(
            super::debian("#1 SMP PREEMPT_DYNAMIC Debian 6.12.9-1~bpo12+1 (2025-01-19)").as_deref(),
            Some("6.12.9")
        );
        for other in [
            "#1 SMP PREEMPT_DYNAMIC @0",
            "x Debian ",
            "x Debian sid",
            "x Debian -",
            "(gcc (Debian 1",
        ] {
            assert_eq!(super::debian(other), None, "{other}");
        }
        assert_eq!(
            super::ubuntu("Ubuntu 5.15.0-112.122-generic 5.15.152").as_deref(),
            Some("5.15.152")
        );
        for other in ["", "Ubuntu 5.15.0-112.122-generic", "Ubuntu a b", "a b c d"] {
            assert_eq!(super::ubuntu(other), None, "{other}");
        }
    }

    #[test]
    fn a_guest_of_the_lab_carries_its_description() {
        let booted = r#"nearfar.lab={"label":"x","machine":"two\u0020node","kernel":"6.12","architecture":"x86_64","acceleration":"tcg"} quiet"#;
        let emulation = super::emulation(booted).unwrap();
        let guest = emulation.guest().unwrap();
        assert_eq!(
            (guest.machine.as_str(), guest.kernel.as_str()),
            ("two node", "6.12")
        );
    }

    #[test]
    fn a_label_in_quotes_is_read_and_what_cannot_be_read_is_said() {
        let label = |cmdline| super::emulation(cmdline).map(|emulation| emulation.to_string());
        assert_eq!(
            label("quiet nearfar.lab=\"two-node, delays 10: 400 ns\" panic=-1").as_deref(),
            Some("two-node, delays 10: 400 ns")
        );
        for unreadable in [
            "quiet nearfar.lab=\"cut o",
            "nearfar.lab={} quiet",
            "nearfar.lab=x",
        ] {
            assert!(
                label(unreadable).is_some_and(|label| label.contains("cannot be read")),
                "{unreadable}"
            );
        }
        for other in ["quiet panic=-1", "nearfar.lab=\"\"", "nearfar.lab="] {
            assert_eq!(label(other), None, "{other}");
        }
    }
}
