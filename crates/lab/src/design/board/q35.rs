//! QEMU's `q35` for x86-64.

use crate::design::MemoryRange;

use nearfar_machine::Acceleration;

use super::{Board, contiguous};

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
        let total = sizes
            .iter()
            .fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let low: u64 = if total >= 0xb000_0000 {
            0x8000_0000
        } else {
            0xb000_0000
        };
        let split = |range: MemoryRange| {
            let below = low.saturating_sub(range.start).min(range.bytes);
            let above = MemoryRange {
                start: range.start.max(low) - low + HIGH,
                bytes: range.bytes - below,
                node: range.node,
            };
            [
                MemoryRange {
                    bytes: below,
                    ..range
                },
                above,
            ]
            .into_iter()
            .filter(|part| part.bytes > 0)
        };
        contiguous(0, sizes).into_iter().flat_map(split).collect()
    }
}
