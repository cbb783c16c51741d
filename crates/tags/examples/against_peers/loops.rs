//! What a thread does while it is measured.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::peers::Peer;
use crate::ring::{Pause, Ring};

/// Operations between two looks at the flag that ends a measurement.
const BETWEEN_LOOKS: u64 = 64;

/// Set once each.
#[derive(Default)]
pub struct Flags {
    /// The warm-up has ended. Until all threads have run, those that did find tags to spare.
    pub begin: AtomicBool,
    pub stop: AtomicBool,
}

/// An allocator and its loops. Each returns how many tags the thread put.
pub trait Contestant: Sync {
    /// Called by each thread before its loop.
    fn enter(&self) {}
    /// Called by each thread after its loop.
    fn leave(&self) {}
    /// Takes a tag and puts it.
    fn plenty(&self, stop: &AtomicBool) -> u64;
    /// Takes tags up to `depth`; there, and when none is free, puts the oldest.
    fn saturated(&self, depth: usize, stop: &AtomicBool) -> u64;
    /// Takes tags and hands them over.
    fn cross_take(&self, ring: &Ring, stop: &AtomicBool);
    /// Puts what was handed over.
    fn cross_put(&self, ring: &Ring) -> u64;
    /// As `plenty`; waits for the tag. `None` if this allocator cannot wait.
    fn blocking(&self, stop: &AtomicBool) -> Option<u64>;
    /// As `saturated`; waits for a tag while it holds none. Counts what it puts from `begin` on. `None` if this allocator cannot wait.
    fn fair(&self, depth: usize, flags: &Flags) -> Option<u64>;
    /// How many of the tags that no thread holds this thread can take.
    fn reachable(&self) -> usize;
}

impl<P: Peer> Contestant for P {
    fn plenty(&self, stop: &AtomicBool) -> u64 {
        until(stop, || {
            let mut puts = 0;
            for _ in 0..BETWEEN_LOOKS {
                if let Some(tag) = self.try_take() {
                    self.put(tag);
                    puts += 1;
                }
            }
            puts
        })
    }

    fn saturated(&self, depth: usize, stop: &AtomicBool) -> u64 {
        let mut held = Held::new(depth);
        let puts = until(stop, || {
            let mut puts = 0;
            for _ in 0..BETWEEN_LOOKS {
                if held.len() == depth {
                    self.put(held.oldest());
                    puts += 1;
                }
                match self.try_take() {
                    Some(tag) => held.push(tag),
                    None if held.len() > 0 => {
                        self.put(held.oldest());
                        puts += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
            puts
        });
        held.put_all(self);
        puts
    }

    fn cross_take(&self, ring: &Ring, stop: &AtomicBool) {
        let mut pause = Pause::default();
        for number in 0.. {
            let line = ring.at(number);
            while !line.is_empty() {
                pause.wait(ring);
            }
            let mut taken = 0;
            while taken < ring.line && !stop.load(Ordering::Relaxed) {
                match self.try_take() {
                    Some(tag) => {
                        line.set(taken, tag);
                        taken += 1;
                    }
                    None => pause.wait(ring),
                }
            }
            match taken {
                0 => return line.close(),
                taken => line.fill(taken),
            }
        }
    }

    fn cross_put(&self, ring: &Ring) -> u64 {
        let mut pause = Pause::default();
        let (mut number, mut puts) = (0, 0);
        while let Some(filled) = ring.at(number).filled() {
            if filled == 0 {
                pause.wait(ring);
                continue;
            }
            let line = ring.at(number);
            line.tags(filled).for_each(|tag| self.put(tag));
            line.empty();
            number += 1;
            puts += filled;
        }
        puts
    }

    fn blocking(&self, stop: &AtomicBool) -> Option<u64> {
        let mut puts = 0;
        while !stop.load(Ordering::Relaxed) {
            self.put(self.take()?);
            puts += 1;
        }
        Some(puts)
    }

    fn fair(&self, depth: usize, flags: &Flags) -> Option<u64> {
        let mut held = Held::new(depth);
        let mut puts = 0;
        while !flags.stop.load(Ordering::Relaxed) {
            if !flags.begin.load(Ordering::Relaxed) {
                puts = 0;
            }
            if held.len() == 0 {
                held.push(self.take()?);
            }
            match self.try_take() {
                Some(tag) if held.len() < depth => held.push(tag),
                tag => {
                    self.put(held.oldest());
                    puts += 1;
                    tag.into_iter().for_each(|tag| held.push(tag));
                }
            }
        }
        held.put_all(self);
        Some(puts)
    }

    fn reachable(&self) -> usize {
        let tags: Vec<_> = std::iter::from_fn(|| self.try_take()).collect();
        tags.iter().for_each(|tag| self.put(*tag));
        tags.len()
    }
}

fn until(stop: &AtomicBool, mut some: impl FnMut() -> u64) -> u64 {
    let mut all = 0;
    while !stop.load(Ordering::Relaxed) {
        all += some();
    }
    all
}

/// The tags a thread holds, in the order it took them.
struct Held {
    /// A power of two of slots.
    slots: Box<[u32]>,
    first: usize,
    end: usize,
}

impl Held {
    fn new(depth: usize) -> Self {
        Self {
            slots: vec![0; (depth + 1).next_power_of_two()].into(),
            first: 0,
            end: 0,
        }
    }

    fn len(&self) -> usize {
        self.end - self.first
    }

    fn push(&mut self, tag: u32) {
        let mask = self.slots.len() - 1;
        self.slots[self.end & mask] = tag;
        self.end += 1;
    }

    /// Only while there is one.
    fn oldest(&mut self) -> u32 {
        let mask = self.slots.len() - 1;
        let tag = self.slots[self.first & mask];
        self.first += 1;
        tag
    }

    fn put_all(&mut self, peer: &impl Peer) {
        while self.len() > 0 {
            peer.put(self.oldest());
        }
    }
}
