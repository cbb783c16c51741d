//! The part of a buffer that one thread works on, block by block.

use std::hint::black_box;
use std::ops::Range;

use nearfar_loops::access::{copy, read, read_pausing, write};
use nearfar_loops::chase;

use super::Traffic;

/// Words done at once: 256 KiB, so that what a thread does in between hardly counts.
pub(super) const BLOCK_WORDS: usize = 32_768;
/// The same where a thread pauses after each line.
const PAUSING_WORDS: usize = 512;
/// Loads of a chase at once.
const CHASE_LOADS: u64 = 256;

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Work {
    Move(Traffic),
    /// Reads, and computes for so many steps after each line.
    ReadPausing(u64),
    /// Follows the chain that its words are.
    Chase,
}

/// Where one thread works, and how far it is.
pub(super) struct Part<'a> {
    words: &'a mut [u64],
    at: usize,
}

impl<'a> Part<'a> {
    /// A part that starts `at` words behind its beginning.
    pub(super) fn new(words: &'a mut [u64], at: usize) -> Self {
        Self { words, at }
    }

    /// How far it is.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Does a block and returns the bytes that were loaded and stored; at the end of the buffer it starts again.
    pub(super) fn step(&mut self, work: Work) -> u64 {
        let moved = match work {
            Work::Move(Traffic::Read) => {
                let block = self.block(self.words.len(), BLOCK_WORDS);
                black_box(read(&self.words[block.clone()]));
                block.len()
            }
            Work::Move(Traffic::Write) => {
                let block = self.block(self.words.len(), BLOCK_WORDS);
                write(&mut self.words[block.clone()], black_box(block.end as u64));
                block.len()
            }
            Work::Move(Traffic::Copy) => {
                // From one half to the other.
                let half = self.words.len() / 2;
                let block = self.block(half, BLOCK_WORDS);
                let (from, to) = self.words.split_at_mut(half);
                copy(&from[block.clone()], &mut to[block.clone()]);
                2 * block.len()
            }
            Work::ReadPausing(steps) => {
                let block = self.block(self.words.len(), PAUSING_WORDS);
                black_box(read_pausing(&self.words[block.clone()], steps));
                block.len()
            }
            Work::Chase => {
                self.at = chase::follow(self.words, self.at as u64, CHASE_LOADS) as usize;
                CHASE_LOADS as usize
            }
        };
        (moved * size_of::<u64>()) as u64
    }

    /// The next block of the first `room` words.
    fn block(&mut self, room: usize, words: usize) -> Range<usize> {
        let start = if self.at < room { self.at } else { 0 };
        self.at = (start + words).min(room);
        start..self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_gone_through_from_end_to_end_and_again() {
        let mut words = vec![0; 2 * BLOCK_WORDS + 100];
        let mut part = Part::new(&mut words, 0);
        let moved: Vec<u64> = (0..4)
            .map(|_| part.step(Work::Move(Traffic::Read)) / 8)
            .collect();
        assert_eq!(
            moved,
            [
                BLOCK_WORDS as u64,
                BLOCK_WORDS as u64,
                100,
                BLOCK_WORDS as u64
            ]
        );
        assert_eq!(part.at(), BLOCK_WORDS);
    }

    #[test]
    fn a_copy_counts_both_directions_and_stays_in_its_halves() {
        let mut words = vec![1; 64];
        let mut part = Part::new(&mut words, 0);
        assert_eq!(part.step(Work::Move(Traffic::Copy)), 64 * 8);
        assert!(
            words[..32].iter().all(|&word| word == 1) && words[32..].iter().all(|&word| word == 2)
        );
    }

    #[test]
    fn a_chase_goes_on_where_it_was_and_pauses_leave_out_no_line() {
        // Each word names the next.
        let mut chain: Vec<u64> = (1..1000).chain([0]).collect();
        let mut part = Part::new(&mut chain, 0);
        assert_eq!(part.step(Work::Chase), CHASE_LOADS * 8);
        part.step(Work::Chase);
        assert_eq!(part.at() as u64, 2 * CHASE_LOADS);
        let mut words = vec![0; 600];
        let mut part = Part::new(&mut words, 0);
        let read: Vec<u64> = (0..3)
            .map(|_| part.step(Work::ReadPausing(1)) / 8)
            .collect();
        assert_eq!(read, [512, 88, 512]);
    }

    #[test]
    fn a_part_that_stood_behind_its_end_starts_anew() {
        let mut words = vec![0; 64];
        assert_eq!(
            Part::new(&mut words, 1000).step(Work::Move(Traffic::Write)),
            64 * 8
        );
        assert_eq!(Part::new(&mut [], 0).step(Work::Move(Traffic::Copy)), 0);
    }
}
