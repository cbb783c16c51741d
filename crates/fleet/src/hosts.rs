//! Names of hosts, and lists of them as Slurm writes them: `n[1-4,08],login`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most hosts that one list may name.
const MAX_HOSTS: usize = 100_000;
/// The longest name: that of a file, which has it with a prefix and a suffix, has 255 bytes at most (NAME_MAX).
const MAX_NAME_BYTES: usize = 200;

/// The name of a host as an engine takes it, or `user@host` for OpenSSH.
///
/// It has only letters, digits and `.`, `_`, `-`, `@`, and begins with a letter, a digit or `_`: it is passed to programs as a word and
/// is part of file names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostError {
    #[error("{0:?} is not a host's name: letters, digits and . _ - @ are expected")]
    Name(String),
    #[error("the list of hosts has a \"[\" without \"]\", or one within another: {0:?}")]
    Brackets(String),
    #[error("{0:?} is not a range of numbers, such as 1-4 or 08-12")]
    Range(String),
    #[error("the list names more than {MAX_HOSTS} hosts")]
    TooMany,
    #[error("the list names no host")]
    Empty,
}

impl HostName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let is_first = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_fit = !text.is_empty()
            && text.len() <= MAX_NAME_BYTES
            && text.bytes().next().is_some_and(is_first)
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte));
        match is_fit {
            true => Ok(Self(text.to_owned())),
            false => Err(HostError::Name(text.to_owned())),
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = HostError;

    fn try_from(text: String) -> Result<Self, HostError> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hosts of a list, in its order, each once: names and ranges separated by commas, blanks or line ends; `#` begins a comment
/// that ends with its line.
///
/// # Errors
/// What is not a name or a range; more than 100,000 hosts; none.
pub fn parse_hosts(text: &str) -> Result<Vec<HostName>, HostError> {
    let (mut hosts, mut known) = (Vec::new(), BTreeSet::new());
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        for item in items(line)? {
            let mut names = Vec::new();
            expand(item, String::new(), &mut names, MAX_HOSTS)?;
            for name in names {
                let name: HostName = name.parse()?;
                if known.insert(name.clone()) {
                    hosts.push(name);
                }
                if hosts.len() > MAX_HOSTS {
                    return Err(HostError::TooMany);
                }
            }
        }
    }
    match hosts.is_empty() {
        true => Err(HostError::Empty),
        false => Ok(hosts),
    }
}

/// The parts of a line between commas and blanks that are not in brackets.
fn items(line: &str) -> Result<Vec<&str>, HostError> {
    let (mut found, mut from, mut is_within) = (Vec::new(), 0, false);
    for (at, c) in line.char_indices() {
        match c {
            '[' if !is_within => is_within = true,
            ']' if is_within => is_within = false,
            '[' | ']' => return Err(HostError::Brackets(line.to_owned())),
            c if !is_within && (c == ',' || c.is_whitespace()) => {
                found.push(&line[from..at]);
                from = at + c.len_utf8();
            }
            _ => {}
        }
    }
    if is_within {
        return Err(HostError::Brackets(line.to_owned()));
    }
    found.push(&line[from..]);
    found.retain(|item| !item.is_empty());
    Ok(found)
}

/// Appends every name that an item stands for; several ranges in one item are combined.
fn expand(
    item: &str,
    before: String,
    names: &mut Vec<String>,
    most: usize,
) -> Result<(), HostError> {
    let Some((head, rest)) = item.split_once('[') else {
        if names.len() >= most {
            return Err(HostError::TooMany);
        }
        names.push(before + item);
        return Ok(());
    };
    let (ranges, rest) = rest
        .split_once(']')
        .ok_or_else(|| HostError::Brackets(item.to_owned()))?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<u64>().ok()).flatten()
        };
        let wrong = || HostError::Range(range.to_owned());
        let (from, to) = (
            number(first).ok_or_else(wrong)?,
            number(last).ok_or_else(wrong)?,
        );
        if from > to {
            return Err(wrong());
        }
        if to - from >= most as u64 {
            return Err(HostError::TooMany);
        }
        for number in from..=to {
            let name = format!("{before}{head}{number:0width$}", width = first.len());
            expand(rest, name, names, most)?;
        }
    }
    Ok(())
}

/// A few of many names: `n1, n2, n3 and 14 more`.
pub fn some_of(names: &[impl ToString], most: usize) -> String {
    let shown: Vec<String> = names.iter().take(most).map(ToString::to_string).collect();
    match names.len().saturating_sub(most) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Result<String, HostError> {
        let hosts = parse_hosts(text)?;
        let names: Vec<&str> = hosts.iter().map(HostName::as_str).collect();
        Ok(names.join(" "))
    }

    #[test]
    fn lists_are_written_as_slurm_writes_them() {
        for (text, expected) in [
            ("n1", "n1"),
            ("n[1-3],login", "n1 n2 n3 login"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("r[1-2]n[1,3]-ib", "r1n1-ib r1n3-ib r2n1-ib r2n3-ib"),
            ("a, b\nb # c, d\n\n", "a b"),
            ("root@db.example.org", "root@db.example.org"),
        ] {
            assert_eq!(names(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        for text in ["", "# none", ","] {
            assert_eq!(names(text), Err(HostError::Empty), "{text:?}");
        }
        for text in ["n[1", "n]1", "n[1[2]]"] {
            assert!(matches!(names(text), Err(HostError::Brackets(_))), "{text}");
        }
        for text in [
            "n[]",
            "n[3-1]",
            "n[a-b]",
            "n[1-]",
            "n[+1]",
            "n[99999999999999999999]",
        ] {
            assert!(matches!(names(text), Err(HostError::Range(_))), "{text}");
        }
        for text in ["-oProxyCommand=x", "a/b", "..", "a;b", "a\u{1b}b", "é"] {
            assert!(matches!(names(text), Err(HostError::Name(_))), "{text:?}");
        }
        assert_eq!(names("n[1-1000000]"), Err(HostError::TooMany));
        assert_eq!(names("n[1-1000][1-1000]"), Err(HostError::TooMany));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[n0-9\\[\\],# \\-a-c\n]{0,40}") {
            let _ = parse_hosts(&text);
        }
    }
}
