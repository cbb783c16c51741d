//! The memory of a large process by node, from a random page of each of a few thousand equal parts of its addresses.
//!
//! ```text
//! maps ──► ranges ──► a page of each part ──► move_pages(2), which only looks ──► shares and their error
//! ```
//!
//! A read of numa_maps holds the lock of the address space while it walks a mapping: 23 ms for 1 GiB of small pages, in which the
//! process can neither map nor unmap. A sample takes it for a microsecond a page (docs/tasks.md has the figures).

use std::collections::BTreeSet;
use std::io::{self, BufRead};
use std::ops::Range;

use nearfar_machine::{MAX_NUMBER, MemorySample, NodeBytes, NodeId};
use nearfar_proc::maps;
use nearfar_statistics::strata::{self, Shares};

/// Pages in memory that a sample is to find: an error of 2 points for memory that is interleaved.
const WANTED_PAGES: u64 = 2401;
/// Draws that show how many of the addresses are in memory.
const FIRST_DRAWS: u64 = 601;
/// Draws of a sample: runtimes map up to ten times what they use (Go, Node, Java).
const MAX_DRAWS: u64 = 16 * WANTED_PAGES;
/// With fewer pages found, an error above 10 points, counting is better.
const MIN_PAGES: u64 = 100;
/// A sample that finds less than this part of the resident memory does not see all of it: what lost its access stays in memory, and
/// Linux 6.1 hides pages that NUMA balancing watches from move_pages(2). The error of what it finds is 3 %.
const MIN_FOUND: f64 = 0.85;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sampled {
    pub(super) nodes: Vec<NodeBytes>,
    pub(super) sample: MemorySample,
}

/// Samples the memory of a process of which `resident` bytes are in memory. `locate` says where pages are, as
/// [`nearfar_proc::move_pages::where_are`] does. `None` when too few of the addresses are in memory, or too little
/// of the memory is at addresses that are asked for.
///
/// # Errors
/// When `maps` cannot be read or `locate` fails.
pub(super) fn sample(
    maps: impl BufRead,
    resident: u64,
    page_bytes: u64,
    mut locate: impl FnMut(&[u64]) -> io::Result<Vec<i32>>,
) -> io::Result<Option<Sampled>> {
    let addresses = Addresses::read(maps, page_bytes)?;
    let mut rng = fastrand::Rng::new();
    let mut drawn = |draws| -> io::Result<Vec<Option<NodeId>>> {
        let pages = addresses.draw(draws, &mut rng);
        Ok(locate(&pages)?.into_iter().map(node).collect())
    };
    let first = drawn(FIRST_DRAWS)?;
    let found = first.iter().flatten().count() as u64;
    let draws = match found {
        0 => MAX_DRAWS,
        _ => (WANTED_PAGES * FIRST_DRAWS / found).min(MAX_DRAWS),
    };
    let draws = drawn(draws)?;
    let found = draws.iter().flatten().count() as f64 / draws.len().max(1) as f64;
    let seen = found * addresses.pages as f64 * page_bytes as f64;
    let is_whole = |it: &Sampled| {
        u64::from(it.sample.pages) >= MIN_PAGES && seen >= MIN_FOUND * resident as f64
    };
    Ok(estimate(&draws, resident).filter(is_whole))
}

fn node(status: i32) -> Option<NodeId> {
    let node = u32::try_from(status).ok()?;
    (node <= MAX_NUMBER).then_some(NodeId(node))
}

fn estimate(draws: &[Option<NodeId>], resident: u64) -> Option<Sampled> {
    let nodes: BTreeSet<NodeId> = draws.iter().flatten().copied().collect();
    let nodes: Vec<NodeId> = nodes.into_iter().collect();
    let draws: Vec<Option<usize>> = draws
        .iter()
        .map(|draw| nodes.binary_search(draw.as_ref()?).ok())
        .collect();
    let shares: Shares = strata::shares(&draws, nodes.len())?;
    let bytes = |share: f64| (share * resident as f64) as u64;
    let nodes = nodes.iter().zip(&shares.shares);
    Some(Sampled {
        nodes: nodes
            .map(|(&node, &share)| NodeBytes {
                node,
                bytes: bytes(share),
            })
            .collect(),
        sample: MemorySample {
            pages: u32::try_from(shares.found).unwrap_or(u32::MAX),
            error_bytes: bytes(shares.error()),
        },
    })
}

/// Addresses that may have pages, in pages.
struct Addresses {
    page_bytes: u64,
    /// Each with the number of pages before it.
    ranges: Vec<(u64, Range<u64>)>,
    pages: u64,
}

impl Addresses {
    /// Of mappings that can be accessed: runtimes reserve the addresses of a heap without access to them, hundreds of times what
    /// they use. What the kernel maps into each process (`[vdso]`) has no node.
    fn read(maps: impl BufRead, page_bytes: u64) -> io::Result<Self> {
        let mut addresses = Self {
            page_bytes,
            ranges: Vec::new(),
            pages: 0,
        };
        maps::each(maps, |mapping| {
            let is_kernels = mapping.name.starts_with(b"[v");
            let pages = mapping
                .addresses
                .end
                .saturating_sub(mapping.addresses.start)
                / page_bytes;
            if mapping.is_accessible && !is_kernels && pages > 0 {
                let before = addresses.pages;
                addresses.pages = before.saturating_add(pages);
                addresses.ranges.push((before, mapping.addresses));
            }
        })?;
        Ok(addresses)
    }

    /// The address of a page of each of `parts` equal parts, or of all pages where they are fewer.
    fn draw(&self, parts: u64, rng: &mut fastrand::Rng) -> Vec<u64> {
        let parts = parts.min(self.pages);
        let bound = |part: u64| {
            // Below the number of pages, which is one of 64 bits.
            (u128::from(part) * u128::from(self.pages) / u128::from(parts.max(1))) as u64
        };
        (0..parts)
            .map(|part| self.address(rng.u64(bound(part)..bound(part + 1))))
            .collect()
    }

    fn address(&self, page: u64) -> u64 {
        let after = self.ranges.partition_point(|(before, _)| *before <= page);
        let (before, range) = &self.ranges[after - 1];
        range.start + (page - before) * self.page_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"10000-410000 rw-p 0 00:00 0\n500000-900000 ---p 0 00:00 0\n\
        7f0000000000-7f0000400000 rw-s 0 00:01 7 /dev/shm/a\n7ffe00000000-7ffe00001000 r-xp 0 00:00 0 [vdso]\n";

    /// Node 0 below, node 2 above, and of each page only every fourth is in memory.
    fn located(pages: &[u64]) -> Vec<i32> {
        let at = |&address: &u64| match address {
            _ if address / 4096 % 4 != 0 => -libc_enoent(),
            0..0x50_0000 => 0,
            _ => 2,
        };
        pages.iter().map(at).collect()
    }

    fn libc_enoent() -> i32 {
        rustix::io::Errno::NOENT.raw_os_error()
    }

    #[test]
    fn pages_of_each_part_are_asked_for_and_reserved_addresses_are_not() {
        let addresses = Addresses::read(MAPS, 4096).unwrap();
        assert_eq!(addresses.pages, 2048);
        let drawn = addresses.draw(64, &mut fastrand::Rng::new());
        for (part, address) in (0..).zip(drawn) {
            let begin = match part {
                0..32 => 0x1_0000 + part * 32 * 4096,
                _ => 0x7f00_0000_0000 + (part - 32) * 32 * 4096,
            };
            assert!((begin..begin + 32 * 4096).contains(&address), "{part}");
        }
        let all = addresses.draw(u64::MAX, &mut fastrand::Rng::new());
        assert_eq!(all.len(), 2048);
        assert!(all.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn shares_are_of_the_resident_bytes() {
        let found = sample(MAPS, 2 << 20, 4096, |pages| Ok(located(pages)));
        let found = found.unwrap().unwrap();
        let [first, second] = found.nodes[..] else {
            panic!("{found:?}")
        };
        assert_eq!((first.node, second.node), (NodeId(0), NodeId(2)));
        // Each page was asked for: the shares are exact, however large the error may be.
        assert_eq!((first.bytes, second.bytes), (1 << 20, 1 << 20));
        assert_eq!(found.sample.pages, 512);
        assert!(found.sample.error_bytes < (2 << 20) / 20, "{found:?}");
        // The rest would be at addresses that cannot be accessed.
        let hidden = sample(MAPS, 4 << 20, 4096, |pages| Ok(located(pages)));
        assert_eq!(hidden.unwrap(), None);
    }

    #[test]
    fn too_few_pages_and_none_are_no_sample() {
        for maps in [MAPS, b"", b"7f00-7f01 rw-p\n"] {
            let none = |pages: &[u64]| Ok(vec![-libc_enoent(); pages.len()]);
            assert_eq!(sample(maps, 1 << 40, 4096, none).unwrap(), None);
        }
        let refused = |_: &[u64]| Err(io::ErrorKind::PermissionDenied.into());
        assert!(sample(MAPS, 1 << 30, 4096, refused).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_maps_panic(bytes: Vec<u8>, maps in "([0-9a-f]{1,16}-[0-9a-f]{1,16} rw-p x y z\n){0,4}") {
            for maps in [&bytes[..], maps.as_bytes()] {
                let _ = sample(maps, u64::MAX, 4096, |pages| Ok(vec![0; pages.len()]));
            }
        }
    }
}
