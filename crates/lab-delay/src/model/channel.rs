// SPDX-License-Identifier: GPL-2.0-or-later
//! A memory or a link that carries one line after the other.
//!
//! vCPUs do not come in the order of their local times: one may be a window ahead of another that runs later. So time is cut into
//! slots that each carry so many lines, and a line goes into the first slot from its own time on that has room, in whatever order they come:
//!
//! ```text
//!   slot      7        8        9        10
//!          ████████ ████████ ███░░░░░ ░░░░░░░░
//!              ▲ a line of slot 7 goes into slot 9, and waits until that begins
//! ```
//!
//! Below its limit a memory makes a line wait in proportion to how full the last slots were, for banks that are at work. Intel's
//! memory latency checker shows it (v3.5, two Xeon Silver 4110, 136 GB/s, 82 ns without load, published in Intel's community): 13 ns
//! at 31 % of the bandwidth, 17 ns at half, 42 ns at 97 %. A vCPU does not wait for banks that only itself has used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Picoseconds of a slot: some 40 lines of 20 GB/s.
const SLOT_PS: u64 = 128_000;
/// Slots that are kept, 33 us: more than a window, and than anyone waits.
const SLOTS: usize = 256;
/// How many slots the share is of.
const RECENT: u64 = 8;
/// What a line of a memory waits for busy banks where all slots are full.
pub const BANKS_PS: u64 = 36_000;
/// A slot's word: its number (as many bits as are left), who has used it, and the picoseconds it is busy.
const BUSY_BITS: u32 = 17;
const USER_BITS: u32 = 10;
const BUSY: u64 = (1 << BUSY_BITS) - 1;
/// More than one vCPU.
const SEVERAL: u64 = (1 << USER_BITS) - 1;

#[derive(Clone, Copy)]
struct Slot {
    number: u64,
    user: u64,
    busy_ps: u64,
}

impl Slot {
    fn of(word: u64) -> Self {
        Self {
            number: word >> (BUSY_BITS + USER_BITS),
            user: word >> BUSY_BITS & SEVERAL,
            busy_ps: word & BUSY,
        }
    }

    fn word(self) -> u64 {
        self.number << (BUSY_BITS + USER_BITS) | self.user << BUSY_BITS | self.busy_ps
    }
}

/// One memory, or one direction of a link.
#[derive(Debug)]
pub struct Channel {
    line_ps: u64,
    banks_ps: u64,
    slots: Box<[AtomicU64; SLOTS]>,
}

impl Channel {
    /// A channel that a line occupies for so long, and waits for its banks up to so long: a link has none.
    pub fn new(line_ps: u64, banks_ps: u64) -> Self {
        Self {
            line_ps,
            banks_ps,
            slots: Box::new([const { AtomicU64::new(0) }; SLOTS]),
        }
    }

    /// Carries a line to a vCPU at its time, and returns how long it waits.
    pub fn carry(&self, vcpu: u16, now_ps: u64) -> u64 {
        let (own, user) = (now_ps / SLOT_PS, u64::from(vcpu) % SEVERAL);
        let is_full = |number: u64| self.busy_ps(number) == SLOT_PS;
        let last = own + SLOTS as u64 / 2;
        let first = (own..last).find(|&number| !is_full(number)).unwrap_or(last);
        let (mut number, mut rest_ps) = (first, self.line_ps);
        while rest_ps > 0 {
            let busy_ps = self.busy_ps(number);
            let part_ps = rest_ps.min(SLOT_PS - busy_ps);
            self.set(number, user, busy_ps + part_ps);
            (number, rest_ps) = (number + 1, rest_ps - part_ps);
        }
        let recent = (1..=RECENT).filter_map(|ago| self.slot(own.saturating_sub(ago)));
        let others = recent.filter(|slot| slot.user != user);
        let others_ps: u64 = others.map(|slot| slot.busy_ps).sum();
        let until_slot = (first * SLOT_PS).saturating_sub(now_ps);
        until_slot + self.banks_ps * others_ps / (RECENT * SLOT_PS)
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        &self.slots[number as usize % SLOTS]
    }

    /// `None` for a slot that no vCPU has used, or that is not kept any more.
    fn slot(&self, number: u64) -> Option<Slot> {
        let slot = Slot::of(self.word(number).load(Relaxed));
        (slot.number == number && slot.busy_ps != 0).then_some(slot)
    }

    fn busy_ps(&self, number: u64) -> u64 {
        self.slot(number).map_or(0, |slot| slot.busy_ps)
    }

    fn set(&self, number: u64, user: u64, busy_ps: u64) {
        let word = self.word(number);
        if Slot::of(word.load(Relaxed)).number > number {
            return;
        }
        let known = self.slot(number).map_or(user, |slot| slot.user);
        let user = if known == user { user } else { SEVERAL };
        let slot = Slot {
            number,
            user,
            busy_ps,
        };
        word.store(slot.word(), Relaxed);
    }
}

/// What carries lines between nodes: from each package to each other one, and from node to node where no packages are known.
#[derive(Debug)]
pub struct Links {
    channels: Vec<Channel>,
    /// The position of the channel by the nodes it carries to and from.
    between: BTreeMap<(u32, u32), usize>,
}

impl Links {
    /// Links that a line occupies for so long; none without that. Nodes of one package need none, and of a node whose package alone is
    /// unknown it is not known what it is behind.
    pub fn new(line_ps: Option<u32>, nodes: &BTreeSet<u32>, packages: &BTreeMap<u32, u32>) -> Self {
        let end = |node: &u32| match packages.is_empty() {
            true => Some(*node),
            false => packages.get(node).copied(),
        };
        let (mut channels, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut number = |(&to, &from): (&u32, &u32)| {
            let (ends, line_ps) = ((end(&to)?, end(&from)?), line_ps?);
            if ends.0 == ends.1 {
                return None;
            }
            let number = *numbers.entry(ends).or_insert_with(|| {
                channels.push(Channel::new(line_ps.into(), 0));
                channels.len() - 1
            });
            Some(((to, from), number))
        };
        let pairs = nodes
            .iter()
            .flat_map(|to| nodes.iter().map(move |from| (to, from)));
        let between = pairs.filter_map(&mut number).collect();
        Self { channels, between }
    }

    /// What carries lines to a node from another.
    pub fn between(&self, to: u32, from: u32) -> Option<&Channel> {
        let number = self.between.get(&(to, from))?;
        self.channels.get(*number)
    }
}
