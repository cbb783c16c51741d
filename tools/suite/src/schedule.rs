//! The order in which tests run: a guest together with ordinary tests while there are some, guests together after that, then each test
//! that runs alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::config::Class;
use crate::item::Item;

/// Seconds that each test took in the run before this one, by identifier.
pub type Durations = BTreeMap<String, f64>;

/// Reads the durations of the last run. Without them only the order differs, so what cannot be read counts as absent.
pub fn read_durations(path: &Path) -> Durations {
    std::fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// The tests that wait and those that run.
pub struct Schedule {
    state: Mutex<State>,
    /// Notified when a test has ended.
    changed: Condvar,
}

struct State {
    /// Sorted so that the last one is the next.
    waiting: BTreeMap<Class, Vec<Item>>,
    running: Vec<Running>,
}

struct Running {
    id: String,
    class: Class,
    since: Instant,
}

impl State {
    fn next(&mut self) -> Option<Item> {
        let class = self.next_class()?;
        let item = self.waiting.get_mut(&class)?.pop()?;
        self.running.push(Running {
            id: item.id.clone(),
            class,
            since: Instant::now(),
        });
        Some(item)
    }

    fn next_class(&self) -> Option<Class> {
        let waits = |class| {
            self.waiting
                .get(&class)
                .is_some_and(|items| !items.is_empty())
        };
        let runs = |class| self.running.iter().any(|running| running.class == class);
        if runs(Class::Alone) {
            return None;
        }
        if waits(Class::Guest) && !runs(Class::Guest) {
            return Some(Class::Guest);
        }
        if let Some(class) = [Class::Ordinary, Class::Guest]
            .into_iter()
            .find(|&class| waits(class))
        {
            return Some(class);
        }
        (self.running.is_empty() && waits(Class::Alone)).then_some(Class::Alone)
    }
}

impl Schedule {
    /// Sorts the longest first within each class. A test without a known duration counts as if it took its limit.
    pub fn new(items: Vec<Item>, durations: &Durations) -> Self {
        let mut waiting: BTreeMap<Class, Vec<Item>> = BTreeMap::new();
        for item in items {
            waiting.entry(item.treatment.class).or_default().push(item);
        }
        for items in waiting.values_mut() {
            let expected = |item: &Item| {
                durations
                    .get(&item.id)
                    .copied()
                    .unwrap_or(item.treatment.limit.as_secs_f64())
            };
            items.sort_by(|a, b| {
                expected(a)
                    .total_cmp(&expected(b))
                    .then_with(|| b.id.cmp(&a.id))
            });
        }
        Self {
            state: Mutex::new(State {
                waiting,
                running: Vec::new(),
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a test may run; `None` when all have been started.
    pub fn next(&self) -> Option<Item> {
        let mut state = self.lock();
        loop {
            if state.waiting.values().all(Vec::is_empty) {
                return None;
            }
            if let Some(item) = state.next() {
                return Some(item);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that a test has ended.
    pub fn end(&self, id: &str) {
        self.lock().running.retain(|running| running.id != id);
        self.changed.notify_all();
    }

    /// The tests that run, and for how many seconds.
    pub fn running(&self) -> Vec<(String, f64)> {
        self.lock()
            .running
            .iter()
            .map(|running| (running.id.clone(), running.since.elapsed().as_secs_f64()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Treatment;
    use crate::executables::Executable;

    fn item(id: &str, class: Class) -> Item {
        let executable = Executable {
            label: "x".into(),
            path: "/x".into(),
            directory: "/".into(),
            environment: BTreeMap::new(),
        };
        let treatment = Treatment {
            class,
            limit: Duration::from_secs(60),
            is_slow: false,
        };
        Item {
            id: id.to_owned(),
            executable,
            arguments: Vec::new(),
            is_one_test: true,
            treatment,
        }
    }

    #[test]
    fn classes_and_durations_decide_the_order() {
        let items = vec![
            item("alone", Class::Alone),
            item("short", Class::Ordinary),
            item("long", Class::Ordinary),
            item("guest1", Class::Guest),
            item("guest2", Class::Guest),
        ];
        let durations = [("short", 1.0), ("long", 2.0), ("guest1", 90.0)]
            .map(|(id, time)| (id.to_owned(), time));
        let schedule = Schedule::new(items, &durations.into());
        let next = || schedule.lock().next().map(|item| item.id);
        assert_eq!(
            next().as_deref(),
            Some("guest1"),
            "its known duration is above the limit of the other"
        );
        assert_eq!(next().as_deref(), Some("long"));
        schedule.end("long");
        assert_eq!(next().as_deref(), Some("short"));
        schedule.end("short");
        assert_eq!(next().as_deref(), Some("guest2"), "no other test waits");
        schedule.end("guest1");
        assert_eq!(next(), None, "a guest runs");
        schedule.end("guest2");
        assert_eq!(next().as_deref(), Some("alone"));
        assert_eq!(schedule.running()[0].0, "alone");
        assert!(schedule.next().is_none());
    }

    #[test]
    fn nothing_starts_while_a_test_runs_alone() {
        let schedule = Schedule::new(
            vec![item("a", Class::Alone), item("b", Class::Alone)],
            &Durations::new(),
        );
        let next = || schedule.lock().next().map(|item| item.id);
        assert_eq!(next().as_deref(), Some("a"));
        assert_eq!(next(), None);
        schedule.end("a");
        assert_eq!(next().as_deref(), Some("b"));
    }
}
