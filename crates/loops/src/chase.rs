//! The chase: one random cycle over the lines of a buffer, and the loop that follows it.
//!
//! ```text
//!  line     0        1        2        3
//!         ┌──────┬────────┬────────┬────────┐
//!  words  │ 16 ..│ 0   .. │ 24  .. │ 8   .. │     first word of a line = index of the next line's first word:
//!         └──────┴────────┴────────┴────────┘     0 → 16 → 24 → 8 → 0, every line once
//! ```

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;

/// Lines between two checks of the cancel flag.
const LINES_PER_CANCEL_CHECK: usize = 1 << 16;

/// Loads in a turn of the loop that follows a chain.
const UNROLLED: u64 = 16;

/// The successor of each of `lines` lines, such that following it from any line visits all of them (Sattolo's
/// algorithm: like a shuffle, but no item may stay where it is, which leaves exactly one cycle). `None` when cancelled.
pub fn cycle(lines: u32, random: &mut Rng, cancel: &AtomicBool) -> Option<Vec<u32>> {
    let mut next: Vec<u32> = (0..lines).collect();
    for last in (1..next.len()).rev() {
        if last.is_multiple_of(LINES_PER_CANCEL_CHECK) && cancel.load(Ordering::Relaxed) {
            return None;
        }
        next.swap(last, random.usize(..last));
    }
    Some(next)
}

/// The same for a chain that visits all lines of a block, in random order, before it goes on to the next block
/// (multichase calls that TLB locality). Each block begins with its first line.
pub fn cycle_in_blocks(
    lines: u32,
    block: u32,
    random: &mut Rng,
    cancel: &AtomicBool,
) -> Option<Vec<u32>> {
    let mut order: Vec<u32> = (0..lines).collect();
    for lines in order.chunks_mut(block.max(1) as usize) {
        if cancel.load(Ordering::Relaxed) {
            return None;
        }
        random.shuffle(&mut lines[1..]);
    }
    let mut next = vec![0; order.len()];
    for (place, &line) in order.iter().enumerate() {
        next[line as usize] = order[(place + 1) % order.len()];
    }
    Some(next)
}

/// Writes the cycle into a buffer whose lines are `stride` words long. Writing goes from front to back, so a buffer
/// costs its bandwidth and not a cache miss a line. Stops early when cancelled.
pub fn link(words: &mut [u64], next: &[u32], stride: usize, cancel: &AtomicBool) {
    for (words, next) in words
        .chunks_mut(stride * LINES_PER_CANCEL_CHECK)
        .zip(next.chunks(LINES_PER_CANCEL_CHECK))
    {
        for (line, &next) in words.chunks_exact_mut(stride).zip(next) {
            line[0] = u64::from(next) * stride as u64;
        }
        if cancel.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Follows the chain for `steps` loads from word `at` on; gives the last word.
///
/// The check of the index is not on the path from one load to the next: the processor predicts it.
#[inline(never)]
pub fn follow(words: &[u64], at: u64, steps: u64) -> u64 {
    // A chain never leaves its buffer; were it to, the start would be as good a place to go on as any.
    let next = |at: u64| words.get(at as usize).copied().unwrap_or(0);
    // Unrolled: where each instruction takes time, as in simulated time, little but the loads is counted.
    let mut at = (0..steps / UNROLLED).fold(at, |at, _| (0..UNROLLED).fold(at, |at, _| next(at)));
    at = (0..steps % UNROLLED).fold(at, |at, _| next(at));
    black_box(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, prop_assert_ne, proptest};

    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn whole_cycle(lines: u32, seed: u64) -> Vec<u32> {
        cycle(lines, &mut Rng::with_seed(seed), &GO_ON).unwrap()
    }

    #[test]
    fn one_line_is_followed_by_itself() {
        assert_eq!(whole_cycle(1, 1), [0]);
        assert!(whole_cycle(0, 1).is_empty());
    }

    #[test]
    fn a_long_cycle_can_be_cancelled() {
        let lines = 2 * LINES_PER_CANCEL_CHECK as u32 + 1;
        assert_eq!(
            cycle(lines, &mut Rng::with_seed(1), &AtomicBool::new(true)),
            None
        );
    }

    proptest! {
        #[test]
        fn the_permutation_is_one_cycle(lines in 1u32..5000, seed: u64) {
            let next = whole_cycle(lines, seed);
            let mut at = 0;
            let mut seen = vec![false; lines as usize];
            for _ in 0..lines {
                prop_assert!(!std::mem::replace(&mut seen[at as usize], true), "line {} twice", at);
                at = next[at as usize];
            }
            prop_assert_eq!(at, 0);
        }

        #[test]
        fn blocks_are_visited_one_after_the_other(lines in 1u32..2000, block in 1u32..100, seed: u64) {
            let next = cycle_in_blocks(lines, block, &mut Rng::with_seed(seed), &GO_ON).unwrap();
            let mut at = 0;
            let mut seen = vec![false; lines as usize];
            for step in 0..lines {
                prop_assert_eq!(at / block, step / block);
                prop_assert!(!std::mem::replace(&mut seen[at as usize], true), "line {} twice", at);
                at = next[at as usize];
            }
            prop_assert_eq!(at, 0);
        }

        #[test]
        fn following_a_linked_buffer_comes_back_after_all_lines(lines in 2u32..500, stride in 1usize..9, seed: u64) {
            let mut words = vec![u64::MAX; lines as usize * stride];
            link(&mut words, &whole_cycle(lines, seed), stride, &GO_ON);
            prop_assert_eq!(follow(&words, 0, u64::from(lines)), 0);
            prop_assert_ne!(follow(&words, 0, u64::from(lines) - 1), 0);
        }
    }
}
