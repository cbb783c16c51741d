//! Where a process's memory is, as /proc/PID/maps and numa_maps say. Names in them may be any bytes.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::ops::Range;

use nearfar_machine::NodeSet;
use nearfar_proc::{maps, numa_maps};

/// What numa_maps says of one mapping that has pages on nodes of interest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    /// Pages on these nodes, of the size below.
    pub(super) pages: u64,
    /// Bytes; more than the system's page only in a mapping of hugetlbfs.
    pub(super) page_bytes: u64,
}

/// The mappings that have pages on these nodes, by their first address.
pub(super) fn on_nodes(
    numa_maps: impl BufRead,
    nodes: &NodeSet,
) -> io::Result<BTreeMap<u64, Share>> {
    let mut found = BTreeMap::new();
    numa_maps::each(numa_maps, |mapping| {
        let pages = mapping
            .pages
            .iter()
            .filter(|(node, _)| nodes.contains(*node))
            .fold(0u64, |sum, (_, pages)| sum.saturating_add(*pages));
        if pages > 0 {
            let page_bytes = mapping.page_bytes.unwrap_or(0);
            found.insert(mapping.start, Share { pages, page_bytes });
        }
    })?;
    Ok(found)
}

/// The addresses of those mappings that have a share.
pub(super) fn ranges(
    maps: impl BufRead,
    shares: &BTreeMap<u64, Share>,
) -> io::Result<Vec<(Range<u64>, Share)>> {
    let mut found = Vec::new();
    maps::each_range(maps, |range| {
        if let Some(share) = shares.get(&range.start) {
            found.push((range, *share));
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use nearfar_machine::NodeId;
    use nearfar_proc::tasks;

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
        let me = std::process::id().cast_signed();
        let Ok(numa) = tasks::open(me, "numa_maps") else {
            return println!("skipped: kernel: this kernel has no numa_maps");
        };
        let nodes = (0..64).map(NodeId).collect();
        let shares = on_nodes(io::BufReader::new(numa), &nodes).unwrap();
        let maps = io::BufReader::new(tasks::open(me, "maps").unwrap());
        assert!(!ranges(maps, &shares).unwrap().is_empty());
    }
}
