//! The service's configuration, and its patterns against what a task may look like.
//!
//! ```text
//! first line   the task: name, executable, groups, each behind a tab
//! the rest     the configuration
//! ```
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_prefer::{config, matching};

fuzz_target!(|text: &str| {
    let (task, text) = text.split_once('\n').unwrap_or_default();
    match config::parse(text, "fuzz") {
        Ok(config) => {
            let mut words = task.split('\t').map(str::to_owned);
            let attributes = matching::TaskAttributes {
                name: words.next().unwrap_or_default(),
                executable: words.next(),
                groups: words.collect(),
            };
            let matching = matching::matching(&config.rules, &attributes);
            assert!(matching.is_sorted() && matching.last().is_none_or(|&last| last < config.rules.len()));
        }
        Err(error) => {
            assert!(error.line <= text.lines().count() + 1);
            assert!(!error.problem.contains(char::is_control) && error.problem.len() < 2000);
        }
    }
});
