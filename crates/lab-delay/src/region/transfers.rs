// SPDX-License-Identifier: GPL-2.0-or-later
//! Which instruction got which line from another vCPU, how often, and how long that took: a hash table in the region.
//!
//! ```text
//!  8 words: transfers that found no slot; 1: a program in the guest waits for transfers to be counted (nearfar writes it); 6 unused
//!  then slots of 8 words:
//!    0 key; 0: an empty slot     2 line's address; 0: others     4 transfers within a node     6 picoseconds of both
//!    1 instruction's address     3 node of the memory            5 from another node           7 unused
//! ```
//! The last eighth of the slots is for instructions alone: there goes what finds no slot of its line. A slot stays taken until the host
//! empties the table. All of it is atomic and relaxed: a reader may see the key of a slot before its addresses, and a transfer that is
//! counted while the table is emptied may be missing.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Words of a slot, and before the first one.
pub const SLOT_WORDS: usize = 8;
/// How many slots in a row are looked at: of a line, of an instruction.
const LINE_STEPS: usize = 16;
const INSTRUCTION_STEPS: usize = 256;
/// The part of the slots that is for instructions alone.
const INSTRUCTIONS: usize = 8;

const INSTRUCTION: usize = 1;
const LINE: usize = 2;
const HOME: usize = 3;
const SAME_NODE: usize = 4;
const OTHER_NODE: usize = 5;
const PS: usize = 6;

/// A line that came from another vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineTransfer {
    /// The instruction's virtual address.
    pub instruction: u64,
    /// The line's first virtual address.
    pub line: u64,
    /// The number of the memory's node.
    pub home: u32,
    /// Whether it came from another node.
    pub is_from_other_node: bool,
    /// What it took, in picoseconds.
    pub ps: u64,
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Transfers {
    is_wanted: &'static AtomicU64,
    lost: &'static AtomicU64,
    lines: &'static [[AtomicU64; SLOT_WORDS]],
    instructions: &'static [[AtomicU64; SLOT_WORDS]],
}

impl Transfers {
    /// A table in given words; what is no whole slot is not used.
    ///
    /// # Panics
    /// Without any word.
    pub fn over(words: &'static [AtomicU64]) -> Self {
        let (slots, _) = words.as_chunks();
        let (first, slots) = slots.split_first().expect("words before the slots");
        let (lines, instructions) = slots.split_at(slots.len() - slots.len() / INSTRUCTIONS);
        Self {
            lost: &first[0],
            is_wanted: &first[1],
            lines,
            instructions,
        }
    }

    /// Counts a transfer, if a program wants that.
    pub fn note(&self, it: LineTransfer) {
        if self.is_wanted.load(Relaxed) == 0 {
            return;
        }
        let of_line = || slot(self.lines, it.instruction, it.line, LINE_STEPS);
        let of_instruction = || slot(self.instructions, it.instruction, 0, INSTRUCTION_STEPS);
        let Some(slot) = of_line().or_else(of_instruction) else {
            self.lost.fetch_add(1, Relaxed);
            return;
        };
        // The page may have moved to another node, or another process have one at this address.
        slot[HOME].store(it.home.into(), Relaxed);
        let count = match it.is_from_other_node {
            true => OTHER_NODE,
            false => SAME_NODE,
        };
        slot[count].fetch_add(1, Relaxed);
        slot[PS].fetch_add(it.ps, Relaxed);
    }
}

/// The slot of an instruction and a line, which may be taken for them now; `None` where others have all that are looked at.
fn slot(
    slots: &'static [[AtomicU64; SLOT_WORDS]],
    instruction: u64,
    line: u64,
    steps: usize,
) -> Option<&'static [AtomicU64; SLOT_WORDS]> {
    let key = key(instruction, line);
    // The lowest bit is the same in all keys.
    let first = (key >> 1) as usize % slots.len().max(1);
    let in_order = slots[first..].iter().chain(&slots[..first]).take(steps);
    for slot in in_order {
        if slot[0].load(Relaxed) == key {
            return Some(slot);
        }
        match slot[0].compare_exchange(0, key, Relaxed, Relaxed) {
            Ok(_) => {
                slot[INSTRUCTION].store(instruction, Relaxed);
                slot[LINE].store(line, Relaxed);
                return Some(slot);
            }
            Err(taken) if taken == key => return Some(slot),
            Err(_) => {}
        }
    }
    None
}

/// A number of both, never 0, which two pairs have only by chance (the finisher of splitmix64).
fn key(instruction: u64, line: u64) -> u64 {
    let mut key = instruction ^ line.rotate_left(29);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        key = (key ^ (key >> 30)).wrapping_mul(factor);
    }
    (key ^ (key >> 31)) | 1
}
