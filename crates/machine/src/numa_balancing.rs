//! The mode of automatic NUMA balancing.

/// `kernel.numa_balancing`, a set of bits (Documentation/admin-guide/sysctl/kernel.rst).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumaBalancing(pub u32);

impl NumaBalancing {
    /// Neither bit.
    pub const OFF: Self = Self(0);
    /// Moves pages to the node that uses them.
    pub const NORMAL: Self = Self(1);
    /// Moves pages between fast and slow memory; not between nodes of the same tier.
    pub const MEMORY_TIERING: Self = Self(2);

    /// Whether pages move to the node that uses them. Not so in mode 2, memory tiering alone.
    pub fn is_normal(self) -> bool {
        self.0 & Self::NORMAL.0 != 0
    }

    /// This mode with normal balancing on or off, and memory tiering as it was.
    pub fn with_normal(self, on: bool) -> Self {
        match on {
            true => Self(self.0 | Self::NORMAL.0),
            false => Self(self.0 & !Self::NORMAL.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_tiering_alone_is_not_normal_balancing() {
        let normal = [0, 1, 2, 3].map(|mode| NumaBalancing(mode).is_normal());
        assert_eq!(normal, [false, true, false, true]);
        assert_eq!(NumaBalancing(2).with_normal(true), NumaBalancing(3));
        assert_eq!(
            NumaBalancing(3).with_normal(false),
            NumaBalancing::MEMORY_TIERING
        );
    }
}
