//! Caches whose sequences commit or start again: a sequence starts again if another one began on its CPU meanwhile, since its thread
//! was preempted then, or if all were restarted.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use crate::auto::Control;
use crate::sync::{AtomicU32, Ordering::SeqCst};

pub(crate) const MOST: u32 = 4;
const CLOSED: u64 = u32::MAX as u64;

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
    static REFUSED: Cell<Option<Refused>> = Cell::new(None);
}

/// What the kernel refuses to a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Restarts,
    /// And to run on another CPU.
    RestartsAndVisits,
}

/// From now on the kernel refuses this to the calling thread.
pub(crate) fn refuse(what: Refused) {
    REFUSED.with(|refused| refused.set(Some(what)));
}

fn refused() -> Option<Refused> {
    REFUSED.with(Cell::get)
}

/// Where the calling thread runs from now on.
pub(crate) fn run_on(cpu: usize) {
    CPU.with(|number| number.set(cpu));
}

/// The caches, which sequences reach through a `Control`.
pub(crate) struct Caches(Arc<Vec<Cache>>, AtomicU32);

pub(crate) struct Reach(Option<Arc<Vec<Cache>>>);

pub(crate) struct Cache {
    pub(crate) refills: AtomicU32,
    /// Changed by each access, so that loom sees which accesses may be in either order.
    accesses: AtomicU32,
    /// Never locked across an access to an atomic.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    front: Option<u32>,
    tags: Vec<u32>,
    most: u32,
    /// Counts the sequences that began and the restarts.
    begun: u32,
    is_touched: bool,
}

pub(crate) enum Moves {
    Refill,
    Spill,
}

impl Reach {
    pub(crate) const NONE: Self = Self(None);
}

impl Control {
    pub(crate) fn pop(&self) -> Option<u32> {
        let pop = |state: &mut State, _| state.front.take().or_else(|| state.tags.pop());
        self.sequence(|| (), pop)?.1
    }

    pub(crate) fn push(&self, tag: u32) -> bool {
        let push = |state: &mut State, size| {
            if tag >= size || state.most == 0 {
                return false;
            }
            let is_there = state.front == Some(tag) || state.tags.contains(&tag);
            assert!(!is_there, "tag {tag} was free already");
            if state.front.is_none() {
                state.front = Some(tag);
                return true;
            }
            let has_space = state.tags.len() + 1 < state.most as usize;
            if has_space {
                state.tags.push(tag);
            }
            has_space
        };
        self.sequence(|| (), push).is_some_and(|(_, is_put)| is_put)
    }

    pub(crate) fn pop_some(&self, tags: &mut [u32]) -> usize {
        let pop = |state: &mut State, _| {
            let left = state.tags.len().saturating_sub(tags.len());
            state.tags.split_off(left)
        };
        let popped = self
            .sequence(|| (), pop)
            .map_or(Vec::new(), |(_, tags)| tags);
        tags[..popped.len()].copy_from_slice(&popped);
        popped.len()
    }

    pub(crate) fn push_some(&self, tags: &[u32]) -> usize {
        let push = |state: &mut State, size| {
            let space = (state.most as usize).saturating_sub(state.tags.len() + 1);
            let some = &tags[..space.min(tags.len())];
            if some.iter().any(|tag| *tag >= size) {
                return 0;
            }
            state.tags.extend(some);
            some.len()
        };
        self.sequence(|| (), push).map_or(0, |(_, pushed)| pushed)
    }

    pub(crate) fn sight(&self) -> Option<(u32, u64)> {
        let seen = |state: &mut State, _| {
            let is_empty = state.front.is_none() && state.tags.is_empty();
            is_empty.then_some(state.most)
        };
        let (landed, most) = self.sequence(|| self.landed.0.load(SeqCst), seen)?;
        most.map(|most| (most, landed))
    }

    /// What `read` and `commit` found; `None` if the gate is closed.
    fn sequence<R, T>(
        &self,
        read: impl Fn() -> R,
        commit: impl Fn(&mut State, u32) -> T,
    ) -> Option<(R, T)> {
        let cache = &self.reach.0.as_ref()?[CPU.with(Cell::get)];
        loop {
            let begun = cache.access(|state| {
                state.begun += 1;
                state.begun
            });
            if self.gate.load(SeqCst) & CLOSED != 0 {
                return None;
            }
            let size = self.size.get();
            let seen = read();
            let done = cache.access(|state| {
                let is_undisturbed = state.begun == begun;
                is_undisturbed.then(|| commit(state, size))
            });
            if let Some(done) = done {
                return Some((seen, done));
            }
        }
    }
}

impl Cache {
    pub(crate) fn moves_again(&self, _: Moves) -> bool {
        true
    }
}

impl Caches {
    pub(crate) fn new(cpus: usize) -> Self {
        let cache = || Cache {
            refills: AtomicU32::new(0),
            accesses: AtomicU32::new(0),
            state: Mutex::default(),
        };
        let caches = (0..cpus).map(|_| cache()).collect();
        Self(Arc::new(caches), AtomicU32::new(0))
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach(Some(self.0.clone()))
    }

    pub(crate) fn cpu(&self) -> usize {
        CPU.with(Cell::get)
    }

    pub(crate) fn cache(&self, cpu: usize) -> Option<&Cache> {
        self.0.get(cpu)
    }

    pub(crate) fn touch(&self, cpu: usize) {
        self.0[cpu].access(|state| state.is_touched = true);
    }

    pub(crate) fn touched(&self) -> impl Iterator<Item = &Cache> {
        let caches = self.0.iter();
        caches.filter(|cache| cache.access(|state| state.is_touched))
    }

    pub(crate) fn restart_all(&self) -> bool {
        if refused().is_some() {
            self.1.store(1, SeqCst);
            return false;
        }
        for cache in self.0.iter() {
            cache.access(|state| state.begun += 1);
        }
        true
    }

    /// A thread that runs on a CPU has preempted those in its sequences.
    pub(crate) fn visit(&self, mut empty: impl FnMut(&Cache)) {
        let own = self.cpu();
        let others = (0..self.0.len()).filter(|_| refused() == Some(Refused::Restarts));
        for cpu in std::iter::once(own).chain(others) {
            run_on(cpu);
            self.0[cpu].access(|state| state.begun += 1);
            empty(&self.0[cpu]);
        }
        run_on(own);
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.1.load(SeqCst) == 0
    }

    pub(crate) fn has_unreached(&self) -> bool {
        !self.is_usable() && self.0.iter().any(|cache| cache.len() != 0)
    }
}

impl Cache {
    pub(crate) fn most(&self) -> u32 {
        self.access(|state| state.most)
    }

    pub(crate) fn claim(&self, most: u32) -> bool {
        self.access(|state| {
            let is_free = state.most == 0;
            if is_free {
                state.most = most;
            }
            is_free
        })
    }

    pub(crate) fn len(&self) -> u32 {
        self.access(|state| state.tags.len() as u32 + u32::from(state.front.is_some()))
    }

    pub(crate) fn withdraw(&self) -> (u32, Option<u32>) {
        self.access(|state| (std::mem::take(&mut state.most), state.front.take()))
    }

    pub(crate) fn steal(&self) -> Option<u32> {
        self.access(|state| state.tags.pop())
    }

    fn access<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        self.accesses.fetch_add(1, SeqCst);
        run(&mut self.state.lock().unwrap())
    }
}
