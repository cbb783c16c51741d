//! `/proc/zoneinfo`: free pages and watermarks of each zone of each node (proc_zoneinfo(5)).
//!
//! ```text
//! Node 0, zone   Normal
//!   pages free     12345
//!         boost    0
//!         min      3344
//!         low      4180
//!         high     5016
//! ```

use nearfar_machine::{MAX_NUMBER, NodeId};

use crate::text;

/// Sums over the zones of one node, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodePages {
    pub free: u64,
    /// Reclaim of a zone in the background ends when this many pages are free.
    pub high: u64,
}

impl NodePages {
    /// Pages that can be taken without waking the reclaim of memory.
    pub fn above_high(self) -> u64 {
        self.free.saturating_sub(self.high)
    }
}

/// The pages of a node; `None` where the text has no zone of it.
pub fn of_node(zoneinfo: &[u8], node: NodeId) -> Option<NodePages> {
    let (mut is_inside, mut found) = (false, None::<NodePages>);
    for line in text::lines(zoneinfo) {
        if let Some(zone) = line.strip_prefix(b"Node ") {
            is_inside = node_of(zone) == Some(node);
            if is_inside {
                found.get_or_insert_default();
            }
        } else if let Some(pages) = found.as_mut().filter(|_| is_inside) {
            let line = line.trim_ascii();
            let line = line.strip_prefix(b"pages ").unwrap_or(line);
            let value = |key: &[u8]| line.strip_prefix(key).and_then(text::number::<u64>);
            pages.free = pages.free.saturating_add(value(b"free ").unwrap_or(0));
            pages.high = pages.high.saturating_add(value(b"high ").unwrap_or(0));
        }
    }
    found
}

/// `0, zone   Normal`
fn node_of(zone: &[u8]) -> Option<NodeId> {
    let comma = zone.iter().position(|&byte| byte == b',')?;
    let number: u32 = text::number(&zone[..comma])?;
    (number <= MAX_NUMBER).then_some(NodeId(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 5\n  pages free     100\n        \
        boost    0\n        min      3\n        low      4\n        high     5\n        spanned  4095\n  pagesets\n    cpu: 0\n              \
        count:    7\n              high:     9\nNode 0, zone   Normal\n  pages free     1000\n        high     50\nNode 1, zone   Normal\n  \
        pages free     7\n        high     70\n";

    #[test]
    fn zones_of_a_node_are_added_up_and_lists_of_cpus_are_not() {
        let first = of_node(TEXT, NodeId(0)).unwrap();
        assert_eq!((first.free, first.high), (1100, 55));
        assert_eq!(first.above_high(), 1045);
        assert_eq!(of_node(TEXT, NodeId(1)).unwrap().above_high(), 0);
        assert_eq!(of_node(TEXT, NodeId(2)), None);
    }

    #[test]
    fn this_system_has_a_node_with_free_pages() {
        let Ok(text) = std::fs::read("/proc/zoneinfo") else {
            return println!("skipped: kernel: no /proc/zoneinfo");
        };
        let found = (0..64).filter_map(|node| of_node(&text, NodeId(node)));
        assert!(found.map(|pages| pages.free).sum::<u64>() > 0);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text in "(Node [0-9]{1,12}, zone x\n( pages free [0-9]{1,21}\n| high [0-9]{1,21}\n)*){0,5}") {
            let _ = of_node(&bytes, NodeId(0));
            let _ = of_node(text.as_bytes(), NodeId(1));
        }
    }
}
