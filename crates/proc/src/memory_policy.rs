//! Memory policies of tasks: set_mempolicy(2).

use std::io;

use nearfar_machine::{NodeId, NodeSet};

const WORD_BITS: u32 = libc::c_ulong::BITS;
/// Since Linux 6.9 (include/uapi/linux/mempolicy.h).
const MPOL_WEIGHTED_INTERLEAVE: libc::c_int = 6;

/// Where the pages come from that a process is given from now on; inherited by what it makes and kept over exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPolicy {
    /// The node of the CPU that touches them first.
    Local,
    /// This node while it has some, then the nearest.
    Preferred,
    /// These nodes only.
    Bind,
    /// Every node with memory in turn, page by page.
    Interleave,
    /// The same by the weights of /sys/kernel/mm/mempolicy/weighted_interleave. Since Linux 6.9.
    WeightedInterleave,
}

impl MemoryPolicy {
    /// The nodes it is for, where a task is to be near this one. The kernel takes of them those that the cpuset allows.
    pub fn nodes(self, node: NodeId, with_memory: &NodeSet) -> NodeSet {
        match self {
            Self::Local => NodeSet::new(),
            Self::Preferred | Self::Bind => NodeSet::single(node),
            Self::Interleave | Self::WeightedInterleave => with_memory.clone(),
        }
    }

    /// With these nodes, to be set; `Local` takes none.
    pub fn on(self, nodes: &NodeSet) -> PreparedPolicy {
        let none = NodeSet::new();
        let nodes = if self == Self::Local { &none } else { nodes };
        let last = nodes.last().map_or(0, |node| node.0);
        // With a bit to spare: the kernel takes one bit less than the argument says (get_nodes in mm/mempolicy.c).
        let mut words = vec![0; (last / WORD_BITS) as usize + 2];
        for node in nodes.iter() {
            words[(node.0 / WORD_BITS) as usize] |= 1 << (node.0 % WORD_BITS);
        }
        let mode = match self {
            Self::Local => libc::MPOL_LOCAL,
            Self::Preferred => libc::MPOL_PREFERRED,
            Self::Bind => libc::MPOL_BIND,
            Self::Interleave => libc::MPOL_INTERLEAVE,
            Self::WeightedInterleave => MPOL_WEIGHTED_INTERLEAVE,
        };
        PreparedPolicy { mode, words }
    }

    /// As numa_maps shows it (`policy_modes` in mm/mempolicy.c).
    pub fn shown(self, nodes: &NodeSet) -> String {
        let mode = match self {
            Self::Local => return "local".to_owned(),
            Self::Preferred => "prefer",
            Self::Bind => "bind",
            Self::Interleave => "interleave",
            Self::WeightedInterleave => "weighted interleave",
        };
        format!("{mode}:{nodes}")
    }
}

/// A policy in the form that the kernel takes: setting it takes no memory, so it may stand between fork and exec.
#[derive(Clone, Debug)]
pub struct PreparedPolicy {
    mode: libc::c_int,
    words: Vec<libc::c_ulong>,
}

impl PreparedPolicy {
    /// Gives it to the calling thread.
    ///
    /// # Errors
    /// `EINVAL` where the kernel lacks it, or the cpuset allows memory of none of the nodes.
    pub fn calling_thread(&self) -> io::Result<()> {
        let bits = self.words.len() as libc::c_ulong * libc::c_ulong::from(WORD_BITS);
        let words = self.words.as_ptr();
        // SAFETY: the kernel reads as many bits as the argument says, which the vector has.
        match unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, words, bits) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the calling thread's own memory: what numa_maps shows of a mapping without a policy.
    fn current() -> Option<String> {
        let text = std::fs::read_to_string("/proc/thread-self/numa_maps").ok()?;
        let policy = text.lines().next()?.split(' ').nth(1)?;
        Some(policy.to_owned())
    }

    #[test]
    fn a_policy_is_what_the_kernel_shows() {
        if current().is_none() {
            return println!("skipped: kernel: it has no numa_maps");
        }
        let node = NodeSet::single(NodeId(0));
        for policy in [
            MemoryPolicy::Local,
            MemoryPolicy::Preferred,
            MemoryPolicy::Bind,
            MemoryPolicy::Interleave,
        ] {
            let set_and_read = || {
                policy.on(&node).calling_thread().unwrap();
                current()
            };
            let shown = std::thread::scope(|scope| scope.spawn(set_and_read).join());
            assert_eq!(shown.unwrap(), Some(policy.shown(&node)), "{policy:?}");
        }
        let nowhere = NodeSet::single(NodeId(1000));
        assert!(MemoryPolicy::Bind.on(&nowhere).calling_thread().is_err());
    }
}
