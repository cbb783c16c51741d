//! `/proc/interrupts`: the one place that has counts on kernels of any age, and names on old ones.
//!
//! ```text
//!            CPU0       CPU1
//!  34:        310          0  PCI-MSIX-0000:21:00.0   1-edge      nvme0q1
//! NMI:          0          0  Non-maskable interrupts
//! ```
//!
//! 4096 CPUs and as many interrupts make some 180 MB of it, so it is read line by line, and of each line only the
//! sum and the name are kept.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};

use crate::tree::Tree;

pub(super) const FILE: &str = "proc/interrupts";
/// Longer than a line with 11 bytes for each of 65536 CPUs.
const LONGEST_LINE: usize = 1 << 20;
const BUFFER: usize = 256 << 10;
/// How many lines are kept.
const MOST_LINES: usize = 262_144;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InterruptLine {
    /// On all CPUs together.
    pub(crate) count: u64,
    pub(crate) source: Source,
    pub(crate) name: String,
}

/// Where an interrupt comes from: what the kernel prints between the counts and the handlers.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// The controller: `IR-PCI-MSIX-0000:81:00.0`, `ITS-MSI`, `IO-APIC`, `Hyper-V PCIe MSI`.
    pub(crate) chip: String,
    /// Its number there.
    pub(crate) number: Option<u64>,
}

/// The lines of numbered interrupts.
pub(crate) struct Table {
    pub(crate) lines: HashMap<u32, InterruptLine>,
    /// Where it was cut.
    cut: Option<CutLine>,
    /// Whether it ends with lines without a number, as every kernel with nodes prints them (`NMI`, `ERR`, `IPI0`): one cut
    /// between two lines shows no other sign.
    has_end: bool,
}

/// The last line, which ends too early: it, and what came behind it, is unknown.
#[derive(Clone, Copy)]
struct CutLine {
    /// Counted from 1.
    line: usize,
    /// The line's interrupt, if it shows one.
    number: Option<u32>,
}

impl Table {
    pub(crate) fn read(tree: &Tree) -> Option<Self> {
        let file = tree.file(FILE).map_err(|error| tree.unless_absent(error));
        let table = Self::parse(BufReader::with_capacity(BUFFER, file.ok()?));
        let mut table = table
            .map_err(|error| tree.note(FILE, error.to_string()))
            .ok()?;
        if let Some(CutLine { line, number }) = table.cut {
            table.lines.retain(|&of, _| Some(of) != number);
            let message = format!(
                "was cut in line {line}: the interrupts of this line and of those behind it are unknown"
            );
            tree.note(FILE, message);
        }
        Some(table)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&InterruptLine> {
        self.lines.get(&number)
    }

    /// Whether an interrupt without a line has no handler: its line may be in an end that is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.cut.is_none() && self.has_end
    }

    /// In no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &InterruptLine)> {
        self.lines.iter().map(|(&number, line)| (number, line))
    }

    pub(crate) fn parse(mut text: impl BufRead) -> io::Result<Self> {
        let mut lines = HashMap::new();
        let mut line = Vec::new();
        next_line(&mut text, &mut line)?;
        let is_cpu = |word: &&[u8]| word.starts_with(b"CPU");
        let cpus = line.split(u8::is_ascii_whitespace).filter(is_cpu).count();
        if cpus == 0 {
            // The kernel prints this line even where no interrupt has a handler.
            let message = "has no head with CPUs: it was not gathered";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let (mut at, mut has_end) = (1, false);
        let mut cut = (!line.ends_with(b"\n")).then_some(CutLine {
            line: at,
            number: None,
        });
        while next_line(&mut text, &mut line)? {
            at += 1;
            let parsed = parse_line(&line, cpus);
            let number = parsed.as_ref().map(|(number, ..)| *number);
            has_end = parsed.is_none();
            let is_short = parsed.as_ref().is_some_and(|(.., counts)| *counts < cpus);
            cut = (is_short || !line.ends_with(b"\n")).then_some(CutLine { line: at, number });
            if let Some((number, parsed, _)) = parsed
                && lines.len() < MOST_LINES
            {
                lines.insert(number, parsed);
            }
        }
        Ok(Self {
            lines,
            cut,
            has_end,
        })
    }
}

fn next_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = std::io::Read::take(&mut *text, LONGEST_LINE as u64).read_until(b'\n', line)?;
    if read == LONGEST_LINE {
        let message = format!("has a line of more than {LONGEST_LINE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(read > 0)
}

/// The number of an interrupt, its line, and how many counts the line has.
fn parse_line(line: &[u8], cpus: usize) -> Option<(u32, InterruptLine, usize)> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let number = std::str::from_utf8(&line[..colon]).ok()?;
    let number: u32 = number.trim().parse().ok()?;
    let mut rest = &line[colon + 1..];
    let (mut count, mut counts) = (0u64, 0);
    while counts < cpus {
        let (digits, behind) = next_word(rest);
        let Some(fired) = decimal(digits) else { break };
        count = count.saturating_add(fired);
        counts += 1;
        rest = behind;
    }
    let (source, name) = source_and_handlers(rest);
    Some((
        number,
        InterruptLine {
            count,
            source,
            name,
        },
        counts,
    ))
}

fn next_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace);
    text.split_at(end.unwrap_or(text.len()))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let number = digits.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    });
    number.filter(|_| !digits.is_empty())
}

/// The controller, the number of the interrupt there and the names of its handlers (show_interrupts() in
/// kernel/irq/proc.c): `IO-APIC 2-edge timer`, `GICv3 25 Level vgic`, `Hyper-V PCIe MSI 2048-edge nvme0q1`. Before Linux 4.1
/// x86 had no number: `PCI-MSI-edge eth0`.
fn source_and_handlers(text: &[u8]) -> (Source, String) {
    let text = String::from_utf8_lossy(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_kind = |kind: &str| {
        ["edge", "level", "fasteoi", "none"].contains(&kind.to_ascii_lowercase().as_str())
    };
    let ends_in_kind = |word: &&str| word.rsplit_once('-').is_some_and(|it| is_kind(it.1));
    let number = |word: &&str| -> Option<u64> {
        let (number, kind) = word.split_once('-').unwrap_or((word, "edge"));
        (is_kind(kind) && number.bytes().all(|b| b.is_ascii_digit()))
            .then(|| number.parse().ok())?
    };
    /// A controller's name has no more words.
    const MOST_WORDS: usize = 4;
    let numbered = match words.first().is_some_and(ends_in_kind) {
        true => None,
        false => (1..words.len().min(MOST_WORDS)).find(|&at| number(&words[at]).is_some()),
    };
    let (chip, behind) = match numbered {
        Some(at) => (words[..at].join(" "), at + 1),
        None => (words.first().copied().unwrap_or_default().to_owned(), 1),
    };
    let handlers = words.get(behind..).unwrap_or_default();
    // `Level`, or Xen's `-msi-x` behind `xen-pirq`.
    let of_controller = |word: &&&str| is_kind(word) || word.starts_with('-');
    let of_controller = handlers.iter().take_while(of_controller).count();
    let source = Source {
        chip,
        number: numbered.and_then(|at| number(&words[at])),
    };
    (
        source,
        handlers[of_controller..].join(" ").replace(", ", ","),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "           CPU0       CPU1       \n  0:        150          3   IO-APIC   2-edge      timer\n 24:          \
    0          0   PCI-MSIX-0000:20:00.0   0-edge      PCIe PME, aerdrv, pciehp\n 31:         10          5  \
    PCI-MSI-edge      nvme0q1\n 33:         1          2     GICv3  25 Level     vgic\n 40:  7\nNMI:   0   0   Non-maskable\n";

    #[test]
    fn counts_and_names_of_kernels_old_and_new() {
        let table = Table::parse(TEXT.as_bytes()).unwrap();
        let get = |number| {
            table
                .get(number)
                .map(|line| (line.count, line.name.as_str()))
        };
        assert_eq!(get(0), Some((153, "timer")));
        assert_eq!(get(24), Some((0, "PCIe PME,aerdrv,pciehp")));
        assert_eq!(get(31), Some((15, "nvme0q1")));
        assert_eq!(get(33), Some((3, "vgic")));
        assert_eq!(get(40), Some((7, "")));
        assert_eq!(table.lines.len(), 5);
    }

    #[test]
    fn controllers_have_names_of_one_word_and_of_several() {
        for (text, chip, number, name) in [
            (
                "IR-PCI-MSIX-0000:81:00.0   3-edge      eth0-TxRx-3",
                "IR-PCI-MSIX-0000:81:00.0",
                Some(3),
                "eth0-TxRx-3",
            ),
            (
                "ITS-MSI 524288 Edge      nvme0q0",
                "ITS-MSI",
                Some(524_288),
                "nvme0q0",
            ),
            (
                "Hyper-V PCIe MSI 4294967298-edge      mlx5_comp0@pci:c001:00:02.0",
                "Hyper-V PCIe MSI",
                Some(4_294_967_298),
                "mlx5_comp0@pci:c001:00:02.0",
            ),
            (
                "PCI-MSI-edge      eth0 (queue 3)",
                "PCI-MSI-edge",
                None,
                "eth0 (queue 3)",
            ),
            (
                "IR-IO-APIC    9-fasteoi   acpi",
                "IR-IO-APIC",
                Some(9),
                "acpi",
            ),
            (
                "xen-pirq    -msi-x     eth0-q1",
                "xen-pirq",
                None,
                "eth0-q1",
            ),
            (
                "GICv3  27 Level     arch_timer",
                "GICv3",
                Some(27),
                "arch_timer",
            ),
            ("IO-APIC   4-edge", "IO-APIC", Some(4), ""),
            ("", "", None, ""),
        ] {
            let source = Source {
                chip: chip.to_owned(),
                number,
            };
            assert_eq!(
                source_and_handlers(text.as_bytes()),
                (source, name.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        assert!(
            Table::parse(std::io::Read::take(
                std::io::BufReader::new(std::io::repeat(b'7')),
                3 << 20
            ))
            .is_err()
        );
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text in "[ 0-9:CPU\n\\-a-z]{0,200}") {
            let _ = Table::parse(bytes.as_slice());
            let _ = Table::parse(text.as_bytes());
        }
    }
}
