//! What a run gave.

use nearfar_runs::{Cell, CellSummary, RunId, Values};

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Every sample was taken.
    Complete,
    /// Every sample was tried, and some attempts failed; carrying out the same experiment again tries those again.
    Incomplete,
    /// It was cancelled; carrying out the same experiment again continues it.
    Interrupted,
}

/// One sample with its place in the run.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled<S> {
    /// Which one of its run, from 1, in the order they were taken.
    pub number: u64,
    /// Its round, from 1.
    pub round: u32,
    /// Its cell.
    pub cell: Cell,
    /// By the metric's name.
    pub values: Values,
    /// What may be wrong with it, in sentences.
    pub warnings: Vec<String>,
    /// All that the experiment keeps of it.
    pub sample: S,
}

/// A run that ended without an error.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome<S> {
    /// Its number in the store.
    pub run: RunId,
    /// How it ended.
    pub ended: Ended,
    /// How many of its samples had been taken before, when it was interrupted; 0 for a new one.
    pub already: usize,
    /// The samples, in the order they were taken, those of before included.
    pub samples: Vec<Sampled<S>>,
    /// How many attempts failed; their reasons are in the store.
    pub failed: usize,
    /// What the samples say together, by cell.
    pub cells: Vec<CellSummary>,
}

impl<S> Outcome<S> {
    /// The samples of a cell, in the order they were taken.
    pub fn of(&self, cell: &Cell) -> impl Iterator<Item = &Sampled<S>> {
        self.samples
            .iter()
            .filter(move |sampled| sampled.cell == *cell)
    }
}
