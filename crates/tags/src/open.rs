//! What `Auto` does while its gate is open and no tag is in the cache of this CPU, or no space: tags move between it and the words.
//!
//! A get fails here only if no other CPU may cache tags. The proof that the words have none is kept: `landed` counts whenever free tags
//! came into them, after they did, and `empty_at` is what it was before a pass over the words saw them empty. While both are equal,
//! no put of a tag into the words has returned since the pass, and a sequence that finds the cache empty and reads `landed` without
//! an interruption names the moment.

use crate::auto::Auto;
use crate::caches::{Cache, Caches, Moves, Sight};
use crate::shards::{MAX_BATCH, Moved};
use crate::sync::Ordering;

/// What a search with the gate open found.
pub(crate) enum Found {
    Tag(u32),
    NoneFree,
    /// Other caches may have some.
    Unknown,
}

impl Auto {
    /// As `put`; the gate was open a moment ago. False, and nothing done, if the tag belongs into the words.
    #[inline(never)]
    pub(crate) fn put_open(&self, tag: u32, has_moved: &mut bool) -> bool {
        let home = self.home();
        let Some(caches) = &self.caches else {
            return false;
        };
        let Some(cache) = caches.cache(home).filter(|_| tag < self.size()) else {
            return false;
        };
        if cache.most() != 0 {
            *has_moved = self.spill(caches, tag, home);
            return true;
        }
        self.claim(caches, home, has_moved) && self.control.push(tag)
    }

    /// A tag of the words, and more of them into this CPU's cache.
    #[inline(never)]
    pub(crate) fn take_open(&self, caches: &Caches, gate: u64, has_moved: &mut bool) -> Found {
        let size = self.size();
        let home = caches.cpu();
        let cache = caches.cache(home);
        let share = cache.map_or(0, Cache::most);
        // Only a CPU that alone caches tags can tell that there is none: others do not read what every spill writes.
        // It has not been proven yet: the thread may be on another CPU by now.
        let may_be_sole = share != 0 && share == self.calm.claimed();
        if may_be_sole && let Some(found) = self.look_at_empty(gate, size) {
            return found;
        }
        if share == 0 {
            self.claim(caches, home, has_moved);
        }
        let landed = may_be_sole.then(|| self.control.landed.0.load(Ordering::SeqCst));
        let most = match cache.is_some_and(|cache| cache.moves_again(Moves::Refill)) {
            true => share,
            false => share * 3 / 4,
        };
        let most = most.clamp(1, MAX_BATCH as u32) as usize;
        let Ok(moved) = self.words.take_some(size, home, most) else {
            return landed.map_or(Found::Unknown, |landed| {
                self.note_empty(landed, gate, size);
                let found = self.look_at_empty(gate, size);
                found.unwrap_or(Found::Unknown)
            });
        };
        if let Some(cache) = cache {
            cache.refills.fetch_add(1, Ordering::Relaxed);
        }
        self.fill(moved, home, has_moved)
    }

    /// The words were seen without a tag below `size` after `landed` was read, all while the gate was open if it still is.
    fn note_empty(&self, landed: u64, gate: u64, size: u32) {
        if self.control.gate.load(Ordering::SeqCst) == gate && self.size() == size {
            self.empty_at.0.store(landed, Ordering::SeqCst);
        }
    }

    /// Whether there was a moment without a free tag, after this CPU's cache had none: `None` if the words may have some.
    fn look_at_empty(&self, gate: u64, size: u32) -> Option<Found> {
        // Before the sight: a pass that ends after it says nothing about the moment at which the cache was empty.
        let empty_at = self.empty_at.0.load(Ordering::SeqCst);
        match self.control.sight() {
            None => self.control.pop().map(Found::Tag),
            Some(sight) if sight.landed == empty_at => Some(self.judge(sight, gate, size)),
            Some(_) => None,
        }
    }

    /// Keeps one of these tags and puts the others into this CPU's cache.
    fn fill(&self, mut moved: Moved, home: usize, has_moved: &mut bool) -> Found {
        let tag = moved.pop();
        let is_below = tag.is_some_and(|tag| tag < self.size());
        if is_below {
            let pushed = self.control.push_some(moved.tags());
            moved.remove_first(pushed);
        }
        if let Some(tag) = tag.filter(|_| !is_below) {
            // The size became less.
            moved.push(tag);
        }
        if !moved.tags().is_empty() {
            self.put_words(moved.tags(), home);
            *has_moved = true;
        }
        let tag = tag.filter(|_| is_below);
        tag.map_or(Found::Unknown, Found::Tag)
    }

    /// After this CPU's cache was seen without a tag, at a moment when the words had none: that was a moment without a free tag if no
    /// other cache could hold any. One that could had its share claimed by then, and gives it back only while the gate is
    /// closed.
    fn judge(&self, sight: Sight, gate: u64, size: u32) -> Found {
        let is_sole = sight.most == self.calm.claimed();
        if is_sole && self.control.gate.load(Ordering::SeqCst) == gate && self.size() == size {
            Found::NoneFree
        } else {
            Found::Unknown
        }
    }

    /// Moves half of this CPU's cache, or all of it if it was full the last time as well, and a tag, into the words. Whether it moved others than the tag.
    fn spill(&self, caches: &Caches, tag: u32, home: usize) -> bool {
        let cache = caches.cache(home);
        let share = cache.map_or(0, Cache::most);
        let most = match cache.is_some_and(|cache| cache.moves_again(Moves::Spill)) {
            true => share,
            false => share / 2,
        };
        let mut moved = Moved::new();
        moved.push(tag);
        moved.add(most as usize, |space| self.control.pop_some(space));
        self.put_words(moved.tags(), home);
        moved.tags().len() > 1
    }

    /// Lets a CPU cache tags. The caches together hold half of them at most.
    fn claim(&self, caches: &Caches, cpu: usize, has_moved: &mut bool) -> bool {
        let Some(cache) = caches.cache(cpu).filter(|_| caches.is_usable()) else {
            return false;
        };
        let Some(share) = self.calm.claim(self.size() / 2) else {
            // More CPUs cache than there are shares: takes all back, for smaller ones.
            *has_moved |= self.close();
            self.calm.note_active();
            self.leave();
            return false;
        };
        // Before a sequence can put a tag into it.
        caches.touch(cpu);
        if !cache.claim(share) {
            self.calm.unclaim(share);
        }
        true
    }
}
