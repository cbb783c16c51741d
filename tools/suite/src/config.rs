//! How tests run: the configuration, which test has which time limit and class; and their order, a guest together with ordinary tests
//! while there are some, guests together after that, then each test that runs alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use glob::Pattern;
use serde::Deserialize;

use crate::item::Item;

/// What a test may run at the same time as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Boots guests: with ordinary tests at the same time while there are some.
    Guest,
    /// Runs with as many others as there are jobs.
    Ordinary,
    /// Measures time or changes a setting of the whole system: nothing else runs meanwhile.
    Alone,
}

/// How one test runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Treatment {
    pub class: Class,
    /// The test is killed after this time.
    pub limit: Duration,
    /// `make test` leaves it to `make test-slow`.
    pub is_slow: bool,
}

/// `tools/suite/suite.toml`, which documents the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    jobs: usize,
    pause_s: f64,
    limit_s: f64,
    /// The examples that tests start, by package.
    #[serde(default)]
    examples: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    rule: Vec<RuleEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    tests: String,
    class: Option<Class>,
    limit_s: Option<f64>,
    slow: Option<bool>,
}

#[derive(Debug)]
struct Rule {
    tests: Pattern,
    class: Option<Class>,
    limit: Option<Duration>,
    is_slow: Option<bool>,
}

/// A configuration that was checked.
#[derive(Debug)]
pub struct Config {
    /// How many tests run at the same time, at least one.
    pub jobs: usize,
    /// The time between SIGTERM and SIGKILL, and the time that processes have to end after their test.
    pub pause: Duration,
    /// The examples that tests start, by package.
    pub examples: BTreeMap<String, Vec<String>>,
    limit: Duration,
    rules: Vec<Rule>,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("cannot use {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let file: File = toml::from_str(text)?;
        if file.jobs == 0 {
            bail!("jobs is 0");
        }
        let rules = file.rule.into_iter().map(|entry| {
            let tests = Pattern::new(&entry.tests)
                .with_context(|| format!("rule for {:?}", entry.tests))?;
            let limit = entry.limit_s.map(|limit| seconds("limit_s", limit));
            Ok(Rule {
                tests,
                class: entry.class,
                limit: limit.transpose()?,
                is_slow: entry.slow,
            })
        });
        Ok(Self {
            jobs: file.jobs,
            pause: seconds("pause_s", file.pause_s)?,
            examples: file.examples,
            limit: seconds("limit_s", file.limit_s)?,
            rules: rules.collect::<anyhow::Result<_>>()?,
        })
    }

    /// How the test of this identifier runs. Of two rules that match, the later one decides, for each field by itself.
    pub fn treatment(&self, id: &str) -> Treatment {
        let mut treatment = Treatment {
            class: Class::Ordinary,
            limit: self.limit,
            is_slow: false,
        };
        for rule in self.rules.iter().filter(|rule| rule.tests.matches(id)) {
            treatment.class = rule.class.unwrap_or(treatment.class);
            treatment.limit = rule.limit.unwrap_or(treatment.limit);
            treatment.is_slow = rule.is_slow.unwrap_or(treatment.is_slow);
        }
        treatment
    }

    /// The patterns that match no test of the list: a test that was renamed would otherwise lose its limit unnoticed.
    pub fn unused<'a>(&'a self, ids: &[&str]) -> Vec<&'a str> {
        let is_unused = |rule: &&Rule| !ids.iter().any(|id| rule.tests.matches(id));
        let unused = self.rules.iter().filter(is_unused);
        unused.map(|rule| rule.tests.as_str()).collect()
    }
}

fn seconds(field: &str, value: f64) -> anyhow::Result<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => bail!("{field} = {value} is not a time above 0"),
    }
}

/// Seconds that each test took in the run before this one, by identifier.
pub type Durations = BTreeMap<String, f64>;

/// Reads the durations of the last run. Without them only the order differs, so what cannot be read counts as absent.
pub fn read_durations(path: &Path) -> Durations {
    let bytes = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
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
        let has_some = |items: &Vec<Item>| !items.is_empty();
        let waits = |class| self.waiting.get(&class).is_some_and(has_some);
        let runs = |class| self.running.iter().any(|running| running.class == class);
        if runs(Class::Alone) {
            return None;
        }
        if waits(Class::Guest) && !runs(Class::Guest) {
            return Some(Class::Guest);
        }
        let mut classes = [Class::Ordinary, Class::Guest].into_iter();
        if let Some(class) = classes.find(|&class| waits(class)) {
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
                let known = durations.get(&item.id).copied();
                known.unwrap_or(item.treatment.limit.as_secs_f64())
            };
            items.sort_by(|a, b| {
                let order = expected(a).total_cmp(&expected(b));
                order.then_with(|| b.id.cmp(&a.id))
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
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that a test has ended.
    pub fn end(&self, id: &str) {
        self.lock().running.retain(|running| running.id != id);
        self.changed.notify_all();
    }

    /// The tests that run, and for how many seconds.
    pub fn running(&self) -> Vec<(String, f64)> {
        let state = self.lock();
        let seconds = |running: &Running| running.since.elapsed().as_secs_f64();
        let running = state.running.iter();
        running.map(|it| (it.id.clone(), seconds(it))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executables::Executable;

    const HEAD: &str = "jobs = 2\npause_s = 1\nlimit_s = 60\n";

    #[test]
    fn later_rules_override_earlier_ones_by_field() {
        let rules = r#"
            [[rule]]
            tests = "*/guest_*"
            class = "guest"
            limit_s = 200
            [[rule]]
            tests = "nearfar/guest_probe/*"
            limit_s = 0.5
            slow = true
        "#;
        let config = Config::parse(&format!("{HEAD}{rules}")).unwrap();
        let of = |id| {
            let treatment = config.treatment(id);
            let limit_s = treatment.limit.as_secs_f64();
            (treatment.class, limit_s, treatment.is_slow)
        };
        assert_eq!(of("nearfar/trace/a"), (Class::Ordinary, 60.0, false));
        assert_eq!(
            of("nearfar-lab/guest_commands/a"),
            (Class::Guest, 200.0, false)
        );
        assert_eq!(of("nearfar/guest_probe/a"), (Class::Guest, 0.5, true));
        assert_eq!(
            config.unused(&["nearfar-lab/guest_commands/a"]),
            ["nearfar/guest_probe/*"]
        );
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("jobs = 0\npause_s = 1\nlimit_s = 60\n", "jobs is 0"),
            (
                "jobs = 1\npause_s = 1\nlimit_s = 0\n",
                "limit_s = 0 is not a time above 0",
            ),
            (
                "jobs = 1\npause_s = nan\nlimit_s = 1\n",
                "pause_s = NaN is not a time above 0",
            ),
            (
                "jobs = 1\npause_s = 1\nlimit_s = 1\nlimits = 2\n",
                "unknown field",
            ),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_workspace_file_is_valid() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/suite.toml");
        let config = Config::read(Path::new(path)).unwrap();
        assert_eq!(config.treatment("nearfar/guest/x::y").class, Class::Guest);
    }

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
