//! `/proc/PID/maps` and `smaps`: the address ranges of a process (proc_pid_maps(5)).

use std::io::{self, BufRead};
use std::ops::Range;

use crate::text;

/// One mapping of `maps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapsEntry<'a> {
    pub addresses: Range<u64>,
    /// Whether it may be read, written or executed; otherwise it reserves addresses.
    pub is_accessible: bool,
    /// Whether it may be executed.
    pub is_executable: bool,
    /// Whether writes are seen by all that map it (`s`).
    pub is_shared: bool,
    /// Where it begins in its file, in bytes.
    pub offset: u64,
    /// The file system's device in hexadecimal, `fd:01`; `00:00` for anonymous memory.
    pub device: &'a [u8],
    /// The file, or the kernel's name for it: `[heap]`, `/dev/shm/x`, `/SYSV00000000 (deleted)`; empty for anonymous memory.
    pub name: &'a [u8],
}

impl<'a> MapsEntry<'a> {
    /// Of one line: `7f0000000000-7f0000400000 rw-p 00000000 00:00 0   /dev/shm/x`; `None` for what is none.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let addresses = range(line)?;
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let permissions = words.nth(1).unwrap_or_default();
        let offset = words.next().and_then(text::hexadecimal).unwrap_or(0);
        let device = words.next().unwrap_or_default();
        let name = words.nth(1).unwrap_or_default().trim_ascii_start();
        Some(Self {
            addresses,
            is_accessible: permissions.iter().any(|byte| b"rwx".contains(byte)),
            is_executable: permissions.contains(&b'x'),
            is_shared: permissions.contains(&b's'),
            offset,
            device,
            name,
        })
    }
}

/// Calls `take` for each mapping.
///
/// # Errors
/// When the text cannot be read.
pub fn each(maps: impl BufRead, mut take: impl FnMut(MapsEntry<'_>)) -> io::Result<()> {
    text::each_line(maps, |line| {
        if let Some(mapping) = MapsEntry::parse(line) {
            take(mapping);
        }
    })
}

/// Calls `take` for the addresses of each mapping.
///
/// # Errors
/// When the text cannot be read.
pub fn each_range(maps: impl BufRead, mut take: impl FnMut(Range<u64>)) -> io::Result<()> {
    each(maps, |mapping| take(mapping.addresses))
}

/// Addresses of a process that may have pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    page_bytes: u64,
    /// Each with the number of pages before it.
    ranges: Vec<(u64, Range<u64>)>,
    pages: u64,
}

impl Addresses {
    /// Of mappings that can be accessed: runtimes reserve the addresses of a heap without access to them, hundreds of times what
    /// they use. What the kernel maps into each process (`[vdso]`) has no node.
    ///
    /// # Errors
    /// When the text cannot be read.
    pub fn read(maps: impl BufRead, page_bytes: u64) -> io::Result<Self> {
        let mut addresses = Self {
            page_bytes,
            ranges: Vec::new(),
            pages: 0,
        };
        each(maps, |mapping| {
            let is_kernels = mapping.name.starts_with(b"[v");
            let Range { start, end } = mapping.addresses;
            let pages = end.saturating_sub(start) / page_bytes;
            if mapping.is_accessible && !is_kernels && pages > 0 {
                let before = addresses.pages;
                addresses.pages = before.saturating_add(pages);
                addresses.ranges.push((before, start..end));
            }
        })?;
        Ok(addresses)
    }

    pub fn bytes(&self) -> u64 {
        self.pages.saturating_mul(self.page_bytes)
    }

    /// The address of a page of each of `parts` equal parts, or of all pages where they are fewer. `pick` draws a number from a
    /// range.
    pub fn draw(&self, parts: u64, mut pick: impl FnMut(Range<u64>) -> u64) -> Vec<u64> {
        let parts = parts.min(self.pages);
        let bound = |part: u64| {
            // Below the number of pages, which is one of 64 bits.
            (u128::from(part) * u128::from(self.pages) / u128::from(parts.max(1))) as u64
        };
        let address = |part| self.address(pick(bound(part)..bound(part + 1)));
        (0..parts).map(address).collect()
    }

    fn address(&self, page: u64) -> u64 {
        let after = self.ranges.partition_point(|(before, _)| *before <= page);
        let (before, range) = &self.ranges[after - 1];
        range.start + (page - before) * self.page_bytes
    }
}

/// Bytes of transparent huge pages in the mappings of `smaps` that overlap an address range; `None` when none does. Mappings
/// are counted whole: neighbours that the kernel merged into one have the same owner here.
pub fn huge_bytes(smaps: &[u8], addresses: Range<u64>) -> Option<u64> {
    let (mut is_inside, mut is_found, mut huge) = (false, false, 0u64);
    for line in text::lines(smaps) {
        if let Some(mapping) = range(line) {
            is_inside = mapping.start < addresses.end && mapping.end > addresses.start;
            is_found |= is_inside;
        } else if is_inside && let Some(size) = line.strip_prefix(b"AnonHugePages:") {
            huge = huge.saturating_add(text::kilobytes(size).unwrap_or(0));
        }
    }
    is_found.then_some(huge)
}

/// What of a mapping is in memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MappingBytes {
    /// The first address of the mapping.
    pub start: u64,
    pub resident: u64,
    /// No other process maps it.
    pub private: u64,
    /// Each page divided by the number of its mappings (Pss).
    pub proportional: u64,
}

impl MappingBytes {
    fn add(&mut self, line: &[u8]) {
        let bytes = |key: &[u8]| line.strip_prefix(key).and_then(text::kilobytes);
        let private: [&[u8]; 3] = [b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:"];
        let private = private.iter().find_map(|key| bytes(key));
        self.resident = self.resident.saturating_add(bytes(b"Rss:").unwrap_or(0));
        let proportional = bytes(b"Pss:").unwrap_or(0);
        self.proportional = self.proportional.saturating_add(proportional);
        self.private = self.private.saturating_add(private.unwrap_or(0));
    }
}

/// Calls `take` for each mapping of `smaps`.
///
/// # Errors
/// When the text cannot be read.
pub fn each_size(smaps: impl BufRead, mut take: impl FnMut(MappingBytes)) -> io::Result<()> {
    let mut last: Option<MappingBytes> = None;
    text::each_line(smaps, |line| {
        if let Some(mapping) = range(line) {
            let next = MappingBytes {
                start: mapping.start,
                ..MappingBytes::default()
            };
            last.replace(next).into_iter().for_each(&mut take);
        } else if let Some(mapping) = &mut last {
            mapping.add(line);
        }
    })?;
    last.into_iter().for_each(take);
    Ok(())
}

/// `7f0000000000-7f0000400000 rw-p ...`
fn range(line: &[u8]) -> Option<Range<u64>> {
    let addresses = line.split(|&byte| byte == b' ').next()?;
    let dash = addresses.iter().position(|&byte| byte == b'-')?;
    Some(text::hexadecimal(&addresses[..dash])?..text::hexadecimal(&addresses[dash + 1..])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
        Size:               4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr\n\
        7f0000400000-7f0000600000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\n";

    #[test]
    fn huge_pages_are_counted_in_the_mappings_that_overlap() {
        let huge = |start, end| huge_bytes(SMAPS, start..end);
        assert_eq!(huge(0x7f00_0000_0000, 0x7f00_0040_0000), Some(2 << 20));
        assert_eq!(huge(0x7f00_0020_0000, 0x7f00_0060_0000), Some(4 << 20));
        assert_eq!(huge(0x1000, 0x2000), None);
        assert_eq!(huge_bytes(b"", 0..u64::MAX), None);
    }

    #[test]
    fn bytes_are_by_mapping() {
        let text = b"Private_Dirty: 9 kB\n1000-3000 rw-p 0 00:00 0\nRss: 16 kB\nPss: 14 kB\nPss_Dirty: 9 kB\n\
            Shared_Clean: 4 kB\nPrivate_Clean: 4 kB\nPrivate_Dirty: 8 kB\n7f00-8f00 rw-p 0 00:00 0\nPrivate_Hugetlb: 2048 kB\n9f00-af00 r--p\n";
        let mut found = Vec::new();
        each_size(&text[..], |mapping| found.push(mapping)).unwrap();
        let mapping = |start, resident, private, proportional| MappingBytes {
            start,
            resident,
            private,
            proportional,
        };
        let expected = [
            mapping(0x1000, 16 << 10, 12 << 10, 14 << 10),
            mapping(0x7f00, 0, 2 << 20, 0),
            mapping(0x9f00, 0, 0, 0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn ranges_are_found_and_other_lines_are_not() {
        let mut found = Vec::new();
        let text = b"00400000-00403000 r-xp 0 00:00 0 /a N0=9\xff\n-\nx-y\n7f00-7f01 rw-p\n";
        each_range(&text[..], |range| found.push(range)).unwrap();
        assert_eq!(found, [0x40_0000..0x40_3000, 0x7f00..0x7f01]);
    }

    #[test]
    fn a_mapping_has_its_name_and_whether_it_can_be_used() {
        let parse = |line: &'static str| {
            let mapping = MapsEntry::parse(line.as_bytes()).unwrap();
            let name = std::str::from_utf8(mapping.name).unwrap();
            (mapping.is_accessible, mapping.is_shared, name)
        };
        assert_eq!(
            parse("7f00-7f01 rw-s 00000000 00:01 2057                       /dev/shm/a b"),
            (true, true, "/dev/shm/a b")
        );
        assert_eq!(
            parse("7f00-7f01 ---p 00000000 00:00 0 "),
            (false, false, "")
        );
        assert_eq!(
            parse("7f00-7f01 r--p 0 00:00 0 [heap]"),
            (true, false, "[heap]")
        );
        assert_eq!(parse("7f00-7f01"), (false, false, ""));
        assert_eq!(MapsEntry::parse(b"heap"), None);
    }

    #[test]
    fn pages_of_each_part_are_asked_for_and_reserved_addresses_are_not() {
        let maps = b"10000-410000 rw-p 0 00:00 0\n500000-900000 ---p 0 00:00 0\n\
            7f0000000000-7f0000400000 rw-s 0 00:01 7 /dev/shm/a\n7ffe00000000-7ffe00001000 r-xp 0 00:00 0 [vdso]\n";
        let addresses = Addresses::read(&maps[..], 4096).unwrap();
        assert_eq!(addresses.pages, 2048);
        let drawn = addresses.draw(64, |range| range.end - 1);
        for (part, address) in (0..).zip(drawn) {
            let begin = match part {
                0..32 => 0x1_0000 + part * 32 * 4096,
                _ => 0x7f00_0000_0000 + (part - 32) * 32 * 4096,
            };
            assert!((begin..begin + 32 * 4096).contains(&address), "{part}");
        }
        let all = addresses.draw(u64::MAX, |range| range.start);
        assert_eq!(all.len(), 2048);
        assert!(all.is_sorted_by(|a, b| a < b));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, range: Range<u64>, line in "[0-9a-f]{1,4}-[0-9a-f]{1,4}\\PC*") {
            let _ = huge_bytes(&bytes, range);
            let _ = MapsEntry::parse(line.as_bytes());
            each_range(&bytes[..], |_| {}).unwrap();
        }
    }
}
