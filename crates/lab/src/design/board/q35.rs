//! QEMU's `q35` for x86-64.

use nearfar_machine::Acceleration;

use crate::design::MemoryRange;
use crate::design::board::{Board, contiguous};

/// See hw/i386/pc_q35.c and pc.c in QEMU.
pub(super) struct Q35;

/// Where memory goes on above the hole for devices.
const HIGH: u64 = 4 << 30;

impl Board for Q35 {
    fn machine(&self, _: Acceleration) -> &'static str {
        "q35"
    }

    fn emulated_cpu(&self) -> &'static str {
        "max"
    }

    /// A local APIC's number has 8 bits, the last is the broadcast; more takes interrupt remapping.
    fn most_cpus(&self) -> usize {
        255
    }

    fn socket_parts(&self) -> Option<&'static str> {
        Some("dies")
    }

    /// All below the hole while it fits under 2.75 GiB; from there on only 2 GiB below (`pc_q35_init`).
    fn memory_map(&self, sizes: &[u64]) -> Vec<MemoryRange> {
        let total = sizes.iter().copied().fold(0, u64::saturating_add);
        let low: u64 = match total >= 0xb000_0000 {
            true => 0x8000_0000,
            false => 0xb000_0000,
        };
        let split = |range: MemoryRange| {
            let below = low.saturating_sub(range.start).min(range.bytes);
            let above = MemoryRange {
                start: range.start.max(low) - low + HIGH,
                bytes: range.bytes - below,
                node: range.node,
            };
            let below = MemoryRange {
                bytes: below,
                ..range
            };
            [below, above].into_iter().filter(|part| part.bytes > 0)
        };
        contiguous(0, sizes).into_iter().flat_map(split).collect()
    }
}
