//! The rule for one subject: a thread, or a group that moves as one.

use std::time::Duration;

use super::RuleOptions;

/// What to do with a subject's CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Confine it to its node.
    Narrow,
    /// Let it run wherever it may.
    Widen,
}

/// Where a subject may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On its node's CPUs.
    Home,
    /// Wherever it may.
    Anywhere,
}

/// What is remembered of one subject.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    options: RuleOptions,
    place: Place,
    /// Looks in a row that spoke for a move.
    in_a_row: u32,
    came_home: Option<Duration>,
    /// No return before this.
    not_before: Duration,
    pause: Duration,
}

impl Rule {
    /// A subject that may run here. The times of all looks count from the same moment.
    pub fn new(options: RuleOptions, place: Place) -> Self {
        let pause = options.too_soon;
        Self {
            options,
            place,
            in_a_row: 0,
            came_home: None,
            not_before: Duration::ZERO,
            pause,
        }
    }

    /// Where it may run by what was decided.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes a look and decides: `waiting` is its wait as a share (0 to 1) of the time it wanted to run since the last look,
    /// `room` whether a CPU of its node could take it.
    pub fn step(&mut self, now: Duration, waiting: f64, room: bool) -> Option<Decision> {
        let decision = self.wants(now, waiting, room)?;
        self.done(now, decision);
        Some(decision)
    }

    /// Takes a look and says what it should do; nothing is decided.
    pub(super) fn wants(&mut self, now: Duration, waiting: f64, room: bool) -> Option<Decision> {
        let (speaks, decision) = match self.place {
            Place::Home => (waiting > self.options.waiting && !room, Decision::Widen),
            Place::Anywhere => (room, Decision::Narrow),
        };
        self.in_a_row = if speaks {
            self.in_a_row.saturating_add(1)
        } else {
            0
        };
        let paused = self.place == Place::Anywhere && now < self.not_before;
        (self.in_a_row >= self.options.looks && !paused).then_some(decision)
    }

    /// Looks before this one no longer count: something else has changed meanwhile.
    pub(super) fn restart(&mut self) {
        self.in_a_row = 0;
    }

    /// It was decided.
    pub(super) fn done(&mut self, now: Duration, decision: Decision) {
        self.in_a_row = 0;
        match decision {
            Decision::Narrow => {
                self.place = Place::Home;
                self.came_home = Some(now);
            }
            Decision::Widen => {
                let soon = self
                    .came_home
                    .is_some_and(|came| now < came + self.options.too_soon);
                self.pause = match soon {
                    true => (self.pause * 2).min(self.options.longest_pause),
                    false => self.options.too_soon,
                };
                if soon {
                    self.not_before = now + self.pause;
                }
                self.place = Place::Anywhere;
            }
        }
    }
}
