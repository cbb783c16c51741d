// SPDX-License-Identifier: GPL-2.0-or-later
//! A memory or a link that carries one line after the other.
//!
//! vCPUs do not come in the order of their local times: one may be a window ahead of another that runs later. So time is cut into
//! slots that each carry so many lines, and a line goes into the first slot from its own time on that has room, in whatever order
//! they come:
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
//!
//! In simulated time, a vCPU that polls a line may be up to a window ahead of the store that it polls for: vCPUs take turns of a
//! window. The poll that sees the store comes late by that. The transfer began at the store.
//!
//! ```text
//!  writer   ──────── store ·······
//!  reader   ─ poll ─ poll ─ poll ─ poll │ its next turn: poll, which sees the store
//!                       └─────── late ──────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Picoseconds of a slot: some 40 lines of 20 GB/s.
const SLOT_PS: u64 = 128_000;
/// How many slots the share is of.
const RECENT: u64 = 8;
/// What a line of a memory waits for busy banks where all slots are full.
pub const BANKS_PS: u64 = 36_000;

/// What is carried in a slot, and by whom: no vCPU where it is by several.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    busy_ps: u64,
    user: Option<u16>,
}

/// The slots that are still needed.
#[derive(Default, Debug)]
struct Slots {
    /// The number of the first.
    first: u64,
    slots: VecDeque<Slot>,
}

impl Slots {
    /// Forgets those before this number, for which no line comes any more.
    fn forget(&mut self, before: u64) {
        let passed = before.saturating_sub(self.first);
        self.slots.drain(..self.slots.len().min(passed as usize));
        self.first = self.first.max(before);
    }

    fn at(&mut self, number: u64) -> &mut Slot {
        let position = number.saturating_sub(self.first) as usize;
        if position >= self.slots.len() {
            self.slots.resize(position + 1, Slot::default());
        }
        &mut self.slots[position]
    }

    /// How long others than this vCPU used the last slots before this number.
    fn others_ps(&self, vcpu: u16, number: u64) -> u64 {
        let position = |number: u64| number.saturating_sub(self.first) as usize;
        let (from, to) = (position(number.saturating_sub(RECENT)), position(number));
        let recent = self.slots.iter().take(to).skip(from);
        recent
            .filter(|slot| slot.user != Some(vcpu))
            .map(|slot| slot.busy_ps)
            .sum()
    }
}

/// One memory, or one direction of a link.
#[derive(Debug)]
pub struct Channel {
    line_ps: u64,
    banks_ps: u64,
    /// Slots before that of a line which may still be asked for.
    kept: u64,
    slots: Mutex<Slots>,
}

impl Channel {
    /// A channel that a line occupies for so long, and waits for its banks up to so long: a link has none. Some vCPUs may be a
    /// window behind others.
    pub fn new(line_ps: u64, banks_ps: u64, window_ps: u64) -> Self {
        Self {
            line_ps,
            banks_ps,
            // One that is woken may be two windows and more behind another whose turn was longer for waiting.
            kept: RECENT + 4 * window_ps.div_ceil(SLOT_PS),
            slots: Mutex::default(),
        }
    }

    /// Carries a line to a vCPU at its time, and returns how long it waits.
    pub fn carry(&self, vcpu: u16, now_ps: u64) -> u64 {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let own = now_ps / SLOT_PS;
        slots.forget(own.saturating_sub(self.kept));
        if own < slots.first {
            // Nothing is known of that time any more, and to wait until the first slot would be waiting for those that are ahead.
            return 0;
        }
        let others_ps = slots.others_ps(vcpu, own);
        let mut number = own;
        while slots.at(number).busy_ps == SLOT_PS {
            number += 1;
        }
        let until_slot = (number * SLOT_PS).saturating_sub(now_ps);
        let mut rest_ps = self.line_ps;
        while rest_ps > 0 {
            let slot = slots.at(number);
            let part_ps = rest_ps.min(SLOT_PS - slot.busy_ps);
            slot.user = match *slot {
                Slot { busy_ps: 0, .. } => Some(vcpu),
                Slot { user, .. } => user.filter(|&user| user == vcpu),
            };
            slot.busy_ps += part_ps;
            (number, rest_ps) = (number + 1, rest_ps - part_ps);
        }
        until_slot + self.banks_ps * others_ps / (RECENT * SLOT_PS)
    }
}

/// What carries lines between nodes: from each package to each other one, and from node to node where no packages are known.
#[derive(Debug)]
pub struct Links {
    channels: Vec<Channel>,
    /// The number of the channel by the positions of the nodes it carries to and from.
    between: Vec<Vec<Option<usize>>>,
}

impl Links {
    /// Links that a line occupies for so long, between nodes of these packages; none without that. Nodes of one package need none, and of
    /// a node whose package alone is unknown it is not known what it is behind.
    pub fn new(line_ps: Option<u32>, packages: &[Option<u32>], window_ps: u64) -> Self {
        let nodes = 0..packages.len();
        let end = |node: usize| match packages.iter().all(Option::is_none) {
            true => Some(node),
            false => packages[node].map(|package| package as usize),
        };
        let (mut channels, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut number = |to, from| {
            let (ends, line_ps) = ((end(to)?, end(from)?), line_ps?);
            (ends.0 != ends.1).then(|| {
                *numbers.entry(ends).or_insert_with(|| {
                    channels.push(Channel::new(line_ps.into(), 0, window_ps));
                    channels.len() - 1
                })
            })
        };
        let mut row = |to| nodes.clone().map(|from| number(to, from)).collect();
        let between = nodes.clone().map(&mut row).collect();
        Self { channels, between }
    }

    /// What carries lines to a node from another, by their positions.
    pub fn between(&self, to: usize, from: usize) -> Option<&Channel> {
        self.channels.get(self.between[to][from]?)
    }
}

/// Lines whose stores are known: few are handed over at a time.
const LINES: usize = 1024;

/// Of each line the last store, unless another line has taken its place.
#[derive(Debug)]
pub struct Stores {
    window_ps: u64,
    /// The line, and the vCPU's local time.
    last: Box<[[AtomicU64; 2]]>,
}

impl Stores {
    /// Of vCPUs that are at most so far ahead of one another.
    pub fn new(window_ps: u64) -> Self {
        Self {
            window_ps,
            last: (0..LINES).map(|_| Default::default()).collect(),
        }
    }

    /// A vCPU stores to a line.
    pub fn note(&self, line: u32, at_ps: u64) {
        let [of, at] = &self.last[line as usize % LINES];
        of.store(line.into(), Relaxed);
        at.store(at_ps, Relaxed);
    }

    /// When a line was stored to that a vCPU polls now; `now_ps` where that is longer ago than the vCPU can be ahead.
    pub fn seen_late(&self, line: u32, now_ps: u64) -> u64 {
        let [of, at] = &self.last[line as usize % LINES];
        let at_ps = at.load(Relaxed);
        let is_late = of.load(Relaxed) == u64::from(line)
            && now_ps.saturating_sub(at_ps) <= 2 * self.window_ps;
        if is_late { at_ps.min(now_ps) } else { now_ps }
    }
}
