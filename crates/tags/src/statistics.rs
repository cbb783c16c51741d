//! What an allocator did in addition to handing out tags.

/// Counts since the allocator was made. Each is counted where it is rare: a get from a cache at hand counts nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// How often tags of another cache were taken.
    pub steals: Steals,
    /// How often a cache was filled from the shared pool.
    pub refills: u64,
    /// How often all caches were emptied since tags were scarce.
    pub revocations: u64,
    /// How often a caller waited.
    pub waits: u64,
    /// Waits that ended with a tag handed over by the caller that put it.
    pub hand_overs: u64,
}

/// Steals by what both CPUs share: how often tags of another cache or group were taken. None is counted by an allocator without a
/// topology, nor under `Bitmap` and `Auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Steals {
    pub core: u64,
    pub core_group: u64,
    pub llc: u64,
    pub node: u64,
    /// From another node.
    pub remote: u64,
    /// The sum over `remote` of the nodes' distances.
    pub remote_distance: u64,
    /// The tags that were taken in all of these together: all of a cache at once, one of a group.
    pub tags: u64,
}
