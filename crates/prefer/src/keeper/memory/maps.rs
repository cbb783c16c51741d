//! Where a process's memory is, as /proc/PID/maps and numa_maps say. Names in them may be any bytes.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::ops::Range;

use nearfar_machine::{NodeId, NodeSet};

/// What numa_maps says of one mapping that has pages on nodes of interest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    /// Pages on these nodes, of the size below.
    pub(super) pages: u64,
    /// Bytes; more than the system's page only in a mapping of hugetlbfs.
    pub(super) page_bytes: u64,
}

/// The mappings that have pages on these nodes, by their begin (numa_maps in proc(5)).
pub(super) fn on_nodes(
    numa_maps: impl BufRead,
    nodes: &NodeSet,
) -> io::Result<BTreeMap<u64, Share>> {
    let mut found = BTreeMap::new();
    each_line(numa_maps, |line| {
        let mut words = line.split(|&byte| byte == b' ');
        let Some(begin) = words.next().and_then(hexadecimal) else {
            return;
        };
        let mut share = Share {
            pages: 0,
            page_bytes: 0,
        };
        for word in words {
            // Blanks, and the equals sign, of a file's name are escaped, so that `file=...` is one word.
            let Some((name, value)) = named(word) else {
                continue;
            };
            if name == b"kernelpagesize_kB" {
                share.page_bytes = value.saturating_mul(1024);
            } else if let Some(node) = name.strip_prefix(b"N").and_then(decimal)
                && u32::try_from(node).is_ok_and(|node| nodes.contains(NodeId(node)))
            {
                share.pages = share.pages.saturating_add(value);
            }
        }
        if share.pages > 0 {
            found.insert(begin, share);
        }
    })?;
    Ok(found)
}

/// The addresses of those of all mappings that have a share (maps in proc(5)).
pub(super) fn ranges(
    maps: impl BufRead,
    shares: &BTreeMap<u64, Share>,
) -> io::Result<Vec<(Range<u64>, Share)>> {
    let mut found = Vec::new();
    each_line(maps, |line| {
        let addresses = line.split(|&byte| byte == b' ').next().unwrap_or_default();
        let Some(dash) = addresses.iter().position(|&byte| byte == b'-') else {
            return;
        };
        let (begin, end) = (
            hexadecimal(&addresses[..dash]),
            hexadecimal(&addresses[dash + 1..]),
        );
        if let (Some(begin), Some(end)) = (begin, end)
            && let Some(share) = shares.get(&begin)
        {
            found.push((begin..end, *share));
        }
    })?;
    Ok(found)
}

fn each_line(mut text: impl BufRead, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::new();
    while text.read_until(b'\n', &mut line)? > 0 {
        take(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(())
}

fn named(word: &[u8]) -> Option<(&[u8], u64)> {
    let equals = word.iter().position(|&byte| byte == b'=')?;
    Some((&word[..equals], decimal(&word[equals + 1..])?))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_nodes_asked_for_and_names_may_be_any_bytes() {
        let numa = b"00400000 default file=/a\\040N0=9\xff mapped=3 mapmax=2 N0=1 N1=2 kernelpagesize_kB=4\n\
            7f0000000000 bind:0 huge anon=3 dirty=3 N2=3 kernelpagesize_kB=2048\n\
            7f1000000000 default N0=7 kernelpagesize_kB=4\nnothing\n\n7f2000000000 default\n";
        let nodes = NodeSet::from_iter([NodeId(1), NodeId(2)]);
        let shares = on_nodes(&numa[..], &nodes).unwrap();
        let expected = [
            (
                0x40_0000,
                Share {
                    pages: 2,
                    page_bytes: 4096,
                },
            ),
            (
                0x7f00_0000_0000,
                Share {
                    pages: 3,
                    page_bytes: 2 << 20,
                },
            ),
        ];
        assert_eq!(shares, BTreeMap::from(expected));
        let maps = b"00400000-00403000 r-xp 0 00:00 0 /a N0=9\xff\n7f0000000000-7f0000600000 rw-p 0 00:00 0\n\
            7f1000000000-7f1000001000 rw-p 0 00:00 0\n-\nx-y\n";
        let found: Vec<_> = ranges(&maps[..], &shares)
            .unwrap()
            .into_iter()
            .map(|(range, _)| range)
            .collect();
        assert_eq!(
            found,
            [0x40_0000..0x40_3000, 0x7f00_0000_0000..0x7f00_0060_0000]
        );
    }

    #[test]
    fn this_process_has_memory_somewhere() {
        let Ok(numa) = std::fs::File::open("/proc/self/numa_maps") else {
            return println!("skipped: kernel: this kernel has no numa_maps");
        };
        let nodes = (0..64).map(NodeId).collect();
        let shares = on_nodes(io::BufReader::new(numa), &nodes).unwrap();
        let maps = io::BufReader::new(std::fs::File::open("/proc/self/maps").unwrap());
        assert!(!ranges(maps, &shares).unwrap().is_empty());
    }
}
