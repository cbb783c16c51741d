//! The memory of a process by node and by policy, summed over its mappings ([`nearfar_proc::numa_maps`]), or of a large process by
//! node, from a random page of each of a few thousand equal parts of its addresses.
//!
//! ```text
//! maps ──► ranges ──► a page of each part ──► move_pages(2), which only looks ──► shares and their error
//! ```
//!
//! A read of numa_maps holds the lock of the address space while it walks a mapping: 23 ms for 1 GiB of small pages, in which the
//! process can neither map nor unmap. A sample takes it for a microsecond a page (docs/tasks.md has the figures).
//!
//! Before Linux 3.8 huge pages are marked `huge` and their size is missing, so such mappings are left out rather than miscounted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader};
use std::sync::OnceLock;

use nearfar_machine::{Known, MemorySample, NodeBytes, NodeId, PolicyBytes, ResidentBytes};
use nearfar_proc::maps::Addresses;
use nearfar_proc::move_pages;
use nearfar_proc::numa_maps::{self, Mapping};
use nearfar_proc::resident::{Page, PageSample};
use nearfar_proc::system::{self, KernelVersion};
use nearfar_statistics::strata::{self, Draw, Shares};

use crate::tree::{Directory, Reason, Tree};

/// What a page has where the line does not say.
const SMALL_PAGE: u64 = 4096;
/// Different policies kept; a process could make up one for each set of nodes.
const MAX_POLICIES: usize = 1024;

/// Up to this much memory is counted: 6 ms with small pages, in which the process cannot map or unmap.
const MAX_COUNTED_BYTES: u64 = 256 << 20;
/// The same for kernels without a lock for each mapping, before this one: they keep page faults waiting as well.
const MAX_COUNTED_BYTES_ONE_LOCK: u64 = 64 << 20;
const LOCKS_BY_MAPPING: KernelVersion = KernelVersion { major: 6, minor: 4 };
/// Of a count by numa_maps, for each small page: 23 ms a GiB.
const COUNTED_PAGE_NS: u64 = 90;
/// The same for each page table, of which the kernel reads all 512 entries: 40 ms for 77,000 of them with a page each.
const COUNTED_TABLE_NS: u64 = 500;
/// A count that takes longer is not made, since the process can neither map nor unmap meanwhile.
const MAX_COUNT_NS: u64 = 50_000_000;
const TOO_LONG: &str = "few of its addresses are in memory, or the kernel hides them from a sample, and to count its pages would \
                        hold the lock of its address space for more than 50 ms";
const BUFFER_BYTES: usize = 64 << 10;

/// The memory of a process.
pub(super) struct Memory {
    pub(super) nodes: Known<Vec<NodeBytes>>,
    pub(super) policies: Known<Vec<PolicyBytes>>,
    pub(super) sample: Option<MemorySample>,
}

impl Memory {
    pub(super) fn unknown(reason: &'static str) -> Self {
        Self {
            nodes: Known::no(reason),
            policies: Known::no(reason),
            sample: None,
        }
    }

    /// That of a thread of the kernel.
    pub(super) fn none() -> Self {
        Self {
            nodes: Known::Yes(Vec::new()),
            policies: Known::Yes(Vec::new()),
            sample: None,
        }
    }
}

/// What a process has in memory, as its status says.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) resident: ResidentBytes,
    /// Of its page tables.
    pub(super) table_bytes: u64,
}

impl Size {
    /// How long a count would hold the lock of the address space. The tables also of addresses that were in memory once: the
    /// kernel keeps those until they are unmapped.
    fn count_ns(&self, page_bytes: u64) -> u64 {
        let small = self.resident.total().saturating_sub(self.resident.huge);
        let (pages, tables) = (small / page_bytes, self.table_bytes / page_bytes);
        let pages_ns = pages.saturating_mul(COUNTED_PAGE_NS);
        pages_ns.saturating_add(tables.saturating_mul(COUNTED_TABLE_NS))
    }
}

/// Samples the memory of a large process of the running system, and counts that of any other. A recorded process has no pages to
/// look for.
pub(super) fn read(tree: &Tree, directory: &Directory<'_>, pid: i32, size: Size) -> Memory {
    let resident = size.resident.total();
    let page_bytes = rustix::param::page_size() as u64;
    let is_long = size.count_ns(page_bytes) > MAX_COUNT_NS;
    if tree.is_live() && (is_long || resident > max_counted_bytes()) {
        let maps = format!("{}/maps", directory.path());
        let sampled = tree.file(&maps).map(|maps| {
            let maps = BufReader::with_capacity(BUFFER_BYTES, maps);
            let locate = |pages: &[u64]| move_pages::where_are(pid, pages);
            sample(maps, resident, page_bytes, locate)
        });
        match sampled {
            Ok(Ok(Some(sampled))) => {
                return Memory {
                    nodes: Known::Yes(sampled.nodes),
                    policies: Known::no("its memory is sampled, and only a count shows policies"),
                    sample: Some(sampled.sample),
                };
            }
            Ok(Ok(None)) if is_long => return Memory::unknown(TOO_LONG),
            // Few of its addresses are in memory, or the kernel has no move_pages, or refuses this user as it will numa_maps.
            _ => {}
        }
    }
    count(tree, directory)
}

fn max_counted_bytes() -> u64 {
    static MAX: OnceLock<u64> = OnceLock::new();
    *MAX.get_or_init(|| match KernelVersion::of_release(&system::release()) {
        Some(version) if version >= LOCKS_BY_MAPPING => MAX_COUNTED_BYTES,
        _ => MAX_COUNTED_BYTES_ONE_LOCK,
    })
}

/// `numa_maps` of another user's process opens and then fails, or is empty.
fn count(tree: &Tree, directory: &Directory<'_>) -> Memory {
    let path = format!("{}/numa_maps", directory.path());
    let failed = |error: io::Error| {
        let reason = match error.kind() {
            io::ErrorKind::PermissionDenied => Reason::Denied,
            _ => Reason::Other(error.to_string()),
        };
        tree.unreadable(&path, reason)
    };
    let file = tree.file(&path);
    let counted = file.and_then(|file| {
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        summed(file).map_err(failed)
    });
    Memory {
        nodes: Known::from_result(counted.as_ref().map(Maps::nodes)),
        policies: Known::from_result(counted.as_ref().map(Maps::policies)),
        sample: None,
    }
}

#[derive(Debug, Default)]
struct Maps {
    nodes: BTreeMap<NodeId, u64>,
    policies: BTreeMap<String, u64>,
}

impl Maps {
    /// Bytes by node.
    fn nodes(&self) -> Vec<NodeBytes> {
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|(&node, &bytes)| NodeBytes { node, bytes });
        nodes.collect()
    }

    /// Bytes by policy.
    fn policies(&self) -> Vec<PolicyBytes> {
        let under = |(policy, &bytes): (&String, &u64)| PolicyBytes {
            policy: policy.clone(),
            bytes,
        };
        self.policies.iter().map(under).collect()
    }

    fn add(&mut self, mapping: Mapping<'_>) {
        if mapping.huge && mapping.page_bytes.is_none() {
            return;
        }
        let page_bytes = mapping.page_bytes.unwrap_or(SMALL_PAGE);
        let mut sum = 0u64;
        for (node, count) in mapping.pages {
            let bytes = count.saturating_mul(page_bytes);
            let total = self.nodes.entry(node).or_default();
            *total = total.saturating_add(bytes);
            sum = sum.saturating_add(bytes);
        }
        let policy = String::from_utf8_lossy(mapping.policy);
        if sum > 0 && (self.policies.len() < MAX_POLICIES || self.policies.contains_key(&*policy)) {
            let total = self.policies.entry(policy.into_owned()).or_default();
            *total = total.saturating_add(sum);
        }
    }
}

fn summed(content: impl BufRead) -> io::Result<Maps> {
    let mut maps = Maps::default();
    numa_maps::each(content, |mapping| maps.add(mapping))?;
    Ok(maps)
}

/// Pages in memory that a sample is to find: an error of 2 points for memory that is interleaved.
const WANTED_PAGES: u64 = 2401;
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sampled {
    nodes: Vec<NodeBytes>,
    sample: MemorySample,
}

/// Samples the memory of a process of which `resident` bytes are in memory. `locate` says where pages are, as
/// [`nearfar_proc::move_pages::where_are`] does. `None` when too few of the addresses are in memory, or too little
/// of the memory is at addresses that are asked for.
///
/// # Errors
/// When `maps` cannot be read or `locate` fails.
fn sample(
    maps: impl BufRead,
    resident: u64,
    page_bytes: u64,
    locate: impl FnMut(&[u64]) -> io::Result<Vec<i32>>,
) -> io::Result<Option<Sampled>> {
    let addresses = Addresses::read(maps, page_bytes)?;
    let mut rng = fastrand::Rng::new();
    let sample = PageSample::draw(&addresses, WANTED_PAGES, locate, |range| rng.u64(range))?;
    Ok(match sample.is_whole(resident) {
        true => estimate(&sample.parts, resident),
        false => None,
    })
}

fn estimate(draws: &[Option<Page>], resident: u64) -> Option<Sampled> {
    let nodes: BTreeSet<NodeId> = draws.iter().flatten().map(|page| page.node).collect();
    let nodes: Vec<NodeId> = nodes.into_iter().collect();
    let index = |draw: &Option<Page>| nodes.binary_search(&draw.as_ref()?.node).ok();
    let draws: Vec<Option<Draw>> = draws.iter().map(|draw| index(draw).map(Draw::of)).collect();
    let shares: Shares = strata::shares(&draws, nodes.len())?;
    let bytes = |share: f64| (share * resident as f64) as u64;
    let on_node = |(&node, &share): (&NodeId, &f64)| NodeBytes {
        node,
        bytes: bytes(share),
    };
    Some(Sampled {
        nodes: nodes.iter().zip(&shares.shares).map(on_node).collect(),
        sample: MemorySample {
            pages: u32::try_from(shares.found).unwrap_or(u32::MAX),
            error_bytes: bytes(shares.error()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tables_make_a_count_long_and_huge_pages_do_not() {
        let size = |anonymous, huge, table_bytes| Size {
            resident: ResidentBytes {
                anonymous,
                huge,
                ..ResidentBytes::default()
            },
            table_bytes,
        };
        let is_long = |size: Size| size.count_ns(4096) > MAX_COUNT_NS;
        let all = MAX_COUNTED_BYTES;
        // A page of each table at worst.
        assert!(!is_long(size(all, 0, all)));
        assert!(!is_long(size(0, 1 << 40, 0)));
        assert!(is_long(size(3 << 30, 0, 0)));
        // Of a terabyte that was in memory once.
        assert!(is_long(size(16 << 20, 0, 2 << 30)));
        assert!(is_long(size(u64::MAX, 0, u64::MAX)));
    }

    #[test]
    fn pages_are_counted_by_node_and_policy_in_their_own_size() {
        let text = "7f00 bind:0 anon=2 dirty=2 N0=2 kernelpagesize_kB=2048\n5500 default file=/N9=7/N3=1 mapped=3 N0=1 N1=2 \
                kernelpagesize_kB=4\n6600 interleave:0-1 anon=1 N1=1\n7700 default stack\n8800 default huge N0=5\n";
        let maps = summed(text.as_bytes()).unwrap();
        let nodes: Vec<_> = maps
            .nodes()
            .iter()
            .map(|on| (on.node.0, on.bytes))
            .collect();
        assert_eq!(nodes, [(0, (4 << 20) + 4096), (1, 3 * 4096)]);
        let policies: Vec<_> = maps
            .policies()
            .into_iter()
            .map(|under| (under.policy, under.bytes))
            .collect();
        let expected = [
            ("bind:0", 4 << 20),
            ("default", 3 * 4096),
            ("interleave:0-1", 4096),
        ];
        assert_eq!(
            policies,
            expected.map(|(policy, bytes)| (policy.to_owned(), bytes))
        );
    }

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
