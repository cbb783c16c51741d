//! Why a test checked less than it says, by kind, and which kinds must not be.

use std::fmt;
use std::str::FromStr;

/// What a test lacked. A test prints `skipped: KIND: REASON`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A kernel, busybox, QEMU or the plugin for guests.
    Guests,
    /// The rights of root.
    Root,
    /// The kernel's permission to use perf events.
    Perf,
    /// Two or more CPUs.
    Cpus,
    /// Something that only some kernels have, or do not forbid.
    Kernel,
    /// A program of another package.
    Tools,
    /// One of the architectures that the test is for.
    Arch,
    /// Permission to fetch from the network.
    Network,
    /// A person who asked for it.
    Manual,
}

/// A reason to skip.
#[derive(Debug, Clone, PartialEq)]
pub struct Skip {
    pub kind: Kind,
    pub reason: String,
}

impl Kind {
    const ALL: [(&str, Self); 9] = [
        ("guests", Self::Guests),
        ("root", Self::Root),
        ("perf", Self::Perf),
        ("cpus", Self::Cpus),
        ("kernel", Self::Kernel),
        ("tools", Self::Tools),
        ("arch", Self::Arch),
        ("network", Self::Network),
        ("manual", Self::Manual),
    ];

    /// The kinds in a list such as `guests,root,perf`; none in an empty one.
    pub fn list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(str::parse)
            .collect()
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, kind)| *kind);
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| format!("no kind of skip: {text:?}; there are {}", names()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            Self::ALL
                .iter()
                .find(|(_, kind)| kind == self)
                .map_or("", |(name, _)| name),
        )
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.reason)
    }
}

/// `KIND: REASON`, as it stands behind `skipped: `.
impl FromStr for Skip {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, reason) = text.split_once(": ").unwrap_or((text, ""));
        Ok(Self {
            kind: kind.parse()?,
            reason: reason.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_unknown_ones_refused() {
        assert_eq!(
            Kind::list("guests, perf,"),
            Ok(vec![Kind::Guests, Kind::Perf])
        );
        assert_eq!(Kind::list(""), Ok(vec![]));
        assert!(
            Kind::list("guests,kvm")
                .unwrap_err()
                .contains("\"kvm\"; there are guests, root, perf")
        );
        let skip: Skip = "guests: no QEMU: not found".parse().unwrap();
        assert_eq!(
            (skip.kind, skip.to_string().as_str()),
            (Kind::Guests, "guests: no QEMU: not found")
        );
        assert!("no QEMU".parse::<Skip>().is_err());
    }

    /// Each line with which a test of this workspace skips names a kind.
    #[test]
    fn every_skip_in_the_sources_names_a_kind() {
        fn sources(directory: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
            for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
                match entry.path() {
                    path if path.is_dir() => sources(&path, found),
                    path if path.extension().is_some_and(|extension| extension == "rs") => {
                        found.push(path)
                    }
                    _ => {}
                }
            }
        }
        let mut files = Vec::new();
        sources(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates").as_ref(),
            &mut files,
        );
        files.retain(|file| !file.components().any(|part| part.as_os_str() == "examples"));
        let mut lines = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(
                !text.contains("\"SKIPPED"),
                "{}: a skip that is not counted",
                file.display()
            );
            for (_, rest) in text
                .match_indices("\"skipped: ")
                .map(|(at, mark)| text[at..].split_at(mark.len()))
            {
                let kind = rest.split_once(": ").map_or(rest, |(kind, _)| kind);
                assert!(
                    kind.parse::<Kind>().is_ok(),
                    "{}: {:?}",
                    file.display(),
                    rest.lines().next()
                );
                lines += 1;
            }
        }
        assert!(lines > 40, "only {lines} lines were found");
    }
}
