//! How far a run is, as values.

use std::time::Duration;

use nearfar_runs::{Cell, RunId};

/// A run as it begins or goes on.
#[derive(Clone, PartialEq, Debug)]
pub struct Begun {
    /// Its number in the store; `None` where the store is not kept.
    pub run: Option<RunId>,
    /// What it is about.
    pub title: String,
    /// How many samples it is to have.
    pub total: u64,
    /// How many of them were taken before it was interrupted.
    pub already: u64,
}

/// Where a run is.
#[derive(Clone, PartialEq, Debug)]
pub struct Step<'a> {
    /// How many samples there are, those of before included.
    pub done: u64,
    /// How many attempts failed.
    pub failed: u64,
    /// What the rest takes; `None` while that is unknown.
    pub left: Option<Duration>,
    /// The cell that comes next; `None` after the last one.
    pub next: Option<&'a Cell>,
}

/// Receives the progress of a run.
pub trait Progress {
    /// It begins, or goes on.
    fn begin(&mut self, begun: &Begun);
    /// A sample is about to be taken, or the last one was.
    fn step(&mut self, step: &Step<'_>);
    /// It has ended.
    fn end(&mut self);
}

/// Reports nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _: &Begun) {}
    fn step(&mut self, _: &Step<'_>) {}
    fn end(&mut self) {}
}
