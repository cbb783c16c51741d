// SPDX-License-Identifier: GPL-2.0-or-later
//! The cache model against one that is too simple to be wrong.

use std::collections::VecDeque;
use std::thread;

use nearfar_lab_delay::model::lines::{Cache, Touch};
use proptest::prelude::*;

/// Sets as queues, the most recently used line first.
struct Naive {
    ways: usize,
    sets: Vec<VecDeque<u32>>,
}

impl Naive {
    fn touch(&mut self, line: u32) -> Touch {
        let count = self.sets.len();
        let set = &mut self.sets[line as usize % count];
        let found = set.iter().position(|&there| there == line);
        found.and_then(|position| set.remove(position));
        set.push_front(line);
        let evicted = (set.len() > self.ways).then(|| set.pop_back()).flatten();
        Touch {
            hit: found.is_some(),
            evicted,
        }
    }
}

proptest! {
    #[test]
    fn hits_and_evictions_are_those_of_least_recently_used(
        sets in 1usize..9, ways in 1usize..9, lines in prop::collection::vec(0u32..100, 0..500),
    ) {
        let (cache, mut naive) = (Cache::new(sets, ways), Naive { ways, sets: vec![VecDeque::new(); sets] });
        for line in lines {
            prop_assert_eq!(cache.touch(line), naive.touch(line));
        }
    }
}

#[test]
fn a_cycle_through_more_lines_than_there_is_room_for_never_hits() {
    let cache = Cache::new(4, 2);
    assert!(
        (0..3)
            .flat_map(|_| 0..16)
            .all(|line| !cache.touch(line).hit)
    );
}

#[test]
fn vcpus_at_once_neither_crash_it_nor_make_it_evict_what_never_came() {
    let cache = Cache::new(2, 4);
    thread::scope(|scope| {
        for first in 0..4u32 {
            let cache = &cache;
            scope.spawn(move || {
                for step in 0..20_000u32 {
                    let touch = cache.touch((first + step * 7) % 32);
                    assert!(touch.evicted.is_none_or(|line| line < 32));
                }
            });
        }
    });
    // Whatever they left, the next line is found again at once.
    cache.touch(5);
    assert!(cache.touch(5).hit);
}
