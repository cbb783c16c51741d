//! The memory of each node, in sizes that QEMU and the guest's kernel take.

use nearfar_machine::Machine;

use super::board::Board;
use super::numbers::Numbers;
use crate::error::LabError;

/// What a node gets whose size no source tells.
const UNKNOWN: u64 = 512 << 20;
/// Emulated CPUs have 40 bits of physical address.
const MOST: u64 = 1 << 39;
/// A distribution's kernel does not come up with less.
const LEAST: u64 = 256 << 20;

/// Bytes by the guest's node number.
pub(super) fn sizes(
    machine: &Machine,
    numbers: &Numbers,
    board: &dyn Board,
    notes: &mut Vec<String>,
) -> Result<Vec<u64>, LabError> {
    let step = board.memory_step();
    let mut sizes = vec![0; numbers.count];
    let (mut rounded, mut unknown) = (0, 0);
    for (described, guest) in numbers.pairs() {
        let Some(node) = machine.node(described).filter(|node| node.online) else {
            continue;
        };
        let wanted = node.total_bytes().unwrap_or_else(|| {
            unknown += 1;
            UNKNOWN
        });
        let bytes = wanted.div_ceil(step).saturating_mul(step);
        rounded += usize::from(bytes != wanted);
        sizes[guest.0 as usize] = bytes;
    }
    let total = sizes
        .iter()
        .fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let mebibytes = |bytes: u64| bytes >> 20;
    if total > MOST {
        return Err(LabError::Design(format!(
            "it has {} MiB of memory and the guest can have {}; give each node less with --scale memory=512M",
            mebibytes(total),
            mebibytes(MOST)
        )));
    }
    if total < LEAST {
        return Err(LabError::Design(format!(
            "it has {} MiB of memory, and a kernel needs {}; give each node more with --scale memory=512M",
            mebibytes(total),
            mebibytes(LEAST)
        )));
    }
    if unknown > 0 {
        notes.push(format!(
            "{unknown} nodes of unknown size have {} MiB each",
            mebibytes(UNKNOWN)
        ));
    }
    if rounded > 0 {
        notes.push(format!(
            "the memory of {rounded} nodes is rounded up to multiples of {} MiB",
            mebibytes(step)
        ));
    }
    Ok(sizes)
}
