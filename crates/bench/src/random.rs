//! Random order that is the same on each run: measurements differ for other reasons.

/// Seed of every order in a measurement; any constant would do.
pub(crate) const SEED: u64 = 0x6e65_6172_6661_7221;

/// A small generator of random numbers (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    /// A generator with this seed; 0 is replaced, because it would yield 0 for ever.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// A number below `bound`, which is above 0. The bias of the multiplication is below 2^-32 for the bounds in use.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        ((u128::from(number) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        self.below(1 << 32) as f64 / (1u64 << 32) as f64
    }

    /// Puts the items into random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_random_number_is_below_its_bound(seed: u64, bound in 1usize..1000) {
            let mut random = Random::new(seed);
            prop_assert!((0..50).all(|_| random.below(bound) < bound));
        }

        #[test]
        fn shuffling_loses_nothing(count in 0usize..200, seed: u64) {
            let mut items: Vec<usize> = (0..count).collect();
            Random::new(seed).shuffle(&mut items);
            items.sort_unstable();
            prop_assert_eq!(items, (0..count).collect::<Vec<_>>());
        }
    }
}
