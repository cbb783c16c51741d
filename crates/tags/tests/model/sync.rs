#![allow(dead_code, unused_imports, reason = "each model uses a part")]
//! The primitives of loom under the names that the protocols use.

use std::time::Instant;

pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

pub(crate) fn fence_after_put() {
    fence(Ordering::SeqCst);
}

#[derive(Debug, Default)]
pub(crate) struct Event {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn set(&self) {
        *self.is_set.lock().unwrap() = true;
        self.changed.notify_one();
    }

    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        assert!(deadline.is_none(), "there is no clock in a model");
        let mut is_set = self.is_set.lock().unwrap();
        while !*is_set {
            is_set = self.changed.wait(is_set).unwrap();
        }
        *is_set = false;
        true
    }
}
