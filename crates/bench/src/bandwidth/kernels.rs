//! The loops that move memory: plain Rust that the compiler turns into vector instructions.
//!
//! On x86-64 a second version of each is compiled for AVX2 and taken where the processor has it. Non-temporal stores
//! are not used: what is measured is what ordinary code gets.

use std::hint::black_box;

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

/// A loop twice: for every processor, and for those with 256-bit integer instructions.
macro_rules! vectorised {
    ($(#[$doc:meta])* $name:ident, $wide:ident, ($($argument:ident: $type:ty),*) $(-> $result:ty)?, $body:block) => {
        $(#[$doc])*
        #[inline(never)]
        pub(crate) fn $name($($argument: $type),*) $(-> $result)? {
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
    fn loops_do_what_they_say() {
        let words: Vec<u64> = (0..1600).collect();
        assert_eq!(read(&words), 1600 * 1599 / 2);
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
