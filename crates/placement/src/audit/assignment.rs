//! Which interrupts of a device have to move, and to which CPU.
//!
//! Every usable CPU has one slot (several, if a device has more queues than there are CPUs). An interrupt keeps its
//! slot unless a nearer one is free. Of several interrupts on one CPU the first ones have its slots, the others are
//! surplus. Free slots are assigned nearest first: each to the interrupt that is furthest away, then to a surplus one
//! that is no nearer.
//!
//! ```text
//! rings   0: CPUs 0 1      1: CPUs 2 3          before            after
//!                                               q0 on 3           q0 on 1     a nearer slot was free
//!                                               q1 on 0           q1 on 0     has the nearest slot
//!                                               q2 on 3 (surplus) q2 on 3     has a slot: q0 has left
//! ```
//!
//! As many interrupts are at each distance as in a new nearest-first spread, with the fewest moves. A second pass moves
//! none.
//!
//! The exception are interrupts on CPUs that are kept free: if the nearest usable CPUs have no slots left, they share
//! these. To leave an isolated CPU is no reason to pay the distance.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use nearfar_machine::{CpuId, CpuSet};

use crate::near::Ring;

/// Where one interrupt is served now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Now {
    /// On one usable CPU, in the ring at this position.
    On(usize, CpuId),
    /// On several CPUs, of which the nearest is in this ring.
    Within(usize),
    /// On CPUs that are kept free.
    MustMove,
}

impl Now {
    /// The position of the ring; greater than all for `MustMove`.
    pub fn ring(self) -> usize {
        match self {
            Self::On(ring, _) | Self::Within(ring) => ring,
            Self::MustMove => usize::MAX,
        }
    }
}

/// The new CPU of each interrupt that has to move; `None` for those that stay, and for all if no CPU is usable.
pub(super) fn assign(rings: &[Ring], now: &[Now]) -> Vec<Option<CpuId>> {
    let slot_count: usize = rings.iter().map(|ring| ring.cpus.len()).sum();
    if slot_count == 0 {
        return vec![None; now.len()];
    }
    let mut slots = Slots::new(now, now.len().div_ceil(slot_count).max(1));
    for (position, ring) in rings.iter().enumerate() {
        for round in 1..=(now.len() / slot_count).max(1) {
            slots.fill(position, ring, round);
        }
        if position == 0 {
            slots.share(ring);
        }
    }
    slots.moved
}

struct Slots<'a> {
    now: &'a [Now],
    /// The interrupts on each CPU: those with a slot, then the surplus.
    on: HashMap<CpuId, Vec<usize>>,
    occupied: CpuSet,
    slots_per_cpu: usize,
    /// Interrupts that have not moved, furthest first, then by queue.
    unmoved: BTreeSet<(Reverse<usize>, usize)>,
    surplus: BTreeSet<(Reverse<usize>, usize)>,
    moved: Vec<Option<CpuId>>,
}

impl<'a> Slots<'a> {
    fn new(now: &'a [Now], slots_per_cpu: usize) -> Self {
        let mut slots = Self {
            now,
            on: HashMap::new(),
            occupied: CpuSet::new(),
            slots_per_cpu,
            unmoved: now
                .iter()
                .enumerate()
                .map(|(index, now)| (Reverse(now.ring()), index))
                .collect(),
            surplus: BTreeSet::new(),
            moved: vec![None; now.len()],
        };
        for (index, now) in now.iter().enumerate() {
            if let Now::On(ring, cpu) = *now {
                let here = slots.on.entry(cpu).or_default();
                here.push(index);
                if here.len() > slots_per_cpu {
                    slots.surplus.insert((Reverse(ring), index));
                }
                slots.occupied.insert(cpu);
            }
        }
        slots
    }

    /// Assigns the slots of a ring on CPUs with fewer than `round` interrupts.
    fn fill(&mut self, position: usize, ring: &Ring, round: usize) {
        let free = if round == 1 {
            ring.cpus.difference(&self.occupied)
        } else {
            ring.cpus.clone()
        };
        for cpu in free.iter() {
            if self.on.get(&cpu).is_some_and(|here| here.len() >= round) {
                continue;
            }
            let Some(index) = self.next_for(position) else {
                return;
            };
            self.leave(index);
            self.moved[index] = Some(cpu);
            self.on.entry(cpu).or_default().push(index);
            self.occupied.insert(cpu);
        }
    }

    /// The interrupt that gains most by a slot in this ring: the furthest one beyond it, or a surplus one in it.
    fn next_for(&self, position: usize) -> Option<usize> {
        let far = self
            .unmoved
            .first()
            .filter(|&&(Reverse(ring), _)| ring > position);
        let surplus = self
            .surplus
            .first()
            .filter(|&&(Reverse(ring), _)| ring >= position);
        far.or(surplus).map(|&(_, index)| index)
    }

    fn leave(&mut self, index: usize) {
        let key = (Reverse(self.now[index].ring()), index);
        self.unmoved.remove(&key);
        self.surplus.remove(&key);
        let Now::On(ring, cpu) = self.now[index] else {
            return;
        };
        let Some(here) = self.on.get_mut(&cpu) else {
            return;
        };
        here.retain(|&other| other != index);
        // The next surplus interrupt gets the slot that has become free.
        let promoted = here.get(self.slots_per_cpu - 1).copied();
        if here.is_empty() {
            self.occupied.remove(cpu);
        }
        if let Some(next) = promoted {
            self.surplus.remove(&(Reverse(ring), next));
        }
    }

    /// Interrupts that must move and got no slot share the CPUs of the nearest ring evenly.
    fn share(&mut self, ring: &Ring) {
        let load = |cpu| (Reverse(self.on.get(&cpu).map_or(0, Vec::len)), Reverse(cpu));
        let mut cpus: BinaryHeap<_> = ring.cpus.iter().map(load).collect();
        for index in 0..self.now.len() {
            if self.now[index] != Now::MustMove || self.moved[index].is_some() {
                continue;
            }
            let Some(mut least) = cpus.peek_mut() else {
                return;
            };
            let (Reverse(load), Reverse(cpu)) = &mut *least;
            *load += 1;
            self.moved[index] = Some(*cpu);
            self.on.entry(*cpu).or_default().push(index);
            self.leave(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_machine::Distance;
    use proptest::prelude::*;

    fn ring(distance: u32, cpus: &str) -> Ring {
        let cpus = CpuSet::parse_list(cpus).unwrap();
        Ring {
            distance: Some(Distance(distance)),
            cpus: cpus.clone(),
            nodes: vec![(None, cpus)],
        }
    }

    fn rings() -> Vec<Ring> {
        vec![ring(10, "0-1"), ring(20, "2-3"), ring(30, "4-7")]
    }

    fn on(cpu: u32) -> Now {
        let position = rings()
            .iter()
            .position(|ring| ring.cpus.contains(CpuId(cpu)))
            .unwrap();
        Now::On(position, CpuId(cpu))
    }

    fn assigned(now: &[Now]) -> Vec<Option<u32>> {
        assign(&rings(), now)
            .into_iter()
            .map(|cpu| cpu.map(|cpu| cpu.0))
            .collect()
    }

    #[test]
    fn the_example_in_the_module_comment() {
        assert_eq!(assigned(&[on(3), on(0), on(3)]), [Some(1), None, None]);
    }

    #[test]
    fn interrupts_in_the_nearest_slots_stay_in_any_order() {
        assert_eq!(assigned(&[on(1), on(0), on(3), on(2)]), [None; 4]);
    }

    #[test]
    fn sharing_the_near_cpus_is_not_fixed_by_going_far() {
        assert_eq!(assigned(&[on(0), on(0), on(1), on(1)]), [None; 4]);
        assert_eq!(assigned(&[on(0), on(0), on(0)]), [None, Some(1), None]);
    }

    #[test]
    fn the_furthest_get_the_nearest_free_slots() {
        assert_eq!(
            assigned(&[on(2), on(4), on(5), Now::Within(2)]),
            [None, Some(0), Some(1), Some(3)]
        );
    }

    #[test]
    fn interrupts_that_must_move_share_near_cpus_before_they_go_far() {
        let (kept_free, far) = (Now::MustMove, on(7));
        assert_eq!(
            assigned(&[kept_free, kept_free, kept_free, on(0), far]),
            [Some(1), Some(0), Some(1), None, Some(2)],
            "the far one gets the nearest slot that is left"
        );
    }

    #[test]
    fn interrupts_that_must_move_always_get_a_cpu() {
        let mut now = vec![Now::MustMove; 2];
        now.extend((0..8).map(on));
        assert_eq!(assigned(&now)[..2], [Some(0), Some(1)]);
        assert_eq!(assign(&[], &[Now::MustMove]), [None], "no CPU is usable");
    }

    fn after(now: &[Now]) -> Vec<Now> {
        let moved = assign(&rings(), now);
        now.iter()
            .zip(moved)
            .map(|(&now, cpu)| cpu.map_or(now, |cpu| on(cpu.0)))
            .collect()
    }

    proptest! {
        #[test]
        fn a_second_pass_moves_none(choices in proptest::collection::vec(0..12u32, 0..30)) {
            let now: Vec<Now> = choices
                .iter()
                .map(|&choice| match choice {
                    0..8 => on(choice),
                    8..11 => Now::Within(choice as usize - 8),
                    _ => Now::MustMove,
                })
                .collect();
            let settled = after(&now);
            prop_assert_eq!(assign(&rings(), &settled), vec![None; now.len()]);
            prop_assert!(!settled.contains(&Now::MustMove));
            for (before, after) in now.iter().zip(&settled) {
                prop_assert!(after.ring() <= before.ring(), "none moves away");
            }
        }
    }
}
