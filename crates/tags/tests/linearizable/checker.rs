//! Searches for an order of a history's operations that a correct allocator could have executed one at a time: the algorithm of Wing and
//! Gong with the memory of visited states that Lowe added.
//!
//! An operation takes effect at one moment between its invocation and its return. The search executes, in each state, every operation
//! that could be next (it was invoked before any unexecuted operation returned) and that the specification allows there.

use std::collections::HashSet;

use super::history::{Call, History, Operation};

/// The state of a correct allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Allocator {
    /// Bit t: tag t is not held. At most 64 tags.
    pub free: u64,
    /// Tags at or above it are not handed out.
    pub size: u32,
}

impl Allocator {
    /// No tag is held.
    pub fn new(size: u32, capacity: u32) -> Self {
        Self {
            free: below(capacity),
            size,
        }
    }

    /// The state after a call; `None` if a correct allocator cannot return this result here. `in_transit`: how many free tags other
    /// threads may be moving between caches, so that a get may miss them.
    fn after(self, call: Call, in_transit: u32) -> Option<Self> {
        let available = self.free & below(self.size);
        match call {
            Call::Take(None) => (available.count_ones() <= in_transit).then_some(self),
            Call::Take(Some(tag)) => (available & (1 << tag) != 0).then_some(Self {
                free: self.free & !(1 << tag),
                ..self
            }),
            Call::Put(tag) => (self.free & (1 << tag) == 0).then_some(Self {
                free: self.free | (1 << tag),
                ..self
            }),
            Call::Resize(size) => Some(Self { size, ..self }),
        }
    }
}

fn below(tags: u32) -> u64 {
    u64::MAX.checked_shr(64 - tags).unwrap_or(0)
}

/// No order explains a history.
#[derive(Debug)]
#[expect(dead_code, reason = "printed with Debug")]
pub struct NotLinearizable {
    /// The state after the longest order that was found.
    pub state: Allocator,
    /// What each thread executes next there.
    pub next: Vec<Option<Operation>>,
}

/// Finds an order for a history, or says where every order ends.
///
/// `moved`: how many free tags an operation may keep out of reach while it moves them between caches. A get that returned no tag is
/// allowed to miss so many for each operation of another thread that overlaps it; 0 allows none.
pub fn check(
    history: &History,
    initial: Allocator,
    moved: u32,
) -> Result<(), Box<NotLinearizable>> {
    let mut search = Search {
        history,
        moved,
        visited: HashSet::new(),
        longest: (vec![0; history.len()], initial),
    };
    if search.finds_an_order(initial) {
        return Ok(());
    }
    let (done, state) = search.longest;
    let next = history.iter().zip(&done);
    let next = next.map(|(thread, &done)| thread.get(done).copied());
    Err(Box::new(NotLinearizable {
        state,
        next: next.collect(),
    }))
}

struct Search<'a> {
    history: &'a History,
    moved: u32,
    visited: HashSet<(Vec<usize>, Allocator)>,
    longest: (Vec<usize>, Allocator),
}

enum Step {
    /// Every operation was executed.
    Finished,
    /// The next operation of a thread, and the state after it.
    Execute(usize, Allocator),
    /// No other operation can be next.
    Back,
}

impl Search<'_> {
    fn finds_an_order(&mut self, initial: Allocator) -> bool {
        let mut done = vec![0; self.history.len()];
        let mut state = initial;
        // The order so far: which thread's operation, in which state.
        let mut order = Vec::new();
        let mut first = 0;
        loop {
            match self.step(&done, state, first) {
                Step::Finished => return true,
                Step::Execute(thread, after) => {
                    order.push((thread, state));
                    done[thread] += 1;
                    if order.len() > self.longest.0.iter().sum() {
                        self.longest = (done.clone(), after);
                    }
                    if self.visited.insert((done.clone(), after)) {
                        (state, first) = (after, 0);
                        continue;
                    }
                }
                Step::Back => {}
            }
            let Some((thread, before)) = order.pop() else {
                return false;
            };
            done[thread] -= 1;
            (state, first) = (before, thread + 1);
        }
    }

    /// What can be next where `done` operations of each thread were executed: of thread `first` or a later one.
    fn step(&self, done: &[usize], state: Allocator, first: usize) -> Step {
        let next = |thread: usize| self.history[thread].get(done[thread]);
        let threads = 0..self.history.len();
        let returned = threads.clone().filter_map(next);
        let Some(first_return) = returned.map(|operation| operation.returned).min() else {
            return Step::Finished;
        };
        let mut candidates = threads.skip(first).filter_map(|thread| {
            let operation = next(thread).filter(|operation| operation.invoked < first_return)?;
            let in_transit = self.in_transit(thread, *operation);
            let after = state.after(operation.call, in_transit)?;
            Some(Step::Execute(thread, after))
        });
        candidates.next().unwrap_or(Step::Back)
    }

    fn in_transit(&self, thread: usize, operation: Operation) -> u32 {
        if self.moved == 0 || operation.call != Call::Take(None) {
            return 0;
        }
        let others = self.history.iter().enumerate();
        let others = others.filter(|(other, _)| *other != thread);
        let overlaps = |other: &&Operation| {
            other.invoked < operation.returned && operation.invoked < other.returned
        };
        let overlapping = others.flat_map(|(_, operations)| operations.iter().filter(overlaps));
        self.moved * overlapping.count() as u32
    }
}
