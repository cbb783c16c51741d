// SPDX-License-Identifier: GPL-2.0-or-later
//! Which line and which node a guest physical address belongs to.

use crate::config::{LINE_BYTES, Range};

/// A place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The line, counted through all memory without its holes.
    pub line: u32,
    /// The node's position.
    pub node: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    bytes: u64,
    first_line: u32,
    node: usize,
}

/// The memory map.
#[derive(Clone, Debug)]
pub struct Memory {
    pieces: Vec<Piece>,
    lines: u32,
}

impl Memory {
    /// A map of ranges that ascend and do not overlap; `position` is that of a node by its number.
    pub fn new(ranges: &[Range], position: impl Fn(u32) -> usize) -> Self {
        let mut lines = 0;
        let mut pieces = Vec::with_capacity(ranges.len());
        for &Range { start, bytes, node } in ranges {
            pieces.push(Piece {
                start,
                bytes,
                first_line: lines,
                node: position(node),
            });
            lines += (bytes / LINE_BYTES) as u32;
        }
        Self { pieces, lines }
    }

    /// Lines in all.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// The position of a line's node.
    pub fn of_line(&self, line: u32) -> usize {
        let after = self
            .pieces
            .partition_point(|piece| piece.first_line <= line);
        self.pieces[after.max(1) - 1].node
    }

    /// What is at an address; `None` for a hole.
    pub fn spot(&self, physical: u64) -> Option<Spot> {
        let after = self.pieces.partition_point(|piece| piece.start <= physical);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        let offset = physical - piece.start;
        let line = piece.first_line + (offset / LINE_BYTES) as u32;
        (offset < piece.bytes).then_some(Spot {
            line,
            node: piece.node,
        })
    }
}
