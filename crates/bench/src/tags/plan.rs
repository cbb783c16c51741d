//! Which cells a run has.

use nearfar_experiment::{Cell, Factor, Level};

use super::{ALONE, DISTANCE, POLICY, allocator};
use crate::registry::Arguments;

/// The factors and cells: with the peers where they are wanted, and one cell of a worker alone for each policy. It has tags to spare at
/// any depth, and completes its I/Os itself at any level of the completion. Cells that were asked for one by one stay as they are.
pub(super) fn planned(arguments: &Arguments, with_peers: bool) -> (Vec<Factor>, Vec<Cell>) {
    let mut factors = arguments.factors();
    if with_peers && let Some(policy) = factors.iter_mut().find(|it| it.name == POLICY) {
        let peers = allocator::PEERS.iter().map(|&peer| Level::from(peer));
        let new: Vec<Level> = peers.filter(|it| !policy.levels.contains(it)).collect();
        policy.levels.extend(new);
    }
    if !arguments.named_cells().is_empty() {
        return (factors, arguments.cells());
    }
    let mut alone = Vec::new();
    let mut cells = Cell::all(&factors);
    cells.retain(|cell| {
        let policy = cell.text(POLICY);
        let is_alone = cell.text(DISTANCE) == ALONE;
        let is_repeated = is_alone && alone.contains(&policy);
        if is_alone && !is_repeated {
            alone.push(policy);
        }
        !is_repeated
    });
    (factors, cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::DECLARATION;

    fn arguments(words: &[&str], peers: bool) -> Arguments {
        let factors: Vec<String> = words.iter().map(|&it| it.to_owned()).collect();
        let given = Vec::from_iter(peers.then(|| "--peers".into()));
        DECLARATION.arguments(&factors, &[], false, given).unwrap()
    }

    #[test]
    fn a_worker_alone_is_measured_once_for_each_policy() {
        let words = ["completion=any,device", "policy=stock,auto"];
        let (_, cells) = planned(&arguments(&words, false), false);
        let alone = cells.iter().filter(|cell| cell.text(DISTANCE) == ALONE);
        let policies: Vec<String> = alone.map(|cell| cell.text(POLICY)).collect();
        assert_eq!(policies, ["stock", "auto"]);
        assert_eq!(cells.len(), 2 * 2 * 2 * 2 + 2);
        assert_eq!(planned(&arguments(&[], false), false).1.len(), 40);
    }

    #[test]
    fn peers_are_further_policies() {
        let words = ["policy=auto,array_queue"];
        let (factors, cells) = planned(&arguments(&words, true), true);
        let policy = factors.iter().find(|it| it.name == POLICY).unwrap();
        let expected = ["auto", "array_queue", "mutex_vec"].map(Level::from);
        assert_eq!(policy.levels, expected);
        assert_eq!(cells.len(), 3 * 5);
    }
}
