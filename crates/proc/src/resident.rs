//! Which pages of a process are in memory on some nodes.
//!
//! ```text
//! numa_maps ──► mappings with pages on these nodes ──► pagemap: which pages are there ──► move_pages: where each is
//! ```
//!
//! A mapping may be a hundred terabytes with a few pages in it, so only the mappings that numa_maps names are walked, and
//! each no further than its last page.
//!
//! `/proc/PID/pagemap` has an entry for each page of a process (Documentation/admin-guide/mm/pagemap.rst). Unlike move_pages(2)
//! before Linux 6.6, it shows pages that NUMA balancing watches.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use nearfar_machine::{NodeId, NodeSet};

use crate::maps::Addresses;
use crate::move_pages::{node_of, where_are};
use crate::{maps, numa_maps, tasks};

/// Entries of pagemap in one read, and pages in one call of `take`: 64 MiB of small pages.
const PAGEMAP_ENTRIES: usize = 16_384;

/// What numa_maps says of one mapping that has pages on nodes of interest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Pages on these nodes, of the size below.
    pub pages: u64,
    /// Bytes; more than the system's page only in a mapping of hugetlbfs.
    pub page_bytes: u64,
}

/// The mappings that have pages on these nodes, by their first address.
pub fn on_nodes(numa_maps: impl BufRead, nodes: &NodeSet) -> io::Result<BTreeMap<u64, Share>> {
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
pub fn ranges(
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

/// A page that is in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    pub address: u64,
    pub node: NodeId,
}

/// Draws that show how many of the addresses are in memory.
const FIRST_DRAWS: u64 = 601;
/// Draws for a page that is wanted: runtimes map up to ten times what they use (Go, Node, Java).
const MAX_DRAWS: u64 = 16;

/// With fewer pages found, an error above 10 points, a sample says little.
const MIN_PAGES: usize = 100;
/// A sample that finds less than this part of the resident memory does not see all of it: what lost its access stays in memory, and
/// Linux 6.1 hides pages that NUMA balancing watches from move_pages(2). The error of what it finds is 3 %.
const MIN_FOUND: f64 = 0.85;

/// Random pages of a process.
#[derive(Clone, PartialEq, Debug)]
pub struct PageSample {
    /// One of each of equal parts of the addresses; `None` where it is not in memory.
    pub parts: Vec<Option<Page>>,
    /// What is in memory at all addresses, going by these, in bytes.
    seen_bytes: f64,
}

impl PageSample {
    /// Draws of so many parts that about `wanted` of them are in memory. `locate` says where pages are, as [`where_are`] does; `pick`
    /// draws a number from a range.
    ///
    /// # Errors
    /// When `locate` fails.
    pub fn draw(
        addresses: &Addresses,
        wanted: u64,
        mut locate: impl FnMut(&[u64]) -> io::Result<Vec<i32>>,
        mut pick: impl FnMut(Range<u64>) -> u64,
    ) -> io::Result<Self> {
        let mut drawn = |draws| -> io::Result<Vec<Option<Page>>> {
            let pages = addresses.draw(draws, &mut pick);
            let nodes = locate(&pages)?.into_iter().map(node_of);
            let page = |(address, node): (u64, Option<NodeId>)| {
                Some(Page {
                    address,
                    node: node?,
                })
            };
            Ok(pages.iter().copied().zip(nodes).map(page).collect())
        };
        let max = MAX_DRAWS * wanted;
        let draws = match drawn(FIRST_DRAWS)?.iter().flatten().count() as u64 {
            0 => max,
            found => (wanted * FIRST_DRAWS / found).min(max),
        };
        let parts = drawn(draws)?;
        let found = parts.iter().flatten().count() as f64 / parts.len().max(1) as f64;
        Ok(Self {
            parts,
            seen_bytes: found * addresses.bytes() as f64,
        })
    }

    /// Whether it says enough of a process that has so much in memory.
    pub fn is_whole(&self, resident: u64) -> bool {
        let found = self.parts.iter().flatten().count();
        found >= MIN_PAGES && self.seen_bytes >= MIN_FOUND * resident as f64
    }
}

/// What follows a call of `take`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Continue,
    Stop,
}

/// The pages of a process on some nodes. Of a page of hugetlbfs only the first address is one; of a transparent huge page
/// every address is.
pub struct Walk<'a> {
    pid: i32,
    from: &'a NodeSet,
    /// Of the system.
    page_bytes: u64,
    /// Without it every address of a mapping is asked for.
    pagemap: Option<Pagemap>,
}

impl<'a> Walk<'a> {
    /// Opens the files of the process that are needed later: they stay those of this process, and of the program that it
    /// runs now.
    pub fn new(pid: i32, from: &'a NodeSet) -> Self {
        // The service may not open it.
        Self::with_pagemap(pid, from, Pagemap::open(pid).ok())
    }

    fn with_pagemap(pid: i32, from: &'a NodeSet, pagemap: Option<Pagemap>) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        Self {
            pid,
            from,
            page_bytes,
            pagemap,
        }
    }

    /// Calls `take` with pages of one mapping and their size in bytes, again and again until it says stop.
    ///
    /// # Errors
    /// When the process is gone (`ESRCH`, `ENOENT`) or another user's; those of `take`.
    pub fn each(&self, take: &mut dyn FnMut(&[Page], u64) -> io::Result<Next>) -> io::Result<()> {
        let open = |name: &str| tasks::open(self.pid, name);
        let shares = on_nodes(BufReader::new(open("numa_maps")?), self.from)?;
        for (range, share) in ranges(BufReader::new(open("maps")?), &shares)? {
            if self.mapping(range, share, take)? == Next::Stop {
                break;
            }
        }
        Ok(())
    }

    /// The pages of one mapping.
    fn mapping(
        &self,
        range: Range<u64>,
        share: Share,
        take: &mut dyn FnMut(&[Page], u64) -> io::Result<Next>,
    ) -> io::Result<Next> {
        let page_bytes = share.page_bytes.max(self.page_bytes);
        let (mut at, mut left) = (range.start, share.pages);
        while at < range.end && left > 0 {
            let (present, read) = self.present(&range, at, page_bytes)?;
            if read == 0 {
                break;
            }
            let pages: Vec<Page> = present
                .iter()
                .zip(where_are(self.pid, &present)?)
                .filter_map(|(&address, node)| {
                    let node = node_of(node)?;
                    self.from.contains(node).then_some(Page { address, node })
                })
                .collect();
            left = left.saturating_sub(pages.len() as u64);
            // Also without any: a walk can be ended where there is nothing to take.
            if take(&pages, page_bytes)? == Next::Stop {
                return Ok(Next::Stop);
            }
            at += read as u64 * self.page_bytes;
        }
        Ok(Next::Continue)
    }

    /// The first pages from here on that are in memory, and how many of the system's pages were looked at.
    fn present(
        &self,
        range: &Range<u64>,
        at: u64,
        page_bytes: u64,
    ) -> io::Result<(Vec<u64>, usize)> {
        let pages = usize::try_from((range.end - at) / self.page_bytes)
            .unwrap_or(usize::MAX)
            .min(PAGEMAP_ENTRIES);
        let entries = match &self.pagemap {
            Some(pagemap) => pagemap.range(at, pages)?,
            None => vec![PageEntry::PRESENT; pages],
        };
        // Only the first address of a page of hugetlbfs can be asked for.
        let first = (at - range.start) / self.page_bytes;
        let pages_each = (page_bytes / self.page_bytes).max(1);
        let begins = |&index: &usize| (first + index as u64).is_multiple_of(pages_each);
        let present = (0..entries.len())
            .filter(begins)
            .filter(|&index| entries[index].is_present())
            .map(|index| at + index as u64 * self.page_bytes)
            .collect();
        Ok((present, entries.len()))
    }
}

const ENTRY_BYTES: u64 = 8;

/// What pagemap says of one page of the system's size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageEntry(pub u64);

impl PageEntry {
    /// In memory.
    pub const PRESENT: Self = Self(1 << 63);
    /// Of a file or shared memory. Before Linux 6.11 not set for a huge page.
    pub const FILE: Self = Self(1 << 61);

    pub fn is_present(self) -> bool {
        self.0 & Self::PRESENT.0 != 0
    }

    pub fn is_of_file(self) -> bool {
        self.0 & Self::FILE.0 != 0
    }
}

/// The open file: it stays that of the program that the process ran when it was opened.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    page_bytes: u64,
}

impl Pagemap {
    /// Opens the file of a process.
    ///
    /// # Errors
    /// When there is no such process, or it is another user's: only its owner may open it, whatever else the caller may
    /// do (CAP_DAC_READ_SEARCH).
    pub fn open(pid: i32) -> io::Result<Self> {
        let file = tasks::open(pid, "pagemap")?;
        let page_bytes = rustix::param::page_size() as u64;
        Ok(Self { file, page_bytes })
    }

    /// Entries from an address on; less than `count` where the addresses of the process end.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn range(&self, address: u64, count: usize) -> io::Result<Vec<PageEntry>> {
        let mut bytes = vec![0; count * ENTRY_BYTES as usize];
        let at = address / self.page_bytes * ENTRY_BYTES;
        let read = self.file.read_at(&mut bytes, at)?;
        let (entries, _) = bytes[..read].as_chunks();
        let entries = entries.iter().map(|entry| u64::from_ne_bytes(*entry));
        Ok(entries.map(PageEntry).collect())
    }

    /// The entry of each address. One that the process cannot have has no bit set.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of(&self, addresses: &[u64]) -> io::Result<Vec<PageEntry>> {
        let mut found = Vec::with_capacity(addresses.len());
        let is_next = |one: &u64, next: &u64| next.wrapping_sub(*one) == self.page_bytes;
        for run in addresses.chunk_by(is_next) {
            let mut entries = self.range(run[0], run.len())?;
            entries.resize(run.len(), PageEntry::default());
            found.append(&mut entries);
        }
        Ok(found)
    }
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
        let me = std::process::id().cast_signed();
        let Ok(numa) = tasks::open(me, "numa_maps") else {
            return println!("skipped: kernel: this kernel has no numa_maps");
        };
        let nodes = (0..64).map(NodeId).collect();
        let shares = on_nodes(io::BufReader::new(numa), &nodes).unwrap();
        let maps = io::BufReader::new(tasks::open(me, "maps").unwrap());
        assert!(!ranges(maps, &shares).unwrap().is_empty());
    }

    #[test]
    fn a_far_page_is_found_in_a_mapping_with_few() {
        let (bytes, page) = (1_usize << 36, rustix::param::page_size());
        // SAFETY: a new mapping.
        let begin = unsafe {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let Ok(begin) = begin else {
            return println!("skipped: kernel: no 64 GiB of addresses here");
        };
        // SAFETY: inside the mapping.
        unsafe { begin.cast::<u8>().add(bytes / 64).write(1) };
        let pid = std::process::id().cast_signed();
        let nodes: NodeSet = (0..64).map(NodeId).collect();
        let range = begin as u64..begin as u64 + bytes as u64;
        let share = Share {
            pages: 1,
            page_bytes: page as u64,
        };
        for pagemap in [Pagemap::open(pid).ok(), None] {
            let walk = Walk::with_pagemap(pid, &nodes, pagemap);
            let mut found = Vec::new();
            let walked = walk.mapping(range.clone(), share, &mut |pages, _| {
                found.extend(pages.iter().map(|page| page.address));
                Ok(Next::Continue)
            });
            match walked {
                Err(error) => println!("skipped: kernel: {error}"),
                Ok(_) => assert_eq!(found, [begin as u64 + bytes as u64 / 64]),
            }
        }
        // SAFETY: the mapping made above, which nothing points into any more.
        unsafe { rustix::mm::munmap(begin, bytes).unwrap() };
    }

    #[test]
    fn a_touched_page_is_present_and_of_no_file_and_address_0_is_not() {
        let page = rustix::param::page_size() as u64;
        let touched = vec![1_u8; 4 * page as usize];
        let inside = (touched.as_ptr() as u64).next_multiple_of(page);
        // Of a function that runs: one that was not called yet need not be in memory.
        let this = a_touched_page_is_present_and_of_no_file_and_address_0_is_not;
        let code = this as *const () as u64 / page * page;
        let Ok(pagemap) = Pagemap::open(std::process::id().cast_signed()) else {
            return println!("skipped: kernel: no /proc/PID/pagemap");
        };
        let found = pagemap.of(&[0, inside, inside + page, code]).unwrap();
        let present: Vec<bool> = found.iter().map(|entry| entry.is_present()).collect();
        assert_eq!(present, [false, true, true, true]);
        let of_file: Vec<bool> = found.iter().map(|entry| entry.is_of_file()).collect();
        assert_eq!(of_file, [false, false, false, true]);
        std::hint::black_box(touched);
    }
}
