//! `/proc/interrupts` and `/proc/softirqs`: counts since boot, a row an interrupt, a column an online CPU.
//!
//! ```text
//!            CPU0       CPU3
//!  34:        310          0  PCI-MSIX-0000:21:00.0   1-edge      eth0-TxRx-1
//! NET_RX:    4711         12
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use nearfar_machine::{CpuId, MAX_NUMBER};

use crate::text;

/// One row.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub cpus: BTreeMap<CpuId, u64>,
    /// The last word, in `/proc/interrupts` the names of the handlers; empty where nothing follows the counts.
    pub name: String,
}

impl Counts {
    /// How much larger the counts are than those of `before`, CPU by CPU.
    pub fn since(&self, before: &Self) -> BTreeMap<CpuId, u64> {
        let of = |(&cpu, &now): (&CpuId, &u64)| {
            let then = before.cpus.get(&cpu).copied().unwrap_or(0);
            (cpu, now.saturating_sub(then))
        };
        self.cpus.iter().map(of).collect()
    }
}

/// The rows of `/proc/interrupts` with these labels.
///
/// # Errors
/// When the file cannot be read.
pub fn interrupts(is_wanted: impl Fn(&str) -> bool) -> io::Result<BTreeMap<String, Counts>> {
    parse(BufReader::new(File::open("/proc/interrupts")?), is_wanted)
}

/// The rows of `/proc/softirqs` with these labels.
///
/// # Errors
/// When the file cannot be read.
pub fn softirqs(is_wanted: impl Fn(&str) -> bool) -> io::Result<BTreeMap<String, Counts>> {
    parse(BufReader::new(File::open("/proc/softirqs")?), is_wanted)
}

/// The rows whose label, the word before the colon, is wanted. A line that is not a row is left out.
///
/// # Errors
/// When a line cannot be read.
pub fn parse(
    content: impl BufRead,
    is_wanted: impl Fn(&str) -> bool,
) -> io::Result<BTreeMap<String, Counts>> {
    let mut lines = content.split(b'\n');
    let header = lines.next().transpose()?.unwrap_or_default();
    let cpus: Vec<Option<CpuId>> = text::words(&header).map(cpu).collect();
    let mut rows = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some(end) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let label = String::from_utf8_lossy(line[..end].trim_ascii()).into_owned();
        if is_wanted(&label) {
            rows.insert(label, counts(&cpus, &line[end + 1..]));
        }
    }
    Ok(rows)
}

fn counts(cpus: &[Option<CpuId>], rest: &[u8]) -> Counts {
    let numbers = text::words(rest).map_while(text::number::<u64>);
    let cpus = cpus.iter().zip(numbers);
    let last = text::words(rest).last();
    let last = last.filter(|it| text::number::<u64>(it).is_none());
    Counts {
        name: String::from_utf8_lossy(last.unwrap_or_default()).into_owned(),
        cpus: cpus
            .filter_map(|(&cpu, count)| Some((cpu?, count)))
            .collect(),
    }
}

fn cpu(word: &[u8]) -> Option<CpuId> {
    let number = text::number(word.strip_prefix(b"CPU")?)?;
    (number <= MAX_NUMBER).then_some(CpuId(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"           CPU0       CPU3\n 34:        310          7  PCI-MSIX-0000:21:00.0   1-edge      eth0-TxRx-1\n\
                           NET_RX:    4711         12\nERR:          0\nno row\n";

    #[test]
    fn a_row_has_a_count_for_each_cpu_and_the_name_behind_them() {
        let rows = parse(TABLE, |_| true).unwrap();
        let counts = |label: &str| Vec::from_iter(rows[label].cpus.clone());
        assert_eq!(counts("34"), [(CpuId(0), 310), (CpuId(3), 7)]);
        assert_eq!(rows["34"].name, "eth0-TxRx-1");
        assert_eq!(counts("NET_RX"), [(CpuId(0), 4711), (CpuId(3), 12)]);
        assert_eq!((rows["NET_RX"].name.as_str(), rows.len()), ("", 3));
        assert_eq!(parse(TABLE, |label| label == "34").unwrap().len(), 1);
    }

    #[test]
    fn what_was_counted_between_two_readings_is_by_cpu() {
        let row = |counts: [u64; 2]| Counts {
            cpus: [(CpuId(0), counts[0]), (CpuId(3), counts[1])].into(),
            name: String::new(),
        };
        let since = row([5, 9]).since(&row([2, 9]));
        assert_eq!(Vec::from_iter(since), [(CpuId(0), 3), (CpuId(3), 0)]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            parse(bytes.as_slice(), |_| true).unwrap();
        }
    }
}
