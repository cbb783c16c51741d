//! The choices of `path` against a small replica of the kernel's own loop, `__nvme_find_path()` and
//! `nvme_round_robin_path()` of drivers/nvme/host/multipath.c, over random subsystems.
//!
//! The kernel walks a list whose order no file shows, so the replica walks every order: a choice that `path` calls certain
//! is what each order gives, and one that it does not is exactly what the orders give together.

use std::collections::BTreeSet;

use crate::common::{add_subsystem, list, machine};
use nearfar_machine::{AnaState, CpuId, IoPolicy, Known, Machine};
use nearfar_placement::path::paths;
use proptest::prelude::*;

const NODES: usize = 3;
const STATES: [&str; 7] = [
    "new",
    "live",
    "resetting",
    "connecting",
    "deleting",
    "deleting (no IO)",
    "dead",
];
const ANA: [AnaState; 5] = [
    AnaState::Optimized,
    AnaState::NonOptimized,
    AnaState::Inaccessible,
    AnaState::PersistentLoss,
    AnaState::Change,
];

/// One path: state of its controller, its ANA state, the node of its controller (-1 for none).
#[derive(Clone, Copy, Debug)]
struct Raw {
    state: usize,
    ana: usize,
    numa_node: i32,
}

/// The kernel's side.
struct Replica<'a> {
    paths: &'a [Raw],
    distances: &'a [Vec<u32>],
    /// What `node_distance(node, -1)` reads in a kernel without the fix; `None` for one with it.
    outside: Option<i64>,
}

impl Replica<'_> {
    fn is_disabled(&self, path: usize) -> bool {
        !matches!(STATES[self.paths[path].state], "live" | "deleting")
    }

    fn distance(&self, node: usize, path: usize) -> i64 {
        match (self.paths[path].numa_node, self.outside) {
            (-1, None) => 10,
            (-1, Some(read)) => read,
            (at, _) => i64::from(self.distances[node][at as usize]),
        }
    }

    /// The first of the nearest optimized paths, else of the non-optimized ones.
    fn numa(&self, order: &[usize], node: usize) -> Option<usize> {
        let mut best: [Option<(i64, usize)>; 2] = [None, None];
        for &path in order.iter().filter(|&&path| !self.is_disabled(path)) {
            let distance = self.distance(node, path);
            let Some(slot) = best.get_mut(self.paths[path].ana) else {
                continue;
            };
            if slot.is_none_or(|(found, _)| distance < found) {
                *slot = Some((distance, path));
            }
        }
        best[0].or(best[1]).map(|(_, path)| path)
    }

    /// The next path after `old`: an optimized one at once, else the last of the non-optimized ones, else `old` again.
    fn round_robin(&self, order: &[usize], old: usize) -> Option<usize> {
        let at = order.iter().position(|&path| path == old).unwrap();
        let mut found = None;
        for &path in order[at + 1..]
            .iter()
            .chain(&order[..at])
            .filter(|&&path| !self.is_disabled(path))
        {
            match self.paths[path].ana {
                0 => return Some(path),
                1 => found = Some(path),
                _ => {}
            }
        }
        let old_ana = self.paths[old].ana;
        let stays = !self.is_disabled(old) && (old_ana == 0 || (found.is_none() && old_ana == 1));
        if stays { Some(old) } else { found }
    }
}

fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let insert = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, count - 1);
        order
    };
    shorter
        .iter()
        .flat_map(|order| (0..count).map(move |at| insert(order, at)))
        .collect()
}

fn raw_path() -> impl Strategy<Value = Raw> {
    // Most paths are usable, or hardly any choice would be one.
    let state = prop_oneof![3 => Just(1usize), 1 => 0..STATES.len()];
    let ana = prop_oneof![3 => Just(0usize), 2 => Just(1usize), 1 => 2..ANA.len()];
    (state, ana, -1..NODES as i32).prop_map(|(state, ana, numa_node)| Raw {
        state,
        ana,
        numa_node,
    })
}

fn subject(raw: &[Raw], rows: &[Vec<u32>], release: &str) -> Machine {
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let mut machine = machine(&["0", "1", "2"], &rows);
    machine.origin.kernel = Known::Yes(release.to_owned());
    let addresses: Vec<String> = (0..raw.len())
        .map(|path| format!("0000:{:02x}:00.0", 0x20 + path))
        .collect();
    let node = |raw: &Raw| u32::try_from(raw.numa_node).ok();
    let paths: Vec<_> = addresses
        .iter()
        .zip(raw)
        .map(|(at, raw)| (at.as_str(), node(raw), ANA[raw.ana].clone()))
        .collect();
    add_subsystem(&mut machine, "nvme-subsys0", IoPolicy::Numa, &paths);
    for (controller, raw) in list(&mut machine.nvme)[0].controllers.iter_mut().zip(raw) {
        controller.state = Known::Yes(STATES[raw.state].to_owned());
    }
    machine
}

proptest! {
    #[test]
    fn numa_and_round_robin_take_what_the_kernel_s_loop_takes(
        raw in proptest::collection::vec(raw_path(), 1..5),
        distances in proptest::collection::vec(10..14u32, NODES * NODES),
        node in 0..NODES,
        is_fixed: bool,
    ) {
        let entry = |a: usize, b: usize| if a == b { 10 } else { distances[a * NODES + b] };
        let rows: Vec<Vec<u32>> = (0..NODES).map(|a| (0..NODES).map(|b| entry(a, b)).collect()).collect();
        let machine = subject(&raw, &rows, if is_fixed { "6.12.1" } else { "6.1.90" });
        let answer = paths(&machine, "nvme-subsys0", CpuId(node as u32)).unwrap().namespaces.remove(0);
        let read: Vec<Option<i64>> = if is_fixed { vec![None] } else { (8..=14).map(Some).collect() };
        let mut taken = BTreeSet::new();
        let mut turns = BTreeSet::new();
        for outside in read {
            let replica = Replica { paths: &raw, distances: &rows, outside };
            for order in orders(raw.len()) {
                let first = replica.numa(&order, node);
                taken.extend(first);
                let mut at = first;
                for _ in 0..2 * raw.len() {
                    turns.extend(at);
                    at = at.and_then(|old| replica.round_robin(&order, old));
                }
            }
        }
        let names = |set: &BTreeSet<usize>| set.iter().map(|path| format!("nvme0c{path}n1")).collect::<BTreeSet<_>>();
        let choice = |policy: IoPolicy| answer.choices.iter().find(|choice| choice.policy == policy).unwrap();
        let said = |policy| choice(policy).paths.iter().cloned().collect::<BTreeSet<_>>();
        prop_assert_eq!(said(IoPolicy::Numa), names(&taken), "{:?}", choice(IoPolicy::Numa));
        prop_assert_eq!(choice(IoPolicy::Numa).certain, taken.len() < 2, "{:?}", choice(IoPolicy::Numa));
        prop_assert_eq!(said(IoPolicy::RoundRobin), names(&turns), "{:?}", choice(IoPolicy::RoundRobin));
    }
}
