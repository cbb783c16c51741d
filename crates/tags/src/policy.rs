use crate::topology::Group;

/// Where free tags are kept, and whose are taken when there are none left at hand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// A cache of N / possible CPUs tags for each CPU under a lock; a CPU without tags takes those of any other, in turns. As the
    /// kernel's lib/percpu_ida.c did (Linux 3.12 to 4.18).
    Stock,
    /// As `Stock`, with caches of N / min(8, online CPUs) tags, so that fewer are taken from others.
    Limit,
    /// As `Limit`, from the nearest cache first: same core, core group, last-level cache, node, then by the nodes' distance.
    LimitTopology,
    /// Words of bits for each group of CPUs without a lock; where they are empty, those of the nearest group.
    Coarse(Group),
    /// Words of bits with a hint for each CPU, deferred clears and wake-ups in batches, as the kernel's lib/sbitmap.c.
    Bitmap,
    /// A cache for each CPU without a lock (restartable sequences) while there are many tags, words of bits that all CPUs share
    /// while they are scarce or where the kernel or the C library has no restartable sequences.
    #[default]
    Auto,
}
