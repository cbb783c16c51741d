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
//!
//! The loops that go through a buffer in sequence are plain Rust that the compiler turns into vector instructions.
//! On x86-64 a second version of each is compiled for AVX2 and taken where the processor has it. Non-temporal stores
//! are not used: what is measured is what ordinary code gets.

use std::fmt;
use std::hint::black_box;

use serde::{Deserialize, Serialize};

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
            Pattern::SequentialReadWrite => self.in_sequence(words, steps, increment),
            Pattern::SequentialRead => {
                self.in_sequence(words, steps, |words| _ = black_box(read(words)))
            }
            Pattern::SequentialWrite => {
                let value = black_box(steps);
                self.in_sequence(words, steps, |words| write(words, value));
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

/// A loop twice: for every processor, and for those with 256-bit integer instructions.
macro_rules! vectorised {
    ($(#[$doc:meta])* $name:ident, $wide:ident, ($($argument:ident: $type:ty),*) $(-> $result:ty)?, $body:block) => {
        $(#[$doc])*
        #[inline(never)]
        pub fn $name($($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the instructions, as just asked.
                return unsafe { $wide($($argument),*) };
            }
            $body
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $wide($($argument: $type),*) $(-> $result)? $body
    };
}

vectorised!(
    /// The sum of all words: several sums side by side, so that no addition waits for the one before.
    read, read_avx2, (words: &[u64]) -> u64, {
        let mut sums = [0u64; 16];
        for group in words.chunks_exact(16) {
            for (sum, &word) in sums.iter_mut().zip(group) {
                *sum = sum.wrapping_add(word);
            }
        }
        sums.iter().fold(0, |sum, &part| sum.wrapping_add(part))
    }
);

vectorised!(
    /// A value into every word. The value is not known when this is compiled: a byte repeated would become a call of
    /// memset, which for large areas bypasses the caches. Unrolled, as the compiler would have it, the loop was measured
    /// to write 14 % slower than that of gcc on a Zen 3: the address that is looked at keeps it to a vector a turn.
    write, write_avx2, (words: &mut [u64], value: u64), {
        let (vectors, rest) = words.as_chunks_mut::<4>();
        for vector in vectors {
            *vector = [value; 4];
            black_box(vector.as_ptr());
        }
        for word in rest {
            *word = value;
        }
    }
);

vectorised!(
    /// Every word, and one more, to its place in the other half; "one more" keeps it from becoming a call of memcpy.
    copy, copy_avx2, (from: &[u64], to: &mut [u64]), {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.wrapping_add(1);
        }
    }
);

vectorised!(
    /// Every word read, and written back with one more.
    increment, increment_avx2, (words: &mut [u64]), {
        for word in words {
            *word = word.wrapping_add(1);
        }
    }
);

/// The sum of all words, line by line, with so many steps of a calculation after each line of 64 bytes that wait for one another and
/// for the line. What is read next waits for none of them.
#[inline(never)]
pub fn read_pausing(words: &[u64], steps: u64) -> u64 {
    let mut sum = 0u64;
    for line in words.chunks_exact(8) {
        sum = line.iter().fold(sum, |sum, &word| sum.wrapping_add(word));
        // The multiplier of Knuth's MMIX: the compiler knows no shorter way to the result.
        sum = (0..steps).fold(sum, |sum, _| {
            sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)
        });
    }
    sum
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

    #[test]
    fn loops_do_what_they_say() {
        let words: Vec<u64> = (0..1600).collect();
        assert_eq!(read(&words), 1600 * 1599 / 2);
        assert_eq!(read_pausing(&words, 0), read(&words));
        assert_ne!(read_pausing(&words, 3), read(&words));
        let mut target = vec![0; 1600];
        copy(&words, &mut target);
        assert!(
            target
                .iter()
                .zip(1..)
                .all(|(&word, expected)| word == expected)
        );
        write(&mut target, 7);
        assert!(target.iter().all(|&word| word == 7));
        increment(&mut target[1..]);
        assert_eq!(
            (target[0], target[1..].iter().all(|&word| word == 8)),
            (7, true)
        );
    }
}
