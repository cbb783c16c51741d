//! What the plugin counted.

use std::collections::BTreeMap;

use nearfar_machine::NodeId;
use serde::Serialize;

/// Counts of a guest, as they are at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counts {
    /// Whether accesses are looked at now.
    pub counting: bool,
    /// Nanoseconds of simulated time so far; `None` in the host's time.
    pub simulated_ns: Option<u64>,
    /// One a vCPU, by number.
    pub vcpus: Vec<VcpuCounts>,
}

/// A vCPU's counts since the guest started.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct VcpuCounts {
    pub node: NodeId,
    /// Loads and stores; instruction fetches are not among them.
    pub accesses: u64,
    /// Accesses to a line in the vCPU's last-level cache, which take the time of a hit, or that the filter knows.
    pub hits: u64,
    /// Accesses to memory of its own node.
    pub near: u64,
    /// Accesses to memory of other nodes.
    pub far: u64,
    /// Lines that another vCPU of its node had written.
    pub transfers_same_node: u64,
    /// Those of them that were in its own last-level cache.
    pub transfers_same_cache: u64,
    /// Lines that a vCPU of another node had.
    pub transfers_other_node: u64,
    /// Submissions to NVMe controllers of its own node, by doorbell writes. Counted with `device=` only.
    pub doorbells_near: u64,
    /// Submissions to NVMe controllers of other nodes.
    pub doorbells_far: u64,
    /// What all that was delayed by, in nanoseconds.
    pub delay_ns: u64,
    /// The part of it that was for others that used a memory or a link, in nanoseconds.
    pub wait_ns: u64,
    /// Accesses to memory by its node.
    pub misses: ByNode,
    /// Nanoseconds of these that were for others that used that memory, or the link to it.
    pub waits_ns: ByNode,
    /// Lines that another last-level cache had, by that cache's node.
    pub transfers: ByNode,
}

/// A count for each node with CPUs or memory.
pub type ByNode = BTreeMap<NodeId, u64>;

impl Counts {
    /// All vCPUs of a node together.
    pub fn node(&self, node: NodeId) -> VcpuCounts {
        let mut sum = VcpuCounts {
            node,
            ..VcpuCounts::default()
        };
        for vcpu in self.vcpus.iter().filter(|vcpu| vcpu.node == node) {
            sum.accesses += vcpu.accesses;
            sum.hits += vcpu.hits;
            sum.near += vcpu.near;
            sum.far += vcpu.far;
            sum.transfers_same_node += vcpu.transfers_same_node;
            sum.transfers_same_cache += vcpu.transfers_same_cache;
            sum.transfers_other_node += vcpu.transfers_other_node;
            sum.doorbells_near += vcpu.doorbells_near;
            sum.doorbells_far += vcpu.doorbells_far;
            sum.delay_ns += vcpu.delay_ns;
            sum.wait_ns += vcpu.wait_ns;
            for (sums, counts) in [
                (&mut sum.misses, &vcpu.misses),
                (&mut sum.waits_ns, &vcpu.waits_ns),
                (&mut sum.transfers, &vcpu.transfers),
            ] {
                for (to, count) in counts {
                    *sums.entry(*to).or_default() += count;
                }
            }
        }
        sum
    }
}
