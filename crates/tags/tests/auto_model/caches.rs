//! Caches whose sequences commit or start again: a sequence starts again if another one began on its CPU meanwhile, since its thread
//! was preempted then, or if all were restarted.

use std::cell::Cell;
use std::sync::Mutex;

use crate::auto::Control;
use crate::sync::{AtomicU32, Ordering::SeqCst};

pub(crate) const MOST: u32 = 4;
const CLOSED: u64 = u32::MAX as u64;

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

/// Where the calling thread runs from now on.
pub(crate) fn run_on(cpu: usize) {
    CPU.with(|number| number.set(cpu));
}

pub(crate) struct Caches(Vec<Cache>);

pub(crate) struct Cache {
    pub(crate) most: AtomicU32,
    pub(crate) refills: AtomicU32,
    /// Changed by each access, so that loom sees which accesses may be in either order.
    accesses: AtomicU32,
    /// Never locked across an access to an atomic.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tags: Vec<u32>,
    pushes: u32,
    /// Counts the sequences that began and the restarts.
    begun: u32,
    is_touched: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Empty {
    cpu: usize,
    pushes: u32,
}

impl Caches {
    pub(crate) fn new(cpus: usize) -> Self {
        let cache = || Cache {
            most: AtomicU32::new(0),
            refills: AtomicU32::new(0),
            accesses: AtomicU32::new(0),
            state: Mutex::default(),
        };
        Self((0..cpus).map(|_| cache()).collect())
    }

    pub(crate) fn pop(&self, control: &Control) -> Option<u32> {
        self.pop_or_empty(control).ok()
    }

    pub(crate) fn pop_or_empty(&self, control: &Control) -> Result<u32, Empty> {
        let cpu = self.cpu();
        let pop = |state: &mut State, _, _| {
            let pushes = state.pushes;
            state.tags.pop().ok_or(Empty { cpu, pushes })
        };
        let closed = Err(Empty { cpu, pushes: 0 });
        self.0[cpu].sequence(control, pop).unwrap_or(closed)
    }

    pub(crate) fn push(&self, control: &Control, tag: u32) -> bool {
        let push = |state: &mut State, size, most| {
            if tag >= size || state.tags.len() >= most {
                return false;
            }
            assert!(!state.tags.contains(&tag), "tag {tag} was free already");
            state.pushes += 1;
            state.tags.push(tag);
            true
        };
        self.0[self.cpu()].sequence(control, push).unwrap_or(false)
    }

    pub(crate) fn most(&self, empty: Empty) -> Option<u32> {
        Some(self.0[empty.cpu].most.load(SeqCst))
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

    pub(crate) fn restart_all(&self) {
        for cache in &self.0 {
            cache.access(|state| state.begun += 1);
        }
    }

    pub(crate) fn is_wiped(&self) -> bool {
        false
    }
}

impl Cache {
    pub(crate) fn len(&self) -> u32 {
        self.access(|state| state.tags.len() as u32)
    }

    pub(crate) fn steal(&self) -> Option<u32> {
        self.access(|state| state.tags.pop())
    }

    fn access<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        self.accesses.fetch_add(1, SeqCst);
        run(&mut self.state.lock().unwrap())
    }

    /// `None` if the gate is closed.
    fn sequence<T>(
        &self,
        control: &Control,
        commit: impl Fn(&mut State, u32, usize) -> T,
    ) -> Option<T> {
        loop {
            let begun = self.access(|state| {
                state.begun += 1;
                state.begun
            });
            if control.gate.load(SeqCst) & CLOSED != 0 {
                return None;
            }
            let size = control.size.get();
            let most = self.most.load(SeqCst) as usize;
            let done = self.access(|state| {
                let is_undisturbed = state.begun == begun;
                is_undisturbed.then(|| commit(state, size, most))
            });
            if done.is_some() {
                return done;
            }
        }
    }
}
