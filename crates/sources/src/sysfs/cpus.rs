//! Which CPUs there are, and in which state.
//!
//! ```text
//! possible ⊇ present ⊇ online     /sys/devices/system/cpu/{possible,present,online}
//!              online ⊇ isolated, nohz_full, allowed
//! ```
//!
//! Kernels before 2.6.26 have none of these files: there the directories `cpuN` are counted, of which each says in its
//! own `online` file whether it is; without sysfs `/proc/cpuinfo` is what is left. In a tree of which none of this was
//! gathered the state of a CPU is unknown.

use nearfar_machine::{CpuId, CpuSet, CpuStates, Known, MAX_NUMBER};

use super::cpuinfo::CpuInfo;
use super::notes::Notes;
use crate::tree::{Directory, Tree};
use crate::value;

/// Where sysfs has the CPUs.
pub(super) const DIRECTORY: &str = "sys/devices/system/cpu";

/// The CPUs of a tree by number.
#[derive(Debug, Default)]
pub(super) struct Cpus {
    /// CPUs that are there, online or not.
    pub(super) present: CpuSet,
    pub(super) online: CpuSet,
    /// CPUs that are there, of which nothing says whether they are online.
    pub(super) unknown: CpuSet,
}

/// Finds the CPUs. Both sets are empty in a tree that names none.
pub(super) fn find(tree: &Tree, cpuinfo: &CpuInfo<'_>, notes: &Notes) -> Cpus {
    let directory = tree.directory(DIRECTORY).ok();
    let read = |name: &str| {
        directory
            .as_ref()
            .and_then(|directory| set(directory, name, notes))
    };
    let (mut present, mut online) = (
        read("present").unwrap_or_default(),
        read("online").unwrap_or_default(),
    );
    let mut unknown = CpuSet::new();
    if online.is_empty() {
        let there = directory.map(|directory| by_directory(&directory, tree.is_live(), notes));
        let there = there.unwrap_or_default();
        present.extend(there.present.iter());
        online = there.online;
        // What the directories leave open: it names the online ones.
        let listed = match online.is_empty() || !there.unknown.is_empty() {
            true => cpuinfo.processors(),
            false => CpuSet::new(),
        };
        online.extend(listed.iter());
        if listed.is_empty() {
            unknown = present.difference(&there.present).union(&there.unknown);
        }
    }
    if !present.is_empty() && !online.is_subset(&present) {
        let place = tree.display("sys/devices/system/cpu/online");
        notes.note(
            place,
            format!("online CPUs are {online}, present ones {present}; both are taken as present"),
        );
    }
    present.extend(online.iter());
    Cpus {
        unknown: unknown.difference(&online),
        present,
        online,
    }
}

/// The sets of CPUs that have a state. `online` is what [`find`] found.
pub(super) fn states(tree: &Tree, online: CpuSet, notes: &Notes) -> CpuStates {
    let read = |name: &'static str| -> Known<CpuSet> {
        let directory = tree.directory(DIRECTORY).ok();
        let found = directory
            .as_ref()
            .and_then(|directory| set(directory, name, notes));
        Known::from_option(found, || {
            format!("no file {}", tree.display(&format!("{DIRECTORY}/{name}")))
        })
    };
    let possible = match read("possible") {
        Known::Yes(possible) if !online.is_subset(&possible) => {
            let place = tree.display("sys/devices/system/cpu/possible");
            notes.note(
                place,
                format!("possible CPUs are {possible}, but {online} are online; all are possible"),
            );
            Known::Yes(possible.union(&online))
        }
        possible => possible,
    };
    const CMDLINE: &str = "proc/cmdline";
    let cmdline = tree.text(CMDLINE).ok();
    let or_boot = |name: &'static str, from: fn(&str) -> Option<CpuSet>| match read(name) {
        Known::No { unknown_reason } => {
            let booted = cmdline.as_deref().and_then(from);
            if booted.is_some() {
                notes.read_instead(format!("{DIRECTORY}/{name}"), CMDLINE);
            }
            Known::from_option(booted, || unknown_reason)
        }
        known => known,
    };
    CpuStates {
        possible,
        isolated: or_boot("isolated", isolated_at_boot),
        nohz_full: match or_boot("nohz_full", |cmdline| boot_list(cmdline, "nohz_full=")) {
            // Both files came with Linux 4.1, but this one only where the kernel was built with tickless CPUs.
            Known::No { .. } if tree.exists(ISOLATED) && !tree.exists(NOHZ_FULL) => {
                Known::Yes(CpuSet::new())
            }
            tickless => tickless,
        },
        // No file in sysfs has it.
        managed_irq: Known::from_option(cmdline.as_deref().and_then(managed_irq_at_boot), || {
            format!("no list of CPUs in {}", tree.display(CMDLINE))
        }),
        allowed: allowed(tree),
        online,
    }
}

const ISOLATED: &str = "sys/devices/system/cpu/isolated";
const NOHZ_FULL: &str = "sys/devices/system/cpu/nohz_full";

/// One of the files that hold a list of CPUs.
fn set(directory: &Directory<'_>, name: &str, notes: &Notes) -> Option<CpuSet> {
    super::notes::read_noted(directory, name, notes, |bytes| {
        // Kernels before 5.x print an unset nohz_full mask so.
        if bytes.trim_ascii() == b"(null)" {
            Ok(CpuSet::new())
        } else {
            value::list(bytes)
        }
    })
}

/// Counts the directories `cpuN`.
fn by_directory(directory: &Directory<'_>, live: bool, notes: &Notes) -> Cpus {
    let names = match directory.names() {
        Ok(names) => names,
        Err(error) => {
            notes.unless_absent(error);
            return Cpus::default();
        }
    };
    let present: CpuSet = names
        .iter()
        .filter_map(|name| number(name, "cpu"))
        .map(CpuId)
        .collect();
    let placed: CpuSet = present
        .iter()
        .filter(|cpu| directory.exists(&format!("cpu{cpu}/topology")))
        .collect();
    let says = |cpu: CpuId| {
        super::notes::read_noted(
            directory,
            &format!("cpu{cpu}/online"),
            notes,
            value::natural,
        )
    };
    let (mut online, mut unknown) = (CpuSet::new(), CpuSet::new());
    for cpu in present.iter() {
        // A CPU that cannot be switched off has no file `online`; one that is off has no directory `topology`.
        let is_online = match says(cpu) {
            Some(online) => Some(online != 0),
            None if placed.contains(cpu) => Some(true),
            None => live.then_some(placed.is_empty()),
        };
        match is_online {
            Some(true) => _ = online.insert(cpu),
            Some(false) => {}
            None => _ = unknown.insert(cpu),
        }
    }
    Cpus {
        present,
        online,
        unknown,
    }
}

/// The number in a directory's name, `cpu12` or `node3`; `None` for other names and impossible numbers.
pub(super) fn number(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits
        .parse()
        .ok()
        .filter(|&number| plain && number <= MAX_NUMBER)
}

/// What the calling thread may run on. An extracted tree's `/proc/self` was that of the program that copied it.
fn allowed(tree: &Tree) -> Known<CpuSet> {
    if !tree.is_live() {
        return Known::no("an extracted tree has no caller");
    }
    let status = match tree.text("proc/thread-self/status") {
        Ok(status) => status,
        Err(error) => return Known::no(error.to_string()),
    };
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    match list.map(CpuSet::parse_list) {
        Some(Ok(allowed)) => Known::Yes(allowed),
        Some(Err(error)) => Known::no(error.to_string()),
        None => Known::no("/proc/thread-self/status has no Cpus_allowed_list"),
    }
}

/// A list of CPUs from the boot command line.
fn boot_list(cmdline: &str, parameter: &str) -> Option<CpuSet> {
    let list = cmdline
        .split_whitespace()
        .rev()
        .find_map(|word| word.strip_prefix(parameter))?;
    CpuSet::parse_list(list).ok()
}

/// `isolcpus=[flag,...]list` (Documentation/admin-guide/kernel-parameters.txt): flags without `domain` leave the
/// CPUs in the scheduler's balancing.
fn isolated_at_boot(cmdline: &str) -> Option<CpuSet> {
    let (flags, list) = isolcpus(cmdline)?;
    if !flags.is_empty() && !flags.contains(&"domain") {
        return Some(CpuSet::new());
    }
    CpuSet::parse_list(&list).ok()
}

/// The CPUs that `isolcpus=` names with the flag `managed_irq`; none if no such flag is set.
fn managed_irq_at_boot(cmdline: &str) -> Option<CpuSet> {
    match isolcpus(cmdline) {
        Some((flags, list)) if flags.contains(&"managed_irq") => CpuSet::parse_list(&list).ok(),
        _ => Some(CpuSet::new()),
    }
}

/// The flags and the list of the last `isolcpus=`.
fn isolcpus(cmdline: &str) -> Option<(Vec<&str>, String)> {
    let value = cmdline
        .split_whitespace()
        .rev()
        .find_map(|word| word.strip_prefix("isolcpus="))?;
    let is_flag = |part: &&str| part.starts_with(|c: char| c.is_ascii_alphabetic());
    let flags = value.split(',').take_while(is_flag).collect();
    let list: Vec<&str> = value.split(',').skip_while(is_flag).collect();
    Some((flags, list.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolcpus_flags_are_not_cpus() {
        for (cmdline, isolated, managed_irq) in [
            ("ro isolcpus=2-3,8 quiet", Some("2-3,8"), Some("")),
            ("isolcpus=domain,managed_irq,4", Some("4"), Some("4")),
            ("isolcpus=managed_irq,4", Some(""), Some("4")),
            ("isolcpus=1 isolcpus=2", Some("2"), Some("")),
            ("isolcpus=x", Some(""), Some("")),
            ("isolcpus=3-1", None, Some("")),
            ("isolcpus=managed_irq,3-1", Some(""), None),
            ("quiet", None, Some("")),
        ] {
            let list = |set: Option<CpuSet>| set.map(|set| set.to_string());
            assert_eq!(
                list(isolated_at_boot(cmdline)).as_deref(),
                isolated,
                "{cmdline}"
            );
            assert_eq!(
                list(managed_irq_at_boot(cmdline)).as_deref(),
                managed_irq,
                "{cmdline}"
            );
        }
    }

    #[test]
    fn only_numbers_that_a_cpu_can_have_are_read_from_names() {
        assert_eq!(number("cpu17", "cpu"), Some(17));
        for name in [
            "cpu",
            "cpu+1",
            "cpu-1",
            "cpufreq",
            "cpu65536",
            "cpu99999999999",
            "node1",
        ] {
            assert_eq!(number(name, "cpu"), None, "{name}");
        }
    }
}
