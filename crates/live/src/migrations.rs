//! Moves of tasks between nodes, as the kernel counts them where it lets this user trace.

use nearfar_machine::{Known, Machine, NOT_ASKED_FOR};
use nearfar_trace::NodeMigrations;

pub(crate) struct Migrations {
    /// `None` where there is one node: nothing moves to another.
    counter: Known<Option<NodeMigrations>>,
    before: u64,
}

impl Migrations {
    /// Nothing is traced.
    pub fn off() -> Self {
        Self {
            counter: Known::no(NOT_ASKED_FOR),
            before: 0,
        }
    }

    /// Counts from now on.
    pub fn open(machine: &Machine) -> Self {
        let with_cpus = machine
            .online_nodes()
            .filter(|it| !it.known_cpus().is_empty());
        let counter = match with_cpus.count() {
            0 | 1 => Known::Yes(None),
            _ => Known::from_result(NodeMigrations::open(machine)).map(Some),
        };
        Self { counter, before: 0 }
    }

    /// The machine was read again: CPUs that came online are counted as well.
    pub fn renew(&mut self, machine: &Machine) {
        let is_current = match &self.counter {
            Known::Yes(Some(counter)) => *counter.cpus() == machine.cpu_states.online,
            Known::Yes(None) => false,
            Known::No { .. } => true,
        };
        if !is_current {
            *self = Self::open(machine);
        }
    }

    /// Since the look before.
    pub fn look(&mut self) -> Known<u64> {
        let now = self.counter.as_ref().and_then(|counter| match counter {
            Some(counter) => Known::from_result(counter.count()),
            None => Known::Yes(0),
        });
        let before = now
            .get()
            .map_or(self.before, |now| std::mem::replace(&mut self.before, *now));
        now.map(|now| now.saturating_sub(before))
    }
}
