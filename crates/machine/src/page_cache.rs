//! The page cache of a file.

use serde::Serialize;

use crate::task::NodeBytes;

/// What of a file is in memory, by node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PageCache {
    /// Its size.
    pub file_bytes: u64,
    /// Cached, by node; nodes without any are left out.
    pub nodes: Vec<NodeBytes>,
    /// Cached when it was looked for, and no longer when the node was asked for.
    pub unknown_bytes: u64,
}

impl PageCache {
    pub fn cached_bytes(&self) -> u64 {
        self.nodes.iter().map(|on| on.bytes).sum()
    }
}
