//! The distance matrix as QEMU and the guest's kernel take it.
//!
//! QEMU refuses less than 10, a local distance that is not 10, and a matrix of which part is missing (hw/core/numa.c); the
//! kernel throws the whole table away when a remote distance is 10 (`slit_valid` in drivers/acpi/numa/srat.c).

use nearfar_machine::{Distance, Machine, NodeId};

use super::numbers::Numbers;

const NEAREST: u32 = Distance::LOCAL.0 + 1;
const FURTHEST: u32 = Distance::UNREACHABLE.0;

/// All pairs by the guest's numbers; empty where the machine tells no distance at all.
pub(super) fn matrix(
    machine: &Machine,
    numbers: &Numbers,
    notes: &mut Vec<String>,
) -> Vec<Vec<u8>> {
    let known = |from: NodeId, to: NodeId| machine.distance(from, to).map(|distance| distance.0);
    let pairs = || {
        numbers
            .pairs()
            .flat_map(|from| numbers.pairs().map(move |to| (from, to)))
    };
    let remote = || pairs().filter(|(from, to)| from.0 != to.0);
    if remote().all(|(from, to)| known(from.0, to.0).is_none()) {
        return Vec::new();
    }
    let mut matrix = vec![vec![Distance::REMOTE.0 as u8; numbers.count]; numbers.count];
    let (mut guessed, mut clipped) = (0, 0);
    for ((from, row), (to, column)) in remote() {
        let distance = known(from, to).unwrap_or_else(|| {
            guessed += 1;
            known(to, from).unwrap_or(Distance::REMOTE.0)
        });
        clipped += usize::from(!(NEAREST..=FURTHEST).contains(&distance));
        matrix[row.0 as usize][column.0 as usize] = distance.clamp(NEAREST, FURTHEST) as u8;
    }
    for (node, row) in matrix.iter_mut().enumerate() {
        row[node] = Distance::LOCAL.0 as u8;
    }
    let odd = numbers
        .pairs()
        .filter(|&(node, _)| known(node, node) != Some(Distance::LOCAL.0))
        .count();
    if guessed > 0 {
        notes.push(format!(
            "{guessed} distances are not known and are those of the other direction, or 20"
        ));
    }
    if clipped > 0 {
        notes.push(format!(
            "{clipped} distances to other nodes are outside of {NEAREST} to {FURTHEST} and are clipped to that"
        ));
    }
    if odd > 0 {
        notes.push(format!(
            "the distance of {odd} nodes to themselves is 10 in the guest, as its kernel demands"
        ));
    }
    matrix
}
