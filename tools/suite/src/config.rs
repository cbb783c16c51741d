//! The configuration: which test has which time limit and class.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use glob::Pattern;
use serde::Deserialize;

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
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
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
            let limit = entry
                .limit_s
                .map(|limit| seconds("limit_s", limit))
                .transpose()?;
            Ok(Rule {
                tests,
                class: entry.class,
                limit,
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
        let unused = self
            .rules
            .iter()
            .filter(|rule| !ids.iter().any(|id| rule.tests.matches(id)));
        unused.map(|rule| rule.tests.as_str()).collect()
    }
}

fn seconds(field: &str, value: f64) -> anyhow::Result<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => bail!("{field} = {value} is not a time above 0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
