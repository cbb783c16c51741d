//! Numbers that are the same on each run (splitmix64).

/// So many simulations, in proportion to the number of cases of property tests: as many as given where PROPTEST_CASES is not set.
pub fn in_proportion(trials: usize) -> usize {
    let cases = proptest::prelude::ProptestConfig::default().cases as usize;
    (trials * cases).div_ceil(256)
}

/// A stream of them.
pub struct Random(pub u64);

impl Random {
    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal with mean 0 and deviation 1: a sum of twelve.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}
