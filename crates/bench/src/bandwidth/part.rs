//! The part of a buffer that one thread works on, block by block.

use std::hint::black_box;

use nearfar_loops::vectors::{copy, read, write};

use super::Traffic;

/// Words done between two looks at the clock: 64 KiB.
pub(super) const BLOCK_WORDS: usize = 8192;

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

    /// Does a block and returns the bytes that were moved; at the end of the buffer it starts again.
    pub(super) fn step(&mut self, traffic: Traffic) -> u64 {
        // Copies go from one half to the other.
        let room = if traffic == Traffic::Copy {
            self.words.len() / 2
        } else {
            self.words.len()
        };
        if self.at >= room {
            self.at = 0;
        }
        let (start, end) = (self.at, (self.at + BLOCK_WORDS).min(room));
        self.at = end;
        let moved = match traffic {
            Traffic::Read => {
                black_box(read(&self.words[start..end]));
                end - start
            }
            Traffic::Write => {
                write(&mut self.words[start..end], black_box(end as u64));
                end - start
            }
            Traffic::Copy => {
                let (from, to) = self.words.split_at_mut(room);
                copy(&from[start..end], &mut to[start..end]);
                2 * (end - start)
            }
        };
        (moved * size_of::<u64>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_gone_through_from_end_to_end_and_again() {
        let mut words = vec![0; 2 * BLOCK_WORDS + 100];
        let mut part = Part::new(&mut words, 0);
        let moved: Vec<u64> = (0..4).map(|_| part.step(Traffic::Read) / 8).collect();
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
        assert_eq!(part.step(Traffic::Copy), 64 * 8);
        assert!(
            words[..32].iter().all(|&word| word == 1) && words[32..].iter().all(|&word| word == 2)
        );
    }

    #[test]
    fn a_part_that_stood_behind_its_end_starts_anew() {
        let mut words = vec![0; 64];
        assert_eq!(Part::new(&mut words, 1000).step(Traffic::Write), 64 * 8);
        assert_eq!(Part::new(&mut [], 0).step(Traffic::Copy), 0);
    }
}
