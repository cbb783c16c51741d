// SPDX-License-Identifier: GPL-2.0-or-later
//! Which line and which node a guest physical address belongs to.

use crate::config::{LINE_BYTES, Range};

/// A place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The line, counted through all memory without its holes.
    pub line: u32,
    /// The node's position among the nodes with memory.
    pub memory: usize,
    pub node: u32,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    bytes: u64,
    first_line: u32,
    memory: usize,
    node: u32,
}

/// The memory map.
#[derive(Clone, Debug)]
pub struct Memory {
    pieces: Vec<Piece>,
    nodes: Vec<u32>,
    lines: u32,
}

impl Memory {
    /// A map of ranges that ascend and do not overlap.
    pub fn new(ranges: &[Range]) -> Self {
        let mut nodes: Vec<u32> = ranges.iter().map(|range| range.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut lines = 0;
        let mut pieces = Vec::with_capacity(ranges.len());
        for &Range { start, bytes, node } in ranges {
            let memory = nodes.binary_search(&node).unwrap_or(0);
            pieces.push(Piece {
                start,
                bytes,
                first_line: lines,
                memory,
                node,
            });
            lines += (bytes / LINE_BYTES) as u32;
        }
        Self {
            pieces,
            nodes,
            lines,
        }
    }

    /// Nodes with memory, ascending.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Lines in all.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// The position of a line's node among the nodes with memory.
    pub fn of_line(&self, line: u32) -> usize {
        let after = self
            .pieces
            .partition_point(|piece| piece.first_line <= line);
        self.pieces[after.max(1) - 1].memory
    }

    /// What is at an address; `None` for a hole.
    pub fn spot(&self, physical: u64) -> Option<Spot> {
        let after = self.pieces.partition_point(|piece| piece.start <= physical);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        let offset = physical - piece.start;
        let line = piece.first_line + (offset / LINE_BYTES) as u32;
        (offset < piece.bytes).then_some(Spot {
            line,
            memory: piece.memory,
            node: piece.node,
        })
    }
}
