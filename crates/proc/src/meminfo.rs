//! Sizes and counts of memory, a line for each:
//!
//! ```text
//! /proc/meminfo, nodeN/meminfo   MemAvailable:    4 kB    proc_meminfo(5)
//! /proc/vmstat                   pgmigrate_success 12     since boot, mm/vmstat.c
//! nodeN/numastat                 numa_hit 9               pages by where they were wanted, Documentation/admin-guide/numastat.rst
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use crate::text;

/// A size in bytes, such as `MemAvailable`. One that was cut off, before `kB`, is none.
pub fn bytes(content: &[u8], name: &str) -> Option<u64> {
    text::kilobytes(value(content, name)?)
}

/// A count, such as `HugePages_Total`.
pub fn count(content: &[u8], name: &str) -> Option<u64> {
    text::number(value(content, name)?)
}

/// What follows the name. Lines of a node's file begin with `Node 0`.
fn value<'a>(content: &'a [u8], name: &str) -> Option<&'a [u8]> {
    text::lines(content).find_map(|line| {
        let line = match line.strip_prefix(b"Node ") {
            Some(rest) => {
                let space = rest.iter().position(|&byte| byte == b' ')?;
                rest[space..].trim_ascii_start()
            }
            None => line,
        };
        line.strip_prefix(name.as_bytes())?.strip_prefix(b":")
    })
}

/// A count, such as `pgmigrate_success`; `None` where this kernel does not have it.
pub fn vmstat(content: &[u8], name: &str) -> Option<u64> {
    text::number(text::after(content, name, b" ")?)
}

/// Counts since boot in `/proc/vmstat`. Left out is what begins with `nr_`, most of which is how many there are now, but for TLB flushes
/// (mm/vmstat.c).
pub fn events(content: &[u8]) -> BTreeMap<String, u64> {
    let count = |line| {
        let mut words = text::words(line);
        let (name, count) = (words.next()?, text::number(words.next()?)?);
        let is_now = name.starts_with(b"nr_") || name == b"workingset_nodes";
        let is_event = !is_now || name.starts_with(b"nr_tlb_");
        is_event.then(|| (String::from_utf8_lossy(name).into_owned(), count))
    };
    text::lines(content).filter_map(count).collect()
}

/// Pages since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Numastat {
    /// Wanted on this node and allocated on it.
    pub hit: u64,
    /// Allocated on this node, wanted on another.
    pub miss: u64,
    /// Wanted on this node, allocated on another.
    pub foreign: u64,
    /// Allocated on this node by a task that ran on it.
    pub local: u64,
    /// Allocated on this node by a task that ran on another.
    pub other: u64,
}

impl Numastat {
    /// `None` where one of the counts is missing.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let count = |name| vmstat(content, name);
        Some(Self {
            hit: count("numa_hit")?,
            miss: count("numa_miss")?,
            foreign: count("numa_foreign")?,
            local: count("local_node")?,
            other: count("other_node")?,
        })
    }

    /// What was counted since an earlier look.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            hit: self.hit.saturating_sub(earlier.hit),
            miss: self.miss.saturating_sub(earlier.miss),
            foreign: self.foreign.saturating_sub(earlier.foreign),
            local: self.local.saturating_sub(earlier.local),
            other: self.other.saturating_sub(earlier.other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_system_and_of_a_node_are_in_bytes() {
        let content = b"MemTotal:  9 kB\nMemAvailable:    4 kB\nHugepagesize: 2048 kB\n";
        assert_eq!(bytes(content, "MemAvailable"), Some(4096));
        assert_eq!(bytes(content, "Mem"), None);
        assert_eq!(
            bytes(b"Node 0 MemTotal: 3 kB\nNode 0 MemFree: 2 kB\n", "MemFree"),
            Some(2048)
        );
        let pages = b"Node 0 HugePages_Total:     2\n";
        assert_eq!(
            (
                count(pages, "HugePages_Total"),
                bytes(pages, "HugePages_Total")
            ),
            (Some(2), None)
        );
        for cut in [
            "Node 0 MemTotal:  163696",
            "MemTotal:",
            "MemTotal: -4 kB",
            "MemTotal: 18446744073709551615 kB",
        ] {
            assert_eq!(bytes(cut.as_bytes(), "MemTotal"), None, "{cut}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(content: Vec<u8>, line in "(Node [0-9]* )?MemFree:\\PC*") {
            let _ = (bytes(&content, "MemFree"), bytes(line.as_bytes(), "MemFree"), count(&content, "MemFree"));
        }

        #[test]
        fn no_bytes_panic_as_numastat(bytes: Vec<u8>, line in "numa_hit [0-9]{0,30}") {
            let _ = (Numastat::parse(&bytes), Numastat::parse(line.as_bytes()));
        }
    }

    #[test]
    fn a_count_is_found_by_its_whole_name() {
        let content = b"numa_hint_faults_local 7\nnuma_hint_faults 12\nnuma_other x\n";
        assert_eq!(vmstat(content, "numa_hint_faults"), Some(12));
        assert_eq!(vmstat(content, "numa_hint_faults_local"), Some(7));
        assert_eq!(vmstat(content, "numa_other"), None);
        assert_eq!(vmstat(content, "numa"), None);
        let content = b"nr_free_pages 5\nnr_tlb_remote_flush 7\npgfault 9\npgfree\n";
        let found = events(content).into_iter();
        let found = Vec::from_iter(found.map(|(name, count)| format!("{name} {count}")));
        assert_eq!(found, ["nr_tlb_remote_flush 7", "pgfault 9"]);
    }

    const FILE: &str =
        "numa_hit 9\nnuma_miss 1\nnuma_foreign 2\ninterleave_hit 3\nlocal_node 7\nother_node 3\n";

    #[test]
    fn counts_are_found_by_name_and_a_file_that_was_cut_has_none() {
        let expected = Numastat {
            hit: 9,
            miss: 1,
            foreign: 2,
            local: 7,
            other: 3,
        };
        let found = Numastat::parse(FILE.as_bytes()).unwrap();
        assert_eq!(found, expected);
        assert_eq!(found.since(&expected), Numastat::default());
        assert_eq!(Numastat::parse(&FILE.as_bytes()[..60]), None);
    }
}
