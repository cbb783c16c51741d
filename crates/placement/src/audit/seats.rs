//! Which interrupts of a device have to move, and where to.
//!
//! Every usable CPU is a seat (several, where a device has more queues than there are CPUs). Whoever sits keeps the
//! seat unless a nearer one is free; of several on one seat the first sits and the others stand. Free seats are given
//! away nearest first, each to the one that sits furthest off, then to somebody who stands no nearer:
//!
//! ```text
//! rings   0: CPUs 0 1      1: CPUs 2 3          before           after
//!                                               q0 on 3          q0 on 1     a nearer seat was free
//!                                               q1 on 0          q1 on 0     sits well
//!                                               q2 on 3 (stands) q2 on 3     sits: q0 has gone
//! ```
//!
//! As many interrupts end up at each distance as in a fresh nearest-first spread, with the fewest moves; and
//! when all have moved, nobody would move again.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use nearfar_machine::{CpuId, CpuSet};

use crate::near::Ring;

/// Where one interrupt is served now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Now {
    /// On one usable CPU, in a ring by position.
    On(usize, CpuId),
    /// Somewhere in a ring, without a seat of its own.
    Within(usize),
    /// On CPUs that are kept free: it has to go.
    Expelled,
}

impl Now {
    /// The ring; beyond all of them for the expelled.
    pub fn ring(self) -> usize {
        match self {
            Self::On(ring, _) | Self::Within(ring) => ring,
            Self::Expelled => usize::MAX,
        }
    }
}

/// The new CPU of each interrupt that has to move; `None` for those that stay.
pub(super) fn assign(rings: &[Ring], now: &[Now]) -> Vec<Option<CpuId>> {
    let seats: usize = rings.iter().map(|ring| ring.cpus.len()).sum();
    if seats == 0 {
        return vec![None; now.len()];
    }
    let mut room = Room::new(now, now.len().div_ceil(seats).max(1));
    for (position, ring) in rings.iter().enumerate() {
        for round in 1..=(now.len() / seats).max(1) {
            room.fill(position, ring, round);
        }
    }
    room.place_the_rest(rings);
    room.moved
}

struct Room<'a> {
    now: &'a [Now],
    /// Who is on each CPU: those who sit, then those who stand.
    on: HashMap<CpuId, Vec<usize>>,
    occupied: CpuSet,
    seats_a_cpu: usize,
    /// Everybody who has not moved, furthest first, then by queue.
    waiting: BTreeSet<(Reverse<usize>, usize)>,
    standing: BTreeSet<(Reverse<usize>, usize)>,
    moved: Vec<Option<CpuId>>,
}

impl<'a> Room<'a> {
    fn new(now: &'a [Now], seats_a_cpu: usize) -> Self {
        let mut room = Self {
            now,
            on: HashMap::new(),
            occupied: CpuSet::new(),
            seats_a_cpu,
            waiting: now
                .iter()
                .enumerate()
                .map(|(who, now)| (Reverse(now.ring()), who))
                .collect(),
            standing: BTreeSet::new(),
            moved: vec![None; now.len()],
        };
        for (who, now) in now.iter().enumerate() {
            if let Now::On(ring, cpu) = *now {
                let here = room.on.entry(cpu).or_default();
                here.push(who);
                if here.len() > seats_a_cpu {
                    room.standing.insert((Reverse(ring), who));
                }
                room.occupied.insert(cpu);
            }
        }
        room
    }

    /// Gives away the seats of a ring that fewer than `round` have taken.
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
            let Some(who) = self.next_for(position) else {
                return;
            };
            self.leave(who);
            self.moved[who] = Some(cpu);
            self.on.entry(cpu).or_default().push(who);
            self.occupied.insert(cpu);
        }
    }

    /// Who gains most by a seat in this ring: whoever is furthest beyond it, or stands in it.
    fn next_for(&self, position: usize) -> Option<usize> {
        let far = self
            .waiting
            .first()
            .filter(|&&(Reverse(ring), _)| ring > position);
        let stands = self
            .standing
            .first()
            .filter(|&&(Reverse(ring), _)| ring >= position);
        far.or(stands).map(|&(_, who)| who)
    }

    fn leave(&mut self, who: usize) {
        let key = (Reverse(self.now[who].ring()), who);
        self.waiting.remove(&key);
        self.standing.remove(&key);
        let Now::On(ring, cpu) = self.now[who] else {
            return;
        };
        let Some(here) = self.on.get_mut(&cpu) else {
            return;
        };
        here.retain(|&other| other != who);
        // Whoever stood next gets the seat that has become free.
        let seated = here.get(self.seats_a_cpu - 1).copied();
        if here.is_empty() {
            self.occupied.remove(cpu);
        }
        if let Some(next) = seated {
            self.standing.remove(&(Reverse(ring), next));
        }
    }

    /// The expelled go somewhere even when every seat is taken: over the CPUs in order.
    fn place_the_rest(&mut self, rings: &[Ring]) {
        let mut cpus =
            std::iter::repeat_with(|| rings.iter().flat_map(|ring| ring.cpus.iter())).flatten();
        for (who, moved) in self.moved.iter_mut().enumerate() {
            if self.now[who] == Now::Expelled && moved.is_none() {
                *moved = cpus.next();
            }
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
    fn who_sits_well_stays_whatever_the_order() {
        assert_eq!(assigned(&[on(1), on(0), on(3), on(2)]), [None; 4]);
    }

    #[test]
    fn sharing_the_near_cpus_is_not_fixed_by_going_far() {
        assert_eq!(assigned(&[on(0), on(0), on(1), on(1)]), [None; 4]);
        assert_eq!(assigned(&[on(0), on(0), on(0)]), [None, Some(1), None]);
    }

    #[test]
    fn the_furthest_get_the_nearest_free_seats() {
        assert_eq!(
            assigned(&[on(2), on(4), on(5), Now::Within(2)]),
            [None, Some(0), Some(1), Some(3)]
        );
    }

    #[test]
    fn the_expelled_always_find_a_place() {
        let mut now = vec![Now::Expelled; 2];
        now.extend((0..8).map(on));
        assert_eq!(assigned(&now)[..2], [Some(0), Some(1)]);
        assert_eq!(
            assign(&[], &[Now::Expelled]),
            [None],
            "without a usable CPU there is nowhere to go"
        );
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
        fn when_all_have_moved_nobody_would_move_again(choices in proptest::collection::vec(0..12u32, 0..30)) {
            let now: Vec<Now> = choices
                .iter()
                .map(|&choice| match choice {
                    0..8 => on(choice),
                    8..11 => Now::Within(choice as usize - 8),
                    _ => Now::Expelled,
                })
                .collect();
            let settled = after(&now);
            prop_assert_eq!(assign(&rings(), &settled), vec![None; now.len()]);
            prop_assert!(!settled.contains(&Now::Expelled));
            for (before, after) in now.iter().zip(&settled) {
                prop_assert!(after.ring() <= before.ring(), "nobody moves away");
            }
        }
    }
}
