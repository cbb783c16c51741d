//! The loops that move memory: plain Rust that the compiler turns into vector instructions.
//!
//! On x86-64 a second version of each is compiled for AVX2 and taken where the processor has it. Non-temporal stores
//! are not used: what is measured is what ordinary code gets.

use std::hint::black_box;

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
