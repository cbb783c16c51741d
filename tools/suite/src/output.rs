//! What a test printed: libtest's result, and the lines by which a test reports that it skips or repeats something.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::Context as _;

use crate::skip::Skip;

/// How much of a hung test's output is shown.
pub const HANG_LINES: usize = 100;
/// How much of a failed test's output is shown.
pub const FAILURE_LINES: usize = 400;
/// How much of one line is shown, in characters.
const LINE_LENGTH: usize = 1000;
/// How much of a log is read: its end.
const LOG_BYTES: u64 = 16 << 20;

const SKIPPED: &str = "skipped: ";
const RETRIED: &str = "retried: ";
/// What the command itself prints when it boots a guest once more.
const BOOTED_AGAIN: &str = "note: the guest was booted again";

/// Reads the end of a log. A process that escaped its test may still write, so the length is fixed first.
pub fn read(log: &Path) -> anyhow::Result<String> {
    let mut file = File::open(log).context("cannot open a log")?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES)
        .read_to_end(&mut bytes)
        .context("cannot read a log")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The lines, without libtest's `test NAME ... ` in front of the first that the test prints.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| {
        match line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            Some((_, printed)) => printed,
            None => line,
        }
    })
}

/// Why the test skipped all or part of what it tests.
///
/// # Errors
/// When a reason names no kind.
pub fn skips(text: &str) -> Result<Vec<Skip>, String> {
    lines(text)
        .filter_map(|line| line.strip_prefix(SKIPPED))
        .map(|reason| shortened(reason).parse())
        .collect()
}

/// What the test itself repeated.
pub fn retries(text: &str) -> Vec<String> {
    let is_booted_again = |line: &&str| line.starts_with(BOOTED_AGAIN);
    let reason = |line| str::strip_prefix(line, RETRIED).or(Some(line).filter(is_booted_again));
    lines(text).filter_map(reason).map(shortened).collect()
}

/// Whether libtest reports that one test ran and passed. A test that ends its process with code 0 has no such line, neither
/// has a name that matches no test.
pub fn has_one_passed(text: &str) -> bool {
    text.lines()
        .any(|line| line.starts_with("test result: ok. 1 passed; 0 failed;"))
}

/// The last lines, each shortened, and a note of what is left out.
pub fn tail(text: &str, count: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let hidden = all.len().saturating_sub(count);
    let note = (hidden > 0).then(|| format!("({hidden} lines before these)"));
    note.into_iter()
        .chain(all[hidden..].iter().map(|line| shortened(line)))
        .collect::<Vec<_>>()
        .join("\n")
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LINE_LENGTH) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_also_after_libtests_prefix() {
        let text = "\nrunning 1 test\ntest a::b ... skipped: guests: no QEMU\nskipped: tools: no numactl\nit was skipped: no\n\
                    retried: the guest hung\nnote: the guest was booted again after 3 s\nok\n";
        let skips = |text| {
            skips(text).map(|skips| skips.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(
            skips(text),
            Ok(vec![
                "guests: no QEMU".to_owned(),
                "tools: no numactl".to_owned()
            ])
        );
        assert!(skips("skipped: no QEMU\n").is_err());
        assert_eq!(
            retries(text),
            [
                "the guest hung",
                "note: the guest was booted again after 3 s"
            ]
        );
    }

    #[test]
    fn a_test_has_passed_only_if_libtest_says_so() {
        assert!(has_one_passed(
            "ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out\n"
        ));
        assert!(!has_one_passed(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out\n"
        ));
        assert!(!has_one_passed("test a ... "));
    }

    #[test]
    fn long_outputs_and_lines_are_shortened() {
        assert_eq!(tail("a\nb\nc\n", 2), "(1 lines before these)\nb\nc");
        assert_eq!(tail("a\nb\n", 2), "a\nb");
        assert_eq!(tail(&"ä".repeat(2000), 1).chars().count(), LINE_LENGTH + 4);
    }
}
