//! The primitives of every protocol here. Models replace this module by loom's: they include a protocol's file with `#[path]` and
//! have a `crate::sync` of their own, so the file that is modelled is the one that runs.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use crate::event::Event;
