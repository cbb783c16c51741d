use crate::topology::Group;

/// Where free tags are kept, and whose are taken when there are none left at hand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// A cache of N / possible CPUs tags (1 to 64) for each CPU under a lock, over a pool under a lock; a CPU without tags takes all
    /// of any other CPU's cache, in turns. As the kernel's block layer did with lib/percpu_ida.c (Linux 3.13 to 3.15).
    Stock,
    /// As `Stock`, with caches of N / min(8, online CPUs) tags, as a patch of April 2014 proposed. These caches, and those of
    /// `LimitTopology`, together can hold every tag.
    Limit,
    /// As `Limit`, from the nearest cache first: same core, core group, last-level cache, node, then by the nodes' distance. As the
    /// patch that followed it.
    LimitTopology,
    /// Words of bits for each group of CPUs, without locks and without caches; where they are empty, a tag of the nearest group's.
    Coarse(Group),
    /// Words of bits with a hint for each CPU and deferred clears, as the block layer has used since: lib/sbitmap.c (Linux 4.9).
    Bitmap,
    /// A cache for each CPU without a lock (restartable sequences) while there are many tags, words of bits that all CPUs share
    /// while they are scarce or where the kernel or the C library has no restartable sequences.
    #[default]
    Auto,
}
