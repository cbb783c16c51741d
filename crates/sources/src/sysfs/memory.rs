//! How much memory a node has: `nodeN/meminfo` and `nodeN/hugepages/`, or `/proc/meminfo` for a machine without nodes.
//!
//! ```text
//! Node 0 MemTotal:       16369608 kB      nodeN/meminfo
//! MemTotal:       16369608 kB             /proc/meminfo
//! ```

use nearfar_machine::{HugePages, Known, Memory, Node};
use nearfar_proc::meminfo;

use super::notes::{Notes, read_noted};
use crate::tree::{Directory, Reason, Tree};
use crate::value;

/// A node's pool of huge pages has a handful of sizes.
const MOST_PAGE_SIZES: usize = 16;

/// What the lines of a meminfo file say; kilobytes are bytes already.
#[derive(Debug, Default, PartialEq, Eq)]
struct MemInfo {
    total: Option<u64>,
    free: Option<u64>,
    reclaimable: Option<u64>,
    huge_total: Option<u64>,
    huge_free: Option<u64>,
    huge_size: Option<u64>,
}

pub(super) fn of_node(tree: &Tree, node: &Directory<'_>, notes: &Notes) -> Known<Memory> {
    let info = match node.with_bytes("meminfo", parse) {
        Ok(info) => info,
        Err(reason) => return unknown(&node.display("meminfo"), reason, notes),
    };
    let listed = listed(node.directory("hugepages").ok(), notes);
    let pools = listed.unwrap_or_else(|| {
        let pool = info.pool(huge_page_size(tree));
        if let Some(pool) = &pool {
            let usual = format!("hugepages/hugepages-{}kB", pool.page_bytes >> 10);
            let usual = node.below(&usual) + "/nr_hugepages";
            notes.read_instead(usual, node.below("meminfo"));
        }
        pool.into_iter().collect()
    });
    known(info, pools, &node.display("meminfo"), notes)
}

/// All memory of a machine without nodes.
pub(super) fn of_machine(tree: &Tree, notes: &Notes) -> Known<Memory> {
    let info = match tree.with_bytes("proc/meminfo", parse) {
        Ok(info) => info,
        Err(error) => return unknown(&error.path, error.reason, notes),
    };
    let listed = listed(tree.directory("sys/kernel/mm/hugepages").ok(), notes);
    let pools = listed.unwrap_or_else(|| info.pool(info.huge_size).into_iter().collect());
    known(info, pools, &tree.display("proc/meminfo"), notes)
}

/// Notes when the nodes together hold much more or less than `/proc/meminfo` says: memory that was plugged in at run time
/// is not counted in a node's own file by some kernels.
pub(super) fn compare(tree: &Tree, nodes: &[Node], notes: &Notes) {
    if nodes.is_empty() {
        return;
    }
    let Some(of_nodes) = nodes
        .iter()
        .filter(|node| node.online)
        .map(Node::total_bytes)
        .sum::<Option<u64>>()
    else {
        return;
    };
    let whole = tree
        .with_bytes("proc/meminfo", parse)
        .ok()
        .and_then(|info| info.total);
    let Some(whole) = whole.filter(|&whole| of_nodes.abs_diff(whole) > whole / 10) else {
        return;
    };
    notes.note(
        tree.display("proc/meminfo"),
        format!(
            "says {} MiB of memory in all, the nodes' own files {} MiB; the nodes' files were taken",
            whole >> 20,
            of_nodes >> 20
        ),
    );
}

fn unknown(place: &str, reason: Reason, notes: &Notes) -> Known<Memory> {
    if reason != Reason::Absent {
        notes.note(place, reason.to_string());
    }
    Known::no(format!("{place}: {reason}"))
}

fn known(info: MemInfo, huge_pages: Vec<HugePages>, place: &str, notes: &Notes) -> Known<Memory> {
    let Some(total_bytes) = info.total else {
        notes.note(place, "has no line MemTotal in kilobytes");
        return Known::no(format!("{place} has no line MemTotal"));
    };
    let free_bytes = info.free.filter(|&free| free <= total_bytes);
    if free_bytes != info.free {
        notes.note(
            place,
            "more memory is free than there is; the free memory is not believed",
        );
    }
    Known::Yes(Memory {
        total_bytes,
        free_bytes,
        reclaimable_bytes: info.reclaimable.filter(|&bytes| bytes <= total_bytes),
        huge_pages,
    })
}

impl MemInfo {
    /// The pool of the default size, which is the only one of kernels before 2.6.31.
    fn pool(&self, page_bytes: Option<u64>) -> Option<HugePages> {
        Some(HugePages {
            page_bytes: page_bytes?,
            total: self.huge_total?,
            free: self.huge_free,
        })
    }
}

/// The pools in a directory of huge pages, where there are any.
fn listed(directory: Option<Directory<'_>>, notes: &Notes) -> Option<Vec<HugePages>> {
    let listed = directory.map(|directory| pools(&directory, notes));
    listed.filter(|listed| !listed.is_empty())
}

fn huge_page_size(tree: &Tree) -> Option<u64> {
    tree.with_bytes("proc/meminfo", parse).ok()?.huge_size
}

/// File pages on the kernel's lists, which tmpfs is not on, and reclaimable slab.
fn reclaimable(content: &[u8]) -> Option<u64> {
    let bytes = |name| meminfo::bytes(content, name);
    let files = bytes("Active(file)")?.checked_add(bytes("Inactive(file)")?)?;
    files.checked_add(bytes("SReclaimable").unwrap_or(0))
}

fn parse(content: &[u8]) -> MemInfo {
    let bytes = |name| meminfo::bytes(content, name);
    MemInfo {
        total: bytes("MemTotal"),
        free: bytes("MemFree"),
        reclaimable: reclaimable(content),
        huge_total: meminfo::count(content, "HugePages_Total"),
        huge_free: meminfo::count(content, "HugePages_Free"),
        huge_size: bytes("Hugepagesize"),
    }
}

/// The pools in a directory of `hugepages-2048kB/` and the like.
fn pools(directory: &Directory<'_>, notes: &Notes) -> Vec<HugePages> {
    let names = directory.names().unwrap_or_else(|error| {
        notes.unless_absent(error);
        Vec::new()
    });
    let pool = |name: &String| {
        let kilobytes = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        let page_bytes = value::natural(kilobytes.as_bytes())
            .ok()?
            .checked_mul(1024)?;
        let number = |what| read_noted(directory, &format!("{name}/{what}"), notes, value::natural);
        // Surplus pages are in nr_hugepages already.
        Some(HugePages {
            page_bytes,
            total: number("nr_hugepages")?,
            free: number("free_hugepages"),
        })
    };
    let mut pools: Vec<_> = names
        .iter()
        .filter_map(pool)
        .take(MOST_PAGE_SIZES)
        .collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}
