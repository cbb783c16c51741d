//! QEMU's `virt` for arm64.

use crate::design::MemoryRange;

use super::{Board, contiguous};

/// See hw/arm/virt.c in QEMU.
pub(super) struct Virt;

impl Board for Virt {
    /// Version 3 of the interrupt controller: with 2 there are at most 8 CPUs.
    fn machine(&self) -> &'static str {
        "virt,gic-version=3"
    }

    /// Has atomic instructions, which cost less to emulate than exclusive loads and stores, and none of the pointer
    /// authentication that makes `max` slow.
    fn emulated_cpu(&self) -> &'static str {
        "neoverse-n1"
    }

    fn most_cpus(&self) -> usize {
        512
    }

    fn memory_map(&self, sizes: &[u64]) -> Vec<MemoryRange> {
        contiguous(1 << 30, sizes)
    }
}
