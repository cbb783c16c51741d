//! The loops that are timed: nothing but loads and stores, and what it takes to find the next address.
//!
//! ```text
//!  random       state ─ multiply, add ─► state     index = high 64 bits of state x length      (no branch, no division)
//!  sequential   from where the round before ended; at the end of the buffer from its start
//!  chain        index = word at index
//! ```
//!
//! The generator is a linear congruential one (multiplier and increment are Knuth's MMIX): its high bits are good, and
//! a step of it takes less time than a load from any cache but the first, even with several loads on the way.

use std::fmt;
use std::hint::black_box;

use serde::{Deserialize, Serialize};

use crate::vectors;

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;
/// Where the generator starts; the same for each run, so that runs do the same work.
const SEED: u64 = 0x6e65_6172_6661_7221;

/// How the buffer is gone through. All access is to aligned words of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// A word at a random place is read and written back changed: the published probe.
    #[default]
    RandomReadWrite,
    /// Each word in turn is read and written back changed.
    SequentialReadWrite,
    /// A word at a random place is read. Addresses do not depend on what is read: the processor has several on the way.
    RandomRead,
    /// Each word in turn is read.
    SequentialRead,
    /// A word at a random place is written.
    RandomWrite,
    /// Each word in turn is written.
    SequentialWrite,
    /// Each load's address is what the load before brought: one random cycle over all cache lines.
    Chain,
}

impl Pattern {
    /// All patterns, the published one first.
    pub const ALL: [Self; 7] = [
        Self::RandomReadWrite,
        Self::SequentialReadWrite,
        Self::RandomRead,
        Self::SequentialRead,
        Self::RandomWrite,
        Self::SequentialWrite,
        Self::Chain,
    ];
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RandomReadWrite => "random read-then-write",
            Self::SequentialReadWrite => "sequential read-then-write",
            Self::RandomRead => "random read",
            Self::SequentialRead => "sequential read",
            Self::RandomWrite => "random write",
            Self::SequentialWrite => "sequential write",
            Self::Chain => "dependent chain",
        })
    }
}

/// A pattern of access, and how far it is.
pub struct Loop {
    pattern: Pattern,
    state: u64,
    /// The next word of a sequence, or of the chain.
    at: usize,
}

impl Loop {
    pub fn new(pattern: Pattern) -> Self {
        Self {
            pattern,
            state: SEED,
            at: 0,
        }
    }

    /// Does `steps` accesses. `words` is not empty; for the chain it holds one.
    #[inline(never)]
    pub fn round(&mut self, words: &mut [u64], steps: u64) {
        match self.pattern {
            Pattern::RandomReadWrite => {
                self.at_random(words, steps, |word, _| *word = word.wrapping_add(1))
            }
            Pattern::RandomWrite => self.at_random(words, steps, |word, state| *word = state),
            Pattern::RandomRead => {
                let mut sum = 0u64;
                self.at_random(words, steps, |word, _| sum = sum.wrapping_add(*word));
                black_box(sum);
            }
            Pattern::SequentialReadWrite => self.in_sequence(words, steps, vectors::increment),
            Pattern::SequentialRead => {
                self.in_sequence(words, steps, |words| _ = black_box(vectors::read(words)))
            }
            Pattern::SequentialWrite => {
                let value = black_box(steps);
                self.in_sequence(words, steps, |words| vectors::write(words, value));
            }
            Pattern::Chain => {
                let mut at = self.at;
                for _ in 0..steps {
                    // A chain never leaves its buffer; were it to, the start would be as good a place to go on as any.
                    at = words.get(at).map_or(0, |&next| next as usize);
                }
                self.at = black_box(at);
            }
        }
    }

    #[inline(always)]
    fn at_random(&mut self, words: &mut [u64], steps: u64, mut access: impl FnMut(&mut u64, u64)) {
        let mut state = self.state;
        for _ in 0..steps {
            state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
            let index = ((u128::from(state) * words.len() as u128) >> 64) as usize;
            // SAFETY: a number below 2^64 times the length, divided by 2^64, is below the length.
            access(unsafe { words.get_unchecked_mut(index) }, state);
        }
        self.state = state;
    }

    #[inline(always)]
    fn in_sequence(
        &mut self,
        words: &mut [u64],
        mut steps: u64,
        mut access: impl FnMut(&mut [u64]),
    ) {
        while steps > 0 && !words.is_empty() {
            if self.at >= words.len() {
                self.at = 0;
            }
            let left = words.len() - self.at;
            let now = usize::try_from(steps).unwrap_or(usize::MAX).min(left);
            access(&mut words[self.at..self.at + now]);
            self.at += now;
            steps -= now as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_then_write_changes_as_many_words_as_it_takes_steps() {
        for pattern in [Pattern::RandomReadWrite, Pattern::SequentialReadWrite] {
            let mut words = vec![0u64; 1000];
            let mut way = Loop::new(pattern);
            way.round(&mut words, 2500);
            way.round(&mut words, 501);
            assert_eq!(words.iter().sum::<u64>(), 3001, "{pattern}");
            if pattern == Pattern::SequentialReadWrite {
                assert_eq!((words[0], words[1], words[999]), (4, 3, 3));
            }
        }
    }

    #[test]
    fn random_places_are_all_over_the_buffer_and_evenly_so() {
        let mut words = vec![0u64; 64];
        Loop::new(Pattern::RandomReadWrite).round(&mut words, 64_000);
        assert!(
            words.iter().all(|&hits| (800..1200).contains(&hits)),
            "{words:?}"
        );
    }

    #[test]
    fn reading_changes_nothing_and_writing_does() {
        for pattern in [Pattern::RandomRead, Pattern::SequentialRead, Pattern::Chain] {
            let mut words = vec![0u64; 100];
            Loop::new(pattern).round(&mut words, 1000);
            assert!(words.iter().all(|&word| word == 0), "{pattern}");
        }
        for pattern in [Pattern::RandomWrite, Pattern::SequentialWrite] {
            let mut words = vec![0u64; 100];
            Loop::new(pattern).round(&mut words, 5000);
            assert!(words.iter().all(|&word| word != 0), "{pattern}");
        }
    }

    #[test]
    fn a_chain_is_followed_from_where_it_stopped() {
        let mut words = vec![3, 0, 1, 2];
        let mut way = Loop::new(Pattern::Chain);
        way.round(&mut words, 2);
        assert_eq!(way.at, 2);
        way.round(&mut words, 2);
        assert_eq!(way.at, 0);
    }
}
