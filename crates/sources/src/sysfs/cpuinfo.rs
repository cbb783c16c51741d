//! `/proc/cpuinfo`: every architecture writes its own. Read only when sysfs leaves something open, since on x86 it
//! has more than a kilobyte for each CPU.
//!
//! ```text
//! processor  : 3                  x86, ia64, arm, powerpc, riscv, loongarch, mips
//! processor 3: version = 00, ...  s390
//! CPU3:      online               sparc
//! ```

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::OnceLock;

use nearfar_machine::{CpuId, CpuSet};

use crate::tree::{Reason, Tree};
use crate::value;

/// The path below the root.
pub(super) const PATH: &str = "proc/cpuinfo";
/// More than any kernel writes: 64 KiB for each of 1024 CPUs.
const LARGEST: u64 = 64 << 20;
/// What has the first CPU's lines in it.
const HEAD: u64 = 64 << 10;
/// Longer lines (a list of feature flags) are cut here.
const LONGEST_LINE: u64 = 16 << 10;

/// The file, read when first asked for.
#[derive(Debug)]
pub(super) struct CpuInfo<'t> {
    tree: &'t Tree,
    head: OnceLock<Content>,
    whole: OnceLock<Content>,
}

#[derive(Debug, Default)]
struct Content {
    processors: BTreeMap<CpuId, Place>,
    caches: Vec<String>,
    architecture: Option<&'static str>,
    machine: Option<String>,
    model: Option<String>,
    /// arm's numbers of who designed the first CPU, and which one it is.
    implementer: Option<String>,
}

/// Where a CPU sits, as far as this file says it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// `physical id`.
    pub(super) package: Option<i64>,
    /// Not in this file, but in `topology/die_id`.
    pub(super) die: Option<i64>,
    /// `core id`.
    pub(super) core: Option<i64>,
}

impl<'t> CpuInfo<'t> {
    pub(super) fn new(tree: &'t Tree) -> Self {
        Self {
            tree,
            head: OnceLock::new(),
            whole: OnceLock::new(),
        }
    }

    /// The CPUs it names: the online ones.
    pub(super) fn processors(&self) -> CpuSet {
        self.content().processors.keys().copied().collect()
    }

    /// Where it says a CPU sits.
    pub(super) fn place(&self, cpu: CpuId) -> Place {
        let place = self.content().processors.get(&cpu);
        place.copied().unwrap_or_default()
    }

    /// s390's lines that describe a cache (`cache0 : level=1 type=Data ...`), without their key.
    pub(super) fn caches(&self) -> &[String] {
        &self.content().caches
    }

    /// The architecture that writes such a file, by the name `uname -m` has for it.
    pub(super) fn architecture(&self) -> Option<&'static str> {
        let of_head = self.head().architecture;
        of_head.or_else(|| self.content().architecture)
    }

    /// What it calls the machine (powerpc, mips, arm's `Hardware`). x86 calls it nothing.
    pub(super) fn machine(&self) -> Option<&str> {
        let x86 = matches!(self.head().architecture, Some("x86_64" | "i686"));
        (!x86).then(|| self.content().machine.as_deref())?
    }

    /// The model of the first CPU: its name, or on arm the numbers of designer and part, `0x48 part 0xd01`.
    pub(super) fn model(&self) -> Option<&str> {
        self.head().model.as_deref()
    }

    fn head(&self) -> &Content {
        self.head.get_or_init(|| self.read(HEAD))
    }

    fn content(&self) -> &Content {
        self.whole.get_or_init(|| self.read(LARGEST))
    }

    fn read(&self, most: u64) -> Content {
        let mut content = Content::default();
        let read = self.tree.file(PATH).and_then(|file| {
            content
                .read_from(BufReader::new(file.take(most)))
                .map_err(|error| self.tree.unreadable(PATH, Reason::Other(error.to_string())))
        });
        if let Err(error) = read {
            self.tree.unless_absent(error);
        }
        content
    }
}

impl Content {
    fn read_from(&mut self, mut file: impl BufRead) -> std::io::Result<()> {
        let mut line = Vec::new();
        let mut current = None;
        loop {
            line.clear();
            let mut rest = (&mut file).take(LONGEST_LINE);
            if rest.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            // The rest of a line that was cut is read as a line of its own; without a key it is passed over.
            if let Ok(text) = std::str::from_utf8(&line)
                && let Some((key, value)) = text.split_once(':')
            {
                self.take(key.trim(), value.trim(), &mut current);
            }
        }
        // arm without SMP and m68k describe their only CPU without a number.
        if self.processors.is_empty() && self.architecture.is_some() {
            self.processors.insert(CpuId(0), Place::default());
        }
        Ok(())
    }

    fn take(&mut self, key: &str, value: &str, current: &mut Option<CpuId>) {
        if let Some(cpu) = processor(key, value) {
            *current = Some(cpu);
            self.processors.entry(cpu).or_default();
            return;
        }
        let place = current.and_then(|cpu| self.processors.get_mut(&cpu));
        match (key, place) {
            ("physical id", Some(place)) => place.package = value.parse().ok(),
            ("core id", Some(place)) => place.core = value.parse().ok(),
            ("machine" | "Hardware" | "system type", _)
                if self.machine.is_none() && !value.is_empty() =>
            {
                self.machine = Some(value.chars().take(128).collect());
            }
            // x86 and mips; loongarch; powerpc; riscv.
            ("model name" | "Model Name" | "cpu model" | "cpu" | "uarch", _)
                if self.model.is_none() && !value.is_empty() =>
            {
                self.model = Some(value.chars().take(128).collect());
            }
            ("CPU implementer", _) if self.implementer.is_none() => {
                self.implementer = Some(value.chars().take(16).collect());
            }
            ("CPU part", _) if self.model.is_none() => {
                let part: String = value.chars().take(16).collect();
                let implementer = self.implementer.as_ref();
                self.model = implementer.map(|by| format!("{by} part {part}"));
            }
            _ if key.len() < 8 && key.starts_with("cache") && value.starts_with("level=") => {
                self.caches.push(value.to_owned());
            }
            _ => {}
        }
        if self.architecture.is_none() {
            self.architecture = architecture(key, value);
        }
    }
}

/// The CPU that a line is the first one of.
fn processor(key: &str, value: &str) -> Option<CpuId> {
    let number = if key == "processor" {
        value
    } else if let Some(number) = key.strip_prefix("processor ") {
        number
    } else if matches!(value, "online" | "offline") {
        key.strip_prefix("CPU").filter(|_| value == "online")?
    } else {
        return None;
    };
    value::id(number)
}

/// A line that only one architecture writes.
fn architecture(key: &str, value: &str) -> Option<&'static str> {
    let has_flag = |flag: &str| value.split_ascii_whitespace().any(|word| word == flag);
    match key {
        "flags" if has_flag("lm") => Some("x86_64"),
        "flags" if has_flag("fpu") => Some("i686"),
        "arch" if value.starts_with("IA-64") => Some("ia64"),
        "vendor_id" if value.contains("S390") => Some("s390x"),
        "type" if value.starts_with("sun4u") || value.starts_with("sun4v") => Some("sparc64"),
        "CPU architecture" if value == "8" => Some("aarch64"),
        "CPU architecture" if value.starts_with('7') => Some("armv7l"),
        "isa" if value.starts_with("rv64") => Some("riscv64"),
        "isa" if value.starts_with("rv32") => Some("riscv32"),
        "ISA" if value.starts_with("loongarch") => Some("loongarch64"),
        "Model Name" if value.starts_with("Loongson-3") => Some("loongarch64"),
        "cpu" if value.starts_with("POWER") => Some("ppc64"),
        "timebase" => Some("ppc"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Content {
        let mut content = Content::default();
        content.read_from(text).unwrap();
        content
    }

    #[test]
    fn each_architecture_numbers_its_cpus_differently() {
        for (text, cpus) in [
            (
                "processor\t: 0\nphysical id\t: 1\n\nprocessor\t: 3\n",
                "0,3",
            ),
            (
                "# processors    : 2\nprocessor 1: version = 00\nprocessor 4: version = 00\n",
                "1,4",
            ),
            (
                "type\t\t: sun4u\nState:\nCPU6:\t\tonline\nCPU7:\t\toffline\nCPU10:\t\tonline\n",
                "6,10",
            ),
            ("Processor\t: ARMv7 rev 1\nCPU architecture: 7\n", "0"),
            ("processor : 70000\nprocessor : -1\nprocessor : x\n", ""),
            ("", ""),
        ] {
            let cpus_found: CpuSet = read(text.as_bytes()).processors.into_keys().collect();
            assert_eq!(cpus_found.to_string(), cpus, "{text}");
        }
    }

    #[test]
    fn places_belong_to_the_processor_above_them() {
        let content =
            read(b"physical id : 9\nprocessor : 0\nphysical id : 1\ncore id : 2\nprocessor : 1\n");
        assert_eq!(
            content.processors[&CpuId(0)],
            Place {
                package: Some(1),
                die: None,
                core: Some(2)
            }
        );
        assert_eq!(content.processors[&CpuId(1)], Place::default());
    }

    #[test]
    fn the_first_cpu_names_the_model() {
        for (text, model) in [
            (
                "processor : 0\nmodel name\t: A B @ 2 GHz\nprocessor : 1\nmodel name : C\n",
                Some("A B @ 2 GHz"),
            ),
            (
                "processor : 0\nCPU implementer : 0x48\nCPU part : 0xd01\n",
                Some("0x48 part 0xd01"),
            ),
            (
                "processor : 0\ncpu : POWER9, altivec supported\n",
                Some("POWER9, altivec supported"),
            ),
            ("processor : 0\nCPU part : 0xd01\n", None),
            ("", None),
        ] {
            assert_eq!(read(text.as_bytes()).model.as_deref(), model, "{text}");
        }
    }

    #[test]
    fn ten_megabytes_without_a_line_end_are_no_cpu() {
        assert!(read(&vec![b'x'; 10 << 20]).processors.is_empty());
    }
}
